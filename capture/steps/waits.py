"""Waits: record how long training waits for data, as phase ``data`` of the step that uses the data.

    for n, batch in enumerate(run.loader(batches)):     waits      ├ data ┤
        with run.step(n): ...                           the block           ├ forward ┤├ backward ┤ …
                                                        its row    ├ wait ┤+├──────── block ────────┤

A wait within a step is an ordinary phase. A wait before a step is kept until the thread's next step begins, and belongs
to that step. Span and row of the step then start with the wait. The row's duration is the sum of wait and block. Time
between wait and block, such as an evaluation, is part of the span, but not of the row's duration.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.monotonic import now
from ranklake.capture.steps.phases import Phases
from ranklake.capture.steps.progress import Frame, OpenStep
from ranklake.capture.steps.spans import Spans

T = TypeVar("T")
R = TypeVar("R")

MOST_WAITS: Final = 256
"""Most pending waits of one loader. A loader without steps, as in an evaluation, reaches it."""


class Wait(NamedTuple):
    """A wait that has ended.

    Attributes
    ----------
    start_ns, duration_ns
        Start on the monotonic clock, and duration.
    around
        The enclosing frame.
    """

    start_ns: int
    duration_ns: int
    around: Frame | None


class Waits(threading.local):
    """The waits of each thread that no step has claimed yet, by source.

    A source identifies one iteration over a loader.

    Attributes
    ----------
    feeding
        Source whose waits the thread's last step claimed. With two active loaders, the next step uses the same source.
    busy
        Whether a wait is being timed. A nested wait, such as of a loader within a loader, is not recorded.
    """

    feeding: object = None
    busy: bool = False

    def __init__(self, spans: Spans, phases: Phases) -> None:
        self._spans, self._phases = spans, phases
        self._by_source: dict[object, list[Wait]] = {}

    def __len__(self) -> int:
        return len(self._by_source)

    def time(self, source: object, fetch: Callable[[], R]) -> R:
        """Return the result of a call, and record its duration as a wait. An exception of the call ends the source.

        Parameters
        ----------
        source
            Source of the wait.
        """
        if self.busy or not self._spans.sink.enabled:
            return fetch()
        frame = self._spans.progress.stack.top
        self.busy = True
        try:
            if frame is not None and frame.step is not None:
                with self._phases.find("data"):
                    return fetch()
            start = now()
            batch = fetch()
            self.add(source, Wait(start, now() - start, frame))
        except BaseException:
            if source != self.feeding:  # steps still use batches that the feeding source read ahead
                self.leave(source)
            raise
        finally:
            self.busy = False
        return batch

    def add(self, source: object, wait: Wait) -> None:
        """Keep a wait for the next step."""
        waits = self._by_source.pop(source, [])
        self._by_source[source] = waits  # ordered by the last wait
        waits.append(wait)
        if len(waits) > MOST_WAITS:
            self._write(waits.pop(0))

    def leave(self, source: object) -> None:
        """Record the waits of a source that has ended, without a step."""
        for wait in self._by_source.pop(source, ()):
            self._write(wait)
        if source == self.feeding:
            self.feeding = None

    def leave_all(self) -> None:
        """Record all pending waits of the calling thread, without a step."""
        for source in list(self._by_source):
            self.leave(source)

    def claim(self, step: OpenStep) -> tuple[int, int]:
        """Record the waits of the source that feeds a new step; return their start and total duration in ns.

        Waits of other sources are recorded without a step. At least one wait must be pending.
        """
        feeding = self.feeding if self.feeding in self._by_source else next(reversed(self._by_source))
        self.feeding = feeding
        claimed = self._by_source.pop(feeding)
        for source in list(self._by_source):
            for wait in self._by_source.pop(source):
                self._write(wait)
        for wait in claimed:
            self._write(wait, step)
        return claimed[0].start_ns, sum(wait.duration_ns for wait in claimed)

    def _write(self, wait: Wait, step: OpenStep | None = None) -> None:
        spans = self._spans
        name = spans.number("data", "phase")
        if name is None:
            return
        above: Any = step if step is not None else wait.around
        number = ABSENT if step is None else step.number
        parent = ABSENT if above is None else above.span_id
        # step, span_id, parent_id, bytes, microbatch, sequence, name
        fields = (number, spans.next_id(), parent, ABSENT, -1, 0, name)
        spans.put(wait.start_ns, wait.duration_ns, *fields)

    def after_fork(self) -> None:
        """Drop pending waits in a forked child, because the parent records them."""
        self._by_source.clear()
        self.feeding, self.busy = None, False

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as None: in another process a `Loader` only forwards to the wrapped object."""
        return _no_waits, ()


def _no_waits() -> None:
    """Return the unpickled value of `Waits`."""


class Loader(Generic[T]):
    """Wraps an iterable, such as torch's DataLoader, and records its waits.

    Length, attributes (also for setting) and methods (``sampler``, ``dataset``, ``set_epoch``) are those of the wrapped
    object. Its worker processes are not affected. Wrap it last: pass the DataLoader itself to libraries that check for
    this type.
    """

    __slots__ = ("__weakref__", "_ranklake_waits", "_ranklake_wrapped")

    def __init__(self, wrapped: Iterable[T], waits: Waits | None) -> None:
        object.__setattr__(self, "_ranklake_wrapped", wrapped)
        object.__setattr__(self, "_ranklake_waits", waits)

    def __iter__(self) -> Iterator[T]:
        waits = self._ranklake_waits
        return iter(self._ranklake_wrapped) if waits is None else Batches(self._ranklake_wrapped, waits)

    def __len__(self) -> int:
        return len(self._ranklake_wrapped)

    def __bool__(self) -> bool:
        return bool(self._ranklake_wrapped)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute
        return getattr(self._ranklake_wrapped, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._ranklake_wrapped, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return Loader, (self._ranklake_wrapped, self._ranklake_waits)


class Batches(Generic[T]):
    """The iterator of a `Loader`. Its creation counts as a wait, too, because it starts the workers."""

    __slots__ = ("_batches", "_source", "_waits")

    def __init__(self, iterable: Iterable[T], waits: Waits) -> None:
        self._waits, self._source = waits, object()
        self._batches: Iterator[T] = waits.time(self._source, lambda: iter(iterable))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return self._waits.time(self._source, self._batches.__next__)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute
        if name in self.__slots__:  # not set yet
            raise AttributeError(name)
        return getattr(self._batches, name)
