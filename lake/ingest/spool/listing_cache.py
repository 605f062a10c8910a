"""The listing cache: which day folders of a spool need no listing now. It keeps ingest fast when a spool has many days.

A day folder is named after the day on which its segments were sealed. A late upload may add a file to any day folder.

- Folders of today, yesterday and later days are listed each time.
- An older folder is listed each time until it has had no new file for an hour, and then once an hour. So ingest finds
  a late upload at most one hour late.

The cache is ``<lake>/rounds/<digest of the spool's address>.json``. It is a hint. If it is lost, damaged, or written by
two ingests at the same time, folders are listed once more, or a late upload is found one hour later.
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
    """A day folder: when it was last listed and when it last had a new file, both in seconds since 1970."""

    listed_s: int
    news_s: int


@dataclass(slots=True)
class ListingCache:
    """The cache of one spool.

    Attributes
    ----------
    days
        Old day folders by name. Recent days are always listed and are not in the cache.
    purged
        The counts of old segments at the last purge (see `purge_is_due`), and its time in seconds since 1970.
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
        cache = cls(f"{FOLDER}/{hashlib.sha256(spool.encode()).hexdigest()[:16]}.json")
        try:
            facts = json.loads(store.fs.cat_file(store.path(cache.name)))
        except (OSError, ValueError, RecursionError):
            return cache
        if fault(facts, _SHAPE, "rounds") is None:
            cache.days = {day: ListedDay(times["listed_s"], times["news_s"]) for day, times in facts["days"].items()}
            cache.purged = (facts["purge"]["old"], facts["purge"]["at_s"])
        return cache

    def save(self, store: "Store") -> None:
        """Write the cache as one file. Does nothing if the lake cannot be written."""
        days = {day: {"listed_s": listed.listed_s, "news_s": listed.news_s} for day, listed in self.days.items()}
        raw = json.dumps({"days": days, "purge": {"old": self.purged[0], "at_s": self.purged[1]}}).encode()
        put_hint(store, self.name, raw)

    def may_wait(self, day: str, now: datetime) -> bool:
        """Whether a folder need not be listed now."""
        listed = self.days.get(day)
        if listed is None or is_recent(day, now):
            return False
        since_news, since_listing = now.timestamp() - listed.news_s, now.timestamp() - listed.listed_s
        quiet = QUIET.total_seconds()
        return since_news >= quiet and 0 <= since_listing < quiet

    def choose(self, folders: Iterable[str], now: datetime) -> list[str]:
        """Return those of the existing folders that must be listed now. Call `note` afterwards."""
        self._existing = set(folders)
        self._chosen = sorted(day for day in self._existing if not self.may_wait(day, now))
        self._now = now
        return self._chosen

    def note(self, changed_folders: Iterable[str]) -> bool:
        """Record the folders that had a new file, of those that `choose` returned; return whether the cache changed."""
        before = {day: (listed.listed_s, listed.news_s) for day, listed in self.days.items()}
        now_s, changed = int(self._now.timestamp()), set(changed_folders)
        old = {day for day in self._existing if not is_recent(day, self._now)}
        for day in old.intersection(self._chosen):
            cached = self.days.get(day)
            self.days[day] = ListedDay(now_s, now_s if cached is None or day in changed else cached.news_s)
        self.days = {day: listed for day, listed in self.days.items() if day in old}
        return before != {day: (listed.listed_s, listed.news_s) for day, listed in self.days.items()}

    def drop(self, folders: Iterable[str]) -> bool:
        """Remove folders from the cache, so that they are listed next time; return whether any was in it."""
        dropped = {day for day in folders if self.days.pop(day, None) is not None}
        return bool(dropped)

    def purge_is_due(self, old: Mapping[str, int], now: datetime) -> bool:
        """Whether the spool should be purged now; if so, the time is recorded.

        Parameters
        ----------
        old
            Counts of old segments. While the counts do not change, the spool is purged once an hour, for late copies.
        """
        state = json.dumps(dict(old), sort_keys=True)
        if state == self.purged[0] and 0 <= now.timestamp() - self.purged[1] < QUIET.total_seconds():
            return False
        self.purged = (state, int(now.timestamp()))
        return True


def is_recent(day: str, now: datetime) -> bool:
    """Whether a folder, with or without prefix, is of yesterday or later, or is no day folder."""
    try:
        folder_day = date.fromisoformat(day.rpartition("/")[2])
    except ValueError:
        return True
    return folder_day >= now.astimezone(UTC).date() - timedelta(days=RECENT_DAYS)
