"""Policies: what happens to a metric that does not match the registry.

A series is validated once, by name, kind and unit, when it gets its number. Its values are checked against the metric's
range when they are sealed. So a call that records a value pays for neither. For each kind of mismatch, a setting is one
of

    flag          the row is stored, and its `edge_flag` names the mismatch, such as ``wrong_unit``
    quarantine    `edge_flag` is ``quarantine:wrong_unit``, and ingest moves the row to `rejects`
    drop          the row is counted as a gap, by reason

For a retired metric, its entry in the registry decides (``when_retired``). A deprecated metric is flagged. Faults of
single rows, for any metric, are checked when they arrive in the lake (`ranklake.lake.contracts.edge`).
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
"""Metric for the values of all series above the limit, unless they are dropped."""
NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})
MISUSES: Final = "ranklake/misuses"
SELF_METRICS: Final = frozenset({MISUSES})
"""Metrics that ranklake records about itself in a run. They do not count towards the limit and are not sampled."""

OUT_OF_RANGE_FLAG: Final = "out_of_range"
_OVER_FLAG: Final = "over_max_series"
_REASONS: Final = {
    "unregistered": UNREGISTERED,
    "wrong_kind": WRONG_KIND,
    "wrong_unit": WRONG_UNIT,
    "retired": RETIRED,
}
_RETIRED_STAGES: Final = frozenset({"retired", "sunset"})
_MOST_REPORTED: Final = 100
_MOST_COMPARED: Final = 100
_SIMILARITY: Final = 0.85

Warn = Callable[[str, str], None]


def registry_of(settings: CaptureSettings, warn: Warn) -> tuple[CaptureSettings, Mapping[str, Metric]]:
    """Return the settings and the registered metrics.

    If the overlay cannot be read, warn and set ``unregistered`` to ``flag``, because its metrics are unknown.
    """
    try:
        return settings, load_metrics(Path(settings.contracts_overlay) if settings.contracts_overlay else None)
    except Exception as error:  # noqa: BLE001 - users pass any value
        warn("contracts_overlay", f"the metrics of contracts_overlay cannot be read: {error}")
        return replace(settings, unregistered="flag"), load_metrics()


def set_edge_flag(policy: str, flag: str) -> str:
    """Return the value of `edge_flag` for a flag under a policy."""
    return f"quarantine:{flag}" if policy == "quarantine" else flag


class Policies:
    """Validates the series of one process when they are defined.

    Parameters
    ----------
    registry
        Registered metrics by name.
    warn
        Called with a topic and a line for each mismatch.
    renamed
        Former names of columns of ``steps``, from an overlay's migrations, each with the current name.
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
        """Return the facts of a series' definition; see `ranklake.capture.spool.meta.Metric`.

        Parameters
        ----------
        kind, unit
            As declared by the user; None means the registry's. For an unregistered metric, the first declaration
            applies.

        Raises
        ------
        RefusedError
            A policy drops such a series.
        """
        metric = self._registry.get(name)
        if metric is None:
            first_kind, first_unit = self._declared.get(name, (None, None))
            expected_kind, expected_unit = first_kind or (kind if kind in KINDS else None), first_unit or unit
        else:
            expected_kind, expected_unit = metric.kind, metric.unit
        wrong = {
            "unregistered": metric is None,
            "wrong_kind": kind is not None and kind != expected_kind,
            "wrong_unit": unit is not None and unit != expected_unit,
            "deprecated": metric is not None and metric.stage == "deprecated",
            "retired": metric is not None and metric.stage in _RETIRED_STAGES,
        }
        flags = [flag for flag, is_wrong in wrong.items() if is_wrong]
        successor = f"use {metric.replaced_by!r}" if metric is not None and metric.replaced_by else "record it no more"
        mismatches = {
            "wrong_kind": f"kind {kind!r} is not {expected_kind!r}",
            "wrong_unit": f"unit {unit!r} is not {expected_unit!r}",
            "deprecated": successor,
            "retired": successor,
        }
        for flag in flags:
            policy = self._policy(flag, metric)
            self._report(name, flag, policy, mismatches.get(flag, ""))
            if policy == "drop":
                raise RefusedError(_REASONS[flag], name)
        if metric is None:
            if expected_kind or expected_unit:
                self._declared[name] = expected_kind, expected_unit
            if unit is not None and not is_unit(unit):
                hint = "write it as UCUM does, such as 's' or 'By', and what is counted in braces, such as '{token}'"
                self._warn_once(f"{name} unit", f"unit {text(unit, 80)!r} of metric {name!r} is not known; {hint}")
        facts: dict[str, Any] = {"kind": kind if kind in KINDS else expected_kind or "gauge"}
        if flags:
            facts["e"] = ",".join(set_edge_flag(self._policy(flag, metric), flag) for flag in flags)
        if metric is not None and (metric.min is not None or metric.max is not None):
            facts["r"] = [metric.min, metric.max, self._settings.out_of_range]
        return facts

    def _policy(self, flag: str, metric: Metric | None) -> str:
        """Return the policy for a flag: ``flag``, ``quarantine`` or ``drop``."""
        if flag in {"deprecated", "retired"}:
            return metric.when_retired if metric is not None and flag == "retired" else "flag"
        return str(getattr(self._settings, flag))

    def overflow(self, name: str) -> dict[str, Any]:
        """Return the definition of the shared series above the limit. Raises `RefusedError` if these are dropped."""
        policy, limit = self._settings.over_max_series, self._settings.max_series
        if policy == "drop":
            raise RefusedError(TOO_MANY_SERIES, f"more than {limit}, such as {name}")
        self._warn_once(OVERFLOW, f"more than {limit} series; values of others, such as {name!r}, become {OVERFLOW}")
        return {"n": OVERFLOW, "kind": "gauge", "e": set_edge_flag(policy, _OVER_FLAG)}

    def _report(self, name: str, flag: str, policy: str, mismatch: str) -> None:
        """Warn about a metric that is dropped or wrongly declared, or whose name is similar to a registered one."""
        hint = self._name_hint(name) if flag == "unregistered" else ""
        if policy == "drop" or mismatch or hint:
            problem = f"metric {text(name, 80)!r} is {flag.replace('_', ' ')}"
            subject = problem if mismatch else f"unknown metric {name!r}"
            rows = {"flag": "kept, and flagged", "quarantine": "sent to quarantine", "drop": "dropped and counted"}[
                policy
            ]
            parts = (subject, mismatch, f"its rows are {rows}", "" if mismatch else hint)
            self._warn_once(f"{name} {flag}", "; ".join(filter(None, parts)))

    def _name_hint(self, name: str) -> str:
        """Return a hint: the current name of a renamed column, or a registered name that is similar."""
        if name in self._renamed:
            return f"column {name!r} of steps is called {self._renamed[name]!r} now: log it by that name"
        if self._compared >= _MOST_COMPARED:  # each comparison takes 0.1 ms of the training thread
            return ""
        self._compared += 1
        step_name = "" if "/" in name else closest_name(name, STEP_NAMES)
        matches = [step_name] if step_name else difflib.get_close_matches(name, self._registry, n=1, cutoff=_SIMILARITY)
        return f"did you mean {matches[0]!r}?" if matches else ""

    def _warn_once(self, topic: str, line: str) -> None:
        if topic not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(topic)
            self._warn(f"metric {topic}", line)


STEPS: Final = "steps"
_WHOLE: Final = frozenset({"int32", "int64"})


@dataclass(frozen=True)
class OwnContracts:
    """Tables and columns that an overlay adds to the recording of one process.

    Attributes
    ----------
    tables
        Contracts of the added tables.
    step_columns
        Numbers added to ``steps``, by name, with whether they are integers.
    renamed
        By table: former column names from the overlay's migrations, each with the current name.
    frame
        Frame for meta.frames; None if the overlay adds nothing.
    """

    tables: Mapping[str, Contract] = field(default_factory=dict)
    step_columns: Mapping[str, bool] = field(default_factory=dict)
    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    frame: Mapping[str, Any] | None = None


NO_CONTRACTS: Final = OwnContracts()


def own_contracts(settings: CaptureSettings, warn: Warn) -> OwnContracts:
    """Return the additions of the configured overlay. If it cannot be read, warn, and add nothing."""
    if not settings.contracts_overlay:
        return NO_CONTRACTS
    try:
        overlay = Overlay.read(Path(settings.contracts_overlay))
        contracts = load_contracts(overlay)
        packaged = frozenset(load_contracts())
    except Exception as error:  # noqa: BLE001 - users pass any value
        warn("contracts_overlay tables", f"tables and columns of contracts_overlay are not recorded here: {error}")
        return NO_CONTRACTS
    tables = {name: contracts[name] for name in overlay.tables if name not in packaged and contracts[name].envelope}
    files = {f"{name}.yaml": overlay.files[f"{name}.yaml"] for name in (*tables, STEPS) if name in overlay.tables}
    return OwnContracts(
        tables,
        _step_columns(contracts[STEPS], warn),
        {
            name: {old: new for old, new in overlay.renamed_columns(name).items() if old not in contracts[name]}
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
