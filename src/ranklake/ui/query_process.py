"""A process that answers the queries of a server's viewers, one at a time, as `ranklake sql` does.

It reads a pickled function that opens the lake, then pickled `ViewerQuery`, from standard input, and writes the answer
to each to standard output: bytes, or a `RanklakeError`. It ends when the server's end closes its input.
"""

import csv
import io
import json
import math
import os
import pickle
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa

from ranklake.errors import RanklakeError
from ranklake.insight.logged_ask import ask_logged
from ranklake.lake.query.errors import QueryError
from ranklake.lake.store.lake import Lake
from ranklake.printable import printable, printable_lines
from ranklake.shell.statements import statements
from ranklake.ui.query_pool import LENGTH_BYTES, ViewerQuery
from ranklake.ui.run_table import csv_cell
from ranklake.views.html.site import fault_text
from ranklake.views.json_output import json_text
from ranklake.views.result_set import as_parquet, plain, plain_rows

MOST_ROWS: Final = 10_000
"""Most rows of an answer on the page."""
MOST_FILE_ROWS: Final = 1_000_000
"""Most rows of an answer as a file."""
MOST_BYTES: Final = 16 * 2**20
"""Most bytes of an answer on the page."""
MOST_FILE_BYTES: Final = 64 * 2**20
"""Most bytes of an answer as a file."""
_MOST_CELL: Final = 2_000
_MOST_EXACT: Final = 2**53
_BATCH_ROWS: Final = 10_000
_NICE: Final = 5


def _json(rows: pa.Table, messages: Sequence[str]) -> bytes:
    """Return rows for the page: limited in number, with cut cells, and direction marks escaped."""
    kinds = [_kind(field.type) for field in rows.schema]
    parts: list[str] = []
    size = 0
    shown = rows.slice(0, MOST_ROWS)
    for row in zip(*(column.to_pylist() for column in shown.columns), strict=True):
        parts.append(json.dumps([_cell(value) for value in row], separators=(",", ":"), allow_nan=False))
        size += len(parts[-1])
        if size > MOST_BYTES:
            break
    columns = [
        {"name": printable(name)[:_MOST_CELL], "kind": kind}
        for name, kind in zip(rows.column_names, kinds, strict=True)
    ]
    head = {"columns": columns, "messages": list(map(printable, messages)), "cut": len(parts) < rows.num_rows}
    return f'{json.dumps(head)[:-1]}, "rows": [{",".join(parts)}]}}'.encode()


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "truth"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    return "time" if pa.types.is_timestamp(kind) or pa.types.is_date(kind) else "text"


def _cell(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # NaN is not NULL
    value = plain(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _MOST_EXACT:
        return str(value)  # a browser would round it
    if isinstance(value, (dict, list)):
        value = json_text(value)
    if isinstance(value, str):
        cut = value if len(value) <= _MOST_CELL else f"{value[:_MOST_CELL]}… ({len(value):,} characters)"
        return cut if cut.isprintable() else printable_lines(cut)
    return value


def _csv(rows: pa.Table, _: Sequence[str]) -> bytes:
    """Return rows as CSV, with texts that spreadsheets cannot run as formulas."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(map(csv_cell, rows.column_names))
    for begin in range(0, rows.num_rows, _BATCH_ROWS):
        for row in plain_rows(rows.slice(begin, _BATCH_ROWS)):
            writer.writerow(csv_cell(value) if isinstance(value, str) else value for value in row)
        if sink.tell() > MOST_FILE_BYTES:
            raise _too_large()
    return sink.getvalue().encode("utf-8", "replace")


def _parquet(rows: pa.Table, _: Sequence[str]) -> bytes:
    return as_parquet(rows)


FORMS: Final[Mapping[str, tuple[str, int, Callable[[pa.Table, Sequence[str]], bytes]]]] = {
    "json": ("application/json", MOST_ROWS + 1, _json),
    "csv": ("text/csv; charset=utf-8", MOST_FILE_ROWS + 1, _csv),
    "parquet": ("application/vnd.apache.parquet", MOST_FILE_ROWS + 1, _parquet),
}
"""Formats of an answer: media type, most rows, and function."""


def _too_large() -> QueryError:
    message = f"the answer is larger than {MOST_FILE_ROWS:,} rows or {MOST_FILE_BYTES / 2**20:.0f} MiB"
    return QueryError(message, where="SQL", hint="ask for fewer rows, or with 'ranklake sql --output'")


def answer(lake: Lake, query: ViewerQuery) -> bytes:
    """Return the answer to a query. Raises as `ranklake.insight.logged_ask.ask_logged` does."""
    texts = statements(query.text)
    if len(texts) != 1:
        message = f"{len(texts)} statements are one too many" if texts else "there is no statement"
        raise QueryError(message, where="SQL", hint="write one: SELECT * FROM runs LIMIT 5")
    _, limit, make = FORMS[query.form]
    try:
        rows, messages = ask_logged(
            lake, texts[0], limit=limit, consumer=query.consumer, role=query.role, is_logged=query.is_logged
        )
    except QueryError as error:
        if error.hint.startswith("pass --param"):
            error.hint = "write the value into the statement"
        raise
    if query.form != "json" and (rows.num_rows == limit or rows.nbytes > MOST_FILE_BYTES):
        raise _too_large()
    return make(rows, messages)


def _answer(open_lake: Callable[[], Lake], query: ViewerQuery) -> bytes | RanklakeError:
    try:
        return answer(open_lake(), query)
    except RanklakeError as error:
        return error
    except Exception as error:  # noqa: BLE001 - a bug's text may hold what a role does not see
        text = fault_text(error) if query.role is None else "it cannot be answered"
        return QueryError(text, where="SQL")


def _frames(source: IO[bytes]) -> Iterator[Any]:
    while head := source.read(LENGTH_BYTES):
        yield pickle.loads(source.read(int.from_bytes(head, "big")))  # noqa: S301 - the server's


def _write(sink: IO[bytes], value: object) -> None:
    data = pickle.dumps(value)
    sink.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
    sink.flush()


def main() -> None:
    """Answer queries until the server ends."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    os.nice(_NICE)
    with suppress(OSError):  # out of memory, the system kills a query before the server
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    frames = _frames(os.fdopen(0, "rb"))
    open_lake: Callable[[], Lake] = next(frames)
    _write(sink, value=True)
    queries: queue.SimpleQueue[ViewerQuery] = queue.SimpleQueue()

    def read() -> None:
        for query in frames:
            queries.put(query)
        os._exit(0)  # do not wait for running threads

    threading.Thread(target=read, daemon=True).start()
    while True:
        _write(sink, _answer(open_lake, queries.get()))


if __name__ == "__main__":
    main()
