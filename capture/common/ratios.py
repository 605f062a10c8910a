"""Ratios: which metrics are sampled, and which of their values are kept. Pure, and the same in every process."""

import hashlib
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

_WORD: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15

Rules = Sequence[tuple[str, float]]


def parse_rules(given: str) -> tuple[tuple[str, float], ...]:
    """Read ``eval/*=0.1, debug/*=0.01``: patterns of metrics, each with the share of values to keep.

    Raises
    ------
    ValueError
        Something is no rule.
    """
    rules = []
    for rule in filter(None, (part.strip() for part in given.split(","))):
        pattern, equals, ratio = rule.rpartition("=")
        if not equals or not pattern.strip():
            raise ValueError(f"{rule!r} is not a rule of the form metric/*=0.1")
        try:
            share = checked_ratio(float(ratio))
        except ValueError:
            raise ValueError(f"{rule!r} is not a rule of the form metric/*=0.1, of a share from 0 to 1") from None
        rules.append((pattern.strip(), share))
    return tuple(rules)


def checked_ratio(ratio: float) -> float:
    """Return a ratio from 0 to 1. Raises `ValueError` for others."""
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"{ratio} is not from 0 to 1")
    return ratio


def ratio_of(rules: Rules, name: str) -> float:
    """Return the share of a metric's values to keep: that of the first pattern that fits, else 1."""
    return next((ratio for pattern, ratio in rules if fnmatchcase(name, pattern)), 1.0)


def seed_of(run: str, name: str) -> int:
    """Return 64 bits that a run's choices in a metric follow from."""
    return int.from_bytes(hashlib.blake2b(f"{run}\0{name}".encode(), digest_size=8).digest(), "little")


def is_sampled(seed: int, step: int, threshold: int) -> bool:
    """Whether the values of a step are kept: a hash of both, evenly spread over 64 bits, is below the threshold.

    The hash is the output function of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014), whose state after `step` draws from `seed` this is.
    """
    word = (seed + step * _GOLDEN) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31) < threshold


def threshold_of(ratio: float) -> int:
    """Return the threshold that so large a share of all hashes is below."""
    return math.floor(ratio * (1 << 64))
