"""A view of metrics of runs: the parameters in an address of Explore."""

import math
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.runs.explore import AXES, BANDS, MOST_PARTS

MOST_RUNS: Final = 20
"""Most runs, or groups, that are drawn."""
MOST_COMPARED: Final = 12
"""Most runs side by side on a page."""
MOST_GROUPED: Final = 200
"""Runs of all groups."""
MOST_METRICS: Final = 12
MOST_COLUMNS: Final = 30
_PARTS: Final = 800
_MOST_TEXT: Final = 2_000
_FIRST_METRICS: Final = "loss step_time_s"


class UnfitViewError(RanklakeError):
    """An address or form with invalid parameters."""


@dataclass(frozen=True)
class View:
    """Parameters of a view.

    Attributes
    ----------
    search
        Search for runs: the beginning of a name, or ``key=value``: of a setting (``config.lr``), a label
        (``label.shape``), a tag, or ``status``, ``job``, ``team``, ``user``.
    runs
        Runs to draw.
    metrics
        Names or patterns of metrics.
    axis
        One of `AXES`.
    begin, end
        The range of the axis; None for its begin and end.
    smooth, is_log, is_log_x, is_clipped
        Number of neighbours on either side for smoothing; logarithmic scales of values and of the axis; whether to drop
        the outermost hundredth of values on either side.
    parts
        Number of parts of the axis.
    group, band
        A setting, label or tag: runs with the same value are one line, their mean, with a band of `BANDS`.
    columns
        Names or patterns of columns in the table of runs.
    baseline
        The run with which settings of others are compared.
    result, x_column, y_column
        Of a sweep: the column that settings are compared with, and the two columns of its scatter plot.
    """

    search: str = ""
    runs: tuple[str, ...] = ()
    metrics: tuple[str, ...] = tuple(_FIRST_METRICS.split())
    axis: str = "step"
    begin: float | None = None
    end: float | None = None
    smooth: int = 0
    is_log: bool = False
    is_log_x: bool = False
    is_clipped: bool = False
    parts: int = _PARTS
    group: str = ""
    band: str = "range"
    columns: tuple[str, ...] = ()
    baseline: str = ""
    result: str = "last_loss"
    x_column: str = ""
    y_column: str = ""

    @classmethod
    def of(cls, asked: QueryParams, *, is_sweep: bool = False) -> "View":
        """Return the view of an address. Raises `UnfitViewError`."""
        axis = asked.get("x", "step")
        if axis not in AXES:
            raise UnfitViewError(f"no axis {axis!r}", where="x", hint=did_you_mean(axis, AXES))
        band = asked.get("band", "range")
        if band not in BANDS:
            raise UnfitViewError(f"no band {band!r}", where="band", hint=did_you_mean(band, BANDS))
        group = asked.get("group", "").strip()
        runs = tuple(dict.fromkeys(asked.getlist("run")))
        metrics = tuple(word for text in asked.getlist("metric") for word in text.split())
        columns = tuple(word for text in asked.getlist("column") for word in text.split())
        baseline = asked.get("baseline", "")
        most = MOST_GROUPED if group or is_sweep else MOST_RUNS
        if len(runs) > most:
            hint = f"at most {most}" if most == MOST_GROUPED else f"at most {most}, or up to {MOST_GROUPED} by group"
            raise UnfitViewError(f"{len(runs)} runs are too many to draw", where="run", hint=hint)
        plotted = [asked.get(name, "").strip() for name in ("result", "across", "up")]
        texts = (*runs, *metrics, *columns, *plotted, group, baseline, asked.get("find", ""))
        if any(len(text) > _MOST_TEXT for text in texts):
            raise UnfitViewError("a name is too long", where="run, metric, find, group, column or baseline")
        return cls(
            search=asked.get("find", "").strip(),
            runs=runs,
            metrics=metrics[:MOST_METRICS] or cls.metrics,
            axis=axis,
            begin=_number(asked, "from"),
            end=_number(asked, "to"),
            smooth=_count(asked, "smooth", 0, 0, 50),
            is_log=bool(asked.get("log")),
            is_log_x=bool(asked.get("logx")) and axis != "wall",
            is_clipped=bool(asked.get("clip")),
            parts=_count(asked, "parts", _PARTS, 1, MOST_PARTS),
            group=group,
            band=band,
            columns=tuple(dict.fromkeys(columns))[:MOST_COLUMNS],
            baseline=baseline,
            result=plotted[0] or cls.result,
            x_column=plotted[1],
            y_column=plotted[2],
        )

    def query(self, **changed: Any) -> str:  # noqa: ANN401 - values of fields
        """Return the query of an address for the view, with some fields changed."""
        view = replace(self, **changed)
        asked: list[tuple[str, object]] = [("find", view.search)] if view.search else []
        asked += [("run", run) for run in view.runs]
        asked += [("metric", " ".join(view.metrics)), ("x", view.axis)]
        asked += [(name, limit) for name, limit in (("from", view.begin), ("to", view.end)) if limit is not None]
        asked += [("smooth", view.smooth)] if view.smooth else []
        switches = ("log", view.is_log), ("logx", view.is_log_x), ("clip", view.is_clipped)
        asked += [(name, "on") for name, is_on in switches if is_on]
        asked += [("group", view.group), ("band", view.band)] if view.group else []
        asked += [("column", " ".join(view.columns))] if view.columns else []
        asked += [("baseline", view.baseline)] if view.baseline else []
        asked += [("result", view.result)] if view.result != type(self).result else []
        asked += [(name, value) for name, value in (("across", view.x_column), ("up", view.y_column)) if value]
        return urlencode(asked)


def _number(asked: QueryParams, name: str) -> float | None:
    text = asked.get(name, "").strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UnfitViewError(f"{text[:40]!r} is no number", where=name)
    return number


def _count(asked: QueryParams, name: str, default: int, least: int, most: int) -> int:
    """Return a count in an address, at most a maximum. Raises `UnfitViewError`."""
    number = _number(asked, name)
    if number is None:
        return default
    if number < least or number != int(number):
        raise UnfitViewError(f"{asked[name][:40]!r} is no whole number from {least}", where=name)
    return min(int(number), most)
