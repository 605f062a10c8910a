"""The check state of the inputs of rollups.

Lineage identifies the files of each input by a digest, and results of checks have the same digest. So each row of a
rollup has the state of its inputs as they were read, regardless of later changes. Derived tables among the inputs are
followed to the facts.
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
"""States of an input, worst first. ``unchecked``: no check of these files. ``whole``: all dates of a table together;
each of its dates is an input as well."""
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
        The table and partition that were computed from it: the requested rollup, or a derived table in between.
    table, partition
        The input.
    state
        One of `STATES`, by the latest check of exactly these files.
    checks
        Ids of the checks that failed or errored.
    is_released
        Whether one of these checks holds partitions back, so that a person released this one.
    """

    output_table: str
    output_partition: str
    table: str
    partition: str
    state: str
    checks: tuple[str, ...]
    is_released: bool

    def plain(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return {**asdict(self), "checks": list(self.checks)}


def inputs_of(lake: "Lake", table: str, day: date | None = None, run: str | None = None) -> list[Input]:
    """Return the inputs of rows of a rollup and, recursively, the inputs of derived inputs; worst first.

    Parameters
    ----------
    day, run
        Select the rows; by default all. For a rollup over whole runs, inputs count from the day before such a row
        begins to the day after it ends.

    Raises `UnknownTableError` where no rollup has this name.
    """
    rollups = {name: rollup_input for name, rollup_input in lake.contracts().items() if rollup_input.kind == "derived"}
    if table not in rollups:
        raise UnknownTableError(table, hint=did_you_mean(table, rollups))
    by_output: dict[Place, list[Input]] = {}
    for row in query(lake, sql_text("ranklake.quality", "inputs")).to_pylist():
        rollup_input = _input(row)
        by_output.setdefault((rollup_input.output_table, rollup_input.output_partition), []).append(rollup_input)
    within = _span(lake.tables, rollups[table], day, run)
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
    """Return the output in lineage that is this input, if the input is a derived table and of one date; else None."""
    places = (
        ((rollup_input.table, rollup_input.partition), (rollup_input.table, _WHOLE)) if rollup_input.partition else ()
    )
    return next((place for place in places if place in by_output), None)


def _span(tables: "Tables", contract: "Contract", day: date | None, run: str | None) -> Span | None:
    """Return the first and last date of inputs of the selected rows; None for all dates."""
    if day is None and run is None:
        return None
    names = [name for name in ("run", "date", "ts", "end_ts") if name in contract]
    rows = read(tables, contract, names, partitions=None if day is None else [day]).to_pylist()
    selected = [row for row in rows if run is None or row.get("run") == run]
    dates = [row["date"] for row in selected] + [
        row[name].date() for row in selected for name in ("ts", "end_ts") if row.get(name) is not None
    ]
    if not dates:
        return (day or date.min, day or date.min)
    return (min(dates) - _DAY, max(dates) + _DAY)


def _is_within(partition: str, span: Span | None) -> bool:
    """Whether a partition lies in a span of dates. An input of all dates always does."""
    if not partition or span is None:
        return True
    return span[0] <= date.fromisoformat(partition.removeprefix("date=")) <= span[1]
