"""``ranklake sql``."""

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TextIO

import click
import pyarrow as pa

from ranklake.commands.context import role_of, with_context
from ranklake.commands.options import json_option, lake_option, overriding, role_option
from ranklake.commands.writing import write_whole
from ranklake.context import Context
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.logged_ask import ask_logged
from ranklake.lake.query.usage import consumer_named
from ranklake.shell.statements import interruptible, statements_with_lines
from ranklake.views.result_set import as_csv, as_json, as_markdown, as_parquet, as_table, as_vertical
from ranklake.views.tell import tell

_DIGITS: Final = re.compile(r"[-+]?\d[\d_]*")
_MOST_DIGITS: Final = 20


def _bool(text: str) -> bool:
    """Return true or false. Raises `ValueError`."""
    return ("false", "true").index(text.lower()) == 1


def _int(text: str) -> int:
    """Return a whole number of any length. Raises `ValueError`, and `OverflowError` beyond 64 bits."""
    if _DIGITS.fullmatch(text.strip()) and len(text) > _MOST_DIGITS:  # Python refuses thousands of digits
        raise OverflowError
    return int(text)


def _float(text: str) -> float:
    """Return a number. Raises `ValueError`, and `OverflowError` for one that would become infinite."""
    result = float(text)
    if math.isinf(result) and "inf" not in text.lower():
        raise OverflowError
    return result


def _timestamp(text: str) -> datetime:
    """Return an ISO 8601 time as UTC; without a zone, it is UTC. Raises `ValueError`, `OverflowError`."""
    result = datetime.fromisoformat(text)
    return result.replace(tzinfo=UTC) if result.tzinfo is None else result.astimezone(UTC)


TYPES: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
    {"int": _int, "float": _float, "text": str, "bool": _bool, "date": date.fromisoformat, "timestamp": _timestamp}
)


def parameter(item: str) -> tuple[str, pa.Scalar]:
    """Return name and value of ``name=value`` or ``name:type=value``."""
    head, equals, value = item.partition("=")
    name, _, kind = head.partition(":")
    if not name or not equals:
        raise RanklakeError(f"{item!r} is not NAME=VALUE", where="--param", hint="write --param run=demo-1")
    if kind and kind not in TYPES:
        raise RanklakeError(f"unknown type {kind!r}", where=f"--param {name}", hint=did_you_mean(kind, TYPES))
    for candidate in [kind] if kind else ["int", "float", "text"]:
        try:
            return name, pa.scalar(TYPES[candidate](value))
        except OverflowError as error:
            hint = f"write --param {name}:text=… if it is not a {candidate}"
            raise RanklakeError("the value is larger than 64 bits hold", where=f"--param {name}", hint=hint) from error
        except ValueError:
            continue
    raise RanklakeError(f"the value is not a {kind}", where=f"--param {name}", hint=f"write a {kind}, or another type")


_FORMATS: Final[Mapping[str, Callable[[pa.Table], str]]] = MappingProxyType(
    {"table": as_table, "vertical": as_vertical, "markdown": as_markdown, "csv": as_csv, "json": as_json}
)
_FOR_PEOPLE: Final = ("table", "vertical", "markdown")
_SUFFIXES: Final = {
    ".txt": "table",
    ".md": "markdown",
    ".csv": "csv",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_SHEETS: Final = {".xlsx", ".xls", ".ods"}
_EXAMPLE: Final = 'Example: ranklake sql "SELECT rank, count(*) n, avg(step_time_s) FROM steps GROUP BY rank"'


@click.command(epilog=_EXAMPLE)
@click.argument("text", metavar="[SELECT …]", required=False)
@click.option(
    "-f",
    "--file",
    "source",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Read statements from a file, or - for standard input; each ends with a semicolon.",
)
@click.option(
    "--format",
    "chosen",
    type=click.Choice([*_FORMATS, "parquet"]),
    help="Format; default: table, or by the ending of --output.",
)
@json_option
@click.option(
    "--output",
    "--out",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write instead of the terminal.",
)
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME[:TYPE]=VALUE",
    help=f"Value of a $name in the text; repeatable. Types: {', '.join(TYPES)}; default: inferred.",
)
@click.option(
    "--as-of",
    "as_of",
    multiple=True,
    metavar="VERSION|TIME",
    help="Read tables as of a time (UTC) or a table version (12, or steps=12 to name the table); repeatable.",
)
@role_option
@click.option("--verify", is_flag=True, help="First verify the digests of the files that are read.")
@click.option("--rehydrated", is_flag=True, help="Include rows that were restored from archives.")
@click.option("--limit", type=click.IntRange(min=0), help="Maximum number of rows.")
@lake_option
@overriding(
    "--consumer",
    place="query.consumer",
    metavar="NAME",
    help="Consumer, for the log of used columns: a dashboard, a job; default: [query] consumer, or the login name.",
)
@with_context
def sql(  # noqa: PLR0913 - one parameter an option
    context: Context,
    text: str | None,
    source: TextIO | None,
    chosen: str | None,
    output: Path | None,
    params: tuple[str, ...],
    as_of: tuple[str, ...],
    role: str | None,
    *,
    limit: int | None,
    as_json: bool,
    verify: bool,
    rehydrated: bool,
) -> None:
    """Query the tables in SQL (DataFusion's dialect, close to PostgreSQL's). Queries cannot change anything.

    Without a statement: an interactive shell on a terminal; else the statements on standard input.
    """
    if as_json and chosen not in {None, "json"}:
        raise RanklakeError(f"--json and --format {chosen} are two formats", hint="leave one out")
    kind = "json" if as_json else chosen or _by_ending(output)
    if kind == "parquet" and output is None:
        raise RanklakeError("Parquet is not for a terminal", where="--format", hint="name a file with --output")
    values = dict(parameter(item) for item in params)
    consumer = consumer_named(context.config.query.consumer)
    texts = _texts(text, source, kind, output)
    lake = context.open_lake()

    def answer(statement: str) -> pa.Table:
        rows, messages = ask_logged(
            lake,
            statement,
            values,
            limit,
            consumer=consumer,
            role=role_of(context, lake, role),  # a grant may end while the shell is open
            as_of=as_of,
            verify=verify,
            rehydrated=rehydrated,
            is_logged=context.config.query.log,
        )
        tell(*messages, err=True)
        return rows

    if texts is None:
        from ranklake.shell.terminal import interact  # prompt_toolkit, only for terminals

        interact(lake, lake.contracts(), role_of(context, lake, role), answer)
        return
    for number, (line, statement) in enumerate(texts, 1):
        with _with_place(f"statement {number} of {len(texts)}, line {line}" if len(texts) > 1 else ""):
            _give(interruptible(partial(answer, statement)), kind, output)


@contextmanager
def _with_place(place: str) -> Iterator[None]:
    """Add the statement's line to errors if there are several statements."""
    try:
        yield
    except RanklakeError as error:
        error.where = ": ".join(filter(None, (place, error.where)))
        raise


def _texts(text: str | None, source: TextIO | None, kind: str, output: Path | None) -> list[tuple[int, str]] | None:
    """Return the statements to run, each with its line; None for an interactive shell.

    Raises `RanklakeError` if there are none.
    """
    if text is not None and source is not None:
        raise RanklakeError("a statement and a file of statements", where="--file", hint="leave one out")
    if text is None and source is None:
        if sys.stdin.isatty() and sys.stdout.isatty() and output is None:
            return None
        if sys.stdin.isatty():
            hint = 'write ranklake sql "SELECT …", or -f FILE'
            raise RanklakeError("no statement, and no terminal for a shell", hint=hint)
    try:
        result = statements_with_lines(text if text is not None else (source or sys.stdin).read())
    except UnicodeDecodeError as error:
        raise RanklakeError("the statements are not UTF-8", where="--file", hint="save them as UTF-8") from error
    if not result:
        raise RanklakeError("there is no statement", hint='write one: ranklake sql "SELECT * FROM runs LIMIT 5"')
    if len(result) > 1 and (output is not None or kind not in _FOR_PEOPLE):
        message = f"{len(result)} statements, and {output or f'the format {kind}'} takes one"
        raise RanklakeError(message, hint="ask one at a time")
    return result


def _give(rows: pa.Table, kind: str, output: Path | None) -> None:
    """Print rows, or write them to a file."""
    if output is None:
        # With color=True click keeps escape sequences in values.
        click.echo(_FORMATS[kind](rows), color=True)  # noqa: TID251 - a document, as it is
        return
    data = as_parquet(rows) if kind == "parquet" else f"{_FORMATS[kind](rows)}\n".encode()
    write_whole(output, data)
    tell(f"{rows.num_rows:,} rows written to {output}", err=True)


def _by_ending(output: Path | None) -> str:
    """Return the format for a file's ending. Raises `RanklakeError` for an unknown ending."""
    if output is None:
        return "table"
    ending = output.suffix.lower()
    if ending in _SHEETS:
        hint = f"write {output.with_suffix('.csv').name}, which spreadsheets open"
        raise RanklakeError(f"no workbooks ({ending}) are written", where="--output", hint=hint)
    kind = _SUFFIXES.get(ending)
    if kind is None:
        hint = f"end it in {', '.join(_SUFFIXES)}, or say --format"
        raise RanklakeError(f"cannot write {output.suffix or 'a file without an ending'}", where="--output", hint=hint)
    return kind
