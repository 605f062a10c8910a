"""Meter: creates the handles of a run. Handles that fold values exist once per name."""

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ranklake.capture.common.gaps import RefusedError
from ranklake.capture.common.layouts import BUCKETS
from ranklake.capture.common.ratios import checked_ratio
from ranklake.capture.common.values import integer, number, text
from ranklake.capture.lanes.double_buffer import HISTOGRAM_CODES, INTERVAL_CODES, DoubleBuffer
from ranklake.capture.lanes.series import check_name
from ranklake.capture.lanes.shards import AnyLane
from ranklake.capture.metrics.aggregate import Aggregate, Counter
from ranklake.capture.metrics.handles import Define, Handle, interval_ns
from ranklake.capture.metrics.scalar_writer import Scalar, ScalarWriter, adder

if TYPE_CHECKING:
    from ranklake.capture.metrics.distribution import Distribution

H = TypeVar("H", bound=Handle)

LEAST_BUCKETS: Final = 4
"""At the coarsest scale of the contract, -10, all doubles of one sign need three buckets."""

MOST_HANDLES: Final = 10_000
"""Most handles in the cache, so that names that are used only once do not fill the memory."""


class Meter:
    """Creates the handles of one run.

    Parameters
    ----------
    intervals, histograms
        Lanes of aggregates and of histograms.
    """

    def __init__(self, scalars: ScalarWriter, intervals: AnyLane, histograms: AnyLane) -> None:
        self._scalars, self._series, self._gaps = scalars, scalars.series, scalars.sink.gaps
        self._intervals = DoubleBuffer(intervals, INTERVAL_CODES)
        self._histograms = DoubleBuffer(histograms, HISTOGRAM_CODES)
        self._handles: dict[Hashable, Handle] = {}

    def scalar(self, name: object, kind: object = None, unit: object = None, keep: object = None) -> Scalar:
        """Return the handle of a metric; see `ranklake.capture.Run.scalar`."""
        scalars = self._scalars
        if keep is not None or scalars.sampler is not None:
            take = self._sampled_writer(name, kind, unit, keep)
            if take is not None:
                return Scalar(_printable_name(name), take)
        try:
            series = self._series.metric(name, kind, unit)
        except RefusedError:  # a bad name, or no stream yet: each value tries again, and is counted
            return Scalar(_printable_name(name), partial(scalars.add_unknown, name, kind, unit))
        plain = check_name(name)
        return Scalar(plain, adder(scalars.lane, series, partial(scalars.add_any, plain, series)))

    def _sampled_writer(self, name: object, kind: object, unit: object, keep: object) -> Callable[..., None] | None:
        """Return the writer of a sampled metric; None if all values are kept."""
        ratio = self._gaps.lenient("keep", lambda value: checked_ratio(number(value)), keep, None)
        if self._scalars.sampler is None and ratio is None:
            return None
        sampler = self._scalars.require_sampler()
        metric = sampler.of(name, kind, unit, ratio)
        return None if metric is None else partial(sampler.add, metric)

    def counter(self, name: object, unit: object) -> Counter:
        """Return the counter of a name."""
        put, failed = self._scalars.put, self._scalars.failed("scalars")
        return self._get_or_create(
            ("counter", name, unit),
            lambda: Counter(_printable_name(name), self._define(name, "counter", unit), put, failed),
        )

    def aggregate(self, name: object, every_s: object, kind: object, unit: object) -> Aggregate:
        """Return the aggregate with a name and an interval."""
        every = self._gaps.lenient("every_s", interval_ns, every_s, 10 * 10**9)
        return self._get_or_create(
            ("aggregate", name, every, kind, unit),
            lambda: Aggregate(
                _printable_name(name),
                self._intervals,
                self._define(name, kind, unit),
                every,
                self._scalars.failed("scalars"),
            ),
        )

    def histogram(self, name: object, every_s: object, max_buckets: object, unit: object) -> "Distribution":
        """Return the histogram with a name, an interval and a number of buckets."""
        from ranklake.capture.metrics.distribution import Distribution  # imports numpy, so only on first use

        every = self._gaps.lenient("every_s", interval_ns, every_s, 60 * 10**9)
        buckets = self._gaps.lenient("max_buckets", _bucket_count, max_buckets, BUCKETS)
        return self._get_or_create(
            ("histogram", name, every, buckets, unit),
            lambda: Distribution(
                _printable_name(name),
                self._histograms,
                self._define(name, None, unit),
                every,
                buckets,
                self._scalars.failed("distributions"),
            ),
        )

    def after_fork(self) -> None:
        """Drop unfinished rows in a forked child, because they belong to the parent."""
        for handle in list(self._handles.values()):
            handle.after_fork()

    def _get_or_create(self, key: Hashable, make: Callable[[], H]) -> H:
        try:
            handle: Any = self._handles.get(key)
            if handle is None:
                handle = make() if len(self._handles) >= MOST_HANDLES else self._handles.setdefault(key, make())
        except Exception:  # noqa: BLE001 - an unhashable name is bad: each value is counted
            handle = make()
        return handle  # type: ignore[no-any-return]  # by its key

    def _define(self, name: object, kind: object, unit: object) -> Define:
        return lambda: self._series.metric(name, kind, unit)


def _printable_name(name: object) -> str:
    return text(name, 80)


def _bucket_count(value: object) -> int:
    count = integer(value)
    if not LEAST_BUCKETS <= count <= BUCKETS:
        raise ValueError(f"not between {LEAST_BUCKETS} and {BUCKETS}")
    return count
