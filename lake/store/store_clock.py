"""The clock of a lake's store, by which a machine's own is judged before anything goes for its age.

<lake>/clock               a file without bytes; when it was written is the store's time, and no one's of ours
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.listing import written
from ranklake.lake.store.rewriting import overwrite

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

CLOCK: Final = "clock"
TOLERATED: Final = timedelta(days=1)


class FastClockError(RanklakeError):
    """A clock by which rows would go before their time. Nothing was removed."""


def refuse_fast(lake: "Lake") -> None:
    """Raise `FastClockError` where this machine's clock is more than a day ahead of the store's.

    A local disk has the machine's clock, so nothing is found there. Raises what the store raises.
    """
    path = lake.path(CLOCK)
    overwrite(lake.fs, path, b"", local=lake.is_local)
    at, now = written(lake.fs.info(path)), datetime.now(UTC)
    if at is not None and now - at > TOLERATED:
        what = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC, and that of the store {at:%Y-%m-%d %H:%M}"
        raise FastClockError(what, where=lake.uri, hint="set the clock: rows would go before their time")
