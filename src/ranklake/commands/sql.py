"""``ranklake sql``."""

import math
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click
import pyarrow as pa

from ranklake.commands.context import role_of, with_context
from ranklake.commands.options import lake_option, overriding, role_option
from ranklake.context import Context
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.ask.ask import ask, asked, used
from ranklake.lake.usage.log import note
from ranklake.lake.usage.record import consumer_named
from ranklake.views.result_set import as_csv, as_json, as_parquet, as_table
from ranklake.views.tell import tell

_FORMATS: Final[Mapping[str, Callable[[pa.Table], str]]] = MappingProxyType(
    {"table": as_table, "csv": as_csv, "json": as_json}
)
_DIGITS: Final = re.compile(r"[-+]?\d[\d_]*")
_MOST_DIGITS: Final = 20
_SUFFIXES: Final = {".txt": "table", ".csv": "csv", ".json": "json", ".parquet": "parquet", ".pq": "parquet"}


def _bool(text: str) -> bool:
    """Return true or false. Raises `ValueError`."""
    return ("false", "true").index(text.lower()) == 1


def _int(text: str) -> int:
    """Return a whole number, whatever its length. Raises `ValueError`, and `OverflowError` beyond 64 bits."""
    if _DIGITS.fullmatch(text.strip()) and len(text) > _MOST_DIGITS:  # Python refuses thousands of them as no number
        raise OverflowError
    return int(text)


def _float(text: str) -> float:
    """Return a number. Raises `ValueError`, and `OverflowError` for one that would become infinite."""
    found = float(text)
    if math.isinf(found) and "inf" not in text.lower():
        raise OverflowError
    return found


def _timestamp(text: str) -> datetime:
    """Return an ISO 8601 time as UTC, which it is where it names no zone. Raises `ValueError`, `OverflowError`."""
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


_TYPES: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
    {"int": _int, "float": _float, "text": str, "bool": _bool, "date": date.fromisoformat, "timestamp": _timestamp}
)
_EXAMPLE: Final = 'Example: ranklake sql "SELECT rank, count(*) n, avg(step_time_s) FROM steps GROUP BY rank"'


@click.command(epilog=_EXAMPLE)
@click.argument("text", metavar="SELECT …")
@click.option(
    "--format",
    "chosen",
    type=click.Choice([*_FORMATS, "parquet"]),
    help="Default: table, or by the ending of --output.",
)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write instead of the terminal."
)
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME[:TYPE]=VALUE",
    help=f"Value of a $name in the text; repeatable. Types: {', '.join(_TYPES)}; default: inferred.",
)
@click.option(
    "--as-of",
    "as_of",
    multiple=True,
    metavar="VERSION|TIME",
    help="Read tables as of a time (UTC) or a table version (12, or steps=12 to name the table); repeatable.",
)
@role_option
@click.option("--verify", is_flag=True, help="First verify the files that are read against their digests.")
@click.option("--limit", type=click.IntRange(min=0), help="Maximum number of rows.")
@lake_option
@overriding(
    "--consumer",
    place="query.consumer",
    metavar="NAME",
    help="Who asks, for the log of used columns: a dashboard, a job; default: [query] consumer, or the login name.",
)
@with_context
def sql(  # noqa: PLR0913 - one parameter an option
    context: Context,
    text: str,
    chosen: str | None,
    output: Path | None,
    params: tuple[str, ...],
    as_of: tuple[str, ...],
    role: str | None,
    limit: int | None,
    *,
    verify: bool,
) -> None:
    """Query the tables in SQL (DataFusion's dialect, close to PostgreSQL's). Queries cannot change anything."""
    kind = chosen or _by_ending(output)
    if kind == "parquet" and output is None:
        raise RanklakeError("Parquet is not for a terminal", where="--format", mend="name a file with --output")
    values = dict(_param(item) for item in params)
    consumer = consumer_named(context.config.query.consumer)
    lake = context.open_lake()
    seen_by = role_of(context, lake, role)
    found = ask(lake, text, values, limit, as_of=as_of, role=seen_by, verify=verify)
    rows = found.rows
    for said in dict.fromkeys(one.said for one in used(found)):
        tell(said, err=True)
    _give(rows, kind, output)
    if context.config.query.log and (why := note(lake, asked(found, consumer, seen_by))):
        off = "log = false under [query] in ranklake.toml switches it off"
        tell(f"the query log could not be written ({why}); {off}", err=True)


def _give(rows: pa.Table, kind: str, output: Path | None) -> None:
    """Print rows, or write them to a file."""
    if output is None:
        click.echo(_FORMATS[kind](rows), color=True)  # else click takes what looks like colours out of values
        return
    data = as_parquet(rows) if kind == "parquet" else f"{_FORMATS[kind](rows)}\n".encode()
    _write(output, data)
    click.echo(f"{rows.num_rows:,} rows written to {output}", err=True)


def _by_ending(output: Path | None) -> str:
    """Return the format that a file's ending says. Raises `RanklakeError` for one that says none."""
    if output is None:
        return "table"
    kind = _SUFFIXES.get(output.suffix.lower())
    if kind is None:
        mend = f"end it in {', '.join(_SUFFIXES)}, or say --format"
        raise RanklakeError(f"cannot write {output.suffix or 'a file without an ending'}", where="--output", mend=mend)
    return kind


def _param(item: str) -> tuple[str, pa.Scalar]:
    """Return name and value of ``name=value`` or ``name:type=value``."""
    head, equals, value = item.partition("=")
    name, _, kind = head.partition(":")
    if not name or not equals:
        raise RanklakeError(f"{item!r} is not NAME=VALUE", where="--param", mend="write --param run=demo-1")
    if kind and kind not in _TYPES:
        raise RanklakeError(f"unknown type {kind!r}", where=f"--param {name}", mend=did_you_mean(kind, _TYPES))
    for candidate in [kind] if kind else ["int", "float", "text"]:
        try:
            return name, pa.scalar(_TYPES[candidate](value))
        except OverflowError as error:
            mend = f"write --param {name}:text=… if it is not a {candidate}"
            raise RanklakeError("the value is larger than 64 bits hold", where=f"--param {name}", mend=mend) from error
        except ValueError:
            continue
    raise RanklakeError(f"the value is not a {kind}", where=f"--param {name}", mend=f"write a {kind}, or another type")


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
