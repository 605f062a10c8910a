"""Expectations of users that are wrong in themselves, that name values, or whose verdict depends on the moment."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from segments import step_rows

from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.store.lake_config import QualitySection
from ranklake.quality.check import run_checks
from ranklake.quality.results import last_checks
from ranklake.quality.suites.asking import SuiteProcess, own_suites
from ranklake.quality.suites.folder import UserSuite, read_folder
from ranklake.quality.suites.own import OwnSuites

CONTRACTS = load_contracts()
STEPS, RUNS = CONTRACTS["steps"], CONTRACTS["runs"]
NOT_NULL = "expect_column_values_to_not_be_null"
LONE = json.loads('"\\ud800"')
SLOW = """
import time
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import ColumnMapExpectation
from great_expectations.expectations.metrics import ColumnMapMetricProvider, column_condition_partial

class MetricSlow(ColumnMapMetricProvider):
    condition_metric_name = "column_values.slow"
    condition_value_keys = ()

    @column_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column, **kwargs):
        while True:
            time.sleep(0.01)

class ExpectColumnValuesSlow(ColumnMapExpectation):
    map_metric = "column_values.slow"
    success_keys = ("mostly",)
"""


def of(contract, *raw):
    """Return the expectations of a suite for a table."""
    return OwnSuites((UserSuite(f"{contract.table}.mine", contract.table, raw),)).of(contract)


def told(kind, **kwargs):
    return {"type": kind, "kwargs": kwargs, "meta": {}}


@pytest.mark.parametrize(
    "raw",
    [
        told("expect_column_values_to_be_between", min_value=0),
        told("expect_column_values_to_be_in_set", value_set=["a"]),
        told("expect_column_values_to_match_regex", regex="a"),
        told("expect_column_value_lengths_to_equal", value=1),
        told(
            "expect_column_pair_values_a_to_be_greater_than_b",
            column_A="step",
            or_equal=True,
            ignore_row_if="either_value_is_missing",
        ),
        told(NOT_NULL),
        told("expect_column_values_to_be_unique"),
        told("expect_compound_columns_to_be_unique", column_list=[]),
        {**told(NOT_NULL, column="run"), "severity": ["x"]},
        {**told(NOT_NULL, column="run"), "meta": {"severity": {}, "on_fail": {}}},
        told("expect_column_values_to_match_regex", column="run", regex=LONE),
        told("expect_column_values_to_be_in_set", column="run", value_set=[LONE]),
        told("expect_column_mean_to_be_between", column="step", min_value=LONE),
        told(NOT_NULL, column=LONE),
        told(LONE),
    ],
)
def test_a_malformed_expectation_takes_nothing_with_it(raw):
    """It is left to Great Expectations, which says what it lacks, or is refused; the one after it is scanned."""
    first, second = of(STEPS, raw, told(NOT_NULL, column="loss"))
    assert first.refused or first.asked or raw.get("severity")
    assert second.is_scanned
    for one in (first, second):
        json.dumps([one.asked, one.refused, one.expected, one.check.id], ensure_ascii=False).encode()
    if LONE in json.dumps(raw, ensure_ascii=False):
        assert first.refused


@pytest.mark.parametrize(
    "text",
    [
        "step > @data.size",
        "step > 1 or @pd.io.common.os.getpid() > 1",
        "step.__init__.__globals__ > 1",
        "step.to_csv('x')",
        "step.\uff54o_csv('x')",
        "step.map(run.to_csv)",
        "step @ pd > 1",
        "`step` > 1 or `a` @pd.x `b`",
        "'`' > run or @pd.x or '`' > run",
        "step > (y := 1)",
        "[step for step in run]",
        "f'{step}' == run",
        "__builtins__ > 1",
        "step > 1\n@pd.x",
        "(" * 300 + "step" + ")" * 300,
    ],
)
def test_a_row_condition_that_could_be_code_is_refused(text):
    """Whatever reaches beyond columns is put to nobody; so is a column's name that would end its own quotes."""
    (one,) = of(STEPS, told(NOT_NULL, column="step", row_condition=text, condition_parser="pandas"))
    assert "could be code" in one.refused
    leaf = {"type": "nullity", "column": {"name": f"`{text}`"}, "is_null": True}
    (one,) = of(STEPS, told(NOT_NULL, column="step", row_condition={"type": "and", "conditions": [leaf, leaf]}))
    assert "could be code" in one.refused


@pytest.mark.parametrize(
    "text",
    [
        "step > 40 & attempt == 0",
        "(step > 40) | ~(attempt == 0)",
        "`step` > 40",
        "40 < step < 50",
        "run.str.contains('a@b', na=False)",
        "step.notnull() and not step == 3",
        "ts > '2026-03-01' # late",
        "run in ['its', \"x'y\"]",
        "step % 2 == 0",
        "abs(step) > 3",
    ],
)
def test_a_row_condition_on_columns_is_not_refused(text):
    """What compares columns, and asks the usual of them, is judged."""
    (one,) = of(STEPS, told(NOT_NULL, column="step", row_condition=text, condition_parser="pandas"))
    assert not one.refused


def test_a_classified_column_is_known_by_all_its_spellings():
    """Python reads letters of another width as the same name, so of such a condition's error nothing is told."""
    text = "\uff55ser.astype('int64') > 0"
    (one,) = of(RUNS, told(NOT_NULL, column="run", row_condition=text, condition_parser="pandas"))
    assert one.classified


@pytest.mark.parametrize("text", ["(step > 40\n and attempt == 0)", "(step > 40)\r"])
def test_a_row_condition_of_several_lines_is_theirs(text):
    """The scan takes no condition that pandas refuses."""
    (one,) = of(STEPS, told(NOT_NULL, column="step", row_condition=f"({text})", condition_parser="pandas"))
    assert not one.is_scanned


def test_of_classified_columns_no_parameter_is_told():
    """A result says how many values a set has, not which; other columns' parameters are cut."""
    words = ["alice", "bob"]
    found = of(
        RUNS,
        told("expect_column_values_to_be_in_set", column="user", value_set=words),
        told("expect_column_values_to_match_regex", column="user", regex="^alice$"),
        told("expect_column_value_lengths_to_equal", column="user", value=4711),
    )
    for one in found:
        assert (one.is_scanned, one.classified) == (True, True)
        for text in (one.wrong, one.expected, one.promised):
            assert not any(word in text for word in ("alice", "bob", "4711")), text
    assert found[0].wrong == "user not one of 2 values"
    (long,) = of(STEPS, told("expect_column_values_to_be_in_set", column="run", value_set=["x" * 9] * 100))
    assert len(long.wrong) < 310


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        ("expect_table_row_count_to_be_between", {"max_value": 5.5}),
        ("expect_column_value_lengths_to_be_between", {"column": "run", "min_value": 0.5}),
    ],
)
def test_bounds_of_counts_that_are_not_whole_are_not_translated(kind, kwargs):
    """Great Expectations takes their whole part."""
    (one,) = of(STEPS, told(kind, **kwargs))
    assert one.asked
    (one,) = of(STEPS, told(kind, **{name: 5.0 if name != "column" else kept for name, kept in kwargs.items()}))
    assert one.is_scanned


def test_a_key_of_required_columns_is_scanned():
    """No row can lack a part of it, so all ways to ignore such rows are one."""
    required = [one.name for one in STEPS.columns if one.required and one.type == "string"][:1]
    (one,) = of(STEPS, told("expect_compound_columns_to_be_unique", column_list=["step", *required]))
    full = replace(STEPS, columns=tuple(replace(one, required=True) for one in STEPS.columns))
    (sure,) = of(full, told("expect_compound_columns_to_be_unique", column_list=["step", *required]))
    assert sure.is_scanned
    assert one.is_scanned is STEPS.column("step").required


def test_limits_are_part_of_a_question():
    """With other limits a suite is another one, as far as Great Expectations is asked."""
    suite = UserSuite("steps.mine", "steps", (told("expect_column_mean_to_be_between", column="step", max_value=1),))
    asked = {OwnSuites((suite,), limits=limits).of(STEPS)[0].asked for limits in ((60.0, 5), (61.0, 5), (60.0, 6))}
    assert len(asked) == 3


def test_files_that_cannot_be_read_are_named(tmp_path):
    """A Python file whose bytes do not come, and one whose name is no text."""
    (tmp_path / "broken.py").symlink_to("/proc/self/mem")
    Path(os.fsdecode(bytes(tmp_path) + b"/b\xff.py")).write_text("")
    Path(os.fsdecode(bytes(tmp_path) + b"/steps.\xff.json")).write_text("{")
    folder = read_folder(str(tmp_path))
    assert [one.name for one in folder.suites] == ["steps.\\udcff", "broken.py"]
    assert [one.problem for one in folder.suites] == ["not a suite: it is no JSON", "not read (OSError)"]
    assert len(folder.python) == 1


def test_a_process_that_cannot_be_started_is_an_answer(monkeypatch, tmp_path):
    """No room for a scratch folder errors the question, not the check."""
    (tmp_path / "full").write_text("no folder")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "full"))
    with SuiteProcess((), 5.0) as one:
        found = one.judge(NOT_NULL, {"column": "x"}, classified=False)
    assert (found.success, found.ended) == (None, True)
    assert "could not be started (FileExistsError)" in found.error


def checked(site, folder, limit_s=60.0, rows=500_000):
    """Check a lake; return what was checked, and results of suites by type."""
    lake = site.lake.configured(quality=QualitySection(str(folder), suite_timeout_s=limit_s, suite_rows=rows))
    report = run_checks(lake)
    own = [one for one in report.results if one.check_id.startswith("suite:")]
    return report, {one.check_id.split(":")[2]: one for one in own if one.check_id.count(":") > 1}


def put(folder, *raw):
    """Write a suite for ``steps``."""
    folder.mkdir(exist_ok=True)
    (folder / "mine.json").write_text(json.dumps({"name": "steps.mine", "expectations": raw}))


@pytest.mark.slow
def test_what_may_pass_is_judged_at_the_next_check_once(site, tmp_path):
    """A question that was killed makes its partition due; one that always fails does not."""
    site.bring(step_rows(10))
    folder = tmp_path / "suites"
    put(folder, told(NOT_NULL, column="nothing"))
    checked(site, folder)
    assert not any(one.errored for one in last_checks(site.lake, ["steps"]).values())
    (folder / "slow.py").write_text(SLOW)
    put(folder, told("expect_column_values_slow", column="step"), told("expect_nothing"))
    report, found = checked(site, folder, 2.0)
    killed = found["expect_column_values_slow"]
    assert (report.partitions, killed.status) == (1, "errored")
    assert killed.message == "killed after 2 s; judged again at the next check"
    again, found = checked(site, folder, 2.0)
    assert (again.partitions, found["expect_column_values_slow"].status) == (1, "errored")


@pytest.mark.slow
def test_a_sample_gives_no_verdict_on_sums_and_repetitions(site, tmp_path):
    """They are errored by name; rows and means are judged."""
    site.bring(step_rows(100))
    folder = tmp_path / "suites"
    kinds = ("sum", "max", "unique_value_count", "mean")
    raw = [told(f"expect_column_{one}_to_be_between", column="step", min_value=0) for one in kinds]
    ups = [told(f"expect_column_values_to_be_{one}", column="loss") for one in ("unique", "increasing", "null")]
    gone = told("expect_column_to_exist", column="nothing")
    listed = told("expect_table_columns_to_match_ordered_list", column_list=["nothing"])
    put(folder, *raw, *ups, gone, listed)
    _, found = checked(site, folder, rows=25)
    status = {name.removeprefix("expect_"): one.status for name, one in found.items()}
    assert status == {
        **{f"column_{one}_to_be_between": "errored" for one in kinds[:3]},
        "column_mean_to_be_between": "passed",
        "column_values_to_be_unique": "errored",
        "column_values_to_be_increasing": "errored",
        "column_values_to_be_null": "failed",
        "column_to_exist": "failed",
        "table_columns_to_match_ordered_list": "failed",
    }
    assert "raise suite_rows under [quality]" in found["expect_column_sum_to_be_between"].message


PYTHON = """
import great_expectations.expectations as gxe
from great_expectations.core import ExpectationSuite
from helpers import WORDS

class ExpectColumnMaxToBeBetween(gxe.ExpectColumnMaxToBeBetween):
    pass

SUITE = ExpectationSuite(name="steps.set", expectations=[
    gxe.ExpectColumnValuesToBeInSet(column="run", value_set=WORDS),
    ExpectColumnMaxToBeBetween(column="step", max_value=5),
])
"""


@pytest.mark.slow
def test_python_files(site, tmp_path):
    """Sets have one order, files import each other, one that fails says why; no number of a foreign class."""
    site.bring(step_rows(10))
    folder = tmp_path / "suites"
    folder.mkdir()
    (folder / "helpers.py").write_text(f"WORDS = {set('abcdefghijklmnop')}\n")
    (folder / "mine.py").write_text(PYTHON)
    (folder / "wrong.py").write_text("raise ValueError('why\\x1b[2J')  # ExpectationSuite")
    lake = site.lake.configured(quality=QualitySection(str(folder)))
    first, second = (own_suites(lake).of(STEPS) for _ in range(2))
    assert first == second
    assert len(first) == 2
    report, found = checked(site, folder)
    assert found["expect_column_values_to_be_in_set"].status == "failed"
    maximum = found["expect_column_max_to_be_between"]
    assert (maximum.status, maximum.observed) == ("failed", None)
    (wrong,) = [one for one in report.results if one.check_id == "suite:wrong.py"]
    assert wrong.message == "not run: ValueError: why\\x1b[2J"


CHANGES = SLOW.replace("while True:\n            time.sleep(0.01)", "column.iloc[:] = 0\n        return column == 0")


@pytest.mark.slow
def test_what_an_expectation_changes_the_next_does_not_see(tmp_path):
    """It may write to its rows; they are its own."""
    (tmp_path / "changes.py").write_text(CHANGES)
    with SuiteProcess((str(tmp_path / "changes.py"),), 60.0) as one:
        one.take(pa.table({"x": [1.0, 3.0]}))
        changed = one.judge("expect_column_values_slow", {"column": "x"}, classified=False)
        mean = one.judge("expect_column_mean_to_be_between", {"column": "x", "min_value": 2}, classified=False)
    assert (changed.success, mean.success, mean.observed) == (True, True, 2.0)
