"""Named lints of contracts: what the schema allows but is unwise.

A contract silences one under `lint:` with the code, the item and the reason.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ranklake.lake.contracts.arrow import statistics_columns
from ranklake.lake.contracts.checks.registry import kind_of
from ranklake.lake.contracts.load import PACKAGED
from ranklake.lake.contracts.model import OVERLAY_IDS, Contract, Metric, is_known_unit

ENVELOPE_IDS: Final = 20  # ids below are the envelope's
TABLE: Final = "table"  # the item of a lint about the whole contract

SUFFIX_UNITS: Final[Mapping[str, tuple[str, ...]]] = {
    "_bytes_per_s": ("By/s",),
    "flops_per_s": ("FLOP/s",),
    "tokens_per_s": ("{token}/s",),
    "_ratio": ("ratio",),
    "_bytes": ("By",),
    "_ns": ("ns",),
    "_s": ("s",),
    "_hz": ("Hz",),
    "_watts": ("W",),
    "_joules": ("J",),
    "_celsius": ("Cel",),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One lint that fired: its code, the item it is about, and what is wrong with it."""

    code: str
    item: str
    message: str


def lint(contract: Contract) -> tuple[Finding, ...]:
    """Return what fires and is not silenced, and silencers that silence nothing (RL000)."""
    silenced = {(one.code, one.item) for one in contract.lint}
    fired = [Finding(code, item, what) for code, rule in LINTS.items() for item, what in rule(contract)]
    idle = silenced - {(one.code, one.item) for one in fired}
    return (
        *(Finding("RL000", item, f"{code} is silenced and does not fire") for code, item in sorted(idle)),
        *(one for one in fired if (one.code, one.item) not in silenced),
    )


def lint_metrics(metrics: Mapping[str, Metric], contracts: Mapping[str, Contract]) -> tuple[Finding, ...]:
    """Return what is wrong with the registry: units, homes that do not exist, successors that do not."""
    return tuple(
        Finding("RL020", one.name, what) for one in metrics.values() for what in _metric(one, metrics, contracts)
    )


def _metric(metric: Metric, metrics: Mapping[str, Metric], contracts: Mapping[str, Contract]) -> Iterator[str]:
    if not is_known_unit(metric.unit):
        yield f"unit {metric.unit!r} is not SI"
    table, _, name = metric.stored_in.partition(".")
    if table not in contracts or name not in contracts[table]:
        yield f"stored_in names no column {metric.stored_in!r}"
    elif contracts[table].column(name).unit not in {metric.unit, "metric"}:
        yield f"unit {metric.unit!r} is not that of {metric.stored_in}"
    if metric.replaced_by is not None and metric.replaced_by not in metrics:
        yield f"replaced_by names no metric {metric.replaced_by!r}"
    if metric.min is not None and metric.max is not None and metric.min > metric.max:
        yield "min is above max"
    if metric.kind == "ratio" and metric.unit != "ratio":
        yield "is a ratio with another unit"


def _suffix(contract: Contract) -> Iterator[tuple[str, str]]:
    """RL001: a name's suffix says another unit than the unit."""
    for column in contract.columns:
        suffix = next((end for end in SUFFIX_UNITS if column.name.endswith(end)), None)
        if suffix and column.is_number and column.unit not in SUFFIX_UNITS[suffix]:
            yield column.name, f"ends in {suffix} and has the unit {column.unit!r}"


def _named_unit(contract: Contract) -> Iterator[tuple[str, str]]:
    """RL002: a unit that a name should end in, and the name ends in none."""
    ends = {unit: end for end, units in SUFFIX_UNITS.items() for unit in units}
    for column in contract.columns:
        end = ends.get(column.unit or "")
        if end and not column.name.endswith(tuple(SUFFIX_UNITS)) and column.name != end.removeprefix("_"):
            yield column.name, f"has the unit {column.unit!r} and does not end in {end}"


def _has_unit(contract: Contract) -> Iterator[tuple[str, str]]:
    """RL003: a number without a unit."""
    for column in contract.columns:
        if column.is_number and column.unit is None:
            yield column.name, "is a number without a unit (`none` for what names or orders things)"


def _si(contract: Contract) -> Iterator[tuple[str, str]]:
    """RL004: a unit that is neither SI, nor dimensionless, nor a counted thing."""
    for column in contract.columns:
        if column.unit is not None and not is_known_unit(column.unit):
            yield column.name, f"unit {column.unit!r} is not SI"


def _doc(contract: Contract) -> Iterator[tuple[str, str]]:
    """RL005: a doc that is no sentence, or says no more than the name."""
    for column in contract.columns:
        if not column.doc.endswith((".", "…")):
            yield column.name, "doc is not a sentence (no full stop)"
        elif _words(column.doc) <= _words(column.name):
            yield column.name, "doc says no more than the name"


def _mask(contract: Contract) -> Iterator[tuple[str, str]]:
    """RL006: a column about people without a mask, or a mask where there is nothing to hide."""
    for column in contract.columns:
        if column.class_ != "operational" and column.mask is None:
            yield column.name, f"is {column.class_} and has no mask"
        elif column.class_ == "operational" and column.mask is not None:
            yield column.name, "is operational and has a mask"


def _statistics(contract: Contract) -> Iterator[tuple[str, str]]:
    """RL007: statistics, or the partition's path, would keep what an erasure must be able to remove."""
    for name in (*statistics_columns(contract), *contract.partition):
        if contract.column(name).class_ != "operational":
            yield name, "is not operational and would stand in the Delta log"


def _partition(contract: Contract) -> Iterator[tuple[str, str]]:
    """RL008: not partitioned by a required date."""
    if contract.partition != ("date",):
        yield TABLE, "is not partitioned by date alone"
    elif contract.column("date").type != "date" or not contract.column("date").required:
        yield "date", "is not a required date"


def _grain(contract: Contract) -> Iterator[tuple[str, str]]:
    """RL009: no check holds the grain."""
    if not any(one.kind == "unique" and set(one.columns) == set(contract.grain) for one in contract.checks):
        yield TABLE, f"no `unique` check holds the grain {', '.join(contract.grain)}"


def _ids(contract: Contract) -> Iterator[tuple[str, str]]:
    """RL010: an id from a range that belongs to somebody else."""
    for column in contract.columns:
        if column.id < ENVELOPE_IDS and not contract.envelope:
            yield column.name, f"id {column.id} is reserved for the envelope"
        if Path(contract.path).parent == PACKAGED and column.id >= OVERLAY_IDS:
            yield column.name, f"id {column.id} is reserved for overlays"


def _versions(contract: Contract) -> Iterator[tuple[str, str]]:
    """RL011: a column from a later version than the contract's, or one that ends before it is deprecated."""
    for column in contract.columns:
        if column.since > contract.version:
            yield column.name, f"since {column.since} is later than version {contract.version}"
        if column.sunset and (not column.deprecated or column.sunset < column.deprecated):
            yield column.name, "has a sunset and no earlier deprecation"


def _ranges(contract: Contract) -> Iterator[tuple[str, str]]:
    """RL012: a check that no value passes."""
    for check in contract.all_checks():
        low, high = check.min, check.max
        numbers = isinstance(low, int | float) and isinstance(high, int | float)
        if (numbers or (isinstance(low, str) and isinstance(high, str))) and low > high:  # type: ignore[operator]
            yield check.id, "min is above max"


def _types(contract: Contract) -> Iterator[tuple[str, str]]:
    """RL013: a check about a column of a type that its kind cannot judge."""
    for check in contract.all_checks():
        for column in map(contract.column, check.columns):
            if column.type not in kind_of(check).types:
                yield check.id, f"{check.kind} cannot judge {column.name}, which is {column.type}"


LINTS: Final[Mapping[str, Callable[[Contract], Iterator[tuple[str, str]]]]] = {
    "RL001": _suffix,
    "RL002": _named_unit,
    "RL003": _has_unit,
    "RL004": _si,
    "RL005": _doc,
    "RL006": _mask,
    "RL007": _statistics,
    "RL008": _partition,
    "RL009": _grain,
    "RL010": _ids,
    "RL011": _versions,
    "RL012": _ranges,
    "RL013": _types,
}


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower())) - {"the", "a", "an", "of"}
