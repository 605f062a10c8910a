"""Runs on a terminal: one line each, or side by side."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ranklake.insight.ended_metrics import NO_ENDED, EndedMetric, EndedOfRuns
from ranklake.insight.runs.annotations import Annotations
from ranklake.insight.runs.asking import Row
from ranklake.insight.runs.caveats import Caveats, FailedCheck
from ranklake.insight.runs.compare import MEASURES, Comparison, Difference
from ranklake.insight.runs.facts import PHASES
from ranklake.printable import counted, fit, printable, shorten
from ranklake.views.table import TextColumn, fitting, numbers, table_lines
from ranklake.views.words import length_text, loss_text, moment_text, number_text, or_dash, percent_text

MOST_TAGS: Final = 50
"""Most tags of a run in a line; `--json` has all."""
_MOST_LETTERS: Final = 200
_MOST_NAME: Final = 60
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
    """Return a line per run, in the given order; unknown numbers are dashes, ``show`` has the reason.

    `by` is the title of an additional column after the run's name, and its values by run.

    Doubtful numbers end in ``!``, and lines below name the failed checks and their runs.
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
    """Return a line for each ended metric, with its runs."""
    runs_of: dict[EndedMetric, list[str]] = {}
    for run, metrics in ended.items():
        for metric in metrics:
            runs_of.setdefault(metric, []).append(run)
    return [f"metric {printable(metric.note)} (in {_named_runs(runs)})" for metric, runs in runs_of.items()]


def _named_runs(runs: Sequence[str]) -> str:
    more = f" and {len(runs) - _MOST_NAMED:,} more" if len(runs) > _MOST_NAMED else ""
    return f"{', '.join(map(printable, runs[:_MOST_NAMED]))}{more}"


def in_doubt(text: str, row: Row, column: str, doubts: Caveats) -> str:
    """Return a run's number as text, followed by ``!`` if it is doubtful."""
    return f"{text} !" if row.get(column) is not None and doubts.of(row["run"], column) else text


def check_lines(runs: Sequence[str], doubts: Caveats) -> list[str]:
    """Return a line for each failed check, with the runs whose numbers it makes doubtful."""
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
    """Return the first tags with their values, shortened, and the number of others."""
    words = [tag if value is None else f"{tag}={value}" for tag, value in itertools.islice(tags.items(), most)]
    more = [f"and {len(tags) - most:,} more"] if len(tags) > most else []
    return [*(shorten(word, _MOST_LETTERS) for word in words), *more]


def tag_text(tags: Mapping[str, str | None]) -> str:
    """Return the same in one line, for a terminal."""
    return printable(", ".join(tag_words(tags)))


def _cells(row: Row, annotations: Annotations, doubts: Caveats) -> tuple[str, ...]:
    def shown(column: str, text: str) -> str:
        return in_doubt(text, row, column, doubts)

    return (
        printable(row["run"]),
        row["status"],
        printable(shorten(annotations.name, _MOST_NAME)),
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
        printable(shorten(row["job"] or "", _MOST_NAME)),
        tag_text(annotations.tags),
    )


Shown = Callable[[Any], str]
_MOST: Final = 40
_LONGEST: Final = 60


def _length(ns: int | None) -> str:
    return length_text(None if ns is None else ns / 1e9)


_NUMBERS: Final[Sequence[tuple[str, str, Shown]]] = (
    ("status", "status", str),
    ("began", "ts", moment_text),
    ("took", "wall_ns", _length),
    ("attempts", "attempts", number_text),
    ("ranks", "world_size", number_text),
    ("device", "device_name", lambda name: name or "unknown"),
    ("steps", "steps", number_text),
    ("tokens", "tokens", number_text),
    ("last loss", "last_loss", number_text),
    ("mean step", "mean_step_time_s", length_text),
    ("tokens/s", "tokens_per_s", number_text),
    ("MFU", "mfu_ratio", percent_text),
    ("goodput", "goodput_ratio", percent_text),
    ("straggler", "straggler_rank", lambda rank: "none" if rank is None else f"rank {rank}"),
)
_SHOWN: Final = {column: (title, shown) for title, column, shown in _NUMBERS}


def comparison_lines(comparison: Comparison, width: int | None) -> list[str]:
    """Return a comparison as lines: numbers, phases, variance, then differences."""
    names = [printable(run) for run in comparison.runs]
    figures = [
        (title, [_cell_text(row, column, shown, comparison.caveats) for row in comparison.summaries.rows])
        for title, column, shown in _NUMBERS
    ]
    phases = [
        (
            phase,
            [
                "-" if one.first_row.get(phase) is None else length_text(one.first_row[phase])
                for one in comparison.phases
            ],
        )
        for phase in ("step", "slowest", *PHASES)
        if any(one.first_row.get(phase) is not None for one in comparison.phases)
    ]
    lines = _side_by_side("", names, figures, width)
    lines += check_lines(comparison.runs, comparison.caveats)
    lines += ended_lines(comparison.ended_metrics)
    if comparison.summary:
        lines += ["", *_values("summary", names, comparison.summary, width)]
    if phases:
        lines += ["", *_side_by_side("mean of a step", names, phases, width)]
    reasons = [
        f"MFU of {name} is unknown: {row.get('mfu_reason') or 'no summary of the run'}"
        for name, row in zip(names, comparison.summaries.rows, strict=True)
        if row.get("mfu_ratio") is None
    ]
    lines += ["", *reasons] if reasons else []
    lines += ["", *_variance(comparison)]
    lines += ["", *_differing("settings", names, comparison.settings, width)]
    lines += ["", *_differing("surroundings", names, comparison.surroundings, width)]
    return [*lines, "", f"{counted(comparison.alike, 'value')} of settings and surroundings alike in all"]


def _cell_text(row: Row, column: str, shown: Shown, doubts: Caveats) -> str:
    if not row:
        return "unknown"
    return in_doubt(loss_text(row) if column == "last_loss" else shown(row[column]), row, column, doubts)


def _variance(comparison: Comparison) -> Iterator[str]:
    row = comparison.variance.first_row
    if not row:
        yield f"variance unknown: {comparison.variance.reason}"
        return
    like = (
        "with equal settings" if not comparison.settings else f"whose settings differ in {len(comparison.settings):,}"
    )
    yield f"over {counted(len(comparison.runs), 'run')} {like}: mean ± standard deviation"
    for name in MEASURES:
        title, shown = _SHOWN[name]
        if row[f"{name}_n"]:
            mean, deviation = row[f"{name}_mean"], row[f"{name}_std"]
            share = f" ({100 * deviation / abs(mean):.1f} % of it)" if deviation is not None and mean else ""
            marks = " !" if any(comparison.caveats.of(run, name) for run in comparison.runs) else ""
            few = "" if row[f"{name}_n"] == len(comparison.runs) else f", known of {row[f'{name}_n']}"
            yield f"  {title:<10} {shown(mean)} ± {shown(deviation)}{share}{few}{marks}"


def _differing(title: str, names: Sequence[str], differences: Sequence[Difference], width: int | None) -> list[str]:
    if not differences:
        return [f"no {title} differ"]
    return _values(f"{title} that differ", names, differences, width)


def _values(title: str, names: Sequence[str], differences: Sequence[Difference], width: int | None) -> list[str]:
    rows = [(printable(one.name), [_short_value(value) for value in one.values]) for one in differences[:_MOST]]
    lines = _side_by_side(title, names, rows, width)
    more = len(differences) - len(rows)
    return [*lines, f"and {more:,} more; --json has all"] if more else lines


def _short_value(value: str | None) -> str:
    if value is None:
        return "-"
    return fit(printable(value), _LONGEST)


def _side_by_side(
    title: str, names: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], width: int | None
) -> list[str]:
    lines = table_lines([TextColumn(title), *numbers(names)], [(name, *values) for name, values in rows])
    if width is None or max(map(len, lines)) <= width:
        return lines
    block = [title] if title else []
    for name, values in rows:
        block += [name, *(f"  {run}: {value}" for run, value in zip(names, values, strict=True))]
    return block
