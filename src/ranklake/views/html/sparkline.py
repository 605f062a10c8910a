"""Sparklines: geometry of small charts that need no library, for the template to draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log1p
from typing import Final

WIDTH: Final = 180
HEIGHT: Final = 28


@dataclass(frozen=True, slots=True)
class Bars:
    """Marks of one state, as the path of an SVG."""

    state: str
    path: str


@dataclass(frozen=True, slots=True)
class Sparkline:
    """Bars for what failed, a line for what was checked; `label` says the same in words."""

    label: str
    line: str
    bars: tuple[Bars, ...]
    width: int = WIDTH
    height: int = HEIGHT


def sparkline(label: str, points: Sequence[tuple[str, int | None, int | None]]) -> Sparkline:
    """Return a sparkline of (state, rows checked, rows failed), one a date.

    Bars are as high as the logarithm of the rows that failed, so that a few are seen beside many; what could not be
    computed is a full bar. Dates on which nothing is known of the rows checked break the line.
    """
    step = WIDTH / max(1, len(points))
    most_checked = max((checked or 0 for _, checked, _ in points), default=0) or 1
    most_failed = log1p(max((failed or 0 for _, _, failed in points), default=0)) or 1.0
    line, bars, pen = [], dict[str, list[str]](), "M"
    for place, (state, checked, failed) in enumerate(points):
        x = _short(step * (place + 0.5))
        if checked is None:
            pen = "M"
        else:
            line.append(f"{pen}{x} {_short(HEIGHT - 2 - (HEIGHT - 6) * checked / most_checked)}")
            pen = "L"
        if state == "errored" or failed:
            share = 1.0 if state == "errored" else log1p(failed or 0) / most_failed
            bars.setdefault(state, []).append(f"M{x} {HEIGHT}v-{_short(4 + (HEIGHT - 6) * share)}")
    return Sparkline(label, "".join(line), tuple(Bars(state, "".join(paths)) for state, paths in sorted(bars.items())))


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
