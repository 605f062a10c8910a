"""From a validated document to dataclasses, with the rules that a JSON Schema cannot express.

What is wrong is noted with the document, so that all of it is reported at once; `load` raises it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.checks.registry import KINDS
from ranklake.lake.contracts.document import Document, KeyPath
from ranklake.lake.contracts.model import Check, Column, Contract, Metric, Scalar, Suppression, Tombstone


def columns(document: Document, at: KeyPath, raw: Iterable[Mapping[str, Any]]) -> tuple[Column, ...]:
    """Build columns with their checks. Notes with the document where a check lacks what its kind needs."""
    built = []
    for index, facts in enumerate(raw):
        here = (*at, index, "checks")
        own = checks(document, here, facts.get("checks", ()), column=facts["name"])
        rest = {key: value for key, value in facts.items() if key not in {"class", "checks", "aka"}}
        built.append(Column(class_=facts["class"], aka=tuple(facts.get("aka", ())), checks=own, **rest))
    return tuple(built)


def checks(
    document: Document, at: KeyPath, raw: Iterable[Mapping[str, Any]], *, column: str | None = None
) -> tuple[Check, ...]:
    """Build checks; those below a column get it as their ``columns``. Notes with the document what is wrong."""
    built = []
    for index, facts in enumerate(raw):
        here, kind = (*at, index), KINDS[facts["kind"]]
        for group in kind.needs:
            if not any(name in facts for name in group):
                document.add(here, f"check {facts['id']!r} ({facts['kind']}) lacks {' or '.join(group)}", "add it")
        if column is not None and (kind.own_columns or "columns" in facts):
            document.add(here, f"check {facts['id']!r} names its own columns", "move it to the table's checks")
        about = (column,) if column is not None else tuple(facts.get("columns", ()))
        if kind.pair and len(about) != 2:  # noqa: PLR2004 - a pair is two
            document.add(here, f"check {facts['id']!r} compares {len(about)} columns", "name two: [smaller, larger]")
        rest = {key: value for key, value in facts.items() if key not in {"columns", "by", "values"}}
        check = Check(columns=about, by=tuple(facts.get("by", ())), values=tuple(facts.get("values", ())), **rest)
        if check.quarantines and kind.level != "row":
            document.add(here, f"check {check.id!r} judges the table", "on_fail: quarantine is for row checks")
        built.append(check)
    return tuple(built)


def contract(document: Document, envelope: tuple[Column, ...]) -> Contract:
    """Build a contract from its document, which notes what is wrong."""
    facts = document.content
    shared = envelope if facts.get("envelope", False) else ()
    built = Contract(
        table=facts["table"],
        version=facts["version"],
        kind=facts["kind"],
        owner=facts["owner"],
        steward=facts["steward"],
        summary=facts["summary"],
        grain=tuple(facts["grain"]),
        partition=tuple(facts["partition"]),
        sort=tuple(facts["sort"]),
        retention=facts["retention"],
        columns=shared + columns(document, ("columns",), facts["columns"]),
        checks=checks(document, ("checks",), facts.get("checks", ())),
        retired=tombstones(facts),
        lint=tuple(Suppression(**one) for one in facts.get("lint", ())),
        envelope=facts.get("envelope", False),
        series=tuple(facts.get("series", ())),
        path=str(document.path),
        status=facts.get("status", "active"),
        decision=facts.get("decision", ""),
        called=facts.get("called", ""),
    )
    agree(document, built, first=len(shared))
    return built


def tombstones(facts: Mapping[str, Any]) -> tuple[Tombstone, ...]:
    """Build the columns that are gone."""
    return tuple(Tombstone(**one) for one in facts.get("retired", ()))


def agree(document: Document, built: Contract, *, first: int) -> None:
    """Hold a contract's parts against each other: unique ids and names, columns that exist, units where they belong.

    ``first`` is how many of its columns come from elsewhere, so that lines are those of this document, which notes what
    is wrong.
    """
    _agree_columns(document, built, first)
    for key in ("grain", "partition", "sort", "series"):
        _check_names(document, built, (key,), key, getattr(built, key))
    for check in built.checks:
        _check_names(
            document, built, (*_last_check_path(document, check.id), "columns"), f"check {check.id!r}", check.columns
        )
    for check in built.all_checks():
        _check_names(document, built, (*_last_check_path(document, check.id), "by"), f"check {check.id!r}", check.by)
    seen: set[str] = set()
    for check in built.all_checks():
        if check.id in seen:
            at = (*_last_check_path(document, check.id), "id")
            document.add(at, f"check id {check.id!r} appears twice", "results are kept by id; choose another")
        seen.add(check.id)


def _agree_columns(document: Document, built: Contract, first: int) -> None:
    ids: dict[int, str] = {gone.id: f"retired {gone.name!r}" for gone in built.retired}
    names = {gone.name for gone in built.retired}
    for index, column in enumerate(built.columns):
        here: KeyPath = ("columns", index - first) if index >= first else ()
        if column.id in ids:
            document.add((*here, "id"), f"column id {column.id} is taken by {ids[column.id]}", "take the next free id")
        if column.name in names:
            document.add((*here, "name"), f"column name {column.name!r} is taken", "take another name")
        if column.unit is not None and not column.is_number:
            document.add((*here, "unit"), f"column {column.name!r} is {column.type} and has a unit", "remove the unit")
        if wrong := default_fault(column):
            hint = "write one of the column's type" if column.type != "int64_list" else "remove it"
            document.add((*here, "default"), f"column {column.name!r}: {wrong}", hint)
        ids[column.id] = repr(column.name)
        names.add(column.name)


def _last_check_path(document: Document, check_id: str) -> KeyPath:
    """Return the path of the last check with this id in the document; the path of the file if it is not in it."""
    path: KeyPath = ()
    for key in ("columns", "packaged_columns"):
        for index, column in enumerate(document.content.get(key, ())):
            for place, check in enumerate(column.get("checks", ())):
                path = (key, index, "checks", place) if check["id"] == check_id else path
    for place, check in enumerate(document.content.get("checks", ())):
        path = ("checks", place) if check["id"] == check_id else path
    return path


def _check_names(document: Document, built: Contract, at: KeyPath, who: str, names: Iterable[str]) -> None:
    for index, name in enumerate(names):
        if name not in built:
            document.add((*at, index), f"{who} names no column {name!r}", did_you_mean(name, built.names))


def metrics(document: Document) -> dict[str, Metric]:
    """Build the registry of one file, by name. Notes with the document a name that stands twice."""
    registry: dict[str, Metric] = {}
    for index, facts in enumerate(document.content["metrics"]):
        if facts["name"] in registry:
            document.add(("metrics", index, "name"), f"metric {facts['name']!r} appears twice", "remove one")
        registry[facts["name"]] = Metric(**{**facts, "aka": tuple(facts.get("aka", ()))})
    return registry


_INTEGERS: Final = {"int32": 2**31, "int64": 2**63}
_PLACES: Final = 9
_DIGITS: Final = 38 - _PLACES


def default_fault(column: Column) -> str:
    """Return why a column's default cannot be a value of it, in a clause; empty where it can, or there is none."""
    if column.default is None:
        return ""
    fits = _FITS.get(column.type)
    if fits is None:
        return f"a column of type {column.type} takes no default"
    return "" if fits(column.default) else f"default {column.default!r} is no {column.type}"


def _is_integer(limit: int) -> Callable[[Scalar], bool]:
    return lambda value: type(value) is int and -limit <= value < limit


def _is_float(most: float) -> Callable[[Scalar], bool]:
    return lambda value: type(value) in {int, float} and math.isfinite(value) and abs(value) <= most  # type: ignore[arg-type]


def _is_decimal(value: Scalar) -> bool:
    if isinstance(value, bool | float):  # a float is not the number that somebody wrote
        return False
    try:
        number = Decimal(value)
    except InvalidOperation:
        return False
    exponent = number.as_tuple().exponent
    return isinstance(exponent, int) and exponent >= -_PLACES and number.adjusted() < _DIGITS


def _is_moment(value: Scalar) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _is_date(value: Scalar) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


_FITS: Final[Mapping[str, Callable[[Scalar], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    **{name: _is_integer(limit) for name, limit in _INTEGERS.items()},
    "float32": _is_float(3.4028234e38),
    "float64": _is_float(math.inf),
    "decimal": _is_decimal,
    "timestamp": _is_moment,
    "date": _is_date,
}
