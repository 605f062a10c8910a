"""Saved views: queries of page addresses under names, with their history, stored in the lake.

    <lake>/saved/0000000007.json   all changes so far; the file with the highest number is valid, and is never rewritten

Nothing is overwritten: a view that is saved again, renamed or deleted keeps its former values in its history. Each role
has its own names, since a name or a condition may reveal what another role does not see.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from ranklake.errors import RanklakeError
from ranklake.lake.store.files import delete, file_numbers, numbered_name

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store

FOLDER: Final = "saved"
MOST_BYTES: Final = 4 * 2**20
"""Size of the file. Above it, the oldest changes of replaced or deleted views are dropped."""
_FILES_KEPT: Final = 3
_TRIES: Final = 20
_FILE: Final = re.compile(r"[0-9]{10}\.json")


class SavedViewError(RanklakeError):
    """A view that cannot be saved, renamed or deleted."""


@dataclass(frozen=True, slots=True)
class SavedChange:
    """A change of a saved view.

    Attributes
    ----------
    role
        Role that the name belongs to; empty for viewers without a role, who see everything.
    page
        Page that the view belongs to; empty if the view was deleted.
    query
        Query of its address: names and values, in order.
    at, author
        When, UTC, and by whom; empty for the account that runs the server.
    other_name
        The name before or after a renaming; else empty.
    """

    role: str
    name: str
    page: str
    query: tuple[tuple[str, str], ...]
    at: AwareDatetime
    author: str = ""
    other_name: str = ""


_CHANGES: Final = TypeAdapter(tuple[SavedChange, ...])


@dataclass(frozen=True, slots=True)
class SavedViews:
    """All changes of saved views, oldest first, and the number of their file; 0 before the first."""

    number: int = 0
    changes: tuple[SavedChange, ...] = ()

    def history(self, role: str) -> list[SavedChange]:
        """Return the changes of a role's views, newest first."""
        return [change for change in reversed(self.changes) if change.role == role]

    def current(self, role: str) -> dict[str, SavedChange]:
        """Return the views that a role has, by name."""
        last = {change.name: change for change in self.changes if change.role == role}
        return {name: last[name] for name in sorted(last) if last[name].page}


def load_views(store: "Store") -> SavedViews:
    """Return all saved views, from the newest file that can be read.

    Raises `SavedViewError` if other writers replace the files faster than they are read, and what the store raises.
    """
    for _ in range(_TRIES):
        numbers = file_numbers(store, FOLDER, _FILE)
        try:
            for number in reversed(numbers):
                with suppress(ValidationError):
                    changes = _CHANGES.validate_json(store.fs.cat_file(store.path(numbered_name(FOLDER, number))))
                    return SavedViews(numbers[-1], changes)
        except FileNotFoundError:  # another writer saved meanwhile, and deleted this file
            continue
        return SavedViews(numbers[-1] if numbers else 0)
    raise SavedViewError("too many others save at the same time", hint="try again")


def save_view(store: "Store", change: SavedChange) -> None:
    """Save a view under its name, replacing a view of that name. Raises `SavedViewError`."""
    _append(store, lambda _: (change,))


def rename_view(store: "Store", change: SavedChange, name: str) -> None:
    """Rename a view to `name`; `change` has its role and present name. Raises `SavedViewError`."""

    def changes(current: Mapping[str, SavedChange]) -> Sequence[SavedChange]:
        view = _find_view(current, change.name)
        if name in current:
            raise SavedViewError(f"there is a view called {name!r}", where="name", hint="choose another name")
        facts = {"role": change.role, "at": change.at, "author": change.author}
        return (
            SavedChange(name=change.name, page="", query=(), other_name=name, **facts),  # type: ignore[arg-type]
            SavedChange(name=name, page=view.page, query=view.query, other_name=change.name, **facts),  # type: ignore[arg-type]
        )

    _append(store, changes, change.role)


def delete_view(store: "Store", change: SavedChange) -> None:
    """Delete a view and keep its history; `change` has its role and name. Raises `SavedViewError`."""

    def changes(current: Mapping[str, SavedChange]) -> Sequence[SavedChange]:
        _find_view(current, change.name)
        return (change,)

    _append(store, changes, change.role)


def _find_view(current: Mapping[str, SavedChange], name: str) -> SavedChange:
    if name not in current:
        raise SavedViewError("there is no view of this name", where="name", hint="load the page again")
    return current[name]


def _append(
    store: "Store", changes: Callable[[Mapping[str, SavedChange]], Sequence[SavedChange]], role: str = ""
) -> None:
    """Append changes. Safe if several processes append at once."""
    for _ in range(_TRIES):
        views = load_views(store)
        added = changes(views.current(role))
        raw = _file_bytes((*views.changes, *added))
        number = views.number + 1
        if store.put_if_absent(numbered_name(FOLDER, number), raw):
            newest = load_views(store)
            # If other writers were several files ahead, they may have deleted a file of this number before it was
            # written: then nobody reads what was written here.
            if newest.number > number and not set(added) <= set(newest.changes):
                continue
            for old in file_numbers(store, FOLDER, _FILE):
                if old <= number - _FILES_KEPT:
                    delete(store, store.path(numbered_name(FOLDER, old)))
            return
    raise SavedViewError("too many others save at the same time", hint="try again")


def _file_bytes(changes: tuple[SavedChange, ...]) -> bytes:
    """Return changes as JSON of at most `MOST_BYTES`: the oldest of replaced or deleted views are dropped."""
    raw = _CHANGES.dump_json(changes)
    while len(raw) > MOST_BYTES:
        last = {(change.role, change.name): change for change in changes}
        droppable = [change for change in changes if last[change.role, change.name] is not change or not change.page]
        if not droppable:
            raise SavedViewError(f"saved views take more than {MOST_BYTES / 2**20:.0f} MiB", hint="delete some")
        dropped = set(map(id, droppable[: max(1, len(droppable) // 2)]))
        changes = tuple(change for change in changes if id(change) not in dropped)
        raw = _CHANGES.dump_json(changes)
    return raw
