"""The page of saved views: views of Explore and Sweep, and SQL statements of Ask, under names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from ranklake.context import Context
from ranklake.insight.saved_views import (
    SavedChange,
    delete_view,
    load_views,
    rename_view,
    save_view,
)
from ranklake.lake.audit import clock
from ranklake.printable import printable
from ranklake.ui.ask import ASK_HOME
from ranklake.ui.explore import EXPLORE_HOME
from ranklake.ui.guard import FormTokens
from ranklake.ui.sweep import SWEEP_HOME
from ranklake.ui.view import UnfitViewError
from ranklake.ui.viewers import Viewer
from ranklake.views.html.shell import Page

SAVED: Final = "saved"
SAVED_HOME: Final = f"{SAVED}/index.html"
MOST_BYTES: Final = 64 * 1024
"""Size of a form."""
PAGES: Final[Mapping[str, tuple[str, str]]] = {
    "explore": ("Explore", EXPLORE_HOME),
    "sweep": ("Sweep", SWEEP_HOME),
    "ask": ("Ask", ASK_HOME),
}
"""Pages whose views can be saved: title and path."""
MOST_ADDRESS: Final = 8_000
_MOST_NAME: Final = 120
_MOST_FIELDS: Final = 500
_MOST_HISTORY: Final = 100


@dataclass(frozen=True, slots=True)
class SavedView:
    """A saved view, or a change of one, as a page shows it: `href` is from the site's root."""

    change: SavedChange
    title: str
    href: str
    query: str
    author: str


class SavedPages:
    """Shows saved views, and saves, renames and deletes them.

    Parameters
    ----------
    context
        The configuration, and the lake.
    tokens
        Protects the server's forms.
    """

    def __init__(self, context: Context, tokens: FormTokens) -> None:
        self._context, self._tokens = context, tokens

    def page(self, viewer: Viewer, query: str) -> Page:
        """Return the page, with a form to save the view that the query describes, if any. Raises `UnfitViewError`."""
        page, pairs = _parse_view(query)
        facts = self._facts(viewer, page, pairs)
        return Page(SAVED_HOME, "Saved views", "saved.html", lambda: facts, "")

    def _facts(self, viewer: Viewer, page: str, pairs: tuple[tuple[str, str], ...]) -> Mapping[str, Any]:
        views, role = load_views(self._context.open_lake().store), _role_name(viewer)
        sees_people = viewer.role is None or "personal" in viewer.role.classes
        current = [_view_facts(change, sees_people=sees_people) for change in views.current(role).values()]
        history = [change for change in views.history(role) if change.page or not change.other_name]
        return {
            "token": self._tokens.token(viewer),
            "page_name": page,
            "title": PAGES[page][0],
            "query": urlencode(pairs),
            "views": current,
            "history": [_view_facts(change, sees_people=sees_people) for change in history[:_MOST_HISTORY]],
        }

    def take(self, viewer: Viewer, body: bytes) -> str:
        """Save, rename or delete a view by a form; return the address of the page.

        Raises `ForbiddenError`, `UnfitViewError`, `ranklake.insight.saved_views.SavedViewError`.
        """
        form = dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=20))
        self._tokens.check(viewer, form.get("token", ""))
        name, action = _view_name(form.get("name", "")), form.get("action", "")
        store = self._context.open_lake().store
        change = SavedChange(_role_name(viewer), name, "", (), clock.now(), viewer.name)
        if action == "save":
            page, pairs = _parse_view(form.get("query", ""), form.get("of", ""))
            if not pairs:
                raise UnfitViewError("there is nothing to save", where="query", hint="open a view, and save that")
            save_view(store, SavedChange(change.role, name, page, pairs, change.at, change.author))
        elif action == "rename":
            rename_view(store, change, _view_name(form.get("other", "")))
        elif action == "delete":
            delete_view(store, change)
        else:
            raise UnfitViewError(f"{action[:40]!r} is not an action on a view", where="action")
        return "index.html"


def _role_name(viewer: Viewer) -> str:
    return "" if viewer.role is None else viewer.role.name


def _view_facts(change: SavedChange, *, sees_people: bool) -> SavedView:
    title, path = PAGES.get(change.page, ("", ""))
    query = urlencode(change.query)
    author = change.author if sees_people or not change.author else "somebody"
    return SavedView(change, title, f"{path}?{query}" if path else "", query, author)


def _view_name(text: str) -> str:
    """Return the name in a form, stripped. Raises `UnfitViewError` for an empty, long or unprintable one."""
    name = text.strip()
    if not name or len(name) > _MOST_NAME or printable(name) != name:
        hint = f"write one line of 1 to {_MOST_NAME} printable characters"
        raise UnfitViewError("a view cannot have this name", where="name", hint=hint)
    return name


def _parse_view(query: str, page: str = "") -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the page and the query of a view, from the query of its address. Raises `UnfitViewError`."""
    if len(query) > MOST_ADDRESS:
        raise UnfitViewError(f"its address is longer than {MOST_ADDRESS:,} characters", where="query")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise UnfitViewError(f"its address has more than {_MOST_FIELDS} parameters", where="query") from None
    page = page or next((value for name, value in pairs if name == "of"), "explore")
    if page not in PAGES:
        raise UnfitViewError(f"views of page {page[:40]!r} cannot be saved", where="of", hint=", ".join(PAGES))
    return page, tuple((name, value) for name, value in pairs if name != "of")
