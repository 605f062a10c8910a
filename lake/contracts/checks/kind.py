"""The interface of a check kind.

Contracts are loaded beside training, without pyarrow: a kind's module imports it where a mask is computed, not before.
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
"""What a part of a watch sums up of each series, by its key."""
Ranges = Mapping[str, tuple[float | None, float | None]]
"""Valid range of each metric of the long table, by name; an end that is None is open."""


def always_judge(check: Check, table: "pa.Table") -> bool:
    """Default of `CheckKind.cleared`: each row has to be judged."""
    del check, table
    return False


def no_rule(check: Check) -> None:
    """Say that the ODCS library has no rule for it: the contract's words have to do."""
    del check


@dataclass(frozen=True, slots=True)
class Finding:
    """What a watch says of a partition.

    Attributes
    ----------
    checked, failed
        How many rows, or rows that should be there, were judged, and how many of them are wrong or missing.
    observed, expected
        In words and figures; names of series among them, which the caller leaves out where they are classified.
    measured
        Figures that later partitions are compared with.
    unknown
        Why nothing could be said; empty where something was.
    again
        Whether some of it was too young to be judged, so that the partition is due again though nothing changes.
    """

    checked: int = 0
    failed: int = 0
    observed: str = ""
    expected: str = ""
    measured: Mapping[str, float] | None = None
    unknown: str = ""
    again: bool = False


def empty_summary(check: Check, batch: "Batch") -> None:
    """Sum up nothing, for a watch that asks for no row."""
    del check, batch


def _empty_mapping() -> dict[Any, Any]:
    return {}


def _unknown(table: str, column: str) -> None:
    del table, column


def _empty_set(signal: str) -> frozenset[str]:
    del signal
    return frozenset()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a watch may know beside the rows of its partition. What costs a look into other tables is a function.

    Attributes
    ----------
    now_us
        The time of the check, in µs since 1970.
    rows
        Rows of the partition, by the Delta log.
    volumes
        Rows of all partitions of the table, by date.
    classified_statistics
        Classified columns of which the Delta log holds extremes.
    earlier
        What this check measured on earlier dates.
    worlds
        Ranks of each (run, attempt) whose start was recorded.
    known
        Given table and column, returns the values stored there; None where the table has no rows.
    newest
        Newest ``ts`` of each (table, run) that was ingested, in µs.
    recorded
        Given a table, ``table.column`` or a metric's name, returns the runs that have a value of it.
    """

    day: date
    now_us: int
    rows: int = 0
    volumes: Mapping[date, int] = field(default_factory=dict)
    classified_statistics: tuple[str, ...] = ()
    earlier: Mapping[date, Mapping[str, float]] = field(default_factory=dict)
    worlds: Callable[[], Mapping[tuple[str, int], int]] = _empty_mapping
    known: Callable[[str, str], frozenset[Any] | None] = _unknown
    newest: Callable[[], Mapping[tuple[str, str], int]] = _empty_mapping
    recorded: Callable[[str], frozenset[str]] = _empty_set


@dataclass(frozen=True, slots=True)
class Watch:
    """How a kind judges a partition as a whole: batch by batch where the rows are, then where other dates are known.

    Attributes
    ----------
    part
        Sums up a batch of rows, small enough to be sent between processes.
    judge
        Judges what all batches of the partition came to; without parts for a partition of which no column was read.
    also
        Columns that it reads beside those that the check names, where the table has them.
    reads_text
        Whether it also reads every operational text that has no form of its own.
    remembers
        Whether it compares with what it measured on earlier dates.
    """

    part: "Callable[[Check, Batch], Any]"
    judge: Callable[[Check, Sequence[Any], Surroundings], Finding]
    also: tuple[str, ...] = ()
    reads_text: bool = False
    remembers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckKind:
    """One kind of check, as the lake knows it; `ranklake.quality.forms` knows how Great Expectations is asked.

    Attributes
    ----------
    name
        What contracts call it by.
    wrong
        What a failing row, or the table, has wrong; in words that hold no value of a row.
    level
        ``row``: each row passes or fails by itself. ``share``: rows are counted, and their share decides. ``table``:
        it is about a partition as a whole. ``watch``: so it is, and it has a `watch`.
    written
        Whether a contract may spell it out; the others follow from a contract (`implied`).
    needs
        Parameters that it cannot be without; of each group one at least.
    own_columns
        Whether it names its columns itself, among the table's checks; the others may also stand below a column.
    pair
        Whether it compares exactly two columns, the smaller one first.
    types
        Types of columns that it can judge.
    null_passes
        Whether NULL passes, without having been judged.
    promise
        What a failure is, for the catalog; None where `wrong` says it.
    dimension
        The standard's word (ODCS) for what it is about.
    rule
        Its rule in the ODCS library: metric and arguments; None where the library has no word for it.
    passes
        True where a row passes, NULL where it is not judged; None for kinds of level ``table``.
    judged
        True where it can say something of a row; None where that is where no column is NULL (`null_passes`), or always.
    cleared
        Whether the columns as wholes show that no row fails; asked of columns that have values and are not
        dictionary-typed, of kinds where NULL fails of any.
    watch
        Of kinds of level ``watch``.
    edition
        Raised when it is fixed so that it may judge the same rows otherwise: they are then checked again.
    """

    name: str
    wrong: Callable[[Check], str]
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
    judged: "Callable[[Check, pa.Table, Ranges], pa.ChunkedArray] | None" = None
    cleared: "Callable[[Check, pa.Table], bool]" = always_judge
    watch: Watch | None = None
    edition: int = 1


SeriesKind: Final = partial(CheckKind, level="watch", needs=(("columns",), ("by",)), own_columns=True)
"""A `CheckKind` that watches series, which columns named by the check's ``by`` tell apart."""


def facts_by_series(parts: Sequence[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    """Return what all parts of a watch say of each series, by its key.

    >>> facts_by_series([{"a": 1}, {"a": 2, "b": 3}])
    {'a': [1, 2], 'b': [3]}
    """
    series: dict[Any, list[Any]] = {}
    for part in parts:
        for key, facts in part.items():
            series.setdefault(key, []).append(facts)
    return series


def range_text(check: Check) -> str:
    """Return the range of a check in words, such as ``0 to …``."""
    return f"{'…' if check.min is None else check.min} to {'…' if check.max is None else check.max}"


def columns_text(check: Check) -> str:
    """Return the columns of a check in words."""
    return ", ".join(check.columns)
