"""Recording: the recorder, threads and identity of a run that records; and the public properties of any run."""

import contextlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ranklake.capture.common.gaps import RefusedError
from ranklake.capture.common.run_like import RunLike
from ranklake.capture.common.values import number, to_json
from ranklake.capture.lifecycle.lifecycle import EXITS, FAILURES
from ranklake.capture.lifecycle.preemption import PREEMPTION
from ranklake.capture.provenance.annotations import Summary, Tags
from ranklake.capture.provenance.launcher import Launch, group_of
from ranklake.capture.recording.recorder import Recorder
from ranklake.capture.spool.meta import ENDED
from ranklake.capture.training.identity import announce_end
from ranklake.capture.training.parts import RowParts, SlotParts
from ranklake.redaction.known_secrets import learn_settings
from ranklake.segments.segment import readable_name

if TYPE_CHECKING:
    from ranklake.capture.recording.threads import RecorderThreads
    from ranklake.capture.training.identity import Identity


class Recording:
    """Recorder, threads and identity of one run that records.

    Attributes
    ----------
    threads
        Threads that seal and upload; None if another process does so, as for a forked child.
    identity
        Determines which rank of which run this process is.
    start_arguments
        Arguments of `start` that are the same on all ranks.
    """

    def __init__(self, run: RunLike, recorder: Recorder, rows: RowParts, slots: SlotParts) -> None:
        self.recorder = recorder
        self.threads: RecorderThreads | None = None
        self.identity: Identity | None = None
        self.start_arguments: dict[str, Any] = {}
        self._run, self._rows, self._slots = run, rows, slots
        self._sink, self._lifecycle = rows.sink, rows.lifecycle

    @property
    def is_parents(self) -> bool:
        """Whether the parent process started it before this process was forked."""
        return self.recorder.is_worker

    @property
    def is_of_another_rank(self) -> bool:
        """Whether the parent process started it, and this process has become another rank since the fork."""
        if not self.is_parents:
            return False
        group = group_of()
        return group is not None and group.world_size > 1

    def keep(self, threads: "RecorderThreads") -> None:
        """Set the threads that seal and upload."""
        self.threads = threads
        self._lifecycle.hurry = threads.flush_soon

    def flush(self, timeout_s: float) -> bool:
        """Seal and upload all rows recorded so far. Return whether all of them reached the spool in time."""
        if self.threads is None or self._sink.is_closed:
            return False
        try:
            self._slots.device.drain(0.0)
            self._lifecycle.drain(1.0)
            return self.threads.flush(self._sink.gaps.lenient("timeout_s", number, timeout_s, 10.0))
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._sink.trouble("flushing", error)
            return False

    def close(self, timeout_s: float) -> None:
        """Seal all rows and upload segments for at most `timeout_s` seconds. A second call does nothing."""
        slots, sink, lifecycle = self._slots, self._sink, self._lifecycle
        if sink.is_closed:
            return
        seconds = sink.gaps.lenient("timeout_s", number, timeout_s, 10.0)
        with sink.guarded("ending the run"):
            slots.device.drain(min(1.0, seconds))
            lifecycle.wind_up(seconds)
            if slots.scalars.sampler is not None:
                slots.scalars.sampler.close()
            slots.watchers.stop(lifecycle.ending.get("reason"))
            slots.waits.leave_all()
            if self.identity is not None:
                self.identity.close()
            self._record_end()
        sink.is_closed = True
        stream = self.recorder.stream
        PREEMPTION.leave(lifecycle)
        FAILURES.leave(lifecycle)
        EXITS.leave(lifecycle)
        with sink.guarded("closing"):
            self.recorder.close()
            if self.threads is not None:
                self.threads.stop(seconds)
                announce_end(self.recorder, stream, sink.gaps, self._rows.media.kept)
            elif self.recorder.stream is not None:  # a forked child: its parent seals and uploads
                self.recorder.gap_notes.flush()
                self.recorder.stream.close()

    def _record_end(self) -> None:
        recorder, ending = self.recorder, self._lifecycle.ending
        if recorder.is_worker:
            return
        recorder.gap_notes.flush()
        recorder.gap_notes.record_events()
        with contextlib.suppress(OSError, RefusedError):
            recorder.note_time()
        if self._run.rank == 0 and "signal" not in ending:  # a run that a signal ends is not complete
            self._rows.events.add("run_end")
        self._rows.events.add("rank_end", **ending)
        with contextlib.suppress(RefusedError):
            recorder.note(ENDED)

    def at_exit(self) -> None:
        """Close at interpreter exit. Rows refused since an earlier close become gaps of a new stream.

        An exception in a child of ``multiprocessing``, or `sys.exit` in any process, may cause the exit. No other hook
        reports it.
        """
        error = sys.exception() or EXITS.reason(self._lifecycle)
        if error is not None and not self._sink.is_closed:
            self._lifecycle.fail(error, exit_code=1)
        self._run.close()
        if self.threads is not None:
            with self._sink.guarded("reporting late gaps"):
                self.threads.report_late()

    def reassign(self, launch: Launch) -> bool:
        """Assign all later rows to another run or rank; return False if that is not possible now."""
        if self.threads is None or not self.threads.reassign(launch):
            return False
        for callback in self._lifecycle.on_reassigned:
            callback(launch)
        return True

    def await_config(self) -> None:
        """Delay the row of ``runs`` for hyperparameters that a framework supplies when it begins to train."""
        if self.identity is not None:
            self.identity.await_config()

    def configure(self, config: Mapping[str, Any]) -> bool:
        """Set the hyperparameters in the row of ``runs``, credentials redacted. Return False if the row is final."""
        learn_settings(to_json(config))
        return bool(self.identity is not None and self.identity.configure(config))

    def expects_late_values(self) -> bool:
        """Whether values are being copied from a GPU."""
        return len(self._slots.device) > 0

    def note_fork(self) -> None:
        """In the parent, after a fork: look for the child's stream from now on."""
        if self.threads is not None:
            self.threads.note_fork()

    def after_fork(self) -> None:
        """In a forked child, drop threads, uploads and open blocks. The parent records the blocks that it began."""
        self.threads = self._lifecycle.hurry = None
        self._slots.after_fork()
        self.recorder.after_fork()
        if self.identity is not None:
            self.identity.after_fork()
        self._rows.progress.after_fork()
        self._rows.media.after_fork()


class RunInfo:
    """Public properties of a run, its tags and notes. `ranklake.capture.training.run.Run` adds recording.

    Attributes
    ----------
    launch
        Run, attempt and rank of this process, as far as they are known.
    rows
        The parts that every run has.
    recording
        None for a run that records nothing.
    """

    launch: Launch
    rows: RowParts
    recording: "Recording | None"

    @property
    def name(self) -> str:
        """The run's name, the same on all ranks."""
        return self.launch.run

    @property
    def readable_name(self) -> str:
        """A readable name derived from `name`, such as ``brisk-otter-417``; `rename` sets another."""
        return readable_name(self.launch.run)

    @property
    def rank(self) -> int:
        """Global rank of this process."""
        return self.launch.rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the run."""
        return self.launch.world_size

    @property
    def attempt(self) -> int:
        """Restart number of the run."""
        return self.launch.attempt

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded."""
        return self.rows.sink.enabled

    def gaps(self) -> dict[str, dict[str, int]]:
        """Return the number of rows that this process could not record so far, by table and reason."""
        counts: dict[str, dict[str, int]] = {}
        for (table, reason), rows in sorted(self.rows.sink.gaps.totals().items()):
            counts.setdefault(table, {})[reason] = rows
        return counts

    def rename(self, name: object) -> None:
        """Set the run's readable name; the last call counts. The name in stored rows stays the same.

        Call it on one rank.
        """
        self.rows.annotations.add("name", value=name)

    @property
    def tags(self) -> Tags:
        """The run's tags: ``run.tags.add("baseline", stage="ablation")``, ``run.tags.remove("baseline")``.

        Set them on one rank. `ranklake runs --tag` selects runs by tag. The method `tag` is for artifacts.
        """
        return self.rows.annotations.tags

    def note(self, text: object) -> None:
        """Add a note of up to 8,192 characters, redacted like log lines. Call it on one rank."""
        self.rows.annotations.add("note", value=text)

    @property
    def summary(self) -> Summary:
        """Summary of the run: ``run.summary["best_loss"] = 1.93``. Set numbers or texts, on one rank."""
        return self.rows.annotations.summary

    def __dir__(self) -> list[str]:
        """Return the public names, without the attributes for the run's parts."""
        return sorted(name for name in dir(type(self)) if not name.startswith("_"))

    @property
    def _state(self) -> str:
        if self.recording is None:
            return "records nothing"
        return "closed" if self.rows.sink.is_closed else "records"

    def __repr__(self) -> str:
        where = f"attempt {self.attempt}, rank {self.rank} of {self.world_size}"
        return f"<run {self.name} ({self.readable_name}), {where}: {self._state}>"

    def _repr_html_(self) -> str:
        """Return an HTML table of facts for a notebook. Names of runs and tables contain no markup."""
        missing = ", ".join(f"{sum(rows.values()):,} of {table}" for table, rows in self.gaps().items())
        facts = {
            "run": f"{self.name} ({self.readable_name})",
            "attempt, rank": f"{self.attempt}, {self.rank} of {self.world_size}",
            "state": self._state,
            "rows that could not be recorded": missing or "none",
            "look at it": f"ranklake show {self.name}",
        }
        body = "".join(f"<tr><th>{name}</th><td>{fact}</td></tr>" for name, fact in facts.items())
        return f"<table>{body}</table>"
