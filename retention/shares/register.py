"""The register of a lake's shares, in the lake: which there are, where, and which of their files hold which rows.

    <lake>/shares/<name>/share.json                 the role, and the place; gone when the share is
    <lake>/shares/<name>/<table>/<number>.json      the pieces of a table, as of the last commit there

What is written down of pieces is believed only as far as the share's own log has the files (`pieces.settle`): so it may
be older than the share, or gone, and costs work then, and nothing else.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.files import delete, listed
from ranklake.retention.shares.pieces import Piece

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store

FOLDER: Final = "shares"
_RECORD: Final = "share.json"


class ShareRecordError(RanklakeError):
    """A share of which nobody knows any more whose it is."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share that the lake has.

    Attributes
    ----------
    name
        The role, and a digest of the place.
    role
        Whose.
    uri
        Its place: the prefix that the role may read.
    since
        When it was made, ISO 8601.
    """

    name: str
    role: str
    uri: str
    since: str


@dataclass(frozen=True, slots=True)
class TableRecord:
    """What is written down of one table of a share.

    Attributes
    ----------
    definition
        Digest of how the role sees the table.
    pieces
        See `ranklake.retention.shares.pieces`.
    waiting
        Files that others replaced with the same rows, by path: until when readers may still want them, ISO 8601.
    swept
        Number of the last commit after which files that no commit names were deleted.
    number
        Of the record.
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
    there = [one.path for one in listed(store.fs, store.path(FOLDER)) if one.path.endswith(f"/{_RECORD}")]
    return sorted((_read(store, path) for path in there), key=lambda share: share.name)


def _read(store: "Store", path: str) -> Share:
    try:
        share = Share(**json.loads(store.fs.cat_file(path)))
    except (ValueError, TypeError, RecursionError):
        share = None
    if share is None or not all(isinstance(one, str) for one in asdict(share).values()):
        hint = "restore it from a backup; or delete its folder and the copies, and share again"
        raise ShareRecordError("the record of a share is damaged", where=path, hint=hint)
    return share


def add_share(store: "Store", role: str, uri: str) -> Share:
    """Write a share down, once, and return it."""
    name = name_of(role, uri)
    place = f"{FOLDER}/{name}/{_RECORD}"
    made = Share(name, role, uri, datetime.now(UTC).isoformat())
    if store.put_if_absent(place, json.dumps(asdict(made)).encode()):
        return made
    return _read(store, store.path(place))


def remove_share(store: "Store", share: Share) -> None:
    """Forget a share: its record goes last, so who dies before leaves it to the next."""
    there = [one.path for one in listed(store.fs, store.path(FOLDER, share.name))]
    for path in sorted(there, key=lambda path: path.endswith(f"/{_RECORD}")):
        delete(store, path)


def tables_known(store: "Store", share: Share) -> set[str]:
    """Return the tables of which something is written down."""
    top = store.path(FOLDER, share.name)
    return {rest[0] for one in listed(store.fs, top) if len(rest := one.path.removeprefix(f"{top}/").split("/")) > 1}


def read_entry(store: "Store", share: Share, table: str) -> TableRecord:
    """Return what is written down of a table; nothing where that cannot be read."""
    for number, path in sorted(_records(store, share, table), reverse=True):
        try:
            record = json.loads(store.fs.cat_file(path))
            pieces = tuple(map(Piece.of, record["pieces"]))
            waiting = {str(name): str(until) for name, until in record["waiting"].items()}
            return TableRecord(str(record["definition"]), pieces, waiting, int(record["swept"]), number)
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return TableRecord()


def write_down(store: "Store", share: Share, table: str, now: TableRecord) -> TableRecord:
    """Write down what is known of a table now, in place of what was before; return it with its number.

    Two that do it at once both say what is so, as far as the share's log has it.
    """
    facts = {name: getattr(now, name) for name in ("definition", "waiting", "swept")}
    body = {**facts, "pieces": [piece.plain() for piece in now.pieces]}
    number, raw = now.number, json.dumps(body).encode()
    while True:
        number += 1
        if store.put_if_absent(f"{FOLDER}/{share.name}/{table}/{number:010}.json", raw):
            break
    for older, path in _records(store, share, table):
        if older < number:
            delete(store, path)
    return replace(now, number=number)


def _records(store: "Store", share: Share, table: str) -> Iterator[tuple[int, str]]:
    for entry in listed(store.fs, store.path(FOLDER, share.name, table)):
        stem = entry.path.rpartition("/")[2].removesuffix(".json")
        if stem.isdecimal():
            yield int(stem), entry.path
