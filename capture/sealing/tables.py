"""Tables: convert the bytes of a slot or frame file to Arrow columns with the contract's types; vectorized over slots.

Slots of intervals and histograms have two copies of their state, and the newer complete copy is used. A copy's sequence
number is written last. So after a kill during a write, the other copy is the newer one; it lacks only the value whose
call had not returned.

A slot counts as damaged if its commit word is neither zero nor the mark, if its names are not defined, or if its times
are impossible for the process. Damaged rows are left out and counted.
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
    """Return the columns that an overlay adds, and ``non_finite`` with their flags. Undefined columns are left out."""
    contract = meta.contract("steps")
    columns: Columns = {}
    notes = np.full(len(slots), None, object)
    for bit, name in enumerate(meta.own_step_columns):
        if name not in contract:
            continue
        values = slots["own"][:, bit]
        present = (slots["own_present"] >> np.uint32(bit)) & np.uint32(1) == 1
        arrow_type = ARROW_TYPES[contract.column(name).type]
        if pa.types.is_floating(arrow_type):
            with np.errstate(over="ignore"):  # values above float32 become infinite, and are flagged as such
                narrow = values.astype(np.float32 if arrow_type == pa.float32() else np.float64)
            flag_codes = np.where(present, flags(narrow), 0)
            columns[name] = numbers(narrow, arrow_type, ~present | (flag_codes > 0))
            for row in np.flatnonzero(flag_codes):
                notes[row] = f"{name}:{FLAGS[flag_codes[row] - 1]}" + (f",{notes[row]}" if notes[row] else "")
        elif pa.types.is_boolean(arrow_type):
            columns[name] = truths(
                [bool(value) if is_set else None for value, is_set in zip(values, present, strict=True)]
            )
        else:
            limits = np.iinfo(np.int32 if arrow_type == pa.int32() else np.int64)
            fits = present & np.isfinite(values) & (values >= limits.min) & (values <= limits.max)
            columns[name] = numbers(np.where(fits, values, 0), arrow_type, ~fits)
    if any(notes):
        pairs = zip(non_finite.to_pylist(), notes, strict=True)
        columns["non_finite"] = texts([",".join(filter(None, pair)) or None for pair in pairs])
    return columns


_SCALES = (-10, 20)


def _newer(slots: Array, state: tuple[tuple[str, str], ...]) -> dict[str, Array]:
    """Return the fields of the newer copy in each slot."""
    is_b_newer = slots["b_sequence"] > slots["a_sequence"]
    fields: dict[str, Array] = {}
    for name, _ in state:
        a, b = slots[f"a_{name}"], slots[f"b_{name}"]
        fields[name] = np.where(is_b_newer if a.ndim == 1 else is_b_newer[:, None], b, a)
    return fields


def _sound(slots: Array, state: dict[str, Array], meta: Meta, anchors: Sequence[Anchor]) -> Array:
    with np.errstate(over="ignore"):
        duration = state["end_ns"] - slots["start_ns"]
    good: Array = plausible(slots["start_ns"], duration, anchors)
    return good & (state["sequence"] > 0) & np.isin(slots["series"], list(meta.metrics))


def _filter_state(state: dict[str, Array], good: Array) -> dict[str, Array]:
    return {name: values[good] for name, values in state.items()}


def _finite(values: Array, present: Array) -> pa.Array:
    """Return numbers as an array; NULL if they are not present, or not finite."""
    return numbers(values, pa.float64(), ~(present & np.isfinite(values)))


def _interval_ranges(slots: Array, state: dict[str, Array], finite: Array, meta: Meta) -> RangeCheck:
    """Check the minimum and maximum of intervals against ranges."""
    minimum, maximum = (np.where(finite, state[name], np.nan) for name in ("min", "max"))
    return check_ranges(slots["series"], minimum, maximum, meta)


def interval_rows(slots: Array, positions: Array, meta: Meta, anchors: Sequence[Anchor]) -> Rows:
    """Return rows of `scalars`, one per interval."""
    state = _newer(slots, INTERVAL_STATE)
    good = _sound(slots, state, meta, anchors)
    good &= (state["count"] > 0) & (state["finite"] >= 0) & (state["finite"] <= state["count"])
    damaged = int(np.count_nonzero(~good))
    slots, positions, state = slots[good], positions[good], _filter_state(state, good)
    finite = state["finite"] > 0
    other = state["count"] - state["finite"]
    range_check = _interval_ranges(slots, state, finite, meta)
    flag_codes = flags(state["last"])
    with np.errstate(invalid="ignore"):
        deviation = np.sqrt(np.maximum(state["m2"], 0.0) / np.maximum(state["finite"], 1))
    columns: Columns = {
        **series_columns(slots["series"], meta),
        "step": integers(state["step"], pa.int64()),
        "value": numbers(state["last"], pa.float64(), flag_codes > 0),
        "value_flag": flag_texts(flag_codes),
        "agg_count": numbers(state["count"], pa.int64()),
        "agg_non_finite_count": numbers(other, pa.int64(), other == 0),
        "agg_min": _finite(state["min"], finite),
        "agg_max": _finite(state["max"], finite),
        "agg_mean": _finite(state["mean"], finite),
        "agg_std": _finite(deviation, finite),
        "interval_ns": numbers(state["end_ns"] - slots["start_ns"], pa.int64()),
        "edge_flag": range_check.flags,
    }
    return Rows(state["end_ns"], positions, columns, damaged).drop(range_check.dropped)


def histogram_rows(slots: Array, positions: Array, meta: Meta, anchors: Sequence[Anchor]) -> Rows:
    """Return rows of `distributions`, one per interval."""
    state = _newer(slots, HISTOGRAM_STATE)
    good = _sound(slots, state, meta, anchors)
    good &= (state["scale"] >= _SCALES[0]) & (state["scale"] <= _SCALES[1])
    for name in ("zero_count", "nan_count", "infinite_count"):
        good &= state[name] >= 0
    for name in ("positive_counts", "negative_counts"):
        good &= (state[name] >= 0).all(axis=1)
    damaged = int(np.count_nonzero(~good))
    slots, positions, state = slots[good], positions[good], _filter_state(state, good)
    described = series_columns(slots["series"], meta)
    count = state["zero_count"] + state["positive_counts"].sum(axis=1) + state["negative_counts"].sum(axis=1)
    range_check = _interval_ranges(slots, state, count > 0, meta)
    columns: Columns = {
        "metric": described["metric"],
        "weight": described["weight"],
        "edge_flag": range_check.flags,
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
    return Rows(state["end_ns"], positions, columns, damaged).drop(range_check.dropped)


def read_rows(lane: str, raw: bytes, meta: Meta, anchors: Sequence[Anchor]) -> Rows:
    """Return the rows of a lane's file. Never raises, for any bytes."""
    if lane not in LAYOUT_OF_LANE:
        return _frame_rows(meta.contract(lane), raw, anchors)
    slots, damaged = _slots_of(lane, raw)
    positions = np.flatnonzero(slots["mark"] == MARK)
    rows = _SLOT_READERS[LAYOUT_OF_LANE[lane].lane](slots[positions], positions, meta, anchors)
    return replace(rows, damaged=rows.damaged + damaged)


def count_rows(lane: str, raw: bytes) -> int:
    """Return the number of rows in a file, without validating them; a slot of several values counts once."""
    if lane not in LAYOUT_OF_LANE:
        return len({frame.get("s") for frame in frames.scan(raw).frames})  # a row may have several frames
    return int(np.count_nonzero(_slots_of(lane, raw)[0]["mark"] == MARK))


def _slots_of(lane: str, raw: bytes) -> tuple[Array, int]:
    """Return a file's slots, and the number of damaged ones."""
    layout = LAYOUT_OF_LANE[lane]
    if lane.endswith(WRITTEN):  # records that were written one by one, not mapped slots
        return slots_in(raw, layout)
    slots = np.frombuffer(raw, layout.dtype(), len(raw) // layout.slot_bytes)
    return slots, int(np.count_nonzero((slots["mark"] != MARK) & (slots["mark"] != 0)))


def arrow_table(rows: Rows, contract: Contract, anchors: Sequence[Anchor]) -> pa.Table:
    """Return the rows in the contract's segment schema, without the columns of the stream's identity (`IDENTITY`).

    Rows that an importer refused have no time, and two more columns (`ranklake.segments.segment.REFUSED`).
    """
    schema_fields = arrow_schema(contract, segment=True)
    fields = [field for field in schema_fields if field.name not in IDENTITY or field.name in rows.columns]
    refused = REFUSED in rows.columns
    schema = pa.schema([*(pa.field(field.name, field.type) for field in fields), *_REFUSED] if refused else fields)
    count = len(rows)
    wall_us = wall_ns(rows.mono_ns, anchors) // 1000 if count else rows.mono_ns
    envelope = {
        "slot": numbers(rows.slots, pa.int32()),
        "ts": numbers(wall_us, schema.field("ts").type, np.ones(count, bool) if refused else None),
    }
    columns = envelope | rows.columns
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in schema]
    return pa.table(arrays, schema=schema)


def _steps(slots: Array, positions: Array, meta: Meta, anchors: Sequence[Anchor]) -> Rows:
    good = plausible(slots["start_ns"], slots["duration_ns"], anchors)
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
        with np.errstate(over="ignore"):  # values above float32 become infinite, and are flagged as such
            narrow = slots[name].astype(np.float32)
        present = (slots["present"] >> np.uint32(bit)) & np.uint32(1) == 1
        flag_codes = np.where(present, flags(narrow), 0)
        columns[name] = numbers(narrow, pa.float32(), ~present | (flag_codes > 0))
        code += flag_codes * 4**bit
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
    """Return rows of `scalars` from flat arrays; all `series` must be defined."""
    flag_codes = flags(value)
    range_check = check_ranges(series, value, value, meta)
    columns: Columns = {
        **series_columns(series, meta),
        "step": integers(step, pa.int64()),
        "value": numbers(value, pa.float64(), flag_codes > 0),
        "value_flag": flag_texts(flag_codes),
        "edge_flag": range_check.flags,
    }
    return Rows(time, slots, columns, damaged).drop(range_check.dropped)


def _scalars(slots: Array, positions: Array, meta: Meta, anchors: Sequence[Anchor]) -> Rows:
    good = plausible(slots["time_ns"], None, anchors) & np.isin(slots["series"], list(meta.metrics))
    valid = slots[good]
    return _values(
        valid["time_ns"],
        valid["step"],
        valid["value"],
        valid["series"],
        positions[good],
        meta,
        int(np.count_nonzero(~good)),
    )


def _rows(slots: Array, positions: Array, meta: Meta, anchors: Sequence[Anchor]) -> Rows:
    """Return one row for each value of each slot; a slot has the values of one mapping that was logged.

    The slot number of a row is the position of its slot times `ROW_WIDTH`, plus the place of the value.

    Rows are sorted by metric, so that equal times and similar values are adjacent and compress better.
    """
    good = plausible(slots["time_ns"], None, anchors)
    damaged = int(np.count_nonzero(~good))
    parts: list[tuple[Array, Array, Array, Array, Array]] = []
    for schema in np.unique(slots["schema"][good]):
        selected = np.flatnonzero(good & (slots["schema"] == schema))
        series = meta.schemas.get(int(schema), ())
        width = len(series)
        if not 0 < width <= ROW_WIDTH or not set(series) <= meta.metrics.keys():
            damaged += len(selected) * max(width, 1)
            continue
        parts.append(
            (
                np.repeat(slots["time_ns"][selected], width),
                np.repeat(slots["step"][selected], width),
                slots["values"][selected, :width].ravel(),
                np.tile(np.array(series, np.int64), len(selected)),
                (positions[selected, None] * ROW_WIDTH + np.arange(width)).ravel(),
            )
        )
    if not parts:
        empty = np.empty(0, np.int64)
        return _values(empty, empty, np.empty(0), empty, empty, meta, damaged)
    time, step, value, series_of, slot = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((slot, series_of))
    rows = _values(time[order], step[order], value[order], series_of[order], slot[order], meta, damaged)
    return replace(rows, times_repeat=True)


def _spans(slots: Array, positions: Array, meta: Meta, anchors: Sequence[Anchor]) -> Rows:
    good = plausible(slots["start_ns"], slots["duration_ns"], anchors) & np.isin(slots["name"], list(meta.spans))
    damaged = int(np.count_nonzero(~good))
    slots, positions = slots[good], positions[good]
    name_numbers = sorted(meta.spans)
    indices = np.searchsorted(np.array(name_numbers, np.int64), slots["name"].astype(np.int64))
    names = [meta.spans[number] for number in name_numbers]
    columns: Columns = {
        "name": take_texts(indices, [name.name for name in names]),
        "kind": take_texts(indices, [name.kind for name in names]),
        "stream": take_texts(indices, [name.stream for name in names]),
        "step": integers(slots["step"], pa.int64()),
        "duration_ns": numbers(slots["duration_ns"], pa.int64()),
        "span_id": numbers(slots["span_id"], pa.int64()),
        "parent_id": integers(slots["parent_id"], pa.int64()),
        "bytes": integers(slots["bytes"], pa.int64()),
        "microbatch": integers(slots["microbatch"], pa.int32(), -1),
    }
    for column in ("dp_rank", "pp_rank", "tp_rank", "ep_rank", "cp_rank", "group_size"):
        values = np.array([-1 if getattr(name, column) is None else getattr(name, column) for name in names], np.int64)
        columns[column] = integers(values[indices], pa.int32(), -1)
    for column in ("process_group", "trace_id"):
        columns[column] = take_texts(indices, [getattr(name, column) for name in names])
    on_device = np.array([bool(name.device_time) for name in names], bool)[indices]
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


def _frame_rows(contract: Contract, raw: bytes, anchors: Sequence[Anchor]) -> Rows:
    """Return the rows of a file of frames: ``s`` is the slot, ``m`` the monotonic time; other keys are columns.

    Slots are numbered without holes, so numbers missing below the highest are lost rows.
    """
    fields = [field for field in arrow_schema(contract, segment=True) if field.name not in _ENVELOPE]
    by_slot: dict[int, frames.Frame] = {}
    for frame in frames.scan(raw).frames:
        slot, mono = frame.get("s"), frame.get("m")
        if isinstance(slot, int) and isinstance(mono, int) and 0 <= slot < 1 << 31 and abs(mono) < 1 << 62:
            by_slot[slot] = frame
    highest = max(by_slot, default=-1)
    for slot in [slot for slot, frame in by_slot.items() if not plausible(np.array([frame["m"]]), None, anchors)[0]]:
        del by_slot[slot]
    columns = _columns(by_slot, fields)
    if columns is None:  # a value does not have its column's type: leave such rows out
        by_slot = {slot: frame for slot, frame in by_slot.items() if _columns({0: frame}, fields) is not None}
        columns = _columns(by_slot, fields) or {}
    order = sorted(by_slot)
    mono_ns = np.array([by_slot[slot]["m"] for slot in order], np.int64)
    return Rows(mono_ns, np.array(order, np.int64), columns, highest + 1 - len(order))


def _columns(by_slot: dict[int, frames.Frame], fields: Sequence[pa.Field]) -> Columns | None:
    """Return the columns of frames in order of slots; None if a value does not fit its column."""
    ordered = [by_slot[slot] for slot in sorted(by_slot)]
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
