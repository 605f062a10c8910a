"""Shell: renders pages, which are facts and the name of a template, as HTML."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ranklake.printable import printable_lines
from ranklake.views.html.charts import library_name
from ranklake.views.html.figures import number, time_text
from ranklake.views.json_output import finite

FOLDER: Final = "assets"
_PACKAGE: Final = "ranklake.views.html"
_FLUSH: Final = Markup("\f")
"""Marks a point up to which a template may be sent; pages never contain it, since invisible characters are escaped."""
_TABLE: Final = re.compile("[a-z][a-z0-9_]{0,79}")


def digest_of(facts: object) -> str:
    """Return a digest of a page's inputs: while it is the same, the page need not be rendered again."""
    return hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """An item of the search: name, kind, state, and path from the site's root."""

    name: str
    kind: str
    state: str
    href: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes
    ----------
    path
        Path from the site's root; at most one folder deep.
    template, facts
        Its template, and a function of its facts, which is called only if the page is written.
    fingerprint
        Digest of the facts: two pages of equal fingerprint and shell are equal.
    trail
        Pages above it: title and path.
    """

    path: str
    title: str
    template: str
    facts: Callable[[], Mapping[str, Any]]
    fingerprint: str
    trail: tuple[tuple[str, str], ...] = ()

    @property
    def root(self) -> str:
        """Relative path from the page to the site's root, so that it also works on a disk."""
        return "../" * self.path.count("/")


@dataclass(frozen=True, slots=True)
class Served:
    """Facts about the server that serves a page.

    Attributes
    ----------
    sections
        The navigation: folder, title and path of each.
    viewer
        Viewer and role, as text; empty without a role.
    is_live
        Whether there are live pages.
    takes
        Whether viewers can write annotations.
    """

    sections: tuple[tuple[str, str, str], ...]
    viewer: str = ""
    is_live: bool = False
    takes: bool = False


def file_stem(name: str) -> str:
    """Return a name for use in a file's name: its letters, digits, ``-`` and ``_``, and a digest."""
    safe = "".join(one if one.isascii() and (one.isalnum() or one in "-_") else "-" for one in name)[:80]
    return f"{safe}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def table_file(table: str) -> str:
    """Return the file of a table's page. Names of tables come from rows, and may be unknown to contracts."""
    return f"table-{table if _TABLE.fullmatch(table) else file_stem(table)}.html"


@cache
def shell_digest() -> str:
    """Return a digest of templates and assets: if it changes, every page is rendered again."""
    names = hashlib.sha256(library_name().encode())
    for path in sorted(_files(files(_PACKAGE)), key=str):
        names.update(path.read_bytes())
    return names.hexdigest()[:16]


@cache
def assets(*, is_served: bool = False) -> dict[str, bytes]:
    """Return the shell's own files, by name with digest. A server's pages have some more."""
    served = ("uplot.js", "explore.js", "step_media.js", "live.js", "served.js", "ask.js") if is_served else ()
    return {
        f"{stem}-{hashlib.sha256(data).hexdigest()[:12]}.{end}": data
        for stem, end in (name.split(".") for name in ("shell.css", "shell.js", "heat.js", *served))
        for data in [files(_PACKAGE).joinpath(FOLDER, f"{stem}.{end}").read_bytes()]
    }


def render(page: Page) -> bytes:
    """Return a page as HTML."""
    return b"".join(parts_of(page))


def parts_of(page: Page, served: Served | None = None) -> Iterator[bytes]:
    """Yield a page as HTML, part by part: first the facts that are known at once.

    `served` is None for a page that opens from a disk.
    """
    names = {re.sub("-[0-9a-f]+", "", name): name for name in assets(is_served=served is not None)}
    pieces = _environment().get_template(page.template).generate(
        page=page, root=page.root, assets=f"{page.root}{FOLDER}", style=names["shell.css"], script=names["shell.js"],
        heat_script=names["heat.js"], library=library_name(), served=served, flush=_FLUSH,
        live_script=names.get("live.js"), served_script=names.get("served.js"),
        explore_script=names.get("explore.js"), plot_script=names.get("uplot.js"),
        step_media_script=names.get("step_media.js"), ask_script=names.get("ask.js"),
        **page.facts(),
    )  # fmt: skip
    part: list[str] = []
    for piece in pieces:
        part.append(piece)
        if _FLUSH in piece:
            yield "".join(part).replace(_FLUSH, "").encode()
            part.clear()
    yield "".join(part).encode()


def data_block(facts: object) -> Markup:
    """Return facts as JSON for a script element, escaped so that it cannot end the element.

    NaN and infinities are null, since browsers cannot parse them. Direction marks are escaped, as in the page's text:
    else a number after them would be shown reversed.
    """
    try:
        text = json.dumps(facts, separators=(",", ":"), default=str, allow_nan=False)
    except ValueError:
        text = json.dumps(finite(json.loads(json.dumps(facts, default=str))), separators=(",", ":"))
    if "\\u" in text:
        text = json.dumps(_printable(json.loads(text)), separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - no character of markup is left in it


@cache
def _environment() -> Environment:
    loader = PackageLoader(_PACKAGE, "templates")
    result = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_safe_text,
    )
    result.filters |= {"number": number, "when": time_text, "data_block": data_block}
    return result


def compile_templates() -> None:
    """Compile all templates, which takes longer than rendering a page."""
    for name in _environment().list_templates():
        _environment().get_template(name)


def _safe_text(value: object) -> object:
    """Return a text without direction marks and invisible characters; line breaks stay."""
    return printable_lines(value) if type(value) is str and not value.isprintable() else value


def _printable(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Apply `_safe_text` to the texts in JSON values."""
    if isinstance(value, dict):
        return {_safe_text(name): _printable(item) for name, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else _safe_text(value)


def _files(folder: Traversable) -> list[Traversable]:
    paths: list[Traversable] = []
    for child in folder.iterdir():
        if child.is_dir() and child.name != "__pycache__":
            paths += _files(child)
        elif child.is_file():
            paths.append(child)
    return paths
