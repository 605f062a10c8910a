"""Corrections of wrong recordings: starts of a run under one attempt are renumbered; impossible segments are set aside.

Renumbering: a run whose name was used again has its steps twice under one (run, attempt, rank), and always fails the
check ``steps_unique``. A life is one start of the run; lives are distinguished by the incarnations of their ranks:

    audit row (begun) ─▶ one numbered plan: later lives get new attempt numbers ─▶ audit row

The row count stays the same. A replay of these dates is refused from then on, since it would undo the correction. Lives
whose steps do not repeat, such as those of an elastic launch, stay together. If one life repeats steps because it
counted them from the start again, nothing is written and the command reports it.

Disowning: the counts of a segment or stream are impossible, and a person sets it aside:

    audit row (begun) ─▶ one numbered plan: rows from the table to ``rejects``, a row of ``disowned`` ─▶ audit row

Its claims no longer count in reconciliation (`ranklake.lake.ingest.status.reconciliation`). A crash before the plan is
written leaves unused files. After a later crash, the next driver finishes the plan, and the next call for the same
segment or stream writes the missing audit row.
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
    """No ingested segment matches the claim."""


@dataclass(frozen=True, slots=True)
class DisownResult:
    """Result of `disown`: the claim, the number of its plan, the moved rows, and whether this call did it."""

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
    segments = read(tables, contract("segments"), names)
    of_stream = segments.filter(_of_stream(segments, claim.stream)).to_pylist()
    covered = [row for row in of_stream if claim.covers(row["table"], claim.stream, row["segment"])]
    if not covered:
        hint = "'ranklake status' names streams that do not add up; ask the table segments for others"
        raise NothingClaimedError("nothing of this was ever ingested", where=str(claim), hint=hint)
    return covered


def _of_stream(rows: pa.Table, stream: tuple[Any, ...]) -> pa.ChunkedArray:
    """Return a Boolean for each row: whether it is of a stream."""
    mask = pc.equal(rows["incarnation"], pa.scalar(stream[3], rows["incarnation"].type))
    for name, value in zip(_STREAM[:3], stream[:3], strict=True):
        mask = pc.and_(mask, pc.equal(rows[name], pa.scalar(value, rows[name].type)))
    return pc.fill_null(mask, fill_value=False)


def _compose_disowned(lake: "Lake", claim: Claim, number: int, by: str, reason: str) -> "Plan | None":
    """Write the files of the plan and return it; None if the claim is set aside and no table has rows of it."""
    is_disowned = claim in disowned_claims(lake.tables)
    new: list[DataFile] = []
    old_files: dict[str, pa.Table] = {}
    moved, when = 0, datetime.now(UTC)
    by_table: dict[str, list[dict[str, Any]]] = {}
    for row in _segments(lake.tables, claim):
        by_table.setdefault(row["table"], []).append(row)
    if not is_disowned:
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
            old_files[table] = pa.concat_tables(dropped)
    if is_disowned and not old_files:
        return None
    run, attempt, rank, incarnation = claim.stream
    facts = {"run": run, "attempt": attempt, "rank": rank, "incarnation": incarnation, "segment": claim.segment}
    row = {"plan": number, "table": claim.table, **facts, "rows": moved, "actor": by, "reason": reason}
    new += row_files(lake.store, TABLE, [{**row, "ts": when, "date": when.date()}], number)
    return action_plan.compose(number, QUARANTINE.name, add=new, remove=old_files, facts={"disowned": str(claim)})


def _rows_of(rows: pa.Table, claim: Claim) -> pa.ChunkedArray:
    mask = _of_stream(rows, claim.stream)
    return mask if claim.segment is None else pc.and_(mask, pc.equal(rows["segment"], claim.segment))


def _reject_rows(store: "Store", target: "Contract", taken: pa.Table, number: int, when: datetime) -> "list[DataFile]":
    written: list[DataFile] = []
    for first in range(0, taken.num_rows, REJECTED_ROWS):
        batch = taken.slice(first, REJECTED_ROWS)
        reasons = pa.repeat(REASON, batch.num_rows)
        rows = reject_rows(batch, reasons, [None] * batch.num_rows, "disown", target, number, when)
        written += append_files(store, contract("rejects"), rows, number)
    return written


def _candidates(lake: "Lake", table: str, segments: list[dict[str, Any]]) -> pa.Table:
    """Return the live files that can have rows of the segments, by their dates; all files if a time is unknown."""
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
"""Hint for steps that one life repeats."""


@dataclass(frozen=True, slots=True)
class RepeatedAttempt:
    """An attempt with repeated steps.

    Attributes
    ----------
    between
        Number of steps of a rank that several lives recorded. Renumbering separates them.
    within
        Number of steps of a rank that one life recorded more than once. They cannot be separated.
    """

    run: str
    attempt: int
    between: int
    within: int


def repeated_in_run(lake: "Lake", run: str) -> list[RepeatedAttempt]:
    """Return the attempts of a run with repeated steps, on any date. Raises the errors of `query`."""
    return _query(lake, "run = $run", {"run": run})


def repeated_on_dates(lake: "Lake", days: Iterable[date]) -> list[RepeatedAttempt]:
    """Return the attempts with repeated steps in the rows of these dates. Raises the errors of `query`."""
    named = ", ".join(f"DATE '{day.isoformat()}'" for day in sorted(set(days)))
    return _query(lake, f"date IN ({named})", {}) if named else []


def _query(lake: "Lake", rows: str, params: dict[str, str]) -> list[RepeatedAttempt]:
    return [RepeatedAttempt(**row) for row in query(lake, _REPEATED.format(rows), params).to_pylist()]


_ATTEMPTS: Final = "SELECT DISTINCT incarnation, attempt FROM {} WHERE run = $run"


class NoRepeatError(RanklakeError):
    """No step of the run was recorded twice."""


class UnknownRunError(RanklakeError):
    """The lake has no row of the run."""


class OneLifeError(RanklakeError):
    """All repeated steps were recorded by one life each, so renumbering cannot separate them."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class RenumberResult:
    """Result of `renumber`.

    Attributes
    ----------
    plan, attempts, rows
        Number of the plan, the new attempts by incarnation, and the number of changed rows.
    within
        Number of steps that are still repeated, since one life recorded them more than once.
    """

    run: str
    plan: int
    attempts: Mapping[int, int]
    rows: int
    within: int = 0


@dataclass(frozen=True, slots=True)
class Life:
    """The rows that one process recorded of a rank: their first and last time, and whether they include steps."""

    attempt: int
    rank: int
    incarnation: int
    first: datetime
    last: datetime
    steps: bool


def renumber(lake: "Lake", run: str, by: str) -> RenumberResult:
    """Give later lives of attempts with repeated steps new attempt numbers, above the run's highest.

    Raises `UnknownRunError`, `NoRepeatError`, `OneLifeError`, and the errors of the audit log and the store; nothing
    was changed then.
    """
    results: list[RenumberResult] = []

    def compose(number: int) -> "Plan | None":
        plan, composed = _compose(lake, run, number, by)
        results[:] = [composed]
        return plan

    drive(lake, compose, InProcess())
    (result,) = results
    attempts = {f"{incarnation:016x}": attempt for incarnation, attempt in result.attempts.items()}
    details = {"rows": result.rows, **attempts}
    audit.record(lake, by, "renumbered", f"{run} by plan {result.plan}", None, details, once=True)
    return result


def attempts_of(lives: Iterable[Life], repeated: Iterable[int]) -> dict[int, int]:
    """Return the new attempts by incarnation, for later lives of the attempts with repeated steps.

    A rank's first process with steps belongs to the first life, its second to the second, and so on. Any other process,
    such as that of a rank that joined later, belongs to the life that it overlaps longest.
    """
    attempts: dict[int, int] = {}
    all_lives = list(lives)
    highest = max(life.attempt for life in all_lives)
    for attempt in sorted(repeated):
        of_attempt = [life for life in all_lives if life.attempt == attempt]
        by_rank: dict[int, list[Life]] = defaultdict(list)
        with_steps = (life for life in of_attempt if life.steps)
        for life in sorted(with_steps, key=lambda life: (life.first, life.incarnation)):
            by_rank[life.rank].append(life)
        count = max(map(len, by_rank.values()))
        full_ranks = [rank_lives for rank_lives in by_rank.values() if len(rank_lives) == count]
        order = {life: number for rank_lives in full_ranks for number, life in enumerate(rank_lives)}
        spans = [_span(life for life, index in order.items() if index == number) for number in range(count)]
        for life in of_attempt:
            index = order.get(life)
            if index is None:
                index = max(range(count), key=lambda number: _overlap_s(life, spans[number]))
            if index:
                attempts[life.incarnation] = highest + index
        highest += count - 1
    return attempts


def _span(lives: Iterable[Life]) -> tuple[datetime, datetime]:
    spans = list(lives)
    return min(life.first for life in spans), max(life.last for life in spans)


def _overlap_s(life: Life, span: tuple[datetime, datetime]) -> float:
    """Return the seconds of overlap of a process with a span of time; a negative number is the gap between them."""
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
    all_segments = read(lake.tables, contract("segments"), names)
    repeated = repeated_in_run(lake, run)
    if not repeated:
        refuse_unknown(run, all_segments["run"])
        hint = "what else fails a check, 'ranklake check' says"
        raise NoRepeatError("nothing to renumber: no step of the run was recorded twice", where=run, hint=hint)
    within = sum(item.within for item in repeated)
    separable = [item.attempt for item in repeated if item.between]
    if not separable:
        counted = f"{within:,} step{'s' * (within != 1)} of a rank"
        raise OneLifeError(f"nothing to renumber: one life recorded {counted} twice", where=run, hint=COUNTED_ANEW)
    of_run = all_segments.filter(pc.equal(all_segments["run"], run)).to_pylist()
    segments = _with_current_attempts(lake, run, [row for row in of_run if row["ts_min"] is not None])
    new = attempts_of(_lives(segments), separable)
    audit.record(lake, by, "renumber", run, None, {"incarnations": len(new)}, once=True)
    added: list[DataFile] = []
    old_files: dict[str, pa.Table] = {}
    moved = 0
    by_table: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in segments:
        if row["incarnation"] in new and row["rows_stored"]:
            by_table[row["table"]].append(row)
    for table, rows in sorted(by_table.items()):
        target = lake.contract(table)
        live = action_plan.live_files(lake, table, _days(rows))
        dropped = []
        select = partial(_is_renumbered, run=run, new=new)
        for drop, rewritten, taken in action_plan.remove_rows(lake.tables, target, number, live, select):
            dropped.append(drop)
            added += [*rewritten, *append_files(lake.store, target, _with_attempts(taken, new), number)]
            moved += taken.num_rows
        if dropped:
            old_files[table] = pa.concat_tables(dropped)
    plan = None
    if old_files:
        plan = action_plan.compose(number, RENUMBER.name, add=added, remove=old_files, facts={"run": run})
    return plan, RenumberResult(run, number, new, moved, within)


def refuse_unknown(run: str, runs: pa.ChunkedArray) -> None:
    """Raise `UnknownRunError` unless a run is among the given ones."""
    names = pc.unique(runs).to_pylist()
    if run not in names:
        raise UnknownRunError("there is no such run in the lake", where=run, hint=did_you_mean(run, names))


def _with_current_attempts(lake: "Lake", run: str, segments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of segments with the current attempts of their rows, after earlier renumberings."""
    current: dict[int, int] = {}
    for table in sorted({row["table"] for row in segments if row["rows_stored"]}):
        rows = query(lake, _ATTEMPTS.format(table), {"run": run})
        current.update(zip(rows["incarnation"].to_pylist(), rows["attempt"].to_pylist(), strict=True))
    return [row | {"attempt": current.get(row["incarnation"], row["attempt"])} for row in segments]


def _days(rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the dates between the first and the last row of segments."""
    days = set()
    for row in rows:
        first, last = row["ts_min"].date().toordinal(), row["ts_max"].date().toordinal()
        days |= {row["ts_min"].date().fromordinal(day) for day in range(first, last + 1)}
    return sorted(days)


def _is_renumbered(rows: pa.Table, run: str, new: Mapping[int, int]) -> pa.ChunkedArray:
    has_new_attempt = pc.is_in(rows["incarnation"], value_set=pa.array(list(new), pa.int64()))
    return pc.fill_null(pc.and_(has_new_attempt, pc.equal(rows["run"], run)), fill_value=False)


def _with_attempts(rows: pa.Table, new: Mapping[int, int]) -> pa.Table:
    index = rows.schema.get_field_index("attempt")
    numbers = [new[incarnation] for incarnation in rows["incarnation"].to_pylist()]
    return rows.set_column(index, rows.schema.field(index), pa.array(numbers, rows.schema.field(index).type))
