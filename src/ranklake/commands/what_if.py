"""``ranklake what-if``: how much faster a run would have been, and what slowed it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.context import Context
from ranklake.lake.diagnosis.run_spans import read_spans, trace_of
from ranklake.lake.diagnosis.spans import counted
from ranklake.lake.diagnosis.timeline import write_timeline
from ranklake.lake.diagnosis.what_if import WhatIf
from ranklake.lake.diagnosis.what_if import what_if as analyse
from ranklake.views.json_output import show_json

_MOST_ROWS: Final = 12
_MOST_COLUMNS: Final = 12
_SHADES: Final = " ░▒▓█"
_HEAT: Final = ((1.5, "white on red"), (1.2, "black on red"), (1.1, "black on dark_orange"), (1.02, "black on yellow"))
"""From which slowdown a cell is drawn how."""


@click.command(name="what-if")
@click.argument("run")
@click.option("--attempt", type=click.IntRange(min=0), help="Default: the last attempt with spans.")
@click.option(
    "--timeline",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the ideal timeline for Perfetto (.json or .json.gz).",
)
@json_option
@lake_option
@with_context
def what_if(context: Context, run: str, attempt: int | None, timeline: Path | None, *, as_json: bool) -> None:
    """Estimate how much faster RUN would have been without stragglers, and which operations and ranks slowed it.

    Simulates the run's steps from their spans: as recorded but without delays, and with ideal lengths for all
    operations but some.
    """
    chosen, rows, notes = read_spans(context.open_lake(), run, attempt, overlay=context.overlay)
    found = analyse(trace_of(rows, notes))
    if as_json:
        show_json({"run": run, "attempt": chosen, **facts(found)})
    else:
        _print(found, run, chosen)
    if timeline is not None:
        count = write_timeline(found, timeline)
        click.echo(f"{counted(count, 'event')} written to {timeline}; open it at https://ui.perfetto.dev", err=True)


def facts(found: WhatIf) -> dict[str, Any]:
    """Return an analysis as JSON has it. Times are seconds, means over the steps."""
    return {
        "s": found.s,
        "by_kind": dict(found.by_kind),
        "by_stage": {str(stage): s for stage, s in found.by_stage.items()},
        "by_dp_rank": {str(dp): s for dp, s in found.by_dp_rank.items()},
        "by_worker": [
            {"rank": one.rank, "dp_rank": one.dp_rank, "stage": one.stage, "s": one.s} for one in found.workers
        ],
        "m_w": found.m_w,
        "m_s": found.m_s,
        "worst_ranks": [one.rank for one in found.workers[: found.worst]],
        "per_step": {str(step): s for step, s in found.step_s.items()},
        "step_time_s": {
            "recorded": found.recorded_ns / 1e9,
            "no_delay": found.no_delay_ns / 1e9,
            "ideal": found.ideal_ns / 1e9,
        },
        "notes": list(found.trace.notes),
    }


def _print(found: WhatIf, run: str, attempt: int) -> None:
    dp_size, stages = found.trace.ranks.shape
    console = Console(highlight=False)
    shape = f"{counted(dp_size, 'data-parallel rank')}, {counted(stages, 'stage')}"
    console.print(f"run {run}, attempt {attempt}: {counted(len(found.trace.steps), 'step')}, {shape}", soft_wrap=True)
    for note in found.trace.notes:
        console.print(f"note: {note}", soft_wrap=True)
    times = f"a step takes {_time(found.no_delay_ns)} without launch delays, {_time(found.ideal_ns)} ideal"
    console.print(f"S    {found.s:.4f}  {times}; recorded were {_time(found.recorded_ns)}", soft_wrap=True)
    worst = ", ".join(str(one.rank) for one in found.workers[: found.worst][:_MOST_ROWS])
    goes = f"of the loss goes if {'ranks' if found.worst > 1 else 'rank'} {worst} alone"
    console.print(f"M_W  {_share(found.m_w)}  {goes} {'are' if found.worst > 1 else 'is'} ideal", soft_wrap=True)
    if stages > 1:
        console.print(f"M_S  {_share(found.m_s)}  of the loss goes if the last stage alone is ideal", soft_wrap=True)
    slowest = sorted(found.step_s.items(), key=lambda item: -item[1])
    for title, slowdowns in (
        ("operations", found.by_kind),
        ("stage", found.by_stage),
        ("data-parallel rank", found.by_dp_rank),
        ("step", dict(slowest)),
    ):
        if len(slowdowns) > 1:
            console.print(_slowdowns(title, slowdowns))
    console.print(heat_map(found))


def _slowdowns(title: str, slowdowns: Mapping[Any, float]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(f"{title}, slowest first" if len(slowdowns) <= _MOST_ROWS else f"{title}, slowest {_MOST_ROWS}")
    table.add_column("slowdown", justify="right")
    for name, s in list(slowdowns.items())[:_MOST_ROWS]:
        table.add_row(str(name), Text(f"{s:.4f}", style=_heat(s)))
    return table


def heat_map(found: WhatIf) -> Table:
    """Return the workers' slowdowns, a row a stage; in shades where there are too many columns for numbers."""
    dp_size, stages = found.trace.ranks.shape
    cells = {(one.stage, one.dp_rank): one.s for one in found.workers}
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("workers", no_wrap=True)
    if dp_size <= _MOST_COLUMNS:
        for dp in range(dp_size):
            table.add_column(f"dp {dp}", justify="right", no_wrap=True)
        for stage in range(stages):
            row = [Text(f"{cells[stage, dp]:.2f}", style=_heat(cells[stage, dp])) for dp in range(dp_size)]
            table.add_row(f"stage {stage}", *row)
        return table
    legend = ", ".join(f"{shade} from {low}" for shade, (low, _) in zip(_SHADES[:0:-1], _HEAT, strict=True))
    table.add_column(f"dp 0 to {dp_size - 1} ({legend})")
    for stage in range(stages):
        shades = Text()
        for dp in range(dp_size):
            s = cells[stage, dp]
            shades.append(_SHADES[sum(s >= low for low, _ in _HEAT)], style=_heat(s).rpartition(" ")[2])
        table.add_row(f"stage {stage}", shades)
    return table


def _heat(s: float) -> str:
    return next((style for low, style in _HEAT if s >= low), "")


def _time(ns: float) -> str:
    return f"{ns / 1e9:.4g} s" if ns >= 1e9 else f"{ns / 1e6:.4g} ms"  # noqa: PLR2004 - a second


def _share(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.4f}"
