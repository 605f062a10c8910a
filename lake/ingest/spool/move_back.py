"""Move what agents sent to the fallback spool into the first, unchanged: the same names, the same bytes.

    fallback/segments/…  ──read──▶ spool/segments/…  ──read back, equal──▶ deleted from the fallback

Killed anywhere, an object is in both and is moved again. So may a segment be that the agent sent to both: ingest stores
a slot once.
"""

from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.lake.ingest.spool.gate import TOO_LARGE, UnreadError, fetch
from ranklake.printable import printable_name

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.listing_cache import ListingCache
    from ranklake.lake.ingest.spool.spool import Spool

DIFFERS: Final = "the first spool has other bytes under the name of this file of the fallback spool"


def move_back(spool: "Spool", rounds: "ListingCache") -> int:
    """Move all whole files of the fallback spool into the first; return how many went.

    Nothing is raised for a store that fails: what stays is in `Spool.passed_over`, with the reason, for a later ingest.

    Parameters
    ----------
    rounds
        Forgets the day folders that got something.
    """
    second = spool.fallback
    if second is None:
        return 0
    moved = 0
    path = printable_name(second.address)
    try:
        for path, file in sorted(second.files().items()):
            if file.size_bytes > spool.config.ingest.segment_bytes:
                second.passed_over[printable_name(path)] = TOO_LARGE
                continue
            try:
                moved += _move(spool, second, path, rounds)
            except FileNotFoundError:  # another ingest was faster
                continue
            except UnreadError as error:
                second.passed_over[printable_name(path)] = error.what
    except (OSError, RanklakeError) as error:
        reason = error.what if isinstance(error, RanklakeError) else type(error).__name__
        second.passed_over[printable_name(path)] = f"cannot be moved from the fallback spool: {reason}"
    spool.passed_over |= second.passed_over
    return moved


def _move(spool: "Spool", second: "Spool", path: str, rounds: "ListingCache") -> int:
    raw, target = fetch(second.fs, path, root=second.root), f"{spool.root}/{second.path_of(path)}"
    spool.put(target, raw)
    if fetch(spool.fs, target, root=spool.root) != raw:
        second.passed_over[printable_name(path)] = DIFFERS
        return 0
    rounds.forget([spool.folder_of(target)])
    return second.delete(path)
