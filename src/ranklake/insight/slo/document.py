"""Files of service level objectives: OpenSLO v1, one ``kind: SLO`` a file, whose indicators are SQL over the lake.

>>> slo = read_text(Path("saves.yaml"), '''
... apiVersion: openslo/v1
... kind: SLO
... metadata: {name: saves, labels: {owner: ml-platform}}
... spec:
...   service: training
...   indicator:
...     spec:
...       ratioMetric:
...         rawType: success
...         raw:
...           metricSource:
...             type: ranklake
...             spec:
...               sql: SELECT ts, 1 AS total, 1 AS good, run AS subject FROM artifacts
...   timeWindow: [{duration: 4w, isRolling: true}]
...   budgetingMethod: Occurrences
...   objectives: [{targetPercent: 99}]
... ''')
>>> slo.name, slo.window_s, slo.objectives['saves'].ratio
('saves', 2419200, 0.99)

See https://github.com/OpenSLO/OpenSLO for the format. Unsupported parts are refused: sources other than ``ranklake``,
references to other files, calendar windows, alert policies.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final, Literal

from ranklake.errors import RanklakeError
from ranklake.operator_files import OperatorFile, raise_all

__all__ = ["Objective", "ServiceLevelObjective", "SloError", "packaged_objectives", "read_folder", "read_text"]

_UNITS_S: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION: Final = re.compile(r"([1-9][0-9]{0,4})([mhdw])")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NEEDS: Final = "a duration such as 5m, 12h, 28d or 4w"


class SloError(RanklakeError):
    """A file of an objective that cannot be used: ``file:line: what; hint``."""


def _seconds(text: str, key: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{key} {text!r} is not {_NEEDS}")
    return int(match[1]) * _UNITS_S[match[2]]


@dataclass(frozen=True, slots=True)
class Metadata:
    """Name and labels; the label ``owner`` names the objective's owner."""

    name: str
    displayName: str = ""
    labels: dict[str, str | list[str]] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError("name must be 1 to 63 lower-case letters, digits and '-', and begin and end with no '-'")


@dataclass(frozen=True, slots=True)
class Source:
    """SQL of an indicator, with the columns ``ts`` and ``subject``, and those of its kind."""

    sql: str


@dataclass(frozen=True, slots=True)
class MetricSource:
    """Source of an indicator: the lake."""

    spec: Source
    type: Literal["ranklake"] = "ranklake"


@dataclass(frozen=True, slots=True)
class Metric:
    """A query."""

    metricSource: MetricSource

    @property
    def sql(self) -> str:
        """Its SQL, without an end."""
        return self.metricSource.spec.sql.strip().rstrip(";")


@dataclass(frozen=True, slots=True)
class RatioMetric:
    """Ratio of good (or bad) to all events; ``raw`` is one query with the columns ``good`` and ``total``."""

    raw: Metric | None = None
    rawType: Literal["success", "failure"] | None = None
    good: Metric | None = None
    bad: Metric | None = None
    total: Metric | None = None
    counter: bool = False

    def __post_init__(self) -> None:
        if self.raw is not None:
            if self.good or self.bad or self.total:
                raise ValueError("raw stands alone: leave good, bad and total out")
            if self.rawType is None:
                raise ValueError("raw needs rawType: success, whose columns are good and total, or failure: bad, total")
        elif self.total is None or (self.good is None) == (self.bad is None):
            raise ValueError("needs raw, or total with either good or bad")
        if self.counter:
            raise ValueError("counter must be false: rows are events, not readings of a counter")


@dataclass(frozen=True, slots=True)
class IndicatorSpec:
    """Ratios, or values (column ``value``) that are compared with the objective's ``op`` and ``value``."""

    thresholdMetric: Metric | None = None
    ratioMetric: RatioMetric | None = None
    description: str = ""

    def __post_init__(self) -> None:
        if (self.thresholdMetric is None) == (self.ratioMetric is None):
            raise ValueError("needs either thresholdMetric or ratioMetric")


@dataclass(frozen=True, slots=True)
class Indicator:
    """What is measured."""

    spec: IndicatorSpec
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The time window: a rolling one."""

    duration: str
    isRolling: bool

    def __post_init__(self) -> None:
        _seconds(self.duration, "duration")
        if not self.isRolling:
            raise ValueError("isRolling must be true: calendar windows are not computed")


@dataclass(frozen=True, slots=True)
class Objective:
    """A target: the share of good events, and, for values, the limit of a good one."""

    target: float | None = None
    targetPercent: float | None = None
    displayName: str = ""
    op: Literal["lte", "gte", "lt", "gt"] | None = None
    value: float | None = None
    timeSliceTarget: float | None = None
    timeSliceWindow: str | None = None

    def __post_init__(self) -> None:
        if (self.target is None) == (self.targetPercent is None):
            raise ValueError("needs either target or targetPercent")
        if not 0 < self.ratio < 1:
            key, most = ("target", 1) if self.target is not None else ("targetPercent", 100)
            raise ValueError(f"{key} must be more than 0 and less than {most}: what promises all has no error budget")
        if (self.op is None) != (self.value is None):
            raise ValueError("op and value belong together")
        if self.timeSliceTarget is not None and not 0 < self.timeSliceTarget <= 1:
            raise ValueError("timeSliceTarget must be more than 0 and at most 1")
        if self.timeSliceWindow is not None:
            _seconds(self.timeSliceWindow, "timeSliceWindow")

    @property
    def ratio(self) -> float:
        """The promised share."""
        return self.target if self.target is not None else (self.targetPercent or 0.0) / 100

    @property
    def slice_s(self) -> int | None:
        """Length of a time slice in seconds; None if events are counted."""
        return None if self.timeSliceWindow is None else _seconds(self.timeSliceWindow, "timeSliceWindow")


@dataclass(frozen=True, slots=True)
class Spec:
    """A service level objective."""

    indicator: Indicator
    timeWindow: tuple[TimeWindow, ...]
    budgetingMethod: Literal["Occurrences", "Timeslices"]
    objectives: tuple[Objective, ...]
    service: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        if len(self.timeWindow) != 1:
            raise ValueError("timeWindow must have exactly one item")
        is_threshold = self.indicator.spec.thresholdMetric is not None
        if not self.objectives or (is_threshold and len(self.objectives) > 1):
            raise ValueError("objectives must have an item, and of a thresholdMetric one alone")
        for each in self.objectives:
            if is_threshold != (each.op is not None):
                raise ValueError("objectives of a thresholdMetric need op and value, others have none")
            has_slices = each.timeSliceTarget is not None and each.timeSliceWindow is not None
            if (self.budgetingMethod == "Timeslices") != has_slices:
                raise ValueError("objectives need timeSliceTarget and timeSliceWindow with Timeslices, and only then")


@dataclass(frozen=True, slots=True)
class ServiceLevelObjective:
    """A file's content."""

    metadata: Metadata
    spec: Spec
    apiVersion: Literal["openslo/v1"]
    kind: Literal["SLO"]

    @property
    def name(self) -> str:
        """Its name, unique among all objectives."""
        return self.metadata.name

    @property
    def owner(self) -> str:
        """Its owner; empty without a label."""
        owner = self.metadata.labels.get("owner", "")
        return owner if isinstance(owner, str) else ", ".join(owner)

    @property
    def window_s(self) -> int:
        """Length of its window, in seconds."""
        return _seconds(self.spec.timeWindow[0].duration, "duration")

    @property
    def objectives(self) -> Mapping[str, Objective]:
        """Its targets by name: its own name if there is one target, else with the target's name appended."""
        every = self.spec.objectives
        if len(every) == 1:
            return {self.name: every[0]}
        return {f"{self.name}/{each.displayName or place}": each for place, each in enumerate(every)}


def read_text(path: Path, text: str | None = None) -> ServiceLevelObjective:
    """Return the objective of a file. Raises `SloError`, with all further faults as its ``others``."""
    return OperatorFile(path, text, error=SloError, noun="objective").load(ServiceLevelObjective)


def read_folder(folder: Path) -> dict[str, ServiceLevelObjective]:
    """Return the objectives of a folder's ``*.yaml`` by name. Raises `SloError`, all faults of all files at once."""
    if not folder.is_dir():
        raise SloError("there is no such folder", where=str(folder), hint="set [slo] files to one, or make it")
    return _read(sorted(folder.glob("*.yaml")))


def packaged_objectives() -> dict[str, ServiceLevelObjective]:
    """Return ranklake's own objectives."""
    with as_file(files(__package__) / "packaged") as folder:
        return _read(sorted(folder.glob("*.yaml")))


def _read(paths: Iterable[Path]) -> dict[str, ServiceLevelObjective]:
    result: dict[str, ServiceLevelObjective] = {}
    places: dict[str, Path] = {}
    faults: list[RanklakeError] = []
    for path in paths:
        try:
            slo = read_text(path)
        except SloError as error:
            faults += [error, *error.others]
            continue
        if slo.name in result:
            hint = f"call one of them otherwise; the other is in {places[slo.name].name}"
            faults.append(SloError(f"a second objective {slo.name!r}", where=str(path), hint=hint))
        result[slo.name], places[slo.name] = slo, path
    raise_all(faults)
    return result
