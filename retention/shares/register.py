"""The register of a lake's shares, in the lake: their roles, places and pieces.

    <lake>/shares/<name>/share.json                 the role and the place; deleted last when a share is dropped
    <lake>/shares/<name>/<table>/<number>.json      the pieces of a table, as of the last commit to the share

A recorded piece counts only if the share's Delta log has its files (`copies.split_pieces`). So a record may be old or
missing, which only costs copying again.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.files import delete, listed
from ranklake.retention.shares.copies import Piece

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store

FOLDER: Final = "shares"
_RECORD: Final = "share.json"


class ShareRecordError(RanklakeError):
    """The record of a share is damaged, so its role is unknown."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of the lake.

    Attributes
    ----------
    name
        The role and a digest of the place.
    role
        The role whose view is shared.
    uri
        The prefix that readers of the share may read.
    since
        When it was made, ISO 8601.
    """

    name: str
    role: str
    uri: str
    since: str


@dataclass(frozen=True, slots=True)
class TableRecord:
    """The record of one table of a share.

    Attributes
    ----------
    definition
        Digest of how the role sees the table.
    pieces
        The pieces (`ranklake.retention.shares.copies`).
    waiting
        Files that were replaced by files with the same rows, by path, with the time until which they are kept for
        readers of older versions, ISO 8601.
    swept
        Number of the last commit after which unused files were deleted.
    number
        Number of the record.
    """

    definition: str = ""
    pieces: tuple[Piece, ...] = ()
    waiting: dict[str, str] = field(default_factory=dict)
    swept: int = -1
    number: int = 0


def name_of(role: str, uri: str) -> str:
    """Return the name of a role's share at a place."""
    return f"{role}-{hashlib.sha256(uri.encode()).hexdigest()[:12]}"


def shares(store: "Store") -> list[Share]:
    """Return the lake's shares, by name. Raises `ShareRecordError` for a record that cannot be read."""
    paths = [file.path for file in listed(store.fs, store.path(FOLDER)) if file.path.endswith(f"/{_RECORD}")]
    return sorted((_read(store, path) for path in paths), key=lambda share: share.name)


def _read(store: "Store", path: str) -> Share:
    try:
        share = Share(**json.loads(store.fs.cat_file(path)))
    except (ValueError, TypeError, RecursionError):
        share = None
    if share is None or not all(isinstance(value, str) for value in asdict(share).values()):
        hint = "restore it from a backup; or delete its folder and the copies, and share again"
        raise ShareRecordError("the record of a share is damaged", where=path, hint=hint)
    return share


def add_share(store: "Store", role: str, uri: str) -> Share:
    """Write the record of a share unless it exists, and return the share."""
    name = name_of(role, uri)
    place = f"{FOLDER}/{name}/{_RECORD}"
    share = Share(name, role, uri, datetime.now(UTC).isoformat())
    if store.put_if_absent(place, json.dumps(asdict(share)).encode()):
        return share
    return _read(store, store.path(place))


def remove_share(store: "Store", share: Share) -> None:
    """Delete all records of a share; the share's own record last, so that the next call continues after a crash."""
    paths = [file.path for file in listed(store.fs, store.path(FOLDER, share.name))]
    for path in sorted(paths, key=lambda path: path.endswith(f"/{_RECORD}")):
        delete(store, path)


def recorded_tables(store: "Store", share: Share) -> set[str]:
    """Return the tables that have a record in a share."""
    top = store.path(FOLDER, share.name)
    paths = (file.path.removeprefix(f"{top}/") for file in listed(store.fs, top))
    return {path.partition("/")[0] for path in paths if "/" in path}


def read_entry(store: "Store", share: Share, table: str) -> TableRecord:
    """Return the newest readable record of a table; an empty record if there is none."""
    for number, path in sorted(_records(store, share, table), reverse=True):
        try:
            record = json.loads(store.fs.cat_file(path))
            pieces = tuple(map(Piece.of, record["pieces"]))
            waiting = {str(name): str(until) for name, until in record["waiting"].items()}
            return TableRecord(str(record["definition"]), pieces, waiting, int(record["swept"]), number)
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return TableRecord()


def write_entry(store: "Store", share: Share, table: str, record: TableRecord) -> TableRecord:
    """Write the record of a table under a new number, and delete older ones; return it with its number.

    Two concurrent writers get two numbers. Either record is valid, since only pieces in the share's log count.
    """
    facts = {name: getattr(record, name) for name in ("definition", "waiting", "swept")}
    body = {**facts, "pieces": [piece.plain() for piece in record.pieces]}
    number, raw = record.number, json.dumps(body).encode()
    while True:
        number += 1
        if store.put_if_absent(f"{FOLDER}/{share.name}/{table}/{number:010}.json", raw):
            break
    for older, path in _records(store, share, table):
        if older < number:
            delete(store, path)
    return replace(record, number=number)


def _records(store: "Store", share: Share, table: str) -> Iterator[tuple[int, str]]:
    for entry in listed(store.fs, store.path(FOLDER, share.name, table)):
        stem = entry.path.rpartition("/")[2].removesuffix(".json")
        if stem.isdecimal():
            yield int(stem), entry.path
