"""Torchtitan: reads its standard output, which has a line of metrics every few steps, from one rank or several.

    [rank0]:[titan] 2025-06-16 22:31:04,970 - root - INFO - step: 210  loss:  6.0388  memory: 49.66GiB(52.28%)  tps: …

Lines have no durations. The time since the previous line, or since training began, is divided equally among the steps
between them. If a single rank logs, its rows have the tokens of all ranks.
"""

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.log_lines import (
    Ending,
    LogLine,
    add_ending,
    ending,
    likelier_ending,
    log_lines,
    ranks_of,
    trainer_time_position,
)
from ranklake.capture.importers.logged_steps import LoggedStep, add_steps, covered_steps, next_recording, usual_interval

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_NUMBER: Final = r"[-+]?(?:[\d,]+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
LINE: Final = re.compile(rf"\bstep:\s*(?P<step>\d{{1,15}})\s+(?P<rest>(?:\w+:\s*{_NUMBER}.*)?\bloss:\s*{_NUMBER}.*)")
_FIELD: Final = re.compile(rf"\b([a-z_/]+):\s*({_NUMBER})([KMGT]i?B)?", re.IGNORECASE)
_PRIMUS: Final = re.compile(r"\[rank-(\d{1,8})/(\d{1,8})\]")
_STARTS: Final = re.compile(r"\bTraining starts at step:?\s*(\d{1,15})")
_BATCH: Final = re.compile(r"\bglobal batch size:?\s*(\d{1,9})")
_LENGTH: Final = re.compile(r"\bsequence length:?\s*(\d{1,9})")
_TOTAL: Final = re.compile(r"\btotal steps:?\s*(\d{1,15})")
_MESH: Final = re.compile(r"\bBuilding \d+-D device mesh with (\[[^\]]*\]),? \[([\d, ]+)\]")
_PARALLELISM: Final = re.compile(r"\bdevice mesh with parallelism: ((?:\w+=\d+(?:, )?)+)")
_NO_LOSS: Final = -1.0
"""Printed by ranks without a loss, because another pipeline stage computes it."""
_WORLD: Final = re.compile(r"\bworld[_ ]size[=: ]+(\d{1,8})")
_DEVICE: Final = re.compile(r"\b(?:CUDA|GPU|XPU|HIP) capacity: (.+?) with [\d.]+\s*GiB")
_PARAMS: Final = re.compile(r"\bsize: ([\d,]+) (?:total )?parameters")
_SIZES: Final = {"tp": "tp_size", "pp": "pp_size", "cp": "cp_size", "ep": "ep_size"}
_NESTED_DIMENSIONS: Final = frozenset({"ep", "etp"})
"""Dimensions of a device mesh that reuse the ranks of others, and do not count for the world size."""
_BYTES: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_COLUMNS: Final = {"loss": "loss", "grad_norm": "grad_norm", "lr": "lr"}


@dataclass
class _Rank:
    """State of reading a rank's lines.

    Attributes
    ----------
    attempt
        Index of the current attempt.
    last
        The last logged step; -1 before the first.
    previous
        The last logged step of this attempt; before the first, the step that training resumed after.
    resumed
        The step that training resumed after, if the log has it.
    now_ns
        Time of the last line, or of the begin of training; None if unknown.
    is_restarted
        Whether training started again after the last logged step.
    """

    attempt: int = 0
    last: int = -1
    previous: int | None = None
    resumed: int | None = None
    now_ns: int | None = None
    is_restarted: bool = False


@dataclass
class _Log:
    attempts: "list[ImportedRun]"
    interval: int
    is_single_rank: bool
    ranks: dict[int, _Rank] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    config: dict[str, int] = field(default_factory=dict)
    ending: Ending | None = None
    begins_ns: "list[int | None]" = field(default_factory=list)
    end_ns: int | None = None
    are_ranks_numbered: bool = False


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a log, ignoring lines of other programs. A step whose begin is not known is refused."""
    position = trainer_time_position(source, LINE.search)
    with source.first_look():
        lines = [(line.labels, _primus_rank(line), int(match["step"])) for line in log_lines(source)
                 if (match := LINE.search(line.text))]  # fmt: skip
    rank_by_labels = ranks_of(labels for labels, primus_rank, _ in lines if primus_rank is None)
    by_rank: dict[int, list[int]] = {}
    for labels, primus_rank, step in lines:
        by_rank.setdefault(rank_by_labels[labels] if primus_rank is None else primus_rank, []).append(step)
    is_single = len(by_rank) < 2  # noqa: PLR2004 - ranks
    log = _Log([recording], usual_interval(by_rank.values(), None), is_single_rank=is_single)
    log.are_ranks_numbered = any(labels and str(rank) not in labels for labels, rank in rank_by_labels.items())
    for line in log_lines(source):
        primus_rank = _primus_rank(line)
        rank = rank_by_labels.get(line.labels, None if line.labels else 0) if primus_rank is None else primus_rank
        state = _Rank() if rank is None else log.ranks.setdefault(rank, _Rank())
        stamp = line.time(position)
        at_ns = None if stamp is None else stamp[0]
        if at_ns is not None:
            log.end_ns = at_ns if log.end_ns is None else max(log.end_ns, at_ns)
        if rank is not None and (match := LINE.search(line.text)):
            _add_step(log, state, rank, match, at_ns)
        else:
            _read_facts(log, state, line.text, at_ns)
            log.ending = likelier_ending(log.ending, ending(line.text))
    _end_attempt(log)
    for attempt in log.attempts:
        _add_facts(log, attempt)


def _primus_rank(line: LogLine) -> int | None:
    match = _PRIMUS.search(line.text)
    return int(match[1]) if match else None


def _add_step(log: _Log, state: _Rank, rank: int, match: "re.Match[str]", at_ns: int | None) -> None:
    step = int(match["step"])
    if step == state.last and not state.is_restarted:
        log.attempts[-1].refuse("steps", "the step is in the log twice", match[0], rank=rank)
        return
    if state.last >= 0 and (step <= state.last or state.is_restarted):
        _start_attempt(log, state, step, at_ns)
    if len(log.begins_ns) < len(log.attempts):
        log.begins_ns.append(at_ns)
    recording = log.attempts[state.attempt]
    fields = {name.lower(): (_number(value), unit) for name, value, unit in _FIELD.findall(match["rest"])}
    steps = covered_steps(step, state.previous, log.interval, state.resumed)
    # more than `steps` if lines are lost
    elapsed_steps = max(steps, step - state.previous) if state.previous is not None else steps
    tokens, samples = _step_tokens(log), log.config.get("global_batch_size")
    begin_ns = state.now_ns
    if begin_ns is None and at_ns is not None and tokens and (speed := fields.get("tps", fields.get("wps"))):
        total_speed = speed[0] * (log.facts.get("world_size") or math.inf)
        begin_ns = at_ns - round(elapsed_steps * tokens / total_speed * 1e9) if total_speed < math.inf else None
    state.last, state.previous, state.is_restarted, log.ending = step, step, False, None
    if at_ns is not None:
        state.now_ns = at_ns
    if at_ns is None or begin_ns is None or at_ns < begin_ns:
        recording.refuse("steps", "the step's begin is not known", match[0], rank=rank)
        return
    world_size = log.facts.get("world_size")
    ranks = 1 if log.is_single_rank else world_size
    seconds = (at_ns - begin_ns) / elapsed_steps / 1e9
    line = LoggedStep(step, steps, seconds, at_ns - round(steps * seconds * 1e9))
    line.tokens = tokens * steps // ranks if tokens and ranks else None
    line.samples = samples * steps // ranks if samples and ranks else None
    line.columns = {target: fields.pop(name)[0] for name, target in _COLUMNS.items() if name in fields}
    if "memory" in fields:
        size, unit = fields.pop("memory")
        line.columns["memory_reserved_bytes"] = round(size * _BYTES[unit[0].upper()]) if unit else None
    if line.columns.get("loss") == _NO_LOSS:
        del line.columns["loss"]
    add_steps(recording, line, rank, world_size if log.is_single_rank else None)
    for name, (value, _) in fields.items():
        recording.unregistered(f"torchtitan/{name}"[:512], value, at_ns, rank, step=step)


def _start_attempt(log: _Log, state: _Rank, step: int, at_ns: int | None) -> None:
    """Switch a rank to the next attempt, and create that if no other rank has."""
    state.attempt += 1
    state.previous = state.resumed if state.resumed is not None and state.resumed < step else None
    if state.attempt == len(log.attempts):
        _end_attempt(log)
        begin_ns = log.begins_ns[-1]
        is_earlier = at_ns is not None and begin_ns is not None and at_ns < begin_ns
        log.attempts.append(next_recording(log.attempts, is_earlier=is_earlier))
        state.now_ns = None if is_earlier and not state.is_restarted else state.now_ns


def _end_attempt(log: _Log) -> None:
    """Add the event of how the last attempt ended, if the log reports it or all steps are complete."""
    last = max((state.last for state in log.ranks.values()), default=-1)
    is_complete = 0 < log.config.get("total_steps", -1) <= last
    completion = Ending("finished", "the last step was reached") if is_complete else None
    end, log.ending = likelier_ending(log.ending, completion), None
    if end is not None and log.end_ns is not None and last >= 0:
        add_ending(log.attempts[-1], end, log.end_ns, last)


def _read_facts(log: _Log, state: _Rank, text: str, at_ns: int | None) -> None:
    """Read the start of training, and facts of the run: configuration, mesh, device, parameters."""
    if starts := _STARTS.search(text):
        state.is_restarted, state.resumed = state.last >= 0, int(starts[1]) - 1
        state.previous = state.resumed if state.last < 0 else state.previous
        state.now_ns = at_ns if at_ns is not None else state.now_ns
    for name, pattern in (("global_batch_size", _BATCH), ("sequence_length", _LENGTH), ("total_steps", _TOTAL)):
        if match := pattern.search(text):
            log.config.setdefault(name, int(match[1]))
    if mesh := _MESH.search(text):
        _read_mesh(log, dict(zip(re.findall(r"\w+", mesh[1]), map(int, re.findall(r"\d+", mesh[2])), strict=False)))
    elif mesh := _PARALLELISM.search(text):
        sizes = {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", mesh[1])}
        _read_mesh(log, {name: size for name, size in sizes.items() if name not in _NESTED_DIMENSIONS})
    elif world := _WORLD.search(text) or _PRIMUS.search(text):
        log.facts.setdefault("world_size", int(world[world.lastindex or 1]))
    if device := _DEVICE.search(text):
        log.facts.setdefault("device_name", device[1].strip())
        log.facts.setdefault("device_type", "cuda")
    if params := _PARAMS.search(text):
        log.facts.setdefault("param_count", int(params[1].replace(",", "")))


def _read_mesh(log: _Log, sizes: dict[str, int]) -> None:
    """Set facts of the run from the sizes of a device mesh's dimensions."""
    log.facts.setdefault("world_size", math.prod(sizes.values()))
    log.facts |= {column: sizes[name] for name, column in _SIZES.items() if name in sizes}
    log.facts["dp_size"] = math.prod(size for name, size in sizes.items() if name.startswith("dp"))


def _step_tokens(log: _Log) -> int | None:
    """Return the tokens of a step over all ranks; None if the log does not report batch size and sequence length."""
    batch, length = log.config.get("global_batch_size"), log.config.get("sequence_length")
    return batch * length if batch and length else None


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _add_facts(log: _Log, recording: "ImportedRun") -> None:
    """Set labels and columns of the row of ``runs``. Columns without a value in the log are NULL."""
    recording.labels |= {
        "times": "zone not stated, taken as UTC",
        "steps": "durations are means between the log's lines",
    }
    if log.are_ranks_numbered:
        recording.labels["ranks"] = "numbered in the order of their first lines: the log's labels repeat"
    recording.world_size = max(log.facts.get("world_size") or 1, max(log.ranks, default=0) + 1)
    recording.facts = {"job": recording.run, "world_size": None, "framework": "torchtitan", **log.facts,
                       "config": json.dumps(log.config, sort_keys=True)}  # fmt: skip


FORMAT: Final = Format(
    summary="standard output of torchtitan",
    recognises="lines such as 'step: 10  loss: 6.2  memory: …  tps: …' behind a time",
    read=read,
    table="steps",
    mark=re.compile(rb"\bstep:\s*\d+\s+loss:|\bTraining starts at step"),
    nothing=("the file has no line of torchtitan", "name the run's standard output"),
    among=True,
)
