"""The listing cache: which day folders of a spool need no listing now, so that listing stays fast.

A day folder is named after the day of sealing, and late uploads may come to any of them. So today's, yesterday's and
later ones are listed each time; an older one each time while it brings news, and once an hour when it has brought none
for an hour. A late upload to a quiet day is thus seen an hour late at most.

The cache is ``<lake>/rounds/<digest of the spool's place>.json``. It is a hint: if it is lost, damaged or written by
two ingests at once, that costs listings, or leaves a late upload for the next hour.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final

from ranklake.lake.store.files import put_hint
from ranklake.lake.store.json_shape import fault

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store

FOLDER: Final = "rounds"
QUIET: Final = timedelta(hours=1)
RECENT_DAYS: Final = 1
_SHAPE: Final = {"days": {...: {"listed_s": int, "news_s": int}}, "purge": {"old": str, "at_s": int}}


@dataclass(slots=True)
class ListedDay:
    """A day folder: when it was last listed, and when it last brought something new, both in seconds since 1970."""

    listed_s: int
    news_s: int


@dataclass(slots=True)
class ListingCache:
    """The cache: when each old day folder of a spool was listed, and last had news.

    Attributes
    ----------
    days
        By folder name; recent days are always listed and are not here.
    purged
        Which segments were old enough to go when the spool was last purged (`purge_is_due`), and when that was.
    """

    name: str
    days: dict[str, ListedDay] = field(default_factory=dict)
    purged: tuple[str, int] = ("", 0)
    _existing: set[str] = field(default_factory=set)
    _chosen: list[str] = field(default_factory=list)
    _now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @classmethod
    def load(cls, store: "Store", spool: str) -> "ListingCache":
        """Read the cache of a spool; empty where it cannot be read."""
        rounds = cls(f"{FOLDER}/{hashlib.sha256(spool.encode()).hexdigest()[:16]}.json")
        try:
            facts = json.loads(store.fs.cat_file(store.path(rounds.name)))
        except (OSError, ValueError, RecursionError):
            return rounds
        if fault(facts, _SHAPE, "rounds") is None:
            rounds.days = {day: ListedDay(one["listed_s"], one["news_s"]) for day, one in facts["days"].items()}
            rounds.purged = (facts["purge"]["old"], facts["purge"]["at_s"])
        return rounds

    def save(self, store: "Store") -> None:
        """Write the cache in one piece; in a lake that cannot be written there is none."""
        days = {day: {"listed_s": one.listed_s, "news_s": one.news_s} for day, one in self.days.items()}
        raw = json.dumps({"days": days, "purge": {"old": self.purged[0], "at_s": self.purged[1]}}).encode()
        put_hint(store, self.name, raw)

    def may_wait(self, day: str, now: datetime) -> bool:
        """Whether a folder need not be listed now."""
        seen = self.days.get(day)
        if seen is None or is_recent(day, now):
            return False
        since_news, since_look = now.timestamp() - seen.news_s, now.timestamp() - seen.listed_s
        quiet = QUIET.total_seconds()
        return since_news >= quiet and 0 <= since_look < quiet

    def choose(self, there: Iterable[str], now: datetime) -> list[str]:
        """Return which of the existing folders must be listed now. Call `note` afterwards."""
        self._existing = set(there)
        self._chosen = sorted(day for day in self._existing if not self.may_wait(day, now))
        self._now = now
        return self._chosen

    def note(self, news: Iterable[str]) -> bool:
        """Record which of the chosen folders had news; return whether the cache changed.

        Parameters
        ----------
        news
            Folders that had something new.
        """
        before = {day: (one.listed_s, one.news_s) for day, one in self.days.items()}
        at, fresh = int(self._now.timestamp()), set(news)
        old = {day for day in self._existing if not is_recent(day, self._now)}
        for day in old.intersection(self._chosen):
            seen = self.days.get(day)
            self.days[day] = ListedDay(at, at if seen is None or day in fresh else seen.news_s)
        self.days = {day: one for day, one in self.days.items() if day in old}
        return before != {day: (one.listed_s, one.news_s) for day, one in self.days.items()}

    def forget(self, folders: Iterable[str]) -> bool:
        """Force some folders to be listed next time; return whether any was cached."""
        known = {day for day in folders if self.days.pop(day, None) is not None}
        return bool(known)

    def purge_is_due(self, old: Mapping[str, int], now: datetime) -> bool:
        """Whether to look for segments to delete now; if so, records the time.

        Parameters
        ----------
        old
            Counts of old segments; while they stay the same, one look an hour is enough, for late copies.
        """
        state = json.dumps(dict(old), sort_keys=True)
        if state == self.purged[0] and 0 <= now.timestamp() - self.purged[1] < QUIET.total_seconds():
            return False
        self.purged = (state, int(now.timestamp()))
        return True


def is_recent(day: str, now: datetime) -> bool:
    """Whether a folder, with or without its prefix, may still get what is sealed now, or is none of a day."""
    try:
        folder_day = date.fromisoformat(day.rpartition("/")[2])
    except ValueError:
        return True
    return folder_day >= now.astimezone(UTC).date() - timedelta(days=RECENT_DAYS)
