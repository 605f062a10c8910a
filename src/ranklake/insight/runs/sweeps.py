"""Sweeps: how strongly each setting of some runs correlates with a result, by rank correlation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.stats import rankdata

from ranklake.insight.runs.run_columns import RunColumns, Value, as_number, value_text

MIN_RUNS: Final = 3
"""Runs that have both values; with fewer no correlation is computed."""


@dataclass(frozen=True, slots=True)
class Importance:
    """How strongly a setting and the result correlate.

    Attributes
    ----------
    name
        Of the setting.
    correlation
        Spearman's: 1 where the result grows with the setting, -1 where it falls; None with a reason. Of a setting that
        is no number, the correlation ratio of ranks (eta): how much of their spread lies between its values, from 0.
    is_number, runs, reason
        Whether its values are numbers; how many runs have both; why nothing is known.
    """

    name: str
    correlation: float | None
    is_number: bool
    runs: int
    reason: str = ""


def importances(columns: RunColumns, runs: Sequence[str], result: str) -> list[Importance]:
    """Return the settings and labels in which runs differ, the strongest correlation first."""
    names = [name for name in columns.names if name.startswith(("config.", "label.")) and name != result]
    rows = [_importance(columns, runs, name, result) for name in names]
    differing = [row for row in rows if row is not None]
    return sorted(differing, key=lambda row: (row.correlation is None, -abs(row.correlation or 0.0), row.name))


def _importance(columns: RunColumns, runs: Sequence[str], name: str, result: str) -> Importance | None:
    """Return the importance of a setting; None where it is the same in all runs that have it."""
    pairs = [(columns.value(run, name), as_number(columns.value(run, result))) for run in runs]
    both = [(value, outcome) for value, outcome in pairs if value is not None and outcome is not None]
    if len({value_text(value) for value, _ in pairs if value is not None}) < 2:  # noqa: PLR2004 - one is no choice
        return None
    values, outcomes = [value for value, _ in both], np.array([outcome for _, outcome in both])
    numbers = [as_number(value) for value in values]
    is_number = all(number is not None for number in numbers)
    if len(both) < MIN_RUNS:
        return Importance(name, None, is_number, len(both), f"fewer than {MIN_RUNS} runs have both")
    order = rankdata(outcomes)
    if np.ptp(order) == 0 or len({value_text(value) for value in values}) == 1:
        return Importance(
            name, None, is_number, len(both), "the setting or the result is the same in all of these runs"
        )
    if not is_number and len({value_text(value) for value in values}) > len(both) / 2:
        return Importance(name, None, is_number, len(both), "too few runs share a value")
    if not is_number:
        return Importance(name, _eta(values, order), is_number, len(both))
    correlation = float(np.corrcoef(rankdata(numbers), order)[0, 1])
    return Importance(name, correlation, is_number, len(both))


def _eta(values: Sequence[Value], order: np.ndarray) -> float:
    """Return the correlation ratio: the root of the part of the variance that lies between groups."""
    texts = np.array([value_text(value) for value in values])
    groups = [order[texts == text] for text in np.unique(texts)]
    between = sum(len(group) * (group.mean() - order.mean()) ** 2 for group in groups)
    return float(np.sqrt(between / ((order - order.mean()) ** 2).sum()))
