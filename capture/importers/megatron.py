"""Standard output of Megatron-LM and DeepSpeed, as all ranks wrote it at once.

An iteration's line becomes a row of ``steps`` and scalars; ``time (ms)`` behind it adds phases; memory lines are
scalars of the rank that they name. Other ranks' output cuts lines in two: what comes next is tried as the other half,
up to `_HALVES` lines on. A field counts only if its end is there; an iteration without its time is refused.

Few lines say when they were written. A step begins where the one before ended, or at the last time of day that the log
told since; the run's labels say that these times are reckoned.
"""

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.moments import moment_ns
from ranklake.lake.contracts.redact import redact

if TYPE_CHECKING:
    from ranklake.capture.importers.mapping import Mapping
    from ranklake.capture.importers.recording import Recording
    from ranklake.capture.importers.source import Source

_HALVES: Final = 20
_TIMELESS_NS: Final = 946_684_800 * 10**9  # 2000-01-01: what a log without any time counts from
_NUMBER: Final = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf)"
_BEGIN: Final = re.compile(r"(?=(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\]\s)?\s?iteration\s+\d+/\s*\d+\s*\|)")
_ITERATION: Final = re.compile(
    r"(?:\[(?P<at>\d{4}-[^\]]*)\]\s)?\s?iteration\s+(?P<step>\d{1,15})/\s*\d+\s*\|(?P<rest>.*)"
)
_PART: Final = re.compile(r"(?:^|\s)iteration\s+\d*(?:/\s*\d*)?\s*$")
_FIELD: Final = re.compile(
    rf"\s*(?P<name>[A-Za-z][^|:\[]*?(?:\([^)|]*\))?)\s*:\s*(?P<value>{_NUMBER})\s*\|", re.IGNORECASE
)
_TIMER: Final = re.compile(rf"([A-Za-z][\w\-]*):\s*({_NUMBER})(?=\s*(?:\||$))", re.IGNORECASE)
_FOREIGN: Final = re.compile(
    r"\[Rank \d+\]|\S+:\d+:\d+ \[\d+\] NCCL|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\]|WARNING|Warning|"
    r"time \(ms\)|Traceback|\[default\d+\]"
)
_MEMORY: Final = re.compile(
    rf"\[Rank (\d{{1,9}})\] \(after (\d{{1,15}}) iterations\) memory \(MB\)((?: \| [a-z \-]+: {_NUMBER})+)"
)
_VALIDATION: Final = re.compile(r"validation loss at iteration (\d{1,15})\s*\|(.*)")
_DEEPSPEED: Final = re.compile(rf"steps: (\d{{1,15}}) loss: ({_NUMBER}) iter time \(s\): ({_NUMBER})", re.IGNORECASE)
_DATE: Final = re.compile(r"(?:datetime:\s*|^\[)(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?)")
_WORLD: Final = re.compile(
    r"using world size:\s*(\d{1,8}),.*?data-parallel-size:\s*(\d{1,8}),\s*tensor-model-parallel size:\s*(\d{1,8}),"
    r"\s*pipeline-model-parallel size:\s*(\d{1,8})"
)
_ARGUMENT: Final = re.compile(r"^\s{2}(\w+) \.{3,} (.*)$")
_LABEL: Final = re.compile(r"^\s?\d{1,6}: ?(?=\s|\[|[A-Za-z])")
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
    reckoned: bool = False
    config: dict[str, str] = field(default_factory=dict)
    world: tuple[int, int, int, int] | None = None
    highest: int = 0


def read(source: "Source", recording: "Recording", mapping: "Mapping | None") -> None:
    """Import a log. Iterations that other output left without their time are refused; other lines are none of ours."""
    del mapping
    log = _Log()
    for line in source.lines():
        text = _LABEL.sub("", line.text)
        _date(log, text)
        pieces = [piece for piece in _BEGIN.split(text) if piece]
        for piece in pieces or [""]:
            if _ITERATION.match(piece) or _PART.search(piece):
                _give_up(log, recording)
                _iteration(log, recording, piece, line.number)
            elif not (log.half and _joined(log, recording, piece)):
                _other(log, recording, piece)
    _give_up(log, recording)
    _flush(log, recording)
    if source.cut:
        recording.refuse("steps", source.cut, "")
    _facts(log, recording)


def _iteration(log: _Log, recording: "Recording", text: str, number: int) -> None:
    own = text[: cut.start()] if (cut := _FOREIGN.search(text)) and not text.lstrip().startswith("[") else text
    found = _ITERATION.match(own)
    if found and own.rstrip().endswith("|") and own == text and _take(log, recording, found):
        return
    log.half, log.half_line, log.tries = own, number, 0
    if own != text:
        _other(log, recording, text[len(own) :])


def _joined(log: _Log, recording: "Recording", text: str) -> bool:
    """Try a line as the other half of an iteration's; return whether it was."""
    log.tries += 1
    own = text[: cut.start()] if (cut := _FOREIGN.search(text)) else text
    if not own.strip() or "|" not in own:
        if log.tries >= _HALVES:
            _give_up(log, recording)
        return False
    found = _ITERATION.match(log.half + own)
    if found and own.rstrip().endswith("|") and _ELAPSED.search(found["rest"]) and _take(log, recording, found):
        log.half = ""
        return True
    if log.tries >= _HALVES:
        _give_up(log, recording)
    return False


def _give_up(log: _Log, recording: "Recording") -> None:
    """Take what is whole of a half line; refuse one without its time."""
    half, log.half = log.half, ""
    if half:
        found = _ITERATION.match(half)
        if found is None or not _take(log, recording, found):
            recording.refuse("steps", "an iteration that other output cut off", half, log.half_line)


def _take(log: _Log, recording: "Recording", found: "re.Match[str]") -> bool:
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
    _flush(log, recording)
    step = int(found["step"])
    ended = moment_ns(found["at"].replace(",", ".")) if found["at"] else None
    begin = _begin(log, seconds, ended)
    log.step = {"number": step, "seconds": seconds, "ts_ns": begin}
    log.step |= {target: fields.pop(name) for name, target in _STEP.items() if name in fields}
    _scalars(recording, fields, begin + round(seconds * 1e9), step)
    return True


def _begin(log: _Log, seconds: float, ended_ns: int | None) -> int:
    length = round(seconds * 1e9)
    log.reckoned |= ended_ns is None
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


def _other(log: _Log, recording: "Recording", text: str) -> None:
    """Take what lines say that are no iterations."""
    at_ns = log.now_ns if log.now_ns is not None else _TIMELESS_NS
    _memory(log, recording, text, at_ns)
    timers = text.partition("time (ms) |")[2]
    if log.step is not None and timers:
        _timers(log.step, recording, timers, at_ns)
    elif validation := _VALIDATION.search(text):
        fields = {
            " ".join(item["name"].lower().split()): float(item["value"]) for item in _FIELD.finditer(validation[2])
        }
        _scalars(recording, fields, at_ns, int(validation[1]))
    elif deepspeed := _DEEPSPEED.search(text):
        _flush(log, recording)
        seconds = float(deepspeed[3])
        if 0 <= seconds < 1 << 30:
            recording.step(int(deepspeed[1]), seconds, _begin(log, seconds, None), loss=float(deepspeed[2]))
    elif world := _WORLD.search(text):
        log.world = (int(world[1]), int(world[2]), int(world[3]), int(world[4]))
    elif argument := _ARGUMENT.match(text):
        log.config.setdefault(argument[1], argument[2].strip())


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
    labels = {"times": "reckoned from the steps' lengths; zone not stated, taken as UTC"} if log.reckoned else {}
    config = json.dumps(redact(log.config), sort_keys=True)
    recording.facts = {"job": recording.run, "framework": "megatron", "config": config, "labels": json.dumps(labels)}
    if log.world:
        world, dp, tp, pp = log.world
        recording.world_size = max(world, log.highest + 1)
        recording.facts |= {"world_size": world, "dp_size": dp, "tp_size": tp, "pp_size": pp}
    else:
        recording.world_size = log.highest + 1
        recording.facts["world_size"] = None
