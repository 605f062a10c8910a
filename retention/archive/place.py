"""The place of archives: a folder or prefix of one lake, laid out as its tables are.

    <to>/ranklake-archive.json                         whose it is
    <to>/tables/<table>/date=<UTC date>/<name>.parquet data files; the SHA-256 of the bytes is part of the name
    <to>/manifests/<sha256>.json                       what one archive consists of (`manifest`)

So whatever reads data files of a lake reads those of an archive, too.
"""

import json
from typing import Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.listing import listed
from ranklake.lake.store.overlap import overlaps
from ranklake.lake.store.store import MARKER as LAKE_MARKER
from ranklake.lake.store.store import Lake
from ranklake.redaction.redact import has_credential
from ranklake.retention.proposals.statements import owner

MARKER: Final = "ranklake-archive.json"
FORMAT: Final = 1
_URI: Final = ("://", "/", "file:")


class ArchiveError(RanklakeError):
    """A place that archives cannot be in, or an archive that is not what was written. Nothing was removed."""


def place_fault(uri: str) -> str:
    """Return why a place cannot be one of archives, by its name; empty if it can."""
    if has_credential(uri):
        return "a credential stands in it"
    return "" if any(mark in uri[:8] for mark in _URI) else "it is neither a URI nor an absolute path"


def open_place(lake: Lake, uri: str) -> Lake:
    """Return a place of archives, reached as the lake is. Raises `LakeUnreachableError`."""
    return Lake.place(uri, lake.storage)


def claim(lake: Lake, uri: str) -> Lake:
    """Make a place this lake's, and return it; again changes nothing.

    Raises `ArchiveError` where it is another's, holds something else, or lies in the lake or around it.
    """
    fault = place_fault(uri)
    if fault:
        raise ArchiveError(f"no place for archives: {fault}", where=uri if "credential" not in fault else "to")
    place = open_place(lake, uri)
    if overlaps(lake, place):
        what = "the place lies in the lake or a spool, or around it"
        raise ArchiveError(what, where=uri, hint="give archives a folder or prefix of their own")
    if not place.fs.exists(place.path(MARKER)):
        if place.fs.exists(place.path(LAKE_MARKER)):
            raise ArchiveError("a lake is there", where=uri, hint="name an empty place")
        if any(not one.path.endswith(".tmp") for one in listed(place.fs, place.root)):
            raise ArchiveError("the place is not empty, and holds no archives", where=uri, hint="name an empty place")
        place.put_if_absent(MARKER, json.dumps({"format": FORMAT, "lake": owner(lake)}).encode())
    refuse_other(lake, place)
    return place


def refuse_other(lake: Lake, place: Lake) -> None:
    """Raise `ArchiveError` where a place is not this lake's."""
    try:
        said = json.loads(place.fs.cat_file(place.path(MARKER)))
        whose_lake, made = said["lake"], said["format"]
    except FileNotFoundError:
        hint = f"restore {MARKER} there; only this lake's archives are looked into"
        raise ArchiveError("no archives are there", where=place.uri, hint=hint) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArchiveError("what says whose archives these are cannot be read", where=place.uri) from None
    if made != FORMAT:
        raise ArchiveError(f"archives of format {made}, and {FORMAT} is known here", where=place.uri, hint="upgrade")
    if whose_lake != owner(lake):
        raise ArchiveError("another lake owns these archives", where=place.uri, hint="name another place")
