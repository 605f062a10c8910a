"""Login by a proxy: its header names the user, and is trusted only from the proxy's addresses."""

import threading
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ranklake.ui.viewers import NamedRoles, NotAllowedError, TokenViewers, Viewer

_LONGEST_USER: Final = 320
"""Most characters of a user's name: the longest e-mail address."""
_NOTED_EVERY_S: Final = 3600.0


class ProxyViewers:
    """Viewers identified by a trusted proxy, with roles by name.

    Parameters
    ----------
    header
        The header in which the proxy names the user.
    proxies
        Addresses or networks from which that header is trusted. A request with the header from elsewhere is refused, as
        it went around the proxy.
    users
        Patterns of users, each with its role; the first that matches counts.
    tokens
        Viewers by token, for requests without the header; None where there are no tokens.
    """

    def __init__(
        self,
        header: str,
        proxies: Sequence[str],
        users: Sequence[tuple[str, str]],
        roles: NamedRoles,
        tokens: TokenViewers | None = None,
    ) -> None:
        self._header, self._users, self._roles, self._tokens = header, tuple(users), roles, tokens
        self._networks = [ip_network(proxy, strict=False) for proxy in proxies]
        self._noted_at_s: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def viewer_of(self, request: Request) -> Viewer:
        """Return the user whom the proxy names, else the holder of a token. Raises `NotAllowedError`."""
        names = request.headers.getlist(self._header)
        if not names:
            if self._tokens is None:
                raise NotAllowedError("nobody is logged in", hint="come through the proxy")
            return self._tokens.viewer_of(request)
        if not self._is_trusted(request):
            raise NotAllowedError(f"{self._header} is believed from the proxy alone")
        user = names[0].strip()
        # A second header, or a list, may come from the proxy's client, and is not trusted.
        if len(names) > 1 or not user or len(user) > _LONGEST_USER or "," in user or not user.isprintable():
            raise NotAllowedError(f"{self._header} does not name one user")
        role = next((role for pattern, role in self._users if fnmatchcase(user.casefold(), pattern.casefold())), "")
        if not role:
            raise NotAllowedError("no role is for this user", hint="ask whoever runs the server")
        viewer = self._roles.viewer(role, user)
        self._note(role, user)
        return viewer

    def log_in(self, request: Request) -> Response:
        """Return the answer to a request whose address holds a token."""
        if self._tokens is None:
            return PlainTextResponse("log in at the proxy\n", 404)
        return self._tokens.log_in(request)

    def _is_trusted(self, request: Request) -> bool:
        """Whether a request comes from a proxy: by the connection's address, whatever its headers say."""
        try:
            address = ip_address(request.client.host if request.client else "")
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def _note(self, role: str, user: str) -> None:
        """Record a login, at most once an hour: every request has the proxy's header."""
        with self._lock:
            now = time.monotonic()
            if now - self._noted_at_s.get((role, user), -_NOTED_EVERY_S) < _NOTED_EVERY_S:
                return
            self._noted_at_s[role, user] = now
        self._roles.note(role, user)
