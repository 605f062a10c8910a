"""Traces a table's rows back to their bytes, and verifies each digest.

    table, run, date ─▶ data files with such rows ─▶ lineage of their partitions: the code, the inputs and their digests
        ─▶ the inputs' files of then: as they are now, or in the version that was read ─▶ … ─▶ recorded tables
        ─▶ segments by their rows' keys ─▶ the spool

Digests in the lineage show whether inputs have changed since. If the files that were read are deleted, the present ones
are traced, with a note.
"""

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from ranklake.insight.lineage.stored_files import (
    PACK_DIFFERS,
    VERIFIED,
    FedSegment,
    SegmentLedger,
    SlotFile,
    StoredFile,
    examined,
)
from ranklake.lake.contracts.freeze import contract_digest
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.kinds import INGEST
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.rollups.inputs import (
    NOTHING,
    WHOLE,
    InputTables,
    Key,
    Snapshot,
    combine_days,
    day_of,
    of_days,
    partition,
    snapshot_of,
)
from ranklake.lake.rollups.lineage import Lineage, Recorded
from ranklake.lake.rollups.named import rollups_of
from ranklake.lake.store.governance import rehydrated_files, retired_dates
from ranklake.lake.store.store import Store
from ranklake.lake.store.tables import Tables
from ranklake.lake.tables.live_files import files, plan_of, refuse_damaged
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import at_version, latest

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.rollups.declaration import Rollup
    from ranklake.lake.rollups.lineage import State
    from ranklake.lake.store.lake import Lake

AS_READ: Final = "as it was read"
OTHER_CODE: Final = "other code than is installed here"
_LEDGERS: Final = ("lineage", "segments")


@dataclass(frozen=True, slots=True)
class InputPartition:
    """A partition that a computation read; `state` tells whether its files are unchanged."""

    table: str
    partition: str
    version: int | None
    state: str


@dataclass(frozen=True, slots=True)
class Computation:
    """A computed partition in the lineage.

    Attributes
    ----------
    version
        Delta version of the table with the result.
    transform, sha256
        Name and digest of the code, its parameters and lookups.
    state
        `VERIFIED` if the installed code is the same, else `OTHER_CODE`.
    inputs
        Inputs that may have rows of the run.
    """

    table: str
    partition: str
    version: int | None
    transform: str
    sha256: str
    state: str
    inputs: tuple[InputPartition, ...]


@dataclass(frozen=True, slots=True)
class ContractVersion:
    """The contract of a table in the lineage, and its digest."""

    table: str
    version: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Remark:
    """A note about a table in the lineage."""

    table: str
    text: str


@dataclass(frozen=True, slots=True)
class Walk:
    """The lineage of rows.

    Attributes
    ----------
    notes
        One for each input whose files were deleted, and for each other version of code.
    faults
        One for each altered file, segment or pack.
    """

    computations: tuple[Computation, ...]
    contracts: tuple[ContractVersion, ...]
    files: tuple[StoredFile, ...]
    segments: tuple[FedSegment, ...]
    notes: tuple[Remark, ...]
    faults: tuple[Remark, ...]

    def within(self, tables: Container[str]) -> "Walk":
        """Return its part about some tables."""
        computations = tuple(
            replace(each, inputs=tuple(part for part in each.inputs if part.table in tables))
            for each in self.computations
            if each.table in tables
        )
        rest = (self.contracts, self.files, self.segments, self.notes, self.faults)
        kept = (tuple(each for each in some if each.table in tables) for some in rest)
        return Walk(computations, *kept)  # type: ignore[arg-type]


class _Place(NamedTuple):
    """Files of a table to trace; `version` as in `StoredFile`."""

    table: str
    version: int | None
    live: pa.Table


class _ReadFiles(NamedTuple):
    """The files of an input partition that a computation read, or its present files; and its state."""

    place: _Place
    state: str
    is_exact: bool


def walk(lake: "Lake", target: "Contract", run: str | None, day: date | None, spool: "Spool | None") -> Walk:
    """Trace a table's rows of a run, of one UTC date or of all, back to segments. Writes nothing.

    Parameters
    ----------
    run
        None for all rows, such as those of a table without a column run.

    Raises `ranklake.lake.tables.live_files.DamagedFileError` if the tables ``lineage`` or ``segments`` are damaged;
    `LakeUnreachableError`; `OSError` where a file may not be read.
    """
    for table in _LEDGERS:
        if (handle := latest(lake.tables, table)) is not None:
            refuse_damaged(lake.tables, table, files(handle))
    return _Walker(lake, run).walk(target, day, SegmentLedger(lake.tables, spool))


class _Walker:
    def __init__(self, lake: "Lake", run: str | None) -> None:
        self._lake, self._run = lake, run
        self._contracts = lake.contracts()
        self._rollups = {each.name: each for each in rollups_of(lake)}
        self._tables, self._lineage, self._changes = InputTables(lake), Lineage(lake.tables), Changes(lake.tables)
        self._states: dict[str, State] = {}
        self._versions: dict[tuple[str, int], Snapshot | None] = {}
        self._files: dict[tuple[str, str], StoredFile] = {}
        self._slot_files: dict[str, set[SlotFile]] = defaultdict(set)
        self._computations: dict[Key, Computation] = {}
        self._notes: dict[Remark, None] = {}

    def walk(self, target: "Contract", day: date | None, ledger: SegmentLedger) -> Walk:
        """Trace the rows of a table."""
        live = self._own(self._tables.snapshot(target.table))
        pending = [_Place(target.table, None, live if day is None else of_days(live, [day]))]
        while pending:
            place = pending.pop()
            pending += self._inputs(place.table, self._look(place))
        self._look_at_rehydrated(target, day)
        segments: list[FedSegment] = []
        faults: list[Remark] = []
        for table, slot_files in sorted(self._slot_files.items()):
            own, missing = ledger.fed(table, slot_files)
            segments += own
            faults += [Remark(table, f"{each.path}: {each.state}") for each in own if each.is_faulty]
            faults += [Remark(table, f"{path}: {PACK_DIFFERS}") for path in ledger.damaged_packs(own)]
            lost = (f"segment {number} of incarnation {incarnation}" for incarnation, number in missing)
            faults += [Remark(table, f"{table}: rows name {each}, unknown to the table segments") for each in lost]
        stored = sorted(self._files.values(), key=lambda file: (file.table, file.path))
        faulty = [Remark(each.table, f"{each.table}/{each.path}: {each.state}") for each in stored if each.is_faulty]
        used = sorted({file.table for file in stored} & set(self._contracts))
        contracts = [self._contracts[table] for table in used]
        return Walk(
            tuple(self._computations.values()),
            tuple(ContractVersion(each.table, each.version, contract_digest(each)) for each in contracts),
            tuple(stored),
            tuple(segments),
            tuple(self._notes),
            (*faulty, *faults),
        )

    def _note(self, table: str, text: str) -> None:
        self._notes[Remark(table, text)] = None

    def _own(self, snapshot: Snapshot) -> pa.Table:
        """Return the files of a table that may hold rows of the run."""
        has_run = self._run is not None and "run" in self._contracts[snapshot.table]
        return snapshot.files_of([self._run or ""]) if has_run else snapshot.files()

    def _look(self, place: _Place) -> set[date]:
        """Read files that were not read yet; return the dates with rows of the run, or with damage."""
        known = self._contracts[place.table]
        unseen = [(place.table, path) not in self._files for path in place.live["path"].to_pylist()]
        live = place.live.filter(pa.array(unseen, pa.bool_()))
        days = set()
        for file, day, slot_files in examined(self._lake.tables, known, live, self._run, place.version):
            self._files[file.table, file.path] = file
            self._slot_files[file.table] |= slot_files
            days.add(day)
        return days

    def _look_at_rehydrated(self, target: "Contract", day: date | None) -> None:
        """Read restored archived rows of the table: queries can read them, computations do not."""
        back = rehydrated_files(self._lake.store, datetime.now(UTC).date(), {target.table: target.version})
        for brought in back.get(target.table, ()):
            live = brought if day is None else of_days(brought, [day])
            if not live.num_rows:
                continue
            place = live["path"][0].as_py().partition("/tables/")[0]
            inside = pc.replace_substring_regex(live["path"], "^.*/tables/[^/]*/", "")
            relative = live.set_column(live.column_names.index("path"), "path", inside)
            tables = Tables(Store.at(f"{self._lake.store.uri}/{place}", self._lake.store.storage))
            for file, _, slot_files in examined(tables, target, relative, self._run, None):
                self._files[target.table, f"{place}/{file.path}"] = file
                self._slot_files[target.table] |= slot_files
                self._note(target.table, f"{place}: rows are back from an archive; nothing was computed of them")

    def _inputs(self, table: str, days: set[date]) -> Iterator[_Place]:
        """Yield the computations of a table's partitions; none if it is not a rollup."""
        rollup = self._rollups.get(table)
        if rollup is None or not days:
            return
        if table not in self._states:
            self._states[table] = self._lineage.recorded(rollup, self._tables.snapshot(table))
        names = [WHOLE] if rollup.scope == "run" else [partition(day) for day in sorted(days)]
        for name in names:
            inputs = self._states[table].get(name, {})
            if inputs and (table, name) not in self._computations:
                yield from self._computed(rollup, name, inputs)

    def _computed(self, rollup: "Rollup", name: str, inputs: Mapping[Key, Recorded]) -> Iterator[_Place]:
        """Add a computation; yield the files that it read."""
        span = self._span(rollup) if name == WHOLE else None
        listed = []
        for (table, part), recorded in sorted(inputs.items()):
            if recorded.digest == NOTHING or table not in self._contracts:
                continue
            read = self._read_files(table, part, recorded, name)
            is_near = span is None or part == WHOLE or span[0] <= day_of(part) <= span[1]
            if not read.place.live.num_rows and (read.is_exact or not is_near):
                continue  # it had only rows of other runs
            if not read.is_exact:
                place = f"{table} {part}".rstrip()
                self._note(table, f"{place}, of which {rollup.name} was computed: {read.state}")
            listed.append(InputPartition(table, part, recorded.input_version, read.state))
            yield read.place
        last = max(inputs.values(), key=lambda each: each.output_version or 0)
        state = VERIFIED if last.transform_sha256 == rollup.sha256 else OTHER_CODE
        if state == OTHER_CODE:
            self._note(rollup.name, f"{rollup.name} was computed by {state}, or with other settings")
        facts = (last.output_version, rollup.name, last.transform_sha256, state)
        self._computations[rollup.name, name] = Computation(rollup.name, name, *facts, tuple(listed))

    def _span(self, rollup: "Rollup") -> tuple[date, date]:
        """Return the first and last date of the run's data in a run rollup."""
        snapshot = self._tables.snapshot(rollup.name)
        rows = snapshot.rows(self._lake, ["run", *rollup.times])
        begin, end = rollup.times
        own = rows.filter(pc.field("run") == self._run).to_pylist() if self._run is not None else rows.to_pylist()
        firsts = [row[begin].date() for row in own if row[begin]]
        lasts = [row[end].date() for row in own if row[end]]
        return min(firsts, default=date.min), max([*firsts, *lasts], default=date.max)

    def _read_files(self, table: str, part: str, recorded: Recorded, output: str) -> _ReadFiles:
        """Return the files of an input that were read: present ones, or those of a former version."""
        now = self._tables.snapshot(table)
        until = date.max if output == WHOLE else day_of(output)
        if _digest(now, part, until).startswith(recorded.digest):
            return _ReadFiles(_Place(table, None, self._part(now, part, until)), AS_READ, is_exact=True)
        live = now.files() if part == WHOLE else now.files([day_of(part)])
        changed = self._changes.clause(self._contracts.get(table), part, live)
        then = None if recorded.input_version is None else self._at(table, recorded.input_version)
        if then is not None and _digest(then, part, until).startswith(recorded.digest):
            place = _Place(table, then.version, self._part(then, part, until))
            if self._are_there(place):
                return _ReadFiles(place, f"read in version {then.version}, since then {changed}", is_exact=True)
        state = f"what was read is gone ({changed})"
        return _ReadFiles(_Place(table, None, self._part(now, part, until)), state, is_exact=False)

    def _are_there(self, place: _Place) -> bool:
        store = self._lake.store
        return all(store.fs.exists(store.path("tables", place.table, path)) for path in place.live["path"].to_pylist())

    def _part(self, snapshot: Snapshot, part: str, until: date) -> pa.Table:
        """Return the files of a partition, or of all up to a date, that may hold rows of the run."""
        live = self._own(snapshot)
        days = [day for day in snapshot.digests if day <= until] if part == WHOLE else [day_of(part)]
        return of_days(live, days)

    def _at(self, table: str, version: int) -> Snapshot | None:
        """Return a table at a version; None if its log lacks the version."""
        key = (table, version)
        if key not in self._versions:
            try:
                self._versions[key] = snapshot_of(at_version(self._lake.store, table, version), table)
            except DeltaError:
                self._versions[key] = None
        return self._versions[key]


def _digest(snapshot: Snapshot, part: str, until: date) -> str:
    return combine_days(snapshot, until) if part == WHOLE else snapshot.digests.get(day_of(part), NOTHING)


class Changes:
    """Reasons for changed partitions, from the ledger of plans and the register of retention; read on first use."""

    def __init__(self, tables: "Tables") -> None:
        self._tables = tables

    def clause(self, known: "Contract | None", name: str, live: pa.Table) -> str:
        """Describe how a partition has changed, in a clause.

        Parameters
        ----------
        known
            Contract of the table; None if it was dropped.
        name
            The partition; empty for the whole table.
        live
            The partition's files now, rows of `ranklake.lake.tables.live_files.files`.
        """
        if known is None:
            return "its table is gone"
        if not live.num_rows:
            plan = None if name == WHOLE else self.removed(known.table).get(day_of(name))
            return "removed" if plan is None else f"removed by plan {plan} ({self._kind(plan)})"
        if known.kind == "derived":
            return "computed again"
        plan = max((plan_of(path) or 0 for path in live["path"].to_pylist()), default=0)
        verb = "more rows came" if self._kind(plan) == INGEST.name else "rewritten"
        return f"{verb} by plan {plan} ({self._kind(plan)})"

    def removed(self, table: str) -> Mapping[date, int]:
        """Return the dates of a table that retention removed, each with its plan."""
        return self._retired.get(table, {})

    def _kind(self, plan: int) -> str:
        return self._kinds.get(plan, "of another writer")

    @cached_property
    def _kinds(self) -> dict[int, str]:
        return {row["plan"]: row["kind"] for row in read(self._tables, contract(LEDGER), ["plan", "kind"]).to_pylist()}

    @cached_property
    def _retired(self) -> Mapping[str, Mapping[date, int]]:
        return retired_dates(self._tables)
