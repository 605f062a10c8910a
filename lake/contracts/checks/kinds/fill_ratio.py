"""``fill_ratio``: the share of a partition's rows in which a column has a value is at least `min`."""

from ranklake.lake.contracts.checks.kind import CheckKind, named
from ranklake.lake.contracts.checks.kinds import not_null

KIND = CheckKind(
    name="fill_ratio",
    wrong=lambda check: f"{check.columns[0]} filled below {check.min}",
    level="share",
    needs=(("min",),),
    null_passes=False,
    promise=lambda check: f"share of rows with {named(check)} below {'…' if check.min is None else check.min}",
    dimension="completeness",
    passes=not_null.passes,
    cleared=not_null.KIND.cleared,
)
