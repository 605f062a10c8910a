"""Lines of Megatron-LM, DeepSpeed, GPT-NeoX, NeMo and Primus: parsed one by one, and surveyed for intervals and times.

Primus is AMD's: its iteration's line is Megatron's with an average behind each value (``1595.5/1630.1`` or
``28.2 (29.1)``), behind a prefix with time and rank. Forks add fields; any ``name: number |`` is one.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ranklake.capture.importers.log_lines import LogLine, log_lines, own_place
from ranklake.capture.importers.logged_steps import covered_steps, usual_interval
from ranklake.capture.importers.units import YEAR_2000_NS, leading_time

if TYPE_CHECKING:
    from ranklake.capture.importers.source import Source

_NUMBER: Final = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf)"
_AVERAGE: Final = rf"(?:\s*/\s*{_NUMBER}|\s*\(\s*(?:avg\.?:?\s*)?{_NUMBER}\s*\))?"
_AT: Final = r"(?:\[(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*)\]\s+)?"
BEGIN: Final = re.compile(rf"{_AT}\s?iteration\s+\d+/\s*\d+\s*\|")
ITERATION: Final = re.compile(rf"{_AT}\s?iteration\s+(?P<step>\d{{1,15}})/\s*(?P<last>\d{{1,15}})\s*\|(?P<rest>.*)")
PART: Final = re.compile(r"(?:^|(?<!\bat)(?<!\bfrom)(?<!\bon)\s)iteration\s+\d*(?:/\s*\d*)?\s*$")
_FIELD: Final = re.compile(
    rf"\s*(?P<name>[A-Za-z][^|:\[]*?(?:\([^)|]*\))?)\s*:\s*(?P<value>{_NUMBER}){_AVERAGE}\s*\|", re.IGNORECASE
)
TIMER: Final = re.compile(rf"([A-Za-z][\w\-/]*):\s*({_NUMBER})(?=\s*(?:\||$))", re.IGNORECASE)
FOREIGN: Final = re.compile(
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
"""What DeepSpeed's engine prints every so many steps; before 2023 without the step, which the line before tells."""
ENGINE_STEP: Final = re.compile(rf"\[Rank \d+\] step=(\d{{1,15}}), skipped=(\d{{1,15}}), lr=\[({_NUMBER})")
OVERFLOW: Final = re.compile(r"Grad overflow on iteration:? (\d{1,15})\s*$|\bOVERFLOW! Rank 0 Skipping step")
NEMO: Final = re.compile(
    r"^.{0,200}?\bTraining epoch \d+, iteration (?P<at>\d{1,15})/(?P<last>\d{1,15}) \|"
    r"(?P<rest>.*?\bglobal_step: (?P<step>\d{1,15}) .*)$"
)
"""An iteration as NeMo 2 prints it: counted in its epoch, and over all in a field."""
EQUALS: Final = re.compile(r"\biteration=\s*(?P<step>\d{1,15})/\s*(?P<last>\d{1,15})\s*\|(?P<rest>.*)")
"""An iteration of ezpz's fork of Megatron-DeepSpeed: ``iteration=  3/  9 | consumed_samples=  768 | …``."""
FLOPS: Final = re.compile(
    rf"Effective Tera Flops per GPU:\s*({_NUMBER})(?:\s+and total parameters\s+({_NUMBER})\s*B)?", re.IGNORECASE
)
LOADED: Final = re.compile(r"loaded checkpoint\b.*?\bat iteration\s+(\d{1,15})")
BEGUN: Final = re.compile(r"using world size:|\[after megatron is initialized\]")
"""What a trainer says before its first step: behind a step, the run was started again."""
RANK_OF: Final = re.compile(r"\[rank-(\d{1,8})/(\d{1,8})\]")
ARGUMENT: Final = re.compile(
    r"^(?:\s{2}(?=\w+ \.{3,})|[^|]*\.py:\d+\] : {3}(?=\w+ +: .* \(\w+\)$))(\w+) +(?:\.{3,}|:) (.*?)(?: \(\w+\))?$"
)
"""An argument as Megatron-LM prints it, or as Primus does: ``….py:227] :   seq_length      : 4096 (int)``."""
ACROSS: Final = re.compile(
    rf"^\s+([a-z][\w\-/]*) \.{{2,}}: (?:\(({_NUMBER}), ({_NUMBER})\)|({_NUMBER}))\s*$", re.IGNORECASE
)
"""A timer as Megatron-LM prints it since 2023: the least and the most that a rank needed, or the most alone."""
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
_ELAPSED_OF_NEMO: Final = "train_step_timing in s:"
_NS: Final = 10**9


def is_step(text: str) -> bool:
    """Whether a line tells an iteration or a step."""
    return any(pattern.search(text) for pattern in (BEGIN, DEEPSPEED, TIMER_STOP))


def own_time(iteration: "re.Match[str]") -> tuple[int, bool] | None:
    """Return the time in an iteration's own line, as `leading_time` does."""
    return leading_time(f"[{iteration['at']}]") if iteration["at"] else None


def fields_of(text: str) -> dict[str, float]:
    """Return the numbers of a line by their names, in lower case; an average behind a number is left out."""
    values = {" ".join(re.split(r"[\s_]+", item["name"].lower())): item["value"] for item in _FIELD.finditer(text)}
    return {_NAMES.get(name, name): float(value) for name, value in values.items()}


def as_megatron(text: str) -> str:
    """Return a line of an iteration of NeMo, or of ezpz's fork, as Megatron-LM would print it; others as they are."""
    if match := EQUALS.search(text):
        rest = re.sub(r"(\w)=\s*", r"\1: ", match["rest"]).replace("iteration_ms:", "iteration (ms):")
        return f"{text[: match.start()]} iteration {match['step']}/ {match['last']} |{rest}"
    match = NEMO.match(text)
    if match is None:
        return text
    last = match["last"] if match["at"] == match["step"] else 0  # of several epochs nothing says the last step
    timed = "" if _ELAPSED_OF_NEMO in match["rest"] else " elapsed time per iteration (s): not told |"
    rest = match["rest"].replace(_ELAPSED_OF_NEMO, "elapsed time per iteration (s):").rstrip()
    return f" iteration {match['step']}/ {last} |{rest} |{timed}"


def take_seconds(fields: dict[str, float]) -> float | None:
    """Take the time of an iteration out of its fields; None if it is not there, or none."""
    seconds = None
    for name in list(fields):
        unit = _ELAPSED.fullmatch(name)
        if unit:
            value = fields.pop(name)
            seconds = value / 1000 if unit[1] == "ms" else value
    return seconds if seconds is not None and 0 <= seconds < 1 << 30 else None


def has_elapsed(text: str) -> bool:
    """Whether an iteration's time is reported."""
    return _ELAPSED.search(text) is not None


def sizes_of(text: str) -> dict[str, int]:
    """Return the sizes that a line ``using world size: …`` tells, as columns of `runs`."""
    world = _WORLD.search(text)
    if world is None:
        return {}
    sizes = {_SIZES[name]: int(size) for name, size in _SIZE.findall(text) if name in _SIZES}
    return {"world_size": int(world[1]), **sizes}


@dataclass
class Survey:
    """What a log says as a whole, found before it is read.

    Attributes
    ----------
    interval, engines_interval
        Steps that a line of Megatron's, and of DeepSpeed's engine, stands for.
    base_ns
        Where its steps begin; `YEAR_2000_NS` if it tells no time.
    has_iterations
        Whether there are lines of iterations: then those of DeepSpeed's engine need no time.
    batch
        Samples of a step of DeepSpeed's engine, where rates and times of most lines agree on it.
    time_place
        Which of the times in front of a line is the trainer's (`own_place`).
    """

    interval: int = 1
    engines_interval: int = 1
    base_ns: int = YEAR_2000_NS
    time_place: int = 0
    batch: int | None = None
    has_iterations: bool = False


@dataclass
class _FirstLook:
    steps: list[int] = field(default_factory=list)
    engines: list[int] = field(default_factory=list)
    rates: list[tuple[int, int, float]] = field(default_factory=list)
    engine_step: int | None = None
    timeless: list[tuple[int, float]] = field(default_factory=list)
    stated: set[int] = field(default_factory=set)
    first_ns: int | None = None
    resumed: int | None = None


def survey(source: "Source") -> Survey:
    """Go through a log once, for how many steps its lines stand and for the first time that it tells."""
    look, place = _FirstLook(), own_place(source, lambda text: is_step(as_megatron(text)))
    with source.first_look():
        for line in log_lines(source):
            _glance(look, line, place)
    interval = usual_interval([look.steps], look.stated.pop() if len(look.stated) == 1 else None)
    engines = usual_interval([look.engines], None)
    batch = _batch_of(look.rates)
    if look.first_ns is None:
        return Survey(interval, engines, time_place=place, batch=batch, has_iterations=bool(look.steps))
    of = interval if look.steps else engines
    before: int | None = None
    elapsed = 0
    for step, seconds in look.timeless:
        elapsed += round(covered_steps(step, before, of, look.resumed) * seconds * _NS)
        before = step
    return Survey(interval, engines, look.first_ns - elapsed, place, batch, bool(look.steps))


def _batch_of(rates: list[tuple[int, int, float]]) -> int | None:
    """Return how many samples a step has, from steps, times (ns) and samples per second at them."""
    sizes: Counter[int] = Counter()
    for (step, at_ns, _), (next_step, next_ns, rate) in pairwise(rates):
        if next_step > step and next_ns > at_ns:
            sizes[round(rate * (next_ns - at_ns) / _NS / (next_step - step))] += 1
    size, count = sizes.most_common(1)[0] if sizes else (0, 0)
    return size if size > 0 and count > 1 and 2 * count > len(rates) - 1 else None


def _glance(look: _FirstLook, line: LogLine, place: int) -> None:
    text = as_megatron(line.text)
    steps: list[tuple[int, float | None]] = []
    for begin in BEGIN.finditer(text):
        if whole := ITERATION.match(text[begin.start() :]):
            look.steps.append(int(whole["step"]))
            steps.append((int(whole["step"]), take_seconds(fields_of(whole["rest"]))))
    if (engine := DEEPSPEED.search(text)) and not look.steps:
        look.engines.append(int(engine[1]))
        steps.append((int(engine[1]), float(engine[3])))
    if about := ENGINE_STEP.search(text):
        look.engine_step = int(about[1])
    if (stop := TIMER_STOP.search(text)) and (stop[1] or look.engine_step is not None):
        step, at = int(stop[1] or look.engine_step or 0), line.time(place)
        look.engines.append(step)
        if stop[2] and at is not None and math.isfinite(float(stop[2])):
            look.rates.append((step, at[0], float(stop[2])))
    if (argument := ARGUMENT.match(text)) and argument[1] == "log_interval" and argument[2].strip().isdecimal():
        look.stated.add(int(argument[2]))
    if look.first_ns is not None:
        return
    if loaded := LOADED.search(text):
        look.resumed = int(loaded[1])
    look.timeless += [(step, seconds) for step, seconds in steps if seconds is not None and 0 <= seconds < 1 << 30]
    at = line.time(place) or next((own for begin in BEGIN.finditer(text) if (own := own_time(begin))), None)
    look.first_ns = at[0] if at else None
