"""Guard: looks at a rank's live values in the training loop, and says what to do about them.

    guard = capture.guard(run, divergence="roll_back")
    guard.protect(model, optimizer, every=100)
    for n, batch in enumerate(batches):
        with run.step(n):
            loss = model(batch)
            loss.backward()
            if guard.check(n, loss=loss).skips:    # not finite, or rolled back: these gradients are not applied
                optimizer.zero_grad()
                continue
            optimizer.step()

Nothing in here raises into training. Each finding is an event ``guard`` of the run. Ranks tell each other their
findings, so that all do the same.
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
        0 where all is well, 0.5 for a suspicion, else the number of an action.
    since
        Step of the first sign; infinity where there is none.
    own_s
        Time of the rank's own work in this step, in seconds: of all of them, the median.
    """

    level: float
    since: float
    own_s: float


class Agreement:
    """A group of all ranks of torch.distributed, on main memory, so that no GPU is waited for.

    Raises what torch does where there is no process group yet. All ranks make it, and call `reach`, equally often.
    """

    def __init__(self) -> None:
        self._torch: Any = sys.modules["torch"]
        self._distributed: Any = sys.modules["torch.distributed"]
        self._group = self._distributed.new_group(backend="gloo")
        self._all = self._torch.zeros((self._distributed.get_world_size(), 3), dtype=self._torch.float64)
        self._rows = list(self._all.unbind(0))

    def reach(self, vote: Vote) -> Vote:
        """Gather 24 bytes of each rank; return the highest level, the earliest step, and the median of times.

        Raises what torch does, such as for a rank that is gone.
        """
        own = self._torch.tensor((vote.level, vote.since, vote.own_s), dtype=self._torch.float64)
        self._distributed.all_gather(self._rows, own, group=self._group)
        levels, steps, times = self._all.T.tolist()
        return Vote(max(levels), min(steps), median_low(times))


def ranks() -> int:
    """Return how many ranks torch.distributed has; 1 without a process group."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


__all__ = ["Action", "Decision", "Finding", "Guard", "guard"]


class Action(IntEnum):
    """What to do about a finding; of several, the highest is done."""

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
"""Kinds of finding, and what is done about each by default."""
_SUSPICION: Final = 0.5
_MOST_ROLL_BACKS: Final = 3
_FORGOTTEN_STEPS: Final = 100
"""Finite steps in a row after which a NaN is reported like the first."""
_COLLECTIVE: Final = PHASES.index("collective")


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do in this step.

    Attributes
    ----------
    action
        The highest of all findings', of all ranks' where they agree.
    findings
        Of this rank.
    restored_step
        Step whose state `Guard.protect`'s objects have again; None if nothing was rolled back.
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
        """Whether a checkpoint is wanted now."""
        return self.action == Action.SAVE


_FINE: Final = Decision()


class Guard:
    """Looks over one rank's training; made by `guard`, whose parameters these are."""

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
        """Keep copies in main memory of what training changes, for ``roll_back``.

        Parameters
        ----------
        objects
            Model, optimizer, scheduler, scaler …: what has ``state_dict`` and ``load_state_dict``.
        every
            Steps between two copies. A copy is made in `check`, and takes as long as it takes.
        keep
            Copies at most.

        What cannot be copied is logged as a warning; nothing rolls back then.
        """
        with self._sink.guarded("the guard's copies"):
            self._snapshots = Snapshots(objects, every, keep)

    def check(
        self, step: int, *, loss: object = None, grad_norm: object = None, own_s: float | None = None
    ) -> Decision:
        """Look at a step's values before its gradients are applied; return what to do.

        Parameters
        ----------
        step
            Its number.
        loss, grad_norm
            Numbers or tensors; what is on a GPU is waited for, as ``loss.item()`` does.
        own_s
            Seconds of this rank's own work in the step; by default the time since the step began, without recorded
            collectives.
        """
        decision = _FINE
        with self._sink.guarded("the guard"):
            decision = self._check(step, loss, grad_norm, own_s)
        return decision  # noqa: RET504 - what is raised within is swallowed

    def start_watch(self, stall_s: float, device_uuid: str | None, nvml: Nvml = None, every_s: float = 10.0) -> None:
        """Start to look for stalls and heat. Raises `ValueError` for a time that is none, or what the system does."""
        if not stall_s > 0:
            raise ValueError(f"stall_s={stall_s} is no time; write seconds")
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
        """Stop looking for stalls and heat; `Run.close` does it, too."""
        if self._watch is not None:
            self._watch.close()

    def _check(self, step: int, loss: object, grad_norm: object, own_s: float | None) -> Decision:
        findings: list[Finding] = []
        # whatever a value raises: other ranks wait for this one's vote
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
            return _FINE
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
        """Return the findings to report: a loss that is NaN again and again is on its 1st, 2nd, 4th, 8th … step."""
        if not any(item.kind == "non_finite" for item in findings):
            self._finite_steps += 1
            if self._finite_steps == _FORGOTTEN_STEPS:
                self._non_finite_steps = 0
            return findings
        self._finite_steps = 0
        self._non_finite_steps += 1
        is_due = self._non_finite_steps.bit_count() == 1
        return [item for item in findings if is_due or item.kind != "non_finite"]

    def _level(self, findings: Iterable[Finding]) -> tuple[float, float]:
        """Return the level of a `Vote`, and the step of the first sign of what is rolled back."""
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
        """Exchange votes with all ranks; None where that fails, and from then on."""
        agreement = self._agreement
        assert agreement is not None
        try:
            return agreement.reach(vote)
        except Exception as error:  # noqa: BLE001 - a rank that is gone: training's own collectives tell of it
            self._sink.trouble("agreeing with other ranks", error)
            self._agreement, self._rules = None, _without_comparison(self._rules)
            return None

    def _own_s(self) -> float:
        step = self._progress.current
        if step is None or step.start is None:
            return 0.0
        return (now() - step.start - step.spent[_COLLECTIVE]) / 1e9

    def _roll_back(self, since: float) -> int | None:
        """Load the state from before a step; return its step. None if it is not there, or not the same on all ranks."""
        step = None
        if self._snapshots is not None and self._roll_backs < _MOST_ROLL_BACKS:
            step = self._snapshots.newest_before(since)
        if self._agreement is not None:
            # the highest and the lowest of the steps that ranks can go back to: alike only if all are
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
        """Report what the watch found; nothing can be done about it in a loop that stands."""
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
    """Return rules of which none makes this rank's parameters differ from those of others."""
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
    """Begin to look over a rank's training.

    Parameters
    ----------
    run
        The rank's run.
    call
        Called with each `Finding`; of a stall, in a thread of the guard's.
    agree
        Have all ranks of torch.distributed do the same, by one collective of 24 bytes a rank in each `Guard.check`.
        All ranks call this function then, and `Guard.check` in every step. Without it no rank skips or rolls back
        where there are several: their parameters would differ. Slow ranks are found only with it.
    stall_s
        Seconds without a step or phase that begins: a stall.
    device_uuid
        The GPU to watch, as NVML names it; by default the one that torch computes on.
    rules
        What is done about a kind of finding: ``ignore``, ``warn``, ``save``, ``skip`` or ``roll_back``. Kinds, and
        what is done by default: ``non_finite`` (skip); ``divergence``, ``loss_spike``, ``gradient_spike``,
        ``zero_gradients``, ``slow_rank``, ``heat``, ``stall`` (warn).

    Returns
    -------
    A guard. Nothing is raised: what cannot be watched is logged as a warning of the logger "ranklake".
    """
    sink = run.rows.sink
    chosen = dict(RULES)
    actions = {action.name.lower(): action for action in Action}
    for kind, name in rules.items():
        if kind in RULES and str(name) in actions:
            chosen[kind] = actions[str(name)]
        else:
            hint = did_you_mean(kind, RULES) if kind not in RULES else did_you_mean(str(name), actions)
            sink.gaps.warn(f"guard {kind}", f"the guard has no rule {kind}={name!r}: {hint}")
    agreement = None
    if agree and ranks() > 1:
        with sink.guarded("the guard's agreement"):
            agreement = Agreement()
    if ranks() > 1 and agreement is None:
        if any(action >= Action.SKIP for kind, action in chosen.items() if kind in rules):
            sink.gaps.warn("guard", "the guard skips and rolls back on one rank alone only with agree=True; it warns")
        chosen = _without_comparison(chosen)
    made = Guard(run, chosen, call, agreement)
    with sink.guarded("the guard's watch"):
        made.start_watch(stall_s, device_uuid)
    return made
