"""Contracts and metrics by name, from the packaged files and from a user's overlay folder.

An overlay holds files of the same form: `<table>.yaml` is a table of its own, or, with ``extends: <table>``, more
columns and checks for a packaged one; `metrics.yaml` adds metrics.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ranklake.errors import did_you_mean
from ranklake.lake.contracts import build
from ranklake.lake.contracts.document import Document
from ranklake.lake.contracts.errors import ContractError, UnknownMetricError, UnknownTableError
from ranklake.lake.contracts.model import OVERLAY_IDS, Check, Column, Contract, Metric
from ranklake.lake.contracts.schema import validate

ROOM: Final = Path(__file__).parent
PACKAGED: Final = ROOM / "tables"
_METRICS: Final = "metrics.yaml"


def load_contracts(overlay: Path | None = None) -> Mapping[str, Contract]:
    """Return every contract by table name, sorted; read once per process and overlay.

    Raises
    ------
    ContractError
        A file is not a contract: ``file:line: what; mend``.
    """
    return _all(_resolved(overlay))


def contract(name: str, overlay: Path | None = None) -> Contract:
    """Return one table's contract, reading no other table's.

    Raises
    ------
    UnknownTableError
        No such table; the message says which name is near.
    ContractError
        Its file is not a contract.
    """
    return _one(name, _resolved(overlay))


def load_metrics(overlay: Path | None = None) -> Mapping[str, Metric]:
    """Return the metric registry by name, sorted; read once per process and overlay. Raises `ContractError`."""
    return _registry(_resolved(overlay))


def forget_metrics() -> None:
    """Have the registry read again when it is next asked for: an overlay's file has changed."""
    _registry.cache_clear()


def metric(name: str, overlay: Path | None = None) -> Metric:
    """Return one metric. Raises `UnknownMetricError` with the nearest name, `ContractError`."""
    known = load_metrics(overlay)
    try:
        return known[name]
    except KeyError:
        raise UnknownMetricError(name, mend=did_you_mean(name, known)) from None


def table_names(overlay: Path | None = None) -> tuple[str, ...]:
    """Return the names of all tables, sorted, without reading their contracts."""
    found = _stems(PACKAGED) if overlay is None else _stems(PACKAGED) | _stems(overlay)
    return tuple(sorted(found))


def _stems(folder: Path) -> set[str]:
    """Return the names of a folder's tables. Raises `ContractError` for a file that would otherwise be passed over."""
    for path in folder.glob("*.yml"):
        raise ContractError("contract files end in .yaml", where=str(path), mend=f"rename it to {path.stem}.yaml")
    return {path.stem for path in folder.glob("*.yaml") if not path.name.startswith("_")} - {"metrics"}


@cache
def _all(overlay: Path | None) -> Mapping[str, Contract]:
    return MappingProxyType({name: _one(name, overlay) for name in table_names(overlay)})


@cache
def _one(name: str, overlay: Path | None) -> Contract:
    if name not in table_names(overlay):
        raise UnknownTableError(name, mend=did_you_mean(name, table_names(overlay)))
    packaged = PACKAGED / f"{name}.yaml"
    own = None if overlay is None else overlay / packaged.name
    if own is None or not own.exists():
        return _table(packaged, name)
    if packaged.exists():
        return _extended(_table(packaged, name), own)
    return _table(own, name)


def _table(path: Path, name: str) -> Contract:
    document = Document(path)
    if isinstance(document.content, dict) and "extends" in document.content:
        base = str(document.content["extends"])
        document.fail(
            ("extends",), f"{path.name} extends no packaged table {base!r}", did_you_mean(base, _stems(PACKAGED))
        )
    validate(document, "contract")
    if document.content["table"] != name:
        found = document.content["table"]
        document.fail(("table",), f"table {found!r} stands in {path.name}", f"rename one to {name!r}")
    return build.contract(document, _envelope() if document.content.get("envelope", False) else ())


@cache
def _envelope() -> tuple[Column, ...]:
    document = Document(PACKAGED / "_envelope.yaml")
    validate(document, "envelope")
    return build.columns(document, ("columns",), document.content["columns"])


def _extended(base: Contract, path: Path) -> Contract:
    """Return a packaged contract with an overlay's columns and checks; what its columns mean is not up for change."""
    document = Document(path)
    if isinstance(document.content, dict) and "table" in document.content:
        document.fail(("table",), f"{base.table!r} is a packaged table", f"write `extends: {base.table}` to add to it")
    validate(document, "extension")
    facts: dict[str, Any] = document.content
    if facts["extends"] != base.table:
        document.fail(("extends",), f"{path.name} extends {facts['extends']!r}", f"rename one to {base.table!r}")
    added = build.columns(document, ("columns",), facts.get("columns", ()))
    for index, column in enumerate(added):
        here = ("columns", index)
        if column.id < OVERLAY_IDS:
            document.fail((*here, "id"), f"id {column.id} is for packaged columns", f"use {OVERLAY_IDS} or more")
        if column.required:
            mend = "remove `required`; rows already stored lack it"
            document.fail((*here, "required"), f"added column {column.name!r} is required", mend)
    changed = _overridden(document, base)
    checks = build.checks(document, ("checks",), facts.get("checks", ()))
    extended = replace(
        base,
        owner=facts.get("owner", base.owner),
        steward=facts.get("steward", base.steward),
        summary=facts.get("summary", base.summary),
        retention=facts.get("retention", base.retention),
        columns=changed + added,
        checks=_by_id(base.checks, checks),
        path=str(path),
    )
    build.agree(document, extended, first=len(changed))
    return extended


def _overridden(document: Document, base: Contract) -> tuple[Column, ...]:
    """Return the packaged columns with an overlay's docs and checks (by id: a known one is replaced)."""
    columns = {column.name: column for column in base.columns}
    for index, facts in enumerate(document.content.get("packaged_columns", ())):
        here = ("packaged_columns", index)
        name = facts["name"]
        if name not in columns:
            document.fail((*here, "name"), f"no packaged column {name!r}", did_you_mean(name, columns))
        checks = build.checks(document, (*here, "checks"), facts.get("checks", ()), column=name)
        column = columns[name]
        columns[name] = replace(column, doc=facts.get("doc", column.doc), checks=_by_id(column.checks, checks))
    return tuple(columns.values())


def _by_id(old: tuple[Check, ...], new: tuple[Check, ...]) -> tuple[Check, ...]:
    return tuple({check.id: check for check in (*old, *new)}.values())


@cache
def _registry(overlay: Path | None) -> Mapping[str, Metric]:
    found = _metrics_of(ROOM / _METRICS)
    if overlay is not None and (overlay / _METRICS).exists():
        added = _metrics_of(overlay / _METRICS)
        for name in added:
            if name in found:
                raise ContractError(
                    f"metric {name!r} is packaged", where=str(overlay / _METRICS), mend="give yours another name"
                )
        found |= added
    return MappingProxyType(dict(sorted(found.items())))


def _metrics_of(path: Path) -> dict[str, Metric]:
    document = Document(path)
    validate(document, "metrics")
    return build.metrics(document)


def _resolved(overlay: Path | None) -> Path | None:
    if overlay is None:
        return None
    if not overlay.is_dir():
        raise ContractError("no such folder of contracts", where=str(overlay), mend="check --contracts")
    return overlay.resolve()
