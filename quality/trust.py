"""The quality of what rows of rollups were computed from.

Lineage names the files of each input by a digest, and results of checks name what they judged by the same one. So each
row of a rollup knows the state of its inputs as they were read, whatever came since. Derived tables among the inputs
have inputs of their own, which are followed to the facts.
"""

from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import did_you_mean
from ranklake.insight.runs.asking import sql_text
from ranklake.lake.contracts.errors import UnknownTableError
from ranklake.lake.query.sql import query
from ranklake.lake.tables.read import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables

STATES: Final = ("critical", "error", "errored", "unchecked", "warning", "info", "whole", "passed")
"""States of an input, worst first. ``unchecked``: nobody checked these files. ``whole``: a table that is read from its
beginning, whose dates are distinguished as inputs of its own."""
_DAY: Final = timedelta(days=1)
_WHOLE: Final = ""

Place = tuple[str, str]
Span = tuple[date, date]


@dataclass(frozen=True, slots=True)
class Input:
    """An input partition of a rollup, as it was read.

    Attributes
    ----------
    output_table, output_partition
        What was computed from it: the rollup that was asked for, or a derived table between.
    table, partition
        The input.
    state
        One of `STATES`, by the last check of these very files.
    checks
        Ids of those that failed or errored.
    is_released
        Whether one of them holds partitions back, so that somebody answers for its use.
    """

    output_table: str
    output_partition: str
    table: str
    partition: str
    state: str
    checks: tuple[str, ...]
    is_released: bool

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "checks": list(self.checks)}


def inputs_of(lake: "Lake", table: str, day: date | None = None, run: str | None = None) -> list[Input]:
    """Return the inputs of rows of a rollup, and theirs, worst first.

    Parameters
    ----------
    day, run
        Of the rows; default all. Of a rollup of whole runs, inputs count from the day before such a row begins to the
        day after it ends.

    Raises `UnknownTableError` where no rollup has this name.
    """
    known = {name: rollup_input for name, rollup_input in lake.contracts().items() if rollup_input.kind == "derived"}
    if table not in known:
        raise UnknownTableError(table, hint=did_you_mean(table, known))
    by_output: dict[Place, list[Input]] = {}
    for row in query(lake, sql_text("ranklake.quality", "inputs")).to_pylist():
        rollup_input = _input(row)
        by_output.setdefault((rollup_input.output_table, rollup_input.output_partition), []).append(rollup_input)
    within = _span(lake.tables, known[table], day, run)
    pending = [place for place in by_output if place[0] == table and _is_within(place[1], (day, day) if day else None)]
    seen = set(pending)
    inputs: list[Input] = []
    while pending:
        within_span = [
            rollup_input for rollup_input in by_output[pending.pop()] if _is_within(rollup_input.partition, within)
        ]
        inputs += within_span
        more = {place for rollup_input in within_span if (place := _origin(by_output, rollup_input)) is not None} - seen
        seen |= more
        pending += more
    return sorted(
        inputs,
        key=lambda rollup_input: (
            STATES.index(rollup_input.state),
            rollup_input.table,
            rollup_input.partition,
            rollup_input.output_table,
        ),
    )


def _input(row: dict[str, Any]) -> Input:
    return Input(
        row["output_table"],
        row["output_partition"],
        row["input_table"],
        row["input_partition"],
        row["state"],
        tuple(row["checks"] or ()),
        bool(row["is_released"]),
    )


def _origin(by_output: "Mapping[Place, list[Input]]", rollup_input: Input) -> Place | None:
    """Return under which output lineage has the inputs of an input, if it is derived itself, and of one date."""
    places = (
        ((rollup_input.table, rollup_input.partition), (rollup_input.table, _WHOLE)) if rollup_input.partition else ()
    )
    return next((place for place in places if place in by_output), None)


def _span(tables: "Tables", contract: "Contract", day: date | None, run: str | None) -> Span | None:
    """Return from when to when inputs of such rows count; None where all do."""
    if day is None and run is None:
        return None
    names = [name for name in ("run", "date", "ts", "end_ts") if name in contract]
    rows = read(tables, contract, names, partitions=None if day is None else [day]).to_pylist()
    mine = [row for row in rows if run is None or row.get("run") == run]
    dates = [row["date"] for row in mine] + [
        row[name].date() for row in mine for name in ("ts", "end_ts") if row.get(name) is not None
    ]
    if not dates:
        return (day or date.min, day or date.min)
    return (min(dates) - _DAY, max(dates) + _DAY)


def _is_within(partition: str, span: Span | None) -> bool:
    """Return whether a partition is of a span of dates; the whole of a table always is."""
    if not partition or span is None:
        return True
    return span[0] <= date.fromisoformat(partition.removeprefix("date=")) <= span[1]
