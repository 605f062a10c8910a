"""The query log of a lake: a small file a query, folded by upkeep, gone after its days.

    <lake>/queries/<date>/<id>.json           one line, written by whoever asked
    <lake>/queries/<date>/<sha256>.jsonl      lines of several, as upkeep folded them

It is a hint of who would miss a column, and no book: a query never waits for it, and is answered without it. A line
that stands in two files, because upkeep died between writing and deleting, counts once, by its id.
"""

import hashlib
import os
import stat
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final

from ranklake.lake.query.usage_record import Asked
from ranklake.lake.store.files import Listed, delete, listed

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

FOLDER: Final = "queries"
LIMIT_S: Final = 2.0
_READERS: Final = 16
_FOLDED_AT_ONCE: Final = 10_000
_ONE: Final = ".json"
_SEVERAL: Final = ".jsonl"
_STRAY: Final = ".tmp"


def note(lake: "Lake", asked: Asked, limit_s: float = LIMIT_S) -> str:
    """Note a query; return why that could not be, in a clause, or "". Never raises, and takes so long at most.

    Readers see all of a file or none. Killed half-way, it leaves a stray temporary file on a local disk.
    """
    failed: list[str] = []

    def work() -> None:
        try:
            _write(lake, f"{FOLDER}/{asked.at.date()}/{asked.id}{_ONE}", asked.line().encode())
        except Exception as error:  # noqa: BLE001 - whatever a store raises, the query was answered
            failed.append(type(error).__name__)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return f"no answer of the store within {limit_s:g} s"
    return failed[0] if failed else ""


def noted(lake: "Lake", since: date) -> Iterator[Asked]:
    """Yield the queries of a date and later, each once, in no order; what cannot be read is passed over."""
    seen: set[str] = set()
    files = [one for day, some in _days(lake).items() if day >= since for one in some]
    with ThreadPoolExecutor(_READERS) as pool:
        for lines in pool.map(lambda one: _lines(lake, one), files):
            for asked in lines:
                if asked.id not in seen:
                    seen.add(asked.id)
                    yield asked


def tidy(lake: "Lake", keep_days: int, *, dry_run: bool = False) -> tuple[int, int]:
    """Fold the files of each date, and delete dates that are over; return how many files went so, and their bytes.

    It can die anywhere and run beside writers, readers and another of its kind. A file that it may not read or delete
    stays, and holds up no other.
    """
    first = datetime.now(UTC).date() - timedelta(days=keep_days)
    files, size = 0, 0
    for day, some in _days(lake).items():
        if day < first:
            gone = some if dry_run else _remove(lake, some)
            files, size = files + len(gone), size + sum(one.size_bytes for one in gone)
        elif not dry_run:
            with suppress(OSError):  # of somebody else's day, or a full disk: the next time, or nobody, folds it
                _fold(lake, day, [one for one in some if one.path.endswith(_ONE)])
    return files, size


def _fold(lake: "Lake", day: date, ones: list[Listed]) -> None:
    for begin in range(0, len(ones), _FOLDED_AT_ONCE):
        some = ones[begin : begin + _FOLDED_AT_ONCE]
        if len(some) < 2:  # noqa: PLR2004 - one file is as well a file
            continue
        with ThreadPoolExecutor(_READERS) as pool:
            read = list(zip(some, pool.map(lambda one: _lines(lake, one), some), strict=True))
        lines = [asked.line() for _, found in read for asked in found]
        if lines:
            raw = "\n".join(lines).encode()  # two who fold at once may have other lines each: none replaces the other
            _write(lake, f"{FOLDER}/{day}/{hashlib.sha256(raw).hexdigest()}{_SEVERAL}", raw)
        _remove(lake, [one for one, found in read if found])  # what a later release wrote stays as it is


def _remove(lake: "Lake", files: list[Listed]) -> list[Listed]:
    """Delete files; return those that are gone."""
    gone = []
    for one in files:
        with suppress(OSError):
            delete(lake, one.path)
            gone.append(one)
    if lake.is_local:
        for folder in {os.path.dirname(one.path) for one in files}:  # noqa: PTH120 - fsspec paths are strings
            with suppress(OSError):  # somebody wrote there meanwhile
                os.rmdir(folder)  # noqa: PTH106 - likewise
    return gone


def _days(lake: "Lake") -> dict[date, list[Listed]]:
    found: defaultdict[date, list[Listed]] = defaultdict(list)
    for one in sorted(listed(lake.fs, lake.path(FOLDER)), key=lambda one: one.path):
        folder, _, _ = one.path.rpartition("/")
        with suppress(ValueError):
            found[date.fromisoformat(folder.rpartition("/")[2])].append(one)
    return found


def _lines(lake: "Lake", one: Listed) -> list[Asked]:
    if not one.path.endswith((_ONE, _SEVERAL)):
        return []
    try:
        raw: bytes = lake.fs.cat_file(one.path)
    except OSError:  # folded meanwhile, and its lines are in another file; or it is for somebody else to read
        return []
    return [asked for line in raw.decode(errors="replace").splitlines() if (asked := Asked.read(line)) is not None]


def _write(lake: "Lake", name: str, raw: bytes) -> None:
    """Write a file whole, without waiting for the disk: a line that a power failure takes is missed by nobody."""
    target = lake.path(name)
    if not lake.is_local:
        lake.fs.pipe_file(target, raw)
        return
    folder = os.path.dirname(target)  # noqa: PTH120 - likewise
    mode = stat.S_IMODE(os.stat(lake.root).st_mode)  # noqa: PTH116 - likewise
    for one in (os.path.dirname(folder), folder):  # noqa: PTH120 - likewise
        with suppress(FileExistsError):
            os.mkdir(one)  # noqa: PTH102 - likewise
            os.chmod(one, mode)  # noqa: PTH101 - who may write to the lake may note a query, whatever the first's umask
    scratch = f"{target}.{uuid.uuid4().hex}{_STRAY}"
    with open(scratch, "wb") as file:  # noqa: PTH123 - likewise
        file.write(raw)
    os.chmod(scratch, mode & 0o666)  # noqa: PTH101 - likewise
    os.replace(scratch, target)  # noqa: PTH105 - likewise
