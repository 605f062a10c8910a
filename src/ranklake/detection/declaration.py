"""The declaration of a detector: its input, thresholds and findings."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from ranklake.errors import RanklakeError, did_you_mean

Severity = Literal["info", "warning", "error", "critical"]
COOLDOWN: Final = "cooldown_s"
MIN_EFFECT: Final = "min_effect"


class ThresholdError(RanklakeError):
    """A setting names an unknown detector or threshold, or its value is not usable."""


@dataclass(frozen=True)
class Series:
    """The rows of one subject, in order.

    Attributes
    ----------
    subject
        The values of the detector's grain, such as the run.
    columns
        Arrays of one length by name: times as int64 in µs since 1970, whole numbers without NULL as int64, other
        numbers and booleans as float64 with NaN for NULL, texts as objects with None.
    """

    subject: Mapping[str, Any]
    columns: Mapping[str, np.ndarray[Any, Any]]

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        """Return a column."""
        return self.columns[name]

    def __len__(self) -> int:
        """Return the number of rows."""
        return next((len(column) for column in self.columns.values()), 0)


@dataclass(frozen=True, slots=True)
class Detection:
    """A finding of a detector in a series; a row of a findings table once subject and detector are added.

    Attributes
    ----------
    start, end
        In µs since 1970; no end while it lasts.
    message
        Kind, place, time and size, as a sentence without its subject's name.
    value, baseline, effect
        Measured value, expected value, and their difference as the declaration defines it.
    subject
        Further subject, besides the series' own: ``attempt``, ``rank``, ``host``, ``device_uuid``.
    severity
        Empty for the detector's own.
    evidence
        Figures that support it, as JSON values.
    """

    start: int
    end: int | None
    message: str
    value: float | None = None
    baseline: float | None = None
    effect: float | None = None
    step: int | None = None
    end_step: int | None = None
    subject: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity | Literal[""] = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


Find = Callable[[Series, Mapping[str, float]], Iterable[Detection]]
"""Finds detections in one series, given thresholds by name. Must be pure: the same rows give the same detections."""


@dataclass(frozen=True)
class Detector:
    """One detector.

    Attributes
    ----------
    name
        Its name in findings, settings, and the failure library.
    watches
        The signal that it watches, as a phrase.
    finds
        When it reports a finding, as a sentence.
    table, columns
        Table and columns that it reads.
    grain
        Columns whose values make one series, such as ``("run",)``.
    order
        Columns by which the rows of a series are ordered.
    where
        Condition in SQL for the rows that it needs; empty for all.
    find
        The algorithm.
    effect
        Definition of a finding's ``effect``, such as ``value over baseline``.
    severity
        Severity of findings without their own.
    runbook
        Page of remedies, ``docs/runbooks/NAME.md``.
    evidence_sql
        Query that shows the rows: ``{run}``, ``{attempt}``, ``{rank}``, ``{host}``, ``{device_uuid}``, ``{step}``,
        ``{end_step}``, ``{date}``, ``{end_date}``, ``{start_ts}``, ``{end_ts}`` are replaced by the finding's values,
        as literals; ``{metric}`` by its evidence's.
    min_effect
        Smallest effect that is reported.
    cooldown_s
        Seconds after a finding during which further findings of the same subject are not reported.
    parameters
        Further thresholds by name, each with its default.
    false_positive_target
        Accepted number of false findings per series and day.
    """

    name: str
    watches: str
    finds: str
    table: str
    columns: tuple[str, ...]
    grain: tuple[str, ...]
    order: tuple[str, ...]
    find: Find
    effect: str
    severity: Severity
    runbook: str
    evidence_sql: str
    min_effect: float
    cooldown_s: float
    parameters: Mapping[str, float] = field(default_factory=dict)
    where: str = ""
    false_positive_target: float = 0.005

    @property
    def thresholds(self) -> dict[str, float]:
        """All thresholds by name, with their defaults."""
        return {MIN_EFFECT: self.min_effect, COOLDOWN: self.cooldown_s, **self.parameters}


def thresholds_of(detectors: Iterable[Detector], settings: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the thresholds of all detectors by ``detector.threshold``, those of `settings` in place of the defaults.

    Settings of other detectors are ignored. Raises `ThresholdError` for a threshold that a detector does not have.
    """
    defaults = {f"{each.name}.{name}": value for each in detectors for name, value in each.thresholds.items()}
    names = {key.partition(".")[0] for key in defaults}
    own = {key: value for key, value in (settings or {}).items() if key.partition(".")[0] in names}
    for key in own:
        if key not in defaults:
            raise ThresholdError(f"unknown threshold {key}", where="[detectors]", hint=did_you_mean(key, defaults))
    return defaults | own


def of_detector(name: str, thresholds: Mapping[str, float]) -> dict[str, float]:
    """Return one detector's thresholds by name, from the result of `thresholds_of`."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in thresholds.items() if key.startswith(prefix)}
