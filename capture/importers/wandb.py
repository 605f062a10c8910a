"""wandb: reads the ``.wandb`` file of an offline run.

The file has a header of seven bytes, and then the form of a LevelDB log (doc/log_format.md; blocks of 32 KiB) with
CRC-32 instead of CRC-32C. Records are protobuf messages (wandb/proto/wandb_internal.proto).
"""

import json
import math
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final

from ranklake.capture.common.values import redacted_name
from ranklake.capture.importers.formats import LONGEST_NAME, Format
from ranklake.capture.importers.run_files import annotate
from ranklake.capture.importers.source import SourceError
from ranklake.capture.importers.wandb_values import Fetch, add_object, file_below, number, split_objects
from ranklake.capture.importers.wire import MOST_BYTES, DamagedError, Fields, fields, message, text
from ranklake.redaction.redact import redact_names, redact_uri

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_IDENTITY: Final = b":W&B\xe1\xbe"
_HEADER, _BLOCK, _RECORD = 7, 32_768, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _SUMMARY, _CONFIG, _STATS, _RUN, _EXIT = 2, 3, 5, 7, 17, 18
_KEY, _NESTED, _JSON = 1, 2, 16
_SUMMARY_KEY = 1
_MAX_S: Final = 1 << 32


@dataclass
class _Run:
    """State of reading a run. Times are seconds since 1970.

    Attributes
    ----------
    fetch
        Returns the bytes of a logged file, from the folder ``files`` next to the run's file.
    names
        Names of the values in the history.
    others
        Number of values that are not imported.
    """

    fetch: Fetch
    start_s: float | None = None
    last_s: float | None = None
    config: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    note: str = ""
    tags: list[str] = field(default_factory=list)
    others: int = 0
    exit_code: int | None = None
    names: set[str] = field(default_factory=set)
    summary: dict[str, Any] = field(default_factory=dict)


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a run. Damaged records are refused; reading continues with the next block.

    Raises
    ------
    SourceError
        The file does not have wandb's header.
    """
    run = _Run(partial(file_below, source.fs, f"{source.parent}/files"))
    with source.binary_stream() as file:
        if not file.read(_HEADER).startswith(_IDENTITY):
            raise SourceError(
                "not a file of wandb", where=source.name, hint="name the run's folder, or its run-….wandb"
            )
        for raw in _records(file):
            try:
                if isinstance(raw, str):
                    raise DamagedError(raw)  # noqa: TRY301 - refused like any other
                _read_record(fields(raw), run, recording)
            except DamagedError as error:
                recording.refuse("scalars", str(error), "")
    _add_summary(run, recording)
    if run.last_s is not None and run.exit_code is not None:
        severity = "error" if run.exit_code else "info"
        about = json.dumps({"exit_code": run.exit_code})
        recording.row("events", _ns(run.last_s), event="run_end", severity=severity, attributes=about)
    recording.not_imported["values that are not numbers"] += run.others
    if (at_s := run.start_s or run.last_s) is not None:
        annotate(recording, _ns(at_s), name=run.title, note=run.note, tags=run.tags)
    recording.facts = {"job": recording.run, "world_size": None, **run.facts}
    if run.config:
        recording.facts["config"] = json.dumps(run.config, sort_keys=True)


def _records(file: IO[bytes]) -> Iterator[bytes | str]:
    """Yield complete records, and the reason in place of a damaged record, whose block is skipped."""
    parts: list[bytes] = []
    block, at = file.read(_BLOCK - _HEADER), 0
    while block:
        if len(block) - at < _RECORD or not any(block[at : at + _RECORD]):
            cut = len(block) - at if any(block[at:]) else 0
            block, at = file.read(_BLOCK), 0
            if cut and not block:
                yield "a record is cut off"
            continue
        checksum, size, kind = struct.unpack_from("<IHB", block, at)
        body = block[at + _RECORD : at + _RECORD + size]
        if len(body) < size or kind not in {_FULL, _FIRST, _MIDDLE, _LAST} or checksum not in _sums(kind, body):
            yield "a record is cut off" if len(body) < size else "a record is damaged"
            parts, block, at = [], file.read(_BLOCK), 0
            continue
        at += _RECORD + size
        if kind in {_FULL, _FIRST}:
            parts = [body]
        elif parts:
            parts.append(body)
        if sum(map(len, parts)) > MOST_BYTES:
            parts = []
        if kind in {_FULL, _LAST} and parts:
            yield b"".join(parts)
            parts = []
    if parts:
        yield "a record is cut off"


def _sums(kind: int, body: bytes) -> tuple[int, int]:
    """Return the checksum without a mask, as wandb writes it, and with LevelDB's mask."""
    crc = zlib.crc32(body, zlib.crc32(bytes([kind])))
    return crc, (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _read_record(record: Fields, run: _Run, recording: "ImportedRun") -> None:
    if _HISTORY in record:
        _add_history(message(record, _HISTORY), run, recording)
    elif _STATS in record:
        stats = message(record, _STATS)
        at = _timestamp(message(stats, 2))
        for name, value in _numbers(dict(_values(stats, 3)), run):
            if at is not None:
                recording.unregistered(f"system/{name}", value, _ns(at))
    elif _SUMMARY in record:
        summary = message(record, _SUMMARY)
        run.summary |= {name: value for name, value in _values(summary, 1) if name}
        for raw in summary.get(2, []):
            run.summary.pop(text(fields(raw) if isinstance(raw, bytes) else {}, _SUMMARY_KEY), None)
    elif _CONFIG in record:
        _read_config(message(record, _CONFIG), run)
    elif _RUN in record:
        _read_run(message(record, _RUN), run, recording)
    elif _EXIT in record:
        code = message(record, _EXIT).get(1, [0])[-1]
        run.exit_code = code if isinstance(code, int) and code < 1 << 31 else 1


def _add_history(history: Fields, run: _Run, recording: "ImportedRun") -> None:
    plain, objects = split_objects(dict(_values(history, 1)))
    values = dict(_numbers(plain, run))
    run.names.update(values, objects)
    at, runtime_s = values.pop("_timestamp", None), values.pop("_runtime", None)
    if at is None and runtime_s is not None and run.start_s is not None:
        at = run.start_s + runtime_s
    raw_step = values.pop("_step", None)
    if raw_step is None:
        counter = message(history, 2).get(1, [0])[-1]
        raw_step = float(counter) if isinstance(counter, int) else 0.0
    if at is None or not (math.isfinite(at) and 0 < at < _MAX_S):
        recording.refuse("scalars", "the history's row has no time", json.dumps(values))
        return
    run.last_s = at if run.last_s is None else max(run.last_s, at)
    step = int(raw_step) if math.isfinite(raw_step) and 0 <= raw_step < 1 << 62 else None
    for name, value in values.items():
        recording.unregistered(name, value, _ns(at), step=step)
    for name, item in objects.items():
        run.others += not (name and add_object(recording, name, item, _ns(at), step, run.fetch))


def _add_summary(run: _Run, recording: "ImportedRun") -> None:
    """Add values of the summary whose names are in no row of the history."""
    at = run.summary.get("_timestamp")
    if not (isinstance(at, int | float) and math.isfinite(at) and 0 < at < _MAX_S):
        at = None
    at = at or run.last_s or run.start_s
    for name, raw_value in sorted(split_objects(run.summary)[0].items()):
        if name in run.names or name.startswith("_"):
            continue
        value = number(raw_value)
        if value is None or len(name) > LONGEST_NAME:
            run.others += 1
        elif at is None:
            recording.refuse("scalars", "the summary's value has no time", json.dumps({name: raw_value}))
        else:
            run.last_s = at if run.last_s is None else max(run.last_s, at)
            recording.unregistered(name, value, _ns(at))


def _numbers(values: Mapping[str, Any], run: _Run) -> Iterator[tuple[str, float]]:
    """Yield names and numbers, and count other values in `run.others`."""
    for name, item in values.items():
        value = number(item)
        if value is not None and 0 < len(name) <= LONGEST_NAME:
            yield name, value
        else:
            run.others += 1


def _values(parent: Fields, field_number: int) -> Iterator[tuple[str, Any]]:
    """Yield name and JSON value of each item of a repeated field."""
    for raw in parent.get(field_number, []):
        item = fields(raw) if isinstance(raw, bytes) else {}
        nested = [part.decode(errors="replace") for part in item.get(_NESTED, []) if isinstance(part, bytes)]
        try:
            value = json.loads(text(item, _JSON) or "null")
        except (ValueError, RecursionError):
            value = None
        yield text(item, _KEY) or ".".join(nested), value


def _read_config(config: Fields, run: _Run) -> None:
    for name, value in _values(config, 1):
        if name and not name.startswith("_wandb"):
            try:
                redacted = redact_names({name: value})
                json.dumps(redacted)
                run.config |= redacted
            except RecursionError:  # nested too deeply
                run.others += 1


def _read_run(about: Fields, run: _Run, recording: "ImportedRun") -> None:
    run.start_s = _timestamp(message(about, 17)) or run.start_s
    _read_config(message(about, 4), run)
    run.title, run.note = text(about, 8) or run.title, text(about, 9) or run.note
    run.tags = [raw.decode(errors="replace") for raw in about.get(10, []) if isinstance(raw, bytes)] or run.tags
    for label, field_number in (("tracker_id", 1), ("tracker_group", 6), ("sweep", 12)):
        if value := text(about, field_number):
            recording.labels[label] = redacted_name(value, LONGEST_NAME)
            recording.labels |= {"sweep_by": "wandb"} if label == "sweep" else {}
    git = message(about, 21)
    facts = {
        "job": text(about, 3) or None,
        "host": text(about, 13) or None,
        "git_commit": text(git, 2) or None,
        "git_remote": redact_uri(text(git, 1)) or None,
    }
    run.facts |= {name: value for name, value in facts.items() if value}


def _timestamp(value: Fields) -> float | None:
    seconds, nanos = value.get(1, [0])[-1], value.get(2, [0])[-1]
    if not isinstance(seconds, int) or not isinstance(nanos, int) or not 0 < seconds < _MAX_S:
        return None
    return seconds + nanos / 1e9


def _ns(seconds: float) -> int:
    return round(seconds * 1e6) * 1000


FORMAT: Final = Format(
    summary="offline runs of wandb, .wandb",
    recognises="records behind :W&B",
    read=read,
    table="scalars",
    mark=re.compile(rb"\A:W&B"),
    inside="**/*.wandb",
)
