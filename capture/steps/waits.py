"""Waits: how long training waits for data, as phase ``data`` of the step that uses the data.

    for n, batch in enumerate(run.loader(batches)):     waits      ├ data ┤
        with run.step(n): ...                           the block           ├ forward ┤├ backward ┤ …
                                                        its row    ├ wait ┤+├──────── block ────────┤

A wait within a step is a phase like any other. One before it is kept until the thread's next step begins, and belongs
to that step: its span and its row begin where the wait began, and the row's times are the wait's and the block's
together. What lies between the two, such as an evaluation, is in the span's length, but is no time of the step's.
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
"""Of one loader that wait for their step. One that feeds no step, as in an evaluation that is cut short, fills it."""


class Wait(NamedTuple):
    """A wait that has ended.

    Attributes
    ----------
    start_ns, duration_ns
        On the monotonic clock.
    around
        The frame that it lay in.
    """

    start_ns: int
    duration_ns: int
    around: Frame | None


class Waits(threading.local):
    """The waits of each thread that no step has claimed yet, by whose they are.

    Attributes
    ----------
    feeding
        Whose waits the thread's last step claimed: with two loaders under way, the next step is fed by the same.
    busy
        Whether a wait is being timed: one within it, such as a loader's in a loader, is no other.
    """

    feeding: object = None
    busy: bool = False

    def __init__(self, spans: Spans, phases: Phases) -> None:
        self._spans, self._phases = spans, phases
        self._of: dict[object, list[Wait]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def time(self, source: object, fetch: Callable[[], R]) -> R:
        """Return what a call fetches, and record how long it took; what it raises goes on and ends the source.

        Parameters
        ----------
        source
            Whose wait it is.
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
            if source != self.feeding:  # else it was read ahead: what it gave is still to be trained on
                self.leave(source)
            raise
        finally:
            self.busy = False
        return batch

    def add(self, source: object, wait: Wait) -> None:
        """Keep a wait for the step that begins next."""
        kept = self._of.pop(source, [])
        self._of[source] = kept  # the last to wait comes last
        kept.append(wait)
        if len(kept) > MOST_WAITS:
            self._write(kept.pop(0))

    def leave(self, source: object) -> None:
        """Record what is kept for a source that has ended, as waits for no step."""
        for wait in self._of.pop(source, ()):
            self._write(wait)
        if source == self.feeding:
            self.feeding = None

    def leave_all(self) -> None:
        """Record all waits that the calling thread has kept, as waits for no step."""
        for source in list(self._of):
            self.leave(source)

    def claim(self, step: OpenStep) -> tuple[int, int]:
        """Give a step that begins what fed it; return when it began to wait, ABSENT if it did not, and for how long."""
        fed = self.feeding if self.feeding in self._of else next(reversed(self._of))
        self.feeding = fed
        mine = self._of.pop(fed)
        for source in list(self._of):
            if source != fed:
                for wait in self._of.pop(source):
                    self._write(wait)
        for wait in mine:
            self._write(wait, step)
        return mine[0].start_ns, sum(wait.duration_ns for wait in mine)

    def _write(self, wait: Wait, step: OpenStep | None = None) -> None:
        spans = self._spans
        name = spans.number("data", "phase")
        if name is None:
            return
        above: Any = step if step is not None else wait.around
        number = ABSENT if step is None else step.number
        parent = ABSENT if above is None else above.span_id
        fields = (number, spans.next_id(), parent, ABSENT, -1, 0, name)
        spans.put(wait.start_ns, wait.duration_ns, *fields)

    def after_fork(self) -> None:
        """In a forked child: what was waited for is the parent's."""
        self._of.clear()
        self.feeding, self.busy = None, False

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as None: in another process a `Loader` is what it wraps."""
        return _no_waits, ()


def _no_waits() -> None:
    """Return what waits are in another process."""


class Loader(Generic[T]):
    """An iterable, such as torch's DataLoader, whose waits are recorded. In all else it is what it wraps.

    Its length, its attributes, settable ones too, and its methods (``sampler``, ``dataset``, ``set_epoch``) are those
    of the wrapped; so are the worker processes, which know nothing of it. Wrap last: what is given to libraries that
    look for a DataLoader is the DataLoader.
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

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the wrapped has
        return getattr(self._ranklake_wrapped, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._ranklake_wrapped, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return Loader, (self._ranklake_wrapped, self._ranklake_waits)


class Batches(Generic[T]):
    """One passage through a `Loader`: its iterator. Beginning it counts as a wait, too: that starts the workers."""

    __slots__ = ("_batches", "_source", "_waits")

    def __init__(self, iterable: Iterable[T], waits: Waits) -> None:
        self._waits, self._source = waits, object()
        self._batches: Iterator[T] = waits.time(self._source, lambda: iter(iterable))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return self._waits.time(self._source, self._batches.__next__)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the wrapped's has
        if name in self.__slots__:  # not set yet
            raise AttributeError(name)
        return getattr(self._batches, name)
