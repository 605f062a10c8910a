"""Runs the queries of rules in a child process, which is killed if a query takes too long: nothing else stops one.

    rules ──pickle──▶ process: one query after the other ──one JSON line per query──▶ signals, or a fault

After a timeout, or if the process dies, a new process continues with the next query.
"""

import json
import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, cast

from ranklake.errors import RanklakeError
from ranklake.lake.query.engine import engine
from ranklake.lake.query.errors import one_line
from ranklake.lake.query.scan import Opened
from ranklake.lake.query.sql import READ_ONLY, answer
from ranklake.lake.rollups.incidents import SEVERITIES
from ranklake.pipeline.alerts.state import Signal

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

QUERY_TIMEOUT_S: Final = 30.0
MOST_ROWS: Final = 10_000
"""Most rows of a query; a query with more is refused."""
_MOST_TIMEOUTS: Final = 4
_START_S: Final = 120.0
"""How long a process may take to start, on a busy machine."""
_MAX_TEXT: Final = 500
_MOST_LABELS: Final = 20
_READ_BYTES: Final = 1 << 16
_SERVE: Final = "import sys; from ranklake.pipeline.alerts.rule_queries import serve; serve(int(sys.argv[1]))"
_READY: Final = b"ready\n"


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Rows of a rule's query as signals, or why it has none."""

    signals: tuple[Signal, ...] = ()
    fault: str = ""


def syntax_fault(text: str) -> str:
    """Return the syntax error of a query; empty if there is none. Opens no lake, so tables are not checked."""
    try:
        engine().sql_with_options(text, READ_ONLY)
    except Exception as error:  # noqa: BLE001 - DataFusion raises plain Exception and ValueError alike
        return str(one_line(error, {}, ())) if str(error).startswith("SQL error: ") else ""
    return ""


def run_queries(
    lake: "Lake", role: "Role | None", texts: Mapping[str, str], timeout_s: float = QUERY_TIMEOUT_S
) -> dict[str, QueryResult]:
    """Run the query of each rule as a role. Each may take `timeout_s`, all together four times as long."""
    results: dict[str, QueryResult] = {}
    until = time.monotonic() + _MOST_TIMEOUTS * timeout_s
    while rest := [(name, text) for name, text in texts.items() if name not in results]:
        if time.monotonic() > until:
            fault = "queries of rules before it took too long"
            return results | {name: QueryResult(fault=fault) for name, _ in rest}
        answers, fault = _ask_process(lake, role, rest, timeout_s)
        results |= answers
        if fault:
            results[next(name for name, _ in rest if name not in results)] = QueryResult(fault=fault)
    return results


def _ask_process(
    lake: "Lake", role: "Role | None", rest: Sequence[tuple[str, str]], timeout_s: float
) -> tuple[dict[str, QueryResult], str]:
    """Return the results of a process, and why it did not answer the next query; empty if it answered all."""
    results: dict[str, QueryResult] = {}
    reading, writing = os.pipe()
    path = os.pathsep.join(entry or os.curdir for entry in sys.path)
    with os.fdopen(reading, "rb", buffering=0) as answers:
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(writing)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, pass_fds=[writing], env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        finally:
            os.close(writing)
        with process:
            try:
                with suppress(BrokenPipeError):
                    source = cast("IO[bytes]", process.stdin)
                    source.write(pickle.dumps((lake, role, rest)))
                    source.close()
                lines = _Lines(answers)
                if lines.next_line(_START_S) != _READY:
                    return results, "the process for its query does not start"
                for name, _ in rest:
                    line = lines.next_line(timeout_s)
                    if line is None:
                        return results, f"its query takes longer than {timeout_s:g} s"
                    if not line:
                        return results, "the process of its query died, perhaps for lack of memory"
                    results[name] = _result(json.loads(line), name)
            finally:
                process.kill()
    return results, ""


class _Lines:
    """Lines of a pipe, each read with a time limit."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source, self._rest = source, b""

    def next_line(self, timeout_s: float) -> bytes | None:
        """Return the next line; None after the time limit, empty at the end of the pipe."""
        until = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._source], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            chunk = os.read(self._source.fileno(), _READ_BYTES)
            if not chunk:
                return b""
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line + b"\n"


def _result(facts: Mapping[str, Any], rule: str) -> QueryResult:
    return QueryResult(tuple(Signal(source=rule, **row) for row in facts["rows"]), facts["fault"])


def serve(descriptor: int) -> None:
    """Run the queries in standard input, and write one JSON line for each to a file descriptor."""
    with os.fdopen(descriptor, "wb", buffering=0) as answers:
        lake, role, queries = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the parent process
        opened = Opened(lake)
        _write(answers, _READY)
        for _, text in queries:
            facts: dict[str, Any] = {"rows": [], "fault": ""}
            try:
                rows = answer(lake, text, limit=MOST_ROWS + 1, role=role, opened=opened).rows
                facts["rows"] = list(_rows(rows.to_pylist()))
            except RanklakeError as error:
                facts["fault"] = str(error)
            except Exception as error:  # noqa: BLE001 - an error of one rule must not stop the others
                facts["fault"] = type(error).__name__
            _write(answers, json.dumps(facts).encode() + b"\n")


def _write(answers: IO[bytes], raw: bytes) -> None:
    rest = memoryview(raw)
    while rest:
        rest = rest[answers.write(rest) :]


def _rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield rows as facts of signals. Raises `RanklakeError` for a missing subject or an unknown severity."""
    if len(rows) > MOST_ROWS:
        raise RanklakeError(f"its query gives more than {MOST_ROWS:,} rows", hint="narrow it")
    for row in rows:
        if row.get("subject") is None:
            raise RanklakeError("a row of its query has no subject", hint="name a column: SELECT run AS subject")
        severity = row.get("severity") or "error"
        if severity not in SEVERITIES:
            raise RanklakeError(f"severity {severity!r} is not one of {', '.join(SEVERITIES)}", where="SQL")
        others = {name: value for name, value in row.items() if name not in {"subject", "severity", "message"}}
        labels = {name: _text(value) for name, value in others.items() if value is not None}
        yield {
            "subject": _text(row["subject"]), "severity": severity, "message": _text(row.get("message") or ""),
            "labels": dict(list(labels.items())[:_MOST_LABELS]),
        }  # fmt: skip


def _text(value: object) -> str:
    return str(value)[:_MAX_TEXT]
