"""Synthetic records of a node's ranks between two seals, as slots of the recorder's layouts.

A step is 1 row of `steps`, as many values as the job logs, and `SPANS_PER_STEP` spans: the step, four phases, and the
collectives of fully sharded data parallelism within them. Times add up: a phase is its own time plus its collectives,
phases follow each other without gaps, and a fast rank waits for the slowest in its collectives.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ranklake.bench.job import Attempt, Job
from ranklake.capture.common.arrays import Array
from ranklake.capture.common.layouts import ABSENT, MARK, PHASES, ROW_WIDTH, ROWS, SPANS, STEPS
from ranklake.capture.spool.meta import Meta, Metric, SpanName

TOKENS: Final = 8192
"""Tokens that a rank trains on in a step."""
PARAMETERS: Final = 8_450_000_000
FLOPS_PER_TOKEN: Final = 6.0 * PARAMETERS


@dataclass(frozen=True, slots=True)
class Signal:
    """One synthetic metric.

    Attributes
    ----------
    level
        Value at the first step. It changes with the loss, to the power of `power`.
    noise
        Standard deviation of its logarithm over steps and ranks; 0 for configured values.
    quantum
        Values are multiples of it; 0 for none.
    most
        Maximum value.
    per_step
        Growth per step.
    edge
        Status by the registry of metrics, such as ``unregistered``; None for registered metrics.
    """

    name: str
    kind: str
    level: float
    power: float = 0.0
    noise: float = 0.0
    quantum: float = 0.0
    most: float = np.inf
    per_step: float = 0.0
    edge: str | None = None


_REGISTERED: Final = (
    Signal("train/perplexity", "gauge", 60_000.0, 9.0, 0.05),
    Signal("train/accuracy", "ratio", 0.05, -1.6, 0.04, most=1.0),
    Signal("train/param_norm", "gauge", 310.0, -0.1, 1e-4),
    Signal("train/update_norm", "gauge", 0.35, 0.4, 0.06),
    Signal("train/clip_ratio", "ratio", 0.4, 1.0, 0.02, most=1.0),
    Signal("train/tokens_seen", "counter", 0.0, quantum=1.0, per_step=TOKENS),
    Signal("train/epoch", "gauge", 0.0, per_step=1e-5),
    Signal("train/loss_scale", "gauge", 65536.0),
    Signal("train/weight_decay", "gauge", 0.1),
    Signal("train/batch_size", "gauge", 1024.0),
    Signal("moe/load_balance_loss", "gauge", 0.02, 0.2, 0.08),
    Signal("moe/dropped_tokens_ratio", "ratio", 0.03, 0.5, 0.3, quantum=1 / TOKENS, most=1.0),
    Signal("data/queue_depth", "gauge", 14.0, noise=0.25, quantum=1.0),
    Signal("data/tokens_discarded", "delta", 180.0, noise=0.5, quantum=1.0),
    Signal("data/bytes_read", "counter", 0.0, quantum=1.0, per_step=4.0 * TOKENS),
    Signal("train/momentum", "gauge", 0.9),
)
"""Registered metrics; seven are configured or counted values, the rest have noise."""


def signals(count: int) -> tuple[Signal, ...]:
    """Return `count` metrics of a rank: the registered ones, then unregistered norms per layer."""
    layers = [
        Signal(
            f"layer_{at // 2:02d}/{('grad_norm', 'activation_rms')[at % 2]}",
            "gauge",
            0.6,
            0.5,
            0.09,
            edge="unregistered",
        )
        for at in range(max(0, count - len(_REGISTERED)))
    ]
    return (*_REGISTERED, *layers)[:count]


def loss(steps: Array) -> Array:
    """Return the run's mean loss at each step: a power law with a floor."""
    curve: Array = 1.7 + 9.2 * (steps + 20.0) ** -0.28
    return curve


def values(metrics: tuple[Signal, ...], steps: Array, ranks: int, draws: np.random.Generator) -> Array:
    """Return values of shape (ranks, steps, metrics). One in ten thousand of the noisy values is NaN."""
    fall = loss(steps) / loss(np.zeros(1))
    level = np.stack([metric.level * fall**metric.power + metric.per_step * (steps + 1) for metric in metrics], axis=-1)
    noise = np.array([metric.noise for metric in metrics])
    result = level * np.exp(noise * draws.standard_normal((ranks, len(steps), len(metrics)), np.float32))
    quantum = np.array([metric.quantum for metric in metrics])
    result = np.where(quantum > 0, np.round(result / np.where(quantum > 0, quantum, 1.0)) * quantum, result)
    result = np.minimum(result, np.array([metric.most for metric in metrics]))
    result[(draws.random(result.shape, np.float32) < 1e-4) & (noise > 0)] = np.nan  # noqa: PLR2004 - as the docstring says
    narrow: Array = result.astype(np.float32).astype(np.float64)
    return narrow


_SHARES: Final = {"data": 0.03, "forward": 0.25, "backward": 0.46, "optimizer": 0.05}
"""Shares of a step in which a rank computes."""
_INSIDE: Final = {
    "data": (),
    "forward": ("all_gather",) * 6,
    "backward": ("all_gather", "reduce_scatter") * 4,
    "optimizer": ("all_reduce",),
}
_BYTES: Final = {"all_gather": 436_207_616, "reduce_scatter": 872_415_232, "all_reduce": 4}
_WEIGHT: Final = {"all_gather": 1.0, "reduce_scatter": 1.4, "all_reduce": 0.2}
COLLECTIVES: Final = tuple(name for inside in _INSIDE.values() for name in inside)
SPANS_PER_STEP: Final = 1 + len(_INSIDE) + len(COLLECTIVES)
_KINDS: Final = (
    dict.fromkeys(_SHARES, "phase")
    | dict.fromkeys(_BYTES, "collective")
    | {
        "checkpoint": "checkpoint",
        "step": "step",
    }
)
_NAMES: Final = tuple(_KINDS)
_IDS_PER_STEP: Final = SPANS_PER_STEP + 1  # plus one for a checkpoint

FLOPS_SERIES: Final = 1 << 20
"""Index of the series that is logged only once: the model's FLOPs per token."""

_THROTTLED: Final = 1.17
_MOST_BUSY: Final = 0.985  # largest share of a step that a rank computes; the rest is collectives
_NS: Final = 1e9
_MIB: Final = 1 << 20


def definitions(job: Job, rank: int) -> Meta:
    """Return the definitions of a rank at its start: metrics, mappings of them, and names of spans."""
    signals_of_job = signals(job.metrics)
    metrics = {index: Metric(signal.name, signal.kind, edge=signal.edge) for index, signal in enumerate(signals_of_job)}
    return Meta(
        metrics=metrics | {FLOPS_SERIES: Metric("model/flops_per_token", "gauge")},
        schemas={
            index // ROW_WIDTH: tuple(range(len(signals_of_job)))[index : index + ROW_WIDTH]
            for index in range(0, len(signals_of_job), ROW_WIDTH)
        },
        spans={
            index: SpanName(name, kind, dp_rank=rank, pp_rank=0, tp_rank=0)
            for index, (name, kind) in enumerate(_KINDS.items())
        },
    )


@dataclass(frozen=True)
class Window:
    """Some steps of an attempt on the ranks of a node.

    Attributes
    ----------
    which
        The steps, as a slice of the attempt's.
    boot_ns
        Reading of the node's monotonic clock at the start of the job.
    """

    job: Job
    attempt: Attempt
    node: int
    number: int
    which: slice
    boot_ns: int

    @cached_property
    def _times(self) -> dict[str, Array]:
        """Seconds by phase, (ranks, steps), and of each collective, (ranks, steps, collectives)."""
        job, draws = self.job, self.job.random_for("phases", self.attempt.number, self.node, self.number)
        ranks = job.ranks(self.node)
        checkpoint, stall = self.attempt.checkpoint_s[self.which], self.attempt.stall_s[self.which]
        net = self.attempt.step_s[self.which] - checkpoint - stall
        shape = (len(ranks), len(net))
        own = {name: net * share * draws.lognormal(0, 0.02, shape) for name, share in _SHARES.items()}
        pace = job.random_for("pace", self.node).normal(1.0, 0.006, len(ranks))
        if self.attempt.number == job.attempts[-1].number and job.straggler in ranks:
            pace[job.straggler - ranks[0]] *= _THROTTLED
        needed = sum(own.values()) * pace[:, None]
        fits = np.minimum(1.0, _MOST_BUSY * net / needed) * pace[:, None]
        own = {name: spent * fits for name, spent in own.items()}
        waiting = net - sum(own.values())
        own["data"] = own["data"] + stall
        weights = np.array([_WEIGHT[name] for name in COLLECTIVES])
        weights = weights * draws.lognormal(0, 0.15, (*shape, len(weights)))
        each = waiting[..., None] * weights / weights.sum(axis=-1, keepdims=True)
        jitter = np.abs(draws.normal(0, 30e-6, shape))
        return own | {
            "collective": waiting,
            "each": each,
            "jitter": jitter,
            "checkpoint": np.broadcast_to(checkpoint, shape),
        }

    @cached_property
    def _starts(self) -> Array:
        """Start of each step on the node's monotonic clock, (ranks, steps), ns."""
        after = self.attempt.start_s[self.which] + self._times["jitter"]
        starts: Array = self.boot_ns + (after * _NS).astype(np.int64)
        return starts

    @cached_property
    def _lengths(self) -> Array:
        return (self.attempt.step_s[self.which] * _NS).astype(np.int64)

    def steps(self) -> Array:
        """Return slots of `STEPS`, (ranks, steps)."""
        draws = self.job.random_for("steps of ranks", self.attempt.number, self.node, self.number)
        numbers = self.attempt.steps[self.which]
        shape = self._starts.shape
        slots = np.zeros(shape, STEPS.dtype())
        slots["start_ns"], slots["duration_ns"], slots["step"] = self._starts, self._lengths, numbers
        for phase in PHASES:
            spent = self._times.get(phase)
            slots[f"{phase}_ns"] = ABSENT if spent is None else (spent * _NS).astype(np.int64)
        slots["checkpoint_ns"][self._times["checkpoint"] == 0] = ABSENT
        slots["tokens"], slots["samples"] = TOKENS, 2
        slots["loss"] = loss(numbers) + draws.normal(0, 0.04, shape)
        slots["grad_norm"] = 0.9 * (numbers + 20.0) ** -0.1 * draws.lognormal(0, 0.2, shape)
        slots["grad_norm"][draws.random(shape) < 1e-4] = np.nan  # noqa: PLR2004 - a loss scale that was too high
        slots["lr"] = 3e-4 * np.minimum(1.0, (numbers + 1) / 200) * 0.9999**numbers
        activations = np.asarray(draws.gamma(2.0, 80_000.0, shape)).astype(np.int64) * 512
        slots["memory_allocated_bytes"] = 61_000 * _MIB + activations
        slots["memory_reserved_bytes"] = 66_000 * _MIB + 2 * _MIB * (numbers // 400)
        if self.node % 16 == 3:  # noqa: PLR2004 - one node in sixteen, whose framework does not report it
            slots["memory_allocated_bytes"] = slots["memory_reserved_bytes"] = ABSENT
        slots["present"] = np.where(draws.random(shape) < 1e-3, 0b101, 0b111)  # noqa: PLR2004 - gradients not checked
        slots["mark"] = MARK
        return slots

    def rows(self) -> Array:
        """Return slots of `ROWS`, (ranks, slots): the mappings of values that each step logs."""
        signals_of_job = signals(self.job.metrics)
        draws = self.job.random_for("scalars", self.attempt.number, self.node, self.number)
        ranks, steps = self._starts.shape
        result = values(signals_of_job, self.attempt.steps[self.which], ranks, draws)
        mappings = -(-len(signals_of_job) // ROW_WIDTH)
        slots = np.zeros((ranks, steps, mappings), ROWS.dtype())
        logged = self._starts + self._lengths - (self._times["checkpoint"] * _NS).astype(np.int64) - 2_000_000
        slots["time_ns"] = logged[..., None] + np.arange(mappings) * 4_000
        slots["step"] = self.attempt.steps[self.which][:, None]
        for index in range(mappings):
            columns = result[..., index * ROW_WIDTH : (index + 1) * ROW_WIDTH]
            slots["values"][:, :, index, : columns.shape[-1]] = columns
        slots["schema"], slots["mark"] = np.arange(mappings), MARK
        return slots.reshape(ranks, -1)

    def spans(self) -> Array:
        """Return slots of `SPANS`, (ranks, slots), in the order of their ends; those of checkpoints are last."""
        times, numbers = self._times, self.attempt.steps[self.which]
        ranks, steps = self._starts.shape
        first = np.arange(self.which.start, self.which.stop) * _IDS_PER_STEP + 1
        slots = np.zeros((ranks, steps, SPANS_PER_STEP), SPANS.dtype())
        at = collective = 0
        begin = np.zeros((ranks, steps))  # seconds into the step
        for phase, inside in _INSIDE.items():
            own, within = times[phase], times["each"][..., collective : collective + len(inside)]
            collective += len(inside)
            gap = own / (len(inside) + 1)
            parent = at + len(inside)
            elapsed = begin.copy()
            for place, name in enumerate(inside):
                elapsed = elapsed + gap
                self._put(slots, at, _NAMES.index(name), elapsed, within[..., place], first, parent)
                slots["bytes"][..., at] = _BYTES[name]
                elapsed = elapsed + within[..., place]
                at += 1
            length = own + within.sum(axis=-1)
            self._put(slots, at, _NAMES.index(phase), begin, length, first, -1)
            begin = begin + length
            at += 1
        self._put(slots, at, _NAMES.index("step"), np.zeros_like(begin), self._lengths / _NS, first, -1)
        slots["span_id"][..., at], slots["parent_id"][..., at] = first, ABSENT
        slots["duration_ns"][..., at] = self._lengths
        slots["step"], slots["microbatch"], slots["mark"] = numbers[:, None], -1, MARK
        flat = slots.reshape(ranks, -1)
        saved = np.flatnonzero(times["checkpoint"][0]) if ranks else np.empty(0, np.int64)
        if not len(saved):
            return flat
        extra = np.zeros((ranks, len(saved), 1), SPANS.dtype())
        lasted = times["checkpoint"][:, saved]
        extra["start_ns"][..., 0] = self._starts[:, saved] + (begin[:, saved] * _NS).astype(np.int64)
        extra["duration_ns"][..., 0] = (lasted * _NS).astype(np.int64)
        extra["span_id"][..., 0] = first[saved] + SPANS_PER_STEP
        extra["parent_id"][..., 0] = first[saved]
        extra["step"][..., 0] = numbers[saved]
        extra["bytes"], extra["microbatch"] = 5_800_000_000, -1
        extra["name"], extra["mark"] = _NAMES.index("checkpoint"), MARK
        return np.concatenate([flat, extra.reshape(ranks, -1)], axis=1)

    def _put(
        self, slots: Array, at: int, name: int, begin_s: Array, length_s: Array, first: Array, parent: int
    ) -> None:
        slots["start_ns"][..., at] = self._starts + (begin_s * _NS).astype(np.int64)
        slots["duration_ns"][..., at] = (length_s * _NS).astype(np.int64)
        slots["span_id"][..., at] = first + 1 + at
        slots["parent_id"][..., at] = first if parent < 0 else first + 1 + parent
        slots["bytes"][..., at] = ABSENT
        slots["name"][..., at] = name
