"""Repeats: runs whose settings are the same except for seeds, and whether groups of them differ by more than chance."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scipy.stats import ttest_ind_from_stats

from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, QueriedFacts, Row
from ranklake.insight.runs.compare import MEASURES, Comparison
from ranklake.insight.runs.find import flat
from ranklake.lake.contracts.json_text import facts_in

LEVEL: Final = 0.05
"""Significance level of a difference, over all comparisons of a page."""

_FEWEST: Final = 2


@dataclass(frozen=True, slots=True)
class Group:
    """Repeats of one run: `spread` has count, mean and deviation of each measure, in one row."""

    runs: tuple[str, ...]
    spread: QueriedFacts


@dataclass(frozen=True, slots=True)
class Verdict:
    """Significance of a measure's difference between a group and the first one.

    Attributes
    ----------
    group
        Index of the group.
    difference
        Its mean minus the first group's; None if unknown.
    p_value
        Of Welch's t-test, after Holm's correction for all comparisons here; None with a `reason`.
    """

    measure: str
    group: int
    difference: float | None
    p_value: float | None
    reason: str = ""

    @property
    def is_significant(self) -> bool:
        """Whether the difference is significant."""
        return self.p_value is not None and self.p_value < LEVEL


@dataclass(frozen=True, slots=True)
class Repeats:
    """Groups of runs in the order of their first runs, and verdicts on all but the first group."""

    groups: tuple[Group, ...]
    verdicts: tuple[Verdict, ...]


def repeat_groups(ask: Ask, comparison: Comparison) -> Repeats:
    """Group runs of a comparison by settings. Runs without settings are not repeats."""
    by_settings: dict[object, list[str]] = {}
    for run, code in zip(comparison.runs, comparison.code, strict=True):
        settings = _settings(code.rows[-1] if code.rows else {})
        by_settings.setdefault(settings or run, []).append(run)
    groups = [Group(tuple(runs), ask(statements.variance(tuple(runs)))) for runs in by_settings.values()]
    raw = [
        _verdict(measure, place, groups[0].spread.first_row, group.spread.first_row)
        for place, group in enumerate(groups[1:], start=1)
        for measure in MEASURES
    ]
    return Repeats(tuple(groups), tuple(holm_correction(raw)))


def _settings(row: Row) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(value)) for name, value in flat(facts_in(row.get("config"))) if not _is_seed(name)))


def _is_seed(name: str) -> bool:
    return name.lower().rpartition(".")[2].endswith("seed")


def _verdict(measure: str, group: int, first: Row, other: Row) -> Verdict:
    base, compared = (_spread(row, measure) for row in (first, other))
    if base is None or compared is None:
        return Verdict(measure, group, None, None, "unknown of a group")
    difference = compared[1] - base[1]
    if min(base[0], compared[0]) < _FEWEST:
        return Verdict(measure, group, difference, None, "fewer than two repeats")
    if not base[2] and not compared[2]:
        return Verdict(measure, group, difference, None, "no group varies")
    result = ttest_ind_from_stats(base[1], base[2], base[0], compared[1], compared[2], compared[0], equal_var=False)
    return Verdict(measure, group, difference, float(result.pvalue))


def _spread(row: Mapping[str, float | None], measure: str) -> tuple[int, float, float] | None:
    count, mean, deviation = (row.get(f"{measure}_{what}") for what in ("n", "mean", "std"))
    if not count or mean is None or not math.isfinite(mean):
        return None
    return int(count), mean, deviation if deviation is not None and math.isfinite(deviation) else 0.0


def holm_correction(verdicts: Sequence[Verdict]) -> Iterable[Verdict]:
    """Yield verdicts with p-values after Holm's correction: the least is multiplied by their number, and so on."""
    known = sorted((verdict.p_value, place) for place, verdict in enumerate(verdicts) if verdict.p_value is not None)
    values: dict[int, float] = {}
    least = 0.0
    for rank, (p_value, place) in enumerate(known):
        least = max(least, min(1.0, p_value * (len(known) - rank)))
        values[place] = least
    for place, verdict in enumerate(verdicts):
        yield Verdict(verdict.measure, verdict.group, verdict.difference, values.get(place), verdict.reason)
