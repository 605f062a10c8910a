"""``ranklake plot`` and ``ranklake trace``: curves of runs as text or a picture, a step of a run for Perfetto."""

from pathlib import Path
from typing import Final

import click

from ranklake.commands.completion import complete_plotted, complete_runs
from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import json_option, lake_option, role_option
from ranklake.commands.writing import write_whole
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.caveats import caveats
from ranklake.insight.runs.curves import AXES, PARTS, plot_metrics
from ranklake.insight.runs.find import find_run
from ranklake.insight.runs.trace import MOST_SPANS, step_trace
from ranklake.lake.rollups.life.series import continuous
from ranklake.printable import counted
from ranklake.terminal import width
from ranklake.views.json_output import show_json
from ranklake.views.run_plot import SUFFIXES, picture, plot_lines, plot_spec
from ranklake.views.tell import tell
from ranklake.views.trace_events import trace_file

_SUFFIXES = (".json", ".gz")


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("--step", required=True, type=int, metavar="N", help="Which step.")
@click.option("--attempt", type=click.IntRange(min=0), help="Default: the last attempt with spans of the step.")
@click.option("--output", "--out", "-o", "output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="A .json or .json.gz.  [default: RUN-step-N.json.gz]")  # fmt: skip
@role_option
@json_option
@lake_option
@with_context
def trace(
    context: Context, run: str, *, step: int, attempt: int | None, output: Path | None, role: str | None, as_json: bool
) -> None:
    """Write the spans of a step on all ranks of RUN, for Perfetto: open the file at https://ui.perfetto.dev.

    Includes the step's log lines, without their messages. Spans and lines carry the same trace id.
    """
    lake = context.open_lake()
    ask = asking(lake, noted_role_of(context, lake, role))
    result = step_trace(ask, find_run(ask, run), step, attempt)
    place = output or Path(f"{result.run}-step-{step}.json.gz")
    if place.suffix not in _SUFFIXES:
        raise RanklakeError("a trace is JSON", where=str(place), hint="end the name in .json or .json.gz")
    data, events = trace_file(result, place.suffix)
    write_whole(place, data)
    ranks = len({row["rank"] for row in result.spans.rows})
    spans, lines = len(result.spans.rows), len(result.logs.rows)
    if as_json:
        about = {"run": result.run, "attempt": result.attempt, "step": step, "trace_id": result.trace_id}
        counts = {"ranks": ranks, "spans": spans, "log_lines": lines, "events": events}
        show_json({**about, **counts, "spans_sql": result.spans.sql, "logs_sql": result.logs.sql, "file": str(place)})
        return
    tell(f"{counted(spans, 'span')} of {counted(ranks, 'rank')}, {counted(lines, 'log line')}: {place}")
    if result.logs.reason:
        tell(f"no log lines: {result.logs.reason}", err=True)
    if spans == MOST_SPANS:
        tell(f"only the first {MOST_SPANS:,} spans, by rank", err=True)


_MOST_RUNS: Final = 8


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.argument("metrics", nargs=-1, required=True, metavar="METRIC…", shell_complete=complete_plotted)
@click.option("--with", "others", multiple=True, metavar="RUN", shell_complete=complete_runs,
              help="Another run on the same axes; repeatable.")  # fmt: skip
@click.option("--x", "axis", type=click.Choice(tuple(AXES)), default="step", show_default=True,
              help="Horizontal axis; time counts from each run's first step.")  # fmt: skip
@click.option("--smooth", type=click.IntRange(0, PARTS), default=0, metavar="N",
              help="Mean of each point and N neighbours on either side.")  # fmt: skip
@click.option("--log", "is_log", is_flag=True, help="Logarithmic scale; leaves out values that are not positive.")
@click.option("--output", "--out", "-o", "output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Write a picture, .png or .svg, instead.")  # fmt: skip
@role_option
@json_option
@lake_option
@with_context
def plot(  # noqa: PLR0913 - one parameter an option
    context: Context,
    run: str,
    metrics: tuple[str, ...],
    *,
    others: tuple[str, ...],
    axis: str,
    smooth: int,
    is_log: bool,
    output: Path | None,
    role: str | None,
    as_json: bool,
) -> None:
    """Draw METRICs of RUN: loss, grad_norm, step_time_s, tokens_per_s, mfu, or any metric that was recorded by step.

    A curve has at most 300 points, each a mean over ranks and adjacent steps. Runs may be named by the beginning of
    their names.
    """
    if output and output.suffix.lower() not in SUFFIXES:
        raise RanklakeError("a picture is PNG or SVG", where=str(output), hint="end the name in .png or .svg")
    lake = context.open_lake()
    ask = asking(lake, noted_role_of(context, lake, role))
    runs = tuple(dict.fromkeys(find_run(ask, one) for one in (run, *others)))
    if len(runs) > _MOST_RUNS:
        raise RanklakeError(f"{len(runs)} curves cannot be told apart", where="--with", hint=f"name {_MOST_RUNS} runs")
    units = {name: metric.unit for name, metric in lake.catalog.metrics().items()}
    wanted = tuple(dict.fromkeys(metrics))
    result = plot_metrics(ask, runs, wanted, units, axis, smooth, continuous(lake, wanted))
    for name, failed in caveats(ask, runs).failed.items():
        tell(*(f"in doubt: {name}: {check.about} fails" for check in failed), err=True)
    if output:
        write_whole(output, picture(plot_spec(result, axis, is_log=is_log), output.suffix.lower()))
    if as_json:
        show_json({"axis": axis, "smooth": smooth, "plots": result})
    elif output:
        tell(f"wrote {output}")
    else:
        tell(*plot_lines(result, axis, width(), is_log=is_log))
