"""Evaluates the expectations of users' suites that the scan cannot compute, in Great Expectations, by partition.

A child process evaluates them. It returns lines of JSON; only their form is trusted.
"""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Event, Timer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.plans.plan import append_own
from ranklake.lake.store.scratch import scratch
from ranklake.lake.tables.live_files import DamagedFileError
from ranklake.lake.tables.read import read_batches
from ranklake.printable import printable, printable_name
from ranklake.quality.engine import gx_version
from ranklake.quality.results import AGAIN, RESULTS, CheckResult, last_checks
from ranklake.quality.suite import KINDS, OWN
from ranklake.quality.suites.folder import SuiteFolder, UserSuite, read_folder, suite_of
from ranklake.quality.suites.own import OwnSuites, core_types, problems

if TYPE_CHECKING:
    from datetime import date

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.quality.suite import Expectation, Suite
    from ranklake.quality.tally import Partition, Tally


START_S: Final = 180.0
"""Time limit for the start: the import of Great Expectations, and the run of users' files."""
_ANSWER_BYTES: Final = 64 * 2**20
_TEXT: Final = 300
_PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "TZ")


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one expectation on one partition.

    Attributes
    ----------
    success
        Whether it is met; None if there is no verdict.
    checked, failed
        Number of rows checked and failed, if the expectation is about rows.
    observed
        An observed number, for operational columns.
    error
        Why there is no verdict.
    ended
        Whether the child process ended while it evaluated the expectation.
    """

    success: bool | None
    checked: int | None = None
    failed: int | None = None
    observed: float | None = None
    error: str = ""
    ended: bool = False


class _GoneError(Exception):
    """The child process ended or did not answer in time."""


class SuiteProcess:
    """The child process that evaluates users' suites, as a context manager.

    It starts at the first request, and again if an expectation ended it.

    Parameters
    ----------
    python
        Paths of users' Python files, which the process runs at its start.
    limit_s
        Time limit of one request, in seconds.
    """

    def __init__(self, python: Sequence[str], limit_s: float, start_s: float = START_S) -> None:
        self._python, self._limit_s, self._start_s = tuple(python), limit_s, start_s
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch = contextlib.ExitStack()
        self._rows = b""
        self._has_rows = False
        self._refused = ""
        self.files: Mapping[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def take(self, rows: pa.Table) -> None:
        """Set the rows for the next requests. They are held in memory, here and in the child process."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        self._rows, self._has_rows = sink.getvalue().to_pybytes(), False

    def suites(self) -> tuple[list[Any], str]:
        """Return the suites that the Python files define, as JSON values, and an error text if that failed."""
        try:
            suites = self._ask({"suites": True}).get("suites")
        except _GoneError as gone:
            return [], str(gone)
        return (suites, "") if isinstance(suites, list) else ([], "no answer")

    def judge(self, kind: str, kwargs: Mapping[str, Any], *, classified: bool) -> Answer:
        """Evaluate one expectation on the rows. Errors are part of the answer; nothing raises."""
        try:
            self._start()
            if not self._has_rows:
                self._send({"rows": len(self._rows)}, self._rows)
                self._has_rows = True
            reply = self._ask({"type": kind, "kwargs": dict(kwargs), "classified": classified})
        except _GoneError as gone:
            return Answer(None, error=str(gone), ended=True)
        return _answer(reply)

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._start()
        return self._exchange(request, self._limit_s)

    def _start(self) -> None:
        """Start the process if it does not run. Raises `_GoneError`; a failed start is not repeated."""
        if self._process is not None:
            return
        if self._refused:
            raise _GoneError(self._refused)
        try:
            self._process = self._spawn()
        except OSError as error:
            self._refused = f"users' suites could not be started ({type(error).__name__})"
            raise _GoneError(self._refused) from None
        try:
            reply = self._exchange(None, self._start_s)
        except _GoneError as gone:
            self._refused = f"users' suites could not be started: {gone}"
            raise _GoneError(self._refused) from None
        files = reply.get("files")
        self.files = (
            {str(name): printable(str(error))[:_TEXT] for name, error in files.items()}
            if isinstance(files, dict)
            else {}
        )

    def _spawn(self) -> "subprocess.Popen[bytes]":
        """Start the process in a scratch folder. Raises `OSError`, such as when memory or disk space is exhausted."""
        place = str(self._scratch.enter_context(scratch("suites")))
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {"HOME": place, "TMPDIR": place, "GX_ANALYTICS_ENABLED": "false"}
        return subprocess.Popen(
            [sys.executable, "-I", "-B", "-m", "ranklake.quality.suites.child", *self._python],
            cwd=place,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _send(self, request: Mapping[str, Any], rows: bytes = b"") -> None:
        assert self._process is not None, "not started"
        assert self._process.stdin is not None, "started with a pipe"
        timed_out = Event()
        timer = Timer(max(self._limit_s, self._start_s), self._kill, [self._process, timed_out])
        timer.daemon = True
        timer.start()
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n" + rows)
            self._process.stdin.flush()
        except OSError:
            self._end()
            raise _GoneError("its process ended") from None
        finally:
            timer.cancel()

    def _exchange(self, request: Mapping[str, Any] | None, limit_s: float) -> dict[str, Any]:
        """Send a request, if given, and return the answer. Raises `_GoneError` after ending the process."""
        process = self._process
        assert process is not None, "not started"
        assert process.stdout is not None, "started with a pipe"
        if request is not None:
            self._send(request)
        timed_out = Event()
        timer = Timer(limit_s, self._kill, [process, timed_out])
        timer.daemon = True
        timer.start()
        try:
            line = process.stdout.readline(_ANSWER_BYTES)
        finally:
            timer.cancel()
        try:
            reply = json.loads(line) if line else None
        except ValueError:
            reply = None
        if timed_out.is_set() or not isinstance(reply, dict):
            self._end()
            raise _GoneError(f"killed after {limit_s:g} s" if timed_out.is_set() else "its process ended")
        return reply

    @staticmethod
    def _kill(process: "subprocess.Popen[bytes]", timed_out: Event) -> None:
        timed_out.set()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    def _end(self) -> None:
        """End the process and remove its folder, if they exist."""
        process, self._process, self._has_rows = self._process, None, False
        if process is not None:
            self._kill(process, Event())
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # unwritten data has no reader
                        pipe.close()
        self._scratch.close()


def _answer(reply: Mapping[str, Any]) -> Answer:
    success, error = reply.get("success"), reply.get("error")
    if not isinstance(success, bool):
        return Answer(None, error=printable(error)[:_TEXT] if isinstance(error, str) and error else "no verdict")
    checked, failed = (_count(reply.get(name)) for name in ("checked", "failed"))
    observed = reply.get("observed")
    is_number = isinstance(observed, int | float) and not isinstance(observed, bool)
    return Answer(success, checked, failed, float(observed) if is_number else None)  # type: ignore[arg-type]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


_COLUMNS: Final = 40
"""Tables with more columns are sampled with fewer rows, so that the number of values is bounded."""
_BATCH_ROWS: Final = 100_000

_BY_ROW: Final = ("expect_column_values_", "expect_column_value_lengths_", "expect_column_pair_values_")
_ORDERED: Final = frozenset({f"expect_column_values_to_be_{word}" for word in ("unique", "increasing", "decreasing")})
_SAMPLED: Final = frozenset(
    {
        *(f"expect_column_{word}_to_be_between" for word in ("mean", "median", "stdev", "quantile_values")),
        *("expect_column_proportion_of_non_null_values_to_be_between", "expect_column_distinct_values_to_be_in_set"),
        *("expect_column_kl_divergence_to_be_less_than", "expect_column_value_z_scores_to_be_less_than"),
        *("expect_multicolumn_sum_to_equal", "expect_multicolumn_values_to_be_equal"),
        *("expect_multicolumn_values_to_be_unique", "expect_select_column_values_to_be_unique_within_record"),
        *("expect_column_to_exist", "expect_column_type_to_be", "expect_table_column_count_to_be_between"),
        *("expect_table_column_count_to_equal", "expect_table_columns_to_match_ordered_list"),
        "expect_table_columns_to_match_set",
    }
)
"""Further expectations that may be evaluated on a sample: a verdict on it is one on all rows. No sums or extremes."""


class SuiteRun:
    """The users' suites during one run of checks, as a context manager; empty without a configured folder.

    Raises `ranklake.quality.suites.folder.SuitesError` if the configured folder does not exist.
    """

    def __init__(self, lake: "Lake") -> None:
        section = lake.config.quality
        code = section.suites_code_sha256
        folder = read_folder(section.suites, lake.store.storage, code) if section.suites else SuiteFolder()
        self._store, self._most = lake.store, section.suite_rows
        self._process = SuiteProcess(folder.python, section.suite_timeout_s)
        self._ended: dict[str, date] = {}
        defined = self._python_suites() if folder.defines else ()
        self.suites = OwnSuites((*folder.suites, *defined), folder, (section.suite_timeout_s, section.suite_rows))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.__exit__(kind, error, trace)

    def _python_suites(self) -> tuple[UserSuite, ...]:
        """Return the suites that Python files define, and a problem for each file that cannot be run."""
        values, error = self._process.suites()
        suites = [_defined_as(value, f"python.{number}") for number, value in enumerate(values)]
        failed = self._file_errors()
        broken = [UserSuite(name, name.partition(".")[0], problem=f"not run: {why}") for name, why in failed.items()]
        return (*suites, *broken, *([UserSuite("python", "python", problem=error)] if error else []))

    def _file_errors(self) -> dict[str, str]:
        """Return the errors of Python files that could not be run, by file name."""
        return {printable_name(path.rpartition("/")[2]): error for path, error in self._process.files.items()}

    def judge(self, contract: "Contract", suite: "Suite", part: "Partition", tallies: "list[Tally]") -> None:
        """Evaluate the expectations of a partition that the scan does not compute.

        They are errored if the partition cannot be read. An expectation that ended the child process is not evaluated
        on the remaining partitions of this run.
        """
        requests = self._open(suite, tallies)
        if not requests:
            return
        try:
            rows = self._rows(contract, part)
        except DamagedFileError as error:
            reason = f"a data file cannot be read: {error}"
        except (OSError, pa.ArrowException) as error:  # no message: it may quote a value
            reason = f"a data file cannot be read ({type(error).__name__})"
        else:
            self._evaluate(requests, rows, part)
            return
        for _, tally in requests:
            tally.error = f"{reason}{AGAIN}"

    def _open(self, suite: "Suite", tallies: "list[Tally]") -> "list[tuple[Expectation, Tally]]":
        """Return the expectations to evaluate; those that ended the process before become errored."""
        pairs = zip(suite.expectations, tallies, strict=True)
        requests = [(expectation, tally) for expectation, tally in pairs if expectation.asked and not tally.absent]
        for expectation, tally in requests:
            if expectation.check.id in self._ended:
                tally.error = f"not asked: its process ended on {self._ended[expectation.check.id]}{AGAIN}"
        return [(expectation, tally) for expectation, tally in requests if not tally.error]

    def _evaluate(self, requests: "list[tuple[Expectation, Tally]]", rows: pa.Table, part: "Partition") -> None:
        self._process.take(rows)
        for expectation, tally in requests:
            request: dict[str, Any] = json.loads(expectation.asked)
            if rows.num_rows < part.rows and not _may_be_sampled(request["type"]):
                sample = f"{rows.num_rows:,} of {part.rows:,} rows"
                tally.error = f"cannot be judged on a sample of {sample}; raise suite_rows under [quality]"
                continue
            answer = self._process.judge(request["type"], request["kwargs"], classified=expectation.classified)
            if answer.ended:
                self._ended[expectation.check.id] = part.day
            _add(tally, answer, rows.num_rows, part.rows)
            if "NotFound" in tally.error:  # it may be defined in a file that was not run
                tally.error += "".join(f"; {name} was not run: {why}" for name, why in self._file_errors().items())

    def _rows(self, contract: "Contract", part: "Partition") -> pa.Table:
        """Return the partition's rows; for a large partition every n-th row."""
        names = list(contract.names)
        most = max(1, min(self._most, self._most * _COLUMNS // max(1, len(names))))
        step = -(-part.rows // most) if part.rows else 1
        parts: list[pa.Table] = []
        first = 0
        for rows in read_batches(self._store, contract, part.files, names, batch_rows=min(_BATCH_ROWS, most)):
            # `take` copies, so that dictionaries and views of the batch are freed
            parts.append(rows if step == 1 else rows.take(pa.array(range(first, rows.num_rows, step), pa.int64())))
            first = (first - rows.num_rows) % step
        return pa.concat_tables(parts) if parts else arrow_schema(contract).empty_table()


def _defined_as(value: object, name: str) -> UserSuite:
    if isinstance(value, str):  # the error of the conversion to JSON
        return UserSuite(name, "python", problem=f"not a suite: {printable_name(value)[:_TEXT]}")
    return suite_of(value, name)


def _may_be_sampled(kind: str) -> bool:
    """Whether a type may be evaluated on a sample; True for users' types, whose meaning is unknown."""
    by_row = kind.startswith(_BY_ROW) and kind not in _ORDERED
    return by_row or kind in _SAMPLED or kind not in core_types()


def own_suites(lake: "Lake") -> OwnSuites:
    """Return users' suites without evaluating them. Raises `ranklake.quality.suites.folder.SuitesError`."""
    with SuiteRun(lake) as suite_run:
        return suite_run.suites


def _add(tally: "Tally", answer: "Answer", sampled_rows: int, partition_rows: int) -> None:
    """Write an answer to the tally; `sampled_rows` of `partition_rows` were evaluated."""
    if answer.success is None:
        tally.error = f"{answer.error}{AGAIN}" if answer.ended else answer.error
        return
    tally.passed = answer.success
    tally.checked = sampled_rows if answer.checked is None else answer.checked
    failed = answer.failed
    tally.failed = min((0 if answer.success else sampled_rows) if failed is None else failed, tally.checked)
    if answer.observed is not None:
        tally.seen.append(f"{answer.observed:.6g}")
    if sampled_rows < partition_rows:
        tally.seen.append(f"a sample of {sampled_rows:,} of {partition_rows:,} rows")


_NO_FILES: Final = hashlib.sha256().hexdigest()


def record_unplaced(
    lake: "Lake", own: OwnSuites, check_run: str, when: datetime
) -> tuple[tuple[CheckResult, ...], tuple[CheckResult, ...]]:
    """Record suites that belong to no table as errored, unless that is recorded; return new and earlier results.

    The results belong to the table ``quality_results``, as there is no other.
    """
    tables = [name for name, contract in lake.contracts().items() if contract.kind in KINDS]
    faults = problems(own, tables)
    if not faults:
        return (), ()
    digest = hashlib.sha256(json.dumps(faults, sort_keys=True).encode()).hexdigest()[:12]
    suite = f"unplaced suites {digest}"
    earlier = [contract for contract in last_checks(lake, [RESULTS]).values() if contract.suite == suite]
    if earlier:
        return (), earlier[-1].open
    results = tuple(
        CheckResult(
            check_run=check_run,
            table=RESULTS,
            partition_date=when.date(),
            table_version=0,
            suite=suite,
            expectation="UserSuite",
            column=None,
            check_id=f"{OWN}{name}",
            severity="error",
            status="errored",
            rows_checked=None,
            rows_failed=None,
            failed_ratio=None,
            observed=None,
            message=fault,
            quarantined_rows=0,
            gx_version=gx_version(),
            files_sha256=_NO_FILES,
            ts=when,
            on_fail="record",
        )
        for name, fault in sorted(faults.items())
    )
    append_own(lake.tables, RESULTS, lambda _: [result.row() for result in results])
    return results, ()
