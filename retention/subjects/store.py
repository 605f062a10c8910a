"""Where keys of subjects are, and their state: a folder or prefix outside of the lake, and copies of it.

    <keys>/<lookup>.key               a key, wrapped; the name is a keyed hash of whom it is of
    <lake>/forgotten/<key id>         a key that is forgotten: one that comes back, from a backup, is no key any more
    <lake>/forgotten-unread/<tag>     a subject that was forgotten while nobody could read the key, damaged or lost: of
                                      this one only those keys count that were made since, <tag>~<key id>

A key is made once (put-if-absent), whoever is at it beside; it is forgotten by a mark in the lake first, and then gone
from every place. Killed anywhere between, the next call goes on. What the lake has says nothing of whom a key was of.
"""

import hmac
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.store.files import delete, keeps_versions, listed, overwrite, remove_dead, versions
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.tables import latest
from ranklake.retention.subjects.keys import (
    KEY_BYTES,
    Lineage,
    SubjectKey,
    SubjectKeysError,
    SubjectName,
    known_columns,
    lookup_text,
    sealed_by,
)
from ranklake.retention.subjects.places import LOOKUP_DIGITS, MARKER, claim, key_files, lookup_of
from ranklake.segments.envelope import ID_BYTES, MAGIC, NotAuthenticError, decrypt, encrypt
from ranklake.segments.keys import read_keyring

if TYPE_CHECKING:
    from ranklake.lake.store.tables import Tables
    from ranklake.segments.keys import Keyring


ENDING: Final = ".key"
BOND: Final = b"ranklake subject 1: "
_DAMAGED: Final = "restore it from a backup, or erase the person: what it sealed cannot be read"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file of a place of keys: its name, and the key in it.

    `wrong` says why there is none, and `hint` what to do. `is_hidden` says whether it may be there all the same: this
    keyring lacks what wraps it, or this account may not read it.
    """

    place: "Store"
    name: str
    key: SubjectKey | None
    wrong: str = ""
    hint: str = ""
    is_hidden: bool = False

    @property
    def lookup(self) -> str:
        """Under what name the key is kept."""
        return lookup_of(self.name)

    def error(self) -> SubjectKeysError:
        """Return the error that says what is wrong with it."""
        return SubjectKeysError(f"a subject's key {self.wrong}", where=self.place.path(self.name), hint=self.hint)


_Versions = dict[str, tuple[str, KeyFile]]
_read_before: Final[dict[tuple[str, frozenset[str]], _Versions]] = {}
"""Whole keys by place and keyring, and by name there, with the version of the file."""


def drop_read() -> None:
    """Have this process remember no key that it read together with others."""
    _read_before.clear()


def read_key(place: "Store", name: str, ring: "Keyring") -> KeyFile:
    """Return the key of a file. Raises what the store raises, but where the file is not there or may not be read."""
    try:
        return _read_file(place, name, place.fs.cat_file(place.path(name)), ring)
    except (FileNotFoundError, PermissionError) as error:
        return _read_file(place, name, error, ring)


def read_keys(place: "Store", ring: "Keyring", but: Collection[str] = ()) -> list[KeyFile]:
    """Return the keys of a place, except those in files of some names: one listing, and reads of what is new.

    Raises what the store raises, as `read_key`.
    """
    there = {one.path.removeprefix(f"{place.root}/"): one.version for one in listed(place.fs, place.root)}
    versions = {name: there[name] for name in sorted(there) if name.endswith(ENDING) and lookup_of(name)}
    group = (place.uri, frozenset(ring.ids))
    before = _read_before.get(group, {})
    known = {name: one for name, (version, one) in before.items() if version and versions.get(name) == version}
    wanted = [name for name in versions if name not in but]
    new = [name for name in wanted if name not in known]
    raws = place.fs.cat_ranges([place.path(name) for name in new], None, None, on_error="return") if new else []
    keys = known | {name: _read_file(place, name, raw, ring) for name, raw in zip(new, raws, strict=True)}
    kept = {name: (versions[name], one) for name, one in keys.items() if versions[name] and one.key is not None}
    _read_before[group] = kept
    return [keys[name] for name in wanted]


def _read_file(place: "Store", name: str, raw: bytes | Exception, ring: "Keyring") -> KeyFile:
    """Return what the bytes of a file are, or what reading it raised. Raises that where it says nothing of the file."""
    if isinstance(raw, FileNotFoundError):
        return KeyFile(place, name, None)
    if isinstance(raw, PermissionError):
        return KeyFile(place, name, None, "may not be read", "let this account read it", is_hidden=True)
    if isinstance(raw, Exception):
        raise raw
    head = raw[: len(MAGIC) + ID_BYTES]
    key_id = head[len(MAGIC) :].hex()
    if head.startswith(MAGIC) and len(key_id) == 2 * ID_BYTES and key_id not in ring.ids:
        wrong, hint = f"is wrapped with {key_id}, which is not in the keyring", "add that key to the keyring"
        return KeyFile(place, name, None, wrong, hint, is_hidden=True)
    try:
        if head.startswith(MAGIC) and key_id in ring.ids:
            return KeyFile(place, name, SubjectKey(decrypt(ring.get(key_id), raw, BOND + lookup_of(name).encode())))
    except NotAuthenticError:
        pass
    return KeyFile(place, name, None, "is damaged", _DAMAGED)


FORGOTTEN: Final = "forgotten"
UNREAD: Final = "forgotten-unread"
_LOOKED_UP: Final = b"\0ranklake subject 1: looked up by"
_UNREAD: Final = b"\0ranklake subject 1: forgotten unread "


class KeyStore:
    """The keys of a lake's subjects, as configured.

    Parameters
    ----------
    store
        Whose ``[subjects]`` names keys, copies and what wraps them.

    Raises `SubjectKeysError` where there are none though the lake has columns under such keys, or another lake's are
    there, and `ranklake.segments.envelope.MissingKeyError`.
    """

    def __init__(self, lake: Lake) -> None:
        section = lake.config.subjects
        if not (section.keys and section.wrap):
            hint = "name keys and wrap under [subjects] in ranklake.toml, as whoever stored these columns did"
            message = "columns are under keys of subjects, and no keys are configured"
            raise SubjectKeysError(message, where=lake.uri, hint=hint)
        self.store = lake.store
        self.places = [Store.at(uri, lake.store.storage) for uri in (section.keys, *section.copies)]
        self._ring: Keyring = read_keyring(section.wrap)
        self._lookup_secret = self._ring.keys[-1].subject_secret
        self._known: dict[str, SubjectKey] = {}
        self._elsewhere = claim(lake, self.places, self._looked_up_by)

    def of(self, subject: SubjectName) -> SubjectKey:
        """Return the key of a subject, made where there is none.

        Raises `SubjectKeysError` where it is there and damaged in every place: another would be another person's.
        """
        lookup = self.lookup(subject)
        if lookup not in self._known:
            self._known[lookup] = self._present(lookup) or self._made(lookup)
        return self._known[lookup]

    def find(self, subject: SubjectName) -> SubjectKey | None:
        """Return the key of a subject; None where there is none (any more). Raises as `of`."""
        return self._present(self.lookup(subject))

    def forget(self, subjects: Collection[SubjectName]) -> int:
        """Forget the keys of some subjects in every place; return how many. A second call changes nothing.

        Raises `SubjectKeysError` where a copy is not configured: nothing was forgotten. Raises what the stores raise;
        whoever dies on the way, or cannot reach a place, has to come again.
        """
        self._refuse_others()
        self._known.clear()
        drop_read()
        lookups = {self.lookup(subject) for subject in subjects}
        there = [self._read(place, name) for place in self.places for name in key_files(place, lookups)]
        for key_file in there:
            if key_file.is_hidden:  # it could not be distinguished from others when it comes back
                raise key_file.error()
        keys = [(one.lookup, one.key) for one in there if one.key is not None]
        for lookup, key in keys:
            self._mark(lookup, key)
        for lookup in lookups - {lookup for lookup, _ in keys}:
            self.store.put_if_absent(f"{UNREAD}/{self._tag(lookup)}", b"")
        for place in self.places:
            names = list(key_files(place, lookups))
            for name in names:
                delete(place, place.path(name))
            if _is_versioned(place, {*lookups, *names}):
                remove_dead(place.fs, [place.path(one) for one in {*lookups, *names}])
        return len({one.lookup for one in there})

    def places_with_keys(self, subjects: Collection[SubjectName]) -> list[str]:
        """Return the URIs of the places that have a key of some subjects, a part of one, or an old version.

        Raises `SubjectKeysError` where a copy is not configured: nobody knows what it has.
        """
        self._refuse_others()
        lookups = {self.lookup(subject) for subject in subjects}
        return [place.uri for place in self.places if any(key_files(place, lookups)) or _is_versioned(place, lookups)]

    def _refuse_others(self) -> None:
        if self._elsewhere:
            message = f"keys of subjects were copied to {self._elsewhere[0]}, too, which is not configured"
            gone = f"if that copy is gone for good, take it out of {self.places[0].path(MARKER)}"
            raise SubjectKeysError(message, where="[subjects] copies", hint=f"name it; {gone}")

    def each(self) -> Iterator[KeyFile]:
        """Yield every file with a key of the first place, and those that are in copies alone."""
        seen: set[str] = set()
        for place in self.places:
            for key_file in read_keys(place, self._ring, but=seen):
                seen |= {key_file.name} if key_file.key is not None else set()
                yield key_file

    def by_id(self, but: Collection[SubjectName] = ()) -> dict[str, SubjectKey]:
        """Return the keys that are there and not forgotten, by their ids; but those of some subjects."""
        others = {self.lookup(one) for one in but}
        keys = ((one.lookup, one.key) for one in self.each() if one.key is not None and one.lookup not in others)
        return {key.id: key for lookup, key in keys if not self._was_forgotten(lookup, key)}

    @cached_property
    def ids(self) -> frozenset[str]:
        """Ids of the keys that were there when this was first asked."""
        return frozenset(self.by_id())

    @cached_property
    def forgotten(self) -> frozenset[str]:
        """Ids of the keys that were forgotten, when this was first asked."""
        return _marks(self.store, FORGOTTEN)

    @cached_property
    def _unread(self) -> frozenset[str]:
        """Marks of subjects whose key nobody could read when it was forgotten, when this was first asked."""
        return _marks(self.store, UNREAD)

    def lookup(self, subject: SubjectName) -> str:
        """Return under what name a subject's key is kept."""
        text = lookup_text(subject).encode("utf-8", "surrogatepass")
        return hmac.digest(self._lookup_secret, text, "sha256").hex()[:LOOKUP_DIGITS]

    @property
    def _looked_up_by(self) -> str:
        """What tells the key by which subjects are looked up from others, and nothing of it."""
        return hmac.digest(self._lookup_secret, _LOOKED_UP, "sha256").hex()[:LOOKUP_DIGITS]

    def _present(self, lookup: str) -> SubjectKey | None:
        """Return an existing key; copy it to places that lack it."""
        name = f"{lookup}{ENDING}"
        tried = [self._read(place, name) for place in self.places]
        gone = [(one.place, one.key) for one in tried if one.key is not None and self._is_forgotten(lookup, one.key)]
        if gone:  # from a backup, or somebody died while he forgot it
            for place, key in gone:
                self._mark(lookup, key)
                delete(place, place.path(name))
            return self._present(lookup)
        keys = [one.key for one in tried if one.key is not None]
        wrong = [one for one in tried if one.wrong]
        if not keys:
            if wrong:
                raise wrong[0].error()
            return None
        for copy in tried:
            if copy.key is None and not copy.is_hidden:
                overwrite(
                    copy.place.fs, copy.place.path(name), self._wrap_key(lookup, keys[0]), local=copy.place.is_local
                )
        for other in {key.id: key for key in keys if key != keys[0]}.values():
            self._keep_beside(lookup, other)
        if any(self._is_forgotten(lookup, key) for key in keys):  # while they were put back
            return self._present(lookup)
        return keys[0]

    def _keep_beside(self, lookup: str, key: SubjectKey) -> None:
        """Keep a second key of a subject, of a place that was restored to before the first, for what it sealed."""
        for place in self.places:
            place.put_if_absent(f"{lookup}.{key.id}{ENDING}", self._wrap_key(lookup, key))

    def _made(self, lookup: str) -> SubjectKey:
        """Make a key; who makes it beside makes the same."""
        first = self.places[0]
        key = SubjectKey(secrets.token_bytes(KEY_BYTES))
        if self._is_there(UNREAD, self._tag(lookup)):  # said first, so that nobody takes the key for an older one
            self.store.put_if_absent(f"{UNREAD}/{self._marker_name(lookup, key)}", b"")
        if first.put_if_absent(f"{lookup}{ENDING}", self._wrap_key(lookup, key)) and len(self.places) == 1:
            return key
        existing = self._present(lookup)  # which is another's, perhaps, and goes to the copies now
        return self._made(lookup) if existing is None else existing

    def _wrap_key(self, lookup: str, key: SubjectKey) -> bytes:
        return encrypt(self._ring.active, key.secret, BOND + lookup.encode())

    def _read(self, place: Store, name: str) -> KeyFile:
        return read_key(place, name, self._ring)

    def _mark(self, lookup: str, key: SubjectKey) -> None:
        """Have a key be forgotten, wherever it comes back."""
        self.store.put_if_absent(f"{FORGOTTEN}/{key.id}", b"")
        delete(
            self.store, self.store.path(UNREAD, self._marker_name(lookup, key))
        )  # else it would tell whose the key was

    def _is_forgotten(self, lookup: str, key: SubjectKey) -> bool:
        if self._is_there(FORGOTTEN, key.id):
            return True
        return self._is_there(UNREAD, self._tag(lookup)) and not self._is_there(UNREAD, self._marker_name(lookup, key))

    def _was_forgotten(self, lookup: str, key: SubjectKey) -> bool:
        """Say the same as of when marks were first asked for, without another question to the store."""
        unread = self._tag(lookup) in self._unread and self._marker_name(lookup, key) not in self._unread
        return key.id in self.forgotten or unread

    def _is_there(self, *name: str) -> bool:
        return bool(self.store.fs.exists(self.store.path(*name)))

    def _tag(self, lookup: str) -> str:
        """Return what stands for a subject in the lake: nothing to whoever has not the keyring."""
        return hmac.digest(self._lookup_secret, _UNREAD + lookup.encode(), "sha256").hex()[:LOOKUP_DIGITS]

    def _marker_name(self, lookup: str, key: SubjectKey) -> str:
        return f"{self._tag(lookup)}~{key.id}"


def has_keys(lake: Lake) -> bool:
    """Return whether keys are configured, or a column was ever stored under keys."""
    return bool(lake.config.subjects.keys or known_columns(lake.store))


def _is_versioned(place: Store, lookups: Collection[str]) -> bool:
    """Return whether a bucket keeps old versions of keys. Raises `SubjectKeysError` where it does not say."""
    if not lookups or not keeps_versions(place.fs, place.root):
        return False
    try:
        return any(not version.is_marker for lookup in lookups for version in versions(place.fs, place.path(lookup)))
    except OSError as error:
        hint = "let this account do s3:ListBucketVersions and s3:DeleteObjectVersion there"
        raise SubjectKeysError("old versions of keys cannot be listed", where=place.uri, hint=hint) from error


def _marks(store: Store, folder: str) -> frozenset[str]:
    return frozenset(one.path.rpartition("/")[2] for one in listed(store.fs, store.path(folder)))


@dataclass(frozen=True, slots=True)
class KeyState:
    """The keys of a lake's subjects.

    Attributes
    ----------
    keys, forgotten
        How many are there, and how many were forgotten on purpose.
    faults
        Files that hold no key that can be used, each with the reason and what to do.
    lost
        Rows by ``table.column`` that a key sealed which is neither there nor forgotten.
    unread
        Columns of which nobody looked for such rows, as there are too many.
    """

    keys: int
    forgotten: int
    faults: tuple[tuple[str, str, str], ...]
    lost: tuple[tuple[str, int], ...]
    unread: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether every key exists that was not destroyed."""
        return not self.faults and not self.lost

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "keys": self.keys,
            "forgotten": self.forgotten,
            "faults": [{"where": where, "what": what, "hint": hint} for where, what, hint in self.faults],
            "lost": [{"column": column, "rows": rows} for column, rows in self.lost],
        }


LOST: Final = (
    "restore their files from a backup, each beside a newer one of its name: as NAME.old.key; a key that is gone for "
    "good leaves what it sealed unread for ever"
)


def key_state(lake: "Lake", most_rows: int | None = None) -> KeyState:
    """Look at every key, and at every value in live rows that one sealed. Raises as `KeyStore`.

    Parameters
    ----------
    most_rows
        Rows of a table, in live files, up to which its values are looked at; None: however many.
    """
    store = KeyStore(lake)
    every = list(store.each())
    lineage = Lineage(lake.store)
    names = sorted(name for contract in lake.contracts().values() for name in lineage.sealed_columns(contract))
    known = store.ids | store.forgotten
    unread = [name for name in names if most_rows is not None and _rows(lake.tables, name) > most_rows]
    lost = [(name, rows) for name in names if name not in unread and (rows := _unreadable_rows(lake, name, known))]
    faults = [(one.place.path(one.name), one.wrong, one.hint) for one in every if one.wrong]
    return KeyState(len(store.ids), len(store.forgotten), tuple(faults), tuple(lost), tuple(unread))


def _rows(tables: "Tables", column: str) -> int:
    handle = latest(tables, column.partition(".")[0])
    return 0 if handle is None else int(pc.sum(files(handle)["num_records"]).as_py() or 0)


def _unreadable_rows(lake: "Lake", column: str, there: frozenset[str]) -> int:
    """Return how many live rows have a value that no known key sealed."""
    table, _, name = column.partition(".")
    handle = latest(lake.tables, table)
    count = 0
    for _, rows in read_some(lake.tables, lake.contract(table), files(handle), [name]) if handle is not None else ():
        counted = pc.value_counts(rows[name].cast(pa.string()).combine_chunks()).to_pylist()
        for column_counts in counted:
            key_id = None if column_counts["values"] is None else sealed_by(column_counts["values"])
            count += column_counts["counts"] if key_id is not None and key_id not in there else 0
    return count
