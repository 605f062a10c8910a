"""Profiler: torch.profiler on one step in N, the same steps on every rank.

    a step that is chosen   ├ profiler starts ┤ step ┤ profiler stops, its trace is written
    a thread of ours                                  ├ compressed, hashed ┤ summed up ┤
            ▼                                              ▼                     ▼
    steps as ever                                     artifacts (profile)    spans: compute, communication, …

What the profiler takes to start and stop lies outside the step. Stopping waits for the GPU: N should be large.
"""

import gzip
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.ratios import is_sampled, seed_of, threshold_of
from ranklake.capture.common.run_like import RunLike
from ranklake.capture.steps.events import Events
from ranklake.capture.steps.progress import OpenStep
from ranklake.capture.steps.spans import Spans
from ranklake.redaction.redact import redact_names

PARTS: Final = ("compute", "communication", "overlap", "idle")
_KERNEL: Final = "kernel"
_COLLECTIVES: Final = ("nccl", "gloo:")
_STEP: Final = "ProfilerStep#"

_EVENTS: Final = re.compile(r'"traceEvents"\s*:\s*\[')
_NAMED: Final = re.compile(
    r'(?P<head>(?:"cat":\s*"(?P<kind>\w*)",\s*)?"name":\s*")(?P<name>.*?)(?="\s*(?:,\s*"(?:ph|cat|p?id|tid|ts|dur|args|s|bp)"|\}))',
    re.DOTALL,
)
_BETWEEN: Final = re.compile(r"[\s,]*")

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a step's time went to, in microseconds.

    Attributes
    ----------
    busy
        Union of compute and communication; overlap is in both, idle in none.
    on_device
        Whether it is the GPU's time; else that of the CPU's operators and of gloo.
    """

    step: int
    length: float
    busy: float
    compute: float
    communication: float
    overlap: float
    idle: float
    on_device: bool


def summarise(trace: Mapping[str, Any]) -> list[Summary]:
    """Return what a kineto trace says of each step in it, as unions of intervals clipped to the step.

    Collectives are kernels of NCCL; on the CPU, gloo's annotations. Where the trace has kernels of a GPU they alone
    count: neither the CPU's operators nor copies and fills, as in Holistic Trace Analysis, whose terms these are.
    """
    events = [event for event in trace.get("traceEvents", ()) if event.get("ph") == "X" and "dur" in event]
    on_device = any(event.get("cat") == _KERNEL for event in events)
    compute: list[Interval] = []
    collectives: list[Interval] = []
    steps: list[tuple[int, Interval]] = []
    for event in events:
        name, category = str(event.get("name", "")), event.get("cat")
        span = (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        if name.startswith(_STEP) and category == "user_annotation":
            steps.append((int(name.removeprefix(_STEP)), span))
        elif on_device and category == _KERNEL:
            (collectives if "nccl" in name.lower() else compute).append(span)
        elif not on_device and category == "user_annotation" and name.lower().startswith(_COLLECTIVES):
            collectives.append(span)
        elif not on_device and category == "cpu_op" and not name.startswith("c10d::"):
            compute.append(span)
    return [_summary(number, span, compute, collectives, on_device=on_device) for number, span in sorted(steps)]


def each_event(trace: str) -> Iterator[Any]:
    """Yield the events of a kineto trace, one after the other. Raises `ValueError` where it is no JSON.

    Read at once, a trace of 40 MB holds the interpreter's lock for a second and more, and training with it.
    """
    begin = _EVENTS.search(trace)
    at = len(trace) if begin is None else begin.end()
    read = json.JSONDecoder().raw_decode
    while at < len(trace):
        between = _BETWEEN.match(trace, at)
        at = len(trace) if between is None else between.end()
        if trace[at : at + 1] == "]":
            return
        event, at = read(trace, at)
        yield event


def redacted_trace(trace: str) -> str:
    """Return a kineto trace with the names of its events redacted, as users make them up; kernels' are none of theirs.

    The text stays the same elsewhere: torch writes what `record_function` is given besides into no trace. A name that
    has quotation marks, which torch leaves as they are, becomes one that JSON knows.
    """
    known: dict[str, str] = {}

    def shown(event: re.Match[str]) -> str:
        name = event["name"]
        if event["kind"] == _KERNEL:
            return event[0]
        if name not in known:
            known[name] = _clear(name)
        return f"{event['head']}{known[name]}"

    return _NAMED.sub(shown, trace)


def _clear(name: str) -> str:
    """Return what stands between the quotation marks of a name in JSON, redacted; as it is if nothing is the matter."""
    try:
        plain = json.loads(f'"{name}"')
    except ValueError:
        return json.dumps(redact_names(name))[1:-1]
    clear = redact_names(plain)
    return name if clear == plain else json.dumps(clear)[1:-1]


def _summary(
    number: int, step: Interval, compute: list[Interval], collectives: list[Interval], *, on_device: bool
) -> Summary:
    length = step[1] - step[0]
    computing, talking = _union(compute, step), _union(collectives, step)
    busy = _union([*compute, *collectives], step)
    return Summary(number, length, busy, computing, talking, computing + talking - busy, length - busy, on_device)


def _union(intervals: Iterable[Interval], within: Interval) -> float:
    """Return the length that intervals cover together of another."""
    covered, reached = 0.0, within[0]
    for start, end in sorted(intervals):
        begin, stop = max(start, reached), min(end, within[1])
        if stop > begin:
            covered += stop - begin
            reached = stop
    return covered


class StepChoice:
    """Which steps are profiled: by the run's name and the step's number alone, so all ranks agree."""

    def __init__(self, run: str, every: int) -> None:
        self._seed, self._threshold = seed_of(run, "profile"), threshold_of(1 / max(1, every))

    def takes(self, step: int) -> bool:
        """Whether a step is profiled."""
        return step != ABSENT and is_sampled(self._seed, step, self._threshold)


class Profiler:
    """Profiles a run's steps; see `ranklake.capture.Run.profile`.

    Parameters
    ----------
    keep
        Records a file of ours: `ranklake.capture.assets.artifacts.Artifacts.record_file`.
    every
        One step in so many.
    folder
        Where traces are kept.
    max_bytes
        A trace that is larger, before it is compressed, is deleted, and an event says so.
    """

    def __init__(
        self,
        run: RunLike,
        spans: Spans,
        events: Events,
        keep: Callable[..., None],
        *,
        every: int,
        folder: Path,
        max_bytes: int,
    ) -> None:
        self._run, self._spans, self._events, self._keep = run, spans, events, keep
        self._folder, self._max_bytes = folder, max_bytes
        self._choice = StepChoice(run.name, every)
        self._active: tuple[Any, Any, OpenStep] | None = None
        self._threads: list[threading.Thread] = []

    def begin(self, step: OpenStep) -> None:
        """Start the profiler if the step is chosen."""
        torch: Any = sys.modules.get("torch")
        if self._active is not None or torch is None or not self._choice.takes(step.number):
            return
        kinds = torch.profiler.ProfilerActivity
        profile = torch.profiler.profile(
            activities=[kinds.CPU, kinds.CUDA] if torch.cuda.is_initialized() else [kinds.CPU]
        )
        profile.start()
        mark = torch.profiler.record_function(f"{_STEP}{step.number}")
        mark.__enter__()
        self._active = (profile, mark, step)

    def end(self, step: OpenStep) -> None:
        """Stop the profiler if it runs for this step, and have its trace looked after."""
        if self._active is None or self._active[2] is not step:
            return
        (profile, mark, _), self._active = self._active, None
        mark.__exit__(None, None, None)
        began = now()
        profile.stop()
        path = self._folder / f"{self._run.name}~a{self._run.attempt}~r{self._run.rank}~step{step.number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(path))
        thread = threading.Thread(
            target=self._look_after, args=(path, step, now() - began), name="ranklake-profiler", daemon=True
        )
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def close(self, timeout_s: float = 10.0) -> None:
        """Wait for traces that are being looked after."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _look_after(self, path: Path, step: OpenStep, blocked_ns: int) -> None:
        size = path.stat().st_size
        try:
            if size > self._max_bytes:
                path.unlink()
                self._events.add("profile_dropped", step=step.number, message=f"{size} bytes", severity="warning")
                return
            trace = redacted_trace(path.read_text(encoding="utf-8", errors="replace"))
            packed = path.with_suffix(".json.gz")
            scratch = packed.with_suffix(".tmp")
            scratch.write_bytes(gzip.compress(trace.encode(), mtime=0))
            scratch.rename(packed)
            path.unlink()
            self._keep(packed, "profile", step=step.number, blocking_ns=blocked_ns, atomic=True)
            for summary in summarise({"traceEvents": each_event(trace)}):
                self._record(summary, step)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._spans.sink.trouble("keeping a profile", error)

    def _record(self, summary: Summary, step: OpenStep) -> None:
        for part in PARTS:
            device = 1 if summary.on_device else None
            name = self._spans.number(part, "other", stream=f"profile:{part}", device_time=device)
            if name is not None and step.start is not None:
                duration = round(getattr(summary, part) * 1000)
                fields = (summary.step, self._spans.next_id(), step.span_id, ABSENT, -1, 0, name)
                self._spans.put(step.start, duration, *fields)
