"""Checks of the rows of a partition as a whole, by counting."""

from ranklake.lake.contracts.checks.kind import CheckKind, columns_text, range_text
from ranklake.lake.contracts.checks.kinds.values import NOT_NULL
from ranklake.lake.contracts.model import TYPES, Check

ROW_COUNT = CheckKind(
    name="row_count",
    wrong=lambda check: f"row count outside {range_text(check)}",
    level="table",
    needs=(("min", "max"),),
    own_columns=True,
    promise=lambda check: f"number of rows outside {range_text(check)}",
    dimension="coverage",
)
"""``row_count``: a partition has from `min` to `max` rows, both included; either end may be open."""


def _unique_rule(check: Check) -> dict[str, object]:
    return {"metric": "duplicateValues", "mustBe": 0, "arguments": {"properties": list(check.columns)}}


UNIQUE = CheckKind(
    name="unique",
    wrong=lambda check: f"rows repeat a key of {columns_text(check)}",
    level="table",
    needs=(("columns",),),
    own_columns=True,
    types=frozenset(TYPES) - {"int64_list"},
    promise=lambda check: f"two rows with the same {columns_text(check)}",
    dimension="uniqueness",
    rule=_unique_rule,
)
"""``unique``: no two rows of a partition have the same values in all of `columns`."""


DUPLICATES = CheckKind(
    name="duplicates",
    wrong=lambda check: f"more than {check.max or 0} of the rows repeat {columns_text(check)} of another",
    level="table",
    needs=(("columns",), ("max",)),
    own_columns=True,
    types=frozenset(TYPES) - {"int64_list"},
    dimension="uniqueness",
)
"""``duplicates``: no more than `max` (0) of a partition's rows repeat another one in all of `columns`."""


FILL_RATIO = CheckKind(
    name="fill_ratio",
    wrong=lambda check: f"{check.columns[0]} filled below {check.min}",
    level="share",
    needs=(("min",),),
    null_passes=False,
    promise=lambda check: f"share of rows with {columns_text(check)} below {'…' if check.min is None else check.min}",
    dimension="completeness",
    passes=NOT_NULL.passes,
    cleared=NOT_NULL.cleared,
)
"""``fill_ratio``: the share of a partition's rows in which a column has a value is at least `min`."""
