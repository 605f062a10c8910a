"""Protection of the server: refuses cross-site requests, sets security headers, checks form tokens, limits requests."""

import hmac
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ranklake.errors import RanklakeError
from ranklake.ui.viewers import Viewer

_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_NEVER: Final = {"Cache-Control": "no-store"}


class Guard:
    """Refuses cross-site requests, and adds security headers to each answer.

    Parameters
    ----------
    hosts
        Allowed host names.
    posts
        Paths of forms.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], posts: frozenset[str]) -> None:
        self._app, self._hosts, self._posts = app, hosts, posts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", _NEVER["Cache-Control"])
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        if host_name(request.headers.get("host", "")) not in self._hosts:
            return PlainTextResponse(
                "ranklake ui is not asked by this name; if it is its own, start it with --name\n", 421
            )
        mode, site = (request.headers.get(f"sec-fetch-{name}", "") for name in ("mode", "site"))
        if request.method == "POST" and request.url.path in self._posts:
            # Without a referrer, a browser sends origin "null" with forms of our own pages.
            if site != "same-origin" and (site or not self._is_own(request.headers.get("origin", ""))):
                return PlainTextResponse("not for pages of other sites\n", 403)
            return None
        if request.method not in {"GET", "HEAD"}:
            return PlainTextResponse("read-only\n", 405, {"Allow": "GET, HEAD"})
        # Another site's page may embed ours, with the rights of its viewer.
        if site in {"cross-site", "same-site"} and mode != "navigate":
            return PlainTextResponse("not for pages of other sites\n", 403)
        return None

    def _is_own(self, origin: str) -> bool:
        """Whether a request comes from a page of this server; old browsers do not tell."""
        return not origin or host_name(origin.rpartition("//")[2]) in self._hosts


def host_name(host: str) -> str:
    """Return the name in a Host header, without port, in lower case."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).strip("[]").lower()


_MOST_NAMES: Final = 10_000


class BusyError(RanklakeError):
    """A client exceeds its limit of requests."""


class RateLimit:
    """A token bucket for each client's name.

    Parameters
    ----------
    burst
        Most requests at once.
    per_s
        Requests that a bucket refills per second.
    """

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._left: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, name: str) -> bool:
        """Take a token from a client's bucket; False if it is empty."""
        with self._lock:
            now = time.monotonic()
            left, filled_at_s = self._left.pop(name, (self._burst, now))
            left = min(self._burst, left + (now - filled_at_s) * self._per_s)
            if len(self._left) >= _MOST_NAMES:  # drop the least recent: clients may have many addresses
                del self._left[next(iter(self._left))]
            self._left[name] = max(left - 1, 0.0) if left >= 1 else left, now
            return left >= 1


class ForbiddenError(RanklakeError):
    """The viewer lacks the right, or the form is not from their own page."""


class FormTokens:
    """A token for each viewer, valid until the server ends."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def token(self, viewer: Viewer) -> str:
        """Return the token of a viewer."""
        identity = f"{viewer.name}\0{'' if viewer.role is None else viewer.role.name}"
        return hmac.new(self._secret, identity.encode("utf-8", "replace"), "sha256").hexdigest()

    def check(self, viewer: Viewer, token: str) -> None:
        """Raise `ForbiddenError` unless the token is the viewer's."""
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.token(viewer).encode()):
            raise ForbiddenError("this form is not from a page of yours, or the server was started again: reload it")
