"""Folded: slots that many values were folded into, as rows. A slot holds its state twice; the newer whole copy counts.

A copy's sequence number is its last field to be written, so a process killed while it writes leaves the other copy
newer, with all but the value whose call had not returned.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ranklake.capture.common.arrays import Array, lists, numbers
from ranklake.capture.common.layouts import HISTOGRAM_STATE, INTERVAL_STATE
from ranklake.capture.sealing.ranges import Judged, judge
from ranklake.capture.sealing.rows import Columns, Rows, flag_texts, flags, integers, named, plausible
from ranklake.capture.spool.clock import Anchor
from ranklake.capture.spool.meta import Meta

_SCALES = (-10, 20)


def _newer(slots: Array, state: tuple[tuple[str, str], ...]) -> dict[str, Array]:
    """Return the fields of the newer copy in each slot."""
    second = slots["b_sequence"] > slots["a_sequence"]
    found: dict[str, Array] = {}
    for name, _ in state:
        a, b = slots[f"a_{name}"], slots[f"b_{name}"]
        found[name] = np.where(second if a.ndim == 1 else second[:, None], b, a)
    return found


def _sound(slots: Array, state: dict[str, Array], meta: Meta, straight: Sequence[Anchor]) -> Array:
    with np.errstate(over="ignore"):
        lasted = state["end_ns"] - slots["start_ns"]
    good: Array = plausible(slots["start_ns"], lasted, straight)
    return good & (state["sequence"] > 0) & np.isin(slots["series"], list(meta.metrics))


def _only(state: dict[str, Array], good: Array) -> dict[str, Array]:
    return {name: values[good] for name, values in state.items()}


def _finite(values: Array, there: Array) -> pa.Array:
    """Return numbers, NULL where there are none or where they overflowed."""
    return numbers(values, pa.float64(), ~(there & np.isfinite(values)))


def _judged(slots: Array, state: dict[str, Array], some: Array, meta: Meta) -> Judged:
    """Judge intervals by all of their values that are finite."""
    least, greatest = (np.where(some, state[name], np.nan) for name in ("min", "max"))
    return judge(slots["series"], least, greatest, meta)


def interval_rows(slots: Array, positions: Array, meta: Meta, straight: Sequence[Anchor]) -> Rows:
    """Return rows of `scalars`, one an interval."""
    state = _newer(slots, INTERVAL_STATE)
    good = _sound(slots, state, meta, straight)
    good &= (state["count"] > 0) & (state["finite"] >= 0) & (state["finite"] <= state["count"])
    damaged = int(np.count_nonzero(~good))
    slots, positions, state = slots[good], positions[good], _only(state, good)
    some = state["finite"] > 0
    other = state["count"] - state["finite"]
    judged = _judged(slots, state, some, meta)
    flagged = flags(state["last"])
    with np.errstate(invalid="ignore"):
        deviation = np.sqrt(np.maximum(state["m2"], 0.0) / np.maximum(state["finite"], 1))
    columns: Columns = {
        **named(slots["series"], meta),
        "step": integers(state["step"], pa.int64()),
        "value": numbers(state["last"], pa.float64(), flagged > 0),
        "value_flag": flag_texts(flagged),
        "agg_count": numbers(state["count"], pa.int64()),
        "agg_non_finite_count": numbers(other, pa.int64(), other == 0),
        "agg_min": _finite(state["min"], some),
        "agg_max": _finite(state["max"], some),
        "agg_mean": _finite(state["mean"], some),
        "agg_std": _finite(deviation, some),
        "interval_ns": numbers(state["end_ns"] - slots["start_ns"], pa.int64()),
        "edge_flag": judged.flags,
    }
    return Rows(state["end_ns"], positions, columns, damaged).without(judged.dropped)


def histogram_rows(slots: Array, positions: Array, meta: Meta, straight: Sequence[Anchor]) -> Rows:
    """Return rows of `distributions`, one an interval."""
    state = _newer(slots, HISTOGRAM_STATE)
    good = _sound(slots, state, meta, straight)
    good &= (state["scale"] >= _SCALES[0]) & (state["scale"] <= _SCALES[1])
    for name in ("zero_count", "nan_count", "infinite_count"):
        good &= state[name] >= 0
    for name in ("positive_counts", "negative_counts"):
        good &= (state[name] >= 0).all(axis=1)
    damaged = int(np.count_nonzero(~good))
    slots, positions, state = slots[good], positions[good], _only(state, good)
    described = named(slots["series"], meta)
    count = state["zero_count"] + state["positive_counts"].sum(axis=1) + state["negative_counts"].sum(axis=1)
    judged = _judged(slots, state, count > 0, meta)
    columns: Columns = {
        "metric": described["metric"],
        "weight": described["weight"],
        "edge_flag": judged.flags,
        "step": integers(state["step"], pa.int64()),
        "interval_ns": numbers(state["end_ns"] - slots["start_ns"], pa.int64()),
        "scale": numbers(state["scale"], pa.int32()),
        "count": numbers(count, pa.int64()),
        "zero_threshold": numbers(np.zeros(len(slots)), pa.float64()),
        **{name: _finite(state[name], count > 0) for name in ("sum", "min", "max")},
        **{name: numbers(state[name], pa.int64()) for name in ("zero_count", "nan_count", "infinite_count")},
    }
    for sign in ("positive", "negative"):
        counts = state[f"{sign}_counts"]
        used = np.where(counts > 0, np.arange(1, counts.shape[1] + 1), 0).max(axis=1, initial=0)
        columns[f"{sign}_offset"] = numbers(state[f"{sign}_offset"], pa.int32(), used == 0)
        columns[f"{sign}_counts"] = lists(counts, used)
    return Rows(state["end_ns"], positions, columns, damaged).without(judged.dropped)
