"""Backpressure: with the store away and the disk budget used up, what gives way is what was chosen, counted exactly."""

import itertools
import json
import random
import statistics
import threading
import time

import pytest
from recorded import check_books, gaps, rows, segments, totals

from ranklake.capture.common.gaps import AGGREGATED, BACKPRESSURE, BLOCKED, DROPPED_OLDEST
from ranklake.capture.recover import recover
from ranklake.capture.spool.eviction import evict, finish
from ranklake.capture.spool.frames import FrameFile
from ranklake.capture.spool.meta import read_meta
from ranklake.capture.spool.stream import META_FILE
from ranklake.capture.spool.stream_files import DROPPED, sealed_files, streams
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake

BUDGET = 1 << 20
STEPS, EACH = 400, 300
PAD = json.dumps({"pad": random.Random(0).randbytes(400).hex()})
VALUES = [random.Random(number).random() for number in range(STEPS * EACH)]  # such as do not compress


class Outage:
    """A spool that cannot be reached until `end`: a file is where its folder should be."""

    def __init__(self, place):
        self.place = place
        place.spool.write_text("away")

    def end(self):
        """Let the store be reached again."""
        self.place.spool.unlink()

    def recover(self):
        """Let the store be reached again, and bring in what is left by then.

        A run that was given a tenth of a second to close may be at it still, on a busy machine: its stream is its own.
        """
        for thread in threading.enumerate():
            if thread.name.startswith("ranklake-"):
                thread.join(60)
        self.end()
        assert recover(self.place.local, self.place.spool).left == 0


@pytest.fixture
def outage(place):
    """Give a store that is away."""
    return Outage(place)


def used_bytes(place):
    """Return what the run's folder takes."""
    found = 0
    for folder in streams(place.local):
        for path in folder.iterdir():
            try:
                found += path.stat().st_size
            except FileNotFoundError:
                continue
    return found


def record(place, run, *, steps=STEPS, pause_s=0.002):
    """Record more than the budget holds; return how many values, and the most disk that was used."""
    handle, most = run.scalar("flood"), 0
    for step in range(steps):
        with run.step(step):
            for number in range(EACH):
                handle.add(VALUES[step * EACH + number], step)
            run.log(a=1.0, b=2.0)
        time.sleep(pause_s)
        most = max(most, used_bytes(place)) if step % 20 == 0 else most
    run.event("checkpoint", step=step)
    return steps * (EACH + 2), most


def check_kept(place):
    """Assert that what is never given up is all there."""
    assert [row["step"] for row in rows(place.spool, "steps")] == list(range(STEPS))
    events = [row["event"] for row in rows(place.spool, "events")]
    assert {"run_start", "rank_start", "checkpoint", "rank_end"} <= set(events)


def start(place, **settings):
    """Start a run with a small budget."""
    return place.start(disk_budget_bytes=BUDGET, seal_every_s=0.2, **settings)


@pytest.mark.slow
def test_aggregate_folds_what_finds_no_room(place, outage):
    """Values beyond the budget are in interval rows; each is either a row of its own or counted as folded."""
    run = start(place)
    recorded, most = record(place, run)
    run.close(timeout_s=0.1)
    outage.recover()
    found = rows(place.spool, "scalars")
    single = [row for row in found if row["agg_count"] is None]
    folded = [row for row in found if row["agg_count"] is not None]
    lost = gaps(place.spool)["scalars"]
    assert set(lost) == {AGGREGATED}
    assert lost[AGGREGATED] > recorded // 10
    assert len(single) + lost[AGGREGATED] == recorded
    assert sum(row["agg_count"] for row in folded) == lost[AGGREGATED]
    flood = [row["agg_max"] or row["value"] for row in found if row["metric"] == "flood"]
    assert max(flood) == max(VALUES)
    assert run.gaps()["scalars"] == lost
    assert most <= BUDGET
    check_kept(place)
    check_books(place.spool)


@pytest.mark.slow
def test_drop_newest_counts_what_finds_no_room(place, outage):
    """The first values are there, the others are gaps, to the row."""
    run = start(place, backpressure="drop_newest")
    recorded, most = record(place, run)
    run.close(timeout_s=0.1)
    outage.recover()
    found = [row["value"] for row in rows(place.spool, "scalars") if row["metric"] == "flood"]
    assert found[:1000] == VALUES[:1000]
    lost = gaps(place.spool)["scalars"]
    assert set(lost) == {BACKPRESSURE}
    assert len(rows(place.spool, "scalars")) + lost[BACKPRESSURE] == recorded
    assert most <= BUDGET
    check_kept(place)
    check_books(place.spool)


@pytest.mark.slow
def test_drop_oldest_gives_up_what_waits_longest(place, outage):
    """What is there is of the end, the others are gaps, to the row; totals say so, too."""
    run = start(place, backpressure="drop_oldest")
    recorded, most = record(place, run, pause_s=0.01)
    run.close(timeout_s=0.1)
    outage.recover()
    found = rows(place.spool, "scalars")
    flood = [row["value"] for row in found if row["metric"] == "flood"]
    lost = gaps(place.spool)["scalars"]
    assert lost[DROPPED_OLDEST] > 0
    kept = [VALUES.index(value) for value in flood[:: len(flood) // 50]]
    assert statistics.median(kept) > len(VALUES) * 0.7
    assert len(found) + sum(lost.values()) == recorded
    assert run.gaps()["scalars"] == lost
    assert most <= BUDGET
    check_kept(place)
    (said,) = totals(place.spool).values()
    assert said["scalars"] == [len(found), sum(lost.values())]


@pytest.mark.slow
def test_drop_oldest_gives_up_the_oldest_samples_and_takes_new_ones(place, outage):
    """They have the room of values, by age and not by table; none finds the door shut while the disk keeps up."""
    run = start(place, backpressure="drop_oldest")
    handle, sent = run.scalar("flood"), itertools.count(1)
    for step in range(STEPS // 2):
        for number in range(EACH):
            handle.add(VALUES[step * EACH + number], step)
        for _ in range(4):
            run.rows.sink.record("host_samples", {"subject": "host", "interval_ns": next(sent), "disks": PAD})
        time.sleep(0.01)
    run.close(timeout_s=0.1)
    outage.recover()
    found = [row["interval_ns"] for row in rows(place.spool, "host_samples")]
    lost = gaps(place.spool)
    last = next(sent) - 1
    shut_out = sum(lost["host_samples"].values()) - lost["host_samples"][DROPPED_OLDEST]
    assert shut_out < last // 20
    assert lost["scalars"][DROPPED_OLDEST] > 0
    assert len(found) + sum(lost["host_samples"].values()) == last
    assert found[-1] > last - last // 20
    assert len(rows(place.spool, "scalars")) > EACH
    (said,) = totals(place.spool).values()
    assert said["host_samples"] == [len(found), sum(lost["host_samples"].values())]


@pytest.mark.slow
def test_block_waits_for_room_and_loses_nothing(place, outage):
    """Under `block` the caller waits while the store is away, and every row is there in the end."""
    run = start(place, backpressure="block", block_at_most_s=30)
    timer = threading.Timer(1.5, outage.end)
    timer.start()
    began = time.monotonic()
    recorded, most = record(place, run, pause_s=0)
    waited = time.monotonic() - began
    timer.join()
    run.close(timeout_s=20)
    assert waited > 0.5
    assert run.gaps() == {}
    assert len(rows(place.spool, "scalars")) == recorded
    assert most <= BUDGET
    check_books(place.spool)


@pytest.mark.slow
def test_block_waits_no_longer_than_it_may(place, outage):
    """After `block_at_most_s` a row is counted, and for a second no other call waits."""
    run = start(place, backpressure="block", block_at_most_s=0.2)
    began = time.monotonic()
    recorded, _ = record(place, run, pause_s=0)
    assert 0.2 < time.monotonic() - began < 20
    run.close(timeout_s=0.1)
    outage.recover()
    lost = gaps(place.spool)["scalars"]
    assert set(lost) == {BLOCKED}
    assert len(rows(place.spool, "scalars")) + lost[BLOCKED] == recorded


@pytest.fixture
def waiting(place, outage):
    """Give the folder of a run that has ended, with five sealed segments of scalars, ten rows each."""
    run = place.start(seal_every_s=3600)
    (folder,) = streams(place.local)
    for sealed in range(1, 6):
        for number in range(10):
            run.log(x=float(number))
        while len(values(folder)) < sealed:  # it seals at once, however long it then waits for the store
            run.flush(0.2)
    run.scalar("x").add("no number")
    run.close(timeout_s=0.1)
    for file in sealed_files(folder):  # as if nobody had tried to send them yet
        file.path.chmod(0o600)
    return folder


def values(folder):
    """Return the segments of scalars that have rows."""
    return [file for file in sealed_files(folder) if file.table == "scalars" and file.rows]


def test_the_books_of_a_lake_add_up_though_segments_were_given_up(place, outage, waiting, tmp_path):
    """Footers that were sealed before count the given-up rows as rows, later ones as gaps: the balance is right."""
    meta = FrameFile(waiting / META_FILE)
    for _ in range(2):
        evict(waiting, {"scalars"}, 1, meta.append, lambda _: None)
    meta.close()
    outage.recover()
    lake, spool = Lake.create(str(tmp_path / "lake")), Spool(str(place.spool))
    ingest(lake, spool, InProcess())
    found = {item.table: item for item in balance(lake, spool.listing())}
    assert [fault for item in found.values() for fault in item.faults] == []
    scalars = found["scalars"]
    assert (scalars.recorded, scalars.stored, scalars.gaps) == (51, 30, 21)


@pytest.mark.parametrize("killed", ["renamed", "noted", "deleted"])
def test_a_killed_eviction_is_carried_on(place, outage, waiting, killed):
    """Wherever it was killed, recovery counts the given-up rows once, and sends the others."""
    meta = FrameFile(waiting / META_FILE)
    victim = values(waiting)[0].path
    notes = []
    if killed == "renamed":
        victim.rename(victim.with_suffix(DROPPED))
    elif killed == "noted":
        victim.rename(victim.with_suffix(DROPPED))
        bytes_of_victim = victim.with_suffix(DROPPED).read_bytes()
        finish(waiting, meta.append)
        victim.with_suffix(DROPPED).write_bytes(bytes_of_victim)
    else:
        evict(waiting, {"scalars"}, 1, meta.append, notes.append)
        assert [file.path for file in notes] == [victim]
    meta.close()
    outage.recover()
    assert len(rows(place.spool, "scalars")) == 40
    counted = read_gaps_of(place)
    assert counted == {DROPPED_OLDEST: 10, "bad value": 1}


def read_gaps_of(place):
    """Return the gaps in scalars that footers carry."""
    return gaps(place.spool)["scalars"]


def test_a_segment_that_was_tried_is_never_given_up(waiting):
    """What may be in the store already stays, though it is the oldest: it would be stored and counted as lost."""
    first, second, *_ = values(waiting)
    first.read_to_send()
    meta, gone = FrameFile(waiting / META_FILE), []
    evict(waiting, {"scalars"}, 1, meta.append, gone.append)
    meta.close()
    assert gone == [second]
    assert first in values(waiting)
    assert read_meta(waiting).dropped == {("scalars", second.segment)}


def test_gaps_that_a_given_up_segment_carried_wait_for_another(place, waiting, outage):
    """Its own rows become gaps, and the gaps in its footer are not forgotten."""
    meta = FrameFile(waiting / META_FILE)
    before = read_meta(waiting)
    for _ in range(5):
        evict(waiting, {"scalars"}, 1, meta.append, lambda _: None)
    meta.close()
    after = read_meta(waiting)
    assert after.rows["scalars"] == 0
    assert sum(after.gaps.values()) == sum(before.gaps.values()) + 50
    assert after.pending("scalars")[DROPPED_OLDEST] == 50
    assert segments(place.local) == []
