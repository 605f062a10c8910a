"""Carries out a plan of kind ``ingest``: workers write all files, then the driver commits them.

groups ─▶ workers: `ranklake.lake.ingest.task` ─▶ data files ─▶ commits: fact tables, rejects, segments, ingest_plans
            └─ a task that killed its worker ─▶ halves, each in a process that may die ─▶ … ─▶ the one to blame
                                                                                               ─▶ quarantine/

The driver can die anywhere. All files are written before the first commit, and that commit names them (the plan's
manifest): until it is there, the next driver carries the plan out again; from then on, it commits what the manifest
names, whatever became of the segments. So rows and what is recorded about them cannot part, and of two drivers at one
plan the first commit decides for both.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.task import PIECE_BYTES, Group, TaskResult, compact, merge_results, set_aside, slot_files
from ranklake.lake.plans.attempts import WHOLE, Attempts, segments_digest
from ranklake.lake.plans.driver import SPOOL, Unit, carry_out
from ranklake.lake.plans.plan import LEDGER, Plan, Progress, commit_rows, ledger_row, row_files
from ranklake.lake.plans.rules import is_data_path
from ranklake.lake.plans.workers import ONE, PIECE_SHARE, InProcess, InSubprocess, Room, Workers, WorkersError
from ranklake.lake.store.governance import sealed_columns
from ranklake.lake.store.limits import Limits
from ranklake.lake.store.planned_segment import PlannedSegment
from ranklake.lake.store.reachability import unreachable
from ranklake.lake.store.writers import NOT_ASKED, Authenticator
from ranklake.lake.tables.commit import LostRaceError, number_of, swap
from ranklake.lake.tables.live_files import DataFile
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.tables import commit_info, ensure_table, latest
from ranklake.printable import counted

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.lake_config import SubjectsSection
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables

SEGMENT_CPU_S: Final = 0.7e-3
ROW_CPU_S: Final = 0.4e-6
"""Rough cost of a segment and of a row."""
GROUP_ROWS: Final = 2_000_000
GROUP_BYTES: Final = 128 * 2**20
LEAST_GROUP_ROWS: Final = 250_000
"""A task of fewer rows is not worth a file of its own."""

TRIES: Final = 3
UNSEEN_TRIES: Final = 20
"""Tries at one slot file by drivers that died themselves: nobody saw of what."""
DEADLY: Final = "killed whoever read it, or took all memory, each time"

COMMITTED_LAST: Final = ("rejects", "segments")
"""Tables that are committed after the fact tables, in this order."""
_MANIFEST: Final = "ranklake.files"
_MANIFEST_COMMITS: Final = 50
"""Commits of a table that are searched for the plan's."""


def execute(lake: "Lake", plan: Plan, workers: Workers, progress: Progress | None = None) -> list[dict[str, Any]]:
    """Carry out an ingest plan, again if need be; return its rows of the table ``segments``.

    Raises `ranklake.lake.tables.commit.LostRaceError` where another driver carried out the same plan first; the caller
    then looks again which plan is unfinished.
    """
    attempts = Attempts(lake.store, plan.number)
    files = committed_manifest(lake, plan)
    if files is None:
        segments = _write_and_commit(lake, plan, workers, attempts, progress)
    else:
        for table, own in in_commit_order(files).items():
            carry_out(_commit_unit(plan, table, own), partial(_swap, lake, plan, table, own))
        segments = _segment_rows(lake.tables, files)
    per_table: dict[str, int] = {}
    for row in segments:
        per_table[row["table"]] = per_table.get(row["table"], 0) + row["rows_stored"]
    sums = {name: sum(row[name] for row in segments) for name in ("rows_stored", "rows_rejected", "rows_duplicate")}
    recorded = sum(row["rows"] or 0 for row in segments)
    row = ledger_row(plan, per_table, segments=len(segments), rows_recorded=recorded, **sums)
    unit = Unit("commit", LEDGER, detail=f"plan {plan.number}", reads=(SPOOL,), writes=True)
    carry_out(unit, lambda: commit_rows(lake.tables, LEDGER, [row], plan.number))
    attempts.clear()
    return segments


def _write_and_commit(
    lake: "Lake", plan: Plan, workers: Workers, attempts: Attempts, progress: Progress | None
) -> list[dict[str, Any]]:
    """Write all files of a plan, then commit all but the ledger; return its rows of ``segments``."""
    workers = workers.fitting(expected_cpu_s(plan.body["segments"]))
    authenticator = Authenticator(
        lake.config.encryption_key, lake.config.spool.writers.from_plan(plan.body.get("rules", []))
    )
    tries = attempts.times_begun(WHOLE)
    # A plan that died often is cut the same way on each try, so that deaths are counted for the same tasks. Every
    # other try runs as usual: whoever kills drivers for being slow would otherwise never see the plan end.
    is_deadly = tries >= TRIES and tries % 2 == TRIES % 2
    are_segments_committed = _number(lake.tables, "segments") >= plan.number
    groups = list(_groups(lake, plan, ONE if is_deadly else workers.room(), authenticator))
    counter = itertools.count(1)
    done: Callable[[], None] | None = None
    if progress is not None:
        progress(0, len(groups))
        done = lambda: progress(next(counter), len(groups))  # noqa: E731 - one line at its one place of use
    isolation = Isolation(workers, attempts)

    def write() -> list[TaskResult]:
        with attempts.at(WHOLE):
            results = [None] * len(groups) if is_deadly else workers.run(attempted, groups, done, lost=lambda _: None)
            pairs = zip(groups, results, strict=True)
            return [isolation.run(group) if result is None else result for group, result in pairs]

    result = merge_results(carry_out(_write_unit(plan, groups), write))
    files = [*result.files, *result.rejects]
    segments = [{**row, "plan": plan.number, "date": plan.created.date()} for row in result.outcomes]
    if not are_segments_committed:
        files += row_files(lake.store, "segments", segments, plan.number)
    manifest = {_MANIFEST: json.dumps([{**asdict(file), "partition": file.partition.isoformat()} for file in files])}
    for table, own in in_commit_order(files).items():
        carry_out(_commit_unit(plan, table, own), partial(_commit, lake, plan, table, own, manifest))
        manifest = {}
    return segments


def _commit(lake: "Lake", plan: Plan, table: str, files: list[DataFile], manifest: dict[str, str]) -> None:
    if not _swap(lake, plan, table, files, manifest):
        # The other driver's account is true of its rows; what was read here may differ by now.
        raise LostRaceError(f"another driver carried out plan {plan.number}", where=lake.uri, hint="run it again")


def _swap(lake: "Lake", plan: Plan, table: str, files: list[DataFile], manifest: dict[str, str] | None = None) -> bool:
    metadata = {"ranklake.plan": str(plan.number), "ranklake.kind": plan.kind, **(manifest or {})}
    return swap(ensure_table(lake.tables, lake.contract(table)), plan.number, add=files, metadata=metadata)


def _commit_unit(plan: Plan, table: str, files: list[DataFile]) -> Unit:
    dates = tuple(file.partition for file in files)
    return Unit("commit", table, dates, f"plan {plan.number}", reads=(SPOOL,), writes=True)


def _write_unit(plan: Plan, groups: list[Group]) -> Unit:
    tables = {group.table for group in groups}
    counts = (("segment", len(plan.body["segments"])), ("table", len(tables)), ("task", len(groups)))
    detail = ", ".join(counted(count, noun) for noun, count in counts)
    return Unit("write", detail=f"plan {plan.number}: {detail}", reads=(SPOOL,))


def expected_cpu_s(segments: list[PlannedSegment]) -> float:
    """CPU seconds that segments of a plan take, about."""
    return len(segments) * SEGMENT_CPU_S + float(sum(row["rows"] for row in segments)) * ROW_CPU_S


def _groups(lake: "Lake", plan: Plan, room: Room = ONE, authenticator: Authenticator = NOT_ASKED) -> Iterator[Group]:
    """Cut a plan into tasks; segments of one slot file stay together, so that their repeats meet.

    Each table is cut evenly, into a multiple of the tasks that run at a time where there are rows enough. Another try
    of the plan may cut it otherwise: what a segment's rows come to is the same.
    """
    are_rejects_committed = _number(lake.tables, "rejects") >= plan.number
    by_table = itertools.groupby(plan.body["segments"], key=lambda row: row["table"])
    for table, segments in by_table:
        is_committed, subjects = _number(lake.tables, table) >= plan.number, subjects_of(lake, table)
        for chunk in _chunks(list(segments), room.tasks):
            yield Group(
                lake.store.address,
                plan.body["spool"],
                lake.store.storage,
                table,
                chunk,
                plan.number,
                plan.created,
                store_rows=not is_committed,
                store_rejects=not are_rejects_committed,
                authenticator=authenticator,
                piece_bytes=min(PIECE_BYTES, room.bytes_each // PIECE_SHARE),
                limits=Limits.of_plan(plan.body),
                contracts=plan.body.get("contracts", 0),
                subjects=subjects,
            )


def subjects_of(lake: "Lake", table: str) -> "SubjectsSection | None":
    """Return which columns are stored under keys; None where none is, nor was in the table, and no task has to look."""
    section, known = lake.config.subjects, lake.contracts().get(table)
    return section if section.columns or (known is not None and sealed_columns(lake.store, known)) else None


def _number(tables: "Tables", table: str) -> int:
    handle = latest(tables, table)
    return 0 if handle is None else number_of(handle)


def _chunks(segments: list[PlannedSegment], at_a_time: int) -> Iterator[list[PlannedSegment]]:
    total = sum(segment["rows"] for segment in segments)
    tasks = min(at_a_time * math.ceil(total / (at_a_time * GROUP_ROWS)), max(1, total // LEAST_GROUP_ROWS))
    share = total / max(1, tasks)
    chunk: list[PlannedSegment] = []
    rows = size = 0
    end, stem = share, ""
    for segment in segments:
        slot_file = segment["path"].rpartition("/")[2].rsplit("~", 2)[0]  # the name without rows and digest
        # A segment belongs where most of it lies: so shares stay even, and none is left over.
        is_full = rows + segment["rows"] / 2 > end or size + segment["bytes"] > GROUP_BYTES
        if chunk and is_full and slot_file != stem:
            yield chunk
            chunk, size = [], 0
            while rows + segment["rows"] / 2 > end:
                end += share
        chunk.append(segment)
        rows, size, stem = rows + segment["rows"], size + segment["bytes"], slot_file
    yield chunk


def in_commit_order(files: Iterable[DataFile]) -> dict[str, list[DataFile]]:
    """Files by table, in the order in which the tables are committed."""
    by_table: dict[str, list[DataFile]] = {}
    for file in files:
        by_table.setdefault(file.table, []).append(file)
    return dict(sorted(by_table.items(), key=lambda item: (item[0] in COMMITTED_LAST, item[0])))


def committed_manifest(lake: "Lake", plan: Plan) -> list[DataFile] | None:
    """All files of a plan, as its first commit names them; None where there is no such commit.

    None, too, where one of the files is gone, or cannot be the plan's. Raises `LakeUnreachableError`.
    """
    tables = [*sorted({row["table"] for row in plan.body["segments"]}), *COMMITTED_LAST]
    for table in tables:
        handle = latest(lake.tables, table)
        if handle is None or number_of(handle) < plan.number:
            continue
        files = _manifest_in(lake.store, handle, table, plan)
        if files is not None:
            return files if all(_is_there(lake.store, file, tables) for file in files) else None
    return None


def _segment_rows(tables: "Tables", files: Iterable[DataFile]) -> list[dict[str, Any]]:
    """Rows of ``segments`` that files of a plan hold."""
    own = [file for file in files if file.table == "segments"]
    live = pa.table(
        {
            "path": [file.path for file in own],
            "size_bytes": [file.size_bytes for file in own],
            "num_records": [file.rows for file in own],
            "date": pa.array([file.partition for file in own], pa.date32()),
        }
    )
    return [row for _, rows in read_some(tables, contract("segments"), live, verify=True) for row in rows.to_pylist()]


def _manifest_in(store: "Store", handle: "DeltaTable", table: str, plan: Plan) -> list[DataFile] | None:
    """Find the manifest in a table's last commits: no later plan was begun, so it is among them.

    Read by the lake's own client: delta-rs's history keeps Python's other threads waiting for the store.
    """
    newest = handle.version()
    for version in range(newest, max(-1, newest - _MANIFEST_COMMITS), -1):
        try:
            commit = commit_info(store, table, version)
            if commit.get("ranklake.plan") != str(plan.number) or _MANIFEST not in commit:
                continue
            rows = json.loads(commit[_MANIFEST])
            return [DataFile(**{**row, "partition": date.fromisoformat(row["partition"])}) for row in rows]
        except FileNotFoundError:  # older commits went with a checkpoint
            return None
        except OSError as error:
            raise unreachable(store.uri, error, store.storage) from None
        except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError):
            return None
    return None


def _is_there(store: "Store", file: DataFile, tables: list[str]) -> bool:
    """Whether a file is where one of the plan's has to be, with its size."""
    if file.table not in tables or not is_data_path(file.path, file.partition.isoformat()):
        return False
    try:
        return int(store.fs.size(store.path("tables", file.table, file.path))) == file.size_bytes
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unreachable(store.uri, error, store.storage) from None


class Isolation:
    """Retries tasks that killed their worker, in halves, until the segments to blame are alone.

    Each try is marked (`ranklake.lake.plans.attempts`), so that the next driver goes on where one died.

    Parameters
    ----------
    workers
        Whose processes may die: those of a cluster, else one is started for each try.
    """

    def __init__(self, workers: Workers, attempts: Attempts) -> None:
        self._workers = InSubprocess() if isinstance(workers, InProcess) else workers
        self._attempts = attempts

    def run(self, group: Group) -> TaskResult:
        """Carry out a task; raises what its segments are not to blame for."""
        files = slot_files(group.segments)
        if len(files) > 1:
            digest = segments_digest(group.segments)
            is_known = self._attempts.times_begun(digest) or self._attempts.times_died(digest)
            result = None if is_known else self._run_group(group)
            if result is not None:
                return result
            middle = len(files) // 2
            halves = [[row for file in half for row in file] for half in (files[:middle], files[middle:])]
            return merge_results([self.run(replace(group, segments=half)) for half in halves])
        if (result := self._try_often(group)) is not None:
            return result
        # Cuts of one slot file repeat each other, so those that live go in together.
        good = [row for row in group.segments if len(group.segments) > 1 and self._lives(group, row)]
        bad = [row for row in group.segments if row not in good]
        self._check_workers(group)
        if not bad or not good:
            return set_aside(group, DEADLY)
        return merge_results([self.run(replace(group, segments=good)), set_aside(replace(group, segments=bad), DEADLY)])

    def _lives(self, group: Group, row: PlannedSegment) -> bool:
        return self._try_often(replace(group, segments=[row])) is not None

    def _try_often(self, group: Group) -> TaskResult | None:
        """Try a task over and over; None if it died each time."""
        digest = segments_digest(group.segments)
        while self._attempts.times_died(digest) < TRIES and self._attempts.times_begun(digest) < UNSEEN_TRIES:
            result = self._run_group(group)
            if result is not None:
                return result
        return None

    def _run_group(self, group: Group) -> TaskResult | None:
        digest = segments_digest(group.segments)
        with self._attempts.at(digest):
            (result,) = self._workers.run(attempted, [group], lost=_no_result)
            if result is None:
                self._attempts.record_death(digest)
        return result

    def _check_workers(self, group: Group) -> None:
        """Raise `WorkersError` where workers die at nothing at all: then no segment is to blame."""
        (result,) = self._workers.run(attempted, [replace(group, segments=[])], lost=_no_result)
        if result is None:
            raise WorkersError("workers die at an empty task", hint="look at their memory and logs; run it again")


def attempted(group: Group) -> TaskResult | None:
    """Carry out a task, for workers that give None for what killed them."""
    return compact(group)


def _no_result(_: Group) -> TaskResult | None:
    return None
