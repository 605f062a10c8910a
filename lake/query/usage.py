"""The query log of a lake: which columns each query used. It shows who is affected if a column is removed.

    <lake>/queries/<date>/<id>.json           one query, written by the process that ran it
    <lake>/queries/<date>/<sha256>.jsonl      several queries, merged by upkeep

The log is a hint, not a complete record: if an entry cannot be written, the query still succeeds. Upkeep deletes
entries after a number of days. If upkeep is killed between writing and deleting, a query may be in two files. It is
counted once, by its id.
"""

import getpass
import hashlib
import json
import os
import re
import stat
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from ranklake.errors import RanklakeError
from ranklake.lake.store.files import ListedFile, delete, listed
from ranklake.lake.store.json_shape import Bounded, Nullable, fault

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store

UNKNOWN: Final = "unknown"
_NAMES: Final = re.compile(r"[\w.@/+-]{1,128}")
_WORD: Final = re.compile(r"\w{1,128}")
_ID: Final = re.compile(r"[0-9]{20}-[0-9a-f]{32}")
_SHAPE: Final = {
    "id": _ID,
    "consumer": _NAMES,
    "role": Nullable(str),
    "columns": {_WORD: Bounded(10_000, [_WORD])},
    "former": {_WORD: {_WORD: _WORD}},
}


class ConsumerError(RanklakeError):
    """An invalid name of a consumer."""


@dataclass(frozen=True, slots=True)
class LoggedQuery:
    """A query in the log.

    Attributes
    ----------
    consumer
        The configured name of the program or person, or a login name, which is personal data.
    role
        Name of the role; None without a role.
    columns
        Columns that the query used, by table, under their names at that time. Empty if it only counted rows.
    former
        Former names that the query used, by table, and the current name of each at that time.
    id
        Time in microseconds since 1970, and a random part.
    """

    consumer: str
    role: str | None
    columns: Mapping[str, tuple[str, ...]]
    former: Mapping[str, Mapping[str, str]]
    id: str = field(default_factory=lambda: f"{int(datetime.now(UTC).timestamp() * 1e6):020}-{uuid.uuid4().hex}")

    @property
    def at(self) -> datetime:
        """Time of the query, UTC."""
        return datetime.fromtimestamp(int(self.id[:20]) / 1e6, UTC)

    def line(self) -> str:
        """Return the query as a line of JSON."""
        facts = {name: getattr(self, name) for name in ("id", "consumer", "role", "columns", "former")}
        return json.dumps(facts, separators=(",", ":"))

    @classmethod
    def read(cls, line: str) -> Self | None:
        """Parse a line; None if it is incomplete or from a later release."""
        try:
            facts = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if fault(facts, _SHAPE, "query") is not None:
            return None
        columns = {table: tuple(names) for table, names in facts["columns"].items()}
        query = cls(facts["consumer"], facts["role"], columns, facts["former"], facts["id"])
        try:
            query.at  # noqa: B018 - raises if the time is out of Python's range
        except (ValueError, OverflowError, OSError):
            return None
        return query


def consumer_named(name: str) -> str:
    """Return `name`, or the login name if it is empty. Raises `ConsumerError` if the name is invalid."""
    if not name:
        try:
            name = getpass.getuser()
        except (OSError, KeyError):  # the container has no passwd entry for its user
            return UNKNOWN
        return name if _NAMES.fullmatch(name) else UNKNOWN
    if not _NAMES.fullmatch(name):
        hint = "write up to 128 letters, digits and . _ @ / + -"
        raise ConsumerError("not the name of a consumer", where="--consumer", hint=hint)
    return name


FOLDER: Final = "queries"
LIMIT_S: Final = 2.0
_READERS: Final = 16
_MERGE_BATCH: Final = 10_000
_SINGLE: Final = ".json"
_MERGED: Final = ".jsonl"
_TEMPORARY: Final = ".tmp"


def note(store: "Store", query: LoggedQuery, limit_s: float = LIMIT_S) -> str:
    """Write a query to the log; return why it could not be written, in a clause, or "".

    Never raises an error, and returns after `limit_s` seconds at most. Readers see the complete file or none. A process
    that is killed meanwhile leaves a temporary file on a local disk.
    """
    errors: list[str] = []

    def write() -> None:
        try:
            _write(store, f"{FOLDER}/{query.at.date()}/{query.id}{_SINGLE}", query.line().encode())
        except Exception as error:  # noqa: BLE001 - a store may raise anything, and the query has succeeded
            errors.append(type(error).__name__)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return f"no answer of the store within {limit_s:g} s"
    return errors[0] if errors else ""


def logged_queries(store: "Store", since: date) -> Iterator[LoggedQuery]:
    """Yield the queries of a date and later, each once, in no order. Unreadable files and lines are skipped."""
    seen: set[str] = set()
    files = [file for day, day_files in _files_by_day(store).items() if day >= since for file in day_files]
    with ThreadPoolExecutor(_READERS) as pool:
        for queries in pool.map(lambda file: _read_queries(store, file), files):
            for query in queries:
                if query.id not in seen:
                    seen.add(query.id)
                    yield query


def tidy(store: "Store", keep_days: int, *, dry_run: bool = False) -> tuple[int, int]:
    """Merge the files of each date, and delete dates older than `keep_days`.

    It may be killed at any point, and may run at the same time as writers, readers and another call. Files that cannot
    be read or deleted are skipped.

    Returns the number of deleted files of old dates, and their bytes.
    """
    first = datetime.now(UTC).date() - timedelta(days=keep_days)
    files, size = 0, 0
    for day, day_files in _files_by_day(store).items():
        if day < first:
            removed = day_files if dry_run else _remove(store, day_files)
            files, size = files + len(removed), size + sum(file.size_bytes for file in removed)
        elif not dry_run:
            with suppress(OSError):  # without permission or with a full disk, the files are left unmerged
                _merge(store, day, [file for file in day_files if file.path.endswith(_SINGLE)])
    return files, size


def _merge(store: "Store", day: date, files: list[ListedFile]) -> None:
    for begin in range(0, len(files), _MERGE_BATCH):
        batch = files[begin : begin + _MERGE_BATCH]
        if len(batch) < 2:  # noqa: PLR2004 - one file needs no merge
            continue
        with ThreadPoolExecutor(_READERS) as pool:
            read = list(zip(batch, pool.map(lambda file: _read_queries(store, file), batch), strict=True))
        lines = [query.line() for _, queries in read for query in queries]
        if lines:
            raw = "\n".join(lines).encode()  # named by digest, so concurrent merges cannot replace each other's file
            _write(store, f"{FOLDER}/{day}/{hashlib.sha256(raw).hexdigest()}{_MERGED}", raw)
        _remove(store, [file for file, queries in read if queries])  # files of a later release are kept


def _remove(store: "Store", files: list[ListedFile]) -> list[ListedFile]:
    """Delete files; return those that were deleted."""
    removed = []
    for file in files:
        with suppress(OSError):
            delete(store, file.path)
            removed.append(file)
    if store.is_local:
        for folder in {os.path.dirname(file.path) for file in files}:  # noqa: PTH120 - fsspec paths are strings
            with suppress(OSError):  # another process wrote a file there meanwhile
                os.rmdir(folder)  # noqa: PTH106 - likewise
    return removed


def _files_by_day(store: "Store") -> dict[date, list[ListedFile]]:
    days: defaultdict[date, list[ListedFile]] = defaultdict(list)
    for file in sorted(listed(store.fs, store.path(FOLDER)), key=lambda file: file.path):
        folder, _, _ = file.path.rpartition("/")
        with suppress(ValueError):
            days[date.fromisoformat(folder.rpartition("/")[2])].append(file)
    return days


def _read_queries(store: "Store", file: ListedFile) -> list[LoggedQuery]:
    if not file.path.endswith((_SINGLE, _MERGED)):
        return []
    try:
        raw: bytes = store.fs.cat_file(file.path)
    except OSError:  # merged into another file meanwhile, or not readable by this user
        return []
    return [
        query for line in raw.decode(errors="replace").splitlines() if (query := LoggedQuery.read(line)) is not None
    ]


def _write(store: "Store", name: str, raw: bytes) -> None:
    """Write a file atomically, without fsync, since losing an entry in a power failure does no harm."""
    target = store.path(name)
    if not store.is_local:
        store.fs.pipe_file(target, raw)
        return
    folder = os.path.dirname(target)  # noqa: PTH120 - likewise
    mode = stat.S_IMODE(os.stat(store.root).st_mode)  # noqa: PTH116 - likewise
    for path in (os.path.dirname(folder), folder):  # noqa: PTH120 - likewise
        with suppress(FileExistsError):
            os.mkdir(path)  # noqa: PTH102 - likewise
            os.chmod(path, mode)  # noqa: PTH101 - all who may write to the lake may log, whatever the creator's umask
    scratch = f"{target}.{uuid.uuid4().hex}{_TEMPORARY}"
    with open(scratch, "wb") as file:  # noqa: PTH123 - likewise
        file.write(raw)
    os.chmod(scratch, mode & 0o666)  # noqa: PTH101 - likewise
    os.replace(scratch, target)  # noqa: PTH105 - likewise


@dataclass(frozen=True, slots=True)
class Use:
    """How often a consumer used a column.

    Attributes
    ----------
    table, column
        The table, and the column's name in the queries; empty if only rows were counted.
    now
        For a former name, the column's current name at that time; else empty.
    consumer
        Name of the consumer.
    queries
        Number of queries.
    last
        Time of the last query, UTC.
    """

    table: str
    column: str
    now: str
    consumer: str
    queries: int
    last: datetime

    def plain(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {**asdict(self), "now": self.now or None, "column": self.column or None, "last": self.last.isoformat()}


def logged_uses(store: "Store", since: date, table: str = "", column: str = "") -> list[Use]:
    """Return the uses of columns since a date, former names first.

    Parameters
    ----------
    table, column
        Only uses of this table or column; empty for all.
    """
    times_by_key: defaultdict[tuple[str, str, str, str], list[datetime]] = defaultdict(list)
    for query in logged_queries(store, since):
        for key in _used_columns(query):
            if key[0] == (table or key[0]) and key[1] == (column or key[1]):
                times_by_key[*key, query.consumer].append(query.at)
    uses = [Use(*key, len(times), max(times)) for key, times in times_by_key.items()]
    return sorted(uses, key=lambda use: (not use.now, use.table, use.column, -use.queries, use.consumer))


def _used_columns(query: "LoggedQuery") -> Iterator[tuple[str, str, str]]:
    """Yield table, column and current name for each column that a query used."""
    for table, names in query.former.items():
        yield from ((table, name, now) for name, now in names.items())
    for table, columns in query.columns.items():
        yield from ((table, name, "") for name in columns or ("",))
