"""Profiler: run torch.profiler on one step in N, the same steps on every rank.

    a selected step         ├ profiler starts ┤ step ┤ profiler stops, its trace is written
    a background thread                               ├ compressed, hashed ┤ summarized ┤
            ▼                                              ▼                     ▼
    row of steps                                      artifacts (profile)    spans: compute, communication, …

The time for starting and stopping the profiler is not part of the step. Stopping waits for the GPU, so N should be
large.
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
    """Parts of a step's time, in microseconds.

    Attributes
    ----------
    busy
        Union of compute and communication. Overlap belongs to both, idle to neither.
    on_device
        Whether times are the GPU's; otherwise those of the CPU's operators and of gloo.
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
    """Return a summary of each step in a kineto trace, from unions of intervals clipped to the step.

    Collectives are kernels of NCCL or, on the CPU, gloo's annotations. If the trace has GPU kernels, only these count,
    not the CPU's operators, copies and fills. This and the terms are as in Holistic Trace Analysis.
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
    """Yield the events of a kineto trace. Raises `ValueError` for invalid JSON.

    Parsing a trace of 40 MB in one call would hold the GIL for more than a second and stop training meanwhile.
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
    """Return a kineto trace with the names of events redacted, except names of kernels, which users do not choose.

    The rest of the text is unchanged, because torch writes no other argument of `record_function` to a trace. Quotation
    marks in a name, which torch does not escape, are escaped.
    """
    redacted_names: dict[str, str] = {}

    def redacted_event(event: re.Match[str]) -> str:
        name = event["name"]
        if event["kind"] == _KERNEL:
            return event[0]
        if name not in redacted_names:
            redacted_names[name] = _redact_json_text(name)
        return f"{event['head']}{redacted_names[name]}"

    return _NAMED.sub(redacted_event, trace)


def _redact_json_text(name: str) -> str:
    """Return the content of a JSON string, redacted; unchanged if it has nothing to redact."""
    try:
        plain = json.loads(f'"{name}"')
    except ValueError:
        return json.dumps(redact_names(name))[1:-1]
    redacted = redact_names(plain)
    return name if redacted == plain else json.dumps(redacted)[1:-1]


def _summary(
    number: int, step: Interval, compute: list[Interval], collectives: list[Interval], *, on_device: bool
) -> Summary:
    length = step[1] - step[0]
    computing, communicating = _union(compute, step), _union(collectives, step)
    busy = _union([*compute, *collectives], step)
    overlap = computing + communicating - busy
    return Summary(number, length, busy, computing, communicating, overlap, length - busy, on_device)


def _union(intervals: Iterable[Interval], within: Interval) -> float:
    """Return the length of the union of intervals within another interval."""
    covered, reached = 0.0, within[0]
    for start, end in sorted(intervals):
        begin, stop = max(start, reached), min(end, within[1])
        if stop > begin:
            covered += stop - begin
            reached = stop
    return covered


class StepChoice:
    """Selects the steps to profile by the run's name and the step's number, so that all ranks select the same."""

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
        Records a file as an artifact: `ranklake.capture.assets.artifacts.Artifacts.record_file`.
    every
        Steps per profiled step, on average.
    folder
        Folder for traces.
    max_bytes
        Largest trace before compression. A larger one is deleted, and an event reports it.
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
        """Start the profiler if the step is selected."""
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
        """Stop the profiler if it runs for this step, and process its trace in a thread."""
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
            target=self._process_trace, args=(path, step, now() - began), name="ranklake-profiler", daemon=True
        )
        self._threads = [running for running in self._threads if running.is_alive()] + [thread]
        thread.start()

    def close(self, timeout_s: float = 10.0) -> None:
        """Wait for the threads that process traces."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _process_trace(self, path: Path, step: OpenStep, blocked_ns: int) -> None:
        size = path.stat().st_size
        try:
            if size > self._max_bytes:
                path.unlink()
                self._events.add("profile_dropped", step=step.number, message=f"{size} bytes", severity="warning")
                return
            trace = redacted_trace(path.read_text(encoding="utf-8", errors="replace"))
            compressed = path.with_suffix(".json.gz")
            scratch = compressed.with_suffix(".tmp")
            scratch.write_bytes(gzip.compress(trace.encode(), mtime=0))
            scratch.rename(compressed)
            path.unlink()
            self._keep(compressed, "profile", step=step.number, blocking_ns=blocked_ns, atomic=True)
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
