"""Pages of the server: made on request, by the report's functions, and cached until a table changes."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple

from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.insight.runs.asking import UnseenError
from ranklake.insight.runs.report import RunQuestions, run_questions, runs_state
from ranklake.lake.query.roles import Role
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.tables.tables import latest
from ranklake.pipeline.report_sections import SECTIONS
from ranklake.views.html import run_pages
from ranklake.views.html.shell import Page, Served, parts_of
from ranklake.views.html.site import ABOUT, DATA, Section, failed_section, fault_text, search_data, section_facts

HOME: Final = "index.html"
FRESH_S: Final = 0.5
"""Seconds for which the tables' versions are cached."""
KEPT_S: Final = 60.0
"""Longest time that a page is cached: files of policies, roles and objectives may change without a table."""
MOST_BYTES: Final = 64 * 2**20
"""Of pages that are kept."""
_WORKERS: Final = 3
_TRIES: Final = 3
"""Most attempts at a page if the lake changes meanwhile: an erasure deletes files that queries may read."""
_TITLES: Final = {"oncall": "On-call", "slo": "Objectives"}


def navigation(role: Role | None) -> tuple[tuple[str, str, str], ...]:
    """Return folder, title and first page of the sections for a role; all of them for None."""
    names = [name for name, section in SECTIONS.items() if role is None or section.make_for_role is not None]
    return tuple((name, _TITLES.get(name, name.capitalize()), f"{name}/{HOME}") for name in names)


class ChangedLakeError(RanklakeError):
    """The lake changed while a page was made, and its files were deleted."""


class NoSuchPageError(RanklakeError):
    """There is no such page, or the viewer may not see it."""


@dataclass(slots=True)
class Draft:
    """A page in the making: its parts so far, whether it is complete, and its error."""

    mark: object
    made_at: float = field(default_factory=time.monotonic)
    parts: list[bytes] = field(default_factory=list)
    is_whole: bool = False
    error: Exception | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes so far."""
        return sum(map(len, self.parts))

    def is_good(self, mark: object) -> bool:
        """Whether it is still up to date."""
        return self.error is None and self.mark == mark and time.monotonic() - self.made_at < KEPT_S


class _Made(NamedTuple):
    """A section, with time and table versions; its pages share a session, so one thread draws at a time."""

    mark: object
    made_at: float
    section: Section
    lock: threading.Lock


class Pages:
    """Pages of one lake, for all roles.

    Parameters
    ----------
    context
        The configuration, and the lake.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._has_roles = bool(context.config.sql.roles)
        self._lake = context.open_lake()
        self._seen: tuple[float, object] = (-FRESH_S, None)
        self._lock = threading.Lock()
        self._look_lock = threading.Lock()
        self._drafts: OrderedDict[tuple[str, str], Draft] = OrderedDict()
        self._sections: dict[tuple[str, str], _Made] = {}
        self._section_locks: dict[tuple[str, str], threading.Lock] = {}
        self._runs: dict[str, tuple[object, Mapping[str, str]]] = {}
        self._workers = ThreadPoolExecutor(_WORKERS, "ranklake-page")

    def close(self) -> None:
        """End the work on pages."""
        self._workers.shutdown(cancel_futures=True)

    def draft(
        self, path: str, role: Role | None, served: Served, make: Callable[[], Iterable[bytes]] | None = None
    ) -> Draft:
        """Return a page, which may still be in the making; concurrent requests share it.

        `make` returns the parts of other pages than the report's, which `path` names.

        Raises `LakeError` if the lake is missing or unreachable. Other errors are in the draft's `error`.
        """
        tables = self.mark()
        mark = (tables, repr(role), served)
        key = ("" if role is None else role.name, path)
        with self._lock:
            draft = self._drafts.get(key)
            if draft is None or not draft.is_good(mark):
                draft = self._drafts[key] = Draft(mark)
                make = make or partial(self._parts, draft, path, role, served)
                self._workers.submit(self._fill, draft, make, tables)
            self._drafts.move_to_end(key)
            self._forget()
        return draft

    def _forget(self) -> None:
        total = sum(draft.size_bytes for draft in self._drafts.values())
        while total > MOST_BYTES and len(self._drafts) > 1:
            total -= self._drafts.popitem(last=False)[1].size_bytes

    def mark(self, *, is_now: bool = False) -> object:
        """Return a mark that changes with any table and with the day. Raises `LakeError` if the lake is missing.

        It is cached for `FRESH_S`, unless `is_now`.
        """
        with self._look_lock:
            at, mark = self._seen
            if is_now or time.monotonic() - at >= FRESH_S:
                self._lake.store.marker()  # cached tables would not notice a deleted lake
                handles = [(name, latest(self._lake.tables, name)) for name in self._lake.contracts()]
                versions = tuple((name, handle.metadata().id, handle.version()) for name, handle in handles if handle)
                mark = (datetime.now(UTC).date(), versions)
                self._seen = (time.monotonic(), mark)
            return mark

    def _fill(self, draft: Draft, make: Callable[[], Iterable[bytes]], tables: object) -> None:
        try:
            self._make_parts(draft, make, tables)
        except Exception as error:  # noqa: BLE001 - whoever asked is told; the server goes on
            draft.error = error
        finally:
            draft.is_whole = True

    def _make_parts(self, draft: Draft, make: Callable[[], Iterable[bytes]], tables: object) -> None:
        """Make a page; start again if its tables changed before a part was made. Raises `ChangedLakeError`."""
        for _ in range(_TRIES):
            try:
                for part in make():
                    draft.parts.append(part)
            except Exception:
                before, tables = tables, self.mark(is_now=True)
                if tables == before:
                    raise
                if draft.parts:
                    break
            else:
                return
        raise ChangedLakeError("the lake changed while this page was made", hint="load it again")

    def _parts(self, draft: Draft, path: str, role: Role | None, served: Served) -> Iterator[bytes]:
        lake = self._context.open_lake()  # an own session: open tables must not be shared by threads
        name = path.partition("/")[0]
        if path == DATA:
            yield self._site(draft, lake, role, served)
        elif path == HOME:
            yield from parts_of(self._home(draft, lake, role, served), served)
        elif path.startswith(f"{run_pages.SECTION}/run-"):
            yield from parts_of(self._run_page(draft, lake, role, path), served)
        elif name in SECTIONS:
            result = self._section(draft, lake, role, name)
            page = next((page for page in result.section.pages if page.path == path), None)
            if page is None:
                raise NoSuchPageError("no such page", where=path)
            with result.lock:
                yield from parts_of(page, served)
        else:
            raise NoSuchPageError("no such page", where=path)

    def _run_page(self, draft: Draft, lake: Lake, role: Role | None, path: str) -> Page:
        questions = run_questions(lake, role, has_roles=self._has_roles)
        key = "" if role is None else role.name
        mark, runs = self._runs.get(key, (None, {}))
        if mark != draft.mark or path not in runs:
            answer = questions.ask("SELECT DISTINCT run FROM run_summary").seen()
            runs = {run_pages.href(str(row["run"])): str(row["run"]) for row in answer.rows}
            self._runs[key] = (draft.mark, runs)
        if path not in runs:
            raise NoSuchPageError("no such run", where=path)
        return run_pages.run_page(questions, runs[path])

    def _section(self, draft: Draft, lake: Lake, role: Role | None, name: str) -> _Made:
        key = ("" if role is None else role.name, name)
        with self._section_locks.setdefault(key, threading.Lock()):  # pages and the search may query at the same time
            result = self._sections.get(key)
            if result is None or result.mark != draft.mark or time.monotonic() - result.made_at >= KEPT_S:
                section = self._make(lake, role, name)
                result = self._sections[key] = _Made(draft.mark, time.monotonic(), section, threading.Lock())
            return result

    def questions(self, role: Role | None) -> RunQuestions:
        """Return the common inputs of runs' pages, from the current lake. Raises `LakeError`."""
        return run_questions(self._context.open_lake(), role, has_roles=self._has_roles)

    def _make(self, lake: Lake, role: Role | None, name: str) -> Section:
        if name == run_pages.SECTION:
            state = runs_state(lake, "", role, has_roles=self._has_roles, is_served=True)
            return run_pages.section(state, is_served=True)
        if role is None:
            return SECTIONS[name].make(self._context, lake, "")
        make = SECTIONS[name].make_for_role
        if make is None:
            raise NoSuchPageError("no such page", where=name)
        return make(lake, role, "")

    def _home(self, draft: Draft, lake: Lake, role: Role | None, served: Served) -> Page:
        """Return the home page, whose cards appear as their sections are made."""

        def cards() -> Iterator[Mapping[str, str]]:
            for name, title, path in _of_report(served):
                try:
                    section = self._section(draft, lake, role, name).section
                except UnseenError:
                    continue  # as in a role's report, which lacks these sections, too
                except LakeError:
                    raise
                except Exception as error:  # noqa: BLE001 - one section is no reason to lose the others
                    section = failed_section(name, "", fault_text(error) if role is None else "It cannot be made now")
                facts = section_facts(section)
                yield {**facts, "title": title, "href": path, "about": ABOUT.get(name, "")}

        return Page(HOME, "Overview", "home.html", lambda: {"sections": cards()}, "")

    def _site(self, draft: Draft, lake: Lake, role: Role | None, served: Served) -> bytes:
        """Return the data of the search: the sections, and items of pages made so far."""
        key = "" if role is None else role.name
        sections = []
        for name, title, path in _of_report(served):
            result = self._sections.get((key, name))
            entries = result.section.entries if result is not None and result.mark == draft.mark else ()
            if name == run_pages.SECTION:
                try:
                    entries = self._section(draft, lake, role, name).section.entries
                except UnseenError:
                    continue
            shown = [asdict(entry) for entry in entries]
            sections.append({"name": name, "title": title, "href": path, "entries": shown})
        return search_data(sections)


def _of_report(served: Served) -> list[tuple[str, str, str]]:
    return [section for section in served.sections if section[0] in SECTIONS]
