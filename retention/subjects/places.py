"""Places of keys: the first, and copies of it, each known by a marker; and the files with keys in them.

    <place>/ranklake-subjects.json     whose keys these are, by which key of the keyring they are looked up, and what
                                       this place is called; the first one's names all others, too

A place that is named there counts as a copy wherever it is mounted. One that is not there is an error, and is not begun
again: what is forgotten in the others would be there still.
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
    """What a place says of itself: its id, and the URIs under which each place of these keys was seen, by its id."""

    lake: str
    looked_up_by: str
    id: str = ""
    places: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: bytes) -> "Marker":
        """Return what bytes say; of damaged ones, that they are nobody's."""
        try:
            facts = json.loads(raw)
            if facts["format"] != FORMAT:
                return cls("", "")
            places = {str(name): [str(uri) for uri in uris] for name, uris in facts["places"].items()}
            return cls(str(facts["lake"]), str(facts["looked_up_by"]), str(facts["place"]), places)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls("", "")

    def raw(self) -> bytes:
        """Return its bytes."""
        facts: dict[str, Any] = {"format": FORMAT, "lake": self.lake, "looked_up_by": self.looked_up_by}
        return json.dumps({**facts, "place": self.id, "places": self.places}, sort_keys=True).encode()


def claim(lake: Lake, places: Sequence[Store], looked_up_by: str) -> list[str]:
    """Ensure that places are of a lake's keys; return the URIs of copies that were made and are not among them.

    Parameters
    ----------
    places
        As configured, the first one first.
    looked_up_by
        What tells the key by which subjects are looked up from others.

    Raises `SubjectKeysError` where one is no place for keys, has others, or is not there any more.
    """
    present = [_marker(lake, place, looked_up_by) for place in places]
    known = {} if present[0] is None else dict(present[0].places)
    if present[0] is None and known_columns(lake.store) and _marker(lake, places[0], looked_up_by) is None:
        hint = (
            f"mount or restore the place; if it is lost for good, remove {lake.path(KNOWN)}: what those keys sealed "
            "stays sealed"
        )
        raise SubjectKeysError("the keys of subjects are not there", where=places[0].uri, hint=hint)
    seen = {uri for uris in known.values() for uri in uris}
    for place, marker in zip(places, present, strict=True):
        if marker is None and place.uri in seen:
            hint = f"mount or restore it; if it is gone for good, take it out of {places[0].path(MARKER)}"
            raise SubjectKeysError("a copy of the keys of subjects is not there", where=place.uri, hint=hint)
    # copies before the place that names them: others may be at it
    pairs = zip(reversed(places), reversed(present), strict=True)
    markers = [marker or _begun(lake, place, looked_up_by) for place, marker in pairs][::-1]
    known |= markers[0].places
    ids: list[str] = []
    for marker in markers:  # a folder that was copied with its marker is another place
        ids.append(_new_id() if marker.id in ids else marker.id)
    for place, name in zip(places, ids, strict=True):
        uris = known.get(name, [])
        known[name] = uris if place.uri in uris else [*uris, place.uri]
    for at, (place, marker) in enumerate(zip(places, markers, strict=True)):
        made = Marker(owner(lake.store), looked_up_by, ids[at], {} if at else known)
        if made != marker:
            overwrite(place.fs, place.path(MARKER), made.raw(), local=place.is_local)
    return sorted({uris[-1] for name, uris in known.items() if name not in ids and uris})


def _begun(lake: Lake, place: Store, looked_up_by: str) -> Marker:
    """Return the marker of a place, made where it has none: of processes that make it at once, the first one's."""
    while (marker := _marker(lake, place, looked_up_by)) is None:
        place.put_if_absent(MARKER, Marker(owner(lake.store), looked_up_by, _new_id()).raw())
    return marker


def _new_id() -> str:
    return secrets.token_hex(_ID_BYTES)


def _marker(lake: Lake, place: Store, looked_up_by: str) -> Marker | None:
    """Return the marker of a place; None where it has none. Raises `SubjectKeysError` where it is not this lake's."""
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
    if marker.looked_up_by != looked_up_by:  # else everybody would get a second key, never forgotten
        message = f"the keys in {place.uri} are looked up by another key than the last of this keyring"
        hint = "write a new key before the others, and leave the oldest where it was: last"
        raise SubjectKeysError(message, where="[subjects] wrap", hint=hint)
    return marker


def lookup_of(name: str) -> str:
    """Return under what a file keeps the key of a subject; empty where it keeps none."""
    match = _LOOKUP.search(name.rpartition("/")[2])
    return match[0] if match else ""


def key_files(place: Store, lookups: Collection[str] | None = None) -> Iterator[str]:
    """Yield the files with keys, of some subjects or all, by their paths in the place.

    Whatever they are called beside: what a death left of writing one, and copies that somebody made there, count.
    """
    for file in listed(place.fs, place.root):
        name = file.path.removeprefix(f"{place.root}/")
        lookup = lookup_of(name)
        if lookup and (lookups is None or lookup in lookups):
            yield name
