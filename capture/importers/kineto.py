"""Kineto: reads the traces of torch.profiler, one file per rank, event by event, so that memory use is limited.

Every complete event becomes a span, and a ``ProfilerStep#N`` also a row of ``steps``. Device work (kernels, copies)
belongs to the step in which it began. Collectives have group, size, sequence and bytes. Traces have microseconds with
three decimals, more than a double can hold; ``start_ns`` keeps them exactly.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.source import SourceError
from ranklake.capture.importers.units import YEAR_2000_NS
from ranklake.redaction.identities import without_identities

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_EVENTS: Final = '"traceEvents"'
_BLOCK_BYTES: Final = 1 << 20
_MAX_EVENT_CHARACTERS: Final = 16 << 20
_STEP: Final = re.compile(r"ProfilerStep#(\d{1,15})")
_RANK: Final = re.compile(r"rank[-_.]?(\d{1,8})", re.IGNORECASE)
_DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_COLLECTIVES: Final = (
    re.compile(r".*(?:nccl|rccl)", re.IGNORECASE),
    re.compile(r"record_param_comms"),
    re.compile(r"c10d::"),
    re.compile(r"(?:nccl|gloo|mpi|ucc|xccl):"),
)
"""Names of collectives: kernels, and then host events that report the same collectives, the innermost first."""
_SIZES: Final = {"float": 4, "float32": 4, "float16": 2, "half": 2, "bfloat16": 2, "c10::bfloat16": 2, "c10::half": 2,
                 "double": 8, "float64": 8, "long": 8, "int64": 8, "int": 4, "int32": 4, "byte": 1, "char": 1,
                 "bool": 1, "uint8": 1, "int8": 1, "unsigned char": 1, "signed char": 1}  # fmt: skip
_MAX_ATTRIBUTES: Final = 4_000
_NEXT_EVENT: Final = re.compile(r'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|ts|pid|tid)")')
_WORLD_SIZE: Final = re.compile(r'"distributedInfo"\s*:\s*\{[^{]*?"world_size"\s*:\s*(\d{1,9})\b')
_TRACE_RANK: Final = re.compile(r'"distributedInfo"\s*:\s*\{[^{]*?"rank"\s*:\s*(\d{1,9})\b')
_MAX_NUMBER: Final = 1 << 52
_DOUBLE_DIGITS: Final = 15
"""Decimal digits that a double always holds exactly."""


def _fraction(text: str) -> float | Decimal:
    return float(text) if len(text) <= _DOUBLE_DIGITS else Decimal(text)


_DECODER: Final = json.JSONDecoder(strict=False, parse_float=_fraction)  # names may contain unescaped tabs


@dataclass
class _Trace:
    """State of reading a trace.

    Attributes
    ----------
    about
        The trace's top-level fields without the events.
    base_ns
        Offset of the trace's times, ns since 1970.
    begins, steps
        Begins of steps in ns without the offset, and their numbers and ends, in order.
    begin_ns, end_ns
        Begin of the first span and end of the last one, ns since 1970; None before the first.
    has_no_start
        Whether the trace's times have no known start.
    added_steps
        Steps that already have a row: several threads may mark the same step.
    collective_kind
        Index in `_COLLECTIVES` of the events that become collectives: the first that the trace has, because the others
        report the same collectives again.
    """

    about: dict[str, Any] = field(default_factory=dict)
    base_ns: int = 0
    begins: list[int] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    begin_ns: int | None = None
    end_ns: int | None = None
    has_no_start: bool = False
    added_steps: set[int] = field(default_factory=set)
    collective_kind: int = len(_COLLECTIVES)


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a rank's trace. Damaged events are refused.

    Raises
    ------
    SourceError
        The file has no events.
    """
    with source.first_look():
        trace = _survey(source)
    info = trace.about.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    name_rank = _RANK.search(source.name)
    rank = info.get("rank") if _is_count(info.get("rank")) else int(name_rank[1]) if name_rank else 0
    assert isinstance(rank, int)
    world_size = info.get("world_size") if _is_count(info.get("world_size")) else None
    recording.world_size = max(world_size or 1, rank + 1)
    if trace.has_no_start:
        recording.labels["times"] = "of an unknown start, taken as 2000-01-01"
    recording.facts = {"job": recording.run, "world_size": world_size, "framework": "torch", **_device(trace.about)}
    number, damage = 0, ""
    for event in _events(source, {}):
        if isinstance(event, str):
            damage = event
            recording.refuse("spans", event, "", rank=rank)
        elif not isinstance(event, dict) or not isinstance(event.get("ph"), str):
            recording.refuse("spans", "not an event of a trace", _quarantine_text(event), rank=rank)
        elif event["ph"] == "X" and event.get("cat") != "Trace":
            number += _add_span(event, trace, recording, rank, number)
    if trace.begin_ns is not None and trace.end_ns is not None:
        # begin and end of the trace for goodput; its steps may cover only a part of it
        duration_ns = trace.end_ns - trace.begin_ns
        recording.row("events", trace.end_ns, rank, event="profiler_trace", severity="info", duration_ns=duration_ns)
    source.damage = damage or None


def refuse_strangers(files: "list[Source]") -> None:
    """Raise `SourceError` if traces have different world sizes, or one rank has traces in several folders.

    A profiler writes all traces of a rank into one folder.
    """
    world_sizes: dict[int, str] = {}
    ranks: dict[int, Source] = {}
    for source in files:
        about = source.head().decode(errors="replace").partition(_EVENTS)[0]
        if world_size := _WORLD_SIZE.search(about):
            world_sizes.setdefault(int(world_size[1]), source.name)
        if rank := _TRACE_RANK.search(about):
            other = ranks.setdefault(int(rank[1]), source)
            if other.parent != source.parent:
                raise SourceError(
                    f"rank {rank[1]} has traces in several folders, which are several runs",
                    where=source.path, hint="import each folder alone, with --run NAME",
                )  # fmt: skip
    if len(world_sizes) > 1:
        sizes = " and ".join(f"{size} ({name})" for size, name in sorted(world_sizes.items()))
        raise SourceError(
            f"the traces are of several runs: their world sizes are {sizes}", where="traces",
            hint="import the files of each run alone, with --run NAME",
        )  # fmt: skip


def _survey(source: "Source") -> _Trace:
    """Read the trace once, to collect its steps, its top-level fields, and the kind of its collectives."""
    trace = _Trace()
    steps: list[tuple[int, int, int]] = []
    earliest, count = None, 0
    for event in _events(source, trace.about):
        count += not isinstance(event, str)
        if not isinstance(event, dict) or event.get("ph") != "X" or not _is_number(event.get("ts")):
            continue
        trace.collective_kind = min(trace.collective_kind, _collective_kind(event))
        begin, length = _ns(event["ts"]), _ns(event["dur"]) if _is_number(event.get("dur")) else 0
        earliest = begin if earliest is None else min(earliest, begin)
        step = _STEP.fullmatch(str(event.get("name")))
        if step and _is_number(event.get("dur")) and event.get("cat") not in _DEVICE | {"gpu_user_annotation"}:
            steps.append((begin, length, int(step[1])))
    if not count:
        raise SourceError(
            "the file has no events of a trace",
            where=source.name,
            hint="name a torch.profiler trace, .json or .json.gz",
        )
    for begin, length, number in sorted(steps):
        trace.begins.append(begin)
        trace.steps.append((number, begin + length))
    base = trace.about.get("baseTimeNanoseconds")
    trace.base_ns = base if isinstance(base, int) and not isinstance(base, bool) else 0
    if earliest is not None and trace.base_ns + earliest < YEAR_2000_NS:
        trace.base_ns, trace.has_no_start = YEAR_2000_NS, True
    return trace


def _events(source: "Source", about: dict[str, Any]) -> Iterator[Any]:
    """Yield the events, and a text in place of damaged ones; add the trace's top-level fields to `about`."""
    blocks = (block.decode(errors="replace") for block in source.blocks(_BLOCK_BYTES))
    text = next(blocks, "")
    while _EVENTS not in text and not text.lstrip().startswith("[") and len(text) < _MAX_EVENT_CHARACTERS:
        more = next(blocks, None)
        if more is None:
            return
        text += more
    head, _, text = text.partition(_EVENTS) if not text.lstrip().startswith("[") else ("{", "", text.lstrip())
    about |= _object(head.rstrip().rstrip(",") + "}")
    text = text.lstrip().removeprefix(":").lstrip().removeprefix("[")
    at = 0
    while True:
        at = _skip(text, at)
        if at < len(text) and text[at] == "]":
            tail = text[at + 1 :] + "".join(blocks)
            about |= _object("{" + tail.lstrip().removeprefix(","))
            return
        try:
            event, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            more = next(blocks, None)
            if more is None or len(text) - at > _MAX_EVENT_CHARACTERS:
                next_event = _NEXT_EVENT.search(text, at)
                yield "an event is damaged" if next_event else "the trace is cut off, or damaged from here on"
                if next_event is None:
                    return
                text, at = text[next_event.end() :] + (more or ""), 0
                continue
            text, at = text[at:] + more, 0
            continue
        if at == len(text):  # a number may continue in the next block
            more = next(blocks, "")
            text, at = more, 0
        yield event


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in ", \t\r\n":
        at += 1
    return at


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _add_span(event: dict[str, Any], trace: _Trace, recording: "ImportedRun", rank: int, number: int) -> int:
    """Add an event as a span, and return 1; 0 if it is refused."""
    ts, length, name = event.get("ts"), event.get("dur", 0), event.get("name")
    if ts is None or not (_is_number(ts) and _is_number(length) and length >= 0 and isinstance(name, str) and name):
        recording.refuse("spans", "the event has no name, time or duration", _quarantine_text(event), rank=rank)
        return 0
    args = event.get("args") if isinstance(event.get("args"), dict) else {}
    assert isinstance(args, dict)
    category = str(event.get("cat") or "")
    on_device = category.lower() in _DEVICE
    marker = _STEP.fullmatch(name) if not on_device and category != "gpu_user_annotation" else None
    step = int(marker[1]) if marker else _step_at(trace, _ns(ts))
    begin_ns = trace.base_ns + _ns(ts)
    is_collective = _collective_kind(event) == trace.collective_kind < len(_COLLECTIVES)
    stream = args.get("stream", event.get("tid"))
    kept_args = {"cat": category} | {key: value for key, value in args.items() if _is_safe_argument(key, value)}
    attributes = json.dumps(kept_args, separators=(",", ":"), default=float)
    recording.row(
        "spans", begin_ns, rank, name=_without_folders(name)[:512],
        kind="step" if marker else "collective" if is_collective else "other",
        step=step, duration_ns=_ns(length), start_ns=begin_ns, span_id=number,
        stream=f"{'stream' if on_device else 'thread'} {stream}"[:256], device_time=on_device or None,
        attributes=attributes if len(attributes) <= _MAX_ATTRIBUTES else json.dumps({"cat": category}),
        **_collective(args),
    )  # fmt: skip
    end_ns = begin_ns + _ns(length)
    trace.begin_ns = begin_ns if trace.begin_ns is None else min(trace.begin_ns, begin_ns)
    trace.end_ns = end_ns if trace.end_ns is None else max(trace.end_ns, end_ns)
    if marker and int(marker[1]) not in trace.added_steps:
        trace.added_steps.add(int(marker[1]))
        recording.step(int(marker[1]), float(length) / 1e6, begin_ns, rank)
    return 1


def _collective_kind(event: dict[str, Any]) -> int:
    """Return the index in `_COLLECTIVES` that an event's name matches; their number if it matches none."""
    name, on_device = str(event.get("name")), str(event.get("cat") or "").lower() in _DEVICE
    names = enumerate(_COLLECTIVES[:1] if on_device else _COLLECTIVES)
    return next((at for at, pattern in names if on_device == (at == 0) and pattern.match(name)), len(_COLLECTIVES))


@lru_cache(maxsize=65_536)
def _without_folders(name: str) -> str:
    """Return the name of an event without the home folder in a file's path."""
    return without_identities(name) if "/" in name or "\\" in name else name


def _is_safe_argument(key: str, value: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether to keep an argument: numbers, and texts that the profiler itself writes (`_TEXTS`).

    Other texts come from the user's program, such as stacks, files, settings and the environment.
    """
    if key in _COLUMN_ARGUMENTS:
        return False
    if isinstance(value, list):
        return all(_is_safe_argument(key, part) for part in value)
    return (
        value is None or isinstance(value, bool | int | float | Decimal) or (key in _TEXTS and isinstance(value, str))
    )


def _quarantine_text(event: Any) -> str:  # noqa: ANN401 - JSON
    """Return the basic fields of a refused event as JSON for quarantine, without its arguments."""
    fields = event if isinstance(event, dict) else {}
    basic = {key: fields[key] for key in ("ph", "cat", "name", "ts", "dur") if key in fields}
    plain = {key: value for key, value in basic.items() if not isinstance(value, dict | list)}
    redacted = {key: _without_folders(value) if isinstance(value, str) else value for key, value in plain.items()}
    return json.dumps(redacted, default=float)


def _collective(args: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a collective or a copy: bytes, group, its size, sequence; NULL if unknown."""
    count, size = args.get("In msg nelems"), _SIZES.get(str(args.get("dtype", "")).lower())
    size_bytes = count * size if _is_count(count) and size and isinstance(count, int) else args.get("bytes")
    group = args.get("Process Group Name")
    members, sequence = args.get("Group size"), args.get("Seq", args.get("seq"))
    return {
        "bytes": size_bytes if _is_count(size_bytes) else None,
        "process_group": str(group)[:256] if group not in {None, ""} else None,
        "group_size": members if _is_count(members) else None,
        "sequence": sequence if _is_count(sequence) else None,
    }


def _ns(microseconds: float | Decimal) -> int:
    """Convert a time of a trace from µs to ns."""
    return round(microseconds * 1000)


def _step_at(trace: _Trace, at_ns: int) -> int | None:
    """Return the step at a time without the offset; None outside of steps."""
    index = bisect_right(trace.begins, at_ns) - 1
    if index < 0 or at_ns >= trace.steps[index][1]:
        return None
    return trace.steps[index][0]


def _device(about: dict[str, Any]) -> dict[str, Any]:
    devices = about.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    name = first.get("name")
    return {"device_name": str(name), "device_type": "cuda"} if name else {}


def _is_number(value: Any) -> bool:  # noqa: ANN401 - JSON
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool) and abs(float(value)) < _MAX_NUMBER


def _is_count(value: Any) -> bool:  # noqa: ANN401 - JSON
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


_TEXTS: Final = frozenset({
    "kernel", "kernel_name", "kernel_backend", "kind", "dtype", "Input type", "Concrete Inputs", "Collective name",
    "Process Group Description", "Process Group Ranks", "scope", "src", "dst", "ptr", "bytes",
})  # fmt: skip
_COLUMN_ARGUMENTS: Final = frozenset({"stream", "bytes", "Process Group Name", "Group size", "Seq", "seq"})
FORMAT: Final = Format(
    summary="torch.profiler traces, .json or .json.gz, one file a rank",
    recognises="JSON with traceEvents",
    read=read,
    table="spans",
    mark=re.compile(rb"\"traceEvents\"|\"schemaVersion\"|\A\s*\[\s*\{[\s\S]{0,4096}?\"ph\"\s*:"),
    own_run=False,
    refuse_strangers=refuse_strangers,
)
