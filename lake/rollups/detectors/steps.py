"""Helpers for detectors that read the steps of a run from ``step_rollup``."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from ranklake.detection.declaration import Detection, Series, Severity

Vector = np.ndarray[Any, np.dtype[np.float64]]
SHARED: Final[Mapping[str, Any]] = {
    "table": "step_rollup",
    "grain": ("run",),
    "order": ("attempt", "step"),
}
"""Common part of declarations. A series has all attempts of a run in order, so that restarts can be compared."""
OF_STEPS: Final = """SELECT attempt, step, ts, {columns}
FROM step_rollup WHERE run = {{run}} AND date BETWEEN {{date}} - INTERVAL '1' DAY AND {{end_date}}
  AND step BETWEEN {{step}} - 20 AND {{end_step}} + 20 ORDER BY attempt, step"""


def evidence(*columns: str) -> str:
    """Return the evidence query for a finding: some columns of its steps and of 20 steps before and after."""
    return OF_STEPS.format(columns=", ".join(columns))


def at_steps(
    series: Series,
    first: int,
    last: int | None,
    message: str,
    *,
    value: float | None = None,
    baseline: float | None = None,
    effect: float | None = None,
    severity: Severity | None = None,
    **figures: object,
) -> Detection:
    """Return a detection from the index `first` to `last` of a series of steps; without `last`, it has no end.

    `figures` are the evidence.
    """
    end = len(series) - 1 if last is None else last
    return Detection(
        start=int(series["ts"][first]),
        end=None if last is None else int(series["ts"][last]),
        message=message,
        value=value,
        baseline=baseline,
        effect=effect,
        step=int(series["step"][first]),
        end_step=int(series["step"][end]),
        subject={"attempt": int(series["attempt"][first])},
        severity=severity or "",
        evidence=figures,
    )


def attempts(series: Series) -> Iterator[tuple[int, int]]:
    """Yield the index range of each attempt: of its first step, and after its last."""
    cuts = np.flatnonzero(np.diff(series["attempt"])) + 1
    yield from zip([0, *cuts.tolist()], [*cuts.tolist(), len(series)], strict=True)


def number(value: float) -> str:
    """Return a number with four digits, for messages.

    >>> number(0.000123456), number(1234567.0)
    ('0.0001235', '1.235e+06')
    """
    return f"{value:.4g}"
