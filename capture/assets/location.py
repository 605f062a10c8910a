"""Places: where files are, as the training code names them and as others can find them."""

import os
from typing import Final

from ranklake.capture.common.values import redacted, text
from ranklake.redaction.redact import redact_uri

Place = str | os.PathLike[str]
_LONGEST: Final = 1024


def short_text(value: object) -> str | None:
    """Return a text as columns have it, redacted and cut; None for None."""
    return None if value is None else redacted(value, _LONGEST)


def shown_place(place: Place) -> str:
    """Return a place as others can find it: a URI without its user, or an absolute path."""
    shown = os.fspath(place)
    return text(redact_uri(text(shown if "://" in shown else os.path.abspath(shown))), 4096)  # noqa: PTH100 - links stay


def last_part(uri: str) -> str:
    """Return the last part of a path or a URI."""
    return uri.rstrip("/").rpartition("/")[2]


def said_digest(sha256: str) -> str | None:
    """Return a SHA-256 that somebody told as rows have it: lower case, without the algorithm's name before it."""
    return redacted(sha256.strip().lower().removeprefix("sha256:"), 64)
