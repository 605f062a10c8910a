"""The query log of a lake: a small file a query, folded by upkeep, gone after its days.

    <lake>/queries/<date>/<id>.json           one line, written by whoever asked
    <lake>/queries/<date>/<sha256>.jsonl      lines of several, as upkeep folded them

It is a hint of who would miss a column, and no book: a query never waits for it, and is answered without it. A line
that stands in two files, because upkeep died between writing and deleting, counts once, by its id.
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
    """A name that no consumer can have."""


@dataclass(frozen=True, slots=True)
class LoggedQuery:
    """One query.

    Attributes
    ----------
    consumer
        Who asked: a name that was configured, or a login name, which is personal data.
    role
        As which role, by its name; None as none.
    columns
        Columns that it used, by table, as they were called then; none where it only counted rows.
    former
        Former names that it used, by table, and what each stood for then.
    id
        When, in microseconds since 1970, and a random part.
    """

    consumer: str
    role: str | None
    columns: Mapping[str, tuple[str, ...]]
    former: Mapping[str, Mapping[str, str]]
    id: str = field(default_factory=lambda: f"{int(datetime.now(UTC).timestamp() * 1e6):020}-{uuid.uuid4().hex}")

    @property
    def at(self) -> datetime:
        """When it was asked, UTC."""
        return datetime.fromtimestamp(int(self.id[:20]) / 1e6, UTC)

    def line(self) -> str:
        """Return it as a line of JSON."""
        facts = {name: getattr(self, name) for name in ("id", "consumer", "role", "columns", "former")}
        return json.dumps(facts, separators=(",", ":"))

    @classmethod
    def read(cls, line: str) -> Self | None:
        """Return what a line says; None where it is none: half of one, or of a later release."""
        try:
            facts = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if fault(facts, _SHAPE, "query") is not None:
            return None
        columns = {table: tuple(names) for table, names in facts["columns"].items()}
        query = cls(facts["consumer"], facts["role"], columns, facts["former"], facts["id"])
        try:
            query.at  # noqa: B018 - a time beyond all years is none
        except (ValueError, OverflowError, OSError):
            return None
        return query


def consumer_named(name: str) -> str:
    """Return the consumer's name: the given one, else the login name. Raises `ConsumerError`."""
    if not name:
        try:
            name = getpass.getuser()
        except (OSError, KeyError):  # a container without an entry for its user
            return UNKNOWN
        return name if _NAMES.fullmatch(name) else UNKNOWN
    if not _NAMES.fullmatch(name):
        hint = "write up to 128 letters, digits and . _ @ / + -"
        raise ConsumerError("not the name of a consumer", where="--consumer", hint=hint)
    return name


FOLDER: Final = "queries"
LIMIT_S: Final = 2.0
_READERS: Final = 16
_FOLDED_AT_ONCE: Final = 10_000
_ONE: Final = ".json"
_SEVERAL: Final = ".jsonl"
_STRAY: Final = ".tmp"


def note(store: "Store", asked: LoggedQuery, limit_s: float = LIMIT_S) -> str:
    """Note a query; return why that could not be, in a clause, or "". Never raises, and takes so long at most.

    Readers see all of a file or none. Killed half-way, it leaves a stray temporary file on a local disk.
    """
    failed: list[str] = []

    def work() -> None:
        try:
            _write(store, f"{FOLDER}/{asked.at.date()}/{asked.id}{_ONE}", asked.line().encode())
        except Exception as error:  # noqa: BLE001 - whatever a store raises, the query was answered
            failed.append(type(error).__name__)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return f"no answer of the store within {limit_s:g} s"
    return failed[0] if failed else ""


def logged_queries(store: "Store", since: date) -> Iterator[LoggedQuery]:
    """Yield the queries of a date and later, each once, in no order; what cannot be read is passed over."""
    seen: set[str] = set()
    files = [one for day, some in _days(store).items() if day >= since for one in some]
    with ThreadPoolExecutor(_READERS) as pool:
        for lines in pool.map(lambda file: _lines(store, file), files):
            for asked in lines:
                if asked.id not in seen:
                    seen.add(asked.id)
                    yield asked


def tidy(store: "Store", keep_days: int, *, dry_run: bool = False) -> tuple[int, int]:
    """Fold the files of each date, and delete dates that are over; return how many files went so, and their bytes.

    It can die anywhere and run beside writers, readers and another of its kind. A file that it may not read or delete
    stays, and holds up no other.
    """
    first = datetime.now(UTC).date() - timedelta(days=keep_days)
    files, size = 0, 0
    for day, files_of_day in _days(store).items():
        if day < first:
            gone = files_of_day if dry_run else _remove(store, files_of_day)
            files, size = files + len(gone), size + sum(one.size_bytes for one in gone)
        elif not dry_run:
            with suppress(OSError):  # of somebody else's day, or a full disk: the next time, or nobody, folds it
                _fold(store, day, [one for one in files_of_day if one.path.endswith(_ONE)])
    return files, size


def _fold(store: "Store", day: date, ones: list[ListedFile]) -> None:
    for begin in range(0, len(ones), _FOLDED_AT_ONCE):
        batch = ones[begin : begin + _FOLDED_AT_ONCE]
        if len(batch) < 2:  # noqa: PLR2004 - one file is as well a file
            continue
        with ThreadPoolExecutor(_READERS) as pool:
            read = list(zip(batch, pool.map(lambda file: _lines(store, file), batch), strict=True))
        lines = [asked.line() for _, found in read for asked in found]
        if lines:
            raw = "\n".join(lines).encode()  # two who fold at once may have other lines each: none replaces the other
            _write(store, f"{FOLDER}/{day}/{hashlib.sha256(raw).hexdigest()}{_SEVERAL}", raw)
        _remove(store, [one for one, found in read if found])  # what a later release wrote stays as it is


def _remove(store: "Store", files: list[ListedFile]) -> list[ListedFile]:
    """Delete files; return those that are gone."""
    gone = []
    for file in files:
        with suppress(OSError):
            delete(store, file.path)
            gone.append(file)
    if store.is_local:
        for folder in {os.path.dirname(one.path) for one in files}:  # noqa: PTH120 - fsspec paths are strings
            with suppress(OSError):  # somebody wrote there meanwhile
                os.rmdir(folder)  # noqa: PTH106 - likewise
    return gone


def _days(store: "Store") -> dict[date, list[ListedFile]]:
    days: defaultdict[date, list[ListedFile]] = defaultdict(list)
    for file in sorted(listed(store.fs, store.path(FOLDER)), key=lambda file: file.path):
        folder, _, _ = file.path.rpartition("/")
        with suppress(ValueError):
            days[date.fromisoformat(folder.rpartition("/")[2])].append(file)
    return days


def _lines(store: "Store", file: ListedFile) -> list[LoggedQuery]:
    if not file.path.endswith((_ONE, _SEVERAL)):
        return []
    try:
        raw: bytes = store.fs.cat_file(file.path)
    except OSError:  # folded meanwhile, and its lines are in another file; or it is for somebody else to read
        return []
    return [
        asked for line in raw.decode(errors="replace").splitlines() if (asked := LoggedQuery.read(line)) is not None
    ]


def _write(store: "Store", name: str, raw: bytes) -> None:
    """Write a file whole, without waiting for the disk: a line that a power failure takes is missed by nobody."""
    target = store.path(name)
    if not store.is_local:
        store.fs.pipe_file(target, raw)
        return
    folder = os.path.dirname(target)  # noqa: PTH120 - likewise
    mode = stat.S_IMODE(os.stat(store.root).st_mode)  # noqa: PTH116 - likewise
    for path in (os.path.dirname(folder), folder):  # noqa: PTH120 - likewise
        with suppress(FileExistsError):
            os.mkdir(path)  # noqa: PTH102 - likewise
            os.chmod(path, mode)  # noqa: PTH101 - who may write to the lake may note a query, whatever the first's umask
    scratch = f"{target}.{uuid.uuid4().hex}{_STRAY}"
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
        Which, as it was called; no column where only rows were counted.
    now
        What a former name stood for; empty where it was the column's own name.
    consumer
        Who.
    queries
        How many.
    last
        When last, UTC.
    """

    table: str
    column: str
    now: str
    consumer: str
    queries: int
    last: datetime

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "now": self.now or None, "column": self.column or None, "last": self.last.isoformat()}


def logged_uses(store: "Store", since: date, table: str = "", column: str = "") -> list[Use]:
    """Return the uses since a date, of all tables or one, of all its columns or one: former names first."""
    moments: defaultdict[tuple[str, str, str, str], list[datetime]] = defaultdict(list)
    for asked in logged_queries(store, since):
        for key in _used_columns(asked):
            if key[0] == (table or key[0]) and key[1] == (column or key[1]):
                moments[*key, asked.consumer].append(asked.at)
    every = [Use(*key, len(times), max(times)) for key, times in moments.items()]
    return sorted(every, key=lambda use: (not use.now, use.table, use.column, -use.queries, use.consumer))


def _used_columns(asked: "LoggedQuery") -> Iterator[tuple[str, str, str]]:
    for table, names in asked.former.items():
        yield from ((table, name, now) for name, now in names.items())
    for table, columns in asked.columns.items():
        yield from ((table, name, "") for name in columns or ("",))
