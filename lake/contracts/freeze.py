"""Generated files of the contracts: frozen snapshots, and the check kinds in `schema.json`.

A snapshot is what a version of a contract promised to stored data, kept for ever.

python -m ranklake.lake.contracts.freeze            write the snapshots that are missing, and the check kinds
python -m ranklake.lake.contracts.freeze --check    compare; exit 1 if a contract changed under an old version
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import click

from ranklake.lake.contracts.checks.registry import WRITTEN
from ranklake.lake.contracts.diff import diff
from ranklake.lake.contracts.load import ROOM, load_contracts
from ranklake.lake.contracts.model import Column, Contract, Tombstone

SNAPSHOTS: Final = ROOM / "snapshots"
SCHEMA: Final = ROOM / "schema.json"
_KINDS: Final = re.compile(r'(?m)^    "check_kind": .*$')
_TABLE_FACTS: Final = ("table", "version", "kind", "envelope")
_COLUMN_FACTS: Final = ("id", "name", "type", "unit", "class_", "mask", "required", "format")


def structure(contract: Contract) -> Contract:
    """Return the contract without what may change under one version: docs, owners, checks, retention, order of rows."""
    columns = tuple(Column(doc="", **{key: getattr(one, key) for key in _COLUMN_FACTS}) for one in contract.columns)
    retired = tuple(replace(gone, reason="") for gone in contract.retired)
    bare: dict[str, Any] = dict.fromkeys(("owner", "steward", "summary", "retention"), "")
    return replace(
        contract,
        columns=columns,
        retired=retired,
        checks=(),
        lint=(),
        sort=(),
        series=(),
        path="",
        status="active",
        **bare,
    )


def freeze(contract: Contract) -> str:
    """Return the snapshot's text: JSON with one column a line."""
    facts: dict[str, Any] = {key: getattr(contract, key) for key in _TABLE_FACTS}
    if contract.called:  # snapshots of before there were such names stay as they are
        facts["called"] = contract.called
    facts |= {"grain": list(contract.grain), "partition": list(contract.partition)}
    columns = [{key.rstrip("_"): getattr(one, key) for key in _COLUMN_FACTS} for one in contract.columns]
    retired = [[gone.id, gone.name, gone.type, gone.retired_in] for gone in contract.retired]
    lines = [f'  "{key}": {json.dumps(value)},' for key, value in facts.items()]
    lines += ['  "columns": [', ",\n".join(f"    {json.dumps(one)}" for one in columns), "  ],"]
    lines += [f'  "retired": {json.dumps(retired)}']
    return "\n".join(["{", *lines, "}", ""])


@lru_cache(maxsize=256)
def contract_digest(contract: Contract) -> str:
    """Return a SHA-256 of what a contract guarantees: equal snapshots have equal digests."""
    return hashlib.sha256(freeze(contract).encode()).hexdigest()


def thaw(text: str) -> Contract:
    """Return the `structure` of the contract that a snapshot was taken of."""
    facts = json.loads(text)
    columns = tuple(Column(doc="", class_=one.pop("class"), **one) for one in facts["columns"])
    retired = tuple(Tombstone(id_, name, type_, since, "") for id_, name, type_, since in facts["retired"])
    bare: dict[str, Any] = dict.fromkeys(("owner", "steward", "summary", "retention"), "")
    return Contract(
        **{key: facts[key] for key in _TABLE_FACTS},
        grain=tuple(facts["grain"]),
        partition=tuple(facts["partition"]),
        sort=(),
        columns=columns,
        retired=retired,
        called=facts.get("called", ""),
        **bare,
    )


def undeclared(contracts: Mapping[str, Contract], folder: Path = SNAPSHOTS) -> Iterator[str]:
    """Yield one line for each thing that is not as frozen: missing snapshots, and changes under a frozen version."""
    for name, contract in _promised(contracts):
        for version in range(1, contract.version + 1):
            if not _path(folder, name, version).exists():
                yield f"{name} version {version} has no snapshot; run python -m ranklake.lake.contracts.freeze"
        path = _path(folder, name, contract.version)
        if path.exists():
            for change in diff(thaw(path.read_text(encoding="utf-8")), structure(contract)):
                yield (
                    f"{name} version {contract.version}: {change.item} {change.what} ({change.verdict}); "
                    f"raise `version:` to {contract.version + 1}"
                )
    for path in sorted(folder.glob("*.json")):
        name, _, version_text = path.stem.partition(".v")
        if name not in contracts or int(version_text) > contracts[name].version:
            yield f"{path.name} is a snapshot of no contract; a table that is gone keeps its file"


def write(contracts: Mapping[str, Contract], folder: Path = SNAPSHOTS, *, overwrite: bool = False) -> list[Path]:
    """Write the snapshots of present versions that are missing (all, with ``overwrite``); return what was written."""
    folder.mkdir(exist_ok=True)
    written = []
    for name, contract in _promised(contracts):
        path = _path(folder, name, contract.version)
        text = freeze(contract)
        if not path.exists() or (overwrite and path.read_text(encoding="utf-8") != text):
            fresh = path.with_suffix(".tmp")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
            written.append(path)
    return written


def _promised(contracts: Mapping[str, Contract]) -> Iterator[tuple[str, Contract]]:
    """Yield the contracts that lakes may have stored data by: a planned table promises nothing yet."""
    return ((name, one) for name, one in contracts.items() if one.status != "planned")


def with_kinds(text: str) -> str:
    """Return the text of `schema.json` with the check kinds that contracts may spell out, which stand in one line."""
    return _KINDS.sub(f'    "check_kind": {{"enum": {json.dumps(sorted(WRITTEN))}}},', text)


def _path(folder: Path, name: str, version: int) -> Path:
    return folder / f"{name}.v{version}.json"


@click.command()
@click.option("--check", is_flag=True, help="Compare only; exit 1 on an undeclared change.")
@click.option("--overwrite", is_flag=True, help="Freeze again versions that no lake has yet.")
def main(check: bool, overwrite: bool) -> None:
    """Freeze the packaged contracts, or check that they are as frozen."""
    schema = SCHEMA.read_text(encoding="utf-8")
    problems = []
    if schema != with_kinds(schema):
        if check:
            problems.append("schema.json lacks check kinds; run python -m ranklake.lake.contracts.freeze")
        else:
            SCHEMA.write_text(with_kinds(schema), encoding="utf-8")
            click.echo("wrote the check kinds into schema.json")
    contracts = load_contracts()
    if not check:
        for path in write(contracts, overwrite=overwrite):
            click.echo(f"froze {path.name}")
    problems += undeclared(contracts)
    for problem in problems:
        click.echo(problem, err=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
