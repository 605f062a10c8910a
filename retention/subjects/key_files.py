"""Files with keys of subjects: each by itself, or all of a place together, those that are known already by version.

A key that was read stays in memory, by place, name and version, until a listing lacks its file, or this process forgets
any. Whether it was forgotten by others the lake's marks say, which whoever asks for keys reads anew each time.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ranklake.lake.store.listing import listed
from ranklake.retention.subjects.keys import SubjectKey
from ranklake.retention.subjects.known import SubjectKeysError
from ranklake.retention.subjects.places import lookup_of
from ranklake.segments.envelope import ID_BYTES, MAGIC, NotAuthenticError, decrypt

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake
    from ranklake.segments.keys import Keyring

ENDING: Final = ".key"
BOND: Final = b"ranklake subject 1: "
_DAMAGED: Final = "restore it from a backup, or erase the person: what it sealed cannot be read"


@dataclass(frozen=True, slots=True)
class Found:
    """A file of a place of keys: its name, and the key in it.

    `wrong` says why there is none, and `hint` what to do. `is_hidden` says whether it may be there all the same: this
    keyring lacks what wraps it, or this account may not read it.
    """

    place: "Lake"
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


_Versions = dict[str, tuple[str, Found]]
_read_before: Final[dict[tuple[str, frozenset[str]], _Versions]] = {}
"""Whole keys by place and keyring, and by name there, with the version of the file."""


def drop_read() -> None:
    """Have this process remember no key that it read together with others."""
    _read_before.clear()


def read_key(place: "Lake", name: str, ring: "Keyring") -> Found:
    """Return the key of a file. Raises what the store raises, but where the file is not there or may not be read."""
    try:
        return _found(place, name, place.fs.cat_file(place.path(name)), ring)
    except (FileNotFoundError, PermissionError) as error:
        return _found(place, name, error, ring)


def read_keys(place: "Lake", ring: "Keyring", but: Collection[str] = ()) -> list[Found]:
    """Return the keys of a place, by the names of their files, but for some names: one listing, and what is new of it.

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
    found = known | {name: _found(place, name, raw, ring) for name, raw in zip(new, raws, strict=True)}
    kept = {name: (versions[name], one) for name, one in found.items() if versions[name] and one.key is not None}
    _read_before[group] = kept
    return [found[name] for name in wanted]


def _found(place: "Lake", name: str, raw: bytes | Exception, ring: "Keyring") -> Found:
    """Return what the bytes of a file are, or what reading it raised. Raises that where it says nothing of the file."""
    if isinstance(raw, FileNotFoundError):
        return Found(place, name, None)
    if isinstance(raw, PermissionError):
        return Found(place, name, None, "may not be read", "let this account read it", is_hidden=True)
    if isinstance(raw, Exception):
        raise raw
    head = raw[: len(MAGIC) + ID_BYTES]
    key_id = head[len(MAGIC) :].hex()
    if head.startswith(MAGIC) and len(key_id) == 2 * ID_BYTES and key_id not in ring.ids:
        wrong, hint = f"is wrapped with {key_id}, which is not in the keyring", "add that key to the keyring"
        return Found(place, name, None, wrong, hint, is_hidden=True)
    try:
        if head.startswith(MAGIC) and key_id in ring.ids:
            return Found(place, name, SubjectKey(decrypt(ring.get(key_id), raw, BOND + lookup_of(name).encode())))
    except NotAuthenticError:
        pass
    return Found(place, name, None, "is damaged", _DAMAGED)
