"""``ranklake sql``."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click
import pyarrow as pa

from ranklake.commands.options import configuration, lake_option
from ranklake.commands.tables import as_csv, as_json, as_parquet, as_table
from ranklake.errors import RanklakeError
from ranklake.lake.query import query
from ranklake.lake.store import Lake

_FORMATS: Final[Mapping[str, Callable[[pa.Table], str]]] = MappingProxyType(
    {"table": as_table, "csv": as_csv, "json": as_json}
)
_SUFFIXES: Final = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".pq": "parquet"}


_EXAMPLE: Final = 'Example: ranklake sql "SELECT rank, count(*) n, avg(step_time_s) FROM steps GROUP BY rank"'


@click.command(epilog=_EXAMPLE)
@click.argument("text", metavar="SELECT …")
@click.option(
    "--format", "chosen", type=click.Choice([*_FORMATS, "parquet"]), help="Default: table, or as --output ends."
)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write, in place of the terminal."
)
@click.option(
    "--param", "params", multiple=True, metavar="NAME=VALUE", help="Value of a $name in the text; repeatable."
)
@click.option("--limit", type=click.IntRange(min=0), help="Most rows to give.")
@lake_option
@click.pass_context
def sql(
    ctx: click.Context,
    text: str,
    chosen: str | None,
    output: Path | None,
    params: tuple[str, ...],
    limit: int | None,
    lake: str,
) -> None:
    """Ask the tables in SQL (DataFusion's, close to PostgreSQL's). Nothing can be changed this way."""
    config = configuration(ctx)
    kind = chosen or (_SUFFIXES.get(output.suffix, "table") if output else "table")
    if kind == "parquet" and output is None:
        raise RanklakeError("Parquet is not for a terminal", where="--format", mend="name a file with --output")
    overlay = Path(config.contracts.overlay) if config.contracts.overlay else None
    values = dict(_param(item) for item in params)
    rows = query(Lake.open(lake, config.storage), text, values, limit, overlay=overlay)
    if output is None:
        click.echo(_FORMATS[kind](rows))
        return
    data = as_parquet(rows) if kind == "parquet" else f"{_FORMATS[kind](rows)}\n".encode()
    _write(output, data)
    click.echo(f"{rows.num_rows:,} rows written to {output}", err=True)


def _param(item: str) -> tuple[str, str | int | float]:
    name, equals, value = item.partition("=")
    if not name or not equals:
        raise RanklakeError(f"{item!r} is no NAME=VALUE", where="--param", mend="write --param run=demo-1")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def _write(output: Path, data: bytes) -> None:
    """Write a whole file or none."""
    scratch = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        scratch.write_bytes(data)
        scratch.replace(output)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise RanklakeError(
            f"cannot be written: {error.strerror}", where=str(output), mend="name another file"
        ) from error
