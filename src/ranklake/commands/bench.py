"""``ranklake bench``."""

from datetime import UTC, datetime
from typing import Any

import click

from ranklake.bench.generate import GenerateResult, generate
from ranklake.bench.job import DEFAULT_START, Job
from ranklake.commands.options import Group, json_option, spool_option, with_config
from ranklake.config import Config
from ranklake.segments.storage_options import fsspec_options
from ranklake.views.json_output import json_text
from ranklake.views.tell import progress_bar, tell

_FORMATS = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d")


@click.group(cls=Group)
def bench() -> None:
    """Generate synthetic data for measurements."""


@bench.command("generate")
@click.option("--gpus", type=click.IntRange(1, 1_000_000), default=8, show_default=True, help="Ranks, eight per node.")
@click.option(
    "--hours",
    type=click.FloatRange(0, 24 * 366, min_open=True),
    default=0.1,
    show_default=True,
    help="Length of the job.",
)
@spool_option
@click.option("--seed", default=0, show_default=True, help="Seed of the random numbers.")
@click.option(
    "--step-s",
    type=click.FloatRange(0.001, 3600),
    default=1.0,
    show_default=True,
    help="Mean length of a step.",
)
@click.option(
    "--start",
    type=click.DateTime(_FORMATS),
    default=DEFAULT_START.strftime(_FORMATS[0]),
    show_default=True,
    help="When the job starts, in UTC.",
)
@click.option(
    "--metrics",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Scalars that a rank logs each step.",
)
@click.option(
    "--seal-s",
    type=click.FloatRange(1, 3600),
    default=None,
    help="Time that a process records before it seals; default: as capture does for this number of ranks.",
)
@click.option(
    "--packed/--single",
    default=True,
    show_default=True,
    help="Upload one pack per node and sealing, or each segment separately.",
)
@click.option("--workers", type=click.IntRange(min=0), default=0, help="Processes; default: one for each core.")
@json_option
@with_config
def generate_command(
    config: Config,
    /,
    hours: float,
    start: datetime,
    *,
    seal_s: float | None,
    packed: bool,
    workers: int,
    as_json: bool,
    **rest: Any,  # noqa: ANN401 - options that are passed to Job unchanged
) -> None:
    """Write the segments of a synthetic training job, sealed as capture seals them.

    The same options give the same bytes. The run is named synthetic-… and labelled as synthetic.
    """
    job = Job(seconds=hours * 3600, start=start.replace(tzinfo=UTC), seal_s=seal_s or 0.0, **rest)
    spool = config.uri_of("spool")
    options = fsspec_options(spool, config.storage)
    with progress_bar("nodes") as progress:
        result = generate(job, spool, options, packed=packed, workers=workers, progress=progress)
    tell(json_text(result) if as_json else _summary(result))


def _summary(made: GenerateResult) -> str:
    rows, size = sum(made.rows.values()), sum(made.segment_bytes.values())
    lines = [f"run {made.run}: {made.gpus:,} GPUs, {made.seconds:,.0f} s"]
    for table, count in made.rows.items():
        each = made.segment_bytes[table] / max(1, count)
        lines.append(f"  {table:<13}{count:>14,} rows  {made.segments[table]:>9,} segments  {each:>8.1f} bytes a row")
    lines.append(f"{rows:,} rows, {size:,} bytes in segments, {made.object_bytes:,} in {made.objects:,} objects")
    lines.append(
        f"{made.wall_s:.1f} s, {made.cpu_s:.1f} CPU-seconds: {rows / max(made.cpu_s, 1e-9):,.0f} rows a CPU-second"
    )
    return "\n".join(lines)
