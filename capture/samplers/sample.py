"""Sample: the interface of samplers, and the rows that they return."""

import errno
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ranklake.capture.common.gaps import LOGGER
from ranklake.capture.common.values import json_text
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.metrics.meter import Meter
from ranklake.capture.spool.stream_files import StreamName
from ranklake.capture.steps.events import Events

if TYPE_CHECKING:
    from ranklake.capture.metrics.scalar_writer import Scalar


NOT_THERE: Final = "not there"
NOT_PERMITTED: Final = "not permitted"
NOT_UNDERSTOOD: Final = "not understood"
OUT_OF_RANGE: Final = "out of range"
_REASONS: Final = {
    errno.ENOENT: NOT_THERE,
    errno.ENOTDIR: NOT_THERE,
    errno.ESRCH: NOT_THERE,
    errno.ENODEV: NOT_THERE,
    errno.EACCES: NOT_PERMITTED,
    errno.EPERM: NOT_PERMITTED,
    errno.EOPNOTSUPP: "not supported",
}
_MOST_BYTES: Final = 1 << 20


class UnavailableError(Exception):
    """A value is not available; the message is the reason, in a few words."""


class Tree:
    """Files under a root: ``/``, or a folder with a copy of a machine's /proc and /sys."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")

    def text(self, path: str) -> str:
        """Return a file's text, such as that of ``proc/stat``. Raises `OSError`."""
        fd = os.open(f"{self.root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = [os.read(fd, 1 << 16)]
            while parts[-1] and sum(map(len, parts)) < _MOST_BYTES:
                parts.append(os.read(fd, 1 << 16))
        finally:
            os.close(fd)
        return b"".join(parts).decode("utf-8", "replace")

    def number(self, path: str) -> int:
        """Return the integer in a file. Raises `OSError`, `ValueError`."""
        return int(self.text(path))

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder. Raises `OSError`."""
        return sorted(os.listdir(f"{self.root}/{path}"))  # noqa: PTH208 - paths as objects cost more than the listing

    def exists(self, path: str) -> bool:
        """Whether a file or folder exists."""
        return Path(f"{self.root}/{path}").exists()


class Reading:
    """A row that is being read.

    Attributes
    ----------
    columns
        Values by column.
    unavailable
        Reasons of missing columns.
    """

    def __init__(self, **columns: Any) -> None:  # noqa: ANN401 - columns of any type
        self.columns: dict[str, Any] = columns
        self.unavailable: dict[str, str] = {}

    def take(self, columns: Iterable[str], read: Callable[[], Mapping[str, Any]]) -> None:
        """Read columns from a source. If it fails, all of them are missing with the same reason."""
        try:
            self.columns.update(read())
        except Exception as error:  # noqa: BLE001 - the other columns must still be read
            self.unavailable.update(dict.fromkeys(columns, reason(error)))

    def row(self) -> dict[str, Any]:
        """Return the row with the column ``unavailable``. An integer above 64 bits counts as out of range."""
        for column, value in self.columns.items():
            if type(value) is int and not -(1 << 63) <= value < 1 << 63:
                self.columns[column], self.unavailable[column] = None, OUT_OF_RANGE
        missing = {column: text for column, text in self.unavailable.items() if self.columns.get(column) is None}
        return {**self.columns, "unavailable": json_text(missing) if missing else None}


def reason(error: Exception) -> str:
    """Return the reason of a failed read in a few words, without any content of the source."""
    if isinstance(error, UnavailableError):
        return str(error)
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0, error.strerror or type(error).__name__)
    if isinstance(error, ValueError | KeyError | IndexError):
        return NOT_UNDERSTOOD
    return type(error).__name__


class Row(NamedTuple):
    """One row of a table of frames, by its contract's columns. `at_ns` is the monotonic time."""

    table: str
    columns: Mapping[str, Any]
    at_ns: int


class Value(NamedTuple):
    """The current value of a metric."""

    metric: str
    kind: str
    value: float


Sample = Row | Value
Holders = Callable[[], Mapping[int, StreamName]]
"""Returns the recording processes of this host, by pid."""


class Sampler(Protocol):
    """A source of samples. A single thread calls its methods."""

    def sample(self, now_ns: int) -> Iterable[Sample]:
        """Return the samples due at a monotonic time, with rows or events for unavailable values. Never raises."""

    def close(self) -> None:
        """Close all resources, without waiting."""


@dataclass(slots=True)
class SourceStatus:
    """Events of a source: one for each new failure, and one when the source works again."""

    source: str
    _reported: set[str] = field(default_factory=set)

    def failed(self, problem: str, now_ns: int, **attributes: object) -> list[Row]:
        """Return an event for a new failure; empty if it was reported before."""
        if problem in self._reported:
            return []
        self._reported.add(problem)
        message = f"{self.source} cannot be sampled: {problem}"
        return [event("sampler_unavailable", now_ns, "warning", message, {"source": self.source, **attributes})]

    def recovery_event(self, now_ns: int) -> list[Row]:
        """Return an event if the source had failed; empty otherwise."""
        if not self._reported:
            return []
        self._reported.clear()
        return [event("sampler_available", now_ns, "info", f"{self.source} is sampled", {"source": self.source})]


def event(name: str, now_ns: int, severity: str, message: str, attributes: Mapping[str, object]) -> Row:
    """Return a row of ``events``."""
    columns = {"event": name, "severity": severity, "message": message, "attributes": json_text(dict(attributes))}
    return Row("events", columns, now_ns)


Columns = dict[str, Any]


def held_by(ranks: Sequence[StreamName]) -> Columns:
    """Return the holder columns of a device that these ranks use."""
    runs = {(name.run, name.attempt) for name in ranks}
    numbers = {name.rank for name in ranks}
    columns: Columns = {"holder_count": len({(name.run, name.attempt, name.rank) for name in ranks})}
    if len(runs) == 1:
        ((run, attempt),) = runs
        columns |= {"holder_run": run, "holder_attempt": attempt}
        if len(numbers) == 1:
            columns["holder_rank"] = next(iter(numbers))
    return columns


def by_process(pids: Sequence[int], holders: Mapping[int, StreamName]) -> list[StreamName]:
    """Return the ranks of the processes on a device."""
    return [holders[pid] for pid in pids if pid in holders]


def by_environment(
    index: int | None, uuid: str, holders: Mapping[int, StreamName], tree: Tree
) -> list[StreamName] | None:
    """Return the ranks that use a device by their environment variables; None if no rank has these variables."""
    ranks: list[StreamName] = []
    any_choice = False
    for pid, name in sorted(holders.items()):
        choice = _choice(_environment(tree, pid))
        any_choice |= choice is not None
        if choice is not None and (choice == str(index) or (not choice.isdecimal() and uuid.startswith(choice))):
            ranks.append(name)
    return ranks if any_choice else None


def _choice(environment: Mapping[str, str]) -> str | None:
    """Return the number, or the beginning of the UUID, of the device that a process uses; None if unknown."""
    local = environment.get("LOCAL_RANK", "")
    visible = [part.strip() for part in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    if len(visible) == 1:
        return visible[0]
    if not local.isdecimal():
        return None
    if visible:
        return visible[int(local)] if int(local) < len(visible) else None
    return local


def _environment(tree: Tree, pid: int) -> dict[str, str]:
    """Return only these two variables of a process, because others may be secret."""
    try:
        pairs = tree.text(f"proc/{pid}/environ").split("\0")
    except OSError:
        return {}
    prefixes = ("CUDA_VISIBLE_DEVICES=", "LOCAL_RANK=")
    return dict(pair.split("=", 1) for pair in pairs if pair.startswith(prefixes))


class SampleWriter:
    """Writes the samples of one process's samplers.

    Parameters
    ----------
    sink, events, meter
        Parts of the run that records the samples.
    samplers
        Samplers to call at each tick.

    Notes
    -----
    Times are monotonic, so setting the wall clock has no effect.
    """

    def __init__(self, sink: Sink, events: Events, meter: Meter, samplers: Sequence[Sampler]) -> None:
        self._sink, self._events, self._meter = sink, events, meter
        self._samplers = list(samplers)
        self._failed: set[str] = set()
        self._scalars: dict[str, Scalar] = {}

    def tick(self) -> None:
        """Call each sampler once and write its samples. Nothing is raised."""
        for sampler in self._samplers:
            now_ns = time.monotonic_ns()
            try:
                for sample in sampler.sample(now_ns):
                    if isinstance(sample, Row):
                        with self._sink.recording(sample.table):
                            self._sink.record(sample.table, sample.columns, sample.at_ns)
                    else:
                        self._add(sample)
            except Exception as error:  # noqa: BLE001 - a bug in one sampler must not affect others
                self._report(type(sampler).__name__, error)

    def _add(self, value: Value) -> None:
        scalar = self._scalars.get(value.metric)
        if scalar is None:
            scalar = self._scalars[value.metric] = self._meter.scalar(value.metric, value.kind)
        scalar.add(value.value)

    def close(self) -> None:
        """Close the samplers."""
        for sampler in self._samplers:
            try:
                sampler.close()
            except Exception as error:  # noqa: BLE001 - the other samplers must be closed, too
                self._report(type(sampler).__name__, error)

    def _report(self, name: str, error: Exception) -> None:
        if name not in self._failed:
            self._failed.add(name)
            LOGGER.warning("ranklake: %s failed: %s: %s", name, type(error).__name__, error)
            message = f"{name} failed: {type(error).__name__}: {error}"
            self._events.add(
                "sampler_failed", message=message, severity="error", sampler=name, error=type(error).__name__
            )
