"""Site: writes changed pages to a folder or a bucket, each atomically.

The order is: assets, pages, the site's own data, and last the manifest, from which the next call knows the site's
state. A killed call leaves a usable site, with some pages newer than others; the next one completes it.
"""

import hashlib
import json
import os
import traceback
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.reachability import cannot_write
from ranklake.lake.store.store import Store
from ranklake.redaction.redact import redact
from ranklake.views.html.charts import library, library_name
from ranklake.views.html.shell import FOLDER, Entry, Page, assets, data_block, digest_of, render, shell_digest

MANIFEST: Final = "ranklake-site.json"
DATA: Final = f"{FOLDER}/site.js"
SECTIONS: Final = (
    *("oncall", "incidents", "alerts", "quality", "runs", "compare", "cluster", "executive", "serving"),
    *("slo", "pipeline", "catalog", "governance", "compliance"),
)
"""Folders of the site: one per section."""
_FORMAT: Final = 1
_HOME: Final = "index.html"
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
}
Draw = Callable[[], Mapping[str, Any]]


class NotASiteError(RanklakeError):
    """The place has other files, or the site of another role."""


ABOUT: Final = {
    "oncall": "What needs a look now, worst first: incidents, ranks, runs, devices, checks.",
    "incidents": "What went wrong in runs and on nodes: since when, evidence, likely causes, what to do.",
    "alerts": "What fires now, what ended, who was told of it, and what nobody was told of.",
    "quality": "Which checks fail on which dates, since when, and what their rows have in common.",
    "runs": "Every run: how it ended, loss, pace, MFU, goodput; a page each with curves, ranks and settings.",
    "compare": "Some runs side by side: curves, settings, and whether differences are more than chance.",
    "cluster": "Nodes and devices by hour: utilization, who holds them, what waits in queues.",
    "executive": "Device time, goodput, outcomes and cost by week, team, pool and device.",
    "serving": "Requests to served models: how many, how fast, how they ended, and what has drifted.",
    "slo": "What was promised and attained: error budgets as they burn, and what used them up.",
    "pipeline": "Rounds of ingest, checks and rollups: what came in, what is overdue, how long it took.",
    "catalog": "Tables, columns and metrics: what each means, its size, and when it was last recorded.",
    "governance": "What is due to be removed, what is held, approved and was done.",
    "compliance": "Who may see what, and which personal data lies where.",
}
"""Contents of each section, for the home page."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the site: its pages, and its data for navigation and search."""

    name: str
    title: str
    state: str
    headline: str
    href: str
    pages: tuple[Page, ...]
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Result of a call: first page of its first section, its pages with the home page, number of rewritten ones.

    `broken` has the errors of pages that could not be made, which the pages show, too.
    """

    out: str
    first: str
    pages: int
    written: int
    removed: int
    largest_bytes: int
    broken: dict[str, str] = field(default_factory=dict)


def publish(place: Store, *made: Section, role: str = "") -> PublishResult:
    """Write sections of the site, and the home page with all sections; pages of other sections stay.

    Parameters
    ----------
    place
        A place of `ranklake.lake.store.store.Store.at`.
    role
        Role of the site; empty for all data. A role's site has only the sections of the last call, so that hidden pages
        are deleted.

    Raises
    ------
    NotASiteError
        The place has files but no site, or another role's site.
    LakeUnreachableError
        The place cannot be read or written; written files stay.
    NoChartLibraryError
        The chart library is not installed, and the site has none yet.
    """
    there = _listing(place)
    before = _manifest(place, there, role)
    if role and MANIFEST not in there:  # first, so that the next call knows the role of a killed call's pages
        _put(place, MANIFEST, json.dumps(before).encode())
    for name, data in assets().items():
        if f"{FOLDER}/{name}" not in there:
            _put(place, f"{FOLDER}/{name}", data)
    if f"{FOLDER}/{library_name()}" not in there:
        _put(place, f"{FOLDER}/{library_name()}", library())
    known: dict[str, dict[str, Any]] = before["pages"]
    pages = dict(known)
    kept = {} if role else before["sections"]
    sections = {**kept, **{one.name: section_facts(one) for one in made}}
    sections = {name: sections[name] for name in sorted(sections, key=SECTIONS.index)}
    mine = {page.path: one.name for one in made for page in one.pages}
    every = [*(page for one in made for page in one.pages), _home_page(sections)]
    marks = {page.path: f"{shell_digest()} {page.fingerprint}" for page in every}
    due = [one for one in every if one.path not in there or known.get(one.path, {}).get("mark") != marks[one.path]]
    if role and due:  # pages of a killed call have no digest, so the next call writes them again
        before = {**before, "pages": {path: known[path] for path in known.keys() - {one.path for one in due}}}
        _put(place, MANIFEST, json.dumps(before).encode())
    faults: dict[str, str] = {}
    for page in due:
        section = mine.get(page.path, "")
        try:
            data = render(page)
        except Exception as error:  # noqa: BLE001 - a bug in one page is no reason to lose the others
            faults[page.path] = fault_text(error)
            data = render(failed_section(section, "", f"This page cannot be made: {faults[page.path]}").pages[0])
            marks[page.path] = ""
        _put(place, page.path, data)
        pages[page.path] = {"mark": marks[page.path], "section": section, "bytes": len(data)}
    stale = _stale(known, mine, {one.name for one in made}, there if role else set())
    for path in stale:
        with suppress(FileNotFoundError):
            place.fs.rm_file(place.path(*path.split("/")))
        pages.pop(path, None)
    _finish(place, before, {"format": _FORMAT, "role": role, "pages": pages, "sections": sections}, there)
    largest = max((pages[path]["bytes"] for path in mine), default=0)
    return PublishResult(place.uri, made[0].href, len(mine) + 1, len(due), len(stale), largest, faults)


_OVERVIEW: Final[Mapping[str, Any]] = {
    "lake": "", "hint": "", "as_of": None, "needs": (), "more": 0, "figures": (), "lead": (), "heats": (), "charts": (),
    "tables": (), "doubts": (),
}  # fmt: skip
"""Optional facts of ``overview.html``."""


def overview(path: str, title: str, state: str, headline: str, facts: object, draw: Draw) -> Page:
    """Return a page of ``overview.html`` with the facts of `draw`; rendered again when `facts` change."""
    parts = {**_OVERVIEW, "headline": headline, "state": state}
    return Page(path, title, "overview.html", lambda: {**parts, **draw()}, digest_of((facts, headline)))


def page_section(name: str, title: str, state: str, headline: str, facts: object, draw: Draw) -> Section:
    """Return a section of one page; parameters as for `overview`."""
    home = f"{name}/index.html"
    page = overview(home, title, state, headline, facts, draw)
    return Section(name, title, state, headline, home, (page,), (Entry(title, "page", state, home),))


def failed_section(name: str, lake: str, headline: str) -> Section:
    """Return a section of one page with only a headline."""
    return page_section(name, name.capitalize(), "failing", headline, lake, lambda: {"lake": lake})


def fault_text(error: Exception) -> str:
    """Text of the error of a page; for unexpected errors with the place in the code."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    bug = f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
    return " ".join(str(redact(error.what if isinstance(error, RanklakeError) else bug)).split())


def _stale(known: dict[str, dict[str, Any]], mine: dict[str, str], sections: set[str], there: set[str]) -> list[str]:
    """Return outdated pages of some sections; if the site's files are given, all but the new ones.

    These include partial files of a killed call.
    """
    if there:
        return sorted(path for path in there if path.endswith((".html", ".tmp")) and path != _HOME and path not in mine)
    return [path for path, one in known.items() if one["section"] in sections and path not in mine]


def section_facts(section: Section) -> dict[str, Any]:
    """Return a section's data for home page and search, as plain JSON values."""
    facts = {name: getattr(section, name) for name in ("name", "title", "state", "headline", "href")}
    return {**facts, "entries": [asdict(one) for one in section.entries]}


def search_data(sections: list[dict[str, Any]]) -> bytes:
    """Return the script with the data of search and navigation."""
    return f"window.ranklakeSite={data_block(sections)};\n".encode()


def _home_page(sections: dict[str, Any]) -> Page:
    shown = [
        {**{name: value for name, value in one.items() if name != "entries"}, "about": ABOUT.get(key, "")}
        for key, one in sections.items()
    ]
    digest = hashlib.sha256(json.dumps(shown).encode()).hexdigest()
    return Page(_HOME, "Report", "home.html", lambda: {"sections": shown}, digest)


def _finish(place: Store, before: dict[str, Any], after: dict[str, Any], there: set[str]) -> None:
    data = search_data(list(after["sections"].values()))
    after["data"] = hashlib.sha256(data).hexdigest()
    if DATA not in there or before.get("data") != after["data"]:
        _put(place, DATA, data)
    if after != before:
        _put(place, MANIFEST, json.dumps(after, indent=0, sort_keys=True).encode())


def _listing(place: Store) -> set[str]:
    """Return the files of the place, relative to its root."""
    try:
        paths: list[str] = place.fs.find(place.root)
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise cannot_write(place.root, error) from error
    return {path[len(place.root) :].lstrip("/") for path in paths}


def _manifest(place: Store, there: set[str], role: str) -> dict[str, Any]:
    empty: dict[str, Any] = {"format": _FORMAT, "role": role, "pages": {}, "sections": {}}
    if MANIFEST not in there:
        ours = (f"{FOLDER}/", _HOME, *(f"{name}/" for name in SECTIONS))  # from a killed call
        if any(not name.startswith(ours) and not name.endswith(".tmp") for name in there):
            hint = "name an empty place, or one with a report in it"
            raise NotASiteError("not a report, and not empty", where=place.uri, hint=hint)
        if role and there:  # their role is unknown
            raise NotASiteError("a report without its manifest", where=place.uri, hint="name an empty place")
        return empty
    try:
        manifest = json.loads(place.fs.cat_file(place.path(MANIFEST)))
        if manifest["format"] != _FORMAT or not isinstance(manifest["pages"], dict):
            return _unread(place, empty)
        owner = str(manifest.get("role", ""))
        if isinstance(manifest["sections"], dict) and owner == role:
            return dict(manifest)
    except (ValueError, KeyError, TypeError, RecursionError):
        return _unread(place, empty)
    site = f"the report as {f'role {owner}' if owner else 'whoever may see all'} sees it"
    raise NotASiteError(site, where=place.uri, hint="name another place: a site is for one role")


def _unread(place: Store, empty: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest in place of an unreadable one, for which every page is written again.

    For a role's site that could keep pages of another role, so it raises `NotASiteError`.
    """
    if empty["role"]:
        raise NotASiteError("a report whose manifest cannot be read", where=place.uri, hint="name an empty place")
    return empty


def _put(place: Store, name: str, data: bytes) -> None:
    """Replace a file atomically; readers see the old or the new one.

    Raises `LakeUnreachableError`.
    """
    target = place.path(*name.split("/"))
    if not place.is_local:
        place.fs.pipe_file(target, data, **_content_type(place.fs, name))
        return
    scratch = f"{target}.{uuid.uuid4().hex}.tmp"
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - fsspec paths are strings
        with open(scratch, "xb") as file:  # noqa: PTH123 - likewise
            file.write(data)
        os.replace(scratch, target)  # noqa: PTH105 - likewise
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        with suppress(OSError):
            os.unlink(scratch)  # noqa: PTH108 - likewise


def _content_type(fs: Any, name: str) -> dict[str, str]:  # noqa: ANN401 - fsspec ships no types
    """Return the content type of a file for a store's client: a browser shows a page only as HTML."""
    kind = _TYPES.get(name.rpartition(".")[2], "application/octet-stream")
    option = {"s3": "ContentType", "gs": "content_type"}.get(next(iter({"s3", "gs"} & set(fs.protocol)), ""))
    return {option: kind} if option else {}
