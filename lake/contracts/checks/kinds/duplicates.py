"""``duplicates``: no more than `max` (0) of a partition's rows repeat another one in all of `columns`."""

from ranklake.lake.contracts.checks.kind import CheckKind, named
from ranklake.lake.contracts.model import TYPES

KIND = CheckKind(
    name="duplicates",
    wrong=lambda check: f"more than {check.max or 0} of the rows repeat {named(check)} of another",
    level="table",
    needs=(("columns",), ("max",)),
    own_columns=True,
    types=frozenset(TYPES) - {"int64_list"},
    dimension="uniqueness",
)
