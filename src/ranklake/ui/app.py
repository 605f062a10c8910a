"""The server as an ASGI application: pages and their assets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from html import escape
from typing import Final, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from ranklake.errors import RanklakeError
from ranklake.insight.runs.asking import UnseenError
from ranklake.insight.runs.report import RunQuestions
from ranklake.insight.saved_views import SavedViewError
from ranklake.lake.query.roles import Role
from ranklake.lake.store.reachability import LakeError
from ranklake.ui.annotate import ANNOTATE, ANNOTATE_HOME, MOST_BYTES, Annotator
from ranklake.ui.ask import ASK, ASK_HOME, ASK_ROWS, ASK_WORDS, MOST_SQL_BYTES, Asker, Question
from ranklake.ui.comparison import COMPARE_HOME, ComparisonPage
from ranklake.ui.explore import EXPLORE, EXPLORE_HOME, FORMS, Explorer, rendered
from ranklake.ui.guard import BusyError, ForbiddenError, Guard, RateLimit
from ranklake.ui.live import LIVE, LIVE_HOME, LiveRuns, events
from ranklake.ui.pages import HOME, ChangedLakeError, Draft, NoSuchPageError, Pages, navigation
from ranklake.ui.query_pool import unless_gone
from ranklake.ui.query_process import FORMS as QUERY_FORMS
from ranklake.ui.saved import MOST_BYTES as MOST_SAVED_BYTES
from ranklake.ui.saved import SAVED, SAVED_HOME, SavedPages
from ranklake.ui.step_media import MEDIA_HOME, StepMediaPage, StepMediaView
from ranklake.ui.sweep import SWEEP_HOME, Sweep
from ranklake.ui.view import UnfitViewError, View
from ranklake.ui.viewers import NotAllowedError, Viewer, Viewers
from ranklake.views.html.charts import library, library_name
from ranklake.views.html.shell import FOLDER, Page, Served, assets, compile_templates, parts_of
from ranklake.views.html.site import DATA, fault_text, overview

_TYPES: Final = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_HTML: Final = "text/html; charset=utf-8"
_FOREVER: Final = {"Cache-Control": "private, max-age=31536000, immutable"}
"""Cache header of assets, whose names change with their bytes."""
_TAKING: Final = (f"{ANNOTATE}/", ANNOTATE_HOME, SAVED_HOME)
"""Paths of forms that write."""
_LOOK_S: Final = 0.02
_BURST, _PER_S = 300, 30
"""Request limits of a viewer: burst, and average per second. A page makes a dozen."""
_FAILED_BURST, _FAILED_PER_S = 20, 0.2
"""Limits of failed logins of an address: burst, and average per second."""
AnyView = TypeVar("AnyView")


def ui_app(
    pages: Pages,
    viewers: Viewers,
    hosts: frozenset[str],
    live: LiveRuns,
    asker: Asker,
    saved: SavedPages,
    annotator: Annotator | None = None,
) -> ASGIApp:
    """Return the server of a lake's pages.

    Parameters
    ----------
    viewers
        Identifies viewers and their roles.
    hosts
        Allowed host names. Otherwise another site could point its own name to this server, and read its pages (DNS
        rebinding).
    live
        Runs that are recorded on this machine, for viewers without a role.
    asker
        Answers SQL statements.
    saved
        Shows saved views, and saves them if annotations are allowed.
    annotator
        Takes annotations from viewers; None for a read-only server.
    """
    served = _Server(pages, viewers, live, asker, saved, annotator)
    routes = [
        Route("/login", served.log_in),
        Route(f"/{FOLDER}/{{name}}", served.asset),
        Route("/events", served.events),
        Route(f"/{EXPLORE}/", served.explore),
        Route(f"/{EXPLORE_HOME}", served.explore),
        Route(f"/{SWEEP_HOME}", served.sweep),
        Route(f"/{COMPARE_HOME}", served.compare),
        Route(f"/{MEDIA_HOME}", served.step_media),
        *(Route(f"/{EXPLORE}/{form}", partial(served.explored, form)) for form in FORMS),
        Route(f"/{ASK}/", served.ask),
        Route(f"/{ASK_HOME}", served.ask),
        Route(f"/{ASK_WORDS}", served.words),
        Route(f"/{ASK_ROWS}", served.rows, methods=["POST"]),
        Route(f"/{LIVE}/", served.live),
        Route(f"/{LIVE_HOME}", served.live),
        *(Route(f"/{path}", served.annotate, methods=["GET", "POST"]) for path in (f"{ANNOTATE}/", ANNOTATE_HOME)),
        *(Route(f"/{path}", served.saved, methods=["GET", "POST"]) for path in (f"{SAVED}/", SAVED_HOME)),
        Route("/{path:path}", served.page),
    ]
    posts = {f"/{path}" for path in (ASK_ROWS, *(_TAKING if annotator is not None else ()))}
    return Guard(Starlette(routes=routes, lifespan=served.lifespan), hosts, frozenset(posts))


class _Server:
    def __init__(
        self,
        pages: Pages,
        viewers: Viewers,
        live: LiveRuns,
        asker: Asker,
        saved: SavedPages,
        annotator: Annotator | None,
    ) -> None:
        self._pages, self._viewers, self._live, self._annotator = pages, viewers, live, annotator
        self._asker, self._saved = asker, saved
        self._limit, self._failures = RateLimit(_BURST, _PER_S), RateLimit(_FAILED_BURST, _FAILED_PER_S)
        self._library: asyncio.Task[bytes] | None = None

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Compile the templates, and make the chart library in the background, which takes seconds."""
        await run_in_threadpool(compile_templates)
        self._library = asyncio.create_task(run_in_threadpool(library))
        try:
            yield
        finally:
            self._library.cancel()
            self._pages.close()
            self._live.close()
            await self._asker.pool.close()

    async def asset(self, request: Request) -> Response:
        """Answer with a style sheet, a script, or the data of the search."""
        name = request.path_params["name"]
        if f"{FOLDER}/{name}" == DATA:
            return await self.page(request, DATA, "text/javascript; charset=utf-8")
        if name == library_name() and self._library is not None:
            data = await asyncio.shield(self._library)
        else:
            data = assets(is_served=True).get(name, b"")
        if not data:
            return PlainTextResponse("no such asset\n", 404)
        return Response(data, media_type=_TYPES[name.rpartition(".")[2]], headers=_FOREVER)

    async def log_in(self, request: Request) -> Response:
        """Move the token of an address into a cookie, so that later addresses lack it."""
        try:
            return await run_in_threadpool(self._viewers.log_in, request)
        except NotAllowedError as error:
            return _refusal("login", self._failed(request, error), Served(()))

    def _failed(self, request: Request, error: NotAllowedError) -> RanklakeError:
        """Return the error of a failed login, or `BusyError` after too many of its address."""
        address = request.client.host if request.client else ""
        return error if self._failures.take(address) else BusyError("too many tries: wait a minute")

    async def _viewer(self, request: Request) -> tuple[Viewer, Served]:
        """Return the viewer and their context for pages. Raises `NotAllowedError`, `RoleError`, `BusyError`."""
        try:
            viewer = await run_in_threadpool(self._viewers.viewer_of, request)
        except NotAllowedError as error:
            raise self._failed(request, error) from error
        if viewer.name and not self._limit.take(viewer.name):
            raise BusyError("too many requests: wait a moment")
        views, takes = ((EXPLORE, "Explore", EXPLORE_HOME), (ASK, "Ask", ASK_HOME)), self._annotator is not None
        if viewer.role is not None:
            about = f"Shown as role {viewer.role.name} sees it."
            return viewer, Served((*navigation(viewer.role), *views), about, takes=takes)
        return viewer, Served((*navigation(None), *views, (LIVE, "Live", LIVE_HOME)), is_live=True, takes=takes)

    async def annotate(self, request: Request) -> Response:
        """Answer with the page of a run's annotations, or take an annotation."""
        served = Served(())
        try:
            viewer, served = await self._viewer(request)
            annotator = _taking(self._annotator)
            questions = await run_in_threadpool(self._pages.questions, viewer.role)
            if request.method == "POST":
                body = await _body(request, MOST_BYTES)
                return RedirectResponse(await run_in_threadpool(annotator.take, questions, viewer, body), 303)
            run = request.query_params.get("run", "")
            page = await run_in_threadpool(annotator.page, questions, viewer, run)
            content = await run_in_threadpool(lambda: b"".join(parts_of(page, served)))
            return Response(content, media_type=_HTML)
        except Exception as error:  # noqa: BLE001 - as of other pages
            return _refusal(ANNOTATE_HOME, error, served)

    async def saved(self, request: Request) -> Response:
        """Answer with the page of saved views, or save one."""
        served = Served(())
        try:
            viewer, served = await self._viewer(request)
            if request.method == "POST":
                body = await _body(request, MOST_SAVED_BYTES)
                return RedirectResponse(await run_in_threadpool(self._saved.take, viewer, body), 303)
            page = await run_in_threadpool(self._saved.page, viewer, request.url.query)
            return Response(b"".join(parts_of(page, served)), media_type=_HTML)
        except Exception as error:  # noqa: BLE001 - as of other pages
            return _refusal(SAVED_HOME, error, served)

    async def ask(self, request: Request) -> Response:
        """Answer with the page on which a viewer asks in SQL."""
        served = Served(())
        try:
            viewer, served = await self._viewer(request)
            page = self._asker.page(viewer, Question.of(request.query_params))
            self._asker.pool.warm()
            return Response(b"".join(parts_of(page, served)), media_type=_HTML)
        except Exception as error:  # noqa: BLE001 - as of other pages
            return _refusal(ASK_HOME, error, served)

    async def words(self, request: Request) -> Response:
        """Answer with completions of a statement."""
        served = Served(())
        try:
            viewer, served = await self._viewer(request)
            words = await run_in_threadpool(self._asker.words, viewer, request.query_params)
            return Response(words, media_type="application/json")
        except Exception as error:  # noqa: BLE001 - as of other pages
            return _text_refusal(error, served)

    async def rows(self, request: Request) -> Response:
        """Answer with the rows of a statement, which is cancelled when the viewer leaves."""
        served = Served(())
        try:
            viewer, served = await self._viewer(request)
            query = self._asker.query(viewer, await _body(request, MOST_SQL_BYTES))
            data = await unless_gone(self._asker.pool.answer(query, viewer.name), request.is_disconnected)
            return Response(data, media_type=QUERY_FORMS[query.form][0])
        except Exception as error:  # noqa: BLE001 - as of other pages
            return _text_refusal(error, served)

    async def explore(self, request: Request) -> Response:
        """Answer with the page of a view of metrics, which then requests its points."""
        return await self._of_view(request, EXPLORE_HOME, View.of, lambda *of: Explorer(*of).page())

    async def sweep(self, request: Request) -> Response:
        """Answer with the page Sweep."""
        of_sweep = partial(View.of, is_sweep=True)
        return await self._of_view(request, SWEEP_HOME, of_sweep, lambda *of: Sweep(Explorer(*of)).page())

    async def compare(self, request: Request) -> Response:
        """Answer with the page of runs side by side."""
        return await self._of_view(request, COMPARE_HOME, View.of, lambda *of: ComparisonPage(Explorer(*of)).page())

    async def step_media(self, request: Request) -> Response:
        """Answer with the page of media by step, and of histograms."""
        return await self._of_view(request, MEDIA_HOME, StepMediaView.of, lambda *of: StepMediaPage(*of).page())

    async def explored(self, form: str, request: Request) -> Response:
        """Answer with the points of a view, or their SQL."""
        return await self._of_view(
            request, f"{EXPLORE}/{form}", View.of, lambda *of: rendered(Explorer(*of), form), form
        )

    async def _of_view(
        self,
        request: Request,
        path: str,
        view_of: Callable[[QueryParams], AnyView],
        make: Callable[[RunQuestions, AnyView], Page | bytes],
        form: str = "",
    ) -> Response:
        """Answer with a page or bytes for the view in an address; equal requests are computed once."""
        served = Served(())
        try:
            viewer, served = await self._viewer(request)
            view = view_of(request.query_params)

            def parts() -> Iterable[bytes]:
                result = make(self._pages.questions(viewer.role), view)
                return [result] if isinstance(result, bytes) else parts_of(result, served)

            draft = await run_in_threadpool(self._pages.draft, f"{path} {view!r}", viewer.role, served, parts)
            await _begun(draft)
        except Exception as error:  # noqa: BLE001 - as of other pages
            return _refusal(path, error, served)
        saved = {"Content-Disposition": f'attachment; filename="{form}"'} if form and form != "points.json" else None
        return StreamingResponse(_rest(draft, served), media_type=FORMS[form][0] if form else _HTML, headers=saved)

    async def live(self, request: Request) -> Response:
        """Answer with the page that follows a run while it records."""
        served = Served(())
        try:
            viewer, served = await self._viewer(request)
            _refuse_role(viewer.role)
            page = await run_in_threadpool(self._live.page)
            return Response(b"".join(parts_of(page, served)), media_type=_HTML)
        except Exception as error:  # noqa: BLE001 - as of other pages
            return _refusal(LIVE_HOME, error, served)

    async def events(self, request: Request) -> Response:
        """Answer with the live state of a run, as server-sent events."""
        try:
            viewer, _ = await self._viewer(request)
            _refuse_role(viewer.role)
        except RanklakeError as error:
            return _refusal("events", error, Served(()))
        run = request.query_params.get("run", "")
        return StreamingResponse(events(self._live, run, self._pages.mark), media_type="text/event-stream")

    async def page(self, request: Request, path: str = "", media_type: str = _HTML) -> Response:
        """Answer with a page, streamed while it is made."""
        path = path or request.path_params["path"]
        path = f"{path}{HOME}" if not path or path.endswith("/") else path
        served = Served(())
        try:
            viewer, served = await self._viewer(request)
            draft = await run_in_threadpool(self._pages.draft, path, viewer.role, served)
            await _begun(draft)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever asked is told, and the server goes on
            return _refusal(path, error, served)
        return StreamingResponse(_rest(draft, served), media_type=media_type)


def _taking(annotator: Annotator | None) -> Annotator:
    """Return the annotator. Raises `NoSuchPageError` on a read-only server."""
    if annotator is None:
        raise NoSuchPageError("nothing is taken", where=ANNOTATE)
    return annotator


async def _body(request: Request, most_bytes: int) -> bytes:
    """Return the body of a request. Raises `UnfitViewError` once it is too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            raise UnfitViewError(f"the form is longer than {most_bytes / 1024:.0f} KiB", where=request.url.path)
    return body


def _refuse_role(role: Role | None) -> None:
    """Raise `NoSuchPageError` for a role: rows outside of the lake cannot be filtered or masked."""
    if role is not None:
        raise NoSuchPageError("no such page", where=LIVE)


async def _begun(draft: Draft) -> None:
    """Wait for the first part of a page. Raises the error if there is none."""
    while not draft.parts and not draft.is_whole:  # noqa: ASYNC110 - a thread makes it, and any number wait
        await asyncio.sleep(_LOOK_S)
    if draft.error is not None and not draft.parts:
        raise draft.error


async def _rest(draft: Draft, served: Served) -> AsyncIterator[bytes]:
    """Yield the parts of a page as they are made, and the error that stopped it."""
    sent = 0
    while True:
        is_last = draft.is_whole  # before reading the parts, or the last would be lost
        if parts := draft.parts[sent:]:
            sent += len(parts)
            yield b"".join(parts)
        if is_last:
            if draft.error is not None:
                yield _fault_line(draft.error, served)
            return
        await asyncio.sleep(_LOOK_S)


def _reason(error: Exception, served: Served) -> str:
    """Return why a page cannot be made; without details for roles, since errors may contain hidden data."""
    return fault_text(error) if served.is_live else "Ask whoever runs the server."


def _fault_line(error: Exception, served: Served) -> bytes:
    text = f"The rest cannot be made: {escape(_reason(error, served))}"
    return f'<p class="verdict failing"><strong>{text}</strong></p>'.encode()


def _refusal(path: str, error: Exception, served: Served) -> Response:
    """Return an error page. Data hidden from a role is reported as missing."""
    status, title, text = 500, "This page cannot be made", _reason(error, served)
    if isinstance(error, NotAllowedError):
        return PlainTextResponse(f"{error}\n", 401)
    if isinstance(error, BusyError):
        return PlainTextResponse(f"{error}\n", 429, {"Retry-After": "1"})
    if isinstance(error, (NoSuchPageError, UnseenError)):
        status, title, text = 404, "Not there", "There is no such page, or not for you."
    elif isinstance(error, ForbiddenError):
        status, title, text = 403, "Not allowed", str(error)
    elif isinstance(error, (UnfitViewError, SavedViewError)):
        status, title, text = 400, "Not understood", str(error)
    elif isinstance(error, LakeError):
        status, title = 503, "The lake cannot be read now"
    elif isinstance(error, ChangedLakeError):
        status, title, text = 503, "The lake is changing", str(error)
    page = overview(path, title, "failing", text, path, lambda: {"lake": ""})
    return Response(b"".join(parts_of(page, served)), status, media_type=_HTML)


_TEXT_STATUS: Final = ((NotAllowedError, 401), (ForbiddenError, 403), (BusyError, 429), (LakeError, 503))


def _text_refusal(error: Exception, served: Served) -> Response:
    """Return the error of a missing answer, as one line."""
    status = next((status for kind, status in _TEXT_STATUS if isinstance(error, kind)), 400)
    if isinstance(error, LakeError):
        return PlainTextResponse(f"the lake cannot be read now: {_reason(error, served)}\n", status)
    if isinstance(error, RanklakeError):
        return PlainTextResponse(f"{error}\n", status)
    return PlainTextResponse(f"it cannot be answered: {_reason(error, served)}\n", 500)
