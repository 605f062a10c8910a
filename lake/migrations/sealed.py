"""Columns under keys of people, and migrations: what is sealed is renamed and dropped, and never computed with.

A sealed value is a text of its own. What an expression makes of it would be nothing that the key opens, and what comes
of segments of older writers would be stored in clear beside it.
"""

from typing import TYPE_CHECKING

from ranklake.lake.migrations.migration import shapes_after
from ranklake.lake.migrations.registry import ends_of
from ranklake.lake.migrations.steps.replaced import Replaced
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.store.governance import columns_in_clear, sealed_columns, unfit_to_seal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.store.store import Lake

_COMPUTED = "and nothing can be computed of what keys sealed"
_MEND = "rename it, or drop it and add the others"
_MEND_BACK = "go on with this release; nothing was changed"


def refuse_sealed(lake: "Lake", one: "Migration", *, backwards: bool = False) -> None:
    """Raise `MigrationError` where a migration, or undoing it, would have values of people in clear, or make none.

    That is where it computes with a column that was ever stored under keys, and where the contract that it leads to
    could not have such a column under them, unless ``[subjects] clear`` names it.
    """
    contract = lake.contract(one.table)
    stored = sealed_columns(lake, contract)
    if not stored:
        return
    for id_, name in _computed(lake, one, backwards=backwards):
        if id_ in stored:
            what = f"{one.table}.{name} is stored under keys of people, {_COMPUTED}"
            raise MigrationError(what, where=one.label, hint=_MEND_BACK if backwards else _MEND)
    if backwards:
        return
    _, new = ends_of(one, lake.overlay)
    wanted = stored.keys() - columns_in_clear(lake, contract)
    for column in new.columns:
        why = unfit_to_seal(new, column) if column.id in wanted and not one.is_of_added else ""
        if why:
            what = f"{one.table}.{column.name} is stored under keys of people, and afterwards {why}"
            hint = "write another contract, or name it in clear under [subjects] if it is to be so from now on"
            raise MigrationError(what, where=one.label, hint=hint)


def renamed_or_dropped(lake: "Lake", one: "Migration") -> "Mapping[str, str | None]":
    """Return the columns under keys of people that have another name after a migration, by that of before; or none."""
    contract = lake.contract(one.table)
    stored = sealed_columns(lake, contract).keys() - columns_in_clear(lake, contract)
    if not stored:
        return {}
    old, new = ends_of(one, lake.overlay)
    after = {column.id: column.name for column in new.columns}
    mine = {column.name: after.get(column.id) for column in old.columns if column.id in stored}
    return {before: now for before, now in mine.items() if before != now}


def _computed(lake: "Lake", one: "Migration", *, backwards: bool) -> "Iterator[tuple[int, str]]":
    """Yield columns that others are computed of, by id and by the name that they have outside of the migration."""
    old, new = ends_of(one, lake.overlay)
    outside: Mapping[int, str] = {column.id: column.name for column in (new if backwards else old).columns}
    for place, step in enumerate(one.steps):
        if isinstance(step, Replaced):
            shapes = shapes_after(one.steps[: place + backwards], old, new)
            for name in step.came if backwards else step.sources:
                yield shapes[name].id, outside.get(shapes[name].id, name)
