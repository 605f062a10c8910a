"""Objectives of quality (``[[quality.objectives]]``): the share of sound partitions, and what is left of the budget.

Derived from results when somebody asks, as incidents are. The rules are in ``objective.sql``; its columns are named as
in the contract ``slo``.
"""

from collections.abc import Collection, Sequence
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from ranklake.lake.query.literal import literal

if TYPE_CHECKING:
    from ranklake.lake.store.lake_config import Objective


def statement(results: str, objectives: "Sequence[Objective]", tables: Collection[str], through: date) -> str:
    """Return the SQL of one row per objective.

    Parameters
    ----------
    results
        SQL that defines ``results``: what the last check of each partition found.
    tables
        Names of all tables that are checked.
    through
        Last date of the windows.
    """
    parts = []
    for one in objectives:
        mine = sorted(name for name in tables if any(fnmatchcase(name, pattern) for pattern in one.tables))
        text = _text().format(
            name=literal(one.name),
            subject=literal(", ".join(one.tables)),
            objective=one.objective_ratio,
            days=one.window_days,
            through=f"DATE '{through}'",
            results=results,
            tables=f'"table" IN ({", ".join(map(literal, mine))})' if mine else "FALSE",
        )
        parts.append(text)
    return "UNION ALL\n".join(parts) + "ORDER BY slo\n"


@cache
def _text() -> str:
    lines = files("ranklake.quality").joinpath("objective.sql").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("--")) + "\n"
