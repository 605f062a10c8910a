"""Loads contracts and metrics by name, from the packaged files and an operator's overlay.

An overlay contains files of the same formats. `<table>.yaml` defines a new table; with ``extends: <table>`` it adds
columns and checks to a packaged table. `metrics.yaml` adds metrics. `rollups/<table>.sql` computes a derived table.
Functions accept an overlay as the path of its folder, or as an `Overlay`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts import build
from ranklake.lake.contracts.build import Document
from ranklake.lake.contracts.errors import ContractError, UnknownMetricError, UnknownTableError
from ranklake.lake.contracts.model import OVERLAY_IDS, Check, Column, Contract, Metric
from ranklake.lake.contracts.overlay import METRICS, QUERIES, Overlay
from ranklake.lake.contracts.schema import validate
from ranklake.operator_files import raise_all

ROOM: Final = Path(__file__).parent
PACKAGED: Final = ROOM / "tables"
_OVERLAYS: Final = 64
"""Number of overlays whose contracts are cached."""


def load_contracts(overlay: Path | Overlay | None = None) -> Mapping[str, Contract]:
    """Return every contract by table name, sorted.

    Raises
    ------
    ContractError
        A file is not a valid contract, or conflicts with another file. One error reports all invalid files (`others`).
        Conflicts between tables are checked only once each file is valid.
    """
    return _all(_texts(overlay))


def contract(name: str, overlay: Path | Overlay | None = None) -> Contract:
    """Return one table's contract without reading the files of other packaged tables.

    Raises
    ------
    UnknownTableError
        No table has this name, or is called so in queries. The hint contains the most similar name.
    ContractError
        The table's file or the overlay is invalid.
    """
    texts = _texts(overlay)
    if name not in table_names(texts):  # perhaps the name of a renamed table in queries
        name = next((known.table for known in _all(texts).values() if known.name == name), name)
    if texts is None or (name not in texts.tables and name in table_names()):
        return _load_contract(name, None)
    return _load_contract(name, texts)


def load_metrics(overlay: Path | Overlay | None = None) -> Mapping[str, Metric]:
    """Return the metric registry by name, sorted. Raises `ContractError`."""
    return _registry(_texts(overlay))


def metric(name: str, overlay: Path | Overlay | None = None) -> Metric:
    """Return one metric. Raises `ContractError`, and `UnknownMetricError` with the most similar name."""
    known = load_metrics(overlay)
    try:
        return known[name]
    except KeyError:
        raise UnknownMetricError(name, hint=did_you_mean(name, known)) from None


def table_names(overlay: Path | Overlay | None = None) -> tuple[str, ...]:
    """Return the names of all tables, sorted, without reading their contracts."""
    texts = _texts(overlay)
    return tuple(sorted(_packaged() if texts is None else {*_packaged(), *texts.tables}))


@cache
def _packaged() -> frozenset[str]:
    return frozenset(path.stem for path in PACKAGED.glob("*.yaml") if not path.name.startswith("_"))


def _texts(overlay: Path | Overlay | None) -> Overlay | None:
    return Overlay.read(overlay.absolute()) if isinstance(overlay, Path) else overlay


@lru_cache(_OVERLAYS)
def _all(overlay: Overlay | None) -> Mapping[str, Contract]:
    contracts: dict[str, Contract] = {}
    errors: list[RanklakeError] = []
    for name in table_names(overlay):
        try:
            contracts[name] = _load_contract(name, overlay)
        except ContractError as error:
            errors += [error, *error.others]
    raise_all(errors)
    _check_names(contracts)
    if overlay is not None:
        _check_rollups(overlay, contracts)
    return MappingProxyType(contracts)


def _check_names(contracts: Mapping[str, Contract]) -> None:
    """Raise `ContractError` if two tables have the same name in queries."""
    tables_by_name = {name: name for name in contracts}
    for table, contract in contracts.items():
        if contract.called and tables_by_name.setdefault(contract.called, table) != table:
            other = tables_by_name[contract.called]
            message = f"table {table!r} is called {contract.called!r}, and so is table {other!r}"
            raise ContractError(message, where=contract.path, hint="take another name")


def _check_rollups(overlay: Overlay, contracts: Mapping[str, Contract]) -> None:
    """Check that an overlay's rollups have contracts and valid inputs, and no cycle. Raises `ContractError`."""
    for path in overlay.files:
        name = path.removeprefix(f"{QUERIES}/").removesuffix(".sql")
        if path.startswith(f"{QUERIES}/") and name not in overlay.tables:
            where = str(Path(overlay.origin, path))
            hint = did_you_mean(name, overlay.tables) or f"write {name}.yaml, its contract"
            raise ContractError(f"a query of no table: there is no {name}.yaml", where=where, hint=hint)
    computed = {name: table for name, table in contracts.items() if table.rollup is not None}
    errors: list[RanklakeError] = []
    for name, contract in computed.items():
        document = _document(name, overlay)
        build.check_inputs(document, contract, contracts)
        errors += document.pop_errors()
    raise_all(errors)
    inputs = {name: [item.table for item in table.rollup.inputs] for name, table in computed.items() if table.rollup}
    if cycle := build.cycle(inputs):
        _document(cycle[0], overlay).fail(("rollup", "inputs"), f"a cycle: {' reads '.join(cycle)}", "break it")


@lru_cache(_OVERLAYS * 64)
def _load_contract(name: str, overlay: Overlay | None) -> Contract:
    if name not in table_names(overlay):
        raise UnknownTableError(name, hint=did_you_mean(name, table_names(overlay)))
    if overlay is None:
        return _table(Document(PACKAGED / f"{name}.yaml"), name)
    if name not in overlay.tables:
        return _load_contract(name, None)
    document = _document(name, overlay)
    if name in _packaged():
        return _extend(_load_contract(name, None), document, overlay)
    return _table(document, name, overlay)


def _document(name: str, overlay: Overlay) -> Document:
    return Document(Path(overlay.origin, f"{name}.yaml"), overlay.files[f"{name}.yaml"])


def _table(document: Document, name: str, overlay: Overlay | None = None) -> Contract:
    file = document.path.name
    if isinstance(document.content, dict) and "extends" in document.content:
        base = str(document.content["extends"])
        document.fail(("extends",), f"{file} extends no packaged table {base!r}", did_you_mean(base, _packaged()))
    validate(document, "contract")
    if document.content["table"] != name:
        definition = document.content["table"]
        document.add(("table",), f"table {definition!r} stands in {file}", f"rename one to {name!r}")
    built = build.contract(document, _envelope() if document.content.get("envelope", False) else ())
    if overlay is not None:
        built = replace(built, rollup=build.rollup_facts(document, overlay), overlay=overlay)
        build.check_overlay_table(document, built)
    document.raise_errors()
    return built


@cache
def _envelope() -> tuple[Column, ...]:
    document = Document(PACKAGED / "_envelope.yaml")
    validate(document, "envelope")
    columns = build.columns(document, ("columns",), document.content["columns"])
    document.raise_errors()
    return columns


def _extend(base: Contract, document: Document, overlay: Overlay) -> Contract:
    """Return a packaged contract with an overlay's columns and checks added. Packaged columns keep their meaning."""
    file = document.path.name
    if isinstance(document.content, dict) and "table" in document.content:
        document.fail(("table",), f"{base.table!r} is a packaged table", f"write `extends: {base.table}` to add to it")
    validate(document, "extension")
    facts: dict[str, Any] = document.content
    if facts["extends"] != base.table:
        document.add(("extends",), f"{file} extends {facts['extends']!r}", f"rename one to {base.table!r}")
    added = build.columns(document, ("columns",), facts.get("columns", ()))
    if added and not base.envelope:
        hint = "make a derived table of your own" if base.kind == "derived" else "remove the columns"
        document.add(("columns",), f"{base.table!r} is a {base.kind} table: only ranklake writes its rows", hint)
    for index, column in enumerate(added):
        here = ("columns", index)
        if column.id < OVERLAY_IDS:
            document.add((*here, "id"), f"id {column.id} is for packaged columns", f"use {OVERLAY_IDS} or more")
        if column.required:
            hint = "remove `required`; rows already stored lack it"
            document.add((*here, "required"), f"added column {column.name!r} is required", hint)
    changed = _override(document, base)
    checks = build.checks(document, ("checks",), facts.get("checks", ()))
    extended = replace(
        base,
        owner=facts.get("owner", base.owner),
        steward=facts.get("steward", base.steward),
        summary=facts.get("summary", base.summary),
        retention=facts.get("retention", base.retention),
        columns=changed + added,
        checks=_by_id(base.checks, checks),
        retired=base.retired + build.tombstones(facts),
        path=str(document.path),
        extended=overlay if added or "retired" in facts else None,
        added_version=facts.get("version", 1),
    )
    build.check_contract(document, extended, first=len(changed))
    build.check_overlay_columns(document, added)
    document.raise_errors()
    return extended


def _override(document: Document, base: Contract) -> tuple[Column, ...]:
    """Return the packaged columns with an overlay's docs and checks. A check replaces an existing one with its id."""
    columns = {column.name: column for column in base.columns}
    for index, facts in enumerate(document.content.get("packaged_columns", ())):
        here = ("packaged_columns", index)
        name = facts["name"]
        if name not in columns:
            document.add((*here, "name"), f"no packaged column {name!r}", did_you_mean(name, columns))
            continue
        checks = build.checks(document, (*here, "checks"), facts.get("checks", ()), column=name)
        column = columns[name]
        columns[name] = replace(column, doc=facts.get("doc", column.doc), checks=_by_id(column.checks, checks))
    return tuple(columns.values())


def _by_id(old: tuple[Check, ...], new: tuple[Check, ...]) -> tuple[Check, ...]:
    return tuple({check.id: check for check in (*old, *new)}.values())


@lru_cache(_OVERLAYS)
def _registry(overlay: Overlay | None) -> Mapping[str, Metric]:
    if overlay is None:
        return MappingProxyType(dict(sorted(_metrics(Document(ROOM / METRICS), {}).items())))
    registry = dict(_registry(None))
    if METRICS in overlay.files:
        registry |= _metrics(Document(Path(overlay.origin, METRICS), overlay.files[METRICS]), registry)
    return MappingProxyType(dict(sorted(registry.items())))


def _metrics(document: Document, packaged: Mapping[str, Metric]) -> dict[str, Metric]:
    validate(document, "metrics")
    for place, facts in enumerate(document.content["metrics"]):
        if facts["name"] in packaged:
            message = f"metric {facts['name']!r} is packaged"
            document.add(("metrics", place, "name"), message, "give yours another name")
    metrics = build.metrics(document)
    document.raise_errors()
    return metrics
