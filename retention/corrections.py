"""Corrections of what a recorder wrote wrongly: lives of a run become attempts; impossible segments are set aside.

Renumbering: a run whose name was used again has its steps twice under one (run, attempt, rank), and fails the check
``steps_unique`` for ever. Its lives are told apart by the incarnations of their ranks:

    audit row (begun) ─▶ one numbered plan: the rows of later lives with a number of their own ─▶ audit row

The row count stays, and a replay of these dates is refused from then on, because it would undo the correction. Lives
whose steps do not repeat, such as those of an elastic launch, stay together. If one life repeats steps because its
numbers began again, nothing is written, and the command says so.

Disowning: the counts of a segment or stream are impossible, and a person sets it aside:

    audit row (begun) ─▶ one numbered plan: rows from the table to ``rejects``, a row of ``disowned`` ─▶ audit row

From then on its claims do not count when rows are reconciled (`ranklake.lake.ingest.status.reconciliation`). A process
that dies before the plan is written leaves files that no commit names. One that dies later leaves a plan that the next
driver finishes; the next call of the same writes the missing row of the audit log.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.audit import trail as audit
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.disowned import DISOWN, TABLE, Claim, claim_of, disowned_claims
from ranklake.lake.ingest.refused import REJECTED_ROWS, reject_rows
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.kinds import QUARANTINE, RENUMBER
from ranklake.lake.plans.plan import row_files
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table, refuse_unfit

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables
    from ranklake.lake.tables.live_files import DataFile


REASON: Final = "disowned: set aside by hand"
_STREAM: Final = ("run", "attempt", "rank", "incarnation")


class NothingClaimedError(RanklakeError):
    """No segment that was taken in is one of those that are to be set aside."""


@dataclass(frozen=True, slots=True)
class DisownResult:
    """What was done: the plan that did it, the rows it moved, and whether this call did it."""

    claim: Claim
    plan: int
    rows: int
    fresh: bool


def disown(lake: "Lake", claim: Claim, by: str, reason: str) -> DisownResult:
    """Set a segment or a stream aside: its rows go to ``rejects``, and what it says does not count any more.

    What was set aside already stays so; rows of it that came since go, too. Raises `NothingClaimedError`, and what the
    trail and the store raise; nothing was changed then.
    """
    _segments(lake.tables, claim)

    def compose(number: int) -> "Plan | None":
        return _compose_disowned(lake, claim, number, by, reason)

    fresh = drive(lake, compose, InProcess()).plan is not None
    row = max(
        (row for row in read(lake.tables, contract(TABLE)).to_pylist() if claim_of(row) == claim),
        key=lambda row: row["plan"],
    )
    audit.record(lake, by, "disowned", f"{claim} by plan {row['plan']}", None, {"rows": row["rows"]}, once=True)
    return DisownResult(claim, row["plan"], row["rows"], fresh)


def _segments(tables: "Tables", claim: Claim) -> list[dict[str, Any]]:
    """Return the rows of ``segments`` that a claim covers. Raises `NothingClaimedError`."""
    names = ["table", *_STREAM, "segment", "ts_min", "ts_max", "rows_stored"]
    known = read(tables, contract("segments"), names)
    mine = known.filter(_of_stream(known, claim.stream)).to_pylist()
    covered = [row for row in mine if claim.covers(row["table"], claim.stream, row["segment"])]
    if not covered:
        hint = "'ranklake status' names streams that do not add up; ask the table segments for others"
        raise NothingClaimedError("nothing of this was ever ingested", where=str(claim), hint=hint)
    return covered


def _of_stream(rows: pa.Table, stream: tuple[Any, ...]) -> pa.ChunkedArray:
    """Return true where a row is a stream's."""
    mask = pc.equal(rows["incarnation"], pa.scalar(stream[3], rows["incarnation"].type))
    for name, value in zip(_STREAM[:3], stream[:3], strict=True):
        mask = pc.and_(mask, pc.equal(rows[name], pa.scalar(value, rows[name].type)))
    return pc.fill_null(mask, fill_value=False)


def _compose_disowned(lake: "Lake", claim: Claim, number: int, by: str, reason: str) -> "Plan | None":
    """Write the files of the plan; None where it is set aside already and no row of it is in a table."""
    begun = claim in disowned_claims(lake.tables)
    new: list[DataFile] = []
    gone: dict[str, pa.Table] = {}
    moved, when = 0, datetime.now(UTC)
    by_table: dict[str, list[dict[str, Any]]] = {}
    for row in _segments(lake.tables, claim):
        by_table.setdefault(row["table"], []).append(row)
    if not begun:
        audit.record(lake, by, DISOWN, str(claim), reason, {"segments": sum(map(len, by_table.values()))}, once=True)
    for table, rows in sorted(by_table.items()):
        if not any(row["rows_stored"] for row in rows):
            continue
        target = lake.contract(table)
        candidates = _candidates(lake, table, rows)
        dropped = []
        for drop, added, taken in action_plan.remove_rows(
            lake.tables, target, number, candidates, lambda batch: _rows_of(batch, claim)
        ):
            dropped.append(drop)
            new += [*added, *_reject_rows(lake.store, target, taken, number, when)]
            moved += taken.num_rows
        if dropped:
            gone[table] = pa.concat_tables(dropped)
    if begun and not gone:
        return None
    run, attempt, rank, incarnation = claim.stream
    facts = {"run": run, "attempt": attempt, "rank": rank, "incarnation": incarnation, "segment": claim.segment}
    row = {"plan": number, "table": claim.table, **facts, "rows": moved, "actor": by, "reason": reason}
    new += row_files(lake.store, TABLE, [{**row, "ts": when, "date": when.date()}], number)
    return action_plan.compose(number, QUARANTINE.name, add=new, remove=gone, facts={"disowned": str(claim)})


def _rows_of(rows: pa.Table, claim: Claim) -> pa.ChunkedArray:
    mask = _of_stream(rows, claim.stream)
    return mask if claim.segment is None else pc.and_(mask, pc.equal(rows["segment"], claim.segment))


def _reject_rows(store: "Store", target: "Contract", taken: pa.Table, number: int, when: datetime) -> "list[DataFile]":
    written: list[DataFile] = []
    for at in range(0, taken.num_rows, REJECTED_ROWS):
        batch = taken.slice(at, REJECTED_ROWS)
        reasons = pa.repeat(REASON, batch.num_rows)
        rows = reject_rows(batch, reasons, [None] * batch.num_rows, "disown", target, number, when)
        written += append_files(store, contract("rejects"), rows, number)
    return written


def _candidates(lake: "Lake", table: str, segments: list[dict[str, Any]]) -> pa.Table:
    """Return the live files that rows of some segments can lie in; where nobody knows their times, all."""
    handle = delta_table(lake.store, table)
    assert handle is not None, "rows were stored"
    live = files(refuse_unfit(handle, lake.contract(table)))
    ends = [row[name] for row in segments for name in ("ts_min", "ts_max")]
    if None in ends:
        return live
    first, last = (pa.scalar(end.date(), pa.date32()) for end in (min(ends), max(ends)))
    return live.filter(pc.and_(pc.greater_equal(live["date"], first), pc.less_equal(live["date"], last)))


_REPEATED: Final = """
SELECT run, attempt, sum(CASE WHEN lives > 1 THEN 1 ELSE 0 END) AS between,
    sum(CASE WHEN recorded > lives THEN 1 ELSE 0 END) AS within
FROM (
    SELECT run, attempt, rank, step, count(*) AS recorded, count(DISTINCT incarnation) AS lives
    FROM steps WHERE {} GROUP BY run, attempt, rank, step HAVING count(*) > 1
)
GROUP BY run, attempt ORDER BY run, attempt
"""
COUNTED_ANEW: Final = (
    "no attempt can part them; in the next recording count steps on, such as epoch * steps_per_epoch + i"
)
"""What can be done about steps that one life repeats."""


@dataclass(frozen=True, slots=True)
class RepeatedAttempt:
    """An attempt that holds steps twice.

    Attributes
    ----------
    between
        Steps of a rank that several lives recorded: renumbering parts them.
    within
        Steps of a rank that one life recorded more than once, as where its numbers begin again: nothing parts them.
    """

    run: str
    attempt: int
    between: int
    within: int


def repeated_in_run(lake: "Lake", run: str) -> list[RepeatedAttempt]:
    """Return the attempts of a run that hold steps twice, on any date. Raises what `query` raises."""
    return _query(lake, "run = $run", {"run": run})


def repeated_on_dates(lake: "Lake", days: Iterable[date]) -> list[RepeatedAttempt]:
    """Return the attempts that hold steps twice in the rows of some dates. Raises what `query` raises."""
    named = ", ".join(f"DATE '{day.isoformat()}'" for day in sorted(set(days)))
    return _query(lake, f"date IN ({named})", {}) if named else []


def _query(lake: "Lake", rows: str, params: dict[str, str]) -> list[RepeatedAttempt]:
    return [RepeatedAttempt(**row) for row in query(lake, _REPEATED.format(rows), params).to_pylist()]


_NOW: Final = "SELECT DISTINCT incarnation, attempt FROM {} WHERE run = $run"


class NoRepeatError(RanklakeError):
    """No step of the run was recorded twice."""


class UnknownRunError(RanklakeError):
    """The lake has no row of the run."""


class OneLifeError(RanklakeError):
    """The only steps that were recorded twice are of one life each, which renumbering cannot part."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class RenumberResult:
    """What was done.

    Attributes
    ----------
    plan, attempts, rows
        The plan, the new attempts by incarnation, and how many rows have them.
    within
        Steps that are still there twice, for one life recorded them so.
    """

    run: str
    plan: int
    attempts: Mapping[int, int]
    rows: int
    within: int = 0


@dataclass(frozen=True, slots=True)
class Life:
    """What one process recorded of a rank: from its first row to its last; whether it has steps."""

    attempt: int
    rank: int
    incarnation: int
    first: datetime
    last: datetime
    steps: bool


def renumber(lake: "Lake", run: str, by: str) -> RenumberResult:
    """Give later lives of a run, where steps repeat, the attempts behind its highest.

    Raises `UnknownRunError`, `NoRepeatError`, `OneLifeError`, and what the trail and the store raise; nothing was
    changed then.
    """
    done: list[RenumberResult] = []

    def compose(number: int) -> "Plan | None":
        plan, made = _compose(lake, run, number, by)
        done[:] = [made]
        return plan

    drive(lake, compose, InProcess())
    (made,) = done
    shown = {f"{incarnation:016x}": attempt for incarnation, attempt in made.attempts.items()}
    audit.record(lake, by, "renumbered", f"{run} by plan {made.plan}", None, {"rows": made.rows, **shown}, once=True)
    return made


def attempts_of(lives: Iterable[Life], repeated: Iterable[int]) -> dict[int, int]:
    """Return the new attempts of incarnations, those of later lives of the attempts in which steps repeat.

    A rank's first process with steps is of the first life, its second of the second, and so on; every other process,
    such as that of a rank that joined later, is of the life that it overlaps longest, for ranks of one life are not
    split.
    """
    attempts: dict[int, int] = {}
    everything = list(lives)
    highest = max(life.attempt for life in everything)
    for attempt in sorted(repeated):
        mine = [life for life in everything if life.attempt == attempt]
        by_rank: dict[int, list[Life]] = defaultdict(list)
        for life in sorted((life for life in mine if life.steps), key=lambda life: (life.first, life.incarnation)):
            by_rank[life.rank].append(life)
        count = max(map(len, by_rank.values()))
        order = {life: at for same in by_rank.values() if len(same) == count for at, life in enumerate(same)}
        spans = [_span(life for life, at in order.items() if at == number) for number in range(count)]
        for life in mine:
            at = order.get(life)
            if at is None:
                at = max(range(count), key=lambda number: _overlap_s(life, spans[number]))
            if at:
                attempts[life.incarnation] = highest + at
        highest += count - 1
    return attempts


def _span(lives: Iterable[Life]) -> tuple[datetime, datetime]:
    spans = list(lives)
    return min(life.first for life in spans), max(life.last for life in spans)


def _overlap_s(life: Life, span: tuple[datetime, datetime]) -> float:
    """Return for how long a process was there in a span of time; less than 0 is how far it is away."""
    return (min(life.last, span[1]) - max(life.first, span[0])).total_seconds()


def _lives(segments: list[dict[str, Any]]) -> list[Life]:
    streams: dict[tuple[int, int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in segments:
        streams[row["attempt"], row["rank"], row["incarnation"]].append(row)
    return [
        Life(
            *key,
            min(row["ts_min"] for row in rows),
            max(row["ts_max"] for row in rows),
            any(row["table"] == "steps" for row in rows),
        )
        for key, rows in streams.items()
    ]


def _compose(lake: "Lake", run: str, number: int, by: str) -> "tuple[Plan | None, RenumberResult]":
    names = ["table", "run", "attempt", "rank", "incarnation", "ts_min", "ts_max", "rows_stored"]
    known = read(lake.tables, contract("segments"), names)
    repeated = repeated_in_run(lake, run)
    if not repeated:
        refuse_unknown(run, known["run"])
        hint = "what else fails a check, 'ranklake check' says"
        raise NoRepeatError("nothing to renumber: no step of the run was recorded twice", where=run, hint=hint)
    within = sum(one.within for one in repeated)
    parted = [one.attempt for one in repeated if one.between]
    if not parted:
        counted = f"{within:,} step{'s' * (within != 1)} of a rank"
        raise OneLifeError(f"nothing to renumber: one life recorded {counted} twice", where=run, hint=COUNTED_ANEW)
    segments = [row for row in known.filter(pc.equal(known["run"], run)).to_pylist() if row["ts_min"] is not None]
    segments = _as_they_are(lake, run, segments)
    new = attempts_of(_lives(segments), parted)
    audit.record(lake, by, "renumber", run, None, {"incarnations": len(new)}, once=True)
    added: list[DataFile] = []
    gone: dict[str, pa.Table] = {}
    moved = 0
    by_table: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in segments:
        if row["incarnation"] in new and row["rows_stored"]:
            by_table[row["table"]].append(row)
    for table, rows in sorted(by_table.items()):
        target = lake.contract(table)
        live = action_plan.live_files(lake, table, _days(rows))
        dropped = []
        mine = partial(_of, run=run, new=new)
        for drop, rewritten, taken in action_plan.remove_rows(lake.tables, target, number, live, mine):
            dropped.append(drop)
            added += [*rewritten, *append_files(lake.store, target, _with_attempts(taken, new), number)]
            moved += taken.num_rows
        if dropped:
            gone[table] = pa.concat_tables(dropped)
    plan = action_plan.compose(number, RENUMBER.name, add=added, remove=gone, facts={"run": run}) if gone else None
    return plan, RenumberResult(run, number, new, moved, within)


def refuse_unknown(run: str, known: pa.ChunkedArray) -> None:
    """Raise `UnknownRunError` unless a run is among those that segments name."""
    names = pc.unique(known).to_pylist()
    if run not in names:
        raise UnknownRunError("there is no such run in the lake", where=run, hint=did_you_mean(run, names))


def _as_they_are(lake: "Lake", run: str, segments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what is known of segments with the attempts that their rows have now, after earlier renumberings."""
    now: dict[int, int] = {}
    for table in sorted({row["table"] for row in segments if row["rows_stored"]}):
        rows = query(lake, _NOW.format(table), {"run": run})
        now.update(zip(rows["incarnation"].to_pylist(), rows["attempt"].to_pylist(), strict=True))
    return [row | {"attempt": now.get(row["incarnation"], row["attempt"])} for row in segments]


def _days(rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the dates between the first and the last row of segments."""
    days = set()
    for row in rows:
        first, last = row["ts_min"].date().toordinal(), row["ts_max"].date().toordinal()
        days |= {row["ts_min"].date().fromordinal(day) for day in range(first, last + 1)}
    return sorted(days)


def _of(rows: pa.Table, run: str, new: Mapping[int, int]) -> pa.ChunkedArray:
    mine = pc.is_in(rows["incarnation"], value_set=pa.array(list(new), pa.int64()))
    return pc.fill_null(pc.and_(mine, pc.equal(rows["run"], run)), fill_value=False)


def _with_attempts(rows: pa.Table, new: Mapping[int, int]) -> pa.Table:
    at = rows.schema.get_field_index("attempt")
    numbers = [new[incarnation] for incarnation in rows["incarnation"].to_pylist()]
    return rows.set_column(at, rows.schema.field(at), pa.array(numbers, rows.schema.field(at).type))
