"""``ranklake trace``: a step of a run for Perfetto."""

from pathlib import Path

import click

from ranklake.commands.completing import complete_runs
from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import json_option, lake_option, role_option
from ranklake.commands.writing import write_whole
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.find import find_run
from ranklake.insight.runs.trace import MOST_SPANS, step_trace
from ranklake.printable import counted
from ranklake.views.json_output import show_json
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
    """Write the spans that all ranks of RUN recorded of a step, for Perfetto: open it at https://ui.perfetto.dev.

    Log lines of the step are in it, without their messages. Spans and lines carry the same trace id.
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
