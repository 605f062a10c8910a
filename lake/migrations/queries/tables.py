"""The tables that queries may ask, with what migrations make of their columns."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.contracts.model import Contract
from ranklake.lake.contracts.overlay import Overlay
from ranklake.lake.migrations.migration import FIRST_OWN
from ranklake.lake.migrations.queries.meanings import Renamed, Table, table_at
from ranklake.lake.migrations.registry import added_at, contract_at, load_migrations
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
        raise MigrationError(f"version {begin} is after {end}", where="--from", hint="swap --from and --to")
    every = load_migrations(folder, overlay)
    chosen = None if label is None else _found(label, [one.label for one in every])
    known = load_contracts(overlay)
    newest = max(contract.version for contract in known.values())
    for option, version in (("--from", begin), ("--to", end)):
        if version is not None and version > newest:
            raise MigrationError(f"no table has a version {version}", where=option, hint=f"the newest is {newest}")
    found = {}
    for name, contract in known.items():
        ours = [one for one in every if one.table == name and chosen in (None, one.label)]
        mine = {one.from_version: one for one in ours if not one.is_of_added}
        last = max((one.to_version for one in mine.values()), default=contract.version)
        last = last if end is None else max(min(last, end), min(mine, default=last))
        first = min(min(mine, default=last), last) if begin is None else min(begin, last)
        first = max(first, min(mine, default=last))
        added = [one for one in ours if one.is_of_added]
        before = _types(added_at(name, added[0].from_version, overlay) if added else contract.added)
        versions = {version: _types(contract_at(name, version, overlay)) | before for version in range(first, last + 1)}
        steps = {version: mine[version].steps for version in range(first, last) if version in mine}
        for one in added:  # of what an overlay adds to a table of ours: after all versions of ours
            steps[max(versions)] = one.steps
            own = _types(added_at(name, one.to_version, overlay))
            versions[FIRST_OWN + one.from_version] = _types(contract_at(name, last, overlay)) | own
        called = contract_at(name, last, overlay).name
        for spoken in {name, called, *(contract_at(name, version, overlay).name for version in range(first, last + 1))}:
            table = table_at(spoken, versions, steps)
            found[spoken] = replace(table, metrics=metrics or {}, called=called)
    return found


def _types(contract: Contract) -> dict[str, str]:
    return {column.name: column.type for column in contract.columns}


def _found(label: str, labels: Sequence[str]) -> str:
    for one in labels:
        if label == one or (label.isdigit() and int(label) == int(one.partition("_")[0])):
            return one
    raise MigrationError(f"no migration {label}", where="--migration", hint=did_you_mean(label, labels))
