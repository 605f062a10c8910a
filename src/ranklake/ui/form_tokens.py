"""Tokens in the forms of a server's pages, which no page of another site can know."""

import hmac
import secrets

from ranklake.errors import RanklakeError
from ranklake.ui.viewers import Viewer


class ForbiddenError(RanklakeError):
    """The viewer may not do it, or the form is not from a page of theirs."""


class FormTokens:
    """A token for each viewer of a server, good until the server ends."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def token(self, viewer: Viewer) -> str:
        """Return the token of a viewer."""
        identity = f"{viewer.name}\0{'' if viewer.role is None else viewer.role.name}"
        return hmac.new(self._secret, identity.encode("utf-8", "replace"), "sha256").hexdigest()

    def check(self, viewer: Viewer, token: str) -> None:
        """Raise `ForbiddenError` for any other token than the viewer's."""
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.token(viewer).encode()):
            raise ForbiddenError("this form is not from a page of yours, or the server was started again: reload it")
