"""Follower: converts calls of hooks in torch and frameworks to steps and phases of a run. Each process has one.

    hooks in torch (`ranklake.capture.frameworks.torch`)        forward, backward, optimizer, waits, grad_norm, lr, loss
    the leader: hooks in a framework (lightning, …)             begin, end and number of each step
            ▼
    Follower   ──▶   run.step, run.phase, run.log

Without a leader, a step ends with the optimizer's step, and steps are counted from 0. Nothing here raises into
training. Without a followed run, a hook only reads a variable.
"""

import contextlib
import pickle
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.assets.hashing import last_part, shown_place
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.values import text
from ranklake.capture.frameworks.patches import PATCHES
from ranklake.capture.provenance.annotations import TRAINER
from ranklake.capture.steps.step import Step
from ranklake.capture.training.start import start

if TYPE_CHECKING:
    from ranklake.capture.steps.nothing import NullContext
    from ranklake.capture.training.run import Run

_MICRO: Final = frozenset({"forward", "backward"})
MOST_MICRO: Final = 1024
"""Most micro-batches to count in a step. Training without a torch optimizer is a single step that never ends."""


class Follower:
    """Records training into a run.

    Parameters
    ----------
    run
        The run to record into; None: start one with `settings` when training begins.
    settings
        Options of `ranklake.capture.start`.

    Attributes
    ----------
    given
        The run that the caller passed; None if the follower starts its own.
    leader
        The framework hook that decides where steps begin and end; None if the optimizer does.
    step
        The open step; None if there is none.
    latest
        Number of the step that began last; -1 before the first.
    micro
        Number of the current micro-batch in the step.
    facts
        Values for the row of the open step: lr, grad_norm, …
    losses
        Arguments of backward for each micro-batch of the step; None for an argument that is not a scalar.
    adds_losses
        Whether the step's loss is the sum of these, because the framework divides each by their number.
    """

    def __init__(self, run: "Run | None" = None, settings: Mapping[str, Any] | None = None) -> None:
        self.given, self._settings = run, dict(settings or {})
        self._run = None if run is None else self._watch(run)
        self._fits = 0
        self.latest = self._previous = -1
        self._open_phases: list[tuple[str, Any]] = []
        self._phases: dict[tuple[str, int], Any] = {}
        self.leader: object = None
        self.step: Step | NullContext | None = None
        self.micro = 0
        self.facts: dict[str, Any] = {}
        self.losses: list[Any] = []
        self.adds_losses = False
        self._unhashed: list[Callable[[], None]] = []

    @property
    def run(self) -> "Run":
        """The run to record into, started now if it has not been."""
        if self._run is None:
            self._run = self._watch(start(**self._settings))
        return self._run

    @property
    def is_fresh(self) -> bool:
        """Whether the run has not started."""
        return self._run is None

    @property
    def is_on(self) -> bool:
        """Whether the run has started, and records."""
        return self._run is not None and self._run.enabled

    @contextlib.contextmanager
    def contain_errors(self) -> Iterator[None]:
        """Catch exceptions of the block, and report each kind once, so that none reaches training."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.run.rows.sink.trouble("following a framework", error)

    def start_options(self) -> dict[str, Any]:
        """Return the picklable options of `start` with which another process can record another rank of the run."""
        settings = self._settings
        if self._run is not None and self._run.recording is not None:
            settings = {**self._run.recording.start_arguments, "run": self._run.name}
        return {name: value for name, value in settings.items() if _is_picklable(value)}

    def adopt_fork(self) -> None:
        """Start a recording of its own in a forked process that is another rank.

        Has no effect in a child that is not a rank, such as a data loader's worker.
        """
        recording = None if self._run is None else self._run.recording
        if self._run is None or recording is None or not recording.is_of_another_rank:
            return
        self._leave_all()
        self.step = None
        self._phases.clear()
        self._run = self._watch(start(**{**recording.start_arguments, "run": self._run.name}))
        self._run.collectives()

    # ── a fit ──

    def set_run_name(self, name: object) -> None:
        """Record the run's name in the framework's settings, if it has one, on rank 0."""
        if name and self.run.rank == 0:
            self.run.rows.annotations.add("name", value=name, source=TRAINER)

    def set_start_config(self, config: Mapping[str, Any]) -> bool:
        """Set the hyperparameters of a run that has not started; return False if it has, or already has some."""
        return self._run is None and self._settings.setdefault("config", config) is config

    def configure(self, config: Mapping[str, Any]) -> None:
        """Set the hyperparameters of a started run, or record them as an event if it has some or its row is final."""
        recording = self.run.recording
        if recording is None or not recording.configure(config):
            self.run.event("config", config=dict(config))

    def lead(self, leader: object, config: Mapping[str, Any] | None = None, name: object = None) -> bool:
        """Make a framework's hook the leader; return False if another one is.

        Parameters
        ----------
        config
            Hyperparameters of the run. If it already has some, or its row is final, they become an event ``config``.
        name
            The run's name in the framework's settings, for display.
        """
        if self.leader is not None and self.leader is not leader:
            return False
        if self.leader is leader:
            return True
        self.leader = leader
        self.drop_step()
        if config and not self.set_start_config(config):
            self.configure(config)
        self.set_run_name(name)
        self.run.collectives()
        self.run.event("fit_start", framework=type(leader).__module__.partition(".frameworks.")[2] or None)
        return True

    def end_lead(self, leader: object) -> None:
        """End the training of a leader, and drop the open step."""
        if self.leader is leader:
            self.drop_step()
            self._hash_checkpoints()
            self.run.event("fit_end")
            self.leader, self.adds_losses = None, False

    def fail(self, error: BaseException) -> None:
        """Record an exception of training. It ends the open step, and the run as failed."""
        self._leave_all()
        self._hash_checkpoints()
        step, self.step = self.step, None
        if step is not None:
            step.__exit__(type(error), error, error.__traceback__)
        self.run.rows.lifecycle.fail(error)

    def _watch(self, run: "Run") -> "Run":
        run.rows.lifecycle.closers.append(partial(self._unhook, weakref.ref(run)))
        return run

    def _unhook(self, run: "weakref.ref[Run]") -> None:
        """Remove the hooks when the followed run ends."""
        if FOLLOWED and FOLLOWED[0] is self and self._run is run():
            PATCHES.restore()

    # ── steps ──

    def begin_step(self, number: int | None = None) -> None:
        """Begin a step unless one is open.

        A number that is not above the last one belongs to another fit. If the follower started the run, it then starts
        a new run NAME-fit2. A run that the user started continues.
        """
        if self.step is not None:
            return
        self.adopt_fork()
        step = self.latest + 1 if number is None else number
        if step <= self.latest and self.given is None:
            self._start_next_run()
        self._previous, self.latest, self.micro = self.latest, step, 0
        self.facts, self.losses = {}, []
        self.step = self.run.step(step)
        self.step.__enter__()

    def _start_next_run(self) -> None:
        previous, self._fits = self.run, self._fits + 1
        first_name = previous.name if self._fits == 1 else previous.name.rpartition("-fit")[0]
        self._hash_checkpoints()
        self._run = None  # keeps the hooks when the previous run closes
        previous.close()
        self._phases.clear()
        self._run = self._watch(start(**{**self._settings, "run": f"{first_name}-fit{self._fits + 1}"}))
        self._run.collectives()

    def end_step(self, **values: object) -> None:
        """End the open step, and record its row with these values and those of the hooks.

        Without a value, the loss is the argument of backward, if the step had one backward. Several losses are added
        only if the framework divides them (`adds_losses`).
        """
        step, self.step = self.step, None
        if step is None:
            return
        self._leave_all()
        if (
            self.losses
            and (len(self.losses) == 1 or self.adds_losses)
            and not any(loss is None for loss in self.losses)
        ):
            self.facts.setdefault("loss", sum(self.losses[1:], self.losses[0]))
        columns = self.facts | {name: value for name, value in values.items() if value is not None}
        columns = {name: value for name, value in columns.items() if value is not None}
        if columns:
            self.run.log(columns)
        step.__exit__(None, None, None)
        self._hash_checkpoints()

    def drop_step(self) -> None:
        """Discard the open step, without a row."""
        step, self.step = self.step, None
        self._leave_all()
        if step is not None:
            self.latest = self._previous
        if isinstance(step, Step):
            step.abandon()

    def take_loss(self, loss: object) -> None:
        """Keep the argument of backward for the step's loss; beyond `MOST_MICRO` micro-batches the loss is unknown."""
        if self.step is None:
            return
        if len(self.losses) < MOST_MICRO:
            self.losses.append(loss)
        else:
            self.losses = [None] * MOST_MICRO

    # ── phases ──

    def enter(self, name: str) -> None:
        """Begin a phase; forward and backward get the number of their micro-batch."""
        micro = self.micro if name in _MICRO and self.step is not None else -1
        phase = self._phases.get((name, micro))
        if phase is None:
            phase = self.run.phase(name, microbatch=micro) if micro >= 0 else self.run.phase(name)
            self._phases[name, micro] = phase
        phase.__enter__()
        self._open_phases.append((name, phase))

    def is_in(self, name: str) -> bool:
        """Whether a phase with this name is open."""
        return any(open_name == name for open_name, _ in self._open_phases)

    def leave(self, name: str) -> None:
        """End a phase and all phases within it; no effect if it is not open."""
        if not self.is_in(name):
            return
        while self._open_phases:
            phase_name, phase = self._open_phases.pop()
            phase.__exit__(None, None, None)
            if phase_name == name:
                return

    def _leave_all(self) -> None:
        while self._open_phases:
            self._open_phases.pop()[1].__exit__(None, None, None)

    # ── checkpoints and metrics ──

    def checkpoint(self, path: object, step: int | None = None, duration_s: float | None = None) -> None:
        """Record that a checkpoint was written, and hash it in the background.

        A folder that other ranks may still write into is hashed after the next step, in which all ranks take part.
        """
        place = text(path)
        self.run.event("checkpoint", step=step, message=last_part(shown_place(place)), duration_s=duration_s)
        if self.run.world_size > 1 and Path(place).is_dir():
            record = partial(
                self.run.rows.artifacts.record_checkpoint, place, step=step, duration_s=duration_s, at_ns=now()
            )
            self._unhashed.append(record)
        else:
            self.run.rows.artifacts.record_checkpoint(place, step=step, duration_s=duration_s)

    def _hash_checkpoints(self) -> None:
        while self._unhashed:
            self._unhashed.pop(0)()

    def metrics(self, values: Mapping[str, object], step: int | None = None) -> None:
        """Record the numbers among a framework's metrics."""
        numbers = {name: value for name, value in values.items() if _is_number(value)}
        if numbers:
            self.run.log(numbers, step=step)


def _is_picklable(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - users may pass any object
        return False
    return True


def _is_number(value: object) -> bool:
    if isinstance(value, (int, float)):
        return True
    count: Callable[[], int] | None = getattr(value, "numel", None)
    return count is not None and count() == 1


FOLLOWED: list[Follower] = []
"""The follower of this process; empty if there is none. Hooks read it."""


def follow(run: "Run | str | None" = None, **settings: Any) -> Follower:
    """Return the process's follower, or make one. A `run` other than its own replaces the follower.

    Parameters
    ----------
    run
        The run to record into, or the name of a run to start.
    settings
        Options of `ranklake.capture.start`.
    """
    if isinstance(run, str):
        settings["run"], run = run, None
    if FOLLOWED and (run is None or FOLLOWED[0].given is run):
        follower = FOLLOWED[0]
        if follower.is_fresh or follower.is_on:
            follower.adopt_fork()
            return follower
    FOLLOWED[:] = [Follower(run, settings)]
    return FOLLOWED[0]
