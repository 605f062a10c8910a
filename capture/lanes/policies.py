"""Policies: what happens to a metric that does not match the registry.

A series is judged once, by name, kind and unit, when it gets its number; its values are checked against the metric's
range when they are sealed (`ranges`). Neither costs the call that records a value anything. For each thing that may be
wrong the user has chosen one of

    flag          the row is stored, and its `edge_flag` says what was noticed, such as ``wrong_unit``
    quarantine    the row bears ``quarantine:wrong_unit``, and by the table's contract ingest puts it into `rejects`
    drop          the row is counted as a gap, by reason

Of a metric that is retired its entry in the registry chooses (``when_retired``); one that is deprecated is flagged.
What is wrong with single rows, whatever their metric, `ranklake.lake.contracts.edge` judges when they arrive.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ranklake.capture.common.gaps import (
    RETIRED,
    TOO_MANY_SERIES,
    UNREGISTERED,
    WRONG_KIND,
    WRONG_UNIT,
    RefusedError,
    closest_name,
)
from ranklake.capture.common.layouts import OWN_WIDTH, STEP_NAMES
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.common.values import text
from ranklake.lake.contracts.load import load_contracts, load_metrics
from ranklake.lake.contracts.model import NUMBERS, Contract, Metric, is_unit
from ranklake.lake.contracts.overlay import Overlay

KINDS: Final = frozenset({"gauge", "counter", "delta", "ratio"})
OVERFLOW: Final = "ranklake/over_max_series"
"""The metric that values of all series beyond the limit share, unless they are dropped."""
NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})
MISUSES: Final = "ranklake/misuses"
SELF_METRICS: Final = frozenset({MISUSES})
"""What ranklake records of itself among a run's metrics: none takes the place of one of the user's, nor is sampled."""

OUT_OF_RANGE_FLAG: Final = "out_of_range"
_OVER_FLAG: Final = "over_max_series"
_REASONS: Final = {
    "unregistered": UNREGISTERED,
    "wrong_kind": WRONG_KIND,
    "wrong_unit": WRONG_UNIT,
    "retired": RETIRED,
}
_ENDED: Final = frozenset({"retired", "sunset"})
_MOST_REPORTED: Final = 100
_MOST_COMPARED: Final = 100
_NEAR: Final = 0.85

Warn = Callable[[str, str], None]


def registry_of(settings: CaptureSettings, warn: Warn) -> tuple[CaptureSettings, Mapping[str, Metric]]:
    """Return the metrics that are registered, and the settings that hold with them.

    An overlay that cannot be read is reported; without it nobody knows what is registered, so ``unregistered`` flags.
    """
    try:
        return settings, load_metrics(Path(settings.contracts_overlay) if settings.contracts_overlay else None)
    except Exception as error:  # noqa: BLE001 - users hand over anything
        warn("contracts_overlay", f"the metrics of contracts_overlay are not known here: {error}")
        return replace(settings, unregistered="flag"), load_metrics()


def set_edge_flag(policy: str, flag: str) -> str:
    """Return what `edge_flag` says of a row, by the policy."""
    return f"quarantine:{flag}" if policy == "quarantine" else flag


class Policies:
    """Judges the series of one process as they are defined.

    Parameters
    ----------
    registry
        What is known of metrics, by name.
    warn
        Told of what the user may want to mend: a topic, and a line.
    renamed
        Names that columns of ``steps`` had before an overlay's migrations, and what each is called now.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        registry: Mapping[str, Metric],
        warn: Warn,
        renamed: Mapping[str, str] = NO_NAMES,
    ) -> None:
        self._settings, self._registry, self._warn = settings, registry, warn
        self._renamed = renamed
        self._declared: dict[str, tuple[str | None, str | None]] = {}
        self._reported: set[str] = set()
        self._compared = 0

    def judge(self, name: str, kind: str | None, unit: str | None) -> dict[str, Any]:
        """Return what a series' definition says of it: see `ranklake.capture.spool.meta.Metric`.

        Parameters
        ----------
        kind, unit
            As the user declared them; None is whatever the metric has. Of a metric that is not registered the first
            declaration holds.

        Raises
        ------
        RefusedError
            A policy says that such a series is dropped.
        """
        metric = self._registry.get(name)
        if metric is None:
            first_kind, first_unit = self._declared.get(name, (None, None))
            due_kind, due_unit = first_kind or (kind if kind in KINDS else None), first_unit or unit
        else:
            due_kind, due_unit = metric.kind, metric.unit
        wrong = {
            "unregistered": metric is None,
            "wrong_kind": kind is not None and kind != due_kind,
            "wrong_unit": unit is not None and unit != due_unit,
            "deprecated": metric is not None and metric.stage == "deprecated",
            "retired": metric is not None and metric.stage in _ENDED,
        }
        flags = [flag for flag, is_wrong in wrong.items() if is_wrong]
        successor = f"use {metric.replaced_by!r}" if metric is not None and metric.replaced_by else "record it no more"
        mismatches = {
            "wrong_kind": f"kind {kind!r} is not {due_kind!r}",
            "wrong_unit": f"unit {unit!r} is not {due_unit!r}",
            "deprecated": successor,
            "retired": successor,
        }
        for flag in flags:
            policy = self._policy(flag, metric)
            self._report(name, flag, policy, mismatches.get(flag, ""))
            if policy == "drop":
                raise RefusedError(_REASONS[flag], name)
        if metric is None:
            if due_kind or due_unit:
                self._declared[name] = due_kind, due_unit
            if unit is not None and not is_unit(unit):
                hint = "write it as UCUM does, such as 's' or 'By', and what is counted in braces, such as '{token}'"
                self._tell_once(f"{name} unit", f"unit {text(unit, 80)!r} of metric {name!r} is not known; {hint}")
        facts: dict[str, Any] = {"kind": kind if kind in KINDS else due_kind or "gauge"}
        if flags:
            facts["e"] = ",".join(set_edge_flag(self._policy(flag, metric), flag) for flag in flags)
        if metric is not None and (metric.min is not None or metric.max is not None):
            facts["r"] = [metric.min, metric.max, self._settings.out_of_range]
        return facts

    def _policy(self, flag: str, metric: Metric | None) -> str:
        """Return what happens to values of a series that deserves a flag."""
        if flag in {"deprecated", "retired"}:
            return metric.when_retired if metric is not None and flag == "retired" else "flag"
        return str(getattr(self._settings, flag))

    def overflow(self, name: str) -> dict[str, Any]:
        """Return the definition of the series that those beyond the limit share. Raises `RefusedError` if none do."""
        policy, most = self._settings.over_max_series, self._settings.max_series
        if policy == "drop":
            raise RefusedError(TOO_MANY_SERIES, f"more than {most}, {name} for one")
        self._tell_once(OVERFLOW, f"more than {most} series; values of the others, {name!r} for one, become {OVERFLOW}")
        return {"n": OVERFLOW, "kind": "gauge", "e": set_edge_flag(policy, _OVER_FLAG)}

    def _report(self, name: str, flag: str, policy: str, how: str) -> None:
        """Warn of a metric that is dropped or wrongly declared, or whose name is nearly that of another."""
        hint = self._name_hint(name) if flag == "unregistered" else ""
        if policy == "drop" or how or hint:
            subject = f"metric {text(name, 80)!r} is {flag.replace('_', ' ')}" if how else f"unknown metric {name!r}"
            rows = {"flag": "kept, and flagged", "quarantine": "sent to quarantine", "drop": "dropped and counted"}[
                policy
            ]
            parts = (subject, how, f"its rows are {rows}", "" if how else hint)
            self._tell_once(f"{name} {flag}", "; ".join(filter(None, parts)))

    def _name_hint(self, name: str) -> str:
        """Name what a column is called now, or ask for a registered name that this one may be a misspelling of."""
        if name in self._renamed:
            return f"column {name!r} of steps is called {self._renamed[name]!r} now: log it by that name"
        if self._compared >= _MOST_COMPARED:  # a tenth of a millisecond each, in the training's thread
            return ""
        self._compared += 1
        of_step = "" if "/" in name else closest_name(name, STEP_NAMES)
        matches = [of_step] if of_step else difflib.get_close_matches(name, self._registry, n=1, cutoff=_NEAR)
        return f"did you mean {matches[0]!r}?" if matches else ""

    def _tell_once(self, topic: str, line: str) -> None:
        if topic not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(topic)
            self._warn(f"metric {topic}", line)


STEPS: Final = "steps"
_WHOLE: Final = frozenset({"int32", "int64"})


@dataclass(frozen=True)
class OwnContracts:
    """What one process records besides what every process does.

    Attributes
    ----------
    tables
        Contracts of the tables that an overlay adds.
    step_columns
        Numbers that it adds to ``steps``, by name: whether they are whole.
    renamed
        By table, the names that its columns had before the overlay's migrations, and what each is called now.
    frame
        What goes into meta.frames; None where nothing is added.
    """

    tables: Mapping[str, Contract] = field(default_factory=dict)
    step_columns: Mapping[str, bool] = field(default_factory=dict)
    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    frame: Mapping[str, Any] | None = None


NO_CONTRACTS: Final = OwnContracts()


def own_contracts(settings: CaptureSettings, warn: Warn) -> OwnContracts:
    """Return what the configured overlay adds; where it cannot be used that is reported, and nothing is added."""
    if not settings.contracts_overlay:
        return NO_CONTRACTS
    try:
        overlay = Overlay.read(Path(settings.contracts_overlay))
        every = load_contracts(overlay)
        packaged = frozenset(load_contracts())
    except Exception as error:  # noqa: BLE001 - users hand over anything
        warn("contracts_overlay tables", f"tables and columns of contracts_overlay are not recorded here: {error}")
        return NO_CONTRACTS
    tables = {name: every[name] for name in overlay.tables if name not in packaged and every[name].envelope}
    files = {f"{name}.yaml": overlay.files[f"{name}.yaml"] for name in (*tables, STEPS) if name in overlay.tables}
    return OwnContracts(
        tables,
        _step_columns(every[STEPS], warn),
        {
            name: {old: new for old, new in overlay.renamed_columns(name).items() if old not in every[name]}
            for name in (*tables, STEPS)
        },
        {"k": "overlay", "f": files} if files else None,
    )


def _step_columns(steps: Contract, warn: Warn) -> dict[str, bool]:
    whole_by_name: dict[str, bool] = {}
    for column in steps.own_columns:
        if column.type not in NUMBERS - {"decimal"} | {"bool"}:
            warn(f"steps.{column.name}", f"column {column.name!r} of steps is {column.type}: run.step takes numbers")
        elif len(whole_by_name) == OWN_WIDTH:
            problem = f"column {column.name!r} of steps is beyond the {OWN_WIDTH} that run.step takes"
            warn("steps columns", f"{problem}: its values become metrics, and so do those of the columns after it")
        else:
            whole_by_name[column.name] = column.type in _WHOLE
    return whole_by_name
