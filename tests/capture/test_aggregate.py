"""Interval aggregates and counters: rows that many values were folded into, none of which is ever lost."""

import itertools
import math
import os
import pickle
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import check_books, gaps, rows

from ranklake import capture
from ranklake.capture.common.layouts import INTERVALS, MARK
from ranklake.capture.lanes.double_buffer import INTERVAL_CODES, DoubleBuffer
from ranklake.capture.lanes.lane import Lane
from ranklake.capture.lanes.slots import SlotFile
from ranklake.capture.metrics import meter
from ranklake.capture.metrics.aggregate import EMPTY_STATE, fold
from ranklake.capture.recover import recover
from ranklake.capture.sealing.tables import read_rows
from ranklake.capture.spool.meta import Meta, Metric
from ranklake.capture.spool.stream_files import streams

CHILD = Path(__file__).with_name("fold_child.py")
FINITE = st.floats(-1e9, 1e9, allow_subnormal=False)


def of(place, metric="wait"):
    """Return a metric's rows."""
    return [row for row in rows(place.spool, "scalars") if row["metric"] == metric]


def together(found):
    """Return count, finite count, min, max, mean and deviation of several rows' values (Chan et al., 1979)."""
    count = finite = 0
    mean = m2 = 0.0
    for row in found:
        count += row["agg_count"]
        more = row["agg_count"] - (row["agg_non_finite_count"] or 0)
        if more:
            off = row["agg_mean"] - mean
            m2 += row["agg_std"] ** 2 * more + off**2 * finite * more / (finite + more)
            mean += off * more / (finite + more)
            finite += more
    least = min((row["agg_min"] for row in found if row["agg_min"] is not None), default=None)
    most = max((row["agg_max"] for row in found if row["agg_max"] is not None), default=None)
    return count, finite, least, most, mean, math.sqrt(m2 / finite) if finite else None


def agrees(found, values):
    """Assert that rows stand for exactly these values."""
    finite = [value for value in values if math.isfinite(value)]
    count, finite_count, least, most, mean, deviation = together(found)
    assert (count, finite_count) == (len(values), len(finite))
    assert (least, most) == (min(finite), max(finite))
    assert mean == pytest.approx(np.mean(finite), rel=1e-9, abs=1e-9)
    assert deviation == pytest.approx(np.std(finite), rel=1e-6, abs=1e-6 * max(map(abs, finite)))


def test_an_interval_is_one_row(place):
    """Count, least, greatest, mean, deviation of the population, last value and length, as numpy has them."""
    values = [random.Random(1).gauss(5, 2) for _ in range(1000)]
    run = place.start()
    wait = run.aggregate("wait", every_s=3600)
    for number, value in enumerate(values):
        wait.add(value, number)
    run.close()
    (row,) = of(place)
    agrees([row], values)
    assert row["agg_mean"] == pytest.approx(np.mean(values), rel=1e-13)
    assert row["agg_std"] == pytest.approx(np.std(values), rel=1e-13)
    assert (row["value"], row["step"], row["kind"], row["value_flag"]) == (values[-1], 999, "gauge", None)
    assert row["agg_non_finite_count"] is None
    assert 0 < row["interval_ns"] < 60e9
    check_books(place.spool)


def test_an_interval_that_is_over_ends_its_row(place):
    """A value that comes later begins the next row."""
    run = place.start()
    wait = run.aggregate("wait", every_s=1e-9)
    for number in range(7):
        wait.add(float(number))
    run.close()
    assert [(row["agg_count"], row["value"], row["interval_ns"]) for row in of(place)] == [
        (1, float(n), 0) for n in range(7)
    ]


def test_sealing_splits_an_interval_and_loses_nothing(place):
    """A file that is sealed under a row leaves a sealed row and a new one; together they are all values."""
    run = place.start()
    wait = run.aggregate("wait", every_s=3600)
    values = [float(n * n % 101) for n in range(300)]
    for number, value in enumerate(values):
        wait.add(value)
        if number % 100 == 50:
            assert run.flush()
    run.close()
    found = of(place)
    assert [row["agg_count"] for row in found] == [51, 100, 100, 49]
    agrees(found, values)
    check_books(place.spool)


@given(st.lists(st.lists(FINITE | st.just(math.nan) | st.just(-math.inf), min_size=1, max_size=20), min_size=1))
def test_any_split_of_values_stands_for_all(parts):
    """Rows that were cut anywhere say together what one row of all values says."""

    def row(values):
        state = EMPTY_STATE
        for value in values:
            state = fold(state, value)
        count, finite, least, most, mean, m2 = state
        return {
            "agg_count": count,
            "agg_non_finite_count": count - finite,
            "agg_min": least if finite else None,
            "agg_max": most if finite else None,
            "agg_mean": mean,
            "agg_std": math.sqrt(m2 / finite) if finite else None,
        }

    values = [value for part in parts for value in part]
    split, whole = together([row(part) for part in parts]), together([row(values)])
    assert split[:4] == whole[:4]
    most = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    assert split[4] == pytest.approx(whole[4], abs=1e-9 * most)
    assert (split[5] or 0.0) == pytest.approx(whole[5] or 0.0, abs=1e-6 * most)
    if whole[1]:
        agrees([row(values)], values)


def test_values_that_are_not_finite_are_counted_and_not_folded(place):
    """NaN and infinities are in the count, and in a count of their own; the flag is the last value's."""
    run = place.start()
    wait, lost = run.aggregate("wait"), run.aggregate("lost")
    for value in (1.0, math.nan, 3.0, math.inf, -math.inf):
        wait.add(value)
    lost.add(math.nan)
    run.close()
    (row,) = of(place)
    agrees([row], [1.0, math.nan, 3.0, math.inf, -math.inf])
    assert (row["agg_non_finite_count"], row["value"], row["value_flag"]) == (3, None, "-inf")
    (row,) = of(place, "lost")
    assert (row["agg_count"], row["agg_non_finite_count"], row["value_flag"]) == (1, 1, "nan")
    assert [row[name] for name in ("agg_min", "agg_max", "agg_mean", "agg_std")] == [None] * 4


def test_figures_that_overflow_are_null(place):
    """No infinite number reaches a segment, though the deviation of such values is beyond a double."""
    run = place.start()
    wait = run.aggregate("wait")
    for value in (1e308, -1e308, 1e308):
        wait.add(value)
    run.close()
    (row,) = of(place)
    assert (row["agg_count"], row["agg_min"], row["agg_max"], row["agg_std"]) == (3, -1e308, 1e308, None)


def test_each_thread_has_rows_of_its_own(place):
    """Four threads fold without a lock while files are sealed under them; every value is there once."""
    run = place.start(seal_every_s=0.05)
    wait, each = run.aggregate("wait", every_s=0.03), 20_000

    def work(base):
        for number in range(each):
            wait.add(float(base + number))

    threads = [threading.Thread(target=work, args=(k * each,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.close()
    found = of(place)
    assert len(found) > 4
    agrees(found, [float(n) for n in range(4 * each)])
    assert gaps(place.spool) == {}
    check_books(place.spool)


def test_a_signal_handler_may_fold_into_the_same_aggregate(place):
    """A handler that runs in the middle of `add` loses nothing of its own nor of the call that it broke into."""
    run = place.start()
    wait, count = run.aggregate("wait"), run.counter("count")
    handled = 0

    def handle(*_):
        nonlocal handled
        handled += 1
        wait.add(1.0)
        count.add(1)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        own = 0
        while handled < 200:
            wait.add(1.0)
            count.add(1)
            own += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    run.close()
    assert sum(row["agg_count"] for row in of(place)) == own + handled
    sums = [row["value"] for row in of(place, "count")]
    assert max(sums) == own + handled


def test_a_forked_child_starts_afresh(place):
    """Parent and child each have their own rows; neither writes into the other's."""
    run = place.start()
    wait, count = run.aggregate("wait", every_s=3600), run.counter("count")
    for _ in range(10):
        wait.add(1.0)
        count.add(1)
    pid = os.fork()
    if pid == 0:
        for _ in range(5):
            wait.add(100.0)
            count.add(1)
        os._exit(0)
    os.waitpid(pid, 0)
    for _ in range(10):
        wait.add(1.0)
        count.add(1)
    run.close()
    recover(place.local, str(place.spool))
    by_process = {row["incarnation"]: row for row in of(place)}
    assert sorted((row["agg_count"], row["agg_mean"]) for row in by_process.values()) == [(5, 100.0), (20, 1.0)]
    last = {}
    for row in of(place, "count"):
        last[row["incarnation"]] = max(row["value"], last.get(row["incarnation"], 0))
    assert sorted(last.values()) == [5, 20]


def test_a_folder_that_vanishes_costs_rows_that_are_counted(place):
    """A row in a file that is gone is a gap; what is added later is folded into the next stream."""
    run = place.start(seal_every_s=3600)
    wait, sizes = run.aggregate("wait", every_s=3600), run.histogram("sizes", every_s=3600)
    for _ in range(10):
        wait.add(1.0)
        sizes.record(1.0)
    (stream,) = streams(place.local)
    gone = stream.rename(place.local.with_name("gone"))  # at one go, whoever writes into it just now
    shutil.rmtree(gone, ignore_errors=True)
    assert run.flush()
    wait.add(2.0)
    sizes.record(2.0)
    run.close()
    assert [(row["agg_count"], row["value"]) for row in of(place)] == [(1, 2.0)]
    assert [(row["count"], row["max"]) for row in rows(place.spool, "distributions")] == [(1, 2.0)]
    counted = run.gaps()
    assert (counted["scalars"], counted["distributions"]) == ({"spool vanished": 1}, {"spool vanished": 1})


def test_what_cannot_be_folded_is_counted(place):
    """Texts, bad steps, bad names, bad settings, and values after the close; training goes on."""
    run = place.start()
    wait = run.aggregate("wait", every_s="soon")
    wait.add("text")
    wait.add()
    wait.add(1.0, "seven")
    wait.add(1.0, -3)
    wait.add(np.float32(2.0), np.int64(5))
    run.aggregate("").add(1.0)
    run.aggregate(["x"]).add(1.0)
    run.close()
    wait.add(1.0)
    assert [row["agg_count"] for row in of(place)] == [2]
    assert run.gaps() == {"scalars": {"after close": 1, "bad name": 2, "bad step": 1, "bad value": 2}}


def test_a_run_that_records_nothing_gives_handles_that_do_nothing():
    """So does a handle that was pickled with a trainer."""
    run = capture.start(enabled=False)
    run.aggregate("a").add(1.0)
    run.counter("b", unit="By").add(1)
    run.histogram("c").record([1.0])


def test_handles_are_made_once_and_pickle(place):
    """The same name gives the same handle, so that a handle asked for in a loop has one row, too."""
    run = place.start()
    for value in (1.0, 2.0):
        run.aggregate("wait").add(value)
        run.counter("count").add(1)
        run.histogram("sizes").record(value)
    for handle in (run.aggregate("wait"), run.counter("count"), run.histogram("sizes")):
        assert pickle.loads(pickle.dumps(handle)).name == handle.name
    run.close()
    assert [row["agg_count"] for row in of(place)] == [2]
    assert [row["count"] for row in rows(place.spool, "distributions")] == [2]


def test_handles_of_names_that_never_come_again_are_not_kept(place, monkeypatch):
    """Memory is bounded; handles beyond record all the same."""
    monkeypatch.setattr(meter, "MOST_HANDLES", 3)
    run = place.start()
    for number in range(6):
        run.aggregate(f"wait/{number}").add(1.0)
        run.aggregate(f"wait/{number}").add(1.0)
    run.close()
    found = [(row["metric"], row["agg_count"]) for row in rows(place.spool, "scalars")]
    assert found[:3] == [(f"wait/{n}", 2) for n in range(3)]
    assert found[3:] == [(f"wait/{n}", 1) for n in (3, 3, 4, 4, 5, 5)]


def test_a_counter_writes_its_sum(place):
    """Each addition is a row with the sum so far, exact for integers of 53 bits."""
    run = place.start()
    count = run.counter("data/bytes_read", unit="By")
    for n in (5, 0, 2**52, np.int32(7), 0.5):
        count.add(n, step=3)
    for bad in (-1, math.nan, math.inf, "x", None, 10**400):
        count.add(bad)
    run.close()
    found = of(place, "data/bytes_read")
    assert [row["value"] for row in found] == [5, 5, 5 + 2**52, 12 + 2**52, float(12 + 2**52 + 0.5)]
    assert {(row["kind"], row["step"]) for row in found} == {("counter", 3)}
    assert run.gaps() == {"scalars": {"bad value": 6}}


def test_a_counter_of_many_threads_never_falls(place):
    """In the order of their times its rows only grow, and the last has it all."""
    run = place.start()
    count = run.counter("count")
    threads = [threading.Thread(target=lambda: [count.add(2) for _ in range(5000)]) for _ in range(4)]
    often, before = 1e-6, sys.getswitchinterval()
    sys.setswitchinterval(often)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    run.close()
    in_order = sorted(of(place, "count"), key=lambda row: (row["ts"], row["value"]))
    assert [row["value"] for row in in_order] == [2.0 * (n + 1) for n in range(20_000)]


def test_a_write_replaces_the_older_copy(tmp_path):
    """While it is under way the state before is whole in the other copy."""
    made = []

    def create(layout):
        made.append(SlotFile(tmp_path / "intervals", layout))
        return made[0]

    lane = Lane(INTERVALS, create, create, lambda _: None, lambda *_: None, lambda _: 0)
    cell = DoubleBuffer(lane, INTERVAL_CODES).begin(1, 0, (1, 0, 1, 1, 1.0, 1.0, 1.0, 0.0, 1.0))
    seen = []
    for count in range(2, 6):
        assert cell.write((count, 0, count, count, 1.0, 1.0, 1.0, 0.0, 1.0))
        seen.append(tuple(int(made[0].marked(f"{copy}_{name}")[0]) for name in ("sequence", "count") for copy in "ab"))
    assert seen == [(1, 2, 1, 2), (3, 2, 3, 2), (3, 4, 3, 4), (5, 4, 5, 4)]
    lane.shut()
    lane.collect()
    assert not cell.write((9, 0, 9, 9, 1.0, 1.0, 1.0, 0.0, 1.0))


def test_a_write_that_is_cut_off_leaves_the_state_before():
    """Wherever in the older copy a kill stops the write, the slot reads as before; damage elsewhere is counted."""
    codes = struct.Struct(f"<{INTERVAL_CODES}q")
    old = (1_000, 7, 3, 3, 1.0, 3.0, 2.0, 2.0, 3.0, 4)
    new = (2_000, 8, 4, 4, 1.0, 9.0, 4.0, 30.0, 9.0, 5)
    slot = bytearray(INTERVALS.slot_bytes)
    struct.pack_into("<q", slot, 0, 500)
    struct.pack_into("<II", slot, INTERVALS.slot_bytes - 8, 0, MARK)
    even, odd = INTERVALS.offset("b_end_ns"), INTERVALS.offset("a_end_ns")
    codes.pack_into(slot, even, *old)
    meta = Meta(metrics={0: Metric("wait", "gauge")})
    whole = codes.pack(*new)
    for written in range(codes.size + 1):
        torn = bytearray(slot)
        torn[odd : odd + codes.size] = whole[:written] + bytes(codes.size - written)  # zeroed first, as packing does
        found = read_rows("intervals", bytes(torn), meta, [(0, 0)])
        assert len(found) == 1
        expected = 3 if written < codes.size - 7 else 4  # the lowest byte of the sequence number decides
        assert found.columns["agg_count"].to_pylist() == [expected]
    slot[even : even + codes.size] = bytes(codes.size)
    found = read_rows("intervals", bytes(slot), meta, [(0, 0)])
    assert (len(found), found.damaged) == (0, 1)


@pytest.mark.parametrize("after", [1, 37, 500, 2500])
@pytest.mark.slow
def test_a_killed_process_loses_no_value_that_was_acknowledged(tmp_path, after):
    """SIGKILL while two threads fold and files are sealed: all that returned is there, once, and at most one more."""
    spool, local = tmp_path / "spool", tmp_path / "local"
    told, tells = os.pipe()
    child = subprocess.Popen([sys.executable, str(CHILD), str(local), str(spool), str(tells)], pass_fds=[tells])
    os.close(tells)
    heard = b""
    while heard.count(b"a") < after or heard.count(b"h") < after // 4 + 1:
        heard += os.read(told, 1 << 16)
    child.kill()
    child.wait()
    while more := os.read(told, 1 << 16):
        heard += more
    os.close(told)
    done = recover(local, str(spool))
    assert not done.troubles
    check_books(spool)
    assert gaps(spool) == {}

    found = [row for row in rows(spool, "scalars") if row["metric"] == "folded/aggregate"]
    stored = sum(row["agg_count"] for row in found)
    assert stored - heard.count(b"a") in {0, 1}
    agrees(found, [float(n) for n in range(stored)])
    sums = [row["value"] for row in rows(spool, "scalars") if row["metric"] == "folded/counter"]
    assert max(sums, default=0) - heard.count(b"c") in {0, 1}

    sizes = [n % 3 + 1 for n in range(heard.count(b"h") + 1)]
    totals = list(itertools.accumulate(sizes))[-2:]
    distributions = rows(spool, "distributions")
    assert sum(row["count"] for row in distributions) in totals
    assert all(sum(row["positive_counts"]) == row["count"] for row in distributions)
