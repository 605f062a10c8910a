"""Places of subjects' keys: the first place and its copies, each with a marker, and the files with keys.

    <place>/ranklake-subjects.json     the owner, an id of the lookup key, and the id of this place; the marker of the
                                       first place also lists all other places

A listed place is a copy wherever it is mounted. If a listed place is missing, that is an error and no new marker is
written, since the missing copy may still have keys that were deleted in the others.
"""

import json
import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ranklake.lake.store.files import listed, overwrite
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.posture import overlaps
from ranklake.lake.store.store import Store
from ranklake.retention.proposals.identities import owner
from ranklake.retention.subjects.keys import FORMAT, KNOWN, SubjectKeysError, known_columns

MARKER: Final = "ranklake-subjects.json"
LOOKUP_DIGITS: Final = 40
_ID_BYTES: Final = 8
_LOOKUP: Final = re.compile(rf"(?<![0-9a-f])[0-9a-f]{{{LOOKUP_DIGITS}}}(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class Marker:
    """The marker of a place: the owner, the id of the lookup key, the place's id, and the URIs of all places by id."""

    lake: str
    looked_up_by: str
    id: str = ""
    places: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: bytes) -> "Marker":
        """Return the marker in JSON bytes; a marker without an owner if they are damaged."""
        try:
            facts = json.loads(raw)
            if facts["format"] != FORMAT:
                return cls("", "")
            places = {str(name): [str(uri) for uri in uris] for name, uris in facts["places"].items()}
            return cls(str(facts["lake"]), str(facts["looked_up_by"]), str(facts["place"]), places)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls("", "")

    def raw(self) -> bytes:
        """Return the marker as JSON bytes."""
        facts: dict[str, Any] = {"format": FORMAT, "lake": self.lake, "looked_up_by": self.looked_up_by}
        return json.dumps({**facts, "place": self.id, "places": self.places}, sort_keys=True).encode()


def claim(lake: Lake, places: Sequence[Store], looked_up_by: str) -> list[str]:
    """Mark places as places of a lake's keys; return the URIs of known copies that are not configured.

    Parameters
    ----------
    places
        The configured places, the first one first.
    looked_up_by
        Id of the lookup key.

    Raises `SubjectKeysError` if a place cannot hold keys, holds those of another lake, or is missing.
    """
    present = [_marker(lake, place, looked_up_by) for place in places]
    uris_by_id = {} if present[0] is None else dict(present[0].places)
    if present[0] is None and known_columns(lake.store) and _marker(lake, places[0], looked_up_by) is None:
        hint = (
            f"mount or restore the place; if it is lost for good, remove {lake.path(KNOWN)}: what those keys sealed "
            "stays sealed"
        )
        raise SubjectKeysError("the keys of subjects are not there", where=places[0].uri, hint=hint)
    known_uris = {uri for uris in uris_by_id.values() for uri in uris}
    for place, marker in zip(places, present, strict=True):
        if marker is None and place.uri in known_uris:
            hint = f"mount or restore it; if it is gone for good, take it out of {places[0].path(MARKER)}"
            raise SubjectKeysError("a copy of the keys of subjects is not there", where=place.uri, hint=hint)
    # Copies get their markers before the first place, which lists them, since other processes may do the same.
    pairs = zip(reversed(places), reversed(present), strict=True)
    markers = [marker or _make_marker(lake, place, looked_up_by) for place, marker in pairs][::-1]
    uris_by_id |= markers[0].places
    ids: list[str] = []
    for marker in markers:  # a folder that was copied with its marker gets a new id
        ids.append(_new_id() if marker.id in ids else marker.id)
    for place, place_id in zip(places, ids, strict=True):
        uris = uris_by_id.get(place_id, [])
        uris_by_id[place_id] = uris if place.uri in uris else [*uris, place.uri]
    for index, (place, marker) in enumerate(zip(places, markers, strict=True)):
        new = Marker(owner(lake.store), looked_up_by, ids[index], {} if index else uris_by_id)
        if new != marker:
            overwrite(place.fs, place.path(MARKER), new.raw(), local=place.is_local)
    return sorted({uris[-1] for place_id, uris in uris_by_id.items() if place_id not in ids and uris})


def _make_marker(lake: Lake, place: Store, looked_up_by: str) -> Marker:
    """Write the marker of a place unless it has one, and return it. Of concurrent writers the first one's counts."""
    while (marker := _marker(lake, place, looked_up_by)) is None:
        place.put_if_absent(MARKER, Marker(owner(lake.store), looked_up_by, _new_id()).raw())
    return marker


def _new_id() -> str:
    return secrets.token_hex(_ID_BYTES)


def _marker(lake: Lake, place: Store, looked_up_by: str) -> Marker | None:
    """Return the marker of a place; None if it has none. Raises `SubjectKeysError` if it is not this lake's."""
    if overlaps(lake, place):
        hint = "give keys a place of their own: whoever copies the lake must not copy them"
        message = "keys of subjects lie in the lake or a spool, or around it"
        raise SubjectKeysError(message, where=place.uri, hint=hint)
    try:
        marker = Marker.parse(place.fs.cat_file(place.path(MARKER)))
    except FileNotFoundError:
        return None
    if marker.lake != owner(lake.store):
        raise SubjectKeysError("no keys of this lake's subjects are there", where=place.uri, hint="name another place")
    if marker.looked_up_by != looked_up_by:  # otherwise every subject would get a second key
        message = f"the keys in {place.uri} are looked up by another key than the last of this keyring"
        hint = "write a new key before the others, and leave the oldest where it was: last"
        raise SubjectKeysError(message, where="[subjects] wrap", hint=hint)
    return marker


def lookup_of(name: str) -> str:
    """Return the lookup in a file's name; empty if it is no file with a key."""
    match = _LOOKUP.search(name.rpartition("/")[2])
    return match[0] if match else ""


def key_files(place: Store, lookups: Collection[str] | None = None) -> Iterator[str]:
    """Yield the paths of files with keys in a place, of the given lookups or of all.

    Every name that contains a lookup counts, including temporary files and copies that somebody made.
    """
    for file in listed(place.fs, place.root):
        name = file.path.removeprefix(f"{place.root}/")
        lookup = lookup_of(name)
        if lookup and (lookups is None or lookup in lookups):
            yield name
