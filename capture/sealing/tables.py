"""Tables: the bytes of a slot or frame file as contract-typed Arrow columns. Pure, and vectorised over slots.

Slots of intervals and histograms hold their state twice, and the newer whole copy counts: a copy's sequence number is
its last field to be written, so a process killed while it writes leaves the other copy newer, with all but the value
whose call had not returned.

Damage is judged here: a slot counts as damaged if its commit word is neither zero nor the mark, if its names are not
defined, or if its times lie where no event of the process can. Such rows are left out and counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from ranklake.capture.common.arrays import Array, list_array, numbers, take_texts, texts, to_array, truths
from ranklake.capture.common.layouts import (
    ABSENT,
    HISTOGRAM_STATE,
    INTERVAL_STATE,
    LAYOUT_OF_LANE,
    MARK,
    PHASES,
    ROW_WIDTH,
    STEP_FLOATS,
    WRITTEN,
)
from ranklake.capture.lanes.written import slots_in
from ranklake.capture.sealing.rows import (
    FLAGS,
    Columns,
    RangeCheck,
    Rows,
    check_ranges,
    flag_texts,
    flags,
    integers,
    plausible,
    series_columns,
)
from ranklake.capture.spool import frames
from ranklake.capture.spool.clock import Anchor, wall_ns
from ranklake.capture.spool.meta import Meta
from ranklake.lake.contracts.arrow import ARROW_TYPES, arrow_schema
from ranklake.lake.contracts.model import Contract
from ranklake.segments.segment import IDENTITY, REFUSED, REFUSED_ROW


def own_columns(slots: Array, non_finite: pa.Array, meta: Meta) -> Columns:
    """Return the columns, and ``non_finite`` with what is to be said of them; columns no longer known are left out."""
    of = meta.contract("steps")
    columns: Columns = {}
    notes = np.full(len(slots), None, object)
    for place, name in enumerate(meta.own_step_columns):
        if name not in of:
            continue
        values = slots["own"][:, place]
        present = (slots["own_present"] >> np.uint32(place)) & np.uint32(1) == 1
        to = ARROW_TYPES[of.column(name).type]
        if pa.types.is_floating(to):
            with np.errstate(over="ignore"):  # beyond float32 is infinite in the column's type, and flagged so
                narrow = values.astype(np.float32 if to == pa.float32() else np.float64)
            flagged = np.where(present, flags(narrow), 0)
            columns[name] = numbers(narrow, to, ~present | (flagged > 0))
            for at in np.flatnonzero(flagged):
                notes[at] = f"{name}:{FLAGS[flagged[at] - 1]}" + (f",{notes[at]}" if notes[at] else "")
        elif pa.types.is_boolean(to):
            columns[name] = truths(
                [bool(value) if is_there else None for value, is_there in zip(values, present, strict=True)]
            )
        else:
            limits = np.iinfo(np.int32 if to == pa.int32() else np.int64)
            fits = present & np.isfinite(values) & (values >= limits.min) & (values <= limits.max)
            columns[name] = numbers(np.where(fits, values, 0), to, ~fits)
    if any(notes):
        words = [",".join(filter(None, pair)) or None for pair in zip(non_finite.to_pylist(), notes, strict=True)]
        columns["non_finite"] = texts(words)
    return columns


_SCALES = (-10, 20)


def _newer(slots: Array, state: tuple[tuple[str, str], ...]) -> dict[str, Array]:
    """Return the fields of the newer copy in each slot."""
    second = slots["b_sequence"] > slots["a_sequence"]
    state_of: dict[str, Array] = {}
    for name, _ in state:
        a, b = slots[f"a_{name}"], slots[f"b_{name}"]
        state_of[name] = np.where(second if a.ndim == 1 else second[:, None], b, a)
    return state_of


def _sound(slots: Array, state: dict[str, Array], meta: Meta, straight: Sequence[Anchor]) -> Array:
    with np.errstate(over="ignore"):
        lasted = state["end_ns"] - slots["start_ns"]
    good: Array = plausible(slots["start_ns"], lasted, straight)
    return good & (state["sequence"] > 0) & np.isin(slots["series"], list(meta.metrics))


def _filter_state(state: dict[str, Array], good: Array) -> dict[str, Array]:
    return {name: values[good] for name, values in state.items()}


def _finite(values: Array, present: Array) -> pa.Array:
    """Return numbers, NULL where there are none or where they overflowed."""
    return numbers(values, pa.float64(), ~(present & np.isfinite(values)))


def _interval_ranges(slots: Array, state: dict[str, Array], finite: Array, meta: Meta) -> RangeCheck:
    """Judge intervals by all of their values that are finite."""
    least, greatest = (np.where(finite, state[name], np.nan) for name in ("min", "max"))
    return check_ranges(slots["series"], least, greatest, meta)


def interval_rows(slots: Array, positions: Array, meta: Meta, straight: Sequence[Anchor]) -> Rows:
    """Return rows of `scalars`, one an interval."""
    state = _newer(slots, INTERVAL_STATE)
    good = _sound(slots, state, meta, straight)
    good &= (state["count"] > 0) & (state["finite"] >= 0) & (state["finite"] <= state["count"])
    damaged = int(np.count_nonzero(~good))
    slots, positions, state = slots[good], positions[good], _filter_state(state, good)
    finite = state["finite"] > 0
    other = state["count"] - state["finite"]
    judged = _interval_ranges(slots, state, finite, meta)
    flagged = flags(state["last"])
    with np.errstate(invalid="ignore"):
        deviation = np.sqrt(np.maximum(state["m2"], 0.0) / np.maximum(state["finite"], 1))
    columns: Columns = {
        **series_columns(slots["series"], meta),
        "step": integers(state["step"], pa.int64()),
        "value": numbers(state["last"], pa.float64(), flagged > 0),
        "value_flag": flag_texts(flagged),
        "agg_count": numbers(state["count"], pa.int64()),
        "agg_non_finite_count": numbers(other, pa.int64(), other == 0),
        "agg_min": _finite(state["min"], finite),
        "agg_max": _finite(state["max"], finite),
        "agg_mean": _finite(state["mean"], finite),
        "agg_std": _finite(deviation, finite),
        "interval_ns": numbers(state["end_ns"] - slots["start_ns"], pa.int64()),
        "edge_flag": judged.flags,
    }
    return Rows(state["end_ns"], positions, columns, damaged).drop(judged.dropped)


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
    slots, positions, state = slots[good], positions[good], _filter_state(state, good)
    described = series_columns(slots["series"], meta)
    count = state["zero_count"] + state["positive_counts"].sum(axis=1) + state["negative_counts"].sum(axis=1)
    judged = _interval_ranges(slots, state, count > 0, meta)
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
        columns[f"{sign}_counts"] = list_array(counts, used)
    return Rows(state["end_ns"], positions, columns, damaged).drop(judged.dropped)


def read_rows(lane: str, raw: bytes, meta: Meta, straight: Sequence[Anchor]) -> Rows:
    """Read a file of the lane. Never raises on any bytes."""
    if lane not in LAYOUT_OF_LANE:
        return _frame_rows(meta.contract(lane), raw, straight)
    slots, damaged = _slots_of(lane, raw)
    positions = np.flatnonzero(slots["mark"] == MARK)
    rows = _SLOT_READERS[LAYOUT_OF_LANE[lane].lane](slots[positions], positions, meta, straight)
    return replace(rows, damaged=rows.damaged + damaged)


def rows_there(lane: str, raw: bytes) -> int:
    """Return how many rows a file holds, at least, without looking at any of them."""
    if lane not in LAYOUT_OF_LANE:
        return len({frame.get("s") for frame in frames.scan(raw).frames})  # a row may be there twice
    return int(np.count_nonzero(_slots_of(lane, raw)[0]["mark"] == MARK))


def _slots_of(lane: str, raw: bytes) -> tuple[Array, int]:
    """Return a file's slots, and how many of them are damaged."""
    layout = LAYOUT_OF_LANE[lane]
    if lane.endswith(WRITTEN):
        return slots_in(raw, layout)
    slots = np.frombuffer(raw, layout.dtype(), len(raw) // layout.slot_bytes)
    return slots, int(np.count_nonzero((slots["mark"] != MARK) & (slots["mark"] != 0)))


def arrow_table(rows: Rows, of: Contract, straight: Sequence[Anchor]) -> pa.Table:
    """Return the rows under the contract's segment schema, without what is the same in all (`IDENTITY`).

    Rows that an importer refused have no time, and two columns more (`ranklake.segments.segment.REFUSED`).
    """
    fields = [one for one in arrow_schema(of, segment=True) if one.name not in IDENTITY or one.name in rows.columns]
    refused = REFUSED in rows.columns
    schema = pa.schema([*(pa.field(one.name, one.type) for one in fields), *_REFUSED] if refused else fields)
    count = len(rows)
    wall_us = wall_ns(rows.mono_ns, straight) // 1000 if count else rows.mono_ns
    envelope = {
        "slot": numbers(rows.slots, pa.int32()),
        "ts": numbers(wall_us, schema.field("ts").type, np.ones(count, bool) if refused else None),
    }
    columns = envelope | rows.columns
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in schema]
    return pa.table(arrays, schema=schema)


def _steps(slots: Array, positions: Array, meta: Meta, straight: Sequence[Anchor]) -> Rows:
    good = plausible(slots["start_ns"], slots["duration_ns"], straight)
    damaged = int(np.count_nonzero(~good))
    slots, positions = slots[good], positions[good]
    columns: Columns = {
        "step": numbers(slots["step"], pa.int64()),
        "step_time_s": numbers(slots["duration_ns"] / 1e9, pa.float32()),
    }
    for phase in PHASES:
        spent = slots[f"{phase}_ns"]
        columns[f"{phase}_time_s"] = numbers(spent / 1e9, pa.float32(), spent == ABSENT)
    for name in ("tokens", "samples", "memory_allocated_bytes", "memory_reserved_bytes"):
        columns[name] = integers(slots[name], pa.int64())
    code = np.zeros(len(slots), np.int64)
    for bit, name in enumerate(STEP_FLOATS):
        with np.errstate(over="ignore"):  # beyond float32 is infinite in the column's type, and flagged so
            narrow = slots[name].astype(np.float32)
        present = (slots["present"] >> np.uint32(bit)) & np.uint32(1) == 1
        flagged = np.where(present, flags(narrow), 0)
        columns[name] = numbers(narrow, pa.float32(), ~present | (flagged > 0))
        code += flagged * 4**bit
    columns["non_finite"] = take_texts(code, _NON_FINITE, code == 0)
    if "own" in (slots.dtype.names or ()):
        columns |= own_columns(slots, columns["non_finite"], meta)
    return Rows(slots["start_ns"], positions, columns, damaged)


def _non_finite_texts() -> list[str]:
    """Return the text for each sum of flag x 4^bit over the step's floats."""
    texts = []
    for code in range(4 ** len(STEP_FLOATS)):
        pairs = [(name, code // 4**bit % 4) for bit, name in enumerate(STEP_FLOATS)]
        texts.append(",".join(f"{name}:{FLAGS[flag - 1]}" for name, flag in pairs if flag))
    return texts


_NON_FINITE: Final = _non_finite_texts()


def _values(time: Array, step: Array, value: Array, series: Array, slots: Array, meta: Meta, damaged: int) -> Rows:
    """Return rows of `scalars` from flat arrays; `series` are defined."""
    flagged = flags(value)
    judged = check_ranges(series, value, value, meta)
    columns: Columns = {
        **series_columns(series, meta),
        "step": integers(step, pa.int64()),
        "value": numbers(value, pa.float64(), flagged > 0),
        "value_flag": flag_texts(flagged),
        "edge_flag": judged.flags,
    }
    return Rows(time, slots, columns, damaged).drop(judged.dropped)


def _scalars(slots: Array, positions: Array, meta: Meta, straight: Sequence[Anchor]) -> Rows:
    good = plausible(slots["time_ns"], None, straight) & np.isin(slots["series"], list(meta.metrics))
    kept = slots[good]
    return _values(
        kept["time_ns"],
        kept["step"],
        kept["value"],
        kept["series"],
        positions[good],
        meta,
        int(np.count_nonzero(~good)),
    )


def _rows(slots: Array, positions: Array, meta: Meta, straight: Sequence[Anchor]) -> Rows:
    """Spread each mapping's slot over as many rows as it has values; the row's slot number says which value.

    They lie metric by metric, each with the same times as the one before: what is alike side by side takes less room.
    """
    good = plausible(slots["time_ns"], None, straight)
    damaged = int(np.count_nonzero(~good))
    parts: list[tuple[Array, Array, Array, Array, Array]] = []
    for schema in np.unique(slots["schema"][good]):
        mine = np.flatnonzero(good & (slots["schema"] == schema))
        series = meta.schemas.get(int(schema), ())
        width = len(series)
        if not 0 < width <= ROW_WIDTH or not set(series) <= meta.metrics.keys():
            damaged += len(mine) * max(width, 1)
            continue
        parts.append(
            (
                np.repeat(slots["time_ns"][mine], width),
                np.repeat(slots["step"][mine], width),
                slots["values"][mine, :width].ravel(),
                np.tile(np.array(series, np.int64), len(mine)),
                (positions[mine, None] * ROW_WIDTH + np.arange(width)).ravel(),
            )
        )
    if not parts:
        empty = np.empty(0, np.int64)
        return _values(empty, empty, np.empty(0), empty, empty, meta, damaged)
    time, step, value, series_of, slot = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((slot, series_of))
    rows = _values(time[order], step[order], value[order], series_of[order], slot[order], meta, damaged)
    return replace(rows, times_repeat=True)


def _spans(slots: Array, positions: Array, meta: Meta, straight: Sequence[Anchor]) -> Rows:
    good = plausible(slots["start_ns"], slots["duration_ns"], straight) & np.isin(slots["name"], list(meta.spans))
    damaged = int(np.count_nonzero(~good))
    slots, positions = slots[good], positions[good]
    known = sorted(meta.spans)
    at = np.searchsorted(np.array(known, np.int64), slots["name"].astype(np.int64))
    names = [meta.spans[number] for number in known]
    columns: Columns = {
        "name": take_texts(at, [name.name for name in names]),
        "kind": take_texts(at, [name.kind for name in names]),
        "stream": take_texts(at, [name.stream for name in names]),
        "step": integers(slots["step"], pa.int64()),
        "duration_ns": numbers(slots["duration_ns"], pa.int64()),
        "span_id": numbers(slots["span_id"], pa.int64()),
        "parent_id": integers(slots["parent_id"], pa.int64()),
        "bytes": integers(slots["bytes"], pa.int64()),
        "microbatch": integers(slots["microbatch"], pa.int32(), -1),
    }
    for column in ("dp_rank", "pp_rank", "tp_rank", "ep_rank", "cp_rank", "group_size"):
        values = np.array([-1 if getattr(name, column) is None else getattr(name, column) for name in names], np.int64)
        columns[column] = integers(values[at], pa.int32(), -1)
    for column in ("process_group", "trace_id"):
        columns[column] = take_texts(at, [getattr(name, column) for name in names])
    on_device = np.array([bool(name.device_time) for name in names], bool)[at]
    columns["device_time"] = truths([True if is_device else None for is_device in on_device.tolist()])
    columns["sequence"] = integers(slots["sequence"].astype(np.int64) - 1, pa.int64(), -1)
    return Rows(slots["start_ns"], positions, columns, damaged)


_SLOT_READERS: Final[dict[str, Callable[[Array, Array, Meta, Sequence[Anchor]], Rows]]] = {
    "steps": _steps,
    "own_steps": _steps,
    "scalars": _scalars,
    "rows": _rows,
    "spans": _spans,
    "intervals": interval_rows,
    "histograms": histogram_rows,
}


def _frame_rows(of: Contract, raw: bytes, straight: Sequence[Anchor]) -> Rows:
    """Read a lane of frames: ``s`` is the slot, ``m`` the monotonic time, the rest are columns. Few, so one by one.

    Slots are handed out without holes, so those that are missing below the highest were lost.
    """
    fields = [field for field in arrow_schema(of, segment=True) if field.name not in _ENVELOPE]
    kept: dict[int, frames.Frame] = {}
    for frame in frames.scan(raw).frames:
        slot, mono = frame.get("s"), frame.get("m")
        if isinstance(slot, int) and isinstance(mono, int) and 0 <= slot < 1 << 31 and abs(mono) < 1 << 62:
            kept[slot] = frame
    highest = max(kept, default=-1)
    for slot in [slot for slot, frame in kept.items() if not plausible(np.array([frame["m"]]), None, straight)[0]]:
        del kept[slot]
    columns = _columns(kept, fields)
    if columns is None:  # some value is not of its column's type: leave such rows out
        kept = {slot: frame for slot, frame in kept.items() if _columns({0: frame}, fields) is not None}
        columns = _columns(kept, fields) or {}
    order = sorted(kept)
    mono_ns = np.array([kept[slot]["m"] for slot in order], np.int64)
    return Rows(mono_ns, np.array(order, np.int64), columns, highest + 1 - len(order))


def _columns(kept: dict[int, frames.Frame], fields: Sequence[pa.Field]) -> Columns | None:
    """Return the columns of frames by slot; None if a value does not fit."""
    ordered = [kept[slot] for slot in sorted(kept)]
    columns: Columns = {}
    try:
        for field in fields:
            values = [frame.get(field.name) for frame in ordered]
            if not field.nullable and None in values:
                return None
            columns[field.name] = to_array(values, field.type)
    except (TypeError, ValueError, OverflowError):
        return None
    return columns


_REFUSED: Final = [pa.field(name, pa.string()) for name in (REFUSED, REFUSED_ROW)]
_ENVELOPE: Final = frozenset({"run", "attempt", "rank", "incarnation", "segment", "slot", "ts"})
