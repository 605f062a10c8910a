"""Traces of torch.profiler (kineto): one file per rank, read event by event, whatever its size.

Every complete event becomes a span; a ``ProfilerStep#N`` is a row of ``steps``, too. Device work (kernels, copies) is
of the step in which it began, and says what the profiler knows of a collective: its group, size, sequence and bytes.
Times are kept to the nanosecond (``start_ns``): traces tell microseconds with three decimals, more than a double holds.
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
_CHARACTERS: Final = 1 << 20
_LONGEST_EVENT: Final = 16 << 20
_STEP: Final = re.compile(r"ProfilerStep#(\d{1,15})")
_RANK: Final = re.compile(r"rank[-_.]?(\d{1,8})", re.IGNORECASE)
_DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_COLLECTIVES: Final = (
    re.compile(r".*(?:nccl|rccl)", re.IGNORECASE),
    re.compile(r"record_param_comms"),
    re.compile(r"c10d::"),
    re.compile(r"(?:nccl|gloo|mpi|ucc|xccl):"),
)
"""Names of the kernels of collectives, and of what tells the same collectives on the host, from the inside."""
_SIZES: Final = {"float": 4, "float32": 4, "float16": 2, "half": 2, "bfloat16": 2, "c10::bfloat16": 2, "c10::half": 2,
                 "double": 8, "float64": 8, "long": 8, "int64": 8, "int": 4, "int32": 4, "byte": 1, "char": 1,
                 "bool": 1, "uint8": 1, "int8": 1, "unsigned char": 1, "signed char": 1}  # fmt: skip
_ATTRIBUTES: Final = 4_000
_NEXT: Final = re.compile(r'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|ts|pid|tid)")')
_WORLD_SIZE: Final = re.compile(r'"distributedInfo"\s*:\s*\{[^{]*?"world_size"\s*:\s*(\d{1,9})\b')
_OWN_RANK: Final = re.compile(r'"distributedInfo"\s*:\s*\{[^{]*?"rank"\s*:\s*(\d{1,9})\b')
_LARGEST: Final = 1 << 52
_DIGITS: Final = 15
"""Digits of a number that a double holds for certain."""


def _fraction(text: str) -> float | Decimal:
    return float(text) if len(text) <= _DIGITS else Decimal(text)


_DECODER: Final = json.JSONDecoder(strict=False, parse_float=_fraction)  # names may hold tabs as they are


@dataclass
class _Trace:
    """What a trace says of itself.

    Attributes
    ----------
    about
        Its top level, without the events.
    base_ns
        What its times count from.
    begins, steps
        When steps began, ns as the trace counts, and their numbers and ends, in order.
    begin_ns, end_ns
        When the first event that is a span began, and the last one ended, ns since 1970; None where there is none.
    rows
        Steps that are rows already: several threads may mark one.
    collectives
        Which of `_COLLECTIVES` count: the first that there are, for annotations and calls report the same ones again.
    """

    about: dict[str, Any] = field(default_factory=dict)
    base_ns: int = 0
    begins: list[int] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    begin_ns: int | None = None
    end_ns: int | None = None
    timeless: bool = False
    rows: set[int] = field(default_factory=set)
    collectives: int = len(_COLLECTIVES)


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a rank's trace; what is no whole event is refused.

    Raises
    ------
    SourceError
        There are no events in the file.
    """
    with source.first_look():
        trace = _first_look(source)
    info = trace.about.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    named = _RANK.search(source.name)
    rank = info.get("rank") if _is_count(info.get("rank")) else int(named[1]) if named else 0
    assert isinstance(rank, int)
    world = info.get("world_size") if _is_count(info.get("world_size")) else None
    recording.world_size = max(world or 1, rank + 1)
    if trace.timeless:
        recording.labels["times"] = "of an unknown start, taken as 2000-01-01"
    recording.facts = {"job": recording.run, "world_size": world, "framework": "torch", **_device(trace.about)}
    number, damage = 0, ""
    for event in _events(source, {}):
        if isinstance(event, str):
            damage = event
            recording.refuse("spans", event, "", rank=rank)
        elif not isinstance(event, dict) or not isinstance(event.get("ph"), str):
            recording.refuse("spans", "no event of a trace", _quarantine_text(event), rank=rank)
        elif event["ph"] == "X" and event.get("cat") != "Trace":
            number += _span(event, trace, recording, rank, number)
    if trace.begin_ns is not None and trace.end_ns is not None:
        # what goodput takes for when the trace began and ended: its steps, if it has any, are only a part of it
        lasted = trace.end_ns - trace.begin_ns
        recording.row("events", trace.end_ns, rank, event="profiler_trace", severity="info", duration_ns=lasted)
    source.damage = damage or None


def refuse_strangers(files: "list[Source]") -> None:
    """Raise `SourceError` where traces that are to be one run say that they are not: of worlds of different sizes.

    So do traces of one rank in different folders: a profiler writes a rank's into one.
    """
    worlds: dict[int, str] = {}
    ranks: dict[int, Source] = {}
    for source in files:
        about = source.head().decode(errors="replace").partition(_EVENTS)[0]
        if world := _WORLD_SIZE.search(about):
            worlds.setdefault(int(world[1]), source.name)
        if rank := _OWN_RANK.search(about):
            other = ranks.setdefault(int(rank[1]), source)
            if other.parent != source.parent:
                raise SourceError(
                    f"rank {rank[1]} has traces in several folders, and would be two runs in one",
                    where=source.path, hint="import each folder into a run of its own with --run",
                )  # fmt: skip
    if len(worlds) > 1:
        sizes = " and ".join(f"{size} ({name})" for size, name in sorted(worlds.items()))
        raise SourceError(
            f"not one run: its ranks report world sizes {sizes}", where="traces",
            hint="import the files of each run by themselves, with --run",
        )  # fmt: skip


def _first_look(source: "Source") -> _Trace:
    """Go through the trace once, for what is needed before the first event: steps, and what stands behind them."""
    trace = _Trace()
    steps: list[tuple[int, int, int]] = []
    earliest, count = None, 0
    for event in _events(source, trace.about):
        count += not isinstance(event, str)
        if not isinstance(event, dict) or event.get("ph") != "X" or not _is_number(event.get("ts")):
            continue
        trace.collectives = min(trace.collectives, _collective_of(event))
        begin, length = _ns(event["ts"]), _ns(event["dur"]) if _is_number(event.get("dur")) else 0
        earliest = begin if earliest is None else min(earliest, begin)
        step = _STEP.fullmatch(str(event.get("name")))
        if step and _is_number(event.get("dur")) and event.get("cat") not in _DEVICE | {"gpu_user_annotation"}:
            steps.append((begin, length, int(step[1])))
    if not count:
        raise SourceError(
            "no events of a trace", where=source.name, hint="name a torch.profiler trace, .json or .json.gz"
        )
    for begin, length, number in sorted(steps):
        trace.begins.append(begin)
        trace.steps.append((number, begin + length))
    base = trace.about.get("baseTimeNanoseconds")
    trace.base_ns = base if isinstance(base, int) and not isinstance(base, bool) else 0
    if earliest is not None and trace.base_ns + earliest < YEAR_2000_NS:
        trace.base_ns, trace.timeless = YEAR_2000_NS, True
    return trace


def _events(source: "Source", about: dict[str, Any]) -> Iterator[Any]:
    """Yield the events one by one, and fill in what stands around them; a text says what is wrong with the rest."""
    blocks = (block.decode(errors="replace") for block in source.blocks(_CHARACTERS))
    text = next(blocks, "")
    while _EVENTS not in text and not text.lstrip().startswith("[") and len(text) < _LONGEST_EVENT:
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
            if more is None or len(text) - at > _LONGEST_EVENT:
                after = _NEXT.search(text, at)
                yield "an event is damaged" if after else "the trace is cut off, or damaged from here on"
                if after is None:
                    return
                text, at = text[after.end() :] + (more or ""), 0
                continue
            text, at = text[at:] + more, 0
            continue
        if at == len(text):  # a number may go on
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


def _span(event: dict[str, Any], trace: _Trace, recording: "ImportedRun", rank: int, number: int) -> int:
    """Add an event as a span; return how many were added."""
    ts, length, name = event.get("ts"), event.get("dur", 0), event.get("name")
    if ts is None or not (_is_number(ts) and _is_number(length) and length >= 0 and isinstance(name, str) and name):
        recording.refuse("spans", "an event without name, time or length", _quarantine_text(event), rank=rank)
        return 0
    args = event.get("args") if isinstance(event.get("args"), dict) else {}
    assert isinstance(args, dict)
    category = str(event.get("cat") or "")
    on_device = category.lower() in _DEVICE
    own = _STEP.fullmatch(name) if not on_device and category != "gpu_user_annotation" else None
    step = int(own[1]) if own else _step_at(trace, _ns(ts))
    begin_ns = trace.base_ns + _ns(ts)
    collective = _collective_of(event) == trace.collectives < len(_COLLECTIVES)
    where = args.get("stream", event.get("tid"))
    left = {"cat": category} | {key: value for key, value in args.items() if _is_of_work(key, value)}
    whole = json.dumps(left, separators=(",", ":"), default=float)
    recording.row(
        "spans", begin_ns, rank, name=_without_folders(name)[:512],
        kind="step" if own else "collective" if collective else "other",
        step=step, duration_ns=_ns(length), start_ns=begin_ns, span_id=number,
        stream=f"{'stream' if on_device else 'thread'} {where}"[:256], device_time=on_device or None,
        attributes=whole if len(whole) <= _ATTRIBUTES else json.dumps({"cat": category}),
        **_collective(args),
    )  # fmt: skip
    end_ns = begin_ns + _ns(length)
    trace.begin_ns = begin_ns if trace.begin_ns is None else min(trace.begin_ns, begin_ns)
    trace.end_ns = end_ns if trace.end_ns is None else max(trace.end_ns, end_ns)
    if own and int(own[1]) not in trace.rows:
        trace.rows.add(int(own[1]))
        recording.step(int(own[1]), float(length) / 1e6, begin_ns, rank)
    return 1


def _collective_of(event: dict[str, Any]) -> int:
    """Return which of `_COLLECTIVES` an event is; their number for none."""
    name, on_device = str(event.get("name")), str(event.get("cat") or "").lower() in _DEVICE
    names = enumerate(_COLLECTIVES[:1] if on_device else _COLLECTIVES)
    return next((at for at, pattern in names if on_device == (at == 0) and pattern.match(name)), len(_COLLECTIVES))


@lru_cache(maxsize=65_536)
def _without_folders(name: str) -> str:
    """Return the name of an event without the home folder that its source file lies in."""
    return without_identities(name) if "/" in name or "\\" in name else name


def _is_of_work(key: str, value: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether an argument tells of an event's work: all numbers, and of texts those that the profiler makes itself.

    Others are the author's own: stacks, files, settings, the environment.
    """
    if key in _TAKEN:
        return False
    if isinstance(value, list):
        return all(_is_of_work(key, part) for part in value)
    return (
        value is None or isinstance(value, bool | int | float | Decimal) or (key in _TEXTS and isinstance(value, str))
    )


def _quarantine_text(event: Any) -> str:  # noqa: ANN401 - JSON
    """Return what quarantine keeps of an event that is none: nothing of its arguments, nor of other objects."""
    fields = event if isinstance(event, dict) else {}
    known = {key: fields[key] for key in ("ph", "cat", "name", "ts", "dur") if key in fields}
    plain = {key: value for key, value in known.items() if not isinstance(value, dict | list)}
    shown = {key: _without_folders(value) if isinstance(value, str) else value for key, value in plain.items()}
    return json.dumps(shown, default=float)


def _collective(args: dict[str, Any]) -> dict[str, Any]:
    """Return what the profiler says of a message, or of a copy."""
    count, size = args.get("In msg nelems"), _SIZES.get(str(args.get("dtype", "")).lower())
    moved = count * size if _is_count(count) and size and isinstance(count, int) else args.get("bytes")
    group = args.get("Process Group Name")
    members, sequence = args.get("Group size"), args.get("Seq", args.get("seq"))
    return {
        "bytes": moved if _is_count(moved) else None,
        "process_group": str(group)[:256] if group not in {None, ""} else None,
        "group_size": members if _is_count(members) else None,
        "sequence": sequence if _is_count(sequence) else None,
    }


def _ns(microseconds: float | Decimal) -> int:
    """Return a time of a trace in ns."""
    return round(microseconds * 1000)


def _step_at(trace: _Trace, at_ns: int) -> int | None:
    at = bisect_right(trace.begins, at_ns) - 1
    if at < 0 or at_ns >= trace.steps[at][1]:
        return None
    return trace.steps[at][0]


def _device(about: dict[str, Any]) -> dict[str, Any]:
    devices = about.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    name = first.get("name")
    return {"device_name": str(name), "device_type": "cuda"} if name else {}


def _is_number(value: Any) -> bool:  # noqa: ANN401 - JSON
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool) and abs(float(value)) < _LARGEST


def _is_count(value: Any) -> bool:  # noqa: ANN401 - JSON
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


_TEXTS: Final = frozenset({
    "kernel", "kernel_name", "kernel_backend", "kind", "dtype", "Input type", "Concrete Inputs", "Collective name",
    "Process Group Description", "Process Group Ranks", "scope", "src", "dst", "ptr", "bytes",
})  # fmt: skip
_TAKEN: Final = frozenset({"stream", "bytes", "Process Group Name", "Group size", "Seq", "seq"})
FORMAT: Final = Format(
    summary="torch.profiler traces, .json or .json.gz, one file a rank",
    recognises="JSON with traceEvents",
    read=read,
    table="spans",
    mark=re.compile(rb"\"traceEvents\"|\"schemaVersion\"|\A\s*\[\s*\{[\s\S]{0,4096}?\"ph\"\s*:"),
    own_run=False,
    refuse_strangers=refuse_strangers,
)
