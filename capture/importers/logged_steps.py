"""Steps as trainers log them: one line per step, or one line for several steps.

A line that stands for several steps tells their mean time. Each of them gets a row with that time, and the row says in
``interval_end_step`` whose line it is from: so counts, tokens, time, lost work and restarts go by steps, and whoever
wants what was measured takes the rows where ``interval_end_step`` is NULL or the step itself.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun

MOST_COVERED: Final = 100_000
"""Steps that one line stands for at most: beyond it the numbers of a log are damaged."""
_OF_THE_LAST: Final = frozenset({"loss", "grad_norm", "lr", "non_finite"})
"""Columns that only the interval's last step has: the trainer told its value, or one for all."""


def usual_interval(lines: Iterable[Sequence[int]], stated: int | None) -> int:
    """Return for how many steps a line of a log stands.

    Parameters
    ----------
    lines
        Steps that lines were told at, in their order, of each rank that tells them. The commonest distance between
        neighbours says it: a line that other output destroyed makes a longer one, and the first of a run a shorter one.
        Of equally common ones it is that which most steps are multiples of, then the shortest.
    stated
        What the log says of it itself. It holds where distances are multiples of it: lines between may be lost.
    """
    gaps: Counter[int] = Counter()
    all_steps: list[int] = []
    for steps in lines:
        gaps.update(after - before for before, after in pairwise(steps) if after > before)
        all_steps += steps
    if not gaps:
        return stated or 1
    most = max(gaps.values())
    common = [gap for gap, count in gaps.items() if count == most]
    gap = min(common, key=lambda gap: (-sum(step % gap == 0 for step in all_steps), gap))
    return stated if stated and gap % stated == 0 else gap


def covered_steps(step: int, before: int | None, interval: int, resumed: int | None) -> int:
    """Return how many steps, up to `step`, a line stands for.

    Parameters
    ----------
    before
        The step of the line before in the same attempt; None for the first.
    resumed
        The step that the attempt's checkpoint was of, where the log names it.
    """
    since = before if before is not None else resumed if resumed is not None and resumed < step else 0
    return max(1, min(step - since, interval, MOST_COVERED))


@dataclass
class LoggedStep:
    """What a line says of its steps.

    Attributes
    ----------
    step, steps
        The last step, and for how many it stands.
    seconds
        Mean time of one.
    begin_ns
        When the first of them began, ns since 1970.
    samples, tokens
        Of all of them together; None where the log does not say.
    columns
        Others of `steps`: phases are means, too; loss, grad_norm and lr are the last step's.
    """

    step: int
    steps: int
    seconds: float
    begin_ns: int
    samples: int | None = None
    tokens: int | None = None
    columns: dict[str, Any] = field(default_factory=dict)

    @property
    def end_ns(self) -> int:
        """When the last of them ended."""
        return self.begin_ns + round(self.steps * self.seconds * 1e9)


def add_steps(recording: "ImportedRun", line: LoggedStep, rank: int = 0, ranks: int | None = None) -> None:
    """Add a row for each step that a line stands for; `ranks` says for how many the line speaks."""
    own = {name: value for name, value in line.columns.items() if name not in _OF_THE_LAST}
    first = line.step - line.steps + 1
    samples, tokens = _shares(line.samples, line.steps), _shares(line.tokens, line.steps)
    for at in range(line.steps):
        more = line.columns if at == line.steps - 1 else own
        if line.steps > 1:
            more = {**more, "interval_end_step": line.step}
        if ranks is not None and ranks > 1:
            more = {**more, "ranks": ranks}
        begin_ns = line.begin_ns + round(at * line.seconds * 1e9)
        recording.step(first + at, line.seconds, begin_ns, rank, samples=samples[at], tokens=tokens[at], **more)


def next_recording(recordings: list["ImportedRun"], *, is_earlier: bool) -> "ImportedRun":
    """Return the recording of the next attempt; one that began before the one above it is a run of its own, NAME-2.

    So logs of several runs that were put together in any order do not become restarts of one.
    """
    first, last = recordings[0], recordings[-1]
    if not is_earlier:
        return first.sibling(last.run, last.attempt + 1)
    count = len({recording.run for recording in recordings}) + 1
    return first.sibling(f"{first.run[:120]}-{count}", 0)


def _shares(whole: int | None, parts: int) -> list[int | None]:
    """Return a count in equal whole parts, of which the last ones have the rest."""
    if whole is None:
        return [None] * parts
    each, rest = divmod(whole, parts)
    return [each + (at >= parts - rest) for at in range(parts)]
