"""``protected``: the Delta log holds no extremes of classified columns. They would outlive an erasure."""

from collections.abc import Sequence
from typing import Any

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch, nothing
from ranklake.lake.contracts.model import Check


def _judge(check: Check, parts: Sequence[Any], about: Surroundings) -> Finding:
    del check, parts
    rows = max(about.rows, 1)
    told = ", ".join(about.classified_statistics)
    return Finding(rows, rows if told else 0, told, "no statistics of classified columns")


KIND = CheckKind(
    name="protected",
    wrong=lambda _: "the Delta log holds statistics of classified columns",
    level="watch",
    written=False,
    own_columns=True,
    dimension="conformity",
    watch=Watch(nothing, _judge),
)
