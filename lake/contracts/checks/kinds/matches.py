"""``matches``: the whole text is of a pattern, a regular expression that Python and RE2 read alike."""

from typing import TYPE_CHECKING

from ranklake.lake.contracts.checks.kind import CheckKind, Ranges, named
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    import pyarrow as pa


def passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the text matches. It repeats (a run's name stands in every row): each is matched once."""
    import pyarrow.compute as pc

    del ranges
    values = table.column(check.columns[0])
    distinct = pc.unique(values)
    bad = distinct.filter(pc.invert(pc.match_substring_regex(distinct, rf"\A(?:{check.pattern})\z")))
    return pc.invert(pc.is_in(values, value_set=bad))


KIND = CheckKind(
    name="matches",
    wrong=lambda check: f"{named(check)} does not match {check.pattern}",
    needs=(("pattern",),),
    types=frozenset({"string"}),
    rule=lambda check: {"metric": "invalidValues", "mustBe": 0, "arguments": {"pattern": f"^({check.pattern})$"}},
    passes=passes,
)
