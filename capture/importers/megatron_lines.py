"""Megatron lines: patterns of log lines of Megatron-LM, DeepSpeed, GPT-NeoX, NeMo and Primus, and a survey of a log.

AMD's Primus prints Megatron's line after a prefix with time and rank, and an average after each value
(``1595.5/1630.1`` or ``28.2 (29.1)``). Forks add fields: any ``name: number |`` is read as a field.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ranklake.capture.importers.log_lines import LogLine, log_lines, trainer_time_position
from ranklake.capture.importers.logged_steps import covered_steps, usual_interval
from ranklake.capture.importers.units import YEAR_2000_NS, leading_time

if TYPE_CHECKING:
    from ranklake.capture.importers.source import Source

_NUMBER: Final = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf)"
_AVERAGE: Final = rf"(?:\s*/\s*{_NUMBER}|\s*\(\s*(?:avg\.?:?\s*)?{_NUMBER}\s*\))?"
_AT: Final = r"(?:\[(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*)\]\s+)?"
BEGIN: Final = re.compile(rf"{_AT}\s?iteration\s+\d+/\s*\d+\s*\|")
ITERATION: Final = re.compile(rf"{_AT}\s?iteration\s+(?P<step>\d{{1,15}})/\s*(?P<last>\d{{1,15}})\s*\|(?P<rest>.*)")
INCOMPLETE: Final = re.compile(r"(?:^|(?<!\bat)(?<!\bfrom)(?<!\bon)\s)iteration\s+\d*(?:/\s*\d*)?\s*$")
_FIELD: Final = re.compile(
    rf"\s*(?P<name>[A-Za-z][^|:\[]*?(?:\([^)|]*\))?)\s*:\s*(?P<value>{_NUMBER}){_AVERAGE}\s*\|", re.IGNORECASE
)
TIMER: Final = re.compile(rf"([A-Za-z][\w\-/]*):\s*({_NUMBER})(?=\s*(?:\||$))", re.IGNORECASE)
OTHER_OUTPUT: Final = re.compile(
    r"\[Rank \d+\]|\S+:\d+:\d+ \[\d+\] NCCL|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\]|WARNING|Warning|"
    r"time \(ms\)|Traceback|\[default\d+\]"
)
MEMORY: Final = re.compile(
    rf"\[Rank (\d{{1,9}})\] \(after (\d{{1,15}}) iterations\) memory \(MB\)((?: \| [a-z \-]+: {_NUMBER})+)"
)
VALIDATION: Final = re.compile(r"validation loss at iteration (\d{1,15})(?: on validation set)?\s*\|(.*)")
DEEPSPEED: Final = re.compile(
    rf"steps: (\d{{1,15}}) loss: ({_NUMBER}) iter time \(s\): ({_NUMBER})(?: samples/sec: ({_NUMBER}))?", re.IGNORECASE
)
TIMER_STOP: Final = re.compile(
    rf"\btimer\.py:\d+:stop\] (?:epoch=\d+/micro_step=\d+/global_step=(\d{{1,15}})|\d+/\d+), "
    rf"(?:.*?CurrSamplesPerSec=({_NUMBER}))?"
)
"""Line of DeepSpeed's engine after every interval of steps. Before 2023 the step is in the previous line instead."""
ENGINE_STEP: Final = re.compile(rf"\[Rank \d+\] step=(\d{{1,15}}), skipped=(\d{{1,15}}), lr=\[({_NUMBER})")
OVERFLOW: Final = re.compile(r"Grad overflow on iteration:? (\d{1,15})\s*$|\bOVERFLOW! Rank 0 Skipping step")
NEMO: Final = re.compile(
    r"^.{0,200}?\bTraining epoch \d+, iteration (?P<at>\d{1,15})/(?P<last>\d{1,15}) \|"
    r"(?P<rest>.*?\bglobal_step: (?P<step>\d{1,15}) .*)$"
)
"""Iteration of NeMo 2: its number within the epoch, and ``global_step`` as a field."""
EQUALS: Final = re.compile(r"\biteration=\s*(?P<step>\d{1,15})/\s*(?P<last>\d{1,15})\s*\|(?P<rest>.*)")
"""Iteration of ezpz's fork of Megatron-DeepSpeed: ``iteration=  3/  9 | consumed_samples=  768 | …``."""
FLOPS: Final = re.compile(
    rf"Effective Tera Flops per GPU:\s*({_NUMBER})(?:\s+and total parameters\s+({_NUMBER})\s*B)?", re.IGNORECASE
)
LOADED: Final = re.compile(r"loaded checkpoint\b.*?\bat iteration\s+(\d{1,15})")
STARTED: Final = re.compile(r"using world size:|\[after megatron is initialized\]")
"""Printed before the first step; after a step, it shows that the run was restarted."""
PRIMUS_RANK: Final = re.compile(r"\[rank-(\d{1,8})/(\d{1,8})\]")
ARGUMENT: Final = re.compile(
    r"^(?:\s{2}(?=\w+ \.{3,})|[^|]*\.py:\d+\] : {3}(?=\w+ +: .* \(\w+\)$))(\w+) +(?:\.{3,}|:) (.*?)(?: \(\w+\))?$"
)
"""Argument of Megatron-LM, or of Primus: ``….py:227] :   seq_length      : 4096 (int)``."""
TIMER_OVER_RANKS: Final = re.compile(
    rf"^\s+([a-z][\w\-/]*) \.{{2,}}: (?:\(({_NUMBER}), ({_NUMBER})\)|({_NUMBER}))\s*$", re.IGNORECASE
)
"""Timer of Megatron-LM since 2023: the minimum and maximum over ranks, or only the maximum."""
_ELAPSED: Final = re.compile(r"elapsed time per iteration \((m?s)\)")
_SIZE: Final = re.compile(r"([a-z\-]+?)[ -](?:model-)?parallel[ -]size:\s*(\d{1,8})")
_WORLD: Final = re.compile(r"using world size:\s*(\d{1,8})")
_SIZES: Final = {
    "data": "dp_size",
    "tensor": "tp_size",
    "pipeline": "pp_size",
    "context": "cp_size",
    "expert": "ep_size",
}
_NAMES: Final = {
    "lr": "learning rate", "reduced train loss": "lm loss",
    "tokens per gpu per second tgs": "tokens per gpu per second (tgs)",
}  # fmt: skip
_NEMO_ELAPSED: Final = "train_step_timing in s:"
_NS: Final = 10**9


def is_step(text: str) -> bool:
    """Whether a line reports an iteration or a step."""
    return any(pattern.search(text) for pattern in (BEGIN, DEEPSPEED, TIMER_STOP))


def own_time(iteration: "re.Match[str]") -> tuple[int, bool] | None:
    """Return the time in the match of `BEGIN` or `ITERATION`, as `leading_time` does; None if it has none."""
    return leading_time(f"[{iteration['at']}]") if iteration["at"] else None


def fields_of(text: str) -> dict[str, float]:
    """Return the fields of a line by name in lower case, without averages."""
    values = {" ".join(re.split(r"[\s_]+", item["name"].lower())): item["value"] for item in _FIELD.finditer(text)}
    return {_NAMES.get(name, name): float(value) for name, value in values.items()}


def as_megatron(text: str) -> str:
    """Convert an iteration's line of NeMo or of ezpz's fork to Megatron-LM's form; other lines are unchanged."""
    if match := EQUALS.search(text):
        rest = re.sub(r"(\w)=\s*", r"\1: ", match["rest"]).replace("iteration_ms:", "iteration (ms):")
        return f"{text[: match.start()]} iteration {match['step']}/ {match['last']} |{rest}"
    match = NEMO.match(text)
    if match is None:
        return text
    last = match["last"] if match["at"] == match["step"] else 0  # with several epochs, the last step is unknown
    no_time = "" if _NEMO_ELAPSED in match["rest"] else " elapsed time per iteration (s): unknown |"
    rest = match["rest"].replace(_NEMO_ELAPSED, "elapsed time per iteration (s):").rstrip()
    return f" iteration {match['step']}/ {last} |{rest} |{no_time}"


def pop_seconds(fields: dict[str, float]) -> float | None:
    """Remove the duration of an iteration from its fields and return it; None if it is missing or out of range."""
    seconds = None
    for name in list(fields):
        unit = _ELAPSED.fullmatch(name)
        if unit:
            value = fields.pop(name)
            seconds = value / 1000 if unit[1] == "ms" else value
    return seconds if seconds is not None and 0 <= seconds < 1 << 30 else None


def has_elapsed(text: str) -> bool:
    """Whether the fields of an iteration include its duration."""
    return _ELAPSED.search(text) is not None


def sizes_of(text: str) -> dict[str, int]:
    """Return the sizes in a line ``using world size: …`` by column of `runs`; empty for other lines."""
    world_size = _WORLD.search(text)
    if world_size is None:
        return {}
    sizes = {_SIZES[name]: int(size) for name, size in _SIZE.findall(text) if name in _SIZES}
    return {"world_size": int(world_size[1]), **sizes}


@dataclass
class Survey:
    """Facts of a whole log that are needed to read its lines.

    Attributes
    ----------
    interval, engine_interval
        Steps per line of Megatron, and of DeepSpeed's engine.
    base_ns
        Begin of the first step, ns since 1970; `YEAR_2000_NS` if the log has no time.
    time_position
        Position of the trainer's time among a line's times (`trainer_time_position`).
    batch
        Samples of a step of DeepSpeed's engine, computed from rates and times; None if most lines do not agree.
    has_iterations
        Whether the log has lines of iterations. Then lines of DeepSpeed's engine need no time.
    """

    interval: int = 1
    engine_interval: int = 1
    base_ns: int = YEAR_2000_NS
    time_position: int = 0
    batch: int | None = None
    has_iterations: bool = False


@dataclass
class _SurveyState:
    """What `survey` has collected so far.

    Attributes
    ----------
    steps, engine_steps
        Steps in lines of Megatron, and of DeepSpeed's engine.
    rates
        Step, time (ns) and samples per second of lines of DeepSpeed's engine.
    engine_step
        The last step in a separate line of DeepSpeed's engine.
    untimed_steps
        Step and duration of each line before the first time.
    stated_intervals
        Values of the argument ``log_interval``.
    first_ns
        The first time in the log.
    resumed
        Iteration of the loaded checkpoint.
    """

    steps: list[int] = field(default_factory=list)
    engine_steps: list[int] = field(default_factory=list)
    rates: list[tuple[int, int, float]] = field(default_factory=list)
    engine_step: int | None = None
    untimed_steps: list[tuple[int, float]] = field(default_factory=list)
    stated_intervals: set[int] = field(default_factory=set)
    first_ns: int | None = None
    resumed: int | None = None


def survey(source: "Source") -> Survey:
    """Read a log once, to find the steps per line, and the begin of the first step."""
    state, position = _SurveyState(), trainer_time_position(source, lambda text: is_step(as_megatron(text)))
    with source.first_look():
        for line in log_lines(source):
            _survey_line(state, line, position)
    stated = state.stated_intervals.pop() if len(state.stated_intervals) == 1 else None
    interval = usual_interval([state.steps], stated)
    engine_interval = usual_interval([state.engine_steps], None)
    batch = _batch_size(state.rates)
    has_iterations = bool(state.steps)
    if state.first_ns is None:
        return Survey(
            interval, engine_interval, time_position=position, batch=batch, has_iterations=has_iterations
        )  # fmt: skip
    previous: int | None = None
    elapsed_ns = 0
    for step, seconds in state.untimed_steps:
        steps = covered_steps(step, previous, interval if has_iterations else engine_interval, state.resumed)
        elapsed_ns += round(steps * seconds * _NS)
        previous = step
    return Survey(interval, engine_interval, state.first_ns - elapsed_ns, position, batch, has_iterations)


def _batch_size(rates: list[tuple[int, int, float]]) -> int | None:
    """Compute the samples of a step from steps, times (ns) and rates (samples per second); None if they disagree."""
    sizes: Counter[int] = Counter()
    for (step, at_ns, _), (next_step, next_ns, rate) in pairwise(rates):
        if next_step > step and next_ns > at_ns:
            sizes[round(rate * (next_ns - at_ns) / _NS / (next_step - step))] += 1
    size, count = sizes.most_common(1)[0] if sizes else (0, 0)
    return size if size > 0 and count > 1 and 2 * count > len(rates) - 1 else None


def _survey_line(state: _SurveyState, line: LogLine, position: int) -> None:
    text = as_megatron(line.text)
    steps: list[tuple[int, float | None]] = []
    for begin in BEGIN.finditer(text):
        if iteration := ITERATION.match(text[begin.start() :]):
            state.steps.append(int(iteration["step"]))
            steps.append((int(iteration["step"]), pop_seconds(fields_of(iteration["rest"]))))
    if (deepspeed := DEEPSPEED.search(text)) and not state.steps:
        state.engine_steps.append(int(deepspeed[1]))
        steps.append((int(deepspeed[1]), float(deepspeed[3])))
    if engine_step := ENGINE_STEP.search(text):
        state.engine_step = int(engine_step[1])
    if (stop := TIMER_STOP.search(text)) and (stop[1] or state.engine_step is not None):
        step, time = int(stop[1] or state.engine_step or 0), line.time(position)
        state.engine_steps.append(step)
        if stop[2] and time is not None and math.isfinite(float(stop[2])):
            state.rates.append((step, time[0], float(stop[2])))
    if (argument := ARGUMENT.match(text)) and argument[1] == "log_interval" and argument[2].strip().isdecimal():
        state.stated_intervals.add(int(argument[2]))
    if state.first_ns is not None:
        return
    if loaded := LOADED.search(text):
        state.resumed = int(loaded[1])
    state.untimed_steps += [(step, s) for step, s in steps if s is not None and 0 <= s < 1 << 30]
    times = (own_time(begin) for begin in BEGIN.finditer(text))
    time = line.time(position) or next(filter(None, times), None)
    state.first_ns = time[0] if time else None
