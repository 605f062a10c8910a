"""Deletes from the spool what was ingested long ago."""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.ingest.spool.gate import UnreadError
from ranklake.lake.ingest.spool.packs import Reader, pack_of, settled
from ranklake.lake.ingest.spool.spool import Known, Spool
from ranklake.lake.ingest.spool.spooled import Spooled, identities, is_rewritten, misread
from ranklake.printable import printable_name

HEALED: Final = "was read as damaged, and is sound"

Judge = Callable[[pa.Table], Mapping[str, datetime]]


def purge(
    spool: Spool,
    known: Known,
    of: Callable[[list[Spooled]], pa.Table],
    today: date,
    keep_days: int,
    judge: Judge | None = None,
) -> int:
    """Delete files that were ingested more than `keep_days` before `today`; return how many went.

    Only what a finished plan read may go, and every further copy of it. A pack goes when all of its members may,
    and counts as one.

    Parameters
    ----------
    known
        As for `listing`.
    of
        Given what is in the spool, returns columns table, sha256, uri_name, bytes, unreadable, plan and date of the
        table ``segments``, of that at least.
    judge
        Given the latter, returns by path when a file was found damaged: one that was written since was not read,
        and stays.
    """
    cutoff = pa.scalar(today - timedelta(days=keep_days), pa.date32())
    files = spool.files()
    read_of = known({spool.day_of(path) for path in files})
    all_read = settled(read_of)
    over = settled(read_of.filter(pc.less(read_of["date"], cutoff)))
    may_go = {path: [True] for path in files if path in over}
    items = spool.open({path: one for path, one in files.items() if path not in all_read})
    told = of(items)
    old = told.filter(pc.less(told["date"], cutoff))
    judged = {} if judge is None else judge(told)
    digests, places = identities(old)
    misread_as = misread(old)
    for item in items:
        read = (item.table, item.sha256) in digests
        if not read and (item.path, item.size_bytes) in places and not is_rewritten(item, judged):
            read = misread_as.get(item.path, item.sha256) == item.sha256 or not _is_sound(spool, item)
        may_go.setdefault(pack_of(item.path) or item.path, []).append(read)
    return sum(spool.delete(path) for path, reads in may_go.items() if all(reads))


def _is_sound(spool: Spool, item: Spooled) -> bool:
    """Say whether a file that was read as damaged has the digest in its name after all; then have it read again."""
    try:
        raw = Reader(spool.fs, [item.path]).read(item.path)
    except (OSError, UnreadError):
        return False
    if hashlib.sha256(raw).hexdigest() != item.sha256:
        return False
    spool.passed_over[printable_name(item.path)] = HEALED
    if pack_of(item.path) is None:
        with suppress(OSError, RanklakeError):  # what is newer than the judgement is new
            spool.renew(item.path, raw)
    return True
