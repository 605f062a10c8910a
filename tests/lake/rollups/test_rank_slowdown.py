"""The detector ``rank_slowdown``: ranks that turn slow in mid-run, and sound series of which it says nothing."""

from datetime import UTC, datetime

import numpy as np
import pytest

from ranklake.detection.declaration import Series
from ranklake.lake.rollups.detectors.slowdowns import DETECTORS
from ranklake.lake.rollups.findings import apply_cooldown

(DETECTOR,) = DETECTORS
NOON_US = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1e6)


def own_times(seed=0, ranks=8, count=600, noise=0.03, seconds=1.0):
    """Return the self time of each step (rows) on each rank (columns) of a sound run, with a tail as real ones have."""
    drawn = np.random.default_rng(seed)
    times = 1 + noise * drawn.standard_normal((count, ranks)) + noise * drawn.exponential(1, (count, ranks))
    return seconds * times


def series(times, attempt=None, **columns):
    """Return the columns of ``step_rollup`` that self times make; each step begins when the slowest rank is done."""
    count, ranks = times.shape
    slowest = times.argmax(axis=1)
    longest = times.max(axis=1)
    others = (times.sum(axis=1) - longest) / (ranks - 1)
    unknown = np.full(count, np.nan)
    begun = NOON_US + (1e6 * np.concatenate([[0], np.cumsum(longest)[:-1]])).astype(np.int64)
    return Series({"run": "r1"}, {
        "ts": begun, "step": np.arange(count), "attempt": np.zeros(count, int) if attempt is None else attempt,
        "ranks": np.full(count, ranks), "slowest_rank": slowest.astype(float), "slowest_excess_s": longest - others,
        "max_self_time_s": longest, "mean_data_time_s": unknown, "max_data_time_s": unknown,
        "mean_checkpoint_time_s": unknown, "mean_evaluation_time_s": unknown, **columns,
    })  # fmt: skip


def detections(rows):
    """Return what the detector says of a series, by the thresholds that everybody has."""
    found = list(DETECTOR.find(rows, DETECTOR.thresholds))
    return apply_cooldown(found, DETECTOR.cooldown_s, DETECTOR.min_effect)


def places(rows):
    """Return rank, first and last step, and whether it lasts, of each detection."""
    return [(each.subject["rank"], each.step, each.end_step, each.end is None) for each in detections(rows)]


@pytest.mark.parametrize("ranks", [2, 8, 64])
@pytest.mark.parametrize("slow", [1.25, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_turns_slow_is_named_at_its_step(ranks, slow, seed):
    """At the right rank, within three steps of when it did, with by how much; it lasts."""
    rank, at = seed % ranks, 300 + 7 * seed
    times = own_times(seed, ranks)
    times[at:, rank] *= slow
    (row,) = detections(series(times))
    assert (row.subject, row.end) == ({"attempt": 0, "rank": rank}, None)
    assert abs(row.step - at) <= 3
    assert row.effect == pytest.approx(slow - 1, abs=0.1)
    slower = f"Rank {rank} is {100 * row.effect:.0f} % slower than its peers from step {row.step} on"
    assert row.message.startswith(slower)
    assert row.severity == ("error" if slow > 1.5 else "")


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("at", [300, 305, 310, 315])
def test_it_is_named_within_a_minute_of_data(ranks, at):
    """A step takes 1 s, 2 s once it is slow: at the latest a minute after there is a finding."""
    times = own_times(3, ranks)
    times[at:, 1] *= 2
    rows = series(times)
    begun = rows["ts"][at]
    for end in range(at + 1, len(rows) + 1):
        if places(Series(rows.subject, {name: column[:end] for name, column in rows.columns.items()})):
            break
    assert (rows["ts"][end - 1] - begun) / 1e6 <= 60


def test_a_rank_that_recovers_has_an_end():
    """The incident ends with it; a rank that was slow at the start, and then well, is the same."""
    times = own_times(4)
    times[200:300, 5] *= 1.6
    ((rank, first, last, lasts),) = places(series(times))
    assert (rank, abs(first - 200) <= 3, abs(last - 299) <= 3, lasts) == (5, True, True, False)
    times = own_times(5)
    times[:150, 2] *= 1.6
    ((rank, first, last, lasts),) = places(series(times))
    assert (rank, first, abs(last - 149) <= 3, lasts) == (2, 10, True, False), "after warming up"


def test_two_ranks_in_turn_are_two_findings():
    """First one, then another, with and without a while between them."""
    for gap in (0, 60):
        times = own_times(6)
        times[200:300, 1] *= 1.5
        times[300 + gap :, 6] *= 1.5
        rows = places(series(times))
        assert [(rank, lasts) for rank, _, _, lasts in rows] == [(1, False), (6, True)]
        assert [abs(rows[0][2] - 299) <= 3, abs(rows[1][1] - 300 - gap) <= 3] == [True, True]


def test_a_whole_node_is_named_with_all_its_ranks():
    """Four of sixteen ranks: each is named, with the others, by how much it is slower than those that are well."""
    times = own_times(7, ranks=16)
    times[250:, 4:8] *= 1.5
    rows = detections(series(times))
    assert [row.subject["rank"] for row in rows] == [4, 5, 6, 7]
    assert all(abs(row.step - 250) <= 6 and row.effect == pytest.approx(0.5, abs=0.1) for row in rows)
    assert "as ranks 5, 6, 7 are" in rows[0].message


def test_waiting_for_input_is_the_cause():
    """The rank's waits are most of its excess."""
    times = own_times(8)
    times[300:, 3] += 0.5
    waits = np.where(np.arange(600) < 300, 0.01, 0.51)
    rows = series(times, max_data_time_s=waits, mean_data_time_s=(waits + 7 * 0.01) / 8)
    (row,) = detections(rows)
    assert (row.evidence["cause"], row.message.endswith("by input")) == ("input", True)


def _all_slow(times, drawn):
    times[300:] *= 2


def _turns(times, drawn):
    count, ranks = times.shape
    times[np.arange(count), np.arange(count) % ranks] *= 1.5


def _always(times, drawn):
    times[:, 1] *= 1.5


def _late_load(times, drawn):
    """Somebody else's work holds each core for a second or two, now and then, and more of it in the second half."""
    count, ranks = times.shape
    for place in drawn.choice(count, count // 4):
        times[place : place + 2, drawn.integers(ranks)] *= 1 + drawn.exponential(1.0)


def _moment(times, drawn):
    times[300:305, 1] *= 3


def _warm_up(times, drawn):
    times[:10, 0] *= 30


def _nothing(times, drawn):
    pass


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
@pytest.mark.parametrize("change", [_all_slow, _turns, _always, _late_load, _moment, _warm_up, _nothing])
def test_sound_series_say_nothing(change, ranks):
    """All ranks slow, ranks in turn, one slow all along (which `straggler` names), load, a moment, warming up."""
    for seed in range(10):
        times = own_times(seed, ranks, noise=(0.01, 0.05, 0.15)[seed % 3])
        change(times, np.random.default_rng(seed))
        assert detections(series(times)) == [], seed


def test_ranks_that_are_slow_by_turns_make_no_stretch():
    """Each for a window, by no more than noise: what is left of a stretch, once it is cut to its steps, is nothing."""
    for seed in range(5):
        times = own_times(seed, 4, 300)
        for turn in range(19):
            times[16 * turn : 16 * turn + 16, turn % 4] *= 1.1
        assert places(series(times)) == []


@pytest.mark.parametrize("seed", [104, 155, 170, 184])
def test_one_that_recovers_as_another_turns_slow_has_no_companion(seed):
    """A window that holds the end of the one and the beginning of the other is no stretch of both."""
    times = own_times(seed, count=120, noise=0.05)
    times[60:84, 0] *= 2
    times[84:108, 1] *= 2
    assert [(rank, last < 87) for rank, _, last, _ in places(series(times))] == [(0, True)]


def test_a_rank_that_was_often_the_slowest_does_not_turn_slow():
    """It is a little slower all along, now more, now less: slowest in more steps than before is not enough."""
    times = own_times(2440, ranks=2, count=1200, noise=0.08)
    times[:, 0] *= 1 + np.repeat(np.random.default_rng(2440).uniform(0, 0.3, 12), 100)
    assert places(series(times)) == []


def test_saving_and_evaluating_are_no_slowness():
    """Rank 0 evaluates for a hundred steps of its own, as where each step of an evaluation is one."""
    times = own_times(9)
    times[200:300, 0] *= 3
    waits = np.where((np.arange(600) >= 200) & (np.arange(600) < 300), 2.0, np.nan)
    for name in ("mean_checkpoint_time_s", "mean_evaluation_time_s"):
        assert places(series(times, **{name: waits})) == []


def test_a_restart_ends_it():
    """What an attempt was slow by ends with it; the next one is looked at by itself."""
    times = own_times(10)
    times[150:300, 3] *= 2
    ((rank, first, last, lasts),) = places(series(times, attempt=np.repeat([0, 1], 300)))
    assert (rank, abs(first - 150) <= 3, last, lasts) == (3, True, 299, False)


def test_steps_of_milliseconds_take_as_long():
    """A second of somebody else's work is a hundred steps of 10 ms: within `min_s` nothing is said."""
    times = own_times(11, ranks=2, count=6000, seconds=0.01)
    times[3000:3200, 1] *= 3
    assert places(series(times)) == []
    times[3000:, 1] *= 3
    assert [rank for rank, *_ in places(series(times))] == [1]


@pytest.mark.parametrize("count", [0, 1, 3, 30])
def test_short_series_say_nothing(count):
    """As many steps, of one rank, or of two that are alike to the nanosecond."""
    assert places(series(np.ones((count, 2)))) == []
    rows = series(np.ones((count, 2)), slowest_rank=np.full(count, np.nan), slowest_excess_s=np.full(count, np.nan))
    assert places(rows) == []


def test_some_seconds_are_not_enough():
    """A whole window of slow steps that is over within `min_s` says nothing; almost the triple length does."""
    for at in range(400, 430):
        for steps, ranks in ((23, []), (60, [1])):
            times = own_times(12, count=900, seconds=0.4)
            times[at : at + steps, 1] *= 2
            assert [rank for rank, *_ in places(series(times))] == ranks, at


def test_ranks_beside_a_slow_one_are_not_named_by_chance():
    """A rank that is the slowest in most steps, of noisy ones, has no companions."""
    for seed in (8, 27, 34, 42):
        times = own_times(seed, ranks=16, noise=0.15, count=1200)
        times[:, 1] *= 1.5
        assert {rank for rank, *_ in places(series(np.abs(times) + 0.01))} <= {1}
