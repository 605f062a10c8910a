"""Tables: the bytes of a slot or frame file as contract-typed Arrow columns. Pure, and vectorised over slots.

Damage is judged here: a slot counts as damaged if its commit word is neither zero nor the mark, if its names are not
defined, or if its times lie where no event of the process can. Such rows are left out and counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from ranklake.capture.common.arrays import Array, chosen, numbers, plain, truths
from ranklake.capture.common.layouts import ABSENT, LAYOUT_OF_LANE, MARK, PHASES, ROW_WIDTH, STEP_FLOATS, WRITTEN
from ranklake.capture.lanes.written import slots_in
from ranklake.capture.sealing.folded import histogram_rows, interval_rows
from ranklake.capture.sealing.own_columns import own_columns
from ranklake.capture.sealing.ranges import judge
from ranklake.capture.sealing.rows import FLAGS, Columns, Rows, flag_texts, flags, integers, named, plausible
from ranklake.capture.spool import frames
from ranklake.capture.spool.clock import Anchor, wall_ns
from ranklake.capture.spool.meta import Meta
from ranklake.capture.spool.stream_files import StreamName
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.model import Contract
from ranklake.segments.segment import REFUSED, REFUSED_ROW


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


def arrow_table(rows: Rows, of: Contract, name: StreamName, segment: int, straight: Sequence[Anchor]) -> pa.Table:
    """Return the rows with their envelope under the contract's segment schema.

    Rows that an importer refused have no time, and two columns more (`ranklake.segments.segment.REFUSED`).
    """
    schema = arrow_schema(of, segment=True)
    refused = REFUSED in rows.columns
    if refused:
        schema = pa.schema([*(pa.field(field.name, field.type) for field in schema), *_REFUSED])
    count = len(rows)
    wall_us = wall_ns(rows.mono_ns, straight) // 1000 if count else rows.mono_ns
    same = np.zeros(count, np.int64)
    envelope = {
        "run": chosen(same, [name.run]),
        "attempt": numbers(same + name.attempt, pa.int32()),
        "rank": numbers(same + name.rank, pa.int32()),
        "incarnation": numbers(same + name.incarnation, pa.int64()),
        "segment": numbers(same + segment, pa.int32()),
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
        there = (slots["present"] >> np.uint32(bit)) & np.uint32(1) == 1
        found = np.where(there, flags(narrow), 0)
        columns[name] = numbers(narrow, pa.float32(), ~there | (found > 0))
        code += found * 4**bit
    columns["non_finite"] = chosen(code, _NON_FINITE, code == 0)
    if "own" in (slots.dtype.names or ()):
        columns |= own_columns(slots, columns["non_finite"], meta)
    return Rows(slots["start_ns"], positions, columns, damaged)


def _non_finitechosen() -> list[str]:
    """Return the text for each sum of flag x 4^bit over the step's floats."""
    texts = []
    for code in range(4 ** len(STEP_FLOATS)):
        found = [(name, code // 4**bit % 4) for bit, name in enumerate(STEP_FLOATS)]
        texts.append(",".join(f"{name}:{FLAGS[flag - 1]}" for name, flag in found if flag))
    return texts


_NON_FINITE: Final = _non_finitechosen()


def _values(time: Array, step: Array, value: Array, series: Array, slots: Array, meta: Meta, damaged: int) -> Rows:
    """Return rows of `scalars` from flat arrays; `series` are defined."""
    flagged = flags(value)
    judged = judge(series, value, value, meta)
    columns: Columns = {
        **named(series, meta),
        "step": integers(step, pa.int64()),
        "value": numbers(value, pa.float64(), flagged > 0),
        "value_flag": flag_texts(flagged),
        "edge_flag": judged.flags,
    }
    return Rows(time, slots, columns, damaged).without(judged.dropped)


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
    found = _values(time[order], step[order], value[order], series_of[order], slot[order], meta, damaged)
    return replace(found, times_repeat=True)


def _spans(slots: Array, positions: Array, meta: Meta, straight: Sequence[Anchor]) -> Rows:
    good = plausible(slots["start_ns"], slots["duration_ns"], straight) & np.isin(slots["name"], list(meta.spans))
    damaged = int(np.count_nonzero(~good))
    slots, positions = slots[good], positions[good]
    known = sorted(meta.spans)
    at = np.searchsorted(np.array(known, np.int64), slots["name"].astype(np.int64))
    names = [meta.spans[number] for number in known]
    columns: Columns = {
        "name": chosen(at, [name.name for name in names]),
        "kind": chosen(at, [name.kind for name in names]),
        "stream": chosen(at, [name.stream for name in names]),
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
    columns["process_group"] = chosen(at, [name.process_group for name in names])
    on_device = np.array([bool(name.device_time) for name in names], bool)[at]
    columns["device_time"] = truths([True if one else None for one in on_device.tolist()])
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
            columns[field.name] = plain(values, field.type)
    except (TypeError, ValueError, OverflowError):
        return None
    return columns


_REFUSED: Final = [pa.field(name, pa.string()) for name in (REFUSED, REFUSED_ROW)]
_ENVELOPE: Final = frozenset({"run", "attempt", "rank", "incarnation", "segment", "slot", "ts"})
