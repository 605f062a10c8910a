"""Runs side by side on a terminal: a column a run, or a block a number where the terminal is too narrow for that."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ranklake.insight.runs.asking import Row
from ranklake.insight.runs.caveats import Caveats
from ranklake.insight.runs.compare import MEASURES, Comparison, Difference
from ranklake.insight.runs.facts import PHASES
from ranklake.printable import counted, printable
from ranklake.views.runs import check_lines, ended_lines, in_doubt
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.words import length_text, loss_text, moment_text, number_text, percent_text

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
    """Return a comparison as lines: numbers, phases, variance, then what differs."""
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
    text = printable(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


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
