"""Saved views: what the address of a page says, under a name, with the history of each; kept in the lake.

    <lake>/saved/0000000007.json   all changes so far; the highest number counts, and each is written once

Nothing is overwritten: a name that is saved again, renamed or deleted keeps what it was in its history. Each role has
names of its own, since a name or a condition may say what another role does not see.
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
"""Of all changes: older ones that are over go first."""
_KEPT: Final = 3
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
        Whose name it is; empty for whoever sees all.
    page
        The page that it is a view of, empty where it was deleted.
    asked
        What its address says: names and values in their order.
    at, author
        When, UTC, and by whom; empty for the account that runs the server.
    other
        Its name before or after, where it was renamed.
    """

    role: str
    name: str
    page: str
    asked: tuple[tuple[str, str], ...]
    at: AwareDatetime
    author: str = ""
    other: str = ""


_CHANGES: Final = TypeAdapter(tuple[SavedChange, ...])


@dataclass(frozen=True, slots=True)
class SavedViews:
    """All changes of saved views, oldest first, and the number of their file; 0 before the first."""

    number: int = 0
    changes: tuple[SavedChange, ...] = ()

    def history(self, role: str) -> list[SavedChange]:
        """Return the changes of a role's names, newest first."""
        return [change for change in reversed(self.changes) if change.role == role]

    def current(self, role: str) -> dict[str, SavedChange]:
        """Return the views that a role has, by name."""
        last = {change.name: change for change in self.changes if change.role == role}
        return {name: last[name] for name in sorted(last) if last[name].page}


def load_views(store: "Store") -> SavedViews:
    """Return what is saved; of files that cannot be read, the one before.

    Raises `SavedViewError` where others save all the time, and what the store raises.
    """
    for _ in range(_TRIES):
        numbers = file_numbers(store, FOLDER, _FILE)
        try:
            for number in reversed(numbers):
                with suppress(ValidationError):
                    changes = _CHANGES.validate_json(store.fs.cat_file(store.path(numbered_name(FOLDER, number))))
                    return SavedViews(numbers[-1], changes)
        except FileNotFoundError:  # others have saved meanwhile, and deleted it
            continue
        return SavedViews(numbers[-1] if numbers else 0)
    raise SavedViewError("others save at the same time", hint="try again")


def save_view(store: "Store", change: SavedChange) -> None:
    """Save a view under its name, in place of what has the name. Raises `SavedViewError`."""
    _append(store, lambda _: (change,))


def rename_view(store: "Store", change: SavedChange, name: str) -> None:
    """Give a view another name; `change` has its role and name now. Raises `SavedViewError`."""

    def changes(current: Mapping[str, SavedChange]) -> Sequence[SavedChange]:
        view = _known(current, change.name)
        if name in current:
            raise SavedViewError(f"there is a view called {name!r}", where="name", hint="choose another name")
        by = {"role": change.role, "at": change.at, "author": change.author}
        return (
            SavedChange(name=change.name, page="", asked=(), other=name, **by),  # type: ignore[arg-type]
            SavedChange(name=name, page=view.page, asked=view.asked, other=change.name, **by),  # type: ignore[arg-type]
        )

    _append(store, changes, change.role)


def delete_view(store: "Store", change: SavedChange) -> None:
    """Delete a view, whose history stays; `change` has its role and name. Raises `SavedViewError`."""

    def changes(current: Mapping[str, SavedChange]) -> Sequence[SavedChange]:
        _known(current, change.name)
        return (change,)

    _append(store, changes, change.role)


def _known(current: Mapping[str, SavedChange], name: str) -> SavedChange:
    if name not in current:
        raise SavedViewError("there is no view of this name", where="name", hint="load the page again")
    return current[name]


def _append(
    store: "Store", changes: Callable[[Mapping[str, SavedChange]], Sequence[SavedChange]], role: str = ""
) -> None:
    """Write changes after what is there, however many write at once."""
    for _ in range(_TRIES):
        views = load_views(store)
        mine = changes(views.current(role))
        raw = _bounded((*views.changes, *mine))
        number = views.number + 1
        if store.put_if_absent(numbered_name(FOLDER, number), raw):
            newest = load_views(store)
            # Others may have come so far that this number was free again, and nobody reads it.
            if newest.number > number and not set(mine) <= set(newest.changes):
                continue
            for old in file_numbers(store, FOLDER, _FILE):
                if old <= number - _KEPT:
                    delete(store, store.path(numbered_name(FOLDER, old)))
            return
    raise SavedViewError("others save at the same time", hint="try again")


def _bounded(changes: tuple[SavedChange, ...]) -> bytes:
    """Return changes as JSON: without the oldest that are over, where all of them are too many."""
    raw = _CHANGES.dump_json(changes)
    while len(raw) > MOST_BYTES:
        last = {(change.role, change.name): change for change in changes}
        over = [change for change in changes if last[change.role, change.name] is not change or not change.page]
        if not over:
            raise SavedViewError(f"saved views take more than {MOST_BYTES / 2**20:.0f} MiB", hint="delete some")
        gone = set(map(id, over[: max(1, len(over) // 2)]))
        changes = tuple(change for change in changes if id(change) not in gone)
        raw = _CHANGES.dump_json(changes)
    return raw
