"""Runs on a terminal: one line each."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from ranklake.insight.ended_metrics import NO_ENDED, EndedMetric, EndedOfRuns
from ranklake.insight.runs.annotations import Annotations
from ranklake.insight.runs.asking import Row
from ranklake.insight.runs.caveats import Caveats, FailedCheck
from ranklake.printable import printable
from ranklake.views.table import TextColumn, fitting
from ranklake.views.words import length_text, loss_text, moment_text, number_text, or_dash, percent_text

MOST_TAGS: Final = 50
"""Of a run, where they are reported together; `--json` has all."""
_MOST_LETTERS: Final = 200
_MOST_NAMED: Final = 3
_COLUMNS = (
    TextColumn("run"),
    TextColumn("status"),
    TextColumn("name"),
    TextColumn("steps", is_right=True),
    TextColumn("began"),
    TextColumn("took", is_right=True),
    TextColumn("loss", is_right=True),
    TextColumn("goodput", is_right=True),
    TextColumn("MFU", is_right=True),
    TextColumn("tokens/s", is_right=True),
    TextColumn("ranks", is_right=True),
    TextColumn("restarts", is_right=True),
    TextColumn("straggler", is_right=True),
    TextColumn("job"),
    TextColumn("tags"),
)


def run_table(
    rows: Sequence[Row],
    annotations: Mapping[str, Annotations],
    width: int | None,
    caveats: Caveats | None = None,
    ended: EndedOfRuns = NO_ENDED,
    by: tuple[str, Mapping[str, float | str | bool]] | None = None,
) -> list[str]:
    """Return a line a run, worst or newest first as they come; unknown numbers are dashes, ``show`` has the reason.

    `by` is the title of a column of one's own, behind the run's name, and its values by run.

    Numbers that a failed check speaks against end in ``!``, and a line below says which check of which runs.
    """
    if not rows:
        return ["no runs"]
    doubts = caveats or Caveats()
    columns: Sequence[TextColumn] = _COLUMNS
    cells: list[tuple[str, ...]] = [_cells(row, annotations[row["run"]], doubts) for row in rows]
    if by is not None:
        title, values = by
        columns = (columns[0], TextColumn(printable(title), is_right=True), *columns[1:])
        shown = [_value_text(values.get(row["run"])) for row in rows]
        cells = [(first, text, *rest) for (first, *rest), text in zip(cells, shown, strict=True)]
    lines = fitting(columns, cells, width)
    return [*lines, *check_lines([row["run"] for row in rows], doubts), *ended_lines(ended)]


def _value_text(value: float | str | bool | None) -> str:
    if isinstance(value, str | bool):
        return printable(str(value))[:_MOST_LETTERS]
    return or_dash(value, number_text(value))


def ended_lines(ended: EndedOfRuns) -> list[str]:
    """Return a line for each metric that is to be recorded no more, and which runs have it."""
    runs_of: dict[EndedMetric, list[str]] = {}
    for run, metrics in ended.items():
        for metric in metrics:
            runs_of.setdefault(metric, []).append(run)
    return [f"metric {printable(metric.note)} (in {_named_runs(runs)})" for metric, runs in runs_of.items()]


def _named_runs(runs: Sequence[str]) -> str:
    more = f" and {len(runs) - _MOST_NAMED:,} more" if len(runs) > _MOST_NAMED else ""
    return f"{', '.join(map(printable, runs[:_MOST_NAMED]))}{more}"


def in_doubt(text: str, row: Row, column: str, doubts: Caveats) -> str:
    """Return the text of a run's number, with ``!`` behind it where a failed check speaks against it."""
    return f"{text} !" if row.get(column) is not None and doubts.of(row["run"], column) else text


def check_lines(runs: Sequence[str], doubts: Caveats) -> list[str]:
    """Return a line for each failed check that speaks against numbers of runs, and of which."""
    lines = []
    for check, failing in _by_check(runs, doubts).items():
        named = _named_runs(failing)
        lines.append(
            f"! a check failed ({check.severity}): {check.about}, of {named}; ranklake quality why {check.table}"
        )
    return lines


def _by_check(runs: Sequence[str], doubts: Caveats) -> dict[FailedCheck, list[str]]:
    by_check: dict[FailedCheck, list[str]] = {}
    for run in runs:
        for check in doubts.failed.get(run, ()):
            by_check.setdefault(check, []).append(run)
    return by_check


def tag_words(tags: Mapping[str, str | None], most: int = MOST_TAGS) -> list[str]:
    """Return tags with their values, each cut short; of many the first, and how many more there are."""
    words = [tag if value is None else f"{tag}={value}" for tag, value in itertools.islice(tags.items(), most)]
    more = [f"and {len(tags) - most:,} more"] if len(tags) > most else []
    return [*(one if len(one) <= _MOST_LETTERS else f"{one[:_MOST_LETTERS]}…" for one in words), *more]


def tag_text(tags: Mapping[str, str | None]) -> str:
    """Return the same in one line, for a terminal."""
    return printable(", ".join(tag_words(tags)))


def _cells(row: Row, annotations: Annotations, doubts: Caveats) -> tuple[str, ...]:
    def shown(column: str, text: str) -> str:
        return in_doubt(text, row, column, doubts)

    return (
        printable(row["run"]),
        row["status"],
        printable(annotations.name),
        shown("steps", or_dash(row["steps"], number_text(row["steps"]))),
        moment_text(row["ts"]),
        shown("wall_ns", length_text(row["wall_ns"] / 1e9)),
        shown("last_loss", or_dash(row["last_loss_flag"] or row["last_loss"], loss_text(row))),
        shown("goodput_ratio", or_dash(row["goodput_ratio"], percent_text(row["goodput_ratio"]))),
        shown("mfu_ratio", or_dash(row["mfu_ratio"], percent_text(row["mfu_ratio"]))),
        shown("tokens_per_s", or_dash(row["tokens_per_s"], number_text(row["tokens_per_s"]))),
        shown("world_size", or_dash(row["world_size"], number_text(row["world_size"]))),
        shown("restarts", number_text(row["restarts"] or 0)),
        shown("straggler_rank", or_dash(row["straggler_rank"], f"rank {row['straggler_rank']}")),
        printable(row["job"] or ""),
        tag_text(annotations.tags),
    )
