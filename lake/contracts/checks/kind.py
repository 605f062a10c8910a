"""The interface of a check kind.

Contracts are loaded beside training, without pyarrow: a kind's module imports it where a mask is computed, not before.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ranklake.lake.contracts.model import TYPES, Check

if TYPE_CHECKING:
    import pyarrow as pa

Level = Literal["row", "share", "table"]
Ranges = Mapping[str, tuple[float | None, float | None]]
"""Valid range of each metric of the long table, by name; an end that is None is open."""


def never(check: Check, table: "pa.Table") -> bool:
    """Say that a look at the columns as wholes tells nothing."""
    del check, table
    return False


def no_rule(check: Check) -> None:
    """Say that the ODCS library has no rule for it: the contract's words have to do."""
    del check


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
        it is about a partition as a whole.
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
    cleared: "Callable[[Check, pa.Table], bool]" = never


def ends(check: Check) -> str:
    """Return the range of a check in words, such as ``0 to …``."""
    return f"{'…' if check.min is None else check.min} to {'…' if check.max is None else check.max}"


def named(check: Check) -> str:
    """Return the columns of a check in words."""
    return ", ".join(check.columns)
