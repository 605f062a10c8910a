"""Guard: checks a rank's live values in the training loop and decides what to do about faults.

    guard = capture.guard(run, divergence="roll_back")
    guard.protect(model, optimizer, every=100)
    for n, batch in enumerate(batches):
        with run.step(n):
            loss = model(batch)
            loss.backward()
            if guard.check(n, loss=loss).skips:    # not finite, or rolled back: do not apply these gradients
                optimizer.zero_grad()
                continue
            optimizer.step()

The guard never raises into training. Each finding is recorded as an event ``guard``. With ``agree=True`` ranks exchange
their findings, so that all ranks take the same action.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.common.layouts import PHASES
from ranklake.capture.common.monotonic import now
from ranklake.capture.samplers.gpu_parts import Nvml, load_nvml
from ranklake.capture.training.guard_watch import DeviceHeat, GuardWatch, own_device_uuid
from ranklake.capture.training.live_detectors import (
    Finding,
    LevelDetector,
    Limits,
    NonFiniteDetector,
    SlowRankDetector,
    ZeroDetector,
)
from ranklake.capture.training.snapshots import Snapshots, Stateful
from ranklake.errors import did_you_mean

if TYPE_CHECKING:
    from ranklake.capture.training.run import Run


NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Vote:
    """The vote of one rank, or the outcome over all ranks.

    Attributes
    ----------
    level
        0 without a finding, 0.5 for a suspicion, else the number of an action.
    since
        Step at which the fault began; infinity without one.
    own_s
        Time of the rank's own work in this step in seconds; in an outcome, the median of all ranks.
    """

    level: float
    since: float
    own_s: float


class Agreement:
    """A process group of all ranks that exchanges votes in main memory, without waiting for a GPU.

    All ranks must create it, and call `reach` equally often. Raises torch's error if torch.distributed is not
    initialized.
    """

    def __init__(self) -> None:
        self._torch: Any = sys.modules["torch"]
        self._distributed: Any = sys.modules["torch.distributed"]
        self._group = self._distributed.new_group(backend="gloo")
        self._all = self._torch.zeros((self._distributed.get_world_size(), 3), dtype=self._torch.float64)
        self._rows = list(self._all.unbind(0))

    def reach(self, vote: Vote) -> Vote:
        """Gather 24 bytes from each rank; return the highest level, the earliest step, and the median time.

        Raises torch's error, such as for a rank that has died.
        """
        own = self._torch.tensor((vote.level, vote.since, vote.own_s), dtype=self._torch.float64)
        self._distributed.all_gather(self._rows, own, group=self._group)
        levels, steps, times = self._all.T.tolist()
        return Vote(max(levels), min(steps), median_low(times))


def ranks() -> int:
    """Return the number of ranks of torch.distributed; 1 without a process group."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


__all__ = ["Action", "Decision", "Finding", "Guard", "guard"]


class Action(IntEnum):
    """What to do about a finding. Of several findings, the highest action is taken."""

    IGNORE = 0
    WARN = 1
    SAVE = 2
    SKIP = 3
    ROLL_BACK = 4


RULES: Final = {
    "non_finite": Action.SKIP,
    "divergence": Action.WARN,
    "loss_spike": Action.WARN,
    "gradient_spike": Action.WARN,
    "zero_gradients": Action.WARN,
    "slow_rank": Action.WARN,
    "heat": Action.WARN,
    "stall": Action.WARN,
}
"""Kinds of finding, each with its default action."""
_SUSPICION: Final = 0.5
_MOST_ROLL_BACKS: Final = 3
_RECOVERY_STEPS: Final = 100
"""Finite steps in a row after which a NaN is reported like the first."""
_COLLECTIVE: Final = PHASES.index("collective")


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do in this step.

    Attributes
    ----------
    action
        The highest action of all findings; with ``agree=True``, of all ranks.
    findings
        Findings of this rank.
    restored_step
        Step whose state was restored in the objects of `Guard.protect`; None without a roll-back.
    """

    action: Action = Action.IGNORE
    findings: tuple[Finding, ...] = ()
    restored_step: int | None = None

    @property
    def skips(self) -> bool:
        """Whether this step's gradients must not be applied."""
        return self.action >= Action.SKIP

    @property
    def saves(self) -> bool:
        """Whether to save a checkpoint now."""
        return self.action == Action.SAVE


_NO_ACTION: Final = Decision()


class Guard:
    """Checks the training of one rank. `guard` creates it and documents the parameters."""

    def __init__(
        self,
        run: "Run",
        rules: dict[str, Action],
        call: Callable[[Finding], object] | None,
        agreement: Agreement | None,
    ) -> None:
        self._run, self._rules, self._call, self._agreement = run, rules, call, agreement
        self._sink, self._events, self._progress = run.rows.sink, run.rows.events, run.rows.progress
        self._loss = NonFiniteDetector("the loss"), LevelDetector("the loss", "loss_spike", "divergence")
        self._gradient = (
            NonFiniteDetector("the gradient norm"),
            LevelDetector("the gradient norm", "gradient_spike", limits=Limits(deviations=10.0, ratio=4.0)),
            ZeroDetector(),
        )
        self._slow_rank = SlowRankDetector()
        self._snapshots: Snapshots | None = None
        self._watch: GuardWatch | None = None
        self._roll_backs = 0
        self._non_finite_steps = self._finite_steps = 0

    def protect(self, *objects: Stateful, every: int = 100, keep: int = 2) -> None:
        """Keep copies of the objects' states in main memory, for ``roll_back``.

        Parameters
        ----------
        objects
            Model, optimizer, scheduler, scaler …: objects with ``state_dict`` and ``load_state_dict``.
        every
            Steps between two copies. `check` makes the copy, and training waits for it.
        keep
            Most copies to keep.

        If a state cannot be copied, a warning is logged, and the guard cannot roll back.
        """
        with self._sink.guarded("the guard's copies"):
            self._snapshots = Snapshots(objects, every, keep)

    def check(
        self, step: int, *, loss: object = None, grad_norm: object = None, own_s: float | None = None
    ) -> Decision:
        """Check a step's values before its gradients are applied, and return what to do.

        Parameters
        ----------
        step
            Number of the step.
        loss, grad_norm
            Numbers or tensors; a tensor on a GPU is waited for, as in ``loss.item()``.
        own_s
            Seconds of this rank's own work in the step; by default the time since the step began, minus recorded
            collectives.
        """
        decision = _NO_ACTION
        with self._sink.guarded("the guard"):
            decision = self._check(step, loss, grad_norm, own_s)
        return decision  # noqa: RET504 - `guarded` swallows exceptions

    def start_watch(self, stall_s: float, device_uuid: str | None, nvml: Nvml = None, every_s: float = 10.0) -> None:
        """Start to watch for stalls and heat. Raises `ValueError` for a bad `stall_s`, or the system's error."""
        if not stall_s > 0:
            raise ValueError(f"stall_s={stall_s} must be a number of seconds above 0")
        heat = None
        uuid = own_device_uuid() if device_uuid is None else device_uuid
        if uuid is not None and self._rules["heat"]:
            with self._sink.guarded("watching the GPU's heat"):
                heat = DeviceHeat(_initialised_nvml() if nvml is None else nvml, uuid)
        self._watch = GuardWatch(
            self._progress, self.report_stall, stall_s=stall_s, heat=heat, every_s=min(every_s, stall_s / 2)
        )
        self._run.rows.lifecycle.closers.append(self.close)

    def close(self) -> None:
        """Stop watching for stalls and heat. `Run.close` does this, too."""
        if self._watch is not None:
            self._watch.close()

    def _check(self, step: int, loss: object, grad_norm: object, own_s: float | None) -> Decision:
        findings: list[Finding] = []
        # Even if a value raises an error, other ranks wait for this rank's vote.
        with self._sink.guarded("the guard"):
            findings += self._found_in(step, loss, grad_norm)
        if self._agreement is None:
            level, since = self._level(findings)
        else:
            level, since = self._exchange_findings(step, findings, own_s)
        reported = self._findings_to_report(findings)
        if not findings and not level:
            if self._snapshots is not None:
                self._snapshots.take_if_due(step)
            return _NO_ACTION
        action = Action(int(level))
        restored = self._roll_back(min(since, step)) if action is Action.ROLL_BACK else None
        if action is Action.ROLL_BACK and restored is None:
            action = Action.SKIP
        for finding in reported:
            with self._sink.guarded("the guard's report"):
                self._report(finding, action, restored)
        return Decision(action, tuple(findings), restored)

    def _found_in(self, step: int, loss: object, grad_norm: object) -> Iterator[Finding]:
        for value, detectors in ((loss, self._loss), (grad_norm, self._gradient)):
            if value is not None:
                plain = float(value.item() if hasattr(value, "item") else value)  # type: ignore[arg-type]
                for detector in detectors:
                    item = detector.look(step, plain)
                    if item is not None and self._rules[item.kind]:
                        yield item
        heat = None if self._watch is None else self._watch.take()
        if heat is not None and self._rules[heat.kind]:
            yield heat

    def _findings_to_report(self, findings: list[Finding]) -> list[Finding]:
        """Return the findings to report. A loss that stays NaN is reported on its 1st, 2nd, 4th, 8th … step."""
        if not any(item.kind == "non_finite" for item in findings):
            self._finite_steps += 1
            if self._finite_steps == _RECOVERY_STEPS:
                self._non_finite_steps = 0
            return findings
        self._finite_steps = 0
        self._non_finite_steps += 1
        is_due = self._non_finite_steps.bit_count() == 1
        return [item for item in findings if is_due or item.kind != "non_finite"]

    def _level(self, findings: Iterable[Finding]) -> tuple[float, float]:
        """Return the level for a `Vote`, and the first step of the findings that need a roll-back."""
        level, since = 0.0, NEVER
        for item in findings:
            action = self._rules[item.kind]
            level = max(level, float(action))
            if action is Action.ROLL_BACK:
                since = min(since, item.since)
        if not level and any(item.is_suspicious for item in (self._loss[1], self._gradient[1])):
            level = _SUSPICION
        return level, since

    def _exchange_findings(self, step: int, findings: list[Finding], own_s: float | None) -> tuple[float, float]:
        own, vote = 0.0, Vote(0.0, NEVER, 0.0)
        with self._sink.guarded("the guard"):
            own = self._own_s() if own_s is None else float(own_s)
            vote = Vote(*self._level(findings), own)
        agreed = self._gather_votes(vote)
        if agreed is None:
            return self._level(findings)
        slow = self._slow_rank.look(step, own, agreed.own_s)
        if slow is not None and self._rules[slow.kind]:
            findings.append(slow)
        return agreed.level, agreed.since

    def _gather_votes(self, vote: Vote) -> Vote | None:
        """Exchange votes with all ranks. Return None on failure; later checks then act without other ranks."""
        agreement = self._agreement
        assert agreement is not None
        try:
            return agreement.reach(vote)
        except Exception as error:  # noqa: BLE001 - a dead rank: training's own collectives report it
            self._sink.trouble("agreeing with other ranks", error)
            self._agreement, self._rules = None, _without_comparison(self._rules)
            return None

    def _own_s(self) -> float:
        step = self._progress.current
        if step is None or step.start is None:
            return 0.0
        return (now() - step.start - step.spent[_COLLECTIVE]) / 1e9

    def _roll_back(self, since: float) -> int | None:
        """Restore the state from before a step and return that state's step.

        None if there is no such state, or if ranks have states of different steps.
        """
        step = None
        if self._snapshots is not None and self._roll_backs < _MOST_ROLL_BACKS:
            step = self._snapshots.newest_before(since)
        if self._agreement is not None:
            # The highest and the lowest step that ranks can restore; they are equal only if all ranks' are.
            offer = Vote(NEVER, -NEVER, 0.0) if step is None else Vote(step, step, 0.0)
            agreed = self._gather_votes(offer)
            if agreed is None or agreed.level != agreed.since:
                return None
        if step is None or self._snapshots is None:
            return None
        self._roll_backs += 1
        is_restored = False
        with self._sink.guarded("rolling back"):
            self._snapshots.restore(step)
            is_restored = True
        for detector in (self._loss[1], self._gradient[1]):
            detector.go_back()
        return step if is_restored else None

    def report_stall(self, finding: Finding) -> None:
        """Report a stall. It is only a warning, because the loop does not run."""
        if self._rules[finding.kind]:
            with self._sink.guarded("the guard"):
                self._run.rows.logs.add_stacks(finding.message)
                self._report(finding, Action.WARN, None)

    def _report(self, finding: Finding, action: Action, restored: int | None) -> None:
        facts: dict[str, Any] = {"finding": finding.kind, "since": finding.since, "action": action.name.lower()}
        facts |= {name: value for name in ("value", "baseline") if (value := getattr(finding, name)) is not None}
        if restored is not None:
            facts["restored_step"] = restored
        self._events.add("guard", message=finding.message, step=finding.step, severity="warning", **facts)
        if self._call is not None:
            with self._sink.guarded("the guard's callback"):
                self._call(finding)


def _initialised_nvml() -> Nvml:
    nvml = load_nvml()
    nvml.nvmlInit()
    return nvml


def _without_comparison(rules: dict[str, Action]) -> dict[str, Action]:
    """Return the rules with actions that change parameters replaced by warnings.

    Without an agreement, such an action would make this rank's parameters differ from those of other ranks.
    """
    return {kind: Action.WARN if action >= Action.SKIP else action for kind, action in rules.items()}


def guard(
    run: "Run",
    *,
    call: Callable[[Finding], object] | None = None,
    agree: bool = False,
    stall_s: float = 600.0,
    device_uuid: str | None = None,
    **rules: str,
) -> Guard:
    """Return a guard over a rank's training.

    Parameters
    ----------
    run
        The rank's run.
    call
        Called with each `Finding`; for a stall, in the guard's thread.
    agree
        Make all ranks of torch.distributed take the same action, by one collective of 24 bytes per rank in each
        `Guard.check`. All ranks must then call this function, and `Guard.check` in every step. With several ranks and
        without this option, no rank skips or rolls back, because parameters would differ between ranks, and slow ranks
        are not detected.
    stall_s
        Seconds without a new step or phase that count as a stall.
    device_uuid
        NVML's UUID of the GPU to watch; by default the GPU that torch computes on.
    rules
        Actions by kind of finding: ``ignore``, ``warn``, ``save``, ``skip`` or ``roll_back``. Kinds and default
        actions: ``non_finite`` (skip); ``divergence``, ``loss_spike``, ``gradient_spike``, ``zero_gradients``,
        ``slow_rank``, ``heat``, ``stall`` (warn).

    Returns
    -------
    A guard. Nothing is raised. If a value cannot be watched, the logger "ranklake" logs a warning.
    """
    sink = run.rows.sink
    actions_by_kind = dict(RULES)
    actions = {action.name.lower(): action for action in Action}
    for kind, name in rules.items():
        if kind in RULES and str(name) in actions:
            actions_by_kind[kind] = actions[str(name)]
        else:
            hint = did_you_mean(kind, RULES) if kind not in RULES else did_you_mean(str(name), actions)
            sink.gaps.warn(f"guard {kind}", f"the guard has no rule {kind}={name!r}: {hint}")
    agreement = None
    if agree and ranks() > 1:
        with sink.guarded("the guard's agreement"):
            agreement = Agreement()
    if ranks() > 1 and agreement is None:
        if any(action >= Action.SKIP for kind, action in actions_by_kind.items() if kind in rules):
            sink.gaps.warn(
                "guard", "on several ranks the guard skips and rolls back only with agree=True; it warns now"
            )
        actions_by_kind = _without_comparison(actions_by_kind)
    new_guard = Guard(run, actions_by_kind, call, agreement)
    with sink.guarded("the guard's watch"):
        new_guard.start_watch(stall_s, device_uuid)
    return new_guard
