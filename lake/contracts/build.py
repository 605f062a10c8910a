"""Builds contracts and metrics from YAML documents that `schema.json` has validated.

Checks the rules that a JSON Schema cannot express, including those for operators' tables. Functions add each problem
to the document, so that `load` can report all of them together.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.checks.registry import KINDS
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.model import (
    Check,
    Column,
    Contract,
    Metric,
    RollupFacts,
    RollupInput,
    Scalar,
    Suppression,
    Tombstone,
)
from ranklake.lake.contracts.overlay import QUERIES, Overlay
from ranklake.operator_files import KeyPath, OperatorFile

__all__ = ["Document", "KeyPath"]


class Document(OperatorFile):
    """A file whose problems are raised as `ContractError`."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        super().__init__(path, text, error=ContractError)


MAX_NAME: Final = 64
MAX_COLUMNS: Final = 1000
RESERVED_TABLES: Final = frozenset({"affected_runs", "histograms", "information_schema", "intervals", "rows"})
"""Names that tables cannot have: files of the local spool and relations in a rollup's session have these names."""
RESERVED_COLUMNS: Final = frozenset({"m", "refused", "refused_row", "s"})
"""Names that columns cannot have: recorded rows, and rows that an importer refused, use these keys."""
_WRITTEN: Final = "_written"


def rollup_facts(document: Document, overlay: Overlay) -> RollupFacts | None:
    """Return the rollup of an operator's table, with its query; None if it is not derived or has no inputs."""
    facts: Mapping[str, Any] = document.content
    name = facts["table"]
    query = f"{QUERIES}/{name}.sql"
    if facts["kind"] != "derived":
        if "rollup" in facts:
            document.add(("rollup",), f"{name!r} is a {facts['kind']} table and has a rollup", "write `kind: derived`")
        if query in overlay.files:
            document.add(("kind",), f"{name!r} is a {facts['kind']} table and has a {query}", "write `kind: derived`")
        return None
    if "rollup" not in facts:
        document.add(("kind",), f"derived table {name!r} says no inputs", "add rollup: {inputs: [{table: …}]}")
        return None
    if query not in overlay.files:
        document.add(("rollup",), f"derived table {name!r} has no query", f"write it into {query}")
    spec: Mapping[str, Any] = facts["rollup"]
    scope = spec.get("scope", "partition")
    inputs = tuple(_input(document, place, entry, scope) for place, entry in enumerate(spec["inputs"]))
    for place, source in enumerate(inputs):
        if source.table in {earlier.table for earlier in inputs[:place]}:
            document.add(("rollup", "inputs", place), f"input {source.table!r} appears twice", "remove one")
    values = {parameter["name"]: float(parameter["value"]) for parameter in spec.get("parameters", ())}
    return RollupFacts(scope, inputs, tuple(sorted(values.items())), overlay.files.get(query, ""))


def _input(document: Document, place: int, spec: Mapping[str, Any], scope: str) -> RollupInput:
    reach = spec.get("reach", "run" if scope == "run" else "day")
    if (reach == "run") != (scope == "run"):
        hint = "of a rollup of whole runs it is run; else day, days or until"
        document.add(("rollup", "inputs", place, "reach"), f"reach {reach!r} does not go with scope {scope!r}", hint)
    return RollupInput(spec["table"], reach, tuple(spec.get("classified", ())))


def check_overlay_table(document: Document, built: Contract) -> None:
    """Check the rules for a table that an overlay defines: name, kind, partition, envelope, number of columns."""
    name = built.table
    if len(name) > MAX_NAME or name in RESERVED_TABLES or name.endswith(_WRITTEN):
        reason = f"is longer than {MAX_NAME} letters" if len(name) > MAX_NAME else "is reserved"
        document.add(("table",), f"table name {name!r} {reason}", "take another name")
    if built.kind == "system":
        document.add(("kind",), f"{name!r} is a system table: only ranklake writes those", "write `kind: fact`")
    if built.partition != ("date",):
        document.add(("partition",), f"{name!r} is not partitioned by date", "write partition: [date]")
    if built.kind == "fact" and not built.envelope:
        hint = "add `envelope: true`; it adds columns such as run, rank and ts"
        document.add(("kind",), f"fact table {name!r} has no envelope", hint)
    if built.kind == "derived":
        _check_derived(document, built)
    if len(built.columns) > MAX_COLUMNS:
        document.add(("columns",), f"{len(built.columns)} columns are more than {MAX_COLUMNS}", "split the table")
    own_columns = tuple(column for column in built.columns if not (built.envelope and column.id < 20))  # noqa: PLR2004 - the envelope's ids
    check_overlay_columns(document, own_columns)


def _check_derived(document: Document, built: Contract) -> None:
    if built.rollup is None:  # `rollup_facts` added the problem
        return
    if built.envelope:
        document.add(("envelope",), f"derived table {built.table!r} has an envelope", "name its columns instead")
    required = ("run", "date") if built.rollup.scope == "run" else ("date",)
    for name, type_ in (("run", "string"), ("date", "date")):
        if name in required and (name not in built or built.column(name).type != type_):
            message = f"derived table {built.table!r} has no column {name!r} of type {type_}"
            document.add(("columns",), message, "add it; the query has to give it")


def check_overlay_columns(document: Document, columns: Sequence[Column]) -> None:
    """Check the rules for columns that an overlay defines: names and masks."""
    names = [facts["name"] for facts in document.content.get("columns", ())]
    for column in columns:
        here = ("columns", names.index(column.name)) if column.name in names else ("columns",)
        if column.name in RESERVED_COLUMNS or len(column.name) > MAX_NAME:
            reason = "is reserved" if column.name in RESERVED_COLUMNS else f"is longer than {MAX_NAME} letters"
            document.add((*here, "name"), f"column name {column.name!r} {reason}", "take another name")
        if column.class_ != "operational" and column.mask is None:
            hint = "add mask: hash, redact or nullify"
            document.add((*here, "class"), f"column {column.name!r} is {column.class_} and has no mask", hint)


def check_inputs(document: Document, built: Contract, contracts: Mapping[str, Contract]) -> None:
    """Check that the inputs of an operator's rollup exist and can be inputs."""
    for place, item in enumerate(built.rollup.inputs if built.rollup else ()):
        here = ("rollup", "inputs", place)
        if item.table not in contracts:
            document.add((*here, "table"), f"no table {item.table!r}", did_you_mean(item.table, contracts))
            continue
        source = contracts[item.table]
        if source.kind == "system" or source.status == "planned":
            document.add((*here, "table"), f"{item.table!r} is no input: nothing tells when it changes", "remove it")
        if item.reach == "run" and "run" not in source:
            document.add((*here, "table"), f"{item.table!r} has no column run", "write scope: partition")
        for at, name in enumerate(item.classified):
            if name not in source:
                hint = did_you_mean(name, source.names)
                document.add((*here, "classified", at), f"{item.table!r} has no column {name!r}", hint)
            elif source.column(name).class_ == "operational":
                message = f"column {name!r} of {item.table!r} is operational"
                document.add((*here, "classified", at), message, "remove it from the list; it is seen anyway")


def cycle(rollups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a cycle among rollups, with the first name repeated at the end; empty if there is none.

    ``rollups`` maps the name of each rollup to the names of its inputs.
    """
    visited: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in visited:
            return []
        for source in rollups.get(name, ()):
            if loop := visit(source, [*path, name]):
                return loop
        visited.add(name)
        return []

    return next((loop for name in sorted(rollups) if (loop := visit(name, []))), [])


def columns(document: Document, at: KeyPath, raw: Iterable[Mapping[str, Any]]) -> tuple[Column, ...]:
    """Build columns with their checks. Adds problems of checks to the document."""
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
    """Build checks. Checks of a column get that column as their ``columns``. Adds problems to the document."""
    built = []
    for index, facts in enumerate(raw):
        here, kind = (*at, index), KINDS[facts["kind"]]
        for group in kind.needs:
            if not any(name in facts for name in group):
                document.add(here, f"check {facts['id']!r} ({facts['kind']}) lacks {' or '.join(group)}", "add it")
        if column is not None and (kind.own_columns or "columns" in facts):
            document.add(here, f"check {facts['id']!r} names its own columns", "move it to the table's checks")
        names = (column,) if column is not None else tuple(facts.get("columns", ()))
        if kind.pair and len(names) != 2:  # noqa: PLR2004 - a pair is two
            document.add(here, f"check {facts['id']!r} compares {len(names)} columns", "name two: [smaller, larger]")
        rest = {key: value for key, value in facts.items() if key not in {"columns", "by", "values"}}
        check = Check(columns=names, by=tuple(facts.get("by", ())), values=tuple(facts.get("values", ())), **rest)
        if check.quarantines and kind.level != "row":
            document.add(here, f"check {check.id!r} judges the table", "on_fail: quarantine is for row checks")
        built.append(check)
    return tuple(built)


def contract(document: Document, envelope: tuple[Column, ...]) -> Contract:
    """Build a contract from its document. Adds problems to the document."""
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
        lint=tuple(Suppression(**suppression) for suppression in facts.get("lint", ())),
        envelope=facts.get("envelope", False),
        series=tuple(facts.get("series", ())),
        path=str(document.path),
        status=facts.get("status", "active"),
        decision=facts.get("decision", ""),
        called=facts.get("called", ""),
    )
    check_contract(document, built, first=len(shared))
    return built


def tombstones(facts: Mapping[str, Any]) -> tuple[Tombstone, ...]:
    """Build the tombstones of retired columns."""
    return tuple(Tombstone(**tombstone) for tombstone in facts.get("retired", ()))


def check_contract(document: Document, built: Contract, *, first: int) -> None:
    """Check that ids and names are unique, named columns exist, and units and defaults fit. Adds problems.

    ``first`` is the index of the document's first column among the contract's columns. Columns before it are defined
    elsewhere.
    """
    _check_columns(document, built, first)
    for key in ("grain", "partition", "sort", "series"):
        _check_names(document, built, (key,), key, getattr(built, key))
    for check in built.checks:
        _check_names(
            document, built, (*_last_check_path(document, check.id), "columns"), f"check {check.id!r}", check.columns
        )
    for check in built.all_checks():
        _check_names(document, built, (*_last_check_path(document, check.id), "by"), f"check {check.id!r}", check.by)
    ids: set[str] = set()
    for check in built.all_checks():
        if check.id in ids:
            at = (*_last_check_path(document, check.id), "id")
            document.add(at, f"check id {check.id!r} appears twice", "results are kept by id; choose another")
        ids.add(check.id)


def _check_columns(document: Document, built: Contract, first: int) -> None:
    ids: dict[int, str] = {tombstone.id: f"retired {tombstone.name!r}" for tombstone in built.retired}
    names = {tombstone.name for tombstone in built.retired}
    for index, column in enumerate(built.columns):
        here: KeyPath = ("columns", index - first) if index >= first else ()
        if column.id in ids:
            document.add((*here, "id"), f"column id {column.id} is taken by {ids[column.id]}", "take the next free id")
        if column.name in names:
            document.add((*here, "name"), f"column name {column.name!r} is taken", "take another name")
        if column.unit is not None and not column.is_number:
            document.add((*here, "unit"), f"column {column.name!r} is {column.type} and has a unit", "remove the unit")
        if fault := default_fault(column):
            hint = "write one of the column's type" if column.type != "int64_list" else "remove it"
            document.add((*here, "default"), f"column {column.name!r}: {fault}", hint)
        ids[column.id] = repr(column.name)
        names.add(column.name)


def _last_check_path(document: Document, check_id: str) -> KeyPath:
    """Return the path of the last check with this id in the document; the empty path if there is none."""
    path: KeyPath = ()
    for key in ("columns", "packaged_columns"):
        for index, column in enumerate(document.content.get(key, ())):
            for place, check in enumerate(column.get("checks", ())):
                path = (key, index, "checks", place) if check["id"] == check_id else path
    for place, check in enumerate(document.content.get("checks", ())):
        path = ("checks", place) if check["id"] == check_id else path
    return path


def _check_names(document: Document, built: Contract, at: KeyPath, owner: str, names: Iterable[str]) -> None:
    for index, name in enumerate(names):
        if name not in built:
            document.add((*at, index), f"{owner} names no column {name!r}", did_you_mean(name, built.names))


def metrics(document: Document) -> dict[str, Metric]:
    """Build the metrics of one file, by name. Adds a problem for a name that appears twice."""
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
    """Return why a column's default does not fit its type, as a clause; empty if it fits or there is no default."""
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
    if isinstance(value, bool | float):  # a float may differ from the decimal number in the file
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
