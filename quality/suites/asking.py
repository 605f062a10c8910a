"""Runs the expectations of users' suites that no scan computes: Great Expectations, one partition at a time.

Nothing that it does reaches this process but lines of JSON, which are not believed beyond their form.
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
"""For its start: the import of Great Expectations, and whatever users' files do when they are run."""
_ANSWER_BYTES: Final = 64 * 2**20
_TEXT: Final = 300
_PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "TZ")


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one expectation.

    Attributes
    ----------
    success
        The verdict; None if there is none.
    checked, failed
        Rows judged and rows that failed, where it is about rows.
    observed
        A number that was observed, of operational columns.
    error
        Why there is no verdict.
    ended
        Whether the process did not survive the question.
    """

    success: bool | None
    checked: int | None = None
    failed: int | None = None
    observed: float | None = None
    error: str = ""
    ended: bool = False


class _GoneError(Exception):
    """The process did not answer."""


class SuiteProcess:
    """The process, as a context. It starts with the first question, and again after one that it did not survive.

    Parameters
    ----------
    python
        Users' Python files, which it runs when it starts.
    limit_s
        How long it may take for one question.
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
        """Take the rows that the next questions are about. They stay in memory, here and there."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        self._rows, self._has_rows = sink.getvalue().to_pybytes(), False

    def suites(self) -> tuple[list[Any], str]:
        """Return the suites that the Python files define, as JSON values, and why there are none where it failed."""
        try:
            suites = self._ask({"suites": True}).get("suites")
        except _GoneError as gone:
            return [], str(gone)
        return (suites, "") if isinstance(suites, list) else ([], "no answer")

    def judge(self, kind: str, kwargs: Mapping[str, Any], *, classified: bool) -> Answer:
        """Judge the rows by one expectation; nothing that it does raises."""
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
        """Start it unless it runs. Raises `_GoneError`; after a start that failed it is not tried again."""
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
        """Start it in a folder of its own. Raises `OSError`, as where no memory, process or space is left."""
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
        over = Event()
        timer = Timer(max(self._limit_s, self._start_s), self._kill, [self._process, over])
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
        """Send a request, if there is one, and return the answer. Raises `_GoneError`: then the process is gone."""
        process = self._process
        assert process is not None, "not started"
        assert process.stdout is not None, "started with a pipe"
        if request is not None:
            self._send(request)
        over = Event()
        timer = Timer(limit_s, self._kill, [process, over])
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
        if over.is_set() or not isinstance(reply, dict):
            self._end()
            raise _GoneError(f"killed after {limit_s:g} s" if over.is_set() else "its process ended")
        return reply

    @staticmethod
    def _kill(process: "subprocess.Popen[bytes]", over: Event) -> None:
        over.set()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    def _end(self) -> None:
        """End the process and remove its folder, if they are there."""
        process, self._process, self._has_rows = self._process, None, False
        if process is not None:
            self._kill(process, Event())
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what is still to be written has no reader
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
"""Tables with more columns are given in fewer rows, so that the values stay as many."""
_BATCH_ROWS: Final = 100_000

_BY_ROW: Final = ("expect_column_values_", "expect_column_value_lengths_", "expect_column_pair_values_")
_IN_ORDER: Final = frozenset({f"expect_column_values_to_be_{one}" for one in ("unique", "increasing", "decreasing")})
_OF_A_SAMPLE: Final = frozenset(
    {
        *(f"expect_column_{one}_to_be_between" for one in ("mean", "median", "stdev", "quantile_values")),
        *("expect_column_proportion_of_non_null_values_to_be_between", "expect_column_distinct_values_to_be_in_set"),
        *("expect_column_kl_divergence_to_be_less_than", "expect_column_value_z_scores_to_be_less_than"),
        *("expect_multicolumn_sum_to_equal", "expect_multicolumn_values_to_be_equal"),
        *("expect_multicolumn_values_to_be_unique", "expect_select_column_values_to_be_unique_within_record"),
        *("expect_column_to_exist", "expect_column_type_to_be", "expect_table_column_count_to_be_between"),
        *("expect_table_column_count_to_equal", "expect_table_columns_to_match_ordered_list"),
        "expect_table_columns_to_match_set",
    }
)
"""Expectations beside those by row whose verdict on a sample holds for all rows; not sums, not extremes."""


class SuiteRun:
    """Users' suites of one run of checks, as a context; without a configured folder there are none.

    Raises `ranklake.quality.suites.folder.SuitesError` where the configured folder is not there.
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
        values, wrong = self._process.suites()
        suites = [_defined_as(value, f"python.{number}") for number, value in enumerate(values)]
        failed = self._file_errors()
        broken = [UserSuite(name, name.partition(".")[0], problem=f"not run: {why}") for name, why in failed.items()]
        return (*suites, *broken, *([UserSuite("python", "python", problem=wrong)] if wrong else []))

    def _file_errors(self) -> dict[str, str]:
        """Return the error of each Python file that could not be run, by its name."""
        return {printable_name(path.rpartition("/")[2]): error for path, error in self._process.files.items()}

    def judge(self, contract: "Contract", suite: "Suite", part: "Partition", tallies: "list[Tally]") -> None:
        """Judge a partition by the expectations that no scan computes.

        A partition that cannot be read makes it errored. An expectation that its process did not survive is not put to
        the other partitions of this run.
        """
        asked = self._open(suite, tallies)
        if not asked:
            return
        try:
            rows = self._rows(contract, part)
        except DamagedFileError as error:
            wrong = f"a data file cannot be read: {error}"
        except (OSError, pa.ArrowException) as error:  # no text of theirs: it may quote a value
            wrong = f"a data file cannot be read ({type(error).__name__})"
        else:
            self._put(asked, rows, part)
            return
        for _, tally in asked:
            tally.error = f"{wrong}{AGAIN}"

    def _open(self, suite: "Suite", tallies: "list[Tally]") -> "list[tuple[Expectation, Tally]]":
        """Return what is to be asked; what ended its process before is errored."""
        pairs = zip(suite.expectations, tallies, strict=True)
        asked = [(expectation, tally) for expectation, tally in pairs if expectation.asked and not tally.absent]
        for expectation, tally in asked:
            if expectation.check.id in self._ended:
                tally.error = f"not asked: its process ended on {self._ended[expectation.check.id]}{AGAIN}"
        return [(expectation, tally) for expectation, tally in asked if not tally.error]

    def _put(self, asked: "list[tuple[Expectation, Tally]]", rows: pa.Table, part: "Partition") -> None:
        self._process.take(rows)
        for expectation, tally in asked:
            question: dict[str, Any] = json.loads(expectation.asked)
            if rows.num_rows < part.rows and not _is_of_a_sample(question["type"]):
                sample = f"{rows.num_rows:,} of {part.rows:,} rows"
                tally.error = f"cannot be judged on a sample of {sample}; raise suite_rows under [quality]"
                continue
            answer = self._process.judge(question["type"], question["kwargs"], classified=expectation.classified)
            if answer.ended:
                self._ended[expectation.check.id] = part.day
            _add(tally, answer, rows.num_rows, part.rows)
            if "NotFound" in tally.error:  # it may be defined in a file that was not run
                tally.error += "".join(f"; {name} was not run: {why}" for name, why in self._file_errors().items())

    def _rows(self, contract: "Contract", part: "Partition") -> pa.Table:
        """Return the partition's rows; of a large one each n-th, so that they come from all of it."""
        names = list(contract.names)
        most = max(1, min(self._most, self._most * _COLUMNS // max(1, len(names))))
        every = -(-part.rows // most) if part.rows else 1
        taken: list[pa.Table] = []
        first = 0
        for rows in read_batches(self._store, contract, part.files, names, batch_rows=min(_BATCH_ROWS, most)):
            # of dictionaries and views nothing stays: taken rows are copies
            taken.append(rows if every == 1 else rows.take(pa.array(range(first, rows.num_rows, every), pa.int64())))
            first = (first - rows.num_rows) % every
        return pa.concat_tables(taken) if taken else arrow_schema(contract).empty_table()


def _defined_as(value: object, name: str) -> UserSuite:
    if isinstance(value, str):  # what was raised where it was to become JSON
        return UserSuite(name, "python", problem=f"not a suite: {printable_name(value)[:_TEXT]}")
    return suite_of(value, name)


def _is_of_a_sample(kind: str) -> bool:
    """Whether a type may be judged on a sample; what users' own ones are about is not known, so they may."""
    by_row = kind.startswith(_BY_ROW) and kind not in _IN_ORDER
    return by_row or kind in _OF_A_SAMPLE or kind not in core_types()


def own_suites(lake: "Lake") -> OwnSuites:
    """Return users' suites without running them. Raises `ranklake.quality.suites.folder.SuitesError`."""
    with SuiteRun(lake) as asking:
        return asking.suites


def _add(tally: "Tally", answer: "Answer", given: int, total: int) -> None:
    """Write an answer into a tally."""
    if answer.success is None:
        tally.error = f"{answer.error}{AGAIN}" if answer.ended else answer.error
        return
    tally.passed = answer.success
    tally.checked = given if answer.checked is None else answer.checked
    failed = answer.failed
    tally.failed = min((0 if answer.success else given) if failed is None else failed, tally.checked)
    if answer.observed is not None:
        tally.seen.append(f"{answer.observed:.6g}")
    if given < total:
        tally.seen.append(f"a sample of {given:,} of {total:,} rows")


_NO_FILES: Final = hashlib.sha256().hexdigest()


def record_unplaced(
    lake: "Lake", own: OwnSuites, check_run: str, when: datetime
) -> tuple[tuple[CheckResult, ...], tuple[CheckResult, ...]]:
    """Write down suites of no table as errored, unless the same ones were; return those results, fresh and earlier.

    They stand under ``quality_results`` itself, for lack of a table that they are about.
    """
    tables = [name for name, one in lake.contracts().items() if one.kind in KINDS]
    wrong = problems(own, tables)
    if not wrong:
        return (), ()
    digest = hashlib.sha256(json.dumps(wrong, sort_keys=True).encode()).hexdigest()[:12]
    suite = f"unplaced suites {digest}"
    earlier = [one for one in last_checks(lake, [RESULTS]).values() if one.suite == suite]
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
            message=why,
            quarantined_rows=0,
            gx_version=gx_version(),
            files_sha256=_NO_FILES,
            ts=when,
            on_fail="record",
        )
        for name, why in sorted(wrong.items())
    )
    append_own(lake.tables, RESULTS, lambda _: [one.row() for one in results])
    return results, ()
