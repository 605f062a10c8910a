"""Snapshots of contracts, and differences between two versions of a contract.

A snapshot contains the parts of a contract on which stored data depends. A migration needs the snapshot of the version
from which it starts. `ranklake migrate new` writes it for an operator's table. For a packaged table, write it before
`version:` is raised:

python -m ranklake.lake.contracts.freeze TABLE…      writes snapshots/TABLE.vN.json
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

import click

from ranklake.lake.contracts.load import ROOM, contract
from ranklake.lake.contracts.model import Column, Contract, Tombstone

Verdict = Literal["safe", "rewrite", "breaking"]

# Types to which every stored value can be cast, so that rewriting the files is enough.
WIDER: Final = {"int32": {"int64", "float64"}, "int64": set(), "float32": {"float64"}, "date": {"timestamp"}}
_PLAIN: Final = ("doc", "since", "deprecated", "sunset", "default", "aka", "checks")


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two versions of a contract.

    Attributes
    ----------
    verdict
        ``safe``: stored data and queries stay valid. ``rewrite``: a migration can convert stored data without loss.
        ``breaking``: stored data or queries become invalid, and no automatic conversion exists.
    item
        The column, or the key of the contract.
    detail
        The difference, in a clause.
    """

    verdict: Verdict
    item: str
    detail: str


def diff(old: Contract, new: Contract) -> tuple[Change, ...]:
    """Return all differences: first those of the table, then those of the columns, ordered by column id."""
    return (*_table(old, new), *_columns(old, new))


def _table(old: Contract, new: Contract) -> Iterator[Change]:
    verdicts: tuple[tuple[str, Verdict], ...] = (
        ("table", "breaking"),
        ("kind", "breaking"),
        ("grain", "breaking"),
        ("partition", "rewrite"),
        ("sort", "safe"),
        ("retention", "safe"),
        ("owner", "safe"),
        ("steward", "safe"),
        ("summary", "safe"),
        ("decision", "safe"),
        ("called", "safe"),
        ("checks", "safe"),
    )
    for key, verdict in verdicts:
        before, after = getattr(old, key), getattr(new, key)
        if before != after:
            message = (
                "changed"
                if key in {"checks", "decision", "summary"}
                else f"{_value_text(before)} became {_value_text(after)}"
            )
            yield Change(verdict, key, message)


def _columns(old: Contract, new: Contract) -> Iterator[Change]:
    before = {column.id: column for column in old.columns}
    after = {column.id: column for column in new.columns}
    retired_ids = {tombstone.id for tombstone in new.retired}
    for id_ in sorted(before.keys() | after.keys()):
        if id_ not in before:
            yield _added_column_change(after[id_], old)
        elif id_ not in after:
            detail = "retired" if id_ in retired_ids else "removed without a tombstone under `retired:`"
            yield Change("rewrite" if id_ in retired_ids else "breaking", before[id_].name, detail)
        else:
            yield from _column(before[id_], after[id_])
    common_ids = [id_ for id_ in before if id_ in after]
    if common_ids != [id_ for id_ in after if id_ in before]:
        yield Change("safe", "columns", "stand in another order")


def _added_column_change(column: Column, old: Contract) -> Change:
    if column.id in {tombstone.id for tombstone in old.retired}:
        return Change("breaking", column.name, f"takes the id {column.id} of a retired column")
    if column.required:
        return Change("breaking", column.name, "added and required: stored rows lack it")
    return Change("safe", column.name, "added")


def _column(old: Column, new: Column) -> Iterator[Change]:
    name = new.name
    if old.name != new.name:
        yield Change("rewrite", name, f"renamed from {old.name!r}")
    if old.type != new.type:
        fits = new.type in WIDER.get(old.type, set())
        yield Change("rewrite" if fits else "breaking", name, f"type {old.type} became {new.type}")
    if old.unit != new.unit:
        yield Change("breaking", name, f"unit {old.unit} became {new.unit}: stored numbers would mean something else")
    if old.class_ != new.class_:
        # The Delta log contains statistics of a formerly operational column until its files are rewritten.
        is_stricter = old.class_ == "operational"
        yield Change("rewrite" if is_stricter else "safe", name, f"class {old.class_} became {new.class_}")
    if old.mask != new.mask:
        yield Change("safe", name, f"mask {old.mask} became {new.mask}")
    if old.required != new.required:
        verdict: Verdict = "breaking" if new.required else "rewrite"
        yield Change(verdict, name, "became required" if new.required else "is no longer required")
    if old.format != new.format:
        yield Change("breaking", name, f"format {old.format} became {new.format}")
    for key in _PLAIN:
        if getattr(old, key) != getattr(new, key):
            yield Change("safe", name, f"{key} changed")


def _value_text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else repr(value)


SNAPSHOTS: Final = ROOM / "snapshots"
_TABLE_FACTS: Final = ("table", "version", "kind", "envelope", "called")
_COLUMN_FACTS: Final = ("id", "name", "type", "unit", "class_", "mask", "required", "format")
_FREE: Final[dict[str, Any]] = dict.fromkeys(("owner", "steward", "summary", "retention", "decision"), "")
"""Facts that may change within a version. Docs, checks and sort order may change, too."""


def structure(contract: Contract) -> Contract:
    """Return the contract without the parts that may change within a version.

    These are docs, owners, checks, retention class and sort order.
    """
    columns = tuple(
        Column(doc="", **{key: getattr(column, key) for key in _COLUMN_FACTS}) for column in contract.columns
    )
    retired = tuple(replace(tombstone, reason="") for tombstone in contract.retired)
    empty: dict[str, Any] = {**_FREE, "path": "", "status": "active"}
    return replace(contract, columns=columns, retired=retired, checks=(), lint=(), sort=(), series=(), **empty)


def freeze(contract: Contract) -> str:
    """Return the snapshot of a contract: JSON text with one column per line."""
    facts: dict[str, Any] = {key: getattr(contract, key) for key in _TABLE_FACTS}
    facts |= {"grain": list(contract.grain), "partition": list(contract.partition)}
    columns = [{key.rstrip("_"): getattr(column, key) for key in _COLUMN_FACTS} for column in contract.columns]
    retired = [[stone.id, stone.name, stone.type, stone.retired_in] for stone in contract.retired]
    lines = [f'  "{key}": {json.dumps(value)},' for key, value in facts.items()]
    lines += ['  "columns": [', ",\n".join(f"    {json.dumps(column)}" for column in columns), "  ],"]
    lines += [f'  "retired": {json.dumps(retired)}']
    return "\n".join(["{", *lines, "}", ""])


@lru_cache(maxsize=256)
def contract_digest(contract: Contract) -> str:
    """Return the SHA-256 of a contract's snapshot, in hexadecimal."""
    return hashlib.sha256(freeze(contract).encode()).hexdigest()


def thaw(text: str) -> Contract:
    """Return the contract of a snapshot's text, as `structure` returns it."""
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
    """Return the path of a contract's snapshot in a folder."""
    return folder / f"{contract.table}.v{contract.version}.json"


def keep_snapshot(contract: Contract, folder: Path) -> Path:
    """Write a contract's snapshot into a folder. Returns the path of the file."""
    path = snapshot_path(contract, folder)
    path.parent.mkdir(exist_ok=True)
    path.write_text(freeze(contract), encoding="utf-8")
    return path


@click.command()
@click.argument("tables", nargs=-1, required=True)
def main(tables: tuple[str, ...]) -> None:
    """Write snapshots of packaged tables, before their versions are raised."""
    for table in tables:
        click.echo(f"kept {keep_snapshot(contract(table), SNAPSHOTS).name}")


if __name__ == "__main__":
    main()
