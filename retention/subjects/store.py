"""The store of subjects' keys: a folder or bucket prefix outside the lake, and copies of it.

    <keys>/<lookup>.key               a wrapped key; its name is a keyed hash of the subject
    <lake>/forgotten/<key id>         the mark of a deleted key; if a backup restores the key, it stays unusable
    <lake>/forgotten-unread/<tag>     the mark of a subject whose key was damaged or missing when it was deleted; only
                                      keys made later, with a mark <tag>~<key id>, are usable

Concurrent processes make one key per subject (put-if-absent). Deletion writes a mark into the lake first, then deletes
the key in every place. After a crash the next call continues. The marks in the lake do not reveal the subject.
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
    """A file with a subject's key.

    Attributes
    ----------
    place, name
        The place, and the path of the file in it.
    key
        The key; None if it cannot be read.
    wrong, hint
        Why the key cannot be read, and how to fix it; empty for a readable or missing file.
    is_hidden
        Whether the file may have a valid key that this process cannot read: the keyring lacks the wrapping key, or
        this account lacks the right.
    """

    place: "Store"
    name: str
    key: SubjectKey | None
    wrong: str = ""
    hint: str = ""
    is_hidden: bool = False

    @property
    def lookup(self) -> str:
        """The keyed hash of the subject in the file's name."""
        return lookup_of(self.name)

    def error(self) -> SubjectKeysError:
        """Return an error with the reason why the key cannot be read."""
        return SubjectKeysError(f"a subject's key {self.wrong}", where=self.place.path(self.name), hint=self.hint)


_Versions = dict[str, tuple[str, KeyFile]]
_read_before: Final[dict[tuple[str, frozenset[str]], _Versions]] = {}
"""Cache of readable keys, by place and keyring, then by name, with the version of the file."""


def clear_cache() -> None:
    """Drop the keys that `read_keys` has cached in this process."""
    _read_before.clear()


def read_key(place: "Store", name: str, ring: "Keyring") -> KeyFile:
    """Return the key in a file. Raises the errors of the store, except for a missing or forbidden file."""
    try:
        return _read_file(place, name, place.fs.cat_file(place.path(name)), ring)
    except (FileNotFoundError, PermissionError) as error:
        return _read_file(place, name, error, ring)


def read_keys(place: "Store", ring: "Keyring", but: Collection[str] = ()) -> list[KeyFile]:
    """Return the keys of a place, except those in the files `but`. Lists the place and reads only new files.

    Raises the same errors as `read_key`.
    """
    stored = {file.path.removeprefix(f"{place.root}/"): file.version for file in listed(place.fs, place.root)}
    versions = {name: stored[name] for name in sorted(stored) if name.endswith(ENDING) and lookup_of(name)}
    group = (place.uri, frozenset(ring.ids))
    cache = _read_before.get(group, {})
    cached = {name: file for name, (version, file) in cache.items() if version and versions.get(name) == version}
    names = [name for name in versions if name not in but]
    new = [name for name in names if name not in cached]
    raws = place.fs.cat_ranges([place.path(name) for name in new], None, None, on_error="return") if new else []
    keys = cached | {name: _read_file(place, name, raw, ring) for name, raw in zip(new, raws, strict=True)}
    readable = {name: file for name, file in keys.items() if versions[name] and file.key is not None}
    _read_before[group] = {name: (versions[name], file) for name, file in readable.items()}
    return [keys[name] for name in names]


def _read_file(place: "Store", name: str, raw: bytes | Exception, ring: "Keyring") -> KeyFile:
    """Return the key in a file's bytes, or the reason from the error of reading it. Raises other errors."""
    if isinstance(raw, FileNotFoundError):
        return KeyFile(place, name, None)
    if isinstance(raw, PermissionError):
        return KeyFile(place, name, None, "may not be read", "let this account read it", is_hidden=True)
    if isinstance(raw, Exception):
        raise raw
    head = raw[: len(MAGIC) + ID_BYTES]
    key_id = head[len(MAGIC) :].hex()
    if head.startswith(MAGIC) and len(key_id) == 2 * ID_BYTES and key_id not in ring.ids:
        problem = f"is wrapped with {key_id}, which is not in the keyring"
        return KeyFile(place, name, None, problem, "add that key to the keyring", is_hidden=True)
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
    """The keys of a lake's subjects, at the places in ``[subjects]``.

    Raises `SubjectKeysError` if no keys are configured, or if a place is missing or has keys of another lake, and
    `ranklake.segments.envelope.MissingKeyError`.
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
        self._cache: dict[str, SubjectKey] = {}
        self._elsewhere = claim(lake, self.places, self._looked_up_by)

    def of(self, subject: SubjectName) -> SubjectKey:
        """Return the key of a subject; make it if there is none.

        Raises `SubjectKeysError` if the key is damaged in every place, since a new key could not open earlier values.
        """
        lookup = self.lookup(subject)
        if lookup not in self._cache:
            self._cache[lookup] = self._existing(lookup) or self._make(lookup)
        return self._cache[lookup]

    def find(self, subject: SubjectName) -> SubjectKey | None:
        """Return the key of a subject; None if there is none. Raises the same errors as `of`."""
        return self._existing(self.lookup(subject))

    def forget(self, subjects: Collection[SubjectName]) -> int:
        """Delete the keys of subjects in every place; return their number. A second call changes nothing.

        Raises `SubjectKeysError` if a copy is not configured; nothing was deleted then. Raises the errors of the
        stores; after these or a crash, call again.
        """
        self._refuse_unconfigured()
        self._cache.clear()
        clear_cache()
        lookups = {self.lookup(subject) for subject in subjects}
        key_files_ = [self._read(place, name) for place in self.places for name in key_files(place, lookups)]
        for key_file in key_files_:
            if key_file.is_hidden:  # a mark needs the key's id
                raise key_file.error()
        keys = [(file.lookup, file.key) for file in key_files_ if file.key is not None]
        for lookup, key in keys:
            self._mark(lookup, key)
        for lookup in lookups - {lookup for lookup, _ in keys}:
            self.store.put_if_absent(f"{UNREAD}/{self._tag(lookup)}", b"")
        for place in self.places:
            names = list(key_files(place, lookups))
            for name in names:
                delete(place, place.path(name))
            if _is_versioned(place, {*lookups, *names}):
                remove_dead(place.fs, [place.path(name) for name in {*lookups, *names}])
        return len({file.lookup for file in key_files_})

    def places_with_keys(self, subjects: Collection[SubjectName]) -> list[str]:
        """Return the URIs of the places that have a key of the subjects, including old versions and temporary files.

        Raises `SubjectKeysError` if a copy is not configured, since its content is unknown.
        """
        self._refuse_unconfigured()
        lookups = {self.lookup(subject) for subject in subjects}
        return [place.uri for place in self.places if any(key_files(place, lookups)) or _is_versioned(place, lookups)]

    def _refuse_unconfigured(self) -> None:
        if self._elsewhere:
            message = f"keys of subjects were copied to {self._elsewhere[0]}, too, which is not configured"
            gone = f"if that copy is gone for good, take it out of {self.places[0].path(MARKER)}"
            raise SubjectKeysError(message, where="[subjects] copies", hint=f"name it; {gone}")

    def each(self) -> Iterator[KeyFile]:
        """Yield every file with a key: those of the first place, then those that only copies have."""
        read_names: set[str] = set()
        for place in self.places:
            for key_file in read_keys(place, self._ring, but=read_names):
                read_names |= {key_file.name} if key_file.key is not None else set()
                yield key_file

    def by_id(self, but: Collection[SubjectName] = ()) -> dict[str, SubjectKey]:
        """Return all usable keys by id, except those of the subjects `but`."""
        excluded = {self.lookup(subject) for subject in but}
        files = (file for file in self.each() if file.lookup not in excluded)
        keys = ((file.lookup, file.key) for file in files if file.key is not None)
        return {key.id: key for lookup, key in keys if not self._was_forgotten(lookup, key)}

    @cached_property
    def ids(self) -> frozenset[str]:
        """Ids of the usable keys, read once."""
        return frozenset(self.by_id())

    @cached_property
    def forgotten(self) -> frozenset[str]:
        """Ids of the deleted keys, read once."""
        return _marks(self.store, FORGOTTEN)

    @cached_property
    def _unread(self) -> frozenset[str]:
        """Marks of subjects whose key was unreadable when it was deleted, read once."""
        return _marks(self.store, UNREAD)

    def lookup(self, subject: SubjectName) -> str:
        """Return the keyed hash under which a subject's key is stored."""
        text = lookup_text(subject).encode("utf-8", "surrogatepass")
        return hmac.digest(self._lookup_secret, text, "sha256").hex()[:LOOKUP_DIGITS]

    @property
    def _looked_up_by(self) -> str:
        """Id of the lookup key, which does not reveal the key."""
        return hmac.digest(self._lookup_secret, _LOOKED_UP, "sha256").hex()[:LOOKUP_DIGITS]

    def _existing(self, lookup: str) -> SubjectKey | None:
        """Return an existing key, and copy it to places that lack it; None if there is none."""
        name = f"{lookup}{ENDING}"
        copies = [self._read(place, name) for place in self.places]
        readable = [(copy.place, copy.key) for copy in copies if copy.key is not None]
        deleted = [(place, key) for place, key in readable if self._is_forgotten(lookup, key)]
        if deleted:  # restored from a backup, or left by a crash during the deletion
            for place, key in deleted:
                self._mark(lookup, key)
                delete(place, place.path(name))
            return self._existing(lookup)
        keys = [key for _, key in readable]
        if not keys:
            unreadable = next((copy for copy in copies if copy.wrong), None)
            if unreadable is not None:
                raise unreadable.error()
            return None
        for copy in copies:
            if copy.key is None and not copy.is_hidden:
                overwrite(
                    copy.place.fs, copy.place.path(name), self._wrap_key(lookup, keys[0]), local=copy.place.is_local
                )
        for other in {key.id: key for key in keys if key != keys[0]}.values():
            self._keep_second(lookup, other)
        if any(self._is_forgotten(lookup, key) for key in keys):  # deleted while they were copied
            return self._existing(lookup)
        return keys[0]

    def _keep_second(self, lookup: str, key: SubjectKey) -> None:
        """Store a second key of a subject, from a place that was restored to an earlier state, to open its values."""
        for place in self.places:
            place.put_if_absent(f"{lookup}.{key.id}{ENDING}", self._wrap_key(lookup, key))

    def _make(self, lookup: str) -> SubjectKey:
        """Make a key and return it; concurrent processes return the same key."""
        first = self.places[0]
        key = SubjectKey(secrets.token_bytes(KEY_BYTES))
        if self._is_there(UNREAD, self._tag(lookup)):  # the mark comes first, since keys without it count as old
            self.store.put_if_absent(f"{UNREAD}/{self._marker_name(lookup, key)}", b"")
        if first.put_if_absent(f"{lookup}{ENDING}", self._wrap_key(lookup, key)) and len(self.places) == 1:
            return key
        existing = self._existing(lookup)  # perhaps another process's; also copies it to the other places
        return self._make(lookup) if existing is None else existing

    def _wrap_key(self, lookup: str, key: SubjectKey) -> bytes:
        return encrypt(self._ring.active, key.secret, BOND + lookup.encode())

    def _read(self, place: Store, name: str) -> KeyFile:
        return read_key(place, name, self._ring)

    def _mark(self, lookup: str, key: SubjectKey) -> None:
        """Mark a key as deleted, so that it stays unusable if it is restored."""
        self.store.put_if_absent(f"{FORGOTTEN}/{key.id}", b"")
        delete(self.store, self.store.path(UNREAD, self._marker_name(lookup, key)))  # it would link key and subject

    def _is_forgotten(self, lookup: str, key: SubjectKey) -> bool:
        if self._is_there(FORGOTTEN, key.id):
            return True
        return self._is_there(UNREAD, self._tag(lookup)) and not self._is_there(UNREAD, self._marker_name(lookup, key))

    def _was_forgotten(self, lookup: str, key: SubjectKey) -> bool:
        """Return the same as `_is_forgotten`, from the marks that were read once."""
        unread = self._tag(lookup) in self._unread and self._marker_name(lookup, key) not in self._unread
        return key.id in self.forgotten or unread

    def _is_there(self, *name: str) -> bool:
        return bool(self.store.fs.exists(self.store.path(*name)))

    def _tag(self, lookup: str) -> str:
        """Return the name of a subject's mark in the lake, which reveals nothing without the keyring."""
        return hmac.digest(self._lookup_secret, _UNREAD + lookup.encode(), "sha256").hex()[:LOOKUP_DIGITS]

    def _marker_name(self, lookup: str, key: SubjectKey) -> str:
        return f"{self._tag(lookup)}~{key.id}"


def has_keys(lake: Lake) -> bool:
    """Return whether keys are configured, or a column was ever stored under keys."""
    return bool(lake.config.subjects.keys or known_columns(lake.store))


def _is_versioned(place: Store, lookups: Collection[str]) -> bool:
    """Return whether a bucket has old versions of keys. Raises `SubjectKeysError` if they cannot be listed."""
    if not lookups or not keeps_versions(place.fs, place.root):
        return False
    try:
        return any(not version.is_marker for lookup in lookups for version in versions(place.fs, place.path(lookup)))
    except OSError as error:
        hint = "let this account do s3:ListBucketVersions and s3:DeleteObjectVersion there"
        raise SubjectKeysError("old versions of keys cannot be listed", where=place.uri, hint=hint) from error


def _marks(store: Store, folder: str) -> frozenset[str]:
    return frozenset(file.path.rpartition("/")[2] for file in listed(store.fs, store.path(folder)))


@dataclass(frozen=True, slots=True)
class KeyState:
    """The state of a lake's subject keys.

    Attributes
    ----------
    keys, forgotten
        Number of usable keys and of deleted keys.
    faults
        Files with an unusable key: path, reason, and how to fix it.
    lost
        Number of rows by ``table.column`` with values under a key that is missing and was not deleted.
    unread
        Columns that were not checked, since their tables have too many rows.
    """

    keys: int
    forgotten: int
    faults: tuple[tuple[str, str, str], ...]
    lost: tuple[tuple[str, int], ...]
    unread: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether every key exists that was not deleted."""
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
    """Check every key, and every sealed value in live rows. Raises the errors of `KeyStore`.

    Parameters
    ----------
    most_rows
        Tables with more live rows are not checked; None checks all.
    """
    store = KeyStore(lake)
    key_files_ = list(store.each())
    lineage = Lineage(lake.store)
    names = sorted(name for contract in lake.contracts().values() for name in lineage.sealed_columns(contract))
    known_ids = store.ids | store.forgotten
    unread = [name for name in names if most_rows is not None and _rows(lake.tables, name) > most_rows]
    lost = [(name, rows) for name in names if name not in unread and (rows := _lost_rows(lake, name, known_ids))]
    faults = [(file.place.path(file.name), file.wrong, file.hint) for file in key_files_ if file.wrong]
    return KeyState(len(store.ids), len(store.forgotten), tuple(faults), tuple(lost), tuple(unread))


def _rows(tables: "Tables", column: str) -> int:
    handle = latest(tables, column.partition(".")[0])
    return 0 if handle is None else int(pc.sum(files(handle)["num_records"]).as_py() or 0)


def _lost_rows(lake: "Lake", column: str, known_ids: frozenset[str]) -> int:
    """Return the number of live rows with a value under an unknown key."""
    table, _, name = column.partition(".")
    handle = latest(lake.tables, table)
    count = 0
    for _, rows in read_some(lake.tables, lake.contract(table), files(handle), [name]) if handle is not None else ():
        for entry in pc.value_counts(rows[name].cast(pa.string()).combine_chunks()).to_pylist():
            key_id = None if entry["values"] is None else sealed_by(entry["values"])
            count += entry["counts"] if key_id is not None and key_id not in known_ids else 0
    return count
