"""Places that a URI from recorded data may refer to.

Recorded URIs are not trusted: opening any of them could read any file of this machine, or send credentials to any host.
So a place is opened only if the operator allows it (``[artifacts] allow``), if the command line names it, or if it is
in the lake or the spool.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ranklake.errors import RanklakeError
from ranklake.redaction.redact import redact_uri

_SAME: Final = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "adl": "az"}


class NotAllowedError(RanklakeError):
    """A place that the configuration does not allow to be opened."""


@dataclass(frozen=True, slots=True)
class AllowedPlaces:
    """Places that may be opened.

    Attributes
    ----------
    places
        Folders, URIs of buckets, hosts or folders in them, or a scheme alone such as ``s3://``; everything below them
        is allowed, too.
    named
        Places on the command line; exactly these are allowed.
    closed
        Places that are never opened, nor places in them or around them.
    """

    places: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()

    def check(self, uri: str) -> None:
        """Raise `NotAllowedError` unless a place may be opened."""
        if any(_is_below(uri, place) or _is_below(place, uri) for place in self.closed):
            hint = "share rows of tables: ranklake share ROLE --to URI"
            raise NotAllowedError(
                "that place holds rows, and they are shared otherwise", where=redact_uri(uri), hint=hint
            )
        if uri in self.named or any(_is_below(uri, place) for place in self.places if place):
            return
        hint = "name the place with --at, or allow it: [artifacts] allow = [...] in ranklake.toml"
        raise NotAllowedError("the place that was recorded is not allowed to open", where=redact_uri(uri), hint=hint)

    def check_within(self, folder: str, path: str) -> None:
        """Raise `NotAllowedError` if a link in a local folder leads to a place that may not be opened."""
        file = os.path.realpath(os.path.join(folder, path))  # noqa: PTH118 - called up to a million times
        if not f"{file}/".startswith(f"{os.path.realpath(folder).rstrip('/')}/"):
            self.check(file)


def allowed_places(places: Iterable[str], named: Iterable[str], closed: Iterable[str] = ()) -> AllowedPlaces:
    """Return the allowed places; empty ones are dropped."""
    return AllowedPlaces(*(tuple(filter(None, uris)) for uris in (places, named, closed)))


def _is_below(uri: str, place: str) -> bool:
    if "::" in uri or "\0" in uri:  # fsspec would split at `::` and open the second part; a path has no NUL
        return False
    item, other = _parts(uri), _parts(place)
    if item is None or other is None or item[0] != other[0]:
        return False
    return item[1][: len(other[1])] == other[1]


def _parts(uri: str) -> tuple[str, list[str]] | None:
    """Return scheme and path parts of a place; links of local places are resolved.

    None if clients of stores might resolve it to another place: they drop single dots and the text after
    ``?versionId=``.
    """
    if "\0" in uri:
        return None
    scheme, mark, rest = uri.partition("://")
    if not mark:
        scheme, rest = "file", uri
    scheme = _SAME.get(scheme.lower(), scheme.lower())
    if scheme in {"file", "local"}:
        return "file", [part for part in os.path.realpath(rest).split("/") if part]
    host, _, path = rest.partition("/")
    parts = [part for part in path.split("/") if part]
    unsure = ("%2e", "?versionid=", "\\")
    if {".", ".."} & set(parts) or any(text in rest.lower() for text in unsure):
        return None
    return scheme, [host.lower(), *parts] if host else parts
