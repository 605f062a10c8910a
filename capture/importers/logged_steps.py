"""Logged steps: rows of ``steps`` from log lines, each of which reports one step or several.

A line for several steps has their mean time. Each of these steps gets a row with that time, and the line's step in
``interval_end_step``. So steps, tokens, time, lost work and restarts are counted step by step. Measured values alone
are the rows whose ``interval_end_step`` is NULL or equal to ``step``.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun

MOST_COVERED: Final = 100_000
"""Most steps of one line; more would mean that the log is damaged."""
_LAST_STEP_COLUMNS: Final = frozenset({"loss", "grad_norm", "lr", "non_finite"})
"""Columns that only the last step of a line gets."""


def usual_interval(lines: Iterable[Sequence[int]], stated: int | None) -> int:
    """Return the number of steps that a log line usually reports.

    It is the most frequent distance between the steps of neighbouring lines: a lost line makes a longer distance, and a
    run's first line often a shorter one. Of equally frequent distances the one is taken that divides most steps, then
    the shortest.

    Parameters
    ----------
    lines
        For each logging rank, the steps of its lines in order.
    stated
        The interval in the log's own configuration. It is returned if the most frequent distance is a multiple of it.
    """
    distances: Counter[int] = Counter()
    all_steps: list[int] = []
    for steps in lines:
        distances.update(step - previous for previous, step in pairwise(steps) if step > previous)
        all_steps += steps
    if not distances:
        return stated or 1
    highest = max(distances.values())
    candidates = [distance for distance, count in distances.items() if count == highest]
    interval = min(candidates, key=lambda distance: (-sum(step % distance == 0 for step in all_steps), distance))
    return stated if stated and interval % stated == 0 else interval


def covered_steps(step: int, previous: int | None, interval: int, resumed: int | None) -> int:
    """Return the number of steps that a line reports, the last of which is `step`.

    Parameters
    ----------
    previous
        The step of the attempt's previous line; None for the first line.
    resumed
        The step of the attempt's checkpoint, if the log has it.
    """
    start = previous if previous is not None else resumed if resumed is not None and resumed < step else 0
    return max(1, min(step - start, interval, MOST_COVERED))


@dataclass
class LoggedStep:
    """The content of a log line about one or several steps.

    Attributes
    ----------
    step, steps
        Number of the last step, and how many steps the line reports.
    seconds
        Mean duration of a step.
    begin_ns
        Begin of the first step, ns since 1970.
    samples, tokens
        Totals of all these steps; None if the log has none.
    columns
        Other columns of `steps`: phases are means, too; loss, grad_norm and lr belong to the last step.
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
        """End of the last step, ns since 1970."""
        return self.begin_ns + round(self.steps * self.seconds * 1e9)


def add_steps(recording: "ImportedRun", line: LoggedStep, rank: int = 0, ranks: int | None = None) -> None:
    """Add a row for each step of a line; `ranks` is the number of ranks that the line reports on."""
    shared_columns = {name: value for name, value in line.columns.items() if name not in _LAST_STEP_COLUMNS}
    first = line.step - line.steps + 1
    samples, tokens = _split(line.samples, line.steps), _split(line.tokens, line.steps)
    for index in range(line.steps):
        columns = line.columns if index == line.steps - 1 else shared_columns
        if line.steps > 1:
            columns = {**columns, "interval_end_step": line.step}
        if ranks is not None and ranks > 1:
            columns = {**columns, "ranks": ranks}
        begin_ns = line.begin_ns + round(index * line.seconds * 1e9)
        recording.step(
            first + index, line.seconds, begin_ns, rank, samples=samples[index], tokens=tokens[index], **columns
        )


def next_recording(recordings: list["ImportedRun"], *, is_earlier: bool) -> "ImportedRun":
    """Return the recording of the next attempt, or, if it began before the previous one, of a new run NAME-2.

    So logs of several runs in one file, in any order, do not become restarts of one run.
    """
    first, last = recordings[0], recordings[-1]
    if not is_earlier:
        return first.sibling(last.run, last.attempt + 1)
    count = len({recording.run for recording in recordings}) + 1
    return first.sibling(f"{first.run[:120]}-{count}", 0)


def _split(total: int | None, parts: int) -> list[int | None]:
    """Split a count into integers that differ by at most 1, the larger ones last."""
    if total is None:
        return [None] * parts
    share, rest = divmod(total, parts)
    return [share + (index >= parts - rest) for index in range(parts)]
