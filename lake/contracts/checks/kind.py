"""The interface of check kinds: `CheckKind` and, for checks of whole partitions, `Watch`.

Training processes load contracts without pyarrow. Modules of check kinds therefore import pyarrow inside the functions
that need it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from ranklake.lake.contracts.model import TYPES, Check

if TYPE_CHECKING:
    import pyarrow as pa

    from ranklake.lake.contracts.checks.series import Batch

Level = Literal["row", "share", "table", "watch"]
Series = dict[tuple[Any, ...], list[Any]]
"""Summary values of each series in a batch, by the key of the series."""
Ranges = Mapping[str, tuple[float | None, float | None]]
"""Valid range of each metric of the long table, by name. A bound of None is open."""


def never_clears(check: Check, table: "pa.Table") -> bool:
    """Return False, the default of `CheckKind.clears`: each row has to be checked."""
    del check, table
    return False


def no_rule(check: Check) -> None:
    """Return None, the default of `CheckKind.rule`: the ODCS library has no such rule."""
    del check


@dataclass(frozen=True, slots=True)
class WatchResult:
    """Result of a watch for one partition.

    Attributes
    ----------
    checked, failed
        Number of rows checked, missing rows included, and number of wrong or missing rows.
    observed, expected
        Texts for people. They may name series; the caller leaves them out if these columns are classified.
    measured
        Figures with which the check compares later dates.
    unknown
        Why the partition could not be checked; empty if it could.
    recheck
        Whether some rows were too recent to be checked, so that the partition must be checked again even if it does
        not change.
    """

    checked: int = 0
    failed: int = 0
    observed: str = ""
    expected: str = ""
    measured: Mapping[str, float] | None = None
    unknown: str = ""
    recheck: bool = False


def empty_summary(check: Check, batch: "Batch") -> None:
    """Return None, for a watch that needs no rows."""
    del check, batch


def _empty_mapping() -> dict[Any, Any]:
    return {}


def _no_values(table: str, column: str) -> None:
    del table, column


def _empty_set(signal: str) -> frozenset[str]:
    del signal
    return frozenset()


@dataclass(frozen=True, slots=True)
class WatchContext:
    """Data for a watch beside the rows of its partition. Attributes that require reading other tables are functions.

    Attributes
    ----------
    day
        Date of the partition.
    now_us
        Time of the check, in µs since 1970.
    rows
        Number of rows of the partition in the Delta log.
    volumes
        Number of rows of each partition of the table, by date.
    classified_statistics
        Classified columns for which the Delta log contains minimum and maximum.
    earlier
        `WatchResult.measured` of this check on earlier dates.
    world_sizes
        Returns the number of ranks of each (run, attempt) whose start was recorded.
    stored_values
        Returns the values stored in a table's column; None if the table has no rows.
    newest_ts
        Returns the newest ingested ``ts`` of each (table, run), in µs since 1970.
    runs_with_signal
        Returns the runs that have a value of a signal: a table, ``table.column`` or the name of a metric.
    """

    day: date
    now_us: int
    rows: int = 0
    volumes: Mapping[date, int] = field(default_factory=dict)
    classified_statistics: tuple[str, ...] = ()
    earlier: Mapping[date, Mapping[str, float]] = field(default_factory=dict)
    world_sizes: Callable[[], Mapping[tuple[str, int], int]] = _empty_mapping
    stored_values: Callable[[str, str], frozenset[Any] | None] = _no_values
    newest_ts: Callable[[], Mapping[tuple[str, str], int]] = _empty_mapping
    runs_with_signal: Callable[[str], frozenset[str]] = _empty_set


@dataclass(frozen=True, slots=True)
class Watch:
    """How a kind checks a whole partition: workers summarize batches, then one process evaluates the summaries.

    Attributes
    ----------
    summarize
        Returns a summary of a batch of rows, small enough to be sent between processes.
    evaluate
        Returns the result for a partition from the summaries of its batches. There are none if no column was read.
    extra_columns
        Columns to read beside those that the check names, if the table has them.
    reads_text
        Whether to read all operational text columns without a ``matches`` or ``in_set`` check.
    uses_history
        Whether the check needs `WatchContext.earlier`.
    """

    summarize: "Callable[[Check, Batch], Any]"
    evaluate: Callable[[Check, Sequence[Any], WatchContext], WatchResult]
    extra_columns: tuple[str, ...] = ()
    reads_text: bool = False
    uses_history: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckKind:
    """One kind of check. `ranklake.quality.forms` maps kinds to expectations of Great Expectations.

    Attributes
    ----------
    name
        Name of the kind in contracts.
    fault
        Returns a description of a failing row or table. It contains no value of a row.
    level
        ``row``: each row passes or fails. ``share``: the share of passing rows decides. ``table``: the partition as a
        whole passes or fails. ``watch``: so does it, evaluated by `watch`.
    written
        Whether contracts may contain checks of this kind. Other kinds are implied (`registry.implied_checks`).
    needs
        Groups of parameters. A check needs at least one parameter of each group.
    own_columns
        Whether a check names its columns and belongs to the table's checks. Others may also be checks of a column.
    pair
        Whether the kind compares exactly two columns, the smaller one first.
    types
        Column types that the kind supports.
    null_passes
        Whether rows with NULL pass without being checked.
    promise
        Returns the description of a failure for the catalog. None: the same as `fault`.
    dimension
        Quality dimension in the terms of ODCS.
    rule
        Returns the rule of the ODCS library, with metric and arguments; None if the library has no such rule.
    passes
        Returns a mask of the rows: true if a row passes, NULL if the check does not apply to it. None for the levels
        ``table`` and ``watch``.
    applies
        Returns a mask of the rows to which the check applies. None: all rows, or with `null_passes` all rows without
        NULL in the check's columns.
    clears
        Whether column statistics prove that no row fails, so that rows need not be checked one by one. With
        `null_passes` it is called only for columns that have values and are not dictionary-encoded.
    watch
        The functions of a kind of level ``watch``.
    edition
        Number that is raised when a fix may change results for the same rows. Partitions are then checked again.
    """

    name: str
    fault: Callable[[Check], str]
    level: Level = "row"
    written: bool = True
    needs: tuple[tuple[str, ...], ...] = ()
    own_columns: bool = False
    pair: bool = False
    types: frozenset[str] = frozenset(TYPES)
    null_passes: bool = True
    promise: Callable[[Check], str] | None = None
    dimension: str = "conformity"
    rule: Callable[[Check], dict[str, Any] | None] = no_rule
    passes: "Callable[[Check, pa.Table, Ranges], pa.ChunkedArray] | None" = None
    applies: "Callable[[Check, pa.Table, Ranges], pa.ChunkedArray] | None" = None
    clears: "Callable[[Check, pa.Table], bool]" = never_clears
    watch: Watch | None = None
    edition: int = 1


SeriesKind: Final = partial(CheckKind, level="watch", needs=(("columns",), ("by",)), own_columns=True)
"""A `CheckKind` of level ``watch`` for series. A check's ``by`` names the columns that identify a series."""


def facts_by_series(parts: Sequence[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    """Collect the values of each series from the summaries of all batches, by the key of the series.

    >>> facts_by_series([{"a": 1}, {"a": 2, "b": 3}])
    {'a': [1, 2], 'b': [3]}
    """
    series: dict[Any, list[Any]] = {}
    for part in parts:
        for key, facts in part.items():
            series.setdefault(key, []).append(facts)
    return series


def range_text(check: Check) -> str:
    """Return the range of a check as text, such as ``0 to …``."""
    return f"{'…' if check.min is None else check.min} to {'…' if check.max is None else check.max}"


def columns_text(check: Check) -> str:
    """Return the column names of a check as text."""
    return ", ".join(check.columns)
