"""State of reading a Megatron-LM log, and what is derived from it: times, counts and facts of the run."""

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
"""What a stamp in whole seconds leaves open: a step that may have begun where the one before ended did so."""
_TOKEN_RATES: Final = ("tokens per gpu (tokens/s/gpu)", "tokens per gpu per second (tgs)", "tokens/s/gpu")
_ROUNDING_NS: Final = 50_000_000
_ARGUMENT_SIZES: Final = {
    "world_size": "world_size", "data_parallel_size": "dp_size", "tensor_model_parallel_size": "tp_size",
    "pipeline_model_parallel_size": "pp_size", "context_parallel_size": "cp_size",
    "expert_model_parallel_size": "ep_size", "seed": "seed",
}  # fmt: skip


@dataclass
class Log:
    """What was read of a log so far.

    Attributes
    ----------
    now_ns
        The end of the last step, or a later time that was reported.
    stamp
        The time in front of the line at hand, as `leading_time` has it.
    last, total
        The last iteration and its text, and the one that training is to end with.
    first, first_stamp
        The attempt's first line, if the one at hand may be its second, and when it says that its steps ended.
    consumed
        Samples and tokens that the attempt had consumed at its last line.
    interval_ns
        How long the last line's steps took, or would have taken were they all of an interval's.
    engines_ns, engine_step, engine_columns, skipped, overflow
        Of DeepSpeed's engine: when it told its last step; what it told ahead of the next one; how many steps it has
        skipped, and the last one that it reported.
    begun_ns
        The first time that the attempt's lines tell.
    lost
        Steps between lines that no line stands for.
    is_begun_anew
        Whether the trainer said something behind the last step that it says before its first.
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
    before: int | None = None
    resumed: int | None = None
    first: LoggedStep | None = None
    first_stamp: tuple[int, bool] | None = None
    consumed: tuple[int | None, int | None] = (None, None)
    interval_ns: int = 0
    begun_ns: int | None = None
    lost: int = 0
    is_begun_anew: bool = False
    is_engines: bool = False
    engines_last: int = -1
    engines_ns: int | None = None
    engine_step: int | None = None
    engine_columns: dict[str, float] = field(default_factory=dict)
    skipped: int = 0
    overflow: int = -1
    is_reckoned: bool = False
    has_times: bool = False
    ending: Ending | None = None
    config: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    params: int | None = None
    highest: int = 0


def count_samples(
    log: Log, fields: dict[str, float], steps: int, since: int, seconds: float
) -> tuple[int | None, int | None]:
    """Return samples and tokens of an iteration's line, over all ranks; None where it does not say.

    Consumed counts are those of `since` iterations, more than the line's own `steps` where lines before it are lost.
    The batch size that the line states is the most that each of its steps can have: at a ramp-up it grows.
    """
    batch = parse_count(fields.get("global batch size", fields.get("gloabl batch size")))
    samples, tokens = parse_count(fields.get("consumed samples")), parse_count(fields.get("consumed tokens"))
    (samples_before, tokens_before), log.consumed = log.consumed, (samples, tokens)
    own = _share(samples, samples_before, steps, since)
    most = batch * steps if batch else None
    count = most if own is None or (most and (since > steps or own > most)) else own
    length = parse_count(fields.get("actual seqlen")) or parse_count(log.config.get("seq_length"))
    rate, ranks = next((fields[name] for name in _TOKEN_RATES if name in fields), None), world(log)
    if length is None and rate and ranks and batch:
        length = round(rate * ranks * seconds / batch)  # a sample has a whole number of tokens
    product = count * length if count is not None and length else None
    own_tokens = _share(tokens, tokens_before, steps, since)
    is_apart = since > steps and product is not None
    return count, product if own_tokens is None or is_apart else own_tokens


def _share(count: int | None, before: int | None, steps: int, since: int) -> int | None:
    """Return what of a count went to the last `steps` of `since` iterations, if each had as much."""
    if count is None or before is None or count <= before:
        return None
    share, rest = divmod((count - before) * steps, since)
    return None if rest else share


def parse_count(value: float | str | None) -> int | None:
    """Return a count; None for none."""
    try:
        number = float(value) if value is not None else -1.0
    except ValueError:
        return None
    return int(number) if 0 < number < 1 << 62 and number.is_integer() else None


def own_seconds(log: Log, steps: int, seconds: float, stamp: tuple[int, bool] | None) -> float:
    """Return the mean time of the steps that a line stands for.

    Newer Megatron-LM prints the first iteration at any interval, and some logs show its timer not reset: the mean in
    the second line has the first line's steps in it, too. It is so where the second line tells more time than went by
    since the first, and exactly that time once the first line's is taken off.
    """
    first = log.first
    if first is None or log.first_stamp is None or stamp is None:
        return seconds
    since = (stamp[0] - log.first_stamp[0]) / 1e9
    rest = seconds * (first.steps + steps) - first.seconds * first.steps
    rounding = (_ROUNDING_NS + (_COARSE_NS if stamp[1] or log.first_stamp[1] else 0)) / 1e9
    is_of_both = rest > 0 and steps * seconds > since + rounding and abs(rest - since) <= rounding
    return rest / steps if is_of_both else seconds


def begin_ns(log: Log, length_s: float, stamp: tuple[int, bool] | None) -> int:
    """Return when what a line tells began, which takes so long; it ended at the time that it tells."""
    length = round(length_s * 1e9)
    log.is_reckoned |= stamp is None
    log.has_times |= stamp is not None
    begin = log.now_ns
    if stamp is not None:
        begin = stamp[0] - length
        if stamp[1] and -_ROUNDING_NS <= log.now_ns - begin <= _COARSE_NS + _ROUNDING_NS:
            begin = log.now_ns
    log.now_ns = begin + length
    return begin


def pass_time(log: Log) -> None:
    """Let it be as late as the line at hand says."""
    if log.stamp is not None and log.stamp[0] > log.now_ns:
        log.now_ns = log.stamp[0]


def world(log: Log) -> int | None:
    """Return how many ranks the run has, as far as the log has said so."""
    return log.sizes.get("world_size") or parse_count(log.config.get("world_size"))


def add_facts(log: Log, recording: "ImportedRun") -> None:
    """Fill in the row of ``runs``; what the log does not say stays NULL."""
    labels = recording.labels
    if log.survey.base_ns == YEAR_2000_NS:
        labels["times"] = "of an unknown start, taken as 2000-01-01"
    elif log.is_reckoned:
        labels["times"] = "reckoned from the steps' lengths; zone not stated, taken as UTC"
    elif log.has_times:
        labels["times"] = "zone not stated, taken as UTC"
    interval = log.survey.interval if log.last[0] >= 0 else log.survey.engines_interval
    if interval > 1:
        labels["steps"] = f"a line stands for {interval}: their times are means"
    if log.survey.batch:
        labels["samples"] = f"{log.survey.batch} a step, reckoned from rates and times"
    if log.lost:
        labels["lost_steps"] = f"{log.lost} between the log's lines"
    config = json.dumps(redact_names(log.config), sort_keys=True)
    recording.facts = {"job": recording.run, "framework": "megatron", "config": config}
    argued = {column: parse_count(log.config.get(name)) for name, column in _ARGUMENT_SIZES.items()}
    recording.facts |= {column: size for column, size in argued.items() if size is not None} | log.sizes
    world = recording.facts.setdefault("world_size", None)
    recording.world_size = max(world or 1, log.highest + 1)
    recording.facts |= {"compute_dtype": log.config.get("params_dtype"), "param_count": log.params}
