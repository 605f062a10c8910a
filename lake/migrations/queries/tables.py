"""The tables that queries may ask, with what migrations make of their columns."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.contracts.overlay import Overlay
from ranklake.lake.migrations.queries.meanings import Renamed, Table, table_at
from ranklake.lake.migrations.registry import contract_at, load_migrations
from ranklake.lake.migrations.steps.step import MigrationError


def tables(
    begin: int | None = None,
    end: int | None = None,
    label: str | None = None,
    folder: Path | None = None,
    metrics: Mapping[str, Renamed] | None = None,
    overlay: Overlay | None = None,
) -> dict[str, Table]:
    """Return every table of this release, with its versions.

    Parameters
    ----------
    begin, end
        The earliest version that queries may be written for, and the one that they are brought to; default 1 and the
        newest. A table that has no such version counts at its nearest.
    label
        The one migration that queries are to follow, by number or label; default all.
    folder
        Where migrations are; default the packaged ones.
    metrics
        Those that others took the place of; default none.
    overlay
        Of an operator, whose tables have migrations, too; default none.

    Raises
    ------
    MigrationError
        For a migration that there is not, and a version without its snapshot.
    """
    if begin is not None and end is not None and begin > end:
        raise MigrationError(f"version {begin} is after {end}", where="--from", mend="swap --from and --to")
    every = load_migrations(folder, overlay)
    chosen = None if label is None else _found(label, [one.label for one in every])
    known = load_contracts(overlay)
    newest = max(contract.version for contract in known.values())
    for option, version in (("--from", begin), ("--to", end)):
        if version is not None and version > newest:
            raise MigrationError(f"no table has a version {version}", where=option, mend=f"the newest is {newest}")
    found = {}
    for name, contract in known.items():
        mine = {one.from_version: one for one in every if one.table == name}
        if chosen is not None:
            mine = {version: one for version, one in mine.items() if one.label == chosen}
        last = max((one.to_version for one in mine.values()), default=contract.version)
        last = last if end is None else max(min(last, end), min(mine, default=last))
        first = min(min(mine, default=last), last) if begin is None else min(begin, last)
        first = max(first, min(mine, default=last))
        versions = {
            version: {column.name: column.type for column in contract_at(name, version, overlay).columns}
            for version in range(first, last + 1)
        }
        steps = {version: mine[version].steps for version in range(first, last) if version in mine}
        called = contract_at(name, last, overlay).name
        for spoken in {name, called, *(contract_at(name, version, overlay).name for version in versions)}:
            table = table_at(spoken, versions, steps)
            found[spoken] = replace(table, metrics=metrics or {}, called=called)
    return found


def _found(label: str, labels: Sequence[str]) -> str:
    for one in labels:
        if label == one or (label.isdigit() and int(label) == int(one.partition("_")[0])):
            return one
    raise MigrationError(f"no migration {label}", where="--migration", mend=did_you_mean(label, labels))
