"""Identity: which rank of which run and attempt a process is, possibly known only once torch.distributed is in use.

    start    from arguments, else from torch.distributed, else from environment variables
    later    while torch.distributed is not initialized: checked each second, at the first step, and at the close
    known    the rows so far are reassigned to the rank (`ranklake.capture.recording.reassignment`), and the process
             claims the rank. If two processes claim the same rank, the later one is reported and gets another run

So a rank that starts recording early is not recorded as another rank, and a restart is not recorded as the previous
attempt of the same name (decision 057).
"""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from ranklake.capture.common.gaps import AFTER_CLOSE, DELIBERATE, Gaps
from ranklake.capture.common.monotonic import now
from ranklake.capture.lifecycle.lifecycle import interval_s
from ranklake.capture.provenance.launcher import Group, Launch, group_of
from ranklake.capture.provenance.names import PARENT_VARIABLE
from ranklake.capture.provenance.run_record import RankRecord, RunRecord
from ranklake.capture.recording.recorder import Recorder
from ranklake.capture.spool.claims import Claim, Claims
from ranklake.capture.spool.stream import Stream
from ranklake.capture.steps.progress import OpenStep
from ranklake.capture.training.parts import RowParts
from ranklake.redaction.redact import redact_uri
from ranklake.segments.segment import readable_name

Find = Callable[[Group | None], Launch]
_MOST_NAME_CHARACTERS: Final = 128 - len("-claim-00000000")


def number_attempt(launch: Launch, claims: Claims, gaps: Gaps, *, is_begun: bool = False) -> Launch:
    """Return a launch with its attempt number, which counts the uses of the run's name on this node.

    Parameters
    ----------
    is_begun
        Whether this process still records that rank of the run.
    """
    if not launch.key:
        return launch
    advances = launch.is_on_one_node and not launch.is_told
    if launch.is_by_hand:
        numbering = claims.number_by_hand(launch.key, launch.rank, launch.attempt, advances=advances)
    else:
        numbering = claims.number(
            launch.key, launch.attempt, advances=advances, alone=launch.is_alone, is_begun=is_begun
        )
    if launch.is_told:
        return launch
    if is_begun and numbering.is_next:
        message = f"run {launch.run!r} is recorded by this process already: this is attempt {numbering.attempt}"
        gaps.warn("attempt", f"{message}; close() a run before you start it again")
    elif numbering.is_next:
        gaps.warn(
            "attempt", f"run {launch.run!r} was recorded before on this node: this is attempt {numbering.attempt}"
        )
    elif numbering.is_used_again:
        hint = "set RANKLAKE_ATTEMPT to the next number on all ranks, or RANKLAKE_RUN to another name"
        gaps.warn("attempt", f"run {launch.run!r} was recorded before: repeated steps will be recorded twice; {hint}")
    return replace(launch, attempt=numbering.attempt)


class HasIdentity(Protocol):
    """The interface of a run that `Identity` needs."""

    launch: Launch

    @property
    def rows(self) -> RowParts:
        """Parts that record events and the row of ``runs``."""


class Identity:
    """Determines run, attempt and rank of this process, and records them.

    Parameters
    ----------
    find
        Returns the launch of this process, given the process group of torch.distributed (None without one).
    make_run_record
        Returns the writer of the row of ``runs``, for rank 0.
    reassign
        Assigns later rows to another run or rank; returns False if that is not possible now.
    """

    def __init__(
        self,
        run: HasIdentity,
        recorder: Recorder,
        find: Find,
        make_run_record: Callable[[Launch], RunRecord],
        reassign: Callable[[Launch], bool],
    ) -> None:
        self._run, self._recorder, self._find = run, recorder, find
        self._make_run_record, self._reassign = make_run_record, reassign
        self._group: Group | None = None
        self._has_steps = self._is_settled = self._is_announced = self._is_parents = False
        self._claimed: tuple[Launch, Claim] | None = None
        self._run_record: RunRecord | None = None
        self._config: object = None
        self._awaits_config = False
        self._rank_record = RankRecord(run.rows.sink)
        self._no_run_record = recorder.settle
        self._lock = threading.RLock()
        self._begun_ns = now()

    @property
    def launch(self) -> Launch:
        """Run, attempt and rank that rows are recorded under now."""
        return self._recorder.launch

    def begin(self) -> None:
        """Record the start of this rank; called once, by `start`."""
        self._introduce()
        if self.launch.is_certain:
            self._settle()
        else:
            self._run.rows.lifecycle.each_second.insert(0, self.look)
            progress = self._run.rows.progress
            progress.on_begin = (self._begin_first_step, *progress.on_begin)
        if self.launch.launcher == "none":
            os.environ[PARENT_VARIABLE] = f"{os.getpid()} {self.launch.run}"

    def look(self) -> None:
        """Check whether torch.distributed is initialized. The sealer's thread calls this each second."""
        if not self._lock.acquire(blocking=False):  # the run is closing, and waits for this thread
            return
        try:
            self._look_for_group()
            if self._has_steps or self.launch.is_certain:
                self._settle()
        finally:
            self._lock.release()

    def await_config(self) -> None:
        """On rank 0, delay the row of ``runs`` for hyperparameters that a framework supplies later."""
        with self._lock:
            self._awaits_config = True
            if self._run_record is not None:
                self._run_record.await_config()

    def configure(self, config: object) -> bool:
        """Set the hyperparameters in the row of ``runs``. Return False if this is not rank 0 or the row is final."""
        with self._lock:
            if self._is_parents or self._run_record is None or not self._run_record.configure(config):
                return False
            self._config = config
            return True

    def close(self) -> None:
        """Determine the identity for the last time and release the claim: the run ends."""
        with self._lock:
            if self._is_parents:
                return
            self._look_for_group()
            self._settle()
            self._rank_record.write(self.launch)
            if self._claimed is not None:
                launch, claim = self._claimed
                self._claims(launch).release(launch.attempt, launch.rank, claim)
            if os.environ.get(PARENT_VARIABLE) == f"{os.getpid()} {self.launch.run}":
                del os.environ[PARENT_VARIABLE]

    def after_fork(self) -> None:
        """In a forked child, record under the parent's rank; the parent keeps the claim and the row of ``runs``."""
        self._lock = threading.RLock()
        self._is_parents = True
        self._remove_step_callback()
        group = self._group or group_of()
        if group is not None and not self.launch.is_certain:
            self._recorder.launch = self._run.launch = self._launch_from(group)

    # ── which rank this process is ──

    def _remove_step_callback(self) -> None:
        progress = self._run.rows.progress
        progress.on_begin = tuple(callback for callback in progress.on_begin if callback != self._begin_first_step)

    def _begin_first_step(self, step: OpenStep) -> None:
        """Look for the process group when training begins, because a short training may end within a second."""
        del step
        self._remove_step_callback()
        self._has_steps = True
        self._group = self._group or group_of()
        if self._group is None:
            self._announce()

    def _look_for_group(self) -> None:
        self._group = self._group or group_of()
        if self._group is not None and not self.launch.is_certain:
            self._adopt(self._launch_from(self._group))

    def _launch_from(self, group: Group) -> Launch:
        before, launch = self.launch, self._find(group)
        if launch.launcher == "none":  # the name is generated; keep the first one
            return replace(launch, run=before.run, attempt=before.attempt)
        return number_attempt(launch, self._claims(launch), self._recorder.gaps)

    def _adopt(self, launch: Launch) -> None:
        before, run_record = self.launch, self._run_record
        place = (launch.run, launch.attempt, launch.rank)
        is_other = place != (before.run, before.attempt, before.rank)
        if is_other or (run_record is not None and not run_record.amend(launch)):
            if not self._reassign(launch):
                return  # tried again in a second
            if run_record is not None:
                run_record.leave()
            self._run_record, self._recorder.settle = None, self._no_run_record
        self._recorder.launch = self._run.launch = launch
        if launch.warning != before.warning and launch.warning:
            self._recorder.gaps.warn("launch", launch.warning)
        self._introduce()

    def _introduce(self) -> None:
        """Record the event ``rank_start`` and, on rank 0, the row of ``runs``."""
        run, launch = self._run, self.launch
        if launch.rank == 0 and self._run_record is None:
            with run.rows.sink.recording("runs"):
                self._run_record = self._make_run_record(launch)
                self._recorder.settle = self._run_record.settle
                self._run_record.begin()
                if self._config is not None:  # set before the process was reassigned
                    self._run_record.configure(self._config)
                elif self._awaits_config:
                    self._run_record.await_config()
        heartbeat_interval_s = interval_s(run.rows.lifecycle.settings, launch.world_size)
        run.rows.events.add(
            "rank_start", launcher=launch.launcher, world_size=launch.world_size, interval_s=heartbeat_interval_s
        )

    def _settle(self) -> None:
        """Claim the rank and, on rank 0, announce the run. Only the first call has an effect."""
        if self._is_settled:
            return
        self._is_settled = True
        self._claim()
        self._announce()
        self._run.rows.lifecycle.each_second.append(lambda: self._rank_record.look(self.launch))

    def _announce(self) -> None:
        if self.launch.rank == 0 and not self._is_announced:
            self._is_announced = True
            self._run.rows.sink.record("events", {"event": "run_start", "severity": "info"}, self._begun_ns)
            announce_start(self._recorder)

    # ── claims of other processes ──

    def _claims(self, launch: Launch) -> Claims:
        return Claims(self._recorder.root, launch.run)

    def _claim(self) -> None:
        launch, stream = self.launch, self._recorder.stream
        if not launch.is_named or stream is None:
            return
        own = Claim.of_this_process(stream.name.incarnation)
        alone = launch.is_alone and self._has_steps  # a process that only starts ranks has no steps
        other = self._claims(launch).claim(launch.attempt, launch.rank, own, alone=alone)
        if other is None:
            self._claimed = launch, own
            return
        renamed = replace(
            launch, run=f"{launch.run[:_MOST_NAME_CHARACTERS]}-claim-{own.incarnation & 0xFFFFFFFF:08x}", is_named=False
        )
        subject = f"rank {launch.rank} of run {launch.run!r}, attempt {launch.attempt},"
        hint = "give each process its rank (rank= and world_size=, or RANK and WORLD_SIZE), or its run another name"
        line = f"{subject} is recorded by process {other.pid} already; process {own.pid} is recorded as {renamed.run!r}"
        self._recorder.gaps.warn("claim", f"{line}: {hint}")
        self._adopt(renamed)
        attributes = {"run": launch.run, "attempt": launch.attempt, "pids": [other.pid, own.pid]}
        row = {"event": "rank_claimed_twice", "severity": "error", "message": f"{line}: {hint}"}
        self._run.rows.sink.record("events", {**row, "attributes": json.dumps(attributes)})


def announce_start(recorder: Recorder) -> None:
    """Print the run's name, its destination, and the command that shows it."""
    run, where = recorder.launch.run, redact_uri(recorder.spool) if recorder.spool else f"{recorder.root} only"
    _print_line(
        recorder, f"run {run} ({readable_name(run)}) is recorded to {where}; to look at it: ranklake watch {run}"
    )


def announce_end(recorder: Recorder, stream: Stream | None, gaps: Gaps, media: int = 0) -> None:
    """Print how many rows rank 0 recorded, how many are unsent, lost or late, and the next command.

    Parameters
    ----------
    stream
        The process's stream, fully sealed.
    media
        Number of images, tables and texts among the rows.
    """
    run = recorder.launch.run
    rows = stream.sealed_rows if stream is not None else 0
    waiting = sum(count for _, count in stream.waiting.values()) if stream is not None else 0
    totals = gaps.totals().items()
    late = sum(count for (_, reason), count in totals if reason == AFTER_CLOSE)
    refused = sum(count for (table, reason), count in totals if table == "media" and reason != AFTER_CLOSE)
    lost = sum(count for (_, reason), count in totals if reason not in DELIBERATE) - late - refused
    message = (
        f"run {run} ended: rank {recorder.launch.rank} recorded {rows:,} rows, {waiting:,} not sent yet, {lost:,} lost"
    )
    if media or refused:
        message += f", {media:,} media kept" + (f" and {refused:,} refused" if refused else "")
    if late:
        message += f", {late:,} refused after its end"
    _print_line(recorder, f"{message}; next: ranklake pipeline, then ranklake show {run}")


def _print_line(recorder: Recorder, line: str) -> None:
    if recorder.settings.announce == "on" and recorder.launch.rank == 0 and not recorder.is_worker:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            sys.stderr.write(f"ranklake: {line}\n")
            sys.stderr.flush()
