"""Standard output of Megatron-LM, DeepSpeed, GPT-NeoX, NeMo and Primus, interleaved from all ranks.

An iteration's line becomes rows of ``steps``, one for each iteration that it stands for, and scalars; ``time (ms)``
behind it adds phases; memory lines are scalars of the rank that they name. Other ranks' output cuts lines in two: what
comes next is tried as the other half, up to `_HALVES` lines on. A field counts only if its end is there; an iteration
without its time is refused.

Lines of Megatron-LM since 2024 say when they were written, as do those of some launchers; where they do not, a step
begins where the one before ended, or at the last time of day that the log told since; the run's labels say that these
times are reckoned. A log whose iterations go back, or that begins anew behind them, goes on as the next attempt of its
run.
"""

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ranklake.capture.importers import megatron_lines as lines
from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.log_lines import Ending, add_ending, ending, likelier_ending, log_lines
from ranklake.capture.importers.logged_steps import LoggedStep, add_steps, covered_steps, next_recording
from ranklake.capture.importers.megatron_log import (
    Log,
    add_facts,
    begin_ns,
    count_samples,
    own_seconds,
    pass_time,
    world,
)

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_HALVES: Final = 20
_RANKS_APART_S: Final = 2.0
"""How far apart ranks write the same iteration's line."""
_STEP: Final = {"lm loss": "loss", "loss": "loss", "grad norm": "grad_norm", "learning rate": "lr"}
_SCALARS: Final = {
    "loss scale": ("train/loss_scale", "gauge"), "global batch size": ("train/batch_size", "gauge"),
    "number of skipped iterations": ("train/skipped_steps", "delta"), "params norm": ("train/param_norm", "gauge"),
    "consumed tokens": ("train/tokens_seen", "counter"), "lm loss value": ("eval/loss", "gauge"),
    "lm loss ppl": ("eval/perplexity", "gauge"),
}  # fmt: skip
_PHASES: Final = {"forward-compute": "forward", "backward-compute": "backward", "optimizer": "optimizer"}


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a log. Iterations that other output left without their time are refused."""
    survey = lines.survey(source)
    log = Log(survey, [recording], survey.base_ns)
    for line in log_lines(source):
        log.stamp = line.time(survey.time_place)
        pieces = _pieces(lines.as_megatron(line.text))
        if not any(lines.is_step(piece) for piece in pieces):
            pass_time(log)
        for piece in pieces:
            if lines.ITERATION.match(piece) or lines.PART.search(piece):
                _give_up(log)
                _iteration(log, piece, line.number)
            elif not (log.half and _join_halves(log, piece)):
                _other(log, piece)
    _give_up(log)
    _end(log)
    for attempt in log.attempts:
        add_facts(log, attempt)


def _pieces(text: str) -> list[str]:
    """Cut a line before each iteration that begins in it."""
    begins = [begin.start() for begin in lines.BEGIN.finditer(text)]
    return [text[left:right] for left, right in pairwise([0, *begins, len(text)]) if left < right] or [""]


def _iteration(log: Log, text: str, number: int) -> None:
    own = text[: cut.start()] if (cut := lines.FOREIGN.search(text, 1)) else text  # its own time may come first
    match = lines.ITERATION.match(own)
    is_whole = match is not None and own.rstrip().endswith("|") and own == text
    if match and is_whole and (_take(log, match) or _take_timeless(log, match, number)):
        return
    log.half, log.half_line, log.tries = own, number, 0
    if own != text:
        _other(log, text[len(own) :])


def _join_halves(log: Log, text: str) -> bool:
    """Try a line as the other half of an iteration's; return whether it was."""
    log.tries += 1
    own = text[: cut.start()] if (cut := lines.FOREIGN.search(text)) else text
    if not own.strip() or "|" not in own:
        if log.tries >= _HALVES:
            _give_up(log)
        return False
    match = lines.ITERATION.match(log.half + own)
    if match and own.rstrip().endswith("|") and lines.has_elapsed(match["rest"]) and _take(log, match):
        log.half = ""
        return True
    if log.tries >= _HALVES:
        _give_up(log)
    return False


def _give_up(log: Log) -> None:
    """Take what is whole of a half line; refuse one without its time."""
    half, log.half = log.half, ""
    if half:
        match = lines.ITERATION.match(half)
        if match is None or not _take(log, match):
            log.attempts[-1].refuse("steps", "an iteration that other output cut off", half, log.half_line)


def _take(log: Log, match: "re.Match[str]") -> bool:
    """Take an iteration; return False, with nothing done, if its time is not there."""
    fields = lines.fields_of(match["rest"])
    seconds = lines.take_seconds(fields)
    if seconds is None:
        return False
    step = int(match["step"])
    if _is_repeated(log, match, seconds):
        log.attempts[-1].refuse("steps", "an iteration that stands in the log twice", match[0])
        return True
    same = log.step if log.is_engines and log.step is not None and log.step.step == step > log.last[0] else None
    if same is None:
        _flush(log)
    log.step = None
    if log.last[0] >= 0 and (step <= log.last[0] or log.is_begun_anew):
        _next_attempt(log, lines.own_time(match) or log.stamp)
    log.last, log.is_engines, log.total = (step, match[0]), False, int(match["last"])
    steps = covered_steps(step, log.before, log.survey.interval, log.resumed)
    since = step - log.before if log.before is not None else steps
    stamp = lines.own_time(match) or log.stamp
    log.begun_ns = stamp[0] if log.begun_ns is None and stamp is not None else log.begun_ns
    log.lost += max(since - steps, 0) if log.before is not None else 0
    samples, tokens = count_samples(log, fields, steps, max(since, steps), seconds)
    is_first, seconds = log.before is None, own_seconds(log, steps, seconds, stamp)
    begin = same.begin_ns if same and stamp is None else begin_ns(log, steps * seconds, stamp)
    log.step = LoggedStep(step, steps, seconds, begin, samples, tokens)
    log.first, log.first_stamp = (log.step, stamp) if is_first else (None, None)
    log.step.columns = {target: fields.pop(name) for name, target in _STEP.items() if name in fields}
    log.before, log.ending, log.is_begun_anew = step, None, False
    log.interval_ns = round(log.survey.interval * seconds * 1e9)
    _scalars(log.attempts[-1], fields, log.step.end_ns, step)
    return True


def _take_timeless(log: Log, match: "re.Match[str]", number: int) -> bool:
    """Take the values of an iteration that says itself that it has no time; return False if it does not."""
    if not lines.has_elapsed(match["rest"]):
        return False
    fields, step, recording = lines.fields_of(match["rest"]), int(match["step"]), log.attempts[-1]
    for name, target in _STEP.items():
        if name in fields:
            value = fields.pop(name)
            recording.scalar(f"train/{target}", value, log.now_ns, step=step, kind="gauge")
    _scalars(recording, fields, log.now_ns, step)
    recording.refuse("steps", "an iteration whose time the log does not tell", match[0], number)
    return True


def _is_repeated(log: Log, match: "re.Match[str]", seconds: float) -> bool:
    """Whether an iteration was reported before: by another rank, unless the run ended or began again since."""
    step = int(match["step"])
    if (step, match[0]) == log.last:
        return True
    if step != log.last[0] or log.is_begun_anew or log.ending is not None:
        return False
    stamp = lines.own_time(match) or log.stamp
    return stamp is None or log.step is None or stamp[0] - log.step.end_ns < max(seconds / 2, _RANKS_APART_S) * 1e9


def _next_attempt(log: Log, stamp: "tuple[int, bool] | None") -> None:
    """Go on as the next attempt of the run."""
    _end(log)
    is_earlier = stamp is not None and log.begun_ns is not None and stamp[0] < log.begun_ns
    log.attempts.append(next_recording(log.attempts, is_earlier=is_earlier))
    log.before, log.first, log.consumed, log.begun_ns = None, None, (None, None), None


def _scalars(recording: "ImportedRun", fields: dict[str, float], ts_ns: int, step: int | None) -> None:
    for name, value in fields.items():
        metric, kind = _SCALARS.get(name, ("", "gauge"))
        if metric:
            recording.scalar(metric, value, ts_ns, step=step, kind=kind)
        else:
            slug = re.sub(r"[^a-z0-9]+", "_", name).strip("_")
            recording.unregistered(f"megatron/{slug}"[:512], value, ts_ns, step=step)


def _flush(log: Log) -> None:
    step, log.step = log.step, None
    if step is not None:
        add_steps(log.attempts[-1], step, ranks=world(log))


def _end(log: Log) -> None:
    """Write down the last step of an attempt, and how the attempt ended."""
    _flush(log)
    done = Ending("finished", "the last step was reached") if 0 < log.total <= log.last[0] else None
    end, log.ending = likelier_ending(log.ending, done), None
    if end is None or log.last[0] < 0:
        return
    recording = log.attempts[-1]
    under_way = min((end.at_ns or 0) - log.now_ns, log.interval_ns)
    if end.how != "finished" and under_way > 0:  # steps that no line tells any more
        recording.row(
            "spans", log.now_ns, name="unlogged", kind="phase", duration_ns=under_way, span_id=0,
            attributes='{"unfinished":true}',
        )  # fmt: skip
    add_ending(recording, end, log.now_ns, log.last[0])


def _other(log: Log, text: str) -> None:
    """Take what lines say that are no iterations."""
    recording = log.attempts[-1]
    _memory(log, recording, text, log.now_ns)
    log.ending = likelier_ending(log.ending, ending(text))
    timers = text.partition("time (ms) |")[2]
    if log.step is not None and not log.is_engines and timers:
        _timers(log.step, recording, timers, log.now_ns)
    elif log.step is not None and not log.is_engines and (across := lines.ACROSS.match(text)):
        most = across[3] or across[4]
        _timers(log.step, recording, f"{across[1]}: {most}", log.now_ns)
        if across[2]:
            _timers(log.step, recording, f"{across[1]}/least: {across[2]}", log.now_ns)
    elif validation := lines.VALIDATION.search(text):
        _scalars(recording, lines.fields_of(validation[2]), log.now_ns, int(validation[1]))
    elif deepspeed := lines.DEEPSPEED.search(text):
        _take_deepspeed_step(
            log, int(deepspeed[1]), float(deepspeed[3]), {"loss": float(deepspeed[2])}, deepspeed[4], text
        )
    elif stop := lines.TIMER_STOP.search(text):
        _timer_stop(log, stop, text)
    else:
        _take_facts(log, recording, text)
    if flops := lines.FLOPS.search(text):
        name = "effective tera flops per gpu"
        _scalars(recording, {name: float(flops[1])}, log.now_ns, log.last[0] if log.last[0] >= 0 else None)
        log.params = round(float(flops[2]) * 1e9) if flops[2] else log.params


def _take_facts(log: Log, recording: "ImportedRun", text: str) -> None:
    """Take what a trainer says of itself: sizes, arguments, the checkpoint that it goes on from."""
    if lines.BEGUN.search(text):
        log.is_begun_anew, log.resumed = log.last[0] >= 0, None
    log.sizes |= lines.sizes_of(text)
    if loaded := lines.LOADED.search(text):
        log.resumed = int(loaded[1])
    elif of := lines.RANK_OF.search(text):
        log.sizes.setdefault("world_size", int(of[2]))
    if about := lines.ENGINE_STEP.search(text):
        log.engine_step, log.engine_columns = int(about[1]), {"lr": float(about[3])}
        if int(about[2]) > log.skipped:
            _scalars(
                recording, {"number of skipped iterations": float(about[2]) - log.skipped}, log.now_ns, int(about[1])
            )
        log.skipped = int(about[2])
    elif (overflow := lines.OVERFLOW.search(text)) and (overflow[1] is None or int(overflow[1]) != log.overflow):
        step = int(overflow[1]) if overflow[1] else None
        log.overflow = log.overflow if step is None else step
        recording.row("events", log.now_ns, event="grad_overflow", severity="warning", step=step)
    if argument := lines.ARGUMENT.match(text):
        log.config.setdefault(argument[1], argument[2].strip())


def _timer_stop(log: Log, stop: "re.Match[str]", text: str) -> None:
    """Take a step as the timer of DeepSpeed's engine tells it: at a rate, or else as long as since the one before."""
    step, rate, batch = int(stop[1]) if stop[1] else log.engine_step, float(stop[2] or "nan"), log.survey.batch
    if step is None or step == log.engines_last:
        return
    seconds, since = math.nan, step - log.engines_last
    if batch is not None and rate > 0:
        seconds = batch / rate
    elif log.stamp is not None and log.engines_ns is not None and 0 <= log.engines_last < step:
        seconds = (log.stamp[0] - log.engines_ns) / since / 1e9
    log.engines_ns = None if log.stamp is None else log.stamp[0]
    if not (math.isnan(seconds) and log.survey.has_iterations):
        _take_deepspeed_step(log, step, seconds, log.engine_columns, stop[2], text, batch)


def _take_deepspeed_step(
    log: Log,
    step: int,
    seconds: float,
    columns: dict[str, float],
    rate: str | None,
    text: str,
    batch: int | None = None,
) -> None:
    """Take a step as DeepSpeed's engine tells it, unless Megatron's line tells it, too, before this one or behind."""
    if step == log.last[0]:
        return
    _flush(log)
    if not 0 <= seconds < 1 << 30:
        log.attempts[-1].refuse("steps", "a step without its time", text)
        log.engines_last = step
        return
    if step <= log.engines_last and log.last[0] < 0:  # where Megatron tells steps, its lines say when they go back
        _next_attempt(log, log.stamp)
    log.engines_last = step
    alone = log.last[0] < 0
    steps = covered_steps(step, log.before, log.survey.engines_interval, log.resumed) if alone else 1
    log.before = step if alone else log.before
    begin, log.is_engines = begin_ns(log, steps * seconds, log.stamp), True
    log.step = LoggedStep(step, steps, seconds, begin, batch * steps if batch else None, columns=dict(columns))
    if rate:
        _scalars(log.attempts[-1], {"samples per s": float(rate)}, log.step.end_ns, step)


def _memory(log: Log, recording: "ImportedRun", text: str, at_ns: int) -> None:
    for memory in lines.MEMORY.finditer(text):
        rank, step = int(memory[1]), int(memory[2])
        log.highest = max(log.highest, rank)
        sizes = dict(part.rsplit(": ", 1) for part in memory[3].removeprefix(" | ").split(" | "))
        for name, metric in (("max allocated", "device/memory_allocated"), ("max reserved", "device/memory_reserved")):
            if name in sizes:
                recording.scalar(metric, float(sizes[name]) * 2**20, at_ns, rank, step=step, kind="gauge")


def _timers(step: LoggedStep, recording: "ImportedRun", text: str, at_ns: int) -> None:
    for name, value in lines.TIMER.findall(text):
        seconds = float(value) / 1000
        if name in _PHASES:
            step.columns[f"{_PHASES[name]}_time_s"] = seconds
        recording.unregistered(f"megatron/time/{name}"[:512], seconds, at_ns, step=step.step)


FORMAT: Final = Format(
    summary="standard output of Megatron-LM, DeepSpeed, GPT-NeoX, NeMo 2 and AMD's Primus",
    recognises="lines such as 'iteration 10/ 500 | … elapsed time per iteration (ms): …|', "
    "or 'steps: 10 … iter time (s): …'",
    read=read,
    table="steps",
    mark=re.compile(
        rb"\biteration\s+\d+/\s*\d+|\belapsed time per iteration|\busing world size:|\biter time \(s\)|"
        rb"\[Rank \d+\] \(after \d+ iterations\)|\btimer\.py:\d+:stop\] |\bGrad overflow on iteration|"
        rb"\biteration=\s*\d+/"
    ),
    nothing=("nothing of Megatron-LM or DeepSpeed is in the file", "name the standard output of the run"),
    among=True,
)
