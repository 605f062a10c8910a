"""Follower: turns a framework's hooks into steps and phases. One per process follows the current run.

    hooks in torch (`ranklake.capture.frameworks.torch`)        forward, backward, optimizer, waits, grad_norm, lr, loss
    a framework's own (lightning, transformers, …), the leader   where steps begin and end, and their numbers
            ▼
    Follower   ──▶   run.step, run.phase, run.log

Without a leader a step ends when its optimizer has stepped, and its number is a count. Nothing in here raises into
training, and where nothing is followed the hooks cost a look at a variable.
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
"""Micro-batches of a step that are counted. Training without a torch optimizer is one step that never ends."""


class Follower:
    """Follows training into a run.

    Parameters
    ----------
    run
        None to start one, with what `settings` say, when training begins.
    settings
        For `ranklake.capture.start`.

    Attributes
    ----------
    given
        The run that the caller passed; None if the follower starts its own.
    leader
        The framework that says where steps begin and end; None where the optimizer does.
    step
        The open step.
    latest
        Number of the step that began last; -1 before the first.
    micro
        Number of the current micro-batch in the step.
    facts
        Values for the row of the open step: lr, grad_norm, …
    losses
        Losses of its micro-batches, as passed to backward; None where the value is no loss.
    adds_losses
        Whether the losses add up to the step's, because the framework divides each by their number.
    """

    def __init__(self, run: "Run | None" = None, settings: Mapping[str, Any] | None = None) -> None:
        self.given, self._settings = run, dict(settings or {})
        self._run = None if run is None else self._watch(run)
        self._fits = 0
        self.latest = self._before = -1
        self._open: list[tuple[str, Any]] = []
        self._known: dict[tuple[str, int], Any] = {}
        self.leader: object = None
        self.step: Step | NullContext | None = None
        self.micro = 0
        self.facts: dict[str, Any] = {}
        self.losses: list[Any] = []
        self.adds_losses = False
        self._written: list[Callable[[], None]] = []

    @property
    def run(self) -> "Run":
        """The run that is recorded."""
        if self._run is None:
            self._run = self._watch(start(**self._settings))
        return self._run

    @property
    def is_fresh(self) -> bool:
        """Whether its run is still to begin."""
        return self._run is None

    @property
    def is_on(self) -> bool:
        """Whether anything is recorded."""
        return self._run is not None and self._run.enabled

    @contextlib.contextmanager
    def contain_errors(self) -> Iterator[None]:
        """Keep what goes wrong within from training: it is reported once."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.run.rows.sink.trouble("following a framework", error)

    def start_options(self) -> dict[str, Any]:
        """Return what `start` needs in another process to record another rank of the run; only what can be pickled."""
        settings = self._settings
        if self._run is not None and self._run.recording is not None:
            settings = {**self._run.recording.start_arguments, "run": self._run.name}
        return {name: value for name, value in settings.items() if _can_travel(value)}

    def be_own(self) -> None:
        """Give a forked rank its own stream and threads, so that it records as itself.

        Nothing changes in a child that is no rank, such as a data loader's worker.
        """
        before = None if self._run is None else self._run.recording
        if self._run is None or before is None or not before.is_of_another_rank:
            return
        self._leave_all()
        self.step = None
        self._known.clear()
        self._run = self._watch(start(**{**before.start_arguments, "run": self._run.name}))
        self._run.collectives()

    # ── a fit ──

    def set_run_name(self, name: object) -> None:
        """Take over what the framework's settings call the run, if anything: rank 0 records it."""
        if name and self.run.rank == 0:
            self.run.rows.annotations.add("name", value=name, source=TRAINER)

    def begins_with(self, config: Mapping[str, Any]) -> bool:
        """Set the hyperparameters of a run that has not begun; False if it has begun or already has some."""
        return self._run is None and self._settings.setdefault("config", config) is config

    def configure(self, config: Mapping[str, Any]) -> None:
        """Set the hyperparameters of a running run; if it has some, or its row is final, record an event."""
        recording = self.run.recording
        if recording is None or not recording.configure(config):
            self.run.event("config", config=dict(config))

    def lead(self, leader: object, config: Mapping[str, Any] | None = None, name: object = None) -> bool:
        """Let a framework decide where steps begin and end; False if another framework leads.

        Parameters
        ----------
        config
            Hyperparameters. They become the run's if it has no others and its row is not final yet, else an event
            ``config``.
        name
            What the framework's own settings call the run; it becomes the run's name for people, of rank 0.
        """
        if self.leader is not None and self.leader is not leader:
            return False
        if self.leader is leader:
            return True
        self.leader = leader
        self.drop_step()
        if config and not self.begins_with(config):
            self.configure(config)
        self.set_run_name(name)
        self.run.collectives()
        self.run.event("fit_start", framework=type(leader).__module__.partition(".frameworks.")[2] or None)
        return True

    def end_lead(self, leader: object) -> None:
        """End a fit, and drop the step that is open."""
        if self.leader is leader:
            self.drop_step()
            self._hash_written()
            self.run.event("fit_end")
            self.leader, self.adds_losses = None, False

    def fail(self, error: BaseException) -> None:
        """Record that training raised, which ends the step that is open, and the run."""
        self._leave_all()
        self._hash_written()
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
            PATCHES.take_back()

    # ── steps ──

    def begin_step(self, number: int | None = None) -> None:
        """Begin a step unless one is open.

        A number that was used before belongs to another fit: if the follower started the run, it starts another one,
        named after it. In a run that the user started, the number is used as it is.
        """
        if self.step is not None:
            return
        self.be_own()
        at = self.latest + 1 if number is None else number
        if at <= self.latest and self.given is None:
            self._renew()
        self._before, self.latest, self.micro = self.latest, at, 0
        self.facts, self.losses = {}, []
        self.step = self.run.step(at)
        self.step.__enter__()

    def _renew(self) -> None:
        before, self._fits = self.run, self._fits + 1
        first = before.name if self._fits == 1 else before.name.rpartition("-fit")[0]
        self._hash_written()
        self._run = None  # the hooks stay for the next run
        before.close()
        self._known.clear()
        self._run = self._watch(start(**{**self._settings, "run": f"{first}-fit{self._fits + 1}"}))
        self._run.collectives()

    def end_step(self, **values: object) -> None:
        """End the open step, and record its row with these values and with those observed.

        The loss is the tensor that backward was called on, if the step had one backward. Of several, only the
        framework knows whether they are parts of one loss.
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
        given = {name: value for name, value in values.items() if value is not None}
        known = {name: value for name, value in (self.facts | given).items() if value is not None}
        if known:
            self.run.log(known)
        step.__exit__(None, None, None)
        self._hash_written()

    def drop_step(self) -> None:
        """Drop a step that began and never ended."""
        step, self.step = self.step, None
        self._leave_all()
        if step is not None:
            self.latest = self._before
        if isinstance(step, Step):
            step.abandon()

    def take_loss(self, loss: object) -> None:
        """Keep the tensor that backward was called on; outside of a step, or beyond `MOST_MICRO`, none is kept."""
        if self.step is None:
            return
        if len(self.losses) < MOST_MICRO:
            self.losses.append(loss)
        else:
            self.losses = [None] * MOST_MICRO

    # ── phases ──

    def enter(self, name: str) -> None:
        """Begin a phase; forward and backward carry the number of their micro-batch."""
        micro = self.micro if name in _MICRO and self.step is not None else -1
        phase = self._known.get((name, micro))
        if phase is None:
            phase = self.run.phase(name, microbatch=micro) if micro >= 0 else self.run.phase(name)
            self._known[name, micro] = phase
        phase.__enter__()
        self._open.append((name, phase))

    def is_in(self, name: str) -> bool:
        """Whether a phase of that name is open."""
        return any(open_name == name for open_name, _ in self._open)

    def leave(self, name: str) -> None:
        """End the phase of that name, and what was left open within it; nothing if it is not open."""
        if not self.is_in(name):
            return
        while self._open:
            inner, phase = self._open.pop()
            phase.__exit__(None, None, None)
            if inner == name:
                return

    def _leave_all(self) -> None:
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)

    # ── checkpoints and metrics ──

    def checkpoint(self, path: object, step: int | None = None, duration_s: float | None = None) -> None:
        """Record that a checkpoint was written, and have it hashed in the background.

        Other ranks may still write into the folder, so it is hashed after the next step, in which all took part.
        """
        place = text(path)
        self.run.event("checkpoint", step=step, message=last_part(shown_place(place)), duration_s=duration_s)
        if self.run.world_size > 1 and Path(place).is_dir():
            written = partial(
                self.run.rows.artifacts.record_checkpoint, place, step=step, duration_s=duration_s, at_ns=now()
            )
            self._written.append(written)
        else:
            self.run.rows.artifacts.record_checkpoint(place, step=step, duration_s=duration_s)

    def _hash_written(self) -> None:
        while self._written:
            self._written.pop(0)()

    def metrics(self, values: Mapping[str, object], step: int | None = None) -> None:
        """Record a framework's metrics, those that are numbers."""
        numbers = {name: value for name, value in values.items() if _is_number(value)}
        if numbers:
            self.run.log(numbers, step=step)


def _can_travel(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - users hand over anything
        return False
    return True


def _is_number(value: object) -> bool:
    if isinstance(value, (int, float)):
        return True
    count: Callable[[], int] | None = getattr(value, "numel", None)
    return count is not None and count() == 1


FOLLOWED: list[Follower] = []
"""The follower of this process, if there is one: hooks find it here."""


def follow(run: "Run | str | None" = None, **settings: Any) -> Follower:
    """Return the process's follower, made now if there is none; a given run takes the place of what it followed.

    Parameters
    ----------
    run
        A run, or the name of one to start.
    settings
        For `ranklake.capture.start`.
    """
    if isinstance(run, str):
        settings["run"], run = run, None
    if FOLLOWED and (run is None or FOLLOWED[0].given is run):
        follower = FOLLOWED[0]
        if follower.is_fresh or follower.is_on:
            follower.be_own()
            return follower
    FOLLOWED[:] = [Follower(run, settings)]
    return FOLLOWED[0]
