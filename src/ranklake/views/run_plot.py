"""Curves on a terminal, as dots of Braille drawn by plotille, and as PNG or SVG drawn by the pages' chart library."""

import importlib
import math
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, Final

from plotille import Canvas

from ranklake.insight.runs.curves import PlottedMetric, Point
from ranklake.printable import printable
from ranklake.views.html.charts import SCHEMA, Spec, library_name
from ranklake.views.words import UNKNOWN, number_text

WIDTH: Final = 80
"""Default number of columns."""

_HEIGHT: Final = 14
_LABEL: Final = 9
_SHORT_LABEL: Final = 8
_LEAST: Final = 8
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_EVERY: Final = 8
_UNITS_OF_TIME: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def axis_title(axis: str, last: float) -> tuple[str, float]:
    """Return an axis's title, and a divisor of its values: times are in a suitable unit."""
    if axis != "time":
        return axis, 1.0
    size, unit = next(((size, unit) for size, unit in _UNITS_OF_TIME if last >= 2 * size), (1.0, "s"))
    return f"time since the first step ({unit})", size


def metric_title(curve: PlottedMetric) -> str:
    """Return a metric's title, with its unit if it has one."""
    unit = curve.unit.replace("{", "").replace("}", "")
    return printable(curve.metric) + ("" if unit in {"", "1", "ratio"} else f" ({printable(unit)})")


def plot_lines(curves: Sequence[PlottedMetric], axis: str, width: int | None, *, is_log: bool = False) -> list[str]:
    """Return curves as lines: a frame per metric, and a letter per run if there are several."""
    lines: list[str] = []
    for _, every in groupby(curves, lambda curve: curve.metric):
        lines += ["", *_frame(list(every), axis, width or WIDTH, is_log=is_log)]
    return lines[1:]


def _frame(every: Sequence[PlottedMetric], axis: str, width: int, *, is_log: bool) -> Iterator[str]:
    pieces = [one.pieces(positive=is_log) for one in every]
    points = [point for of_run in pieces for piece in of_run for point in piece]
    yield f"{metric_title(every[0])}{', logarithmic' if is_log else ''}"[:width]
    if not points:
        yield f"{UNKNOWN}: no value is {'above zero' if is_log else 'finite'}"[:width]
        return
    columns = max(width - _LABEL - 3, _LEAST)
    title, size = axis_title(axis, max(x for x, _ in points))
    low, high = min(y for _, y in points), max(y for _, y in points)
    every_x = [x for one in every for x, y in one.points if not is_log or not y <= 0]  # including non-finite values
    left, right = min(every_x), max(every_x)
    drawn = _draw(pieces, columns, (left, right), _span(low, high, is_log=is_log), is_log=is_log)
    labels = {len(drawn) // 2: low} if low == high else {0: high, len(drawn) - 1: low}
    for place, line in enumerate(drawn):
        label = number_text(labels[place]) if place in labels else ""
        yield f"{label:>{_LABEL}} {'┤' if label else '│'}{line}".rstrip()
    first, last = (number_text(x if size != 1 else round(x)) for x in (left / size, right / size))
    yield f"{'':{_LABEL}} └{'─' * columns}"
    yield _axis_line(first, title, last, columns, _LABEL + 2)
    yield from (line[:width] for line in _notes(every, pieces, is_log=is_log))


def curve_lines(values: Sequence[float], *, width: int = 64, height: int = 8) -> list[str]:
    """Return lines that plot values, with the greatest and the least beside them; empty without values."""
    if not values:
        return []
    low, high = min(values), max(values)
    points = list(enumerate(map(float, values)))
    drawn = _draw([[points]], width, (0, len(values) - 1), _span(low, high, is_log=False), height, is_log=False)
    labels = {len(drawn) - 1: low, 0: high}
    return [
        f"{_short_number(labels[place]) if place in labels else '':>8} {'┤' if place in labels else '│'}{line}"
        for place, line in enumerate(drawn)
    ]


def _short_number(value: float) -> str:
    """Return a number in the width of `curve_lines`'s axis."""
    plain = f"{value:.3f}"
    return plain if len(plain) <= _SHORT_LABEL and (not value or float(plain)) else f"{value:.2g}"


def _span(low: float, high: float, *, is_log: bool) -> tuple[float, float]:
    low, high = (math.log10(low), math.log10(high)) if is_log else (low, high)
    if high > low:
        return low, high
    room = abs(low) * 0.1 or 1.0
    return low - room, high + room


def _draw(
    pieces: Sequence[Sequence[Sequence[Point]]], columns: int, across: tuple[float, float], up: tuple[float, float],
    height: int = _HEIGHT, *, is_log: bool,
) -> list[str]:  # fmt: skip
    left, right = across if across[1] > across[0] else (across[0] - 1, across[1] + 1)
    canvas = Canvas(columns, height, 0.0, 0.0, 1.0, 1.0)
    for letter, of_run in zip(_LETTERS, pieces, strict=False):
        for piece in of_run:
            spots = [
                ((x - left) / (right - left), ((math.log10(y) if is_log else y) - up[0]) / (up[1] - up[0]))
                for x, y in piece
            ]
            for (x0, y0), (x1, y1) in pairwise(spots):
                canvas.line(x0, y0, x1, y1)
            canvas.point(*spots[0])
            if len(pieces) > 1:
                for spot in [spots[0], *spots[:: max(len(spots) // _EVERY, 1)], spots[-1]]:
                    canvas.point(*spot, marker=letter)
    return [line.replace("\u2800", " ").rstrip() for line in str(canvas.plot()).split("\n")]


def _axis_line(first: str, title: str, last: str, columns: int, margin: int) -> str:
    room = columns - len(first) - len(last)
    if room < len(title) + 2:
        line = f"{first}{' ' * max(room, 1)}{last}"
        return f"{'':{margin}}{line}"
    return f"{'':{margin}}{first}{title:^{room}}{last}"


def _notes(
    every: Sequence[PlottedMetric], pieces: Sequence[Sequence[Sequence[Point]]], *, is_log: bool
) -> Iterator[str]:
    for letter, curve, of_run in zip(_LETTERS, every, pieces, strict=False):
        shown = sum(map(len, of_run))
        left_out = sum(1 for _, value in curve.points if math.isfinite(value)) - shown
        notes = []
        if not curve.points:
            notes.append(f"{UNKNOWN}, {curve.answered.reason or 'no values'}")
        if is_log and left_out:
            notes.append(f"{left_out:,} points are not above zero")
        if gaps := [x for x, value in curve.points if not math.isfinite(value)]:
            notes.append(f"{len(gaps):,} points are not finite, the first at {number_text(gaps[0])}")
        if len(every) > 1:
            last = f", last {number_text(of_run[-1][-1][1])}" if of_run else ""
            yield "; ".join([f"{letter} {printable(curve.run)}{last}", *notes])
        elif notes:
            yield "; ".join(notes)


SUFFIXES: Final = (".png", ".svg")
_SCALE: Final = 2.0
COLOURS: Final = ("#0b6bcb", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#be123c", "#0e7490", "#475569")
_WIDTH, _PLOT_HEIGHT = 640, 260
_MOST_TITLE: Final = 60
_FEW: Final = 60


def plot_spec(curves: Sequence[PlottedMetric], axis: str, *, is_log: bool = False) -> Spec:
    """Return curves as a Vega-Lite specification: a chart per metric, a colour per run."""
    charts = [_chart(list(every), axis, is_log=is_log) for _, every in groupby(curves, lambda curve: curve.metric)]
    return {"$schema": SCHEMA, "background": "white", "config": {"view": {"stroke": "#d4d4d8"}}, "vconcat": charts}


def picture(spec: Spec, suffix: str) -> bytes:
    """Return the bytes of a file. Raises `ranklake.views.html.charts.NoChartLibraryError`."""
    library_name()  # or report how to install it
    library: Any = importlib.import_module("vl_convert")
    if suffix == ".svg":
        return str(library.vegalite_to_svg(spec)).encode()
    return bytes(library.vegalite_to_png(spec, scale=_SCALE))


def _chart(every: Sequence[PlottedMetric], axis: str, *, is_log: bool) -> Spec:
    pieces = [one.pieces(positive=is_log) for one in every]
    title, size = axis_title(axis, max((x for of_run in pieces for piece in of_run for x, _ in piece), default=0.0))
    runs = [printable(one.run) for one in every]
    values = [
        {"x": x / size, "y": y, "run": run, "piece": place}
        for run, of_run in zip(runs, pieces, strict=True)
        for place, piece in enumerate(of_run)
        for x, y in piece
    ]
    is_single = len(every) == 1
    return {
        "width": _WIDTH,
        "height": _PLOT_HEIGHT,
        "title": f"{metric_title(every[0])}{f' of {runs[0]}' if is_single else ''}"[:_MOST_TITLE],
        "data": {"values": values},
        "mark": {"type": "line", "strokeWidth": 2, "aria": False, "point": len(values) < _FEW and {"aria": False}},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": title,
                  "scale": {"zero": False, "nice": False}, "axis": {"format": "~s" if axis == "tokens" else ",.6~g"}},
            "y": {"field": "y", "type": "quantitative", "title": None,  # a name there is parsed as an expression
                  "scale": {"type": "log", "nice": False} if is_log else {"zero": False}, "axis": {"format": ",.4~g"}},
            "detail": {"field": "piece", "type": "nominal"},
            "color": {"field": "run", "type": "nominal", "sort": runs, "title": None,
                      "scale": {"domain": runs, "range": list(COLOURS)},
                      "legend": None if is_single else {"orient": "bottom", "columns": 2, "labelLimit": _WIDTH // 2}},
        },
    }  # fmt: skip
