"""Meters: the handles of a run that fold, each made once by its name."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ranklake.capture.common.gaps import BAD_STEP, BAD_VALUE, RefusedError
from ranklake.capture.common.layouts import BUCKETS, SCALARS
from ranklake.capture.common.values import BadValueError, DeviceValueError, integer, text
from ranklake.capture.lanes.cells import HISTOGRAM_CODES, INTERVAL_CODES, Twin
from ranklake.capture.metrics.aggregate import Aggregate
from ranklake.capture.metrics.counter import Counter
from ranklake.capture.metrics.handles import BadStepError, Define, Failed, Handle, interval_ns

if TYPE_CHECKING:
    from ranklake.capture.metrics.distribution import Distribution
    from ranklake.capture.metrics.metrics import Metrics
    from ranklake.capture.recording.recorder import Recorder

H = TypeVar("H", bound=Handle)

LEAST_BUCKETS: Final = 4
"""At the coarsest scale the contract has, -10, all doubles of one sign lie in three buckets."""

MOST_HANDLES: Final = 10_000
"""More are not kept: names that never come again must not fill the memory."""

_pack_scalar: Final = SCALARS.packer.pack_into


class Meters:
    """The counters, aggregates and histograms of one run.

    Parameters
    ----------
    metrics
        The run: takes values that come late from a device, and what cannot be recorded.
    """

    def __init__(self, recorder: "Recorder", metrics: "Metrics") -> None:
        self._recorder, self._metrics = recorder, metrics
        self._intervals = Twin(recorder.slots["intervals"], INTERVAL_CODES)
        self._histograms = Twin(recorder.slots["histograms"], HISTOGRAM_CODES)
        self._made: dict[Hashable, Handle] = {}

    def counter(self, name: object, unit: object) -> Counter:
        """Return the counter of a name."""
        lane = self._recorder.slots["scalars"]

        def put(moment: int, step: int, value: float, series: int) -> None:
            lane.put(_pack_scalar, moment, step, value, series)

        return self._once(
            ("counter", name, unit),
            lambda: Counter(_shown(name), self._defined(name, "counter", unit), put, self.failed("scalars")),
        )

    def aggregate(self, name: object, every_s: object, kind: object, unit: object) -> Aggregate:
        """Return the aggregate of a name and an interval."""
        every = self._recorder.gaps.lenient("every_s", interval_ns, every_s, 10 * 10**9)
        return self._once(
            ("aggregate", name, every, kind, unit),
            lambda: Aggregate(
                _shown(name), self._intervals, self._defined(name, kind, unit), every, self.failed("scalars")
            ),
        )

    def histogram(self, name: object, every_s: object, max_buckets: object, unit: object) -> "Distribution":
        """Return the histogram of a name, an interval and a number of buckets."""
        from ranklake.capture.metrics.distribution import Distribution  # numpy: not before something is recorded

        every = self._recorder.gaps.lenient("every_s", interval_ns, every_s, 60 * 10**9)
        buckets = self._recorder.gaps.lenient("max_buckets", _buckets, max_buckets, BUCKETS)
        return self._once(
            ("histogram", name, every, buckets, unit),
            lambda: Distribution(
                _shown(name),
                self._histograms,
                self._defined(name, None, unit),
                every,
                buckets,
                self.failed("distributions"),
            ),
        )

    def after_fork(self) -> None:
        """In a forked child: all that was begun is the parent's."""
        for handle in list(self._made.values()):
            handle.after_fork()

    def _once(self, key: Hashable, make: Callable[[], H]) -> H:
        try:
            found: Any = self._made.get(key)
            if found is None:
                found = make() if len(self._made) >= MOST_HANDLES else self._made.setdefault(key, make())
        except Exception:  # noqa: BLE001 - what cannot be hashed and compared is no name: counted with each value
            found = make()
        return found  # type: ignore[no-any-return]  # by its key

    def _defined(self, name: object, kind: object, unit: object) -> Define:
        return lambda: self._recorder.series.metric(name, kind, unit)

    def failed(self, table: str) -> Failed:
        """Return what is to be told of values for a table that cannot be recorded as they are."""
        metrics = self._metrics

        def failed(name: str, value: object, error: Exception, late: Callable[[Any], None]) -> None:
            if isinstance(error, DeviceValueError):
                metrics.defer(name, value, late, whole_for="" if table == "scalars" else table)
            elif isinstance(error, BadStepError):
                metrics.refuse(table, BAD_STEP, f"{name}: {error}")
            elif isinstance(error, BadValueError | OverflowError):
                metrics.refuse(table, BAD_VALUE, f"{name}={error}")
            elif isinstance(error, RefusedError):
                metrics.refuse(table, error.reason, error.detail)
            else:
                metrics.trouble("recording a value", error, table)

        return failed


def _shown(name: object) -> str:
    return text(name, 80)


def _buckets(given: object) -> int:
    number = integer(given)
    if not LEAST_BUCKETS <= number <= BUCKETS:
        raise ValueError(f"between {LEAST_BUCKETS} and {BUCKETS}")
    return number
