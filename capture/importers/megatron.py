"""Standard output of Megatron-LM and DeepSpeed, as all ranks wrote it at once.

An iteration's line becomes a row of ``steps`` and scalars; ``time (ms)`` behind it adds phases; memory lines are
scalars of the rank that they name. Other ranks' output cuts lines in two: what comes next is tried as the other half,
up to `_HALVES` lines on. A field counts only if its end is there; an iteration without its time is refused.

Lines of Megatron-LM since 2024 say when they were written, as do those of some launchers; where they do not, a step
begins where the one before ended, or at the last time of day that the log told since; the run's labels say that these
times are reckoned. A log whose iterations go back goes on as the next attempt of its run.
"""

import json
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.moments import moment_ns
from ranklake.capture.importers.source import SourceError, uncoloured
from ranklake.lake.contracts.redact import redact

if TYPE_CHECKING:
    from ranklake.capture.importers.mapping import Mapping
    from ranklake.capture.importers.recording import Recording
    from ranklake.capture.importers.source import Source

_HALVES: Final = 20
_TIMELESS_NS: Final = 946_684_800 * 10**9  # 2000-01-01: what a log without any time counts from
_NUMBER: Final = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf)"
_AT: Final = r"(?:\[(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*)\]\s+)?"
_BEGIN: Final = re.compile(rf"{_AT}\s?iteration\s+\d+/\s*\d+\s*\|")
_ITERATION: Final = re.compile(rf"{_AT}\s?iteration\s+(?P<step>\d{{1,15}})/\s*\d+\s*\|(?P<rest>.*)")
_PART: Final = re.compile(r"(?:^|\s)iteration\s+\d*(?:/\s*\d*)?\s*$")
_FIELD: Final = re.compile(
    rf"\s*(?P<name>[A-Za-z][^|:\[]*?(?:\([^)|]*\))?)\s*:\s*(?P<value>{_NUMBER})\s*\|", re.IGNORECASE
)
_TIMER: Final = re.compile(rf"([A-Za-z][\w\-/]*):\s*({_NUMBER})(?=\s*(?:\||$))", re.IGNORECASE)
_FOREIGN: Final = re.compile(
    r"\[Rank \d+\]|\S+:\d+:\d+ \[\d+\] NCCL|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\]|WARNING|Warning|"
    r"time \(ms\)|Traceback|\[default\d+\]"
)
_MEMORY: Final = re.compile(
    rf"\[Rank (\d{{1,9}})\] \(after (\d{{1,15}}) iterations\) memory \(MB\)((?: \| [a-z \-]+: {_NUMBER})+)"
)
_VALIDATION: Final = re.compile(r"validation loss at iteration (\d{1,15})(?: on validation set)?\s*\|(.*)")
_DEEPSPEED: Final = re.compile(
    rf"steps: (\d{{1,15}}) loss: ({_NUMBER}) iter time \(s\): ({_NUMBER})(?: samples/sec: ({_NUMBER}))?", re.IGNORECASE
)
_DATE: Final = re.compile(r"(?:datetime:\s*|^\s*\[)(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?)")
_WORLD: Final = re.compile(
    r"using world size:\s*(\d{1,8}),.*?data-parallel-size:\s*(\d{1,8}),\s*tensor-model-parallel size:\s*(\d{1,8}),"
    r"\s*pipeline-model-parallel size:\s*(\d{1,8})"
)
_ARGUMENT: Final = re.compile(r"^\s{2}(\w+) \.{3,} (.*)$")
_LABEL: Final = re.compile(r"^\s?(?:\d{1,6}: ?(?=\s|\[|[A-Za-z])|\[(?:default|rank)?\d{1,6}\]: ?)")
_ACROSS: Final = re.compile(
    rf"^\s+([a-z][\w\-/]*) \.{{2,}}: (?:\(({_NUMBER}), ({_NUMBER})\)|({_NUMBER}))\s*$", re.IGNORECASE
)
"""A timer as Megatron-LM prints it since 2023: the least and the most that a rank needed, or the most alone."""
_STEP: Final = {"lm loss": "loss", "loss": "loss", "grad norm": "grad_norm", "learning rate": "lr"}
_SCALARS: Final = {
    "loss scale": ("train/loss_scale", "gauge"), "global batch size": ("train/batch_size", "gauge"),
    "number of skipped iterations": ("train/skipped_steps", "delta"), "params norm": ("train/param_norm", "gauge"),
    "consumed tokens": ("train/tokens_seen", "counter"), "lm loss value": ("eval/loss", "gauge"),
    "lm loss ppl": ("eval/perplexity", "gauge"),
}  # fmt: skip
_PHASES: Final = {"forward-compute": "forward", "backward-compute": "backward", "optimizer": "optimizer"}
_ELAPSED: Final = re.compile(r"elapsed time per iteration \((m?s)\)")


@dataclass
class _Log:
    """What was read of a log so far."""

    now_ns: int | None = None
    half: str = ""
    half_line: int = 0
    tries: int = 0
    step: dict[str, Any] | None = None
    last: tuple[int, str] = (-1, "")
    is_engines: bool = False
    engines_last: int = -1
    reckoned: bool = False
    told: bool = False
    config: dict[str, str] = field(default_factory=dict)
    world: tuple[int, int, int, int] | None = None
    highest: int = 0


def read(source: "Source", recording: "Recording", mapping: "Mapping | None") -> None:
    """Import a log. Iterations that other output left without their time are refused; other lines are none of ours.

    Raises
    ------
    SourceError
        Nothing in the file is of Megatron-LM or DeepSpeed.
    """
    del mapping
    log, attempts = _Log(), [recording]
    for line in source.lines():
        text = _LABEL.sub("", uncoloured(line.text))
        _date(log, text)
        for piece in _pieces(text):
            if _ITERATION.match(piece) or _PART.search(piece):
                _give_up(log, attempts)
                _iteration(log, attempts, piece, line.number)
            elif not (log.half and _joined(log, attempts, piece)):
                _other(log, attempts, piece)
    _give_up(log, attempts)
    _flush(log, attempts[-1])
    if source.cut:
        recording.refuse("steps", source.cut, "")
    if recording.is_empty:
        mend = "name the standard output of the run"
        raise SourceError("nothing of Megatron-LM or DeepSpeed is in the file", where=source.name, mend=mend)
    for attempt in attempts:
        _facts(log, attempt)


def _pieces(text: str) -> list[str]:
    """Cut a line before each iteration that begins in it."""
    begins = [found.start() for found in _BEGIN.finditer(text)]
    return [text[left:right] for left, right in pairwise([0, *begins, len(text)]) if left < right] or [""]


def _iteration(log: _Log, attempts: "list[Recording]", text: str, number: int) -> None:
    own = text[: cut.start()] if (cut := _FOREIGN.search(text, 1)) else text  # its own time may come first
    found = _ITERATION.match(own)
    if found and own.rstrip().endswith("|") and own == text and _take(log, attempts, found):
        return
    log.half, log.half_line, log.tries = own, number, 0
    if own != text:
        _other(log, attempts, text[len(own) :])


def _joined(log: _Log, attempts: "list[Recording]", text: str) -> bool:
    """Try a line as the other half of an iteration's; return whether it was."""
    log.tries += 1
    own = text[: cut.start()] if (cut := _FOREIGN.search(text)) else text
    if not own.strip() or "|" not in own:
        if log.tries >= _HALVES:
            _give_up(log, attempts)
        return False
    found = _ITERATION.match(log.half + own)
    if found and own.rstrip().endswith("|") and _ELAPSED.search(found["rest"]) and _take(log, attempts, found):
        log.half = ""
        return True
    if log.tries >= _HALVES:
        _give_up(log, attempts)
    return False


def _give_up(log: _Log, attempts: "list[Recording]") -> None:
    """Take what is whole of a half line; refuse one without its time."""
    half, log.half = log.half, ""
    if half:
        found = _ITERATION.match(half)
        if found is None or not _take(log, attempts, found):
            attempts[-1].refuse("steps", "an iteration that other output cut off", half, log.half_line)


def _take(log: _Log, attempts: "list[Recording]", found: "re.Match[str]") -> bool:
    """Take an iteration; return False, with nothing done, if its time is not there."""
    fields = {" ".join(item["name"].lower().split()): float(item["value"]) for item in _FIELD.finditer(found["rest"])}
    seconds = None
    for name in list(fields):
        unit = _ELAPSED.fullmatch(name)
        if unit:
            value = fields.pop(name)
            seconds = value / 1000 if unit[1] == "ms" else value
    if seconds is None or not 0 <= seconds < 1 << 30:
        return False
    step = int(found["step"])
    if (step, found[0]) == log.last:
        attempts[-1].refuse("steps", "an iteration that stands in the log twice", found[0])
        return True
    same = log.step if log.step is not None and log.step["number"] == step and step > log.last[0] else None
    if same is None:
        _flush(log, attempts[-1])
    log.step = None
    if step <= log.last[0]:
        attempts.append(attempts[0].beside(attempts[0].run, attempts[-1].attempt + 1))
    log.last, log.is_engines = (step, found[0]), False
    ended = moment_ns(found["at"].replace(",", ".")) if found["at"] else None
    begin = same["ts_ns"] if same and ended is None else _begin(log, seconds, ended)
    log.step = {"number": step, "seconds": seconds, "ts_ns": begin}
    log.step |= {target: fields.pop(name) for name, target in _STEP.items() if name in fields}
    _scalars(attempts[-1], fields, begin + round(seconds * 1e9), step)
    return True


def _begin(log: _Log, seconds: float, ended_ns: int | None) -> int:
    length = round(seconds * 1e9)
    log.reckoned |= ended_ns is None
    log.told |= ended_ns is not None
    begin = ended_ns - length if ended_ns is not None else _TIMELESS_NS if log.now_ns is None else log.now_ns
    log.now_ns = begin + length
    return begin


def _scalars(recording: "Recording", fields: dict[str, float], ts_ns: int, step: int | None) -> None:
    for name, value in fields.items():
        metric, kind = _SCALARS.get(name, ("", "gauge"))
        if metric:
            recording.scalar(metric, value, ts_ns, step=step, kind=kind)
        else:
            slug = re.sub(r"[^a-z0-9]+", "_", name).strip("_")
            recording.scalar(f"megatron/{slug}"[:512], value, ts_ns, step=step, kind=kind, edge_flag="unregistered")


def _flush(log: _Log, recording: "Recording") -> None:
    step, log.step = log.step, None
    if step is not None:
        recording.step(step.pop("number"), step.pop("seconds"), step.pop("ts_ns"), **step)


def _other(log: _Log, attempts: "list[Recording]", text: str) -> None:
    """Take what lines say that are no iterations."""
    recording = attempts[-1]
    at_ns = log.now_ns if log.now_ns is not None else _TIMELESS_NS
    _memory(log, recording, text, at_ns)
    timers = text.partition("time (ms) |")[2]
    if log.step is not None and not log.is_engines and timers:
        _timers(log.step, recording, timers, at_ns)
    elif log.step is not None and not log.is_engines and (across := _ACROSS.match(text)):
        most = across[3] or across[4]
        _timers(log.step, recording, f"{across[1]}: {most}", at_ns)
        if across[2]:
            _timers(log.step, recording, f"{across[1]}/least: {across[2]}", at_ns)
    elif validation := _VALIDATION.search(text):
        fields = {
            " ".join(item["name"].lower().split()): float(item["value"]) for item in _FIELD.finditer(validation[2])
        }
        _scalars(recording, fields, at_ns, int(validation[1]))
    elif deepspeed := _DEEPSPEED.search(text):
        _deepspeed(log, attempts, deepspeed)
    elif world := _WORLD.search(text):
        log.world = (int(world[1]), int(world[2]), int(world[3]), int(world[4]))
    elif argument := _ARGUMENT.match(text):
        log.config.setdefault(argument[1], argument[2].strip())


def _deepspeed(log: _Log, attempts: "list[Recording]", found: "re.Match[str]") -> None:
    """Take a step as DeepSpeed's engine tells it, unless Megatron's line tells it, too, before this one or behind."""
    step, seconds = int(found[1]), float(found[3])
    if step == log.last[0]:
        return
    _flush(log, attempts[-1])
    if not 0 <= seconds < 1 << 30:
        attempts[-1].refuse("steps", "a step without its time", found[0])
        return
    if step <= log.engines_last and log.last[0] < 0:  # where Megatron tells steps, its lines say when they go back
        attempts.append(attempts[0].beside(attempts[0].run, attempts[-1].attempt + 1))
    log.engines_last = step
    begin, log.is_engines = _begin(log, seconds, None), True
    log.step = {"number": step, "seconds": seconds, "ts_ns": begin, "loss": float(found[2])}
    if found[4]:
        _scalars(attempts[-1], {"samples per s": float(found[4])}, begin + round(seconds * 1e9), step)


def _memory(log: _Log, recording: "Recording", text: str, at_ns: int) -> None:
    for found in _MEMORY.finditer(text):
        rank, step = int(found[1]), int(found[2])
        log.highest = max(log.highest, rank)
        sizes = dict(part.rsplit(": ", 1) for part in found[3].removeprefix(" | ").split(" | "))
        for name, metric in (("max allocated", "device/memory_allocated"), ("max reserved", "device/memory_reserved")):
            if name in sizes:
                recording.scalar(metric, float(sizes[name]) * 2**20, at_ns, rank, step=step, kind="gauge")


def _timers(step: dict[str, Any], recording: "Recording", text: str, at_ns: int) -> None:
    for name, value in _TIMER.findall(text):
        seconds = float(value) / 1000
        if name in _PHASES:
            step[f"{_PHASES[name]}_time_s"] = seconds
        metric = f"megatron/time/{name}"[:512]
        recording.scalar(metric, seconds, at_ns, step=step["number"], kind="gauge", edge_flag="unregistered")


def _date(log: _Log, text: str) -> None:
    found = _DATE.search(text)
    at = moment_ns(found[1].replace(",", ".")) if found else None
    if at is not None and (log.now_ns is None or at > log.now_ns):
        log.now_ns = at


def _facts(log: _Log, recording: "Recording") -> None:
    labels = {"times": "zone not stated, taken as UTC"} if log.told else {}
    if log.reckoned:
        labels = {"times": "reckoned from the steps' lengths; zone not stated, taken as UTC"}
    config = json.dumps(redact(log.config), sort_keys=True)
    recording.facts = {"job": recording.run, "framework": "megatron", "config": config, "labels": json.dumps(labels)}
    if log.world:
        world, dp, tp, pp = log.world
        recording.world_size = max(world, log.highest + 1)
        recording.facts |= {"world_size": world, "dp_size": dp, "tp_size": tp, "pp_size": pp}
    else:
        recording.world_size = log.highest + 1
        recording.facts["world_size"] = None
