"""Marks beside a spool: which lakes took rows from it.

    <spool>/lakes/<number in the lake's marker>    {"since": day of its first plan}

A lake that is gone would otherwise be made anew from what the spool still has, without its legal holds, its audit trail
and its deletions. A mark vouches for nothing else: whoever writes the spool can write one, and only delays a new lake.
"""

import json
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.reachability import LostLakeError, unreachable
from ranklake.printable import printable_name

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.spool import Spool

_FOLDER: Final = "lakes"
_NUMBER: Final = re.compile(r"[0-9a-f]{32}")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
NOT_MARKED: Final = "cannot be written, so a lake that is lost would be made anew without a word"


def mark_fed(spool: "Spool", number: str) -> None:
    """Write down that a lake takes rows from a spool; where that cannot be, `Spool.passed_over` says so."""
    path = f"{spool.root}/{_FOLDER}/{number}"
    if not _NUMBER.fullmatch(number):
        return
    try:
        if not spool.fs.exists(path):
            spool.put(path, json.dumps({"since": datetime.now(UTC).date().isoformat()}).encode())
    except (OSError, RanklakeError):
        spool.passed_over[printable_name(path)] = NOT_MARKED


def refuse_lost(spool: "Spool", lake_uri: str) -> None:
    """Raise `LostLakeError` where a spool has fed a lake, `LakeUnreachableError` where it cannot be listed."""
    try:
        paths = spool.fs.ls(f"{spool.root}/{_FOLDER}", detail=False)
    except FileNotFoundError:
        return
    except OSError as error:
        raise unreachable(spool.uri, error, {}, what="the spool cannot be listed") from None
    names = (str(path).rstrip("/").rpartition("/")[2] for path in paths)
    numbers = [name for name in names if _NUMBER.fullmatch(name)]
    if numbers:
        days = [day for number in numbers if (day := _since(spool, number))]
        since = f" since {min(days)}" if days else ""
        lakes = "a lake" if len(numbers) == 1 else f"{len(numbers)} lakes"
        raise LostLakeError(f"there is no lake, and this spool has fed {lakes}{since}", lake_uri)


def _since(spool: "Spool", number: str) -> str:
    with suppress(OSError, ValueError, RanklakeError, AttributeError):
        day = str(json.loads(spool.fs.cat_file(f"{spool.root}/{_FOLDER}/{number}")).get("since", ""))
        return day if _DAY.fullmatch(day) else ""
    return ""
