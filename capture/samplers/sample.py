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
    """A value is not available; its text says why, in a few words."""


class Tree:
    """Files below a root: ``/``, or a folder that a machine's /proc and /sys were copied to."""

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
        """Return the whole number that a file holds. Raises `OSError`, `ValueError`."""
        return int(self.text(path))

    def names(self, path: str) -> list[str]:
        """Return what a folder holds, sorted. Raises `OSError`."""
        return sorted(os.listdir(f"{self.root}/{path}"))  # noqa: PTH208 - paths as objects cost more than the listing

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return Path(f"{self.root}/{path}").exists()


class Reading:
    """One row in the making.

    Attributes
    ----------
    columns
        What was found.
    unavailable
        Why a column that was looked for is missing.
    """

    def __init__(self, **columns: Any) -> None:  # noqa: ANN401 - columns of any type
        self.columns: dict[str, Any] = columns
        self.unavailable: dict[str, str] = {}

    def take(self, columns: Iterable[str], read: Callable[[], Mapping[str, Any]]) -> None:
        """Take columns from a source; where it fails, all of them are missing for the same reason."""
        try:
            self.columns.update(read())
        except Exception as error:  # noqa: BLE001 - whatever a host has in store, the other columns are read
            self.unavailable.update(dict.fromkeys(columns, reason(error)))

    def row(self) -> dict[str, Any]:
        """Return the row, with the column ``unavailable``; a number that no column can hold is none."""
        for column, value in self.columns.items():
            if type(value) is int and not -(1 << 63) <= value < 1 << 63:
                self.columns[column], self.unavailable[column] = None, OUT_OF_RANGE
        missing = {column: why for column, why in self.unavailable.items() if self.columns.get(column) is None}
        return {**self.columns, "unavailable": json_text(missing) if missing else None}


def reason(error: Exception) -> str:
    """Return in a few words why something could not be read; never what was read."""
    if isinstance(error, UnavailableError):
        return str(error)
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0, error.strerror or type(error).__name__)
    if isinstance(error, ValueError | KeyError | IndexError):
        return NOT_UNDERSTOOD
    return type(error).__name__


class Row(NamedTuple):
    """One row of a table of frames, by its contract's columns; `at_ns` is monotonic."""

    table: str
    columns: Mapping[str, Any]
    at_ns: int


class Value(NamedTuple):
    """One value of a metric, as of now."""

    metric: str
    kind: str
    value: float


Sample = Row | Value
Holders = Callable[[], Mapping[int, StreamName]]
"""Gives the processes of this host that record, by pid."""


class Sampler(Protocol):
    """One source. All its methods are called by one thread."""

    def sample(self, now_ns: int) -> Iterable[Sample]:
        """Return what is due now, a monotonic time; rows or events name what is not available. No raise."""

    def close(self) -> None:
        """Let go of all that is open, and wait for nothing."""


@dataclass(slots=True)
class SourceStatus:
    """Which failures of a source were reported: each becomes one event, and one more when the source works again."""

    source: str
    _reported: set[str] = field(default_factory=set)

    def failed(self, why: str, now_ns: int, **attributes: object) -> list[Row]:
        """Return an event for a failure that is new, else nothing."""
        if why in self._reported:
            return []
        self._reported.add(why)
        message = f"{self.source} cannot be sampled: {why}"
        return [event("sampler_unavailable", now_ns, "warning", message, {"source": self.source, **attributes})]

    def recovery_event(self, now_ns: int) -> list[Row]:
        """Return an event if there was a failure that is over."""
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
    """Return the columns of a device that these ranks hold."""
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
    """Return the ranks whose processes are on a device."""
    return [holders[pid] for pid in pids if pid in holders]


def by_environment(
    index: int | None, uuid: str, holders: Mapping[int, StreamName], tree: Tree
) -> list[StreamName] | None:
    """Return the ranks that say that they use a device; None if no rank says which it uses."""
    ranks: list[StreamName] = []
    any_choice = False
    for pid, name in sorted(holders.items()):
        choice = _choice(_environment(tree, pid))
        any_choice |= choice is not None
        if choice is not None and (choice == str(index) or (not choice.isdecimal() and uuid.startswith(choice))):
            ranks.append(name)
    return ranks if any_choice else None


def _choice(environment: Mapping[str, str]) -> str | None:
    """Return the number or the beginning of the UUID of the device that a process uses; None if that is not said."""
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
    """Return these two variables of a process, and no other: the rest is none of our business."""
    try:
        pairs = tree.text(f"proc/{pid}/environ").split("\0")
    except OSError:
        return {}
    wanted = ("CUDA_VISIBLE_DEVICES=", "LOCAL_RANK=")
    return dict(pair.split("=", 1) for pair in pairs if pair.startswith(wanted))


class SampleWriter:
    """Writes what the samplers of one process give.

    Parameters
    ----------
    sink, events, meter
        Of the run that the rows go to.
    samplers
        Asked at each tick.

    Notes
    -----
    Times are monotonic, so a wall clock that is set back moves nothing.
    """

    def __init__(self, sink: Sink, events: Events, meter: Meter, samplers: Sequence[Sampler]) -> None:
        self._sink, self._events, self._meter = sink, events, meter
        self._samplers = list(samplers)
        self._failed: set[str] = set()
        self._scalars: dict[str, Scalar] = {}

    def tick(self) -> None:
        """Ask each sampler once and write down what it gives. Nothing is raised."""
        for sampler in self._samplers:
            now_ns = time.monotonic_ns()
            try:
                for sample in sampler.sample(now_ns):
                    if isinstance(sample, Row):
                        with self._sink.recording(sample.table):
                            self._sink.record(sample.table, sample.columns, sample.at_ns)
                    else:
                        self._add(sample)
            except Exception as error:  # noqa: BLE001 - a bug of ours must cost this sampler's row and no other
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
            except Exception as error:  # noqa: BLE001 - the next one's turn must come
                self._report(type(sampler).__name__, error)

    def _report(self, name: str, error: Exception) -> None:
        if name not in self._failed:
            self._failed.add(name)
            LOGGER.warning("ranklake: %s failed: %s: %s", name, type(error).__name__, error)
            message = f"{name} failed: {type(error).__name__}: {error}"
            self._events.add(
                "sampler_failed", message=message, severity="error", sampler=name, error=type(error).__name__
            )
