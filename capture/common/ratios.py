"""Ratios: which metrics are sampled, and which of their values are kept: pure functions, equal in every process."""

import hashlib
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

_WORD: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15

Rules = Sequence[tuple[str, float]]


def parse_rules(rules_text: str) -> tuple[tuple[str, float], ...]:
    """Parse ``eval/*=0.1, debug/*=0.01`` into pairs of a pattern of metrics and the share of values to keep.

    Raises
    ------
    ValueError
        A part of the text is not a rule.
    """
    rules = []
    for rule in filter(None, (part.strip() for part in rules_text.split(","))):
        pattern, equals, ratio = rule.rpartition("=")
        if not equals or not pattern.strip():
            raise ValueError(f"{rule!r} is not a rule of the form metric/*=0.1")
        try:
            share = checked_ratio(float(ratio))
        except ValueError:
            raise ValueError(f"{rule!r} is not a rule of the form metric/*=0.1 with a share from 0 to 1") from None
        rules.append((pattern.strip(), share))
    return tuple(rules)


def checked_ratio(ratio: float) -> float:
    """Return a ratio if it is from 0 to 1. Raises `ValueError` otherwise."""
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"{ratio} is not from 0 to 1")
    return ratio


def ratio_of(rules: Rules, name: str) -> float:
    """Return the share of a metric's values to keep, from the first matching rule; 1 without one."""
    return next((ratio for pattern, ratio in rules if fnmatchcase(name, pattern)), 1.0)


def seed_of(run: str, name: str) -> int:
    """Return the 64-bit seed of the sampling of a run's metric."""
    return int.from_bytes(hashlib.blake2b(f"{run}\0{name}".encode(), digest_size=8).digest(), "little")


def is_sampled(seed: int, step: int, threshold: int) -> bool:
    """Whether the values of a step are kept: whether a 64-bit hash of seed and step is below the threshold.

    The hash is the output of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
    2014) after `step` draws from `seed`.
    """
    word = (seed + step * _GOLDEN) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31) < threshold


def threshold_of(ratio: float) -> int:
    """Return the threshold below which this share of all hashes lies."""
    return math.floor(ratio * (1 << 64))
