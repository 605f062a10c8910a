"""Moves the files of the fallback spool into the first spool, under the same names and with the same bytes.

    fallback/segments/…  ──read──▶ spool/segments/…  ──read back, equal──▶ deleted from the fallback

After an interrupted move, the file is in both spools and is moved again. An agent may also have sent a segment to both
spools. This does no harm, since ingest stores a slot once.
"""

from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.lake.ingest.spool.gate import TOO_LARGE, UnreadError, fetch
from ranklake.printable import printable_name

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.listing_cache import ListingCache
    from ranklake.lake.ingest.spool.spool import Spool

DIFFERS: Final = "the first spool has other bytes under the name of this file of the fallback spool"


def move_back(spool: "Spool", listing_cache: "ListingCache") -> int:
    """Move all files of the fallback spool into the first; return the number of files moved.

    A failing store raises no error. Files that could not be moved are in `Spool.passed_over` with the reason, and a
    later ingest moves them.

    Parameters
    ----------
    listing_cache
        Cache of the first spool's listings. Day folders that got a file are dropped from it.
    """
    fallback = spool.fallback
    if fallback is None:
        return 0
    moved = 0
    path = printable_name(fallback.address)
    try:
        for path, file in sorted(fallback.files().items()):
            if file.size_bytes > spool.config.ingest.segment_bytes:
                fallback.passed_over[printable_name(path)] = TOO_LARGE
                continue
            try:
                moved += _move(spool, fallback, path, listing_cache)
            except FileNotFoundError:  # another ingest was faster
                continue
            except UnreadError as error:
                fallback.passed_over[printable_name(path)] = error.what
    except (OSError, RanklakeError) as error:
        reason = error.what if isinstance(error, RanklakeError) else type(error).__name__
        fallback.passed_over[printable_name(path)] = f"cannot be moved from the fallback spool: {reason}"
    spool.passed_over |= fallback.passed_over
    return moved


def _move(spool: "Spool", fallback: "Spool", path: str, listing_cache: "ListingCache") -> int:
    raw, target = fetch(fallback.fs, path, root=fallback.root), f"{spool.root}/{fallback.path_of(path)}"
    spool.put(target, raw)
    if fetch(spool.fs, target, root=spool.root) != raw:
        fallback.passed_over[printable_name(path)] = DIFFERS
        return 0
    listing_cache.drop([spool.folder_of(target)])
    return fallback.delete(path)
