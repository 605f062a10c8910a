"""``ranklake metrics``: the pipeline's own health, for Prometheus."""

from dataclasses import asdict
from pathlib import Path

import click
from fsspec.implementations.local import LocalFileSystem

from ranklake.commands.context import with_context
from ranklake.commands.options import Number, json_option, lake_option, optional_spool
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.lake.store.files import overwrite
from ranklake.pipeline.health.collection import LIMIT_S, pipeline_health
from ranklake.pipeline.health.exposition import exposition
from ranklake.views.json_output import moment_json, show_json
from ranklake.views.tell import tell


@click.command()
@lake_option
@optional_spool("URI or folder of the spool; without one, nothing is known of what waits there.")
@click.option(
    "--textfile",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Write them atomically into a file *.prom, for node_exporter's textfile collector.",
)
@click.option("--limit-s", default=LIMIT_S, show_default=True, type=Number(0.1, 600), help="Time limit of the look.")
@click.option(
    "--home",
    default=Path("~/.ranklake"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of 'ranklake up', whose server is asked where PREFECT_API_URL is not set.",
)
@json_option
@with_context
def metrics(context: Context, textfile: Path | None, limit_s: float, home: Path, *, as_json: bool) -> int:
    """Print the pipeline's health as Prometheus metrics: backlog, lag, delays, sizes, failures, free disk space.

    Contains no names of runs or persons. Unknown values are left out, with the reason on stderr or in --json, and their
    collector's ranklake_collector_success is 0. Exits 1 if the lake cannot be opened, or a table's log is gone.
    """
    if as_json and textfile is not None:
        raise click.UsageError("--json and --textfile exclude each other: a textfile has Prometheus's own format")
    if textfile is not None and not textfile.parent.is_dir():
        hint = "make it, or name the folder that node_exporter reads"
        raise RanklakeError("no such folder", where=str(textfile.parent), hint=hint)
    health = pipeline_health(context, home, limit_s)
    if as_json:
        samples = [{**asdict(sample), "value": sample.value, "reason": sample.reason} for sample in health.samples]
        show_json({"as_of": moment_json(health.as_of), "samples": samples})
    elif textfile is None:
        click.echo(exposition(health.samples), nl=False)  # noqa: TID251 - the library's own format
    else:
        text = exposition(health.samples)
        overwrite(LocalFileSystem(), str(textfile), text.encode(), local=True)
        tell(f"{textfile}: {len(health.samples):,} samples")
    if not as_json:
        tell(*(f"{part.collector}: not known: {part.reason}" for part in health.parts if part.reason), err=True)
    is_lost = any(sample.value for sample in health.values("tables_lost"))
    return 0 if health.values("lake_up")[0].value and not is_lost else 1
