"""Who looks at the pages, and as which role."""

import hashlib
import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from ranklake.errors import RanklakeError
from ranklake.lake.audit import clock
from ranklake.lake.query.roles import Role
from ranklake.retention.shares.server.links import TokenError, open_token
from ranklake.segments.keys import Keyring


class NotAllowedError(RanklakeError):
    """Nobody knows who asks, or whoever asks may look at nothing."""


class Viewer(NamedTuple):
    """A person or program that asks for pages.

    Attributes
    ----------
    role
        Role whose view of the tables the pages show; None for all rows and columns.
    name
        Name of the viewer; empty for the account that runs the server.
    """

    role: Role | None
    name: str = ""


class Viewers(Protocol):
    """Tells who asks."""

    def viewer_of(self, request: Request) -> Viewer:
        """Return the viewer of a request. Raises `NotAllowedError`."""

    def log_in(self, request: Request) -> Response:
        """Answer to an address that holds a token."""


_KEPT_S: Final = 2.0


def remembered(role: Callable[[], Role | None]) -> Callable[[], Role | None]:
    """Return what gives the same for some seconds: a role is read from its file, and its grant from a table.

    A role that may no longer be used is refused, with `RoleError`, whatever was remembered.
    """
    at, known = -_KEPT_S, None
    lock = threading.Lock()

    def role_now() -> Role | None:
        nonlocal at, known
        with lock:
            if time.monotonic() - at >= _KEPT_S:
                known = role()
                at = time.monotonic()
        if known is not None:
            known.refuse_ended(datetime.now(UTC).date())
        return known

    return role_now


class Everybody:
    """Whoever can ask sees the same: the account that runs the server, as on the command line.

    Parameters
    ----------
    role
        Returns the role, as it is defined now.
    """

    def __init__(self, role: Callable[[], Role | None]) -> None:
        self._role = role

    def viewer_of(self, request: Request) -> Viewer:
        """Return the role, without a name."""
        del request
        return Viewer(self._role())

    def log_in(self, request: Request) -> Response:
        """Say that there is nothing to log in to."""
        del request
        return PlainTextResponse("no login is needed\n", 404)


_COOKIE: Final = "__Host-ranklake-ui"
"""Beginning of a cookie's name. A browser keeps it for this host alone, and sends it by TLS alone (and to its own
machine), but to all ports of the host."""
_HINT: Final = "open the address that was made for you"


class NamedRoles:
    """Roles by name, as they are defined now, for those who may use them.

    Parameters
    ----------
    refusal
        Says why somebody may not use a role now, given the role and the name; empty where they may.
    role
        Returns a role by its name. Raises `ranklake.lake.query.roles.RoleError`.
    note
        Told of each login: the role and the name. Reviews of grants go by that.
    """

    def __init__(
        self, refusal: Callable[[str, str], str], role: Callable[[str], Role | None], note: Callable[[str, str], None]
    ) -> None:
        self.refusal, self.note = refusal, note
        self._role = role
        self._known: dict[str, Callable[[], Role | None]] = {}

    def viewer(self, name: str, who: str) -> Viewer:
        """Return a viewer with a role. Raises `NotAllowedError` where the role cannot be used now."""
        if why := self.refusal(name, who):
            raise NotAllowedError(why)
        if name not in self._known:
            self._known[name] = remembered(lambda: self._role(name))
        try:
            role = self._known[name]()
        except RanklakeError as error:
            raise NotAllowedError(f"role {name} cannot be used now") from error
        if role is None:  # nobody who has to log in may see all that there is
            raise NotAllowedError(f"{who} has no role")
        return Viewer(role, who)


class TokenViewers:
    """Viewers as tokens in addresses name them, each with the token's role until it expires; others see nothing.

    Parameters
    ----------
    keys, purpose
        What the addresses were sealed with, and for: the pages of one lake.

    Attributes
    ----------
    cookie
        Name of the cookie: servers of several lakes on one host have one each.
    """

    def __init__(self, keys: Keyring, roles: NamedRoles, purpose: bytes) -> None:
        self._keys, self._roles, self._purpose = keys, roles, purpose
        self.cookie = f"{_COOKIE}-{hashlib.sha256(purpose).hexdigest()[:12]}"

    def viewer_of(self, request: Request) -> Viewer:
        """Return the holder of the token in the request's cookie. Raises `NotAllowedError` where none is good."""
        name, who, _ = self._holder(request.cookies.get(self.cookie, ""))
        return self._roles.viewer(name, who)

    def log_in(self, request: Request) -> Response:
        """Take the token of an address into a cookie, which no script reads, and lead to the first page."""
        token = request.query_params.get("token", "")
        name, who, until = self._holder(token)
        if why := self._roles.refusal(name, who):
            raise NotAllowedError(why)
        self._roles.note(name, who)
        answer = RedirectResponse("./", 303)
        age_s = max(1, math.floor((until - clock.now()).total_seconds()))
        answer.set_cookie(self.cookie, token, max_age=age_s, path="/", secure=True, httponly=True, samesite="lax")
        return answer

    def _holder(self, token: str) -> tuple[str, str, datetime]:
        """Return role, name and end of a token. Raises `NotAllowedError`."""
        if not token:
            raise NotAllowedError("nobody is logged in", hint=_HINT)
        try:
            facts = open_token(self._keys, self._purpose, token, clock.now())
        except TokenError as error:
            raise NotAllowedError(error.what, hint=_HINT) from None
        name, who = str(facts.get("role") or ""), str(facts.get("to") or "")
        if not name:
            raise NotAllowedError("this token has no role")
        return name, who, datetime.fromisoformat(str(facts["until"]))
