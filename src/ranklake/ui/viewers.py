"""Viewers of the pages, and their roles."""

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
    """The viewer is unknown, or may see nothing."""


class Viewer(NamedTuple):
    """A person or program that requests pages.

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
        """Answer to an address with a token."""


_KEPT_S: Final = 2.0


def remembered(role: Callable[[], Role | None]) -> Callable[[], Role | None]:
    """Cache a function for some seconds: a role is read from its file, and its grant from a table.

    A role that may no longer be used is refused with `RoleError`, even if it is cached.
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
    """All viewers have the rights of the account that runs the server, as on the command line.

    Parameters
    ----------
    role
        Function that returns the current definition of the role.
    """

    def __init__(self, role: Callable[[], Role | None]) -> None:
        self._role = role

    def viewer_of(self, request: Request) -> Viewer:
        """Return the role, without a name."""
        del request
        return Viewer(self._role())

    def log_in(self, request: Request) -> Response:
        """Refuse a login, since there is none."""
        del request
        return PlainTextResponse("no login is needed\n", 404)


_COOKIE: Final = "__Host-ranklake-ui"
"""Prefix of a cookie's name, for which a browser sends it only to this host, and only over TLS (or to its own machine),
but to all ports of the host."""
_HINT: Final = "open the address that was made for you"


class NamedRoles:
    """Current roles by name, for their permitted users.

    Parameters
    ----------
    refusal
        Function of role and user name that returns why the role may not be used; empty if it may.
    role
        Function that returns a role by its name. Raises `ranklake.lake.query.roles.RoleError`.
    note
        Called with role and user name for each login, for reviews of grants.
    """

    def __init__(
        self, refusal: Callable[[str, str], str], role: Callable[[str], Role | None], note: Callable[[str, str], None]
    ) -> None:
        self.refusal, self.note = refusal, note
        self._role = role
        self._known: dict[str, Callable[[], Role | None]] = {}

    def viewer(self, name: str, who: str) -> Viewer:
        """Return a viewer with a role. Raises `NotAllowedError` if the role cannot be used."""
        if reason := self.refusal(name, who):
            raise NotAllowedError(reason)
        if name not in self._known:
            self._known[name] = remembered(lambda: self._role(name))
        try:
            role = self._known[name]()
        except RanklakeError as error:
            raise NotAllowedError(f"role {name} cannot be used now") from error
        if role is None:  # a login always needs a role
            raise NotAllowedError(f"{who} has no role")
        return Viewer(role, who)


class TokenViewers:
    """Viewers identified by tokens in addresses, with the token's role until it expires.

    Parameters
    ----------
    keys, purpose
        Keys and purpose with which tokens are sealed: the pages of one lake.

    Attributes
    ----------
    cookie
        Name of the cookie: servers of several lakes on one host have one each.
    """

    def __init__(self, keys: Keyring, roles: NamedRoles, purpose: bytes) -> None:
        self._keys, self._roles, self._purpose = keys, roles, purpose
        self.cookie = f"{_COOKIE}-{hashlib.sha256(purpose).hexdigest()[:12]}"

    def viewer_of(self, request: Request) -> Viewer:
        """Return the holder of the token in the request's cookie. Raises `NotAllowedError` without a valid token."""
        name, who, _ = self._holder(request.cookies.get(self.cookie, ""))
        return self._roles.viewer(name, who)

    def log_in(self, request: Request) -> Response:
        """Move the token of an address into a cookie without access for scripts, and redirect to the first page."""
        token = request.query_params.get("token", "")
        name, who, until = self._holder(token)
        if reason := self._roles.refusal(name, who):
            raise NotAllowedError(reason)
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
