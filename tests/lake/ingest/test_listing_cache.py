"""Listing the spool by day: what was settled costs nothing, and nothing that comes late is lost."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from bringing import adds_up, bring
from fsspec.implementations.memory import MemoryFileSystem
from segments import put_segment, segment_bytes, step_rows

from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool import spool as spool_module
from ranklake.lake.ingest.spool.listing_cache import QUIET, ListingCache, is_recent
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Clock(datetime):
    """A clock that tests set."""

    at = NOW

    @classmethod
    def now(cls, tz=None):
        """Return the time that was set."""
        return cls.at if tz else cls.at.replace(tzinfo=None)


@pytest.fixture
def clock(monkeypatch):
    """Set the time at which the spool is looked at."""
    monkeypatch.setattr(spool_module, "datetime", Clock)
    Clock.at = NOW
    return Clock


@pytest.fixture
def asked():
    """Count listings of the memory store by what they list."""
    counts = Counter()

    class Counting(MemoryFileSystem):
        cachable = False

        def ls(self, path, detail=True, **options):
            counts[path.strip("/").rpartition("/")[2]] += 1
            return super().ls(path, detail, **options)

        def find(self, path, *arguments, **options):
            counts[path.strip("/").rpartition("/")[2]] += 1
            return super().find(path, *arguments, **options)

    yield counts, Counting()
    Counting.store.clear()


def put(fs, day, segment):
    name, raw = segment_bytes(step_rows(5, segment=segment), rows_before=5 * segment)
    fs.pipe_file(f"/rounds/segments/{day}/{name}", raw)


def test_old_days_are_left_alone_once_they_are_quiet(lake, clock, asked):
    """A week that is kept costs one look at the names of its days; a late upload is found within the hour."""
    counts, fs = asked
    spool = Spool("memory://rounds")
    spool.fs = fs
    days = [f"2026-03-{day:02}" for day in range(4, 11)]
    for number, day in enumerate(days):
        put(fs, day, number)
    assert ingest(lake, spool, InProcess()).rows_stored == 35
    clock.at += QUIET + MINUTE
    ingest(lake, spool, InProcess())  # the hourly look at what had no news for an hour
    counts.clear()
    clock.at += MINUTE
    put(fs, "2026-03-10", 7)
    assert ingest(lake, spool, InProcess()).rows_stored == 5
    assert set(counts) & set(days) == {"2026-03-09", "2026-03-10"}
    put(fs, "2026-03-04", 8)
    assert ingest(lake, spool, InProcess()).rows_stored == 0
    assert adds_up_of(lake, spool)["steps"].in_flight == 5
    clock.at += QUIET
    assert ingest(lake, spool, InProcess()).rows_stored == 5
    put(fs, "2026-03-04", 9)
    clock.at += MINUTE
    assert ingest(lake, spool, InProcess()).rows_stored == 5, "a day with news is looked at again at once"


def adds_up_of(lake, spool):
    found = {item.table: item for item in balance(lake, spool.listing())}
    assert [fault for item in found.values() for fault in item.faults] == []
    return found


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"days": {"2026-03-01": 7}, "purge": {}}'])
def test_what_was_seen_is_only_a_hint(lake, spool, damage):
    """Lost or damaged, it costs listings and nothing else."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    (seen,) = Path(lake.path("rounds")).iterdir()
    seen.write_bytes(damage)
    put_segment(spool, step_rows(10, segment=1), rows_before=10)
    assert bring(lake, spool).rows_stored == 10
    assert ListingCache.load(lake.store, Spool(str(spool)).address).days.keys() == {"2026-03-01"}
    adds_up(lake, spool)


def test_which_folders_may_get_what_is_sealed_now():
    """Today, yesterday, days to come, and whatever is no day."""
    assert [is_recent(day, NOW) for day in ("2026-03-08", "2026-03-09", "2026-03-10", "2100-01-01", "junk")] == [
        *[False],
        *[True] * 4,
    ]
