"""Signals: the scalars that each rank logs each step, and the loss that they go with.

Values are rounded to float32 before they are recorded, as those of a tensor are, and keep the noise of a float32.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ranklake.capture.common.arrays import Array

TOKENS: Final = 8192
"""That a rank trains on in a step."""
PARAMETERS: Final = 8_450_000_000
FLOPS_PER_TOKEN: Final = 6.0 * PARAMETERS


@dataclass(frozen=True, slots=True)
class Signal:
    """One metric.

    Attributes
    ----------
    level
        Its value at the first step; it falls with the loss's `power`.
    noise
        Deviation of its logarithm from step to step and rank to rank; 0 for what is configured, and the same for all.
    quantum
        What it is a multiple of; 0 for no such thing.
    most
        Greatest value it takes.
    per_step
        What it grows by in a step.
    edge
        What the edge says of it.
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
"""Of the registry; seven are configured or counted, the rest are as noisy as they are said to be."""


def signals(count: int) -> tuple[Signal, ...]:
    """Return the metrics of a rank that logs so many: the registry's, then norms by layer, which it lacks."""
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
    """Return the run's mean loss at steps: a power law down to what is left."""
    curve: Array = 1.7 + 9.2 * (steps + 20.0) ** -0.28
    return curve


def values(of: tuple[Signal, ...], steps: Array, ranks: int, draws: np.random.Generator) -> Array:
    """Return values (ranks, steps, metrics). One in ten thousand of the noisy ones is NaN."""
    fall = loss(steps) / loss(np.zeros(1))
    level = np.stack([one.level * fall**one.power + one.per_step * (steps + 1) for one in of], axis=-1)
    noise = np.array([one.noise for one in of])
    result = level * np.exp(noise * draws.standard_normal((ranks, len(steps), len(of)), np.float32))
    quantum = np.array([one.quantum for one in of])
    result = np.where(quantum > 0, np.round(result / np.where(quantum > 0, quantum, 1.0)) * quantum, result)
    result = np.minimum(result, np.array([one.most for one in of]))
    result[(draws.random(result.shape, np.float32) < 1e-4) & (noise > 0)] = np.nan  # noqa: PLR2004 - as the docstring says
    narrow: Array = result.astype(np.float32).astype(np.float64)
    return narrow
