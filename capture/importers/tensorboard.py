"""TensorBoard: event files (``events.out.tfevents.*``), whose scalars become scalars.

Sources: tensorflow/core/util/event.proto and summary.proto for the fields, tensor.proto for scalars that new writers
keep as tensors. Histograms, images, audio, texts and graphs are none of ours: the run's labels count them.
"""

import math
import re
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.formats import LONGEST_NAME, Format
from ranklake.capture.importers.units import YEAR_2000_NS
from ranklake.capture.importers.wire import DamagedError, Fields, double, fields, message, records, single, text

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_WALL_TIME, _STEP, _VERSION, _SUMMARY = 1, 2, 3, 5
_VALUE, _TAG, _SIMPLE, _TENSOR = 1, 1, 2, 8
_TYPES: Final = {1: (5, "<f"), 2: (6, "<d"), 3: (7, "<i"), 9: (10, "<q")}
"""Of a tensor: its type, the field of its values, and how these are packed."""
_LARGEST_S: Final = 1 << 32


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import an event file; records that cannot be read are refused, and end it where lengths are damaged."""
    others, count = 0, 0
    with source.binary_stream() as file:
        try:
            for raw in records(file):
                count += 1
                others += _event(raw, recording, count)
        except DamagedError as error:
            source.damage = f"{error}, behind {count:,} whole ones"
            recording.refuse("scalars", str(error), "")
    if others:
        recording.labels["not_imported"] = f"{others} values that are no scalars"
    recording.facts = {"job": recording.run, "world_size": None}


def _event(raw: bytes, recording: "ImportedRun", number: int) -> int:
    """Add an event's scalars; return how many values of other kinds it had."""
    others = 0
    try:
        event = fields(raw)
        at_s = double(event.get(_WALL_TIME, [0])[-1])
        step = event.get(_STEP, [0])[-1]
        values = message(event, _SUMMARY).get(_VALUE, [])
        for value in values:
            parts = fields(value) if isinstance(value, bytes) else {}
            scalar, tag = _scalar(parts), text(parts, _TAG)
            if scalar is None or not tag:
                others += 1
            elif not (math.isfinite(at_s) and YEAR_2000_NS / 1e9 <= at_s < _LARGEST_S and len(tag) <= LONGEST_NAME):
                recording.refuse("scalars", "an event without a time, or with a name that is too long", tag, number)
            else:
                known: dict[str, Any] = {"step": step} if isinstance(step, int) and step < 1 << 63 else {}
                recording.unregistered(tag, scalar, round(at_s * 1e6) * 1000, **known)
    except DamagedError as error:
        recording.refuse("scalars", f"an event that cannot be read: {error}", "", number)
    return others


def _scalar(value: Fields) -> float | None:
    """Return a summary value's number: plain, or a tensor of one."""
    if _SIMPLE in value:
        return _number_of(single, value[_SIMPLE][-1])
    return _scalar_of(message(value, _TENSOR)) if _TENSOR in value else None


def _scalar_of(tensor: Fields) -> float | None:
    """Return the number of a tensor that holds one."""
    kind = tensor.get(1, [0])[-1]
    if not isinstance(kind, int) or kind not in _TYPES or message(tensor, 2).get(2):
        return None
    number, form = _TYPES[kind]
    raw = tensor.get(4, tensor.get(number, [b""]))
    packed = raw[-1] if len(raw) == 1 else b""
    if isinstance(packed, bytes):
        return float(struct.unpack(form, packed)[0]) if len(packed) == struct.calcsize(form) else None
    return _number_of({1: single, 2: double}.get(kind, _to_signed), packed)


def _number_of(read: Callable[[int | bytes], float], field: int | bytes) -> float | None:
    """Return a field as a number; None where it is of another wire type than its name has."""
    try:
        return read(field) if isinstance(field, int) else None
    except OverflowError:
        return None


def _to_signed(bits: int | bytes) -> float:
    return float(int(bits) - (1 << 64) if int(bits) >= 1 << 63 else int(bits))


FORMAT: Final = Format(
    summary="event files of TensorBoard",
    recognises="records of brain.Event",
    read=read,
    table="scalars",
    mark=re.compile(rb"\A[\s\S]{8,24}brain\.Event:"),
    own_run=False,
    inside="**/*tfevents*",
    by_folder=True,
)
