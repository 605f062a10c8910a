"""The place of a lake's backups: file contents by digest, and a numbered manifest for each backup.

    <to>/ranklake-backup.json            the owner: the lake's identity
    <to>/objects/<ab>/<sha256>           bytes of the lake's files, stored once for all backups
    <to>/backups/<number>.json           the manifest of a backup; written last, so an unfinished backup has none
    <to>/drills/<UTC time>.json          the results of a drill

If the operator configures a key, all but the first file is encrypted; see `unlock`. Manifests are written
put-if-absent, so of two concurrent backups one starts again.
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
    """A place of backups with the key that encrypts them."""

    key: Key | None = field(default=None, repr=False, compare=False)


def key_of(place: Store) -> Key | None:
    """Return the key of a place; None if its files are not encrypted."""
    return place.key if isinstance(place, EncryptedPlace) else None


def with_key(place: Store, key: Key) -> EncryptedPlace:
    """Return a place whose files are read and written under a key."""
    return EncryptedPlace(place.uri, place.storage, place.fs, place.root, key)


def address(place: Store, sha256: str) -> str:
    """Return the name of the object with a digest: the digest, or its keyed hash in an encrypted place."""
    key = key_of(place)
    return sha256 if key is None else hmac.digest(key.backup_secret, sha256.encode(), "sha256").hex()


def read_file(place: Store, name: str) -> bytes:
    """Return the bytes of a file of a place, decrypted.

    Raises `FileNotFoundError`, and `ranklake.segments.envelope.NotAuthenticError` if the file was changed.
    """
    raw, key = bytes(place.fs.cat_file(place.path(name))), key_of(place)
    return raw if key is None else decrypt(key, raw, _bond(name))


def write_file(place: Store, name: str, raw: bytes) -> int:
    """Write a file unless it exists; return the number of written bytes, 0 if it exists."""
    key = key_of(place)
    written = raw if key is None else encrypt(key, raw, _bond(name))
    return len(written) if place.put_if_absent(name, written) else 0


def _bond(name: str) -> bytes:
    """Return the associated data of a file's encryption, so that it opens only under this name and not as a segment."""
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
    """A place cannot hold backups, or a backup cannot be restored. Nothing was overwritten."""


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A file of the lake: its path there, its size, the digest of its bytes, and when it was written (ISO, UTC)."""

    path: str
    size_bytes: int
    sha256: str
    modified: str


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of a table in a backup: version of its Delta log, and numbers of live files and rows."""

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
        Number of the backup, from 1.
    created
        When the versions of all tables were read, UTC: the point in time that a restore returns to.
    ranklake
        Version of ranklake that made it.
    removals
        Removals for good until then: plans of retention, erasure and purge, and marks of deleted keys.
    tables
        States by table.
    files
        The files, sorted by path.
    damaged
        Live files whose bytes differ from the digest in their names, and that no earlier backup has intact.
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
        """Path of the manifest in its place."""
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
        """Return the manifest as JSON bytes."""
        body = {**asdict(self), "format": FORMAT, "created": self.created.isoformat()}
        return json.dumps(body, sort_keys=True).encode()


def object_name(name: str) -> str:
    """Return the path of an object in a place of backups, by its `address`."""
    return f"{OBJECTS}/{name[:2]}/{name}"


def claim(lake: "Lake", uri: str) -> Store:
    """Mark a place as owned by this lake, and return it. A second call changes nothing.

    Raises `BackupError` if another lake owns the place, if it is not empty, or if it overlaps the lake or its spool.
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
        # A concurrent backup writes its marker first. If the listing shows its files, the marker exists by now.
        if others and not place.fs.exists(place.path(MARKER)):
            raise BackupError("the place is not empty, and holds no backups", where=uri, hint="name an empty place")
        mark: dict[str, Any] = {"format": FORMAT, "lake": owner(lake.store)}
        if lake.config.backup.key:
            key = read_keyring(lake.config.backup.key).active
            mark |= {"format": ENCRYPTED_FORMAT, "key": key.id}
            encrypt(key, b"", b"")  # fails before the marker is written if the library is missing
        place.put_if_absent(MARKER, json.dumps(mark).encode())
    place = unlock(place, lake.config.backup.key)
    if lake_of(place) != owner(lake.store):
        raise BackupError("backups of another lake are there", where=uri, hint="name another place")
    return place


def unlock(place: Store, source: str) -> Store:
    """Return a place with the key of its backups, if they are encrypted.

    Parameters
    ----------
    source
        Reference to the keyring; empty for none.

    Raises `BackupError` if the place has no marker, if the backups are encrypted and the keyring lacks the key, or if
    they are not encrypted and a keyring is configured.
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
    """Return the identity of the lake that owns a place of backups.

    Raises `BackupError` if the place has no marker, or if the backups are encrypted and the place has no key.
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
        lake, format_, key = str(marker["lake"]), int(marker["format"]), str(marker.get("key", ""))
    except FileNotFoundError:
        is_lake = place.fs.exists(place.path(LAKE_MARKER))
        hint = "a lake is there: name the place of its backups" if is_lake else "name the place of 'ranklake backup'"
        raise BackupError("no backups are there", where=place.uri, hint=hint) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BackupError(f"{MARKER} cannot be read", where=place.uri, hint="restore that file") from None
    _refuse_newer(format_, place.path(MARKER))
    return _Marker(lake, key)


def _refuse_newer(format_: int, where: str) -> None:
    if format_ > ENCRYPTED_FORMAT:
        message = f"backups of format {format_}, and this ranklake reads {ENCRYPTED_FORMAT}"
        raise BackupError(message, where=where, hint="upgrade")


def backups_of(place: Store) -> list[Backup]:
    """Return all backups of a place, in order. Raises the errors of `read_backup`."""
    return [read_backup(place, number) for number in numbers_of(place)]


def newest_backup_time(place: Store) -> datetime | None:
    """Return when the newest manifest of a place was written, by the store's clock; None if there is none."""
    entries = [file for file in listed(place.fs, place.path(BACKUPS)) if file.path.endswith(".json")]
    return max(entries, key=lambda file: file.path).modified if entries else None


def numbers_of(place: Store) -> list[int]:
    """Return the numbers of all backups of a place, in order."""
    names = (file.path.rpartition("/")[2] for file in listed(place.fs, place.path(BACKUPS)))
    return sorted(int(name[:_DIGITS]) for name in names if name[:_DIGITS].isdigit() and name[_DIGITS:] == ".json")


def read_backup(place: Store, number: int) -> Backup:
    """Return the manifest of a backup. Raises `BackupError` if it is missing, damaged, or of a newer ranklake."""
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
        numbers = ", ".join(map(str, numbers_of(place))) or "none"
        raise BackupError(f"no backup {number}", where=place.uri, hint=f"there are: {numbers}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, NotAuthenticError):
        raise BackupError("the backup's manifest is damaged", where=where, hint=_LOST) from None


def bytes_of(place: Store, file: BackupFile) -> bytes:
    """Return the bytes of a file. Raises `BackupError` if they are missing or damaged."""
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
    """Return why no backup can have written a manifest, as a clause; empty if one can.

    Raises `TypeError` for values of other types.
    """
    paths = {file.path for file in files}
    folders = {folder for path in paths for folder in _folders(path)}
    logs = {path.split("/")[1] for path in paths if path.startswith("tables/") and "/_delta_log/" in path}
    sizes = [file.size_bytes for file in files]
    counts = [count for state in tables.values() for count in (state.version, state.files, state.rows)]
    if not all(type(count) is int for count in (*sizes, *counts)):
        raise TypeError
    rules = {
        "names a file outside of the lake": not all(_DIGEST.fullmatch(f.sha256) and is_inside(f.path) for f in files),
        "gives a data file other bytes": not all(map(_is_of_its_name, files)),
        "names a file twice": len(paths) < len(files),
        "names a file that lies in another": bool(paths & folders),
        "gives a size or a count that cannot be": min((*sizes, *counts), default=0) < 0,
        f"lacks {LAKE_MARKER}, without which there is no lake": LAKE_MARKER not in paths,
        "names other tables than it has logs of": logs != tables.keys(),
    }
    return next((text for text, is_broken in rules.items() if is_broken), "")


def _folders(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _is_of_its_name(file: BackupFile) -> bool:
    """Whether a file has the digest in its name; True for files without a digest in their name."""
    room, _, rest = file.path.partition("/")
    return room != "tables" or digest_of(rest.partition("/")[2]) in {None, file.sha256}


def is_inside(path: str) -> bool:
    """Whether a path stays inside the lake. Other paths are never backed up or restored."""
    return "\\" not in path and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def undone(backup: Backup, newest: Backup) -> list[str]:
    """Return the removals in the newest backup that a backup lacks, so that its restore would undo them."""
    return sorted(set(newest.removals) - set(backup.removals))


def forbidden(backups: Sequence[Backup], keep_days: int, now: datetime) -> dict[int, list[str]]:
    """Return, by number of the backup, the removals that its restore would undo and may not.

    Earlier backups may keep rows that retention removed for `keep_days`, counted from the first backup with the
    removal. An erased person and a deleted key may not be restored from the first such backup on.

    Parameters
    ----------
    backups
        All backups of a place, in order.
    """
    # The earliest time, since a backup made by a fast clock would otherwise keep removed rows for years.
    first_recorded: dict[str, datetime] = {}
    for item in backups:
        for removal in item.removals:
            first_recorded[removal] = min(item.created, first_recorded.get(removal, item.created))
    ended = now - timedelta(days=keep_days)

    def is_final(removal: str) -> bool:
        return not removal.startswith(_BY_RETENTION) or first_recorded[removal] <= ended

    newest = backups[-1] if backups else None
    by_number = {item.number: undone(item, newest) for item in backups if newest is not None}
    final = {number: [removal for removal in removals if is_final(removal)] for number, removals in by_number.items()}
    return {number: removals for number, removals in final.items() if removals}
