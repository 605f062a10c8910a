"""Megatron log: the state of reading a Megatron-LM log, and the times, counts and facts of the run derived from it."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ranklake.capture.importers import megatron_lines as lines
from ranklake.capture.importers.log_lines import Ending
from ranklake.capture.importers.logged_steps import LoggedStep
from ranklake.capture.importers.units import YEAR_2000_NS
from ranklake.redaction.redact import redact_names

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun

_COARSE_NS: Final = 10**9
"""Precision of times in whole seconds. Within it, a step is assumed to begin at the end of the previous one."""
_TOKEN_RATES: Final = ("tokens per gpu (tokens/s/gpu)", "tokens per gpu per second (tgs)", "tokens/s/gpu")
_ROUNDING_NS: Final = 50_000_000
_ARGUMENT_SIZES: Final = {
    "world_size": "world_size", "data_parallel_size": "dp_size", "tensor_model_parallel_size": "tp_size",
    "pipeline_model_parallel_size": "pp_size", "context_parallel_size": "cp_size",
    "expert_model_parallel_size": "ep_size", "seed": "seed",
}  # fmt: skip


@dataclass
class Log:
    """State of reading a log. Times are ns since 1970.

    Attributes
    ----------
    now_ns
        End of the last step, or a later time in the log.
    stamp
        Time of the current line, as `leading_time` returns it.
    half, half_line, tries
        Text and number of an incomplete iteration's line, and the lines read since to complete it.
    step
        The last line's steps, not added yet.
    last, total
        Number and text of the last iteration, and the number of training's last iteration.
    previous
        The last logged step of this attempt.
    resumed
        Iteration of the loaded checkpoint.
    first, first_stamp
        The attempt's first line and its time; None after the second line.
    consumed
        Samples and tokens that the attempt had consumed at its last line.
    interval_ns
        Duration of a full interval of steps, at the last line's speed.
    begin_ns
        The first time in the attempt's lines.
    lost
        Number of steps whose lines are missing.
    is_restarted
        Whether the last step is followed by a line that is printed before the first step.
    is_from_engine
        Whether `step` comes from DeepSpeed's engine.
    engine_last, engine_ns
        The last step of DeepSpeed's engine, and its time.
    engine_step, engine_columns
        Step and columns of the engine's line before the next line of its timer.
    skipped, overflow
        Number of steps that the engine skipped, and the last step whose overflow it reported.
    is_estimated, has_times
        Whether times of some steps are computed from durations, and whether some lines have times.
    """

    survey: lines.Survey
    attempts: "list[ImportedRun]"
    now_ns: int
    stamp: tuple[int, bool] | None = None
    half: str = ""
    half_line: int = 0
    tries: int = 0
    step: LoggedStep | None = None
    last: tuple[int, str] = (-1, "")
    total: int = -1
    previous: int | None = None
    resumed: int | None = None
    first: LoggedStep | None = None
    first_stamp: tuple[int, bool] | None = None
    consumed: tuple[int | None, int | None] = (None, None)
    interval_ns: int = 0
    begin_ns: int | None = None
    lost: int = 0
    is_restarted: bool = False
    is_from_engine: bool = False
    engine_last: int = -1
    engine_ns: int | None = None
    engine_step: int | None = None
    engine_columns: dict[str, float] = field(default_factory=dict)
    skipped: int = 0
    overflow: int = -1
    is_estimated: bool = False
    has_times: bool = False
    ending: Ending | None = None
    config: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    params: int | None = None
    highest_rank: int = 0


def count_samples(
    log: Log, fields: dict[str, float], steps: int, elapsed: int, seconds: float
) -> tuple[int | None, int | None]:
    """Return samples and tokens of a line's `steps` over all ranks; None if unknown.

    Differences of consumed counts cover `elapsed` steps, which is more than `steps` if lines are lost. The line's batch
    size is an upper limit for each of its steps, because a batch size that is ramped up grows.
    """
    batch = parse_count(fields.get("global batch size", fields.get("gloabl batch size")))
    samples, tokens = parse_count(fields.get("consumed samples")), parse_count(fields.get("consumed tokens"))
    (previous_samples, previous_tokens), log.consumed = log.consumed, (samples, tokens)
    consumed_samples = _consumed(samples, previous_samples, steps, elapsed)
    limit = batch * steps if batch else None
    exceeds = limit is not None and consumed_samples is not None and (elapsed > steps or consumed_samples > limit)
    count = limit if consumed_samples is None or exceeds else consumed_samples
    length = parse_count(fields.get("actual seqlen")) or parse_count(log.config.get("seq_length"))
    rate, ranks = next((fields[name] for name in _TOKEN_RATES if name in fields), None), world_size(log)
    if length is None and rate and ranks and batch:
        length = round(rate * ranks * seconds / batch)  # tokens of a sample are an integer
    product = count * length if count is not None and length else None
    consumed_tokens = _consumed(tokens, previous_tokens, steps, elapsed)
    prefers_product = elapsed > steps and product is not None
    return count, product if consumed_tokens is None or prefers_product else consumed_tokens


def _consumed(count: int | None, previous: int | None, steps: int, elapsed: int) -> int | None:
    """Return what `steps` of `elapsed` steps consumed, in equal parts; None if unknown, or not divisible."""
    if count is None or previous is None or count <= previous:
        return None
    share, rest = divmod((count - previous) * steps, elapsed)
    return None if rest else share


def parse_count(value: float | str | None) -> int | None:
    """Return a positive integer; None for other values."""
    try:
        number = float(value) if value is not None else -1.0
    except ValueError:
        return None
    return int(number) if 0 < number < 1 << 62 and number.is_integer() else None


def correct_seconds(log: Log, steps: int, seconds: float, stamp: tuple[int, bool] | None) -> float:
    """Return the mean duration of a line's steps; corrected if the line's mean includes the attempt's first line.

    Newer Megatron-LM prints the first iteration whatever the interval, and some logs show that it did not reset its
    timer there. The second line's mean then includes the first line's steps. It does if it gives more time than passed
    since the first line, and exactly that time without the first line's steps.
    """
    first = log.first
    if first is None or log.first_stamp is None or stamp is None:
        return seconds
    elapsed_s = (stamp[0] - log.first_stamp[0]) / 1e9
    rest_s = seconds * (first.steps + steps) - first.seconds * first.steps
    rounding_s = (_ROUNDING_NS + (_COARSE_NS if stamp[1] or log.first_stamp[1] else 0)) / 1e9
    includes_first = steps * seconds > elapsed_s + rounding_s and abs(rest_s - elapsed_s) <= rounding_s
    return rest_s / steps if rest_s > 0 and includes_first else seconds


def advance(log: Log, duration_s: float, stamp: tuple[int, bool] | None) -> int:
    """Move `log.now_ns` to the end of a line's steps, and return their begin, ns since 1970.

    They end at the line's time, or without one they begin at the end of the previous steps.
    """
    duration_ns = round(duration_s * 1e9)
    log.is_estimated |= stamp is None
    log.has_times |= stamp is not None
    begin_ns = log.now_ns
    if stamp is not None:
        begin_ns = stamp[0] - duration_ns
        if stamp[1] and -_ROUNDING_NS <= log.now_ns - begin_ns <= _COARSE_NS + _ROUNDING_NS:
            begin_ns = log.now_ns
    log.now_ns = begin_ns + duration_ns
    return begin_ns


def advance_to_line(log: Log) -> None:
    """Move `log.now_ns` to the current line's time if that is later."""
    if log.stamp is not None and log.stamp[0] > log.now_ns:
        log.now_ns = log.stamp[0]


def world_size(log: Log) -> int | None:
    """Return the number of ranks; None if the log has not reported it so far."""
    return log.sizes.get("world_size") or parse_count(log.config.get("world_size"))


def add_facts(log: Log, recording: "ImportedRun") -> None:
    """Set labels and columns of the row of ``runs``. Columns without a value in the log are NULL."""
    labels = recording.labels
    if log.survey.base_ns == YEAR_2000_NS:
        labels["times"] = "of an unknown start, taken as 2000-01-01"
    elif log.is_estimated:
        labels["times"] = "computed from the steps' durations; zone not stated, taken as UTC"
    elif log.has_times:
        labels["times"] = "zone not stated, taken as UTC"
    interval = log.survey.interval if log.last[0] >= 0 else log.survey.engine_interval
    if interval > 1:
        labels["steps"] = f"each line reports {interval} steps: durations are means"
    if log.survey.batch:
        labels["samples"] = f"{log.survey.batch} per step, computed from rates and times"
    if log.lost:
        labels["lost_steps"] = f"{log.lost} between the log's lines"
    config = json.dumps(redact_names(log.config), sort_keys=True)
    recording.facts = {"job": recording.run, "framework": "megatron", "config": config}
    arguments = {column: parse_count(log.config.get(name)) for name, column in _ARGUMENT_SIZES.items()}
    recording.facts |= {column: size for column, size in arguments.items() if size is not None} | log.sizes
    size = recording.facts.setdefault("world_size", None)
    recording.world_size = max(size or 1, log.highest_rank + 1)
    recording.facts |= {"compute_dtype": log.config.get("params_dtype"), "param_count": log.params}
