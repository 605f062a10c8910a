"""Heat maps of many rows by many columns, which a script of the shell draws on a canvas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Literal

from ranklake.views.html.figures import Source

_RAMPS: Final = {"cold": ("--cold", "--part-1"), "hot": ("--cold", "--hot")}
_SCALE: Final = 1000
"""Ratios travel as thousandths: a page of 512 rows by 48 columns is 100 KB larger for them, not 1 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Ratios by row and column.

    Attributes
    ----------
    name, title, description, source
        As of `ranklake.views.html.charts.Chart`.
    rows, columns
        Their labels, from the top and from the left.
    values
        Row by row; None for what is unknown, which `unknown` puts in words.
    members
        How many things a row stands for; empty where each is one.
    row_title, column_title, measure
        What rows, columns and values are.
    table, table_title
        Id and caption of the page's table that tells the same in numbers.
    ramp
        Colours: ``cold`` where much is good, ``hot`` where much is bad.
    most
        The ratio at which the strongest colour begins.
    """

    name: str
    title: str
    description: str
    source: Source
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[float | None]
    row_title: str
    column_title: str
    measure: str
    unknown: str
    table: str
    table_title: str
    members: Sequence[int] = ()
    ramp: Literal["cold", "hot"] = "cold"
    most: float = 1.0

    @property
    def spec(self) -> Mapping[str, Any]:
        """What the script draws from; values and the most are thousandths."""
        return {
            "rows": list(self.rows),
            "columns": list(self.columns),
            "values": [
                round(value * _SCALE) if value is not None and isfinite(value) else None for value in self.values
            ],
            "members": list(self.members) if any(count > 1 for count in self.members) else None,
            "ramp": _RAMPS[self.ramp],
            "most": round(self.most * _SCALE),
            "unknown": self.unknown,
        }
