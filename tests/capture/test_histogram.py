"""Base-2 exponential histograms: their buckets, their exact merge, and the rows that they become."""

import math
import signal
from functools import reduce

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from recorded import check_books, gaps, rows

from ranklake.capture.histogram import (
    FINEST,
    Buckets,
    Histogram,
    histogram_of,
    histogram_of_bins,
    histogram_of_one,
    indices,
    merge,
)
from ranklake.capture.steps import device_values
from ranklake.capture.steps.device_values import MOST_BYTES
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read

torch = pytest.importorskip("torch")

ANY = arrays.arrays(np.float64, st.integers(0, 40), elements=st.floats())
NEAR = arrays.arrays(np.float64, st.integers(0, 200), elements=st.floats(-4, 4))
MOST = st.integers(4, 160)


def of_row(row):
    """Return a row of `distributions` as a histogram."""
    figures = {name: row[name] for name in ("scale", "zero_count", "nan_count", "infinite_count")}
    signs = {
        sign: Buckets(row[f"{sign}_offset"] or 0, np.array(row[f"{sign}_counts"], np.int64))
        for sign in ("positive", "negative")
    }
    return Histogram(**figures, **signs, **{name: row[name] or 0.0 for name in ("sum", "min", "max")})


def same(one, other):
    """Assert that two histograms are equal, but for how their sums were rounded."""
    for name in ("scale", "zero_count", "nan_count", "infinite_count", "min", "max", "positive", "negative", "count"):
        assert getattr(one, name) == getattr(other, name), name
    if math.isfinite(one.sum) and math.isfinite(other.sum):
        assert one.sum == pytest.approx(other.sum, rel=1e-6, abs=1e-6 * max(abs(one.min), abs(one.max), 1e-300))


HALF_THE_GREATEST = 2.0**1023


@given(ANY | NEAR, ANY | NEAR, MOST)
@example(np.array([HALF_THE_GREATEST, -HALF_THE_GREATEST]), np.tile([HALF_THE_GREATEST, -HALF_THE_GREATEST], 9), 4)
@example(np.tile([HALF_THE_GREATEST, 0, 0, 0, -HALF_THE_GREATEST, 0, 0, 0], 3), np.zeros(3), 4)
def test_a_merge_is_the_histogram_of_all_values(one, other, most):
    """Count by count, at the same scale, whatever the values: subnormal, huge, zero, infinite or NaN."""
    both = histogram_of(np.concatenate([one, other]), most)
    same(merge(histogram_of(one, most), histogram_of(other, most), most), both)
    same(merge(histogram_of(other, most), histogram_of(one, most), most), both)


def test_a_sum_that_overflows_on_its_way_is_the_sum():
    """Whatever the order in which values of opposite sign come."""
    values = np.tile([HALF_THE_GREATEST, 0, 0, 0, 0, 0, 0, -HALF_THE_GREATEST], 12)
    assert histogram_of(values, 4).sum == 0.0
    assert histogram_of(np.append(values, [3e307, 4e307]), 4).sum == 3e307 + 4e307
    assert histogram_of(np.full(4, HALF_THE_GREATEST), 4).sum == math.inf


@given(st.lists(ANY | NEAR, max_size=6), MOST, st.randoms())
def test_many_merge_in_any_order(parts, most, random):
    """Neither order nor grouping changes a count."""
    expected = histogram_of(np.concatenate([np.empty(0), *parts]), most)
    found = [histogram_of(part, most) for part in parts] or [Histogram()]
    while len(found) > 1:
        random.shuffle(found)
        found.append(merge(found.pop(), found.pop(), most))
    same(found[0], expected)


@given(ANY | NEAR, ANY | NEAR, MOST, MOST)
def test_histograms_of_different_size_merge_exactly(one, other, most, fewer):
    """A coarser one merges into a finer one as its values would have."""
    least = min(most, fewer)
    same(
        merge(histogram_of(one, most), histogram_of(other, fewer), least),
        histogram_of(np.concatenate([one, other]), least),
    )


@given(ANY | NEAR, MOST)
def test_every_value_is_counted_once(values, most):
    """In a bucket, as zero, as NaN or as infinite; no more buckets than allowed, and none empty at the ends."""
    found = histogram_of(values, most)
    assert found.zero_count == np.count_nonzero(values == 0)
    assert found.positive.counts.sum() == np.count_nonzero((values > 0) & np.isfinite(values))
    assert found.negative.counts.sum() == np.count_nonzero((values < 0) & np.isfinite(values))
    assert found.nan_count == np.count_nonzero(np.isnan(values))
    assert found.infinite_count == np.count_nonzero(np.isinf(values))
    assert -10 <= found.scale <= FINEST
    for sign in (found.positive, found.negative):
        assert len(sign.counts) <= most
        assert not len(sign.counts) or (sign.counts[0] and sign.counts[-1])


@given(st.floats())
@example(0.0)
@example(-0.0)
def test_one_number_is_counted_as_an_array_of_one(value):
    """The way for single numbers gives what the way for arrays gives, bit by bit."""
    one, expected = histogram_of_one(value), histogram_of(np.array([value]))
    same(one, expected)
    assert one.sum == expected.sum
    assert not one.empty


@given(arrays.arrays(np.float64, st.integers(1, 60), elements=st.floats(1e-300, 1e300)), MOST)
def test_the_scale_is_the_finest_that_fits(values, most):
    """One scale finer would have too many buckets."""
    found = histogram_of(values, most)
    if found.scale < FINEST:
        finer = indices(values) >> (FINEST - found.scale - 1)
        assert finer.max() - finer.min() >= most


@given(st.floats(min_value=5e-324, allow_infinity=False))
@example(5e-324)
@example(1.7976931348623157e308)
def test_a_value_is_between_the_bounds_of_its_bucket(value):
    """In (2^(i·2^-s), 2^((i+1)·2^-s)]: exactly at the coarse scales, and at fine ones but for the rounding of a log."""
    (finest,) = indices(np.array([value]))
    for scale in range(-10, 1):
        width, index = 1 << -scale, int(finest) >> (FINEST - scale)
        lower, upper = index * width, (index + 1) * width
        assert lower < -1074 or (lower < 1024 and math.ldexp(1.0, lower) < value)
        assert upper >= 1024 or value <= math.ldexp(1.0, max(upper, -1074))
    for scale in range(1, FINEST + 1):
        index = int(finest) >> (FINEST - scale)
        place = math.log2(value) * 2**scale
        assert index - 1e-6 <= place <= index + 1 + 1e-6


@settings(max_examples=30, deadline=None)
@given(NEAR, MOST)
@example(np.array([5e-324]), 4)
def test_bins_of_one_value_are_these_values(values, most):
    """Bins without width are exact, and bins with some hold each value once, within their bounds."""
    whole, counts = np.unique(values, return_counts=True)
    exact, direct = histogram_of_bins(whole, whole, counts, most), histogram_of(values, most)
    counts, edges = np.histogram(values, 7, (-4, 4))
    wide = histogram_of_bins(edges[:-1], edges[1:], counts, most)
    if not len(values):
        assert exact is wide is None
        return
    assert (exact.positive, exact.negative, exact.scale, exact.zero_count, exact.min, exact.max) == (
        direct.positive, direct.negative, direct.scale, direct.zero_count, direct.min, direct.max,
    )  # fmt: skip
    assert math.isclose(exact.sum, direct.sum, abs_tol=1e-9)
    assert wide.count == len(values)
    assert abs(wide.sum - values.sum()) <= len(values) * 8 / 7


@pytest.mark.parametrize(
    ("lows", "highs", "counts"),
    [([], [], []), ([0], [1], [0]), ([0], [1], [0.4]), ([1], [0], [1]), ([0], [1], [-1]), ([0], [math.nan], [1]),
     ([0], [1], [math.inf]), ([0], [1], [2.0**60]), ([0, 1], [1], [1]), ([0] * 70_000, [1] * 70_000, [1] * 70_000)],
)  # fmt: skip
def test_what_are_no_bins(lows, highs, counts):
    """Empty ones, turned ones, counts that are none, and more than fit into memory are no histogram."""
    assert histogram_of_bins(*(np.array(each, np.float64) for each in (lows, highs, counts))) is None


def test_powers_of_two_are_upper_bounds():
    """2^k lies in the bucket that ends with it, at every scale, and the next double in the next bucket."""
    powers = np.ldexp(1.0, np.arange(-1074, 1024))
    found = indices(powers)
    assert (found == (np.arange(-1074, 1024) << FINEST) - 1).all()
    assert (indices(np.nextafter(powers[60:], np.inf)) == found[60:] + 1).all()


def test_buckets_agree_with_numpy():
    """Numpy's own histogram over the bounds has the same counts, a million values long."""
    values = np.random.default_rng(3).lognormal(0, 2, 1_000_000)
    found = histogram_of(values)
    edges = np.exp2((np.arange(len(found.positive.counts) + 1) + found.positive.offset) * 2.0**-found.scale)
    assert (np.histogram(values, edges)[0] == found.positive.counts).all()
    assert (found.min, found.max) == (values.min(), values.max())
    assert found.sum == pytest.approx(values.sum())


@settings(deadline=None)
@given(arrays.arrays(np.float32, st.integers(1, 30), elements=st.floats(-1e3, 1e3, width=32)))
def test_coarser_is_what_the_coarser_scale_would_have_had(values):
    """Pairs of buckets merge without an error, down to the coarsest scale."""
    fine = histogram_of(values.astype(np.float64), 160)
    for by in range(fine.scale + 10):
        expected = indices(values[values > 0].astype(np.float64)) >> (FINEST - fine.scale + by)
        coarse = fine.positive.coarser(by)
        assert coarse.counts.sum() == len(expected)
        for index in expected:
            assert coarse.counts[index - coarse.offset] == np.count_nonzero(expected == index)


def test_what_was_recorded_is_one_row(place):
    """Arrays, tensors, lists and numbers become one row, equal to the histogram of all of them."""
    given_values = [
        np.random.default_rng(1).standard_normal((40, 25)),
        np.array([1, 2, -3], np.int32),
        np.float16([0.5, 0.25]),
        torch.randn(100, generator=torch.Generator().manual_seed(1), dtype=torch.bfloat16).requires_grad_(),
        torch.tensor([[1, 2], [3, 0]]),
        [0.0, math.nan, math.inf, -math.inf],
        7,
        -0.125,
        True,
        np.float32(3.5),
        range(5),
    ]
    run = place.start()
    sizes = run.histogram("sizes", every_s=3600)
    for number, values in enumerate(given_values):
        sizes.record(values, number)
    sizes.record([])
    run.close()
    (row,) = rows(place.spool, "distributions")
    flat = [v.detach().double().numpy() if isinstance(v, torch.Tensor) else np.asarray(v, float) for v in given_values]
    same(of_row(row), histogram_of(np.concatenate([values.ravel() for values in flat])))
    assert (row["metric"], row["step"], row["zero_threshold"]) == ("sizes", 10, 0.0)
    assert 0 < row["interval_ns"] < 60e9
    assert gaps(place.spool) == {}
    check_books(place.spool)


def test_sealing_splits_and_the_parts_merge(place):
    """Rows that were cut by sealing, and rows of two ranks, merge into the histogram of all values."""
    rng = np.random.default_rng(5)
    everything = []
    for rank in (0, 1):
        run = place.start(rank=rank, world_size=2)
        sizes = run.histogram("sizes", every_s=3600, max_buckets=40)
        for number in range(30):
            everything.append(rng.lognormal(number % 5 - 2, 1, 100) * (-1) ** number)
            sizes.record(everything[-1])
            if number % 10 == 5:
                assert run.flush()
        run.close()
    found = rows(place.spool, "distributions")
    assert len(found) == 8
    same(reduce(lambda a, b: merge(a, b, 40), map(of_row, found)), histogram_of(np.concatenate(everything), 40))
    check_books(place.spool)


def test_what_is_not_finite_at_all_is_a_row(place):
    """A row of nothing but NaN has no figures and no buckets, and says how many there were."""
    run = place.start()
    run.histogram("sizes").record(np.full(5, np.nan))
    run.close()
    (row,) = rows(place.spool, "distributions")
    assert (row["count"], row["nan_count"], row["sum"], row["min"], row["max"]) == (0, 5, None, None, None)
    assert (row["positive_counts"], row["positive_offset"]) == ([], None)


def test_what_cannot_be_recorded_is_counted(place):
    """Texts, complex numbers, objects and bad steps are gaps of the table; training goes on."""
    run = place.start()
    sizes = run.histogram("sizes", max_buckets=10**6)
    for bad in ("text", None, object(), [1, "x"], np.array([1j]), torch.tensor([1j]), [10**400], {"a": 1}):
        sizes.record(bad)
    sizes.record([1.0], "seven")
    run.histogram("").record(1.0)
    sizes.record([1.0])
    run.close()
    sizes.record(1.0)
    assert run.gaps() == {"distributions": {"after close": 1, "bad name": 1, "bad step": 1, "bad value": 8}}
    assert [row["count"] for row in rows(place.spool, "distributions")] == [1]
    check_books(place.spool)


class Arrival:
    """An event that has happened once a test says so."""

    happened = False

    def query(self):
        """Say whether the copy is done."""
        return self.happened


def test_a_tensor_on_a_device_is_recorded_when_it_has_arrived(place, monkeypatch):
    """Nothing waits for it; it is in the row once its copy is there, and a gap of the table if that never comes."""
    arrival, lost = Arrival(), Arrival()
    copies = iter([(arrival, torch.tensor([1.0, 2.0, 4.0])), (lost, torch.ones(5))])
    monkeypatch.setattr(device_values, "_on_cuda", lambda tensor: tensor.device.type == "meta")
    monkeypatch.setattr(device_values, "_copy", lambda _: next(copies))
    run = place.start()
    sizes = run.histogram("sizes")
    sizes.record(torch.ones(3, device="meta"), 4)
    sizes.record(torch.ones(MOST_BYTES, device="meta", dtype=torch.float64))  # more than may be under way
    with run.step(5):
        sizes.record([8.0])
    arrival.happened = True
    with run.step(6):
        pass
    sizes.record(torch.ones(5, device="meta"))
    run.close()
    (row,) = rows(place.spool, "distributions")
    assert (row["count"], row["sum"], row["max"], row["step"]) == (4, 15.0, 8.0, 4)
    assert run.gaps() == {"distributions": {"device value": 2}}
    check_books(place.spool)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_tensor_on_a_real_gpu_is_recorded_without_a_wait(place):
    """While the stream is busy `record` returns at once; the row has the tensor's values."""
    values = torch.randn(100_000, device="cuda")
    run = place.start()
    sizes = run.histogram("sizes")
    torch.cuda.synchronize()
    torch.cuda._sleep(1_500_000_000)
    busy = torch.cuda.Event()
    busy.record()
    sizes.record(values)
    assert not busy.query()
    run.close()
    (row,) = rows(place.spool, "distributions")
    same(of_row(row), histogram_of(values.double().cpu().numpy()))


def test_a_signal_handler_may_record_into_the_same_histogram(place):
    """A handler that runs in the middle of `record` loses nothing of its own nor of the call that it broke into."""
    run = place.start()
    sizes = run.histogram("sizes")
    handled = own = 0

    def handle(*_):
        nonlocal handled
        handled += 1
        sizes.record(2.0)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        while handled < 100:
            sizes.record(3.0)
            own += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    run.close()
    assert sum(row["count"] for row in rows(place.spool, "distributions")) == own + handled


def test_a_lake_takes_histograms_and_aggregates(place, tmp_path):
    """Ingest accepts the rows, lists and all, SQL reads them, and the books add up."""
    run = place.start(sampling="eval/*=0.5")
    sizes, wait = run.histogram("sizes"), run.aggregate("wait")
    for number in range(100):
        sizes.record([1.0, 2.0, -4.0])
        wait.add(float(number))
        run.log({"eval/a": 1.0}, step=number)
    run.close()
    lake = Lake.create(str(tmp_path / "lake"))
    done = ingest(lake, Spool(str(place.spool)), InProcess())
    assert done.rows_rejected == 0
    (stored,) = read(lake.tables, contract("distributions")).to_pylist()
    assert (stored["count"], sum(stored["positive_counts"]), sum(stored["negative_counts"])) == (300, 200, 100)
    found = balance(lake, Spool(str(place.spool)).listing())
    assert [fault for item in found for fault in item.faults] == []
    asked = query(
        lake,
        "SELECT sum(agg_count) AS n, sum(agg_count * agg_mean) AS total, count(weight) AS weighed,"
        " (SELECT max(array_length(positive_counts)) FROM distributions) AS buckets FROM scalars",
    ).to_pylist()
    kept = sum(row["metric"] == "eval/a" for row in rows(place.spool, "scalars"))
    assert asked == [{"n": 100, "total": 4950.0, "weighed": kept, "buckets": len(stored["positive_counts"])}]
