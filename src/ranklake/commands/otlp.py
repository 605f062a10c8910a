"""``ranklake otlp``: a run's spans, values and log lines for OpenTelemetry."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from ranklake.commands.completion import complete_runs
from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import json_option, lake_option, role_option
from ranklake.commands.writing import write_whole
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.find import find_run
from ranklake.insight.runs.otlp import SIGNALS, RunTelemetry, TelemetryPage
from ranklake.pipeline.otlp import ENDPOINT, OtlpSender
from ranklake.printable import counted
from ranklake.views.json_output import show_json
from ranklake.views.openmetrics import RunValues
from ranklake.views.otlp import line_of, request_of
from ranklake.views.tell import tell

_VALUES = {"metrics": ("steps", "scalars")}
_UNITS = {"spans": "span", "steps": "step", "scalars": "value", "distributions": "histogram", "logs": "log line"}


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("--endpoint", metavar="URL", help=f"Of a collector's HTTP receiver.  [default: {ENDPOINT}]")
@click.option("--output", "--out", "-o", "output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the requests into a file instead, one per line.")  # fmt: skip
@click.option("--openmetrics", is_flag=True, help="Write values in OpenMetrics, for promtool.")
@click.option("--signal", "signals", multiple=True, type=click.Choice(list(SIGNALS)), help="Default: all three.")
@click.option("--attempt", type=click.IntRange(min=0), help="Default: all attempts.")
@click.option("--messages", is_flag=True, help="Include messages of log lines, which may contain personal data.")
@role_option
@json_option
@lake_option
@with_context
def otlp(  # noqa: PLR0913 - one parameter an option
    context: Context,
    run: str,
    *,
    endpoint: str | None,
    output: Path | None,
    openmetrics: bool,
    signals: tuple[str, ...],
    attempt: int | None,
    messages: bool,
    role: str | None,
    as_json: bool,
) -> int:
    """Send RUN to an OpenTelemetry collector: spans as traces, values as metrics, log lines with their trace ids.

    Sending again is safe: ids and times stay the same. Headers come from OTEL_EXPORTER_OTLP_HEADERS. Exits 1 if the
    receiver rejected something.
    """
    address = endpoint or os.environ.get(ENDPOINT, "")
    if (output is None) == (not address) and (output is None or endpoint is not None):
        hint = f"name one of the two, or set {ENDPOINT}"
        raise RanklakeError("one of --endpoint and --output is needed", hint=hint)
    if openmetrics and (output is None or set(signals) - {"metrics"}):
        raise RanklakeError("OpenMetrics has values alone, in a file", hint="name it with --output, and no signal")
    sender = OtlpSender.of(address, os.environ) if output is None else None
    lake = context.open_lake()
    ask = asking(lake, noted_role_of(context, lake, role))
    telemetry = RunTelemetry(ask, find_run(ask, run), lake.catalog.metrics(), attempt, has_messages=messages)
    pages = telemetry.pages(_VALUES if openmetrics else {signal: SIGNALS[signal] for signal in signals or SIGNALS})
    if sender is not None:
        for page in pages:
            sender.send(page.signal, request_of(page, telemetry.metrics, telemetry.step_columns))
    elif output is not None:
        write_whole(output, _openmetrics(telemetry, pages) if openmetrics else _lines(telemetry, pages))
    rejected = sender.rejected if sender else {}
    if as_json:
        show_json(
            {"run": telemetry.run, "rows": dict(telemetry.rows), "rejected": rejected, "unseen": telemetry.unseen}
        )
        return int(bool(rejected))
    shown = ", ".join(counted(count, _UNITS[table]) for table, count in telemetry.rows.items() if count) or "nothing"
    tell(f"{shown} of {telemetry.run}: {output or 'sent'}")
    for table, reason in telemetry.unseen.items():
        tell(f"no {table}: {reason}", err=True)
    for reason, count in rejected.items():
        tell(f"{counted(count, 'item')} not taken by the receiver: {reason}", err=True)
    return int(bool(rejected))


def _lines(telemetry: RunTelemetry, pages: Iterable[TelemetryPage]) -> Iterator[bytes]:
    for page in pages:
        yield line_of(request_of(page, telemetry.metrics, telemetry.step_columns)).encode()


def _openmetrics(telemetry: RunTelemetry, pages: Iterable[TelemetryPage]) -> bytes:
    values = RunValues(telemetry.metrics, telemetry.step_columns)
    for page in pages:
        values.add(page)
    return values.text().encode()
