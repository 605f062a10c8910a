"""Runs the expectations of users' suites that no scan computes: Great Expectations, one partition at a time."""

import hashlib
import json
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.plans.plan import append_own
from ranklake.lake.tables.live_files import DamagedFileError
from ranklake.lake.tables.read import read_batches
from ranklake.printable import printable_name
from ranklake.quality.engine import gx_version
from ranklake.quality.results import AGAIN, RESULTS, CheckResult, last_checks
from ranklake.quality.suite import OWN
from ranklake.quality.suites.folder import SuiteFolder, UserSuite, read_folder, suite_of
from ranklake.quality.suites.isolated import SuiteProcess
from ranklake.quality.suites.own import OwnSuites, core_types, problems
from ranklake.quality.tables import KINDS

if TYPE_CHECKING:
    from datetime import date

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.quality.suite import Expectation, Suite
    from ranklake.quality.suites.isolated import Answer
    from ranklake.quality.tally import Partition, Tally

_COLUMNS: Final = 40
"""Tables with more columns are given in fewer rows, so that the values stay as many."""
_BATCH_ROWS: Final = 100_000
_TEXT: Final = 300
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
