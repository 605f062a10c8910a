"""``row_count``: a partition has from `min` to `max` rows, both included; either end may be open."""

from ranklake.lake.contracts.checks.kind import CheckKind, ends

KIND = CheckKind(
    name="row_count",
    wrong=lambda check: f"row count outside {ends(check)}",
    level="table",
    needs=(("min", "max"),),
    own_columns=True,
    promise=lambda check: f"number of rows outside {ends(check)}",
    dimension="coverage",
)
