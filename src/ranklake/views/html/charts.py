"""Charts as Vega-Lite specifications, drawn by the shared chart library in the reader's browser.

Colours are names of the style sheet's variables, which the shell replaces, so that a chart follows the theme. The
library is Vega and Vega-Lite as one file of JavaScript, from the package vl-convert-python. Making it takes seconds of
CPU time, so it is cached in a file.
"""

import hashlib
import importlib
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from typing import Any, Final, Literal

from ranklake.errors import RanklakeError
from ranklake.views.html.figures import Source

Spec = dict[str, Any]
Values = Sequence[Mapping[str, Any]]
PACKAGE: Final = "vl-convert-python"
PERCENT: Final = ".3~%"
"""Format of an axis of ratios, with just enough digits for distinct labels."""
SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"
"""Identifies the language; never fetched."""
_DAYS_SHOWN: Final = "(domain('x')[1] - domain('x')[0]) / 864e5"
_DATES: Final[Spec] = {"tickCount": {"expr": f"max(1, min(floor(width / 90), {_DAYS_SHOWN}))"}, "labelOverlap": True,
                       "format": "%d %b %y"}  # fmt: skip
"""An axis of dates whose labels do not overlap or repeat on narrow screens."""
_HOURS: Final[Spec] = {"tickCount": {"expr": "max(2, floor(width / 110))"}, "labelOverlap": True,
                       "labelSeparation": 8, "format": "%b %d, %H:%M"}  # fmt: skip
_PARTITION_DATE: Final = "partition date (UTC)"
_DAY: Final[Spec] = {"type": "temporal", "timeUnit": "utcyearmonthdate"}
_HEIGHT: Final = 200
_CURVE_HEIGHT: Final = 190
_ROW_PX: Final = 16
_FEW: Final = 40
"""Lines with fewer points also draw the points: a line of one value would be invisible."""
_STEP: Final = {"field": "step", "type": "quantitative", "title": "step", "axis": {"tickMinStep": 1, "format": ",d"},
                "scale": {"zero": False, "nice": False}}  # fmt: skip
_FROM_STEP: Final = {"field": "step", "type": "quantitative", "title": "from step", "format": ",d"}
_AREAS: Final = (1, 2, 3, 4, 5, 6, 7, 8)
_LINES: Final = (1, 5, 3, 4, 6, 7, 2, 8)
"""Colours of lines; neighbours have different hues."""
_NOT_SEEN: Final = {"type": "point", "opacity": 0, "size": 120, "filled": True}
"""Points that are only there to be pointed at."""


class NoChartLibraryError(RanklakeError):
    """The package with the chart library is not installed."""


def library_name() -> str:
    """Return the name of the library's file, which changes with it. Raises `NoChartLibraryError`."""
    try:
        return f"vega-{version(PACKAGE)}.js"
    except PackageNotFoundError:
        raise NoChartLibraryError(f"{PACKAGE} is not installed", hint="pip install 'ranklake[report]'") from None


def library() -> bytes:
    """Return the library's file, which is cached on this machine."""
    return cached(library_name(), _make_library)


def _make_library() -> bytes:
    code: str = importlib.import_module("vl_convert").javascript_bundle()
    return code.encode()


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its title, and a description for readers who cannot see it; `source` gives its numbers."""

    name: str
    title: str
    description: str
    spec: Spec
    source: Source | None = None
    is_wide: bool = False


def short_number(value: object) -> object:
    """Return a number with as many digits as a chart can show, so that a page is small; None for NaN and infinities."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def values_of(rows: Values, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return some columns of rows for a chart, without columns unknown in all rows."""
    known = [name for name in names if any(short_number(row[name]) is not None for row in rows)]
    return [{name: short_number(row[name]) for name in known} for row in rows]


def chart_spec(values: Values, height: int, **parts: object) -> Spec:
    """Return a specification with the width of its place on the page; `parts` are mark, encoding and layers."""
    return {"$schema": SCHEMA, "width": "container", "height": height, "data": {"values": list(values)}, **parts}


def quantity(field: str, title: str, form: str) -> Spec:
    """Return the part of a tooltip that shows a number."""
    return {"field": field, "type": "quantitative", "title": title, "format": form}


def stacked_by_date(values: Values, states: Sequence[str], measure: str) -> Spec:
    """Return bars by date, stacked by state; `values` have ``date``, ``state`` and ``count``."""
    day: Spec = {"field": "date", **_DAY, "title": _PARTITION_DATE}
    return chart_spec(
        values,
        160,
        mark={"type": "bar", "binSpacing": 0},
        encoding={
            "x": day | {"scale": {"type": "utc"}, "axis": _DATES},
            "y": {"field": "count", "type": "quantitative", "title": measure, "axis": {"tickMinStep": 1}},
            "color": _by_state(states),
            "tooltip": [day, {"field": "state", "type": "nominal"}, quantity("count", measure, ",")],
        },
    )


def states_by_date(values: Values, states: Sequence[str], rows: Sequence[str], days: Sequence[date]) -> Spec:
    """Return states by date and row, from the first to the last of `days`.

    `values` have ``date``, ``row``, ``state``, ``failed`` and ``checked``.
    """
    day: Spec = {"field": "date", **_DAY, "title": _PARTITION_DATE}
    return chart_spec(
        values,
        _ROW_PX * len(rows),
        mark={"type": "rect"},
        encoding={
            "x": day | {"scale": {"type": "utc", "domain": [str(days[0]), str(days[-1])]}, "axis": _DATES},
            "y": {"field": "row", "type": "nominal", "title": None, "sort": list(rows),
                  "axis": {"labelLimit": {"expr": "width < 500 ? 110 : 220"}}},
            "color": _by_state(states),
            "tooltip": [
                day,
                {"field": "row", "type": "nominal", "title": "check"},
                {"field": "state", "type": "nominal"},
                quantity("failed", "rows failed", ","),
                quantity("checked", "rows checked", ","),
            ],
        },
    )  # fmt: skip


def lines_by_time(values: Values, parts: Mapping[str, str], title: str, form: str, *, by_hour: bool = False) -> Spec:
    """Return a line per part by date, or by hour.

    `values` have ``date`` or ``hour`` and a column per part; `parts` are titles by column. Lines have gaps at unknown
    values.
    """
    field = "hour" if by_hour else "date"
    time: Spec = {"field": field, "type": "temporal", "title": f"{field} (UTC)"} | ({} if by_hour else _DAY)
    long = [{field: row[field], "part": words, "amount": row[name]} for name, words in parts.items() for row in values]
    return chart_spec(
        long,
        _HEIGHT,
        mark={"type": "line", "point": True, "strokeWidth": 2, "invalid": "break-paths-show-domains"},
        encoding={
            "x": time | {"scale": {"type": "utc"}, "axis": _HOURS if by_hour else _DATES},
            "y": {"field": "amount", "type": "quantitative", "title": title, "axis": {"format": form}},
            "color": _by_part(list(parts.values()), _LINES),
            "tooltip": [
                time | ({"format": "%Y-%m-%d %H:%M"} if by_hour else {}),
                {"field": "part", "type": "nominal", "title": "measure"},
                quantity("amount", title, form),
            ],
        },
    )


def nodes_by_tenth(values: Values) -> Spec:
    """Return bars with the number of nodes by tenth of utilization; ``tenth`` (from 0 to 0.9) and ``nodes``."""
    return chart_spec(
        [{**value, "to": value["tenth"] + 0.1} for value in values],
        _HEIGHT,
        mark={"type": "bar", "color": "var(--series)"},
        encoding={
            "x": {"field": "tenth", "type": "quantitative", "title": "utilization",
                  "bin": {"binned": True, "step": 0.1}, "scale": {"domain": [0, 1]}, "axis": {"format": ".0%"}},
            "x2": {"field": "to"},
            "y": {"field": "nodes", "type": "quantitative", "title": "nodes", "axis": {"tickMinStep": 1}},
            "tooltip": [quantity("tenth", "utilization from", ".0%"), quantity("nodes", "nodes", ",")],
        },
    )  # fmt: skip


def curve(
    values: Values,
    measure: str,
    title: str,
    band: tuple[str, str] | None = None,
    form: str = ",.4~g",
    flagged: str = "",
) -> Spec:
    """Return a line of a measure by step, with a band between two other columns, if given.

    A vertical line marks parts with a count in `flagged`, of NaN or infinite values.
    """
    number = {"field": measure, "type": "quantitative", "title": title}
    axis = {**number, "scale": {"zero": False}, "axis": {"format": form}}
    shown = [(measure, title), *([(band[0], "least"), (band[1], "greatest")] if band else [])]
    tooltip = [_FROM_STEP, *(quantity(name, words, form) for name, words in shown)]
    layers: list[Spec] = []
    if band and values and all(name in values[0] for name in band):
        low, high = ({**axis, "field": name} for name in band)
        layers.append({
            "mark": {"type": "area", "color": "var(--band)", "opacity": 0.6, "interpolate": "linear"},
            "encoding": {"y": low, "y2": {"field": high["field"]}},
        })  # fmt: skip
    mark = {"type": "line", "color": "var(--series)", "strokeWidth": 2, "point": len(values) < _FEW}
    layers.append({"mark": mark, "encoding": {"y": axis}})
    layers.append({"mark": _NOT_SEEN, "encoding": {"y": axis, "tooltip": tooltip}})
    if any(value.get(flagged) for value in values):
        layers.append({
            "transform": [{"filter": f"datum.{flagged} > 0"}],
            "mark": {"type": "rule", "color": "var(--failing)", "strokeWidth": 2, "opacity": 0.5},
            "encoding": {"tooltip": [_FROM_STEP, quantity(flagged, "values that are not finite", ",d")]},
        })  # fmt: skip
    return chart_spec(values, _CURVE_HEIGHT, **_over_axes(measure, *(band or ())), encoding={"x": _STEP}, layer=layers)


def compared(values: Values, measure: str, title: str, runs: Sequence[str]) -> Spec:
    """Return a line per run of a measure by step; `values` have ``run``."""
    fewest = min(Counter(value["run"] for value in values).values(), default=0)
    number = {"field": measure, "type": "quantitative", "title": title}
    tooltip = [{"field": "run", "type": "nominal"}, _FROM_STEP, quantity(measure, title, ",.4~g")]
    return chart_spec(
        values,
        _CURVE_HEIGHT,
        **_over_axes(measure, by="run"),
        encoding={
            "x": _STEP,
            "y": {**number, "scale": {"zero": False}, "axis": {"format": ",.4~g"}},
            "color": {**_by_part(runs, _LINES), "field": "run"},
        },
        layer=[
            {"mark": {"type": "line", "strokeWidth": 2, "point": fewest < _FEW}},
            {"mark": _NOT_SEEN, "encoding": {"tooltip": tooltip}},
        ],
    )


def stack_chart(values: Values, parts: Sequence[str], title: str) -> Spec:
    """Return stacked parts by step; `values` have a column per part."""
    amount = {"field": "amount", "type": "quantitative", "stack": "zero", "title": title, "axis": {"format": ",.3~g"}}
    phase = {"field": "part", "type": "nominal", "title": "phase"}
    return chart_spec(
        values,
        _CURVE_HEIGHT,
        transform=[{"fold": list(parts), "as": ["part", "amount"]}],
        mark={"type": "area", "point": len(values) < _FEW},
        encoding={
            "x": _STEP,
            "y": amount,
            "color": _by_part(parts, _AREAS),
            "tooltip": [_FROM_STEP, phase, quantity("amount", title, ",.4~g")],
        },
    )


def bars(values: Values, title: str) -> Spec:
    """Return a bar per part, one below the other; `values` have ``part``, ``label``, ``amount`` and ``share``."""
    return chart_spec(
        values,
        _CURVE_HEIGHT,
        mark={"type": "bar", "color": "var(--part-1)", "height": {"band": 0.6}},
        encoding={
            "y": {"field": "label", "type": "nominal", "sort": [value["label"] for value in values], "title": None,
                  "axis": {"labelLimit": 220, "labelPadding": 8, "domain": False, "ticks": False}},
            "x": {"field": "share", "type": "quantitative", "title": title, "scale": {"domain": [0, 1]},
                  "axis": {"format": ".0%"}},
            "tooltip": [
                {"field": "part", "type": "nominal", "title": "kind"},
                quantity("amount", "seconds", ",.4~g"),
                quantity("share", title, ".1%"),
            ],
        },
    )  # fmt: skip


def _over_axes(measure: str, *bands: str, by: str = "") -> Spec:
    """Return the data for the page's script to redraw a curve with another axis, smoothing or scale."""
    return {"usermeta": {"measure": measure, "bands": list(bands), "by": [by] if by else []}}


def _by_part(parts: Sequence[str], order: Sequence[int]) -> Spec:
    colours = [f"var(--part-{order[place % len(order)]})" for place in range(len(parts))]
    return {
        "field": "part", "type": "nominal", "sort": list(parts), "title": None,
        "legend": {"orient": "top", "columns": 3},
        "scale": {"domain": list(parts), "range": colours},
    }  # fmt: skip


def _by_state(states: Sequence[str]) -> Spec:
    return {
        "field": "state", "type": "nominal", "sort": list(states), "title": None,
        "scale": {"domain": list(states), "range": [f"var(--{state})" for state in states]},
        "legend": {
            "orient": "top", "columns": {"expr": "width < 500 ? 2 : 0"},
            "labelExpr": "datum.label === 'errored' ? 'not computed' : datum.label",
        },
    }  # fmt: skip


_DIGEST: Final = re.compile(r"-([0-9a-f]{64})\.js")


def cache_folder() -> Path:
    """Return the folder of cached files: below ``XDG_CACHE_HOME``, or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "ranklake"


def cached(name: str, make: Callable[[], bytes], folder: Path | None = None) -> bytes:
    """Return a cached file by its name; make it if necessary.

    Its name in the cache has the digest of its bytes, so that a truncated or changed file is made again. If the folder
    cannot be read or written, it is made each time. Files are written atomically.
    """
    try:
        folder = folder or cache_folder()
        for path in sorted(folder.glob(f"{name.removesuffix('.js')}-*.js")):
            digest = _DIGEST.search(path.name)
            data = path.read_bytes()
            if digest and hashlib.sha256(data).hexdigest() == digest[1]:
                return data
    except (OSError, RuntimeError):  # no home, or no right to read it
        return make()
    data = make()
    with suppress(OSError):
        _keep(folder, name, data)
    return data


def _keep(folder: Path, name: str, data: bytes) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder)  # readable only by its owner
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(folder / f"{name.removesuffix('.js')}-{hashlib.sha256(data).hexdigest()}.js")
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


_RAMPS: Final = {"cold": ("--cold", "--part-1"), "hot": ("--cold", "--hot")}
_SCALE: Final = 1000
"""Ratios are stored as thousandths: 512 rows by 48 columns take 100 KB instead of 1 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Ratios by row and column.

    Attributes
    ----------
    name, title, description, source
        As of `ranklake.views.html.charts.Chart`.
    rows, columns
        Labels, from the top and from the left.
    values
        Values row by row; None for unknown ones, which `unknown` describes.
    members
        Number of items per row; empty if each is one.
    row_title, column_title, measure
        Titles of rows, columns and values.
    table, table_title
        Id and caption of the page's table with the same numbers.
    ramp
        Colours: ``cold`` if high values are good, ``hot`` if they are bad.
    most
        Ratio from which the strongest colour is used.
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
        """Data for the script; values and `most` are thousandths."""
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
