"""Who looks at the pages, and as which role."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ranklake.errors import RanklakeError
from ranklake.lake.query.roles import Role


class NotAllowedError(RanklakeError):
    """Nobody knows who asks, or whoever asks may look at nothing."""


class Viewers(Protocol):
    """Tells who asks."""

    def role_of(self, request: Request) -> Role | None:
        """Return the role as which pages are shown; None for all. Raises `NotAllowedError`."""

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

    def role_of(self, request: Request) -> Role | None:
        """Return the role."""
        del request
        return self._role()

    def log_in(self, request: Request) -> Response:
        """Say that there is nothing to log in to."""
        del request
        return PlainTextResponse("no login is needed\n", 404)
