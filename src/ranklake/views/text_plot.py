"""A curve as a few lines of text."""

import itertools
from collections.abc import Sequence

_LABEL = 8


def text_plot(values: Sequence[float], *, width: int = 64, height: int = 8) -> list[str]:
    """Return lines that draw values, left to right, each column the mean of its share of them.

    The axis carries the highest and lowest column mean. An empty sequence draws nothing.
    """
    if not values:
        return []
    columns = min(width, len(values))
    edges = [round(index * len(values) / columns) for index in range(columns + 1)]
    means = [sum(values[low:high]) / (high - low) for low, high in itertools.pairwise(edges)]
    top, bottom = max(means), min(means)
    span = (top - bottom) or 1.0
    rows = [round((mean - bottom) / span * (height - 1)) for mean in means]
    labels = {height - 1: f"{_short(top):>8} ┤", 0: f"{_short(bottom):>8} ┤"}
    return [
        labels.get(row, " " * 9 + "│") + "".join("●" if at == row else " " for at in rows).rstrip()
        for row in range(height - 1, -1, -1)
    ]


def _short(value: float) -> str:
    """Return a number in as many characters as the axis has room for."""
    plain = f"{value:.3f}"
    return plain if len(plain) <= _LABEL and (not value or float(plain)) else f"{value:.2g}"
