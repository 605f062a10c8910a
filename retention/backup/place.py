"""The place of backups of one lake: contents by digest, and a numbered manifest for each backup.

    <to>/ranklake-backup.json            whose it is
    <to>/objects/<ab>/<sha256>           bytes of files of the lake, once however many backups have them
    <to>/backups/<number>.json           what a backup consists of; written last, so that one cut off is none
    <to>/drills/<UTC time>.json          what a drill measured

Where the operator names a key, all but the first is encrypted: see `unlock`.

A manifest's number is taken put-if-absent, so of two backups at a time one starts over.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.plans.kinds import PURGE, RETENTION
from ranklake.lake.store.files import listed
from ranklake.lake.store.posture import overlaps
from ranklake.lake.store.store import MARKER as LAKE_MARKER
from ranklake.lake.store.store import Store
from ranklake.lake.tables.live_files import digest_of
from ranklake.redaction.redact import redact_uri
from ranklake.retention.policies.model import place_fault
from ranklake.retention.proposals.identities import owner
from ranklake.segments.envelope import Key, MissingKeyError, NotAuthenticError, decrypt, encrypt
from ranklake.segments.keys import find_key, read_keyring

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.store.lake import Lake


_BOND: Final = "ranklake backup: "


@dataclass(frozen=True)
class EncryptedPlace(Store):
    """A place of backups, and the key that opens them."""

    key: Key | None = field(default=None, repr=False, compare=False)


def key_of(place: Store) -> Key | None:
    """Return the key of a place; None where its files are in clear."""
    return place.key if isinstance(place, EncryptedPlace) else None


def with_key(place: Store, key: Key) -> EncryptedPlace:
    """Return a place whose files are read and written under a key."""
    return EncryptedPlace(place.uri, place.storage, place.fs, place.root, key)


def address(place: Store, sha256: str) -> str:
    """Return what the object of a digest is called in a place."""
    key = key_of(place)
    return sha256 if key is None else hmac.digest(key.backup_secret, sha256.encode(), "sha256").hex()


def read_file(place: Store, name: str) -> bytes:
    """Return the bytes of a file of a place.

    Raises `FileNotFoundError`, and `ranklake.segments.envelope.NotAuthenticError` for what is not what was written.
    """
    raw, key = bytes(place.fs.cat_file(place.path(name))), key_of(place)
    return raw if key is None else decrypt(key, raw, _bond(name))


def write_file(place: Store, name: str, raw: bytes) -> int:
    """Write a file unless its name is taken; return the bytes that were written, 0 for none."""
    key = key_of(place)
    written = raw if key is None else encrypt(key, raw, _bond(name))
    return len(written) if place.put_if_absent(name, written) else 0


def _bond(name: str) -> bytes:
    """Return what an envelope is bound to: it opens under no other name, and as no segment."""
    return f"{_BOND}{name}".encode()


MARKER: Final = "ranklake-backup.json"
FORMAT: Final = 1
ENCRYPTED_FORMAT: Final = 2
BACKUPS: Final = "backups"
DRILLS: Final = "drills"
OBJECTS: Final = "objects"
_DIGITS: Final = 10
_BY_RETENTION: Final = (f"{RETENTION.name} ", f"{PURGE.name} ")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FORGED: Final = "nothing of it was restored; find out who wrote it, and delete it"
_LOST: Final = "put the file back; deleted, the backup before it is the newest, which may lack what was removed since"


class BackupError(RanklakeError):
    """A place that backups cannot be in, or a backup that cannot be restored. Nothing was written over."""


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A file of the lake: its path there, its size, the digest of its bytes, and when it was written (ISO, UTC)."""

    path: str
    size_bytes: int
    sha256: str
    modified: str


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as a backup holds it: version of its Delta log, live files and rows."""

    version: int
    files: int
    rows: int

    @classmethod
    def of(cls, handle: "DeltaTable", live: pa.Table) -> Self:
        """Return the state of a table by its handle and its live files."""
        return cls(handle.version(), live.num_rows, pc.sum(live["num_records"]).as_py() or 0)


@dataclass(frozen=True, slots=True)
class Backup:
    """The manifest of a backup.

    Attributes
    ----------
    number
        From 1.
    created
        When the versions of all tables were read, UTC: the point in time that a restore leads to.
    ranklake
        Version that made it.
    removals
        What was removed for good before: plans of retentions, erasures and purges, and keys that were forgotten.
    tables
        State by table.
    files
        By path.
    damaged
        Live files whose bytes differ from the digest in their names, and of which no earlier backup has sound ones.
    """

    number: int
    created: datetime
    ranklake: str
    removals: tuple[str, ...]
    tables: Mapping[str, TableState]
    files: tuple[BackupFile, ...]
    damaged: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Where the manifest lies in its place."""
        return f"{BACKUPS}/{self.number:0{_DIGITS}d}.json"

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(state.rows for state in self.tables.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    def to_json(self) -> bytes:
        """Return the manifest's bytes."""
        body = {**asdict(self), "format": FORMAT, "created": self.created.isoformat()}
        return json.dumps(body, sort_keys=True).encode()


def object_name(name: str) -> str:
    """Return where an object lies in a place of backups; see `address`."""
    return f"{OBJECTS}/{name[:2]}/{name}"


def claim(lake: "Lake", uri: str) -> Store:
    """Make a place this lake's, and return it; again changes nothing.

    Raises `BackupError` where it is another's, holds something else, or lies in the lake or around it.
    """
    fault = place_fault(uri)
    if fault:
        raise BackupError(f"no place for backups: {fault}", where=uri if "credential" not in fault else "URI")
    place = Store.at(uri, lake.store.storage)
    if overlaps(lake, place):
        message = "the place lies in the lake or a spool, or around it"
        raise BackupError(message, where=uri, hint="give backups a folder or prefix of their own")
    if not place.fs.exists(place.path(MARKER)):
        others = any(not file.path.endswith(".tmp") for file in listed(place.fs, place.root))
        # A backup at the same time writes its marker first, so whoever sees its files finds the marker by now.
        if others and not place.fs.exists(place.path(MARKER)):
            raise BackupError("the place is not empty, and holds no backups", where=uri, hint="name an empty place")
        mark: dict[str, Any] = {"format": FORMAT, "lake": owner(lake.store)}
        if lake.config.backup.key:
            key = read_keyring(lake.config.backup.key).active
            mark |= {"format": ENCRYPTED_FORMAT, "key": key.id}
            encrypt(key, b"", b"")  # without the library, nobody finds a marked place
        place.put_if_absent(MARKER, json.dumps(mark).encode())
    place = unlock(place, lake.config.backup.key)
    if lake_of(place) != owner(lake.store):
        raise BackupError("backups of another lake are there", where=uri, hint="name another place")
    return place


def unlock(place: Store, source: str) -> Store:
    """Return a place with the key that its backups are encrypted under, if they are.

    Parameters
    ----------
    source
        Where the keyring is, by reference; empty for none.

    Raises `BackupError` where there is no place of backups, where they are in clear and a key is named, and where the
    key is not named or not in the keyring.
    """
    key_id = _marker_of(place).key
    if key_id and source:
        try:
            return with_key(place, find_key(source, key_id))
        except MissingKeyError as error:
            message = f"the backups are encrypted under key {key_id}: {error.what}"
            hint = "name its keyring by key under [backup]"
            raise BackupError(message, where=redact_uri(place.uri), hint=hint) from None
    if source:
        hint = "name an empty place by to under [backup], or take key out"
        message = "the backups there are not encrypted, and a key is named"
        raise BackupError(message, where=redact_uri(place.uri), hint=hint)
    _refuse_locked(place, key_id)
    return place


def lake_of(place: Store) -> str:
    """Return the number of the lake whose backups a place holds.

    Raises `BackupError` where it holds none, and where they are encrypted and the place has no key.
    """
    marker = _marker_of(place)
    _refuse_locked(place, marker.key)
    return marker.lake


def _refuse_locked(place: Store, key_id: str) -> None:
    if key_id and key_of(place) is None:
        hint = "name its keyring by key under [backup], or in RANKLAKE_BACKUP_KEY"
        message = f"the backups there are encrypted under key {key_id}, and no key is named"
        raise BackupError(message, where=redact_uri(place.uri), hint=hint)


class _Marker(NamedTuple):
    lake: str
    key: str


def _marker_of(place: Store) -> _Marker:
    try:
        marker = json.loads(place.fs.cat_file(place.path(MARKER)))
        number, made, key = str(marker["lake"]), int(marker["format"]), str(marker.get("key", ""))
    except FileNotFoundError:
        is_lake = place.fs.exists(place.path(LAKE_MARKER))
        hint = "a lake is there: name the place of its backups" if is_lake else "name the place of 'ranklake backup'"
        raise BackupError("no backups are there", where=place.uri, hint=hint) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BackupError(f"{MARKER} cannot be read", where=place.uri, hint="restore that file") from None
    _refuse_newer(made, place.path(MARKER))
    return _Marker(number, key)


def _refuse_newer(made: int, where: str) -> None:
    if made > ENCRYPTED_FORMAT:
        message = f"backups of format {made}, and this ranklake reads {ENCRYPTED_FORMAT}"
        raise BackupError(message, where=where, hint="upgrade")


def backups_of(place: Store) -> list[Backup]:
    """Return all backups of a place, in order. Raises as `read_backup`."""
    return [read_backup(place, number) for number in numbers_of(place)]


def newest_backup_time(place: Store) -> datetime | None:
    """Return when the newest manifest of a place was written, by the store's clock; None where there is none."""
    entries = [file for file in listed(place.fs, place.path(BACKUPS)) if file.path.endswith(".json")]
    return max(entries, key=lambda file: file.path).modified if entries else None


def numbers_of(place: Store) -> list[int]:
    """Return the numbers of all backups of a place, in order."""
    names = (file.path.rpartition("/")[2] for file in listed(place.fs, place.path(BACKUPS)))
    return sorted(int(name[:_DIGITS]) for name in names if name[:_DIGITS].isdigit() and name[_DIGITS:] == ".json")


def read_backup(place: Store, number: int) -> Backup:
    """Return the manifest of a backup. Raises `BackupError` where it is not there, damaged, or of a newer ranklake."""
    name = f"{BACKUPS}/{number:0{_DIGITS}d}.json"
    where = place.path(name)
    try:
        facts: dict[str, Any] = json.loads(read_file(place, name))
        _refuse_newer(int(facts.pop("format")), where)
        facts["created"] = datetime.fromisoformat(facts["created"])
        facts["removals"], facts["damaged"] = tuple(facts["removals"]), tuple(facts["damaged"])
        facts["tables"] = {name: TableState(**state) for name, state in facts["tables"].items()}
        facts["files"] = tuple(BackupFile(**file) for file in facts["files"])
        fault = _forged(facts["files"], facts["tables"])
        if fault:
            raise BackupError(f"the backup's manifest {fault}", where=where, hint=_FORGED)
        if facts["number"] != number or facts["created"].tzinfo is None:
            raise BackupError("the backup's manifest is of another number, or time", where=where, hint=_LOST)
        return Backup(**facts)
    except FileNotFoundError:
        there = ", ".join(map(str, numbers_of(place))) or "none"
        raise BackupError(f"no backup {number}", where=place.uri, hint=f"there are: {there}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, NotAuthenticError):
        raise BackupError("the backup's manifest is damaged", where=where, hint=_LOST) from None


def bytes_of(place: Store, file: BackupFile) -> bytes:
    """Return the bytes of a file. Raises `BackupError` where they are gone, or not what was backed up."""
    name = object_name(address(place, file.sha256))
    where = place.path(name)
    try:
        raw = read_file(place, name)
    except FileNotFoundError:
        raise BackupError(f"the bytes of {file.path} are gone", where=where, hint=_OTHER) from None
    except NotAuthenticError:
        raise BackupError(f"the bytes of {file.path} are not what was encrypted", where=where, hint=_OTHER) from None
    if hashlib.sha256(raw).hexdigest() != file.sha256:
        raise BackupError(f"the bytes of {file.path} differ from their digest", where=where, hint=_OTHER)
    return raw


_OTHER: Final = "restore another backup, or the rest with --table; the next backup copies it again if it is deleted"


def _forged(files: Sequence[BackupFile], tables: Mapping[str, TableState]) -> str:
    """Return what in a manifest no backup can have written, in a clause; empty if all of it can be.

    Raises `TypeError` for values of other types.
    """
    paths = {file.path for file in files}
    folders = {folder for path in paths for folder in _folders(path)}
    logs = {path.split("/")[1] for path in paths if path.startswith("tables/") and "/_delta_log/" in path}
    sizes = [file.size_bytes for file in files]
    counts = [count for state in tables.values() for count in (state.version, state.files, state.rows)]
    if not all(type(count) is int for count in (*sizes, *counts)):
        raise TypeError
    faults = {
        "names a file outside of the lake": not all(_DIGEST.fullmatch(f.sha256) and is_inside(f.path) for f in files),
        "gives a data file other bytes": not all(map(_is_of_its_name, files)),
        "names a file twice": len(paths) < len(files),
        "names a file that lies in another": bool(paths & folders),
        "gives a size or a count that cannot be": min((*sizes, *counts), default=0) < 0,
        f"lacks {LAKE_MARKER}, without which there is no lake": LAKE_MARKER not in paths,
        "names other tables than it has logs of": logs != tables.keys(),
    }
    return next((fault for fault, is_so in faults.items() if is_so), "")


def _folders(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _is_of_its_name(file: BackupFile) -> bool:
    """Whether a data file of a table has the digest that its name says; other names say none."""
    room, _, rest = file.path.partition("/")
    return room != "tables" or digest_of(rest.partition("/")[2]) in {None, file.sha256}


def is_inside(path: str) -> bool:
    """Whether a path leads nowhere but into the lake that it is of: no other can be restored."""
    return "\\" not in path and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def undone(backup: Backup, newest: Backup) -> list[str]:
    """Return the removals that the newest backup knows of and a backup lacks: it would bring back what they took."""
    return sorted(set(newest.removals) - set(backup.removals))


def forbidden(backups: Sequence[Backup], keep_days: int, now: datetime) -> dict[int, list[str]]:
    """Return, by number of a backup, the removals that it must not bring back; of each that lacks any.

    What retention took may stay in earlier backups for some days, counted from the first backup that tells of it, as
    in the days of grace of a retention plan. An erased person or a forgotten key may not, from that backup on.

    Parameters
    ----------
    backups
        All of a place, in order.
    """
    # The earliest, not the first: one that was made by a clock ahead would have removed rows stay for years.
    first_told: dict[str, datetime] = {}
    for item in backups:
        first_told |= {each: min(item.created, first_told.get(each, item.created)) for each in item.removals}
    ended = now - timedelta(days=keep_days)

    def is_over(removal: str) -> bool:
        return not removal.startswith(_BY_RETENTION) or first_told[removal] <= ended

    lacking = {item.number: [each for each in undone(item, backups[-1]) if is_over(each)] for item in backups}
    return {number: removals for number, removals in lacking.items() if removals}
