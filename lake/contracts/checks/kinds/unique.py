"""``unique``: no two rows of a partition have the same values in all of `columns`."""

from ranklake.lake.contracts.checks.kind import CheckKind, named
from ranklake.lake.contracts.model import TYPES, Check


def _rule(check: Check) -> dict[str, object]:
    return {"metric": "duplicateValues", "mustBe": 0, "arguments": {"properties": list(check.columns)}}


KIND = CheckKind(
    name="unique",
    wrong=lambda check: f"rows repeat a key of {named(check)}",
    level="table",
    needs=(("columns",),),
    own_columns=True,
    types=frozenset(TYPES) - {"int64_list"},
    promise=lambda check: f"two rows with the same {named(check)}",
    dimension="uniqueness",
    rule=_rule,
)
