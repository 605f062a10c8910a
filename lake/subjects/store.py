"""Where keys of subjects are: a folder or prefix outside of the lake, and copies of it that the operator names.

    <keys>/ranklake-subjects.json     whose keys these are, and by which key of the keyring they are looked up
    <keys>/<lookup>.key               a key, wrapped; the name is a keyed hash of whom it is of
    <lake>/forgotten/<key id>         a key that is forgotten: one that comes back, from a backup, is no key any more
    <lake>/subjects.json              columns that were ever stored under keys

A key is made once (put-if-absent), whoever is at it beside; it is forgotten by a mark in the lake first, and then gone
from every place. Killed anywhere between, the next call goes on. What the lake has says nothing of whom a key was of.
"""

import hmac
import json
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final
from unicodedata import normalize

from ranklake.lake.governance.statements import owner
from ranklake.lake.storage.listing import listed
from ranklake.lake.storage.overlap import overlaps
from ranklake.lake.storage.reachability import LakeError
from ranklake.lake.storage.removal import delete
from ranklake.lake.storage.rewriting import overwrite
from ranklake.lake.storage.store import Lake
from ranklake.lake.subjects.keys import KEY_BYTES, SubjectKey
from ranklake.segments.envelope import ID_BYTES, MAGIC, NotAuthenticError, decrypt, encrypt
from ranklake.segments.keys import read_keyring

if TYPE_CHECKING:
    from ranklake.segments.keys import Keyring

MARKER: Final = "ranklake-subjects.json"
KNOWN: Final = "subjects.json"
FORGOTTEN: Final = "forgotten"
FORMAT: Final = 1
_ENDING: Final = ".key"
_BOND: Final = b"ranklake subject 1: "
_LOOKED_UP: Final = b"\0ranklake subject 1: looked up by"
_LOOKUP_DIGITS: Final = 40


class SubjectKeysError(LakeError):
    """Keys of subjects that are not there, or not what was written. Nothing was stored, and nothing forgotten."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file of a place of keys: its name, and the key in it.

    `wrong` says why there is none; `is_foreign` whether a key that is not in the keyring wrapped it.
    """

    place: Lake
    name: str
    key: SubjectKey | None
    wrong: str = ""
    is_foreign: bool = False


class KeyStore:
    """The keys of a lake's subjects, as configured.

    Parameters
    ----------
    lake
        Whose ``[subjects]`` names keys, copies and what wraps them.

    Raises `SubjectKeysError` where there are none though the lake has columns under such keys, or another lake's are
    there, and `ranklake.segments.envelope.MissingKeyError`.
    """

    def __init__(self, lake: Lake) -> None:
        section = lake.config.subjects
        if not (section.keys and section.wrap):
            mend = "name keys and wrap under [subjects] in ranklake.toml, as whoever stored these columns did"
            what = "columns are under keys of subjects, and no keys are configured"
            raise SubjectKeysError(what, where=lake.uri, mend=mend)
        self.lake = lake
        self.places = [Lake.place(uri, lake.storage) for uri in (section.keys, *section.copies)]
        self._ring: Keyring = read_keyring(section.wrap)
        self._lookup_secret = self._ring.keys[-1].subject_secret
        self._known: dict[str, SubjectKey] = {}
        for at, place in enumerate(self.places):
            self._claim(place, is_copy=at > 0)

    def of(self, subject: str) -> SubjectKey:
        """Return the key of a subject, made where there is none.

        Raises `SubjectKeysError` where it is there and damaged in every place: another would be another person's.
        """
        lookup = self.lookup(subject)
        if lookup not in self._known:
            self._known[lookup] = self._found(lookup) or self._made(lookup)
        return self._known[lookup]

    def find(self, subject: str) -> SubjectKey | None:
        """Return the key of a subject; None where there is none (any more). Raises as `of`."""
        return self._found(self.lookup(subject))

    def forget(self, subjects: Collection[str]) -> int:
        """Forget the keys of some subjects in every place; return how many. Again changes nothing.

        Raises what the stores raise; whoever dies on the way, or cannot reach a place, has to come again.
        """
        self._known.clear()
        lookups = {self.lookup(one) for one in subjects}
        gone = set()
        for place in self.places:
            for name in self._names(place, lookups):
                one = self._read(place, name)
                if one.is_foreign:  # it could not be told from others when it comes back
                    mend = "add the key that wraps it to the keyring"
                    raise SubjectKeysError(f"a subject's key {one.wrong}", where=place.path(name), mend=mend)
                if one.key is not None:
                    self.lake.put_if_absent(f"{FORGOTTEN}/{one.key.id}", b"")
                gone.add(name.partition(".")[0])
        for place in self.places:
            for name in self._names(place, lookups):
                delete(place, place.path(name))
        return len(gone)

    def left(self, subjects: Collection[str]) -> list[str]:
        """Return the URIs of the places that have a key of some subjects, or a part of one."""
        lookups = {self.lookup(one) for one in subjects}
        return [place.uri for place in self.places if any(True for _ in self._names(place, lookups))]

    def each(self) -> Iterator[Found]:
        """Yield every file with a key of the first place, and those that are in copies alone."""
        seen: set[str] = set()
        for place in self.places:
            for name in sorted(self._names(place)):
                if name.endswith(_ENDING) and name not in seen:
                    one = self._read(place, name)
                    seen |= {name} if one.key is not None else set()
                    yield one

    def by_id(self) -> dict[str, SubjectKey]:
        """Return the keys that are there and not forgotten, by their ids."""
        return {one.key.id: one.key for one in self.each() if one.key is not None and one.key.id not in self.forgotten}

    @cached_property
    def ids(self) -> frozenset[str]:
        """Ids of the keys that were there when this was first asked."""
        return frozenset(self.by_id())

    @cached_property
    def forgotten(self) -> frozenset[str]:
        """Ids of the keys that were forgotten, when this was first asked."""
        return forgotten(self.lake)

    def lookup(self, subject: str) -> str:
        """Return under what name a subject's key is kept: its letters' case and form do not count."""
        said = normalize("NFC", subject.strip()).casefold()
        return hmac.digest(self._lookup_secret, said.encode("utf-8", "surrogatepass"), "sha256").hex()[:_LOOKUP_DIGITS]

    def _claim(self, place: Lake, *, is_copy: bool) -> None:
        if overlaps(self.lake, place):
            mend = "give keys a place of their own: whoever copies the lake must not copy them"
            what = "keys of subjects lie in the lake or a spool, or around it"
            raise SubjectKeysError(what, where=place.uri, mend=mend)
        path = place.path(MARKER)
        if not place.fs.exists(path):
            if not is_copy and known_columns(self.lake):
                mend = (
                    f"mount or restore the place; if it is lost for good, remove {self.lake.path(KNOWN)}: what those "
                    "keys sealed stays sealed"
                )
                raise SubjectKeysError("the keys of subjects are not there", where=place.uri, mend=mend)
            place.put_if_absent(MARKER, self._marker())
        try:
            said = json.loads(place.fs.cat_file(path))
            whose, by = (str(said["lake"]) if said["format"] == FORMAT else ""), said.get("looked_up_by")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            whose, by = "", None
        if whose != owner(self.lake):
            what = "no keys of this lake's subjects are there"
            raise SubjectKeysError(what, where=place.uri, mend="name another place")
        if by is None:  # written before it said so
            overwrite(place.fs, path, self._marker(), local=place.is_local)
        elif by != self._looked_up_by:  # everybody would get a second key, and the first would never be forgotten
            what = f"the keys in {place.uri} are looked up by another key than the last of this keyring"
            mend = "write a new key before the others, and leave the oldest where it was: last"
            raise SubjectKeysError(what, where="[subjects] wrap", mend=mend)

    def _marker(self) -> bytes:
        said = {"format": FORMAT, "lake": owner(self.lake), "looked_up_by": self._looked_up_by}
        return json.dumps(said).encode()

    @property
    def _looked_up_by(self) -> str:
        """What tells the key by which subjects are looked up from others, and nothing of it."""
        return hmac.digest(self._lookup_secret, _LOOKED_UP, "sha256").hex()[:_LOOKUP_DIGITS]

    def _found(self, lookup: str) -> SubjectKey | None:
        """Return a key that is there, put back where a place lacks it."""
        name = f"{lookup}{_ENDING}"
        tried = [self._read(place, name) for place in self.places]
        keys = [one.key for one in tried if one.key is not None]
        wrong = [one for one in tried if one.wrong]
        if any(self._is_forgotten(key) for key in keys):  # from a backup, or somebody died while he forgot it
            for place in self.places:
                delete(place, place.path(name))
            return None
        if not keys:
            if wrong:
                mend = "restore it from a backup, or erase the person: what it sealed cannot be read"
                where = wrong[0].place.path(name)
                raise SubjectKeysError(f"a subject's key {wrong[0].wrong}", where=where, mend=mend)
            return None
        for one in tried:
            if one.key is None:
                overwrite(one.place.fs, one.place.path(name), self._wrapped(lookup, keys[0]), local=one.place.is_local)
        if self._is_forgotten(keys[0]):  # while it was put back
            return self._found(lookup)
        return keys[0]

    def _made(self, lookup: str) -> SubjectKey:
        """Make a key; who makes it beside makes the same."""
        first = self.places[0]
        key = SubjectKey(secrets.token_bytes(KEY_BYTES))
        if first.put_if_absent(f"{lookup}{_ENDING}", self._wrapped(lookup, key)) and len(self.places) == 1:
            return key
        found = self._found(lookup)  # which is another's, perhaps, and goes to the copies now
        return self._made(lookup) if found is None else found

    def _wrapped(self, lookup: str, key: SubjectKey) -> bytes:
        return encrypt(self._ring.active, key.secret, _BOND + lookup.encode())

    def _read(self, place: Lake, name: str) -> Found:
        try:
            raw = place.fs.cat_file(place.path(name))
        except FileNotFoundError:
            return Found(place, name, None)
        lookup = name.partition(".")[0]
        head = raw[: len(MAGIC) + ID_BYTES]
        key_id = head[len(MAGIC) :].hex()
        if not head.startswith(MAGIC) or key_id not in self._ring.ids:
            known = head.startswith(MAGIC) and len(key_id) == 2 * ID_BYTES
            wrong = f"is wrapped with {key_id}, which is not in the keyring" if known else "is damaged"
            return Found(place, name, None, wrong, is_foreign=known)
        try:
            return Found(place, name, SubjectKey(decrypt(self._ring.get(key_id), raw, _BOND + lookup.encode())))
        except NotAuthenticError:
            return Found(place, name, None, "is damaged")

    def _is_forgotten(self, key: SubjectKey) -> bool:
        return bool(self.lake.fs.exists(self.lake.path(FORGOTTEN, key.id)))

    @staticmethod
    def _names(place: Lake, lookups: Collection[str] | None = None) -> Iterator[str]:
        """Yield the files with keys, of some subjects or all, and what a death left of writing one."""
        for one in listed(place.fs, place.root):
            name = one.path.rpartition("/")[2]
            lookup, dot, _ = name.partition(".")
            if dot and len(lookup) == _LOOKUP_DIGITS and (lookups is None or lookup in lookups):
                yield name


def forgotten(lake: Lake) -> frozenset[str]:
    """Return the ids of the keys that were forgotten."""
    return frozenset(one.path.rpartition("/")[2] for one in listed(lake.fs, lake.path(FORGOTTEN)))


def known_columns(lake: Lake) -> dict[str, str]:
    """Return the columns of a lake that were ever stored under keys of subjects: whose, by ``table.column``.

    Raises `SubjectKeysError` where the file cannot be read.
    """
    try:
        said = json.loads(lake.fs.cat_file(lake.path(KNOWN)))
        return {str(name): str(by) for name, by in said["columns"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        mend = "write it again: the columns under [subjects], each with the column that names whose it is"
        what = "what says which columns are under keys is damaged"
        raise SubjectKeysError(what, where=lake.path(KNOWN), mend=mend) from None


def know(lake: Lake, columns: dict[str, str]) -> None:
    """Write down that columns are under keys of subjects, with those that are already."""
    known = known_columns(lake)
    if columns.items() <= known.items():
        return
    said = json.dumps({"format": FORMAT, "columns": {**known, **columns}}, sort_keys=True).encode()
    if known or not lake.put_if_absent(KNOWN, said):
        overwrite(lake.fs, lake.path(KNOWN), said, local=lake.is_local)
