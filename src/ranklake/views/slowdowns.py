"""A run's slowdowns on a terminal: tables, and a map of the workers."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from ranklake.insight.diagnosis.what_if import Slowdowns
from ranklake.printable import counted, printable
from ranklake.views.run_causes import path_words
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.words import percent_text

_MOST_ROWS: Final = 12
_MOST_COLUMNS: Final = 12
_SHADES: Final = " ░▒▓█"
_HEAT: Final = ((1.5, "white on red"), (1.2, "black on red"), (1.1, "black on dark_orange"), (1.02, "black on yellow"))
"""Shades and colours of cells, by least slowdown."""
_FIGURE: Final = re.compile(r"(?<= )\d+\.\d+(?= |$)|[░▒▓█]")
"""Coloured parts of a line: slowdowns, or their shades."""


def show_slowdowns(slow: Slowdowns) -> None:
    """Print them, in colour if the terminal supports it."""
    console = Console(highlight=False)
    for line in _words(slow):
        console.print(Text(printable(line)), soft_wrap=True)
    for lines in (*_tables(slow), _workers(slow)):
        for place, line in enumerate(lines):
            console.print(_colour(line) if place else Text(line, style="bold"), soft_wrap=True)


def _words(slow: Slowdowns) -> Iterator[str]:
    stages, dp_size = len(slow.by_stage), len(slow.by_dp_rank)
    shape = f"{counted(dp_size, 'data-parallel rank')}, {counted(stages, 'stage')}"
    yield f"run {slow.run}, attempt {slow.attempt}: {counted(len(slow.per_step), 'step')}, {shape}"
    yield from (f"note: {note}" for note in slow.notes)
    took = slow.step_time_s
    times = f"a step takes {_time(took.no_delay)} without launch delays, {_time(took.ideal)} ideal"
    yield f"S    {slow.s:.4f}  {times}; recorded were {_time(took.recorded)}"
    worst = ", ".join(map(str, slow.worst_ranks[:_MOST_ROWS]))
    many = len(slow.worst_ranks) > 1
    goes = f"of the slowdown goes if {'ranks' if many else 'rank'} {worst} alone {'are' if many else 'is'} ideal"
    yield f"M_W  {_share(slow.m_w)}  {goes}"
    if stages > 1:
        yield f"M_S  {_share(slow.m_s)}  of the slowdown goes if the last stage alone is ideal"
    path = path_words(slow.critical_path)
    if path:
        yield f"path {path}"


def _tables(slow: Slowdowns) -> Iterator[list[str]]:
    slowest = dict(sorted(slow.per_step.items(), key=lambda item: -item[1]))
    parts: tuple[tuple[str, Mapping[Any, float]], ...] = (
        ("operations", slow.by_kind),
        ("stage", slow.by_stage),
        ("data-parallel rank", slow.by_dp_rank),
        ("step", slowest),
    )
    for title, of in parts:
        if len(of) > 1:
            head = f"{title}, slowest first" if len(of) <= _MOST_ROWS else f"{title}, slowest {_MOST_ROWS}"
            rows = [(str(name), f"{s:.4f}") for name, s in list(of.items())[:_MOST_ROWS]]
            yield table_lines([TextColumn(head), *numbers(["slowdown"])], rows)
    path = slow.critical_path
    shares: tuple[tuple[str, Mapping[Any, float]], ...] = (
        ("operations", path.by_kind),
        ("stage", path.by_stage),
        ("rank", path.by_rank),
    )
    for title, of in shares:
        if len(of) > 1:
            rows = [(str(name), percent_text(share)) for name, share in list(of.items())[:_MOST_ROWS]]
            yield table_lines([TextColumn(title), *numbers(["of the critical path"])], rows)


def _workers(slow: Slowdowns) -> list[str]:
    """Return the workers' slowdowns, one row per stage; as shades if there are too many columns for numbers."""
    cells = {(one.stage, one.dp_rank): one.s for one in slow.by_worker}
    ranks = range(len(slow.by_dp_rank))
    stages = range(len(slow.by_stage))
    if len(ranks) <= _MOST_COLUMNS:
        heads = [TextColumn("workers"), *numbers(f"dp {dp}" for dp in ranks)]
        return table_lines(
            heads, [(f"stage {at}", *(f"{cells[at, dp]:.2f}" for dp in ranks)) for at in stages], gap=" "
        )
    legend = ", ".join(f"{shade} from {low}" for shade, (low, _) in zip(_SHADES[:0:-1], _HEAT, strict=True))
    heads = [TextColumn("workers"), TextColumn(f"dp 0 to {ranks[-1]} ({legend})")]
    return table_lines(
        heads, [(f"stage {at}", "".join(_shade(cells[at, dp]) for dp in ranks)) for at in stages], gap=" "
    )


def _shade(s: float) -> str:
    return _SHADES[sum(s >= low for low, _ in _HEAT)]


def _colour(line: str) -> Text:
    """Return a line of a table with coloured slowdowns or shades."""
    text = Text(line)
    for match in _FIGURE.finditer(line):
        figure = match.group()
        if figure in _SHADES:
            style = _HEAT[len(_SHADES) - 1 - _SHADES.index(figure)][1].rpartition(" ")[2]
        else:
            style = next((style for low, style in _HEAT if float(figure) >= low), "")
        text.stylize(style, *match.span())
    return text


def _time(seconds: float) -> str:
    return f"{seconds:.4g} s" if seconds >= 1 else f"{1000 * seconds:.4g} ms"


def _share(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.4f}"
