"""TensorBoard: reads scalars, images, texts, histograms and hyperparameters of event files (``events.out.tfevents.*``).

Sources: tensorflow/core/util/event.proto and summary.proto for the fields, tensor.proto for the tensors of new writers,
tensorboard/plugins/*/metadata.py for their meaning, hparams/plugin_data.proto for hyperparameters. The first value of a
tag names its plugin. Audio, meshes and curves are not imported, but counted in the run's labels.
"""

import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ranklake.capture.assets.media_value import IMAGE, TEXT
from ranklake.capture.common.arrays import Array
from ranklake.capture.common.values import json_text
from ranklake.capture.histogram import histogram_of_bins
from ranklake.capture.importers.formats import LONGEST_NAME, Format
from ranklake.capture.importers.units import YEAR_2000_NS
from ranklake.capture.importers.wire import DamagedError, Fields, double, fields, message, records, single, text
from ranklake.redaction.redact import redact_names

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_WALL_TIME, _STEP, _VERSION, _SUMMARY = 1, 2, 3, 5
_VALUE, _TAG, _SIMPLE, _IMAGE, _HISTOGRAM, _AUDIO, _TENSOR, _METADATA = 1, 1, 2, 4, 5, 6, 8, 9
_PLUGIN, _NAME, _CONTENT = 1, 1, 2
_ENCODED: Final = 4
_LIMITS, _COUNTS = 6, 7
_SESSION_START, _HPARAMS = 3, 1
_HEAD_OF_IMAGES: Final = 2
"""Number of a tensor's texts before its images: width and height."""
_BIN: Final = 3
"""Numbers of a bin in a tensor: lower bound, upper bound, count."""
_MAX_S: Final = 1 << 32


@dataclass
class _EventFile:
    """State of reading a file: the plugin of each tag, hyperparameters, and counts of values not imported by kind."""

    plugins: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import an event file. Unreadable records are refused; reading ends at a damaged length."""
    file, count = _EventFile(), 0
    with source.binary_stream() as stream:
        try:
            for raw in records(stream):
                count += 1
                try:
                    _event(raw, file, recording, count)
                except DamagedError as error:
                    recording.refuse("scalars", f"the event cannot be read: {error}", "", count)
        except DamagedError as error:
            source.damage = f"{error}, after {count:,} readable records"
            recording.refuse("scalars", str(error), "")
    recording.not_imported.update(file.others)
    recording.facts = {"job": recording.run, "world_size": None}
    if file.config:
        recording.has_run_row = True  # even if an earlier file of the folder made a row without settings
        recording.facts["config"] = json_text(redact_names(file.config))


def _event(raw: bytes, file: _EventFile, recording: "ImportedRun", number: int) -> None:
    event = fields(raw)
    at_s = double(event.get(_WALL_TIME, [0])[-1])
    step = event.get(_STEP, [0])[-1]
    step_column: dict[str, Any] = {"step": step} if isinstance(step, int) and step < 1 << 63 else {}
    is_timed = math.isfinite(at_s) and YEAR_2000_NS / 1e9 <= at_s < _MAX_S
    for raw_value in message(event, _SUMMARY).get(_VALUE, []):
        value = fields(raw_value) if isinstance(raw_value, bytes) else {}
        tag = text(value, _TAG)
        plugin = message(message(value, _METADATA), _PLUGIN)
        if name := text(plugin, _NAME):
            file.plugins[tag] = name
        kind = file.plugins.get(tag, "")
        if kind == "hparams":
            file.config |= _settings(plugin)
        elif not (is_timed and len(tag) <= LONGEST_NAME):
            recording.refuse("scalars", "the event has no time, or its name is too long", tag, number)
        elif skipped_kind := _add(kind, tag, value, recording, round(at_s * 1e6), step_column):
            file.others[skipped_kind] += 1


def _add(kind: str, tag: str, value: Fields, recording: "ImportedRun", at_us: int, step_column: dict[str, Any]) -> str:
    """Add a value; if it is not imported, return its kind in the plural, else an empty text."""
    if not tag:
        return "values without a name"
    at_ns = at_us * 1000
    tensor = message(value, _TENSOR)
    scalar = number_of(single, value[_SIMPLE][-1]) if _SIMPLE in value else scalar_of(tensor)
    if scalar is not None and kind in {"", "scalars"}:
        recording.unregistered(tag, scalar, at_ns, **step_column)
        return ""
    if _IMAGE in value or kind == "images":
        images = list(_images(value, tensor))
        results = [
            recording.media(tag if not index else f"{tag}/{index}", raw, IMAGE, at_ns, **step_column)
            for index, raw in enumerate(images)
        ]
        return "" if results and all(results) else "images that are no PNG or JPEG, or too large"
    if kind == "text":
        words = "\n".join(texts_of(tensor))
        is_added = recording.media(tag.removesuffix("/text_summary"), words, TEXT, at_ns, **step_column)
        return "" if is_added else "texts that are too long"
    if _HISTOGRAM in value or kind == "histograms":
        return _add_histogram(tag, value, tensor, recording, at_ns, step_column)
    return "audio" if _AUDIO in value or kind == "audio" else "values of other kinds"


def _images(value: Fields, tensor: Fields) -> Iterator[bytes]:
    """Yield the encoded images of a value: a single image, or the images of a tensor."""
    raws = message(value, _IMAGE).get(_ENCODED, []) if _IMAGE in value else tensor.get(8, [])[_HEAD_OF_IMAGES:]
    yield from (raw for raw in raws if isinstance(raw, bytes))


def _add_histogram(
    tag: str, value: Fields, tensor: Fields, recording: "ImportedRun", at_ns: int, step_column: dict[str, Any]
) -> str:
    stated: dict[str, float | None] = {"sum": None}
    if _HISTOGRAM in value:
        proto = message(value, _HISTOGRAM)
        least, most, _, total = (double(proto.get(number, [0])[-1]) for number in (1, 2, 3, 4))
        highs, counts = doubles(proto, _LIMITS), doubles(proto, _COUNTS)
        lows = np.concatenate(([-np.inf], highs[:-1]))
        stated = {"sum": total if math.isfinite(total) else None, "min": least, "max": most}
        lows, highs = (np.clip(bounds, least, most) for bounds in (lows, highs))
    else:
        shape, bins = shape_of(tensor), tensor_array(tensor)
        if len(shape) != 2 or shape[1] != _BIN or len(bins) != shape[0] * _BIN:  # noqa: PLR2004 - rows of bins
            return "histograms that are empty, or cannot be read"
        lows, highs, counts = bins.reshape(-1, _BIN).T
    histogram = histogram_of_bins(lows, highs, counts)
    if histogram is None:
        return "histograms that are empty, or cannot be read"
    recording.distribution(tag, histogram, at_ns, **step_column, **stated)
    return ""


def _settings(plugin: Fields) -> dict[str, Any]:
    """Return the hyperparameters at a session's start: values of protobuf's Struct by name."""
    start = message(message(plugin, _CONTENT), _SESSION_START)
    config: dict[str, Any] = {}
    for raw in start.get(_HPARAMS, []):
        entry = fields(raw) if isinstance(raw, bytes) else {}
        value = message(entry, 2)
        if name := text(entry, 1):
            config[name] = _setting(value)
    return config


def _setting(value: Fields) -> Any:  # noqa: ANN401 - JSON
    if 2 in value:  # noqa: PLR2004 - number_value
        number = double(value[2][-1])
        return int(number) if number.is_integer() and abs(number) < 1 << 53 else number
    if 4 in value:  # noqa: PLR2004 - bool_value
        return bool(value[4][-1])
    return text(value, 3) if 3 in value else None  # noqa: PLR2004 - string_value


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


_TYPE, _SHAPE, _TENSOR_CONTENT, _TEXTS = 1, 2, 4, 8
_DIMENSION, _SIZE = 2, 1
_FORMS: Final = {1: (5, "<f"), 2: (6, "<d"), 3: (7, "<i"), 9: (10, "<q")}
"""Number of the field with a tensor's values, and their `struct` format, by the tensor's type."""
_FLOATS: Final = frozenset({1, 2})


def shape_of(tensor: Fields) -> list[int]:
    """Return the sizes of a tensor's dimensions; empty for a scalar."""
    dimensions = [raw for raw in message(tensor, _SHAPE).get(_DIMENSION, []) if isinstance(raw, bytes)]
    sizes = [fields(raw).get(_SIZE, [0])[-1] for raw in dimensions]
    return [size for size in sizes if isinstance(size, int)]


def tensor_array(tensor: Fields) -> Array:
    """Return the numbers of a tensor of floats as a one-dimensional array of float64; empty for other types."""
    kind = tensor.get(_TYPE, [0])[-1]
    if kind not in _FLOATS or not isinstance(kind, int):
        return np.zeros(0)
    number, form = _FORMS[kind]
    raw = b"".join(part for part in tensor.get(_TENSOR_CONTENT, tensor.get(number, [])) if isinstance(part, bytes))
    width = struct.calcsize(form)
    return np.frombuffer(raw[: len(raw) // width * width], form).astype(np.float64)


def texts_of(tensor: Fields) -> list[str]:
    """Return the texts of a tensor of strings."""
    return [raw.decode(errors="replace") for raw in tensor.get(_TEXTS, []) if isinstance(raw, bytes)]


def doubles(parent: Fields, number: int) -> Array:
    """Return the values of a repeated field of doubles by its number, whether packed or not."""
    packed = [raw if isinstance(raw, bytes) else raw.to_bytes(8, "little") for raw in parent.get(number, [])]
    raw = b"".join(packed)
    return np.frombuffer(raw[: len(raw) // 8 * 8], "<d")


def scalar_of(tensor: Fields) -> float | None:
    """Return the number in a scalar tensor; None for other tensors."""
    kind = tensor.get(_TYPE, [0])[-1]
    if not isinstance(kind, int) or kind not in _FORMS or message(tensor, _SHAPE).get(_DIMENSION):
        return None
    number, form = _FORMS[kind]
    raw = tensor.get(_TENSOR_CONTENT, tensor.get(number, [b""]))
    packed = raw[-1] if len(raw) == 1 else b""
    if isinstance(packed, bytes):
        return float(struct.unpack(form, packed)[0]) if len(packed) == struct.calcsize(form) else None
    return number_of({1: single, 2: double}.get(kind, _to_signed), packed)


def number_of(read: Callable[[int | bytes], float], field: int | bytes) -> float | None:
    """Decode a field with `read`; None if it has the wrong wire type, or overflows."""
    try:
        return read(field) if isinstance(field, int) else None
    except OverflowError:
        return None


def _to_signed(bits: int | bytes) -> float:
    return float(int(bits) - (1 << 64) if int(bits) >= 1 << 63 else int(bits))
