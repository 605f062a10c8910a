"""Fetch: gets one page by HTTP, within limits of time and size, and without following redirects."""

import base64
import http.client
import time
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from ranklake.redaction.redact import redact_names

MOST_BYTES: Final = 16 << 20
TIMEOUT_S: Final = 10.0
_BLOCK: Final = 1 << 16


class FetchError(Exception):
    """A page cannot be had; its text says why, without the URL's credentials."""


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: another place was not named by the user, and may be anyone's."""

    def redirect_request(self, *_: Any) -> None:  # noqa: ANN401 - as the class has it
        return None


def shown(url: str) -> str:
    """Return a URL without user, password, query and fragment, any of which may hold a secret; so may its path."""
    parts = _split(url)
    return str(redact_names(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))))


def fetch(url: str, timeout_s: float = TIMEOUT_S, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a page.

    Parameters
    ----------
    url
        ``http://`` or ``https://``; a user and a password in it are sent as basic authentication.
    timeout_s
        For all of it: an endpoint that drips is as bad as one that hangs.

    Raises
    ------
    FetchError
        It cannot be had.
    """
    parts = _split(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise FetchError("not an http:// or https:// URL")
    plain = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    request = urllib.request.Request(plain, headers={"Accept": "text/plain;version=0.0.4"})  # noqa: S310 - checked above
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
    deadline = time.monotonic() + timeout_s
    opener = urllib.request.build_opener(_Stay, urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            raw = _read(answer, deadline, most_bytes)
    except urllib.error.HTTPError as error:
        what = "redirects elsewhere" if 300 <= error.code < 400 else f"answers {error.code}"  # noqa: PLR2004 - HTTP's
        raise FetchError(what) from error
    except http.client.IncompleteRead as error:
        raise FetchError("the page was cut") from error
    except TimeoutError as error:
        raise FetchError(f"no answer in {timeout_s:g} s") from error
    except urllib.error.URLError as error:
        raise FetchError(_told(error.reason, timeout_s)) from error
    except (OSError, http.client.HTTPException) as error:
        raise FetchError(_told(error, timeout_s)) from error
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise FetchError("the page is not text in UTF-8") from error


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise FetchError("not a URL") from error


def _read(answer: http.client.HTTPResponse, deadline: float, most_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while block := answer.read1(_BLOCK):
        parts.append(block)
        size += len(block)
        if size > most_bytes:
            raise FetchError(f"the page has more than {most_bytes} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError
    if answer.length:  # bytes that were promised
        raise http.client.IncompleteRead(b"")
    return b"".join(parts)


def _told(error: object, timeout_s: float) -> str:
    """Return in a few words why; an error's own text may quote what was sent."""
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout_s:g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
