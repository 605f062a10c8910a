"""Shell: turns pages, which are facts and the name of a template, into HTML."""

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
"""Where a template may be sent up to; the text of a page never has it, since what cannot be seen is escaped."""
_TABLE: Final = re.compile("[a-z][a-z0-9_]{0,79}")


def digest_of(facts: object) -> str:
    """Return a digest of what a page is drawn from: as long as it is the same, the page need not be drawn again."""
    return hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """What a search finds: a name, what kind of thing it is, its state, and where it is (from the site's root)."""

    name: str
    kind: str
    state: str
    href: str


@dataclass(frozen=True, slots=True)
class Page:
    """One page.

    Attributes
    ----------
    path
        From the site's root; at most one folder deep.
    template, facts
        What it is made of; facts are asked for only if the page is written.
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
        """The way from the page to the site's root: relative, for a disk has no other."""
        return "../" * self.path.count("/")


@dataclass(frozen=True, slots=True)
class Served:
    """Facts about the server that serves a page.

    Attributes
    ----------
    sections
        The navigation: folder, title and path of each.
    viewer
        Who looks, and as which role, in words; empty for whoever may see all.
    is_live
        Whether pages follow what is recorded right now.
    takes
        Whether something can be said of runs.
    """

    sections: tuple[tuple[str, str, str], ...]
    viewer: str = ""
    is_live: bool = False
    takes: bool = False


def file_stem(name: str) -> str:
    """Return a name as part of a file's name: its letters, digits, ``-`` and ``_``, and a digest of all of it."""
    safe = "".join(one if one.isascii() and (one.isalnum() or one in "-_") else "-" for one in name)[:80]
    return f"{safe}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def table_file(table: str) -> str:
    """Return the file of a table's page. Names of tables come from rows, which need not be those of a contract."""
    return f"table-{table if _TABLE.fullmatch(table) else file_stem(table)}.html"


@cache
def shell_digest() -> str:
    """Return a digest of everything that pages are made with: a new shell makes every page again."""
    names = hashlib.sha256(library_name().encode())
    for path in sorted(_files(files(_PACKAGE)), key=str):
        names.update(path.read_bytes())
    return names.hexdigest()[:16]


@cache
def assets(*, is_served: bool = False) -> dict[str, bytes]:
    """Return the shell's own files, by name; names say what they hold. Pages from a server have some more."""
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
    """Yield a page as HTML, part by part: what is known at once before what its template asks for later.

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
    """Return facts as JSON for a script element: nothing in it can end the element or begin another.

    What is no finite number is null: no browser reads NaN or Infinity in JSON, and would draw nothing at all.
    Characters that turn the direction of writing are escaped, as in the page's text: else a number after them would be
    read backwards.
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
    made = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_safe_text,
    )
    made.filters |= {"number": number, "when": time_text, "data_block": data_block}
    return made


def compile_templates() -> None:
    """Compile all templates, which takes longer than drawing a page."""
    for name in _environment().list_templates():
        _environment().get_template(name)


def _safe_text(value: object) -> object:
    """Return a text without characters that turn the direction of writing or cannot be seen; its lines stay."""
    return printable_lines(value) if type(value) is str and not value.isprintable() else value


def _printable(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return JSON values with the texts that `_safe_text` gives."""
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
