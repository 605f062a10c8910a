"""Snapshots of contracts: what a version promised to stored data.

A migration leads from one version to the next, so the earlier one has to be known. `ranklake migrate new` keeps that of
an operator's table. Of a packaged table, keep it before `version:` is raised:

python -m ranklake.lake.contracts.freeze TABLE…      write snapshots/TABLE.vN.json
"""

import hashlib
import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import click

from ranklake.lake.contracts.load import ROOM, contract
from ranklake.lake.contracts.model import Column, Contract, Tombstone

SNAPSHOTS: Final = ROOM / "snapshots"
_TABLE_FACTS: Final = ("table", "version", "kind", "envelope", "called")
_COLUMN_FACTS: Final = ("id", "name", "type", "unit", "class_", "mask", "required", "format")
_FREE: Final[dict[str, Any]] = dict.fromkeys(("owner", "steward", "summary", "retention", "decision"), "")
"""Facts that may change under one version; so may docs, checks and the order of rows."""


def structure(contract: Contract) -> Contract:
    """Return the contract without what may change under one version: docs, owners, checks, retention, order of rows."""
    columns = tuple(
        Column(doc="", **{key: getattr(column, key) for key in _COLUMN_FACTS}) for column in contract.columns
    )
    retired = tuple(replace(gone, reason="") for gone in contract.retired)
    bare: dict[str, Any] = {**_FREE, "path": "", "status": "active"}
    return replace(contract, columns=columns, retired=retired, checks=(), lint=(), sort=(), series=(), **bare)


def freeze(contract: Contract) -> str:
    """Return the snapshot of a contract: JSON with one column a line."""
    facts: dict[str, Any] = {key: getattr(contract, key) for key in _TABLE_FACTS}
    facts |= {"grain": list(contract.grain), "partition": list(contract.partition)}
    columns = [{key.rstrip("_"): getattr(column, key) for key in _COLUMN_FACTS} for column in contract.columns]
    retired = [[gone.id, gone.name, gone.type, gone.retired_in] for gone in contract.retired]
    lines = [f'  "{key}": {json.dumps(value)},' for key, value in facts.items()]
    lines += ['  "columns": [', ",\n".join(f"    {json.dumps(column)}" for column in columns), "  ],"]
    lines += [f'  "retired": {json.dumps(retired)}']
    return "\n".join(["{", *lines, "}", ""])


@lru_cache(maxsize=256)
def contract_digest(contract: Contract) -> str:
    """Return a SHA-256 of what a contract promises: equal snapshots have equal digests."""
    return hashlib.sha256(freeze(contract).encode()).hexdigest()


def thaw(text: str) -> Contract:
    """Return the `structure` of the contract that a snapshot was taken of."""
    facts = json.loads(text)
    columns = tuple(Column(doc="", class_=column.pop("class"), **column) for column in facts["columns"])
    retired = tuple(Tombstone(id_, name, type_, since, "") for id_, name, type_, since in facts["retired"])
    return Contract(
        **{key: facts[key] for key in _TABLE_FACTS},
        **_FREE,
        grain=tuple(facts["grain"]),
        partition=tuple(facts["partition"]),
        sort=(),
        columns=columns,
        retired=retired,
    )


def snapshot_path(contract: Contract, folder: Path) -> Path:
    """Return where the snapshot of a contract's version belongs in a folder."""
    return folder / f"{contract.table}.v{contract.version}.json"


def keep_snapshot(contract: Contract, folder: Path) -> Path:
    """Write the snapshot of a contract's version; return its file."""
    path = snapshot_path(contract, folder)
    path.parent.mkdir(exist_ok=True)
    path.write_text(freeze(contract), encoding="utf-8")
    return path


@click.command()
@click.argument("tables", nargs=-1, required=True)
def main(tables: tuple[str, ...]) -> None:
    """Keep what the version of each packaged table promises, before it is raised."""
    for table in tables:
        click.echo(f"kept {keep_snapshot(contract(table), SNAPSHOTS).name}")


if __name__ == "__main__":
    main()
