"""Megatron: reads the standard output of Megatron-LM, DeepSpeed, GPT-NeoX, NeMo and Primus, interleaved from all ranks.

An iteration's line becomes scalars, and a row of ``steps`` for each iteration that it reports. A line ``time (ms)``
after it adds phases. Memory lines become scalars of the rank in the line. Other ranks' output may split a line: each of
the next `_MAX_TRIES` lines is tried as its second half. A field is read only up to its closing bar. An iteration
without a duration is refused.

Lines of Megatron-LM since 2024 have a time, and some launchers add one. Without it, a step is assumed to begin at the
end of the previous one, or at a later time in the log; labels of the run then say that times are computed. If
iterations go back, or the trainer starts again, the rest of the log is the next attempt of the run.
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
    advance,
    advance_to_line,
    correct_seconds,
    count_samples,
    world_size,
)

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_MAX_TRIES: Final = 20
_MAX_SKEW_S: Final = 2.0
"""Most time between the lines that ranks print for one iteration."""
_STEP: Final = {"lm loss": "loss", "loss": "loss", "grad norm": "grad_norm", "learning rate": "lr"}
_SCALARS: Final = {
    "loss scale": ("train/loss_scale", "gauge"), "global batch size": ("train/batch_size", "gauge"),
    "number of skipped iterations": ("train/skipped_steps", "delta"), "params norm": ("train/param_norm", "gauge"),
    "consumed tokens": ("train/tokens_seen", "counter"), "lm loss value": ("eval/loss", "gauge"),
    "lm loss ppl": ("eval/perplexity", "gauge"),
}  # fmt: skip
_PHASES: Final = {"forward-compute": "forward", "backward-compute": "backward", "optimizer": "optimizer"}


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a log. An iteration without a duration is refused."""
    survey = lines.survey(source)
    log = Log(survey, [recording], survey.base_ns)
    for line in log_lines(source):
        log.stamp = line.time(survey.time_position)
        parts = _split_line(lines.as_megatron(line.text))
        if not any(lines.is_step(part) for part in parts):
            advance_to_line(log)
        for part in parts:
            if lines.ITERATION.match(part) or lines.INCOMPLETE.search(part):
                _end_half(log)
                _read_iteration(log, part, line.number)
            elif not (log.half and _join_halves(log, part)):
                _read_other(log, part)
    _end_half(log)
    _end_attempt(log)
    for attempt in log.attempts:
        add_facts(log, attempt)


def _split_line(text: str) -> list[str]:
    """Split a line before each iteration that begins in it."""
    begins = [begin.start() for begin in lines.BEGIN.finditer(text)]
    return [text[left:right] for left, right in pairwise([0, *begins, len(text)]) if left < right] or [""]


def _read_iteration(log: Log, text: str, number: int) -> None:
    other = lines.OTHER_OUTPUT.search(text, 1)  # from 1: the iteration's own time may be first
    part = text[: other.start()] if other else text
    match = lines.ITERATION.match(part)
    is_complete = match is not None and part.rstrip().endswith("|") and part == text
    if match and is_complete and (_add_iteration(log, match) or _add_untimed(log, match, number)):
        return
    log.half, log.half_line, log.tries = part, number, 0
    if part != text:
        _read_other(log, text[len(part) :])


def _join_halves(log: Log, text: str) -> bool:
    """Try a line as the second half of an iteration's line, and return whether it is."""
    log.tries += 1
    part = text[: other.start()] if (other := lines.OTHER_OUTPUT.search(text)) else text
    if not part.strip() or "|" not in part:
        if log.tries >= _MAX_TRIES:
            _end_half(log)
        return False
    match = lines.ITERATION.match(log.half + part)
    if match and part.rstrip().endswith("|") and lines.has_elapsed(match["rest"]) and _add_iteration(log, match):
        log.half = ""
        return True
    if log.tries >= _MAX_TRIES:
        _end_half(log)
    return False


def _end_half(log: Log) -> None:
    """Add the first half of a split line without its second half, or refuse it if it has no duration."""
    half, log.half = log.half, ""
    if half:
        match = lines.ITERATION.match(half)
        if match is None or not _add_iteration(log, match):
            log.attempts[-1].refuse("steps", "other output cut the iteration off", half, log.half_line)


def _add_iteration(log: Log, match: "re.Match[str]") -> bool:
    """Add an iteration; return False, and change nothing, if it has no duration."""
    fields = lines.fields_of(match["rest"])
    seconds = lines.pop_seconds(fields)
    if seconds is None:
        return False
    step = int(match["step"])
    if _is_repeated(log, match, seconds):
        log.attempts[-1].refuse("steps", "the iteration is in the log twice", match[0])
        return True
    # the same step, reported before by DeepSpeed's engine
    engine = log.step if log.is_from_engine and log.step is not None and log.step.step == step > log.last[0] else None
    if engine is None:
        _flush(log)
    log.step = None
    if log.last[0] >= 0 and (step <= log.last[0] or log.is_restarted):
        _start_attempt(log, lines.own_time(match) or log.stamp)
    log.last, log.is_from_engine, log.total = (step, match[0]), False, int(match["last"])
    steps = covered_steps(step, log.previous, log.survey.interval, log.resumed)
    elapsed_steps = step - log.previous if log.previous is not None else steps
    stamp = lines.own_time(match) or log.stamp
    log.begin_ns = stamp[0] if log.begin_ns is None and stamp is not None else log.begin_ns
    log.lost += max(elapsed_steps - steps, 0) if log.previous is not None else 0
    samples, tokens = count_samples(log, fields, steps, max(elapsed_steps, steps), seconds)
    is_first, seconds = log.previous is None, correct_seconds(log, steps, seconds, stamp)
    begin_ns = engine.begin_ns if engine and stamp is None else advance(log, steps * seconds, stamp)
    log.step = LoggedStep(step, steps, seconds, begin_ns, samples, tokens)
    log.first, log.first_stamp = (log.step, stamp) if is_first else (None, None)
    log.step.columns = {target: fields.pop(name) for name, target in _STEP.items() if name in fields}
    log.previous, log.ending, log.is_restarted = step, None, False
    log.interval_ns = round(log.survey.interval * seconds * 1e9)
    _add_scalars(log.attempts[-1], fields, log.step.end_ns, step)
    return True


def _add_untimed(log: Log, match: "re.Match[str]", number: int) -> bool:
    """Add the values of an iteration whose duration is printed as unknown; return False for other iterations."""
    if not lines.has_elapsed(match["rest"]):
        return False
    fields, step, recording = lines.fields_of(match["rest"]), int(match["step"]), log.attempts[-1]
    for name, target in _STEP.items():
        if name in fields:
            value = fields.pop(name)
            recording.scalar(f"train/{target}", value, log.now_ns, step=step, kind="gauge")
    _add_scalars(recording, fields, log.now_ns, step)
    recording.refuse("steps", "the log does not have the iteration's duration", match[0], number)
    return True


def _is_repeated(log: Log, match: "re.Match[str]", seconds: float) -> bool:
    """Whether another rank reported the same iteration before, and the run neither ended nor restarted since."""
    step = int(match["step"])
    if (step, match[0]) == log.last:
        return True
    if step != log.last[0] or log.is_restarted or log.ending is not None:
        return False
    stamp = lines.own_time(match) or log.stamp
    return stamp is None or log.step is None or stamp[0] - log.step.end_ns < max(seconds / 2, _MAX_SKEW_S) * 1e9


def _start_attempt(log: Log, stamp: "tuple[int, bool] | None") -> None:
    """End the attempt, and start the next one."""
    _end_attempt(log)
    is_earlier = stamp is not None and log.begin_ns is not None and stamp[0] < log.begin_ns
    log.attempts.append(next_recording(log.attempts, is_earlier=is_earlier))
    log.previous, log.first, log.consumed, log.begin_ns = None, None, (None, None), None


def _add_scalars(recording: "ImportedRun", fields: dict[str, float], ts_ns: int, step: int | None) -> None:
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
        add_steps(log.attempts[-1], step, ranks=world_size(log))


def _end_attempt(log: Log) -> None:
    """Add the last step of an attempt, and the event of how the attempt ended."""
    _flush(log)
    completion = Ending("finished", "the last step was reached") if 0 < log.total <= log.last[0] else None
    end, log.ending = likelier_ending(log.ending, completion), None
    if end is None or log.last[0] < 0:
        return
    recording = log.attempts[-1]
    unlogged_ns = min((end.at_ns or 0) - log.now_ns, log.interval_ns)
    if end.kind != "finished" and unlogged_ns > 0:  # steps after the last line
        recording.row(
            "spans", log.now_ns, name="unlogged", kind="phase", duration_ns=unlogged_ns, span_id=0,
            attributes='{"unfinished":true}',
        )  # fmt: skip
    add_ending(recording, end, log.now_ns, log.last[0])


def _read_other(log: Log, text: str) -> None:
    """Read a line that is no iteration."""
    recording = log.attempts[-1]
    _add_memory(log, recording, text, log.now_ns)
    log.ending = likelier_ending(log.ending, ending(text))
    timers = text.partition("time (ms) |")[2]
    if log.step is not None and not log.is_from_engine and timers:
        _add_timers(log.step, recording, timers, log.now_ns)
    elif log.step is not None and not log.is_from_engine and (timer := lines.TIMER_OVER_RANKS.match(text)):
        _add_timers(log.step, recording, f"{timer[1]}: {timer[3] or timer[4]}", log.now_ns)
        if timer[2]:
            _add_timers(log.step, recording, f"{timer[1]}/least: {timer[2]}", log.now_ns)
    elif validation := lines.VALIDATION.search(text):
        _add_scalars(recording, lines.fields_of(validation[2]), log.now_ns, int(validation[1]))
    elif deepspeed := lines.DEEPSPEED.search(text):
        _add_engine_step(log, int(deepspeed[1]), float(deepspeed[3]), {"loss": float(deepspeed[2])}, deepspeed[4], text)
    elif stop := lines.TIMER_STOP.search(text):
        _read_timer_stop(log, stop, text)
    else:
        _read_facts(log, recording, text)
    if flops := lines.FLOPS.search(text):
        name = "effective tera flops per gpu"
        _add_scalars(recording, {name: float(flops[1])}, log.now_ns, log.last[0] if log.last[0] >= 0 else None)
        log.params = round(float(flops[2]) * 1e9) if flops[2] else log.params


def _read_facts(log: Log, recording: "ImportedRun", text: str) -> None:
    """Read facts of the run: sizes, arguments, the loaded checkpoint, skipped steps."""
    if lines.STARTED.search(text):
        log.is_restarted, log.resumed = log.last[0] >= 0, None
    log.sizes |= lines.sizes_of(text)
    if loaded := lines.LOADED.search(text):
        log.resumed = int(loaded[1])
    elif rank := lines.PRIMUS_RANK.search(text):
        log.sizes.setdefault("world_size", int(rank[2]))
    if engine := lines.ENGINE_STEP.search(text):
        log.engine_step, log.engine_columns = int(engine[1]), {"lr": float(engine[3])}
        if int(engine[2]) > log.skipped:
            _add_scalars(
                recording, {"number of skipped iterations": float(engine[2]) - log.skipped}, log.now_ns, int(engine[1])
            )
        log.skipped = int(engine[2])
    elif (overflow := lines.OVERFLOW.search(text)) and (overflow[1] is None or int(overflow[1]) != log.overflow):
        step = int(overflow[1]) if overflow[1] else None
        log.overflow = log.overflow if step is None else step
        recording.row("events", log.now_ns, event="grad_overflow", severity="warning", step=step)
    if argument := lines.ARGUMENT.match(text):
        log.config.setdefault(argument[1], argument[2].strip())


def _read_timer_stop(log: Log, stop: "re.Match[str]", text: str) -> None:
    """Add a step of the timer of DeepSpeed's engine, with a duration from its rate, or else from the lines' times."""
    step, rate, batch = int(stop[1]) if stop[1] else log.engine_step, float(stop[2] or "nan"), log.survey.batch
    if step is None or step == log.engine_last:
        return
    seconds, elapsed_steps = math.nan, step - log.engine_last
    if batch is not None and rate > 0:
        seconds = batch / rate
    elif log.stamp is not None and log.engine_ns is not None and 0 <= log.engine_last < step:
        seconds = (log.stamp[0] - log.engine_ns) / elapsed_steps / 1e9
    log.engine_ns = None if log.stamp is None else log.stamp[0]
    if not (math.isnan(seconds) and log.survey.has_iterations):
        _add_engine_step(log, step, seconds, log.engine_columns, stop[2], text, batch)


def _add_engine_step(
    log: Log,
    step: int,
    seconds: float,
    columns: dict[str, float],
    rate: str | None,
    text: str,
    batch: int | None = None,
) -> None:
    """Add a step of DeepSpeed's engine, unless Megatron's line reports the same step, before or after."""
    if step == log.last[0]:
        return
    _flush(log)
    if not 0 <= seconds < 1 << 30:
        log.attempts[-1].refuse("steps", "the step has no duration", text)
        log.engine_last = step
        return
    has_only_engine = log.last[0] < 0
    if step <= log.engine_last and has_only_engine:  # else lines of iterations show a new attempt
        _start_attempt(log, log.stamp)
    log.engine_last = step
    steps = covered_steps(step, log.previous, log.survey.engine_interval, log.resumed) if has_only_engine else 1
    log.previous = step if has_only_engine else log.previous
    begin_ns, log.is_from_engine = advance(log, steps * seconds, log.stamp), True
    log.step = LoggedStep(step, steps, seconds, begin_ns, batch * steps if batch else None, columns=dict(columns))
    if rate:
        _add_scalars(log.attempts[-1], {"samples per s": float(rate)}, log.step.end_ns, step)


def _add_memory(log: Log, recording: "ImportedRun", text: str, at_ns: int) -> None:
    for memory in lines.MEMORY.finditer(text):
        rank, step = int(memory[1]), int(memory[2])
        log.highest_rank = max(log.highest_rank, rank)
        sizes = dict(part.rsplit(": ", 1) for part in memory[3].removeprefix(" | ").split(" | "))
        for name, metric in (("max allocated", "device/memory_allocated"), ("max reserved", "device/memory_reserved")):
            if name in sizes:
                recording.scalar(metric, float(sizes[name]) * 2**20, at_ns, rank, step=step, kind="gauge")


def _add_timers(step: LoggedStep, recording: "ImportedRun", text: str, at_ns: int) -> None:
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
    nothing=("the file has no line of Megatron-LM or DeepSpeed", "name the standard output of the run"),
    among=True,
)
