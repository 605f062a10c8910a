"""Suites that users wrote for Great Expectations: read, compiled, asked, and what goes wrong with them."""

import json

import pyarrow as pa
import pytest
from segments import DAY, step_rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake_config import QualitySection
from ranklake.lake.tables.tables import delta_table
from ranklake.quality.check import run_checks
from ranklake.quality.export.project import table_facts
from ranklake.quality.report.gather import gather
from ranklake.quality.results import AGAIN
from ranklake.quality.suite import compile_suite
from ranklake.quality.suites import asking
from ranklake.quality.suites.asking import SuiteProcess, own_suites
from ranklake.quality.suites.folder import SuitesError
from ranklake.quality.why.explain import explain

LIMIT_S = 20.0
MARKUP = "<script>alert(1)</script>\x1b[2J"
CUSTOM = """
import os, socket, subprocess, time
from pathlib import Path

import great_expectations.expectations as gxe
from great_expectations.expectations.expectation import ColumnMapExpectation
from great_expectations.core import ExpectationSuite
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.metrics import ColumnMapMetricProvider, column_condition_partial

HERE = Path({here!r})

def raises(column):
    raise ValueError(f"saw {{column.iloc[0]}}")

def never_ends(column):
    while True:
        time.sleep(0.01)

def exits(column):
    os._exit(3)

def writes(column):
    (Path.cwd() / "mine.txt").write_text("this may be")
    (HERE / "written.txt").write_text("this may not")

def removes(column):
    (HERE / "precious.txt").unlink()

def connects(column):
    socket.create_connection(("127.0.0.1", 9), timeout=1)

def starts(column):
    subprocess.run(["touch", str(HERE / "written.txt")])

def even(column):
    return column % 2 == 0

for name, does in list(globals().items()):
    if callable(does) and getattr(does, "__module__", None) == __name__ and does.__code__.co_argcount == 1:
        def condition(cls, column, does=does, **kwargs):
            return does(column)
        metric = f"column_values.{{name}}"
        body = {{
            "condition_metric_name": metric,
            "condition_value_keys": (),
            "_pandas": column_condition_partial(engine=PandasExecutionEngine)(condition),
        }}
        type(f"Metric{{name}}", (ColumnMapMetricProvider,), body)
        camel = "ExpectColumnValues" + "".join(word.capitalize() for word in name.split("_"))
        type(camel, (ColumnMapExpectation,), {{"map_metric": metric, "success_keys": ("mostly",)}})

SUITE = ExpectationSuite(
    name="steps.defined", expectations=[gxe.ExpectColumnMinToBeBetween(column="step", min_value=0)]
)
"""


def expectation(kind, severity="critical", meta=None, **kwargs):
    """Return an expectation as Great Expectations writes it."""
    return {"id": None, "kwargs": kwargs, "meta": meta or {}, "severity": severity, "type": kind}


@pytest.fixture
def suites(tmp_path):
    """Give a way to write suites: by name, expectations."""
    folder = tmp_path / "suites"
    folder.mkdir()

    def write(name, *expectations, file=None, **meta):
        path = folder.joinpath(*(file or name).split(".")).with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"name": name, "expectations": list(expectations), "meta": meta, "notes": None}))

    write.folder = folder
    return write


@pytest.fixture(scope="module")
def isolated():
    """Give a process that asks Great Expectations; its start takes seconds."""
    with SuiteProcess((), 120.0) as one:
        assert one.suites() == ([], "")
        yield one


def judged(site, suites, rows=500_000):
    """Check a lake under the folder of suites; return the report, and results of suites by id."""
    section = QualitySection(str(suites.folder), suite_timeout_s=LIMIT_S, suite_rows=rows)
    lake = site.lake.configured(quality=section)
    report = run_checks(lake)
    return report, {one.check_id: one for one in report.results if one.check_id.startswith("suite:")}


def test_what_the_scan_computes_asks_nobody(site, suites, monkeypatch):
    """Expectations that check kinds can state get counts, with severity, share and action of their own."""
    monkeypatch.setattr(asking.SuiteProcess, "judge", None)
    site.bring(step_rows(100))
    suites(
        "steps.mine",
        expectation("expect_column_values_to_be_between", column="step", min_value=0, max_value=49),
        expectation("expect_column_values_to_be_between", column="step", min_value=0, max_value=49, mostly=0.5),
        expectation("expect_column_values_to_be_between", column="step", min_value=0, strict_min=True),
        expectation("expect_column_values_to_not_be_null", "warning", column="run"),
        expectation("expect_table_row_count_to_equal", value=99, meta={"severity": "info", "on_fail": "hold"}),
    )
    _, found = judged(site, suites)
    place = "suite:steps.mine:expect_"
    between = f"{place}column_values_to_be_between:step"
    assert {name: (one.status, one.rows_failed, one.severity, one.on_fail) for name, one in found.items()} == {
        between: ("failed", 50, "error", "record"),
        f"{between}#2": ("passed", 50, "error", "record"),
        f"{between}#3": ("failed", 1, "error", "record"),
        f"{place}column_values_to_not_be_null:run": ("passed", 0, "warning", "record"),
        f"{place}table_row_count_to_equal": ("failed", 100, "info", "hold"),
    }


def test_row_conditions_are_scanned(site, suites, monkeypatch):
    """An expectation with a row condition is judged on the rows that it keeps, explained by those, and exported."""
    monkeypatch.setattr(asking.SuiteProcess, "judge", None)
    site.bring(step_rows(100))
    between = {"column": "step", "min_value": 0, "max_value": 49}
    late = {"type": "comparison", "column": {"name": "step"}, "operator": ">=", "parameter": 40}
    there = {"type": "nullity", "column": {"name": "run"}, "is_null": False}
    no_run = {"type": "comparison", "column": {"name": "run"}, "operator": "==", "parameter": "nobody"}
    suites(
        "steps.mine",
        *(
            expectation("expect_column_values_to_be_between", **between, row_condition=condition)
            for condition in (
                {"type": "and", "conditions": [late, there]},
                no_run,
                {"type": "or", "conditions": [late]},
            )
        ),
        expectation(
            "expect_column_values_to_be_between", **between, row_condition="step < 40", condition_parser="pandas"
        ),
    )
    lake = site.lake.configured(quality=QualitySection(str(suites.folder)))
    place = "suite:steps.mine:expect_column_values_to_be_between:step"
    scanned = [one.is_scanned for one in own_suites(lake).of(contract("steps"))]
    assert scanned == [True, True, False, True]  # of one that joins nothing it is not sure
    monkeypatch.setattr(asking.SuiteRun, "judge", lambda *_: None)
    found = {one.check_id: one for one in run_checks(lake, ["steps"]).results}
    told = found[place]
    assert (told.status, told.rows_checked, told.rows_failed) == ("failed", 60, 50)
    assert told.message.endswith("where (step >= 40 and run is NOT NULL)")
    assert found[f"{place}#2"].status == "skipped"
    assert (found[f"{place}#4"].status, found[f"{place}#4"].rows_checked) == ("passed", 40)
    (why,) = explain(lake, ["steps"], check_id=place)
    assert why.failed == 50
    suite = compile_suite(contract("steps"), {}, own_suites(lake).of(contract("steps")))
    told = table_facts(lake, contract("steps"), suite)["expectations"]
    exported = {one["meta"]["check_id"]: one["kwargs"] for one in told}
    assert exported[place]["row_condition"] == {"type": "and", "conditions": [late, there]}


def test_a_suite_is_judged_again_when_it_changes(site, suites):
    """A second check runs nothing, even with errors of a suite, which stand; a changed suite is judged anew."""
    site.bring(step_rows(10))
    suites("steps.mine", expectation("expect_column_values_to_not_be_null", column="nothing"))
    first, found = judged(site, suites)
    (wrong,) = found.values()
    assert (wrong.status, "did you mean" in wrong.message or "nearest of" in wrong.message) == ("errored", True)
    again, _ = judged(site, suites)
    assert (again.partitions, [one.check_id for one in again.standing]) == (0, [wrong.check_id])
    assert not first.passed
    assert not again.passed
    suites("steps.mine", expectation("expect_column_values_to_not_be_null", column="run"))
    mended, found = judged(site, suites)
    assert [one.status for one in found.values()] == ["passed"]
    assert mended.passed


def test_files_that_are_no_suite_are_named_and_the_rest_goes_on(site, suites):
    """Each is errored where its name says a table, else under the results' own table; written down once."""
    site.bring(step_rows(10))
    good = expectation("expect_column_values_to_not_be_null", column="run")
    suites("steps.good", good)
    suites("steps.good", good, file="steps.twin")
    (suites.folder / "steps").mkdir(exist_ok=True)
    (suites.folder / "steps" / "broken.json").write_text("{")
    (suites.folder / "steps" / "deep.json").write_text("[" * 100_000)
    (suites.folder / "steps" / "list.json").write_text("[]")
    (suites.folder / "steps" / f"{MARKUP.replace('/', '')}.json").write_text('{"expectations": []}')
    suites("step.typo", good, file="typo")
    suites("odd", 3, {"type": 4}, {"type": "expect_x", "kwargs": []}, file="odd", table="steps")
    report, found = judged(site, suites)
    assert found["suite:steps.good:expect_column_values_to_not_be_null:run"].status == "passed"
    said = {name.removeprefix("suite:"): one.message for name, one in found.items() if one.status == "errored"}
    assert said.keys() == {
        *("steps.broken", "steps.deep", "steps.list", "steps.good#2", "step.typo"),
        *("odd:malformed", "odd:malformed#2", "odd:malformed#3", "steps.<script>alert(1)<script>\\x1b[2J"),
    }
    assert "did you mean 'steps'" in said["step.typo"]
    (typo,) = [one for one in report.results if one.check_id == "suite:step.typo"]
    assert (typo.table, typo.severity, report.passed) == ("quality_results", "error", False)
    version = delta_table(site.lake.store, "quality_results").version()
    again, _ = judged(site, suites)
    assert "suite:step.typo" in {one.check_id for one in again.standing}
    assert delta_table(site.lake.store, "quality_results").version() == version


def test_pages_know_what_was_checked_by_users_suites(site, suites):
    """The report takes a partition for checked under the same suite, and has the promises of users' checks."""
    site.bring(step_rows(10))
    suites("steps.mine", expectation("expect_column_values_to_not_be_null", column="run"))
    judged(site, suites)
    state = gather(site.lake.configured(quality=QualitySection(str(suites.folder))))
    assert state.totals.partitions_unchecked == 0
    (steps,) = [one for one in state.tables if one.table == "steps"]
    (mine,) = [one for one in steps.checks if one.check_id.startswith("suite:")]
    assert mine.promise == "run is NULL"
    assert [one.reason for one in steps.partitions] == [None]


def test_a_folder_that_is_not_there_is_an_error(site, suites):
    """A misspelt path would otherwise switch all suites off."""
    suites.folder.rmdir()
    with pytest.raises(SuitesError, match="no such folder of suites"):
        judged(site, suites)


@pytest.mark.slow
def test_users_code_harms_nothing(site, suites, tmp_path):
    """An expectation that raises, never ends, exits, writes, connects or starts something: errored; others go on."""
    site.bring(step_rows(100))
    (tmp_path / "precious.txt").write_text("mine")
    (suites.folder / "own.py").write_text(CUSTOM.format(here=str(tmp_path)))
    (suites.folder / "broken.py").write_text("import nothing_of_this_name")
    names = ("raises", "exits", "even", "never_ends", "writes", "removes", "connects", "starts")
    custom = [expectation(f"expect_column_values_{name}", column="step") for name in names]
    mean = expectation("expect_column_mean_to_be_between", column="step", min_value=0, max_value=10)
    suites("steps.mine", *custom, expectation("expect_unknown"), mean)
    report, found = judged(site, suites)
    said = {name.removeprefix("suite:"): (one.status, one.message) for name, one in found.items()}
    of = {name: said[f"steps.mine:expect_column_values_{name}:step"] for name in names}
    assert of["even"][0] == "failed"
    assert found["suite:steps.mine:expect_column_values_even:step"].rows_failed == 50
    assert {of[name] for name in ("writes", "removes", "connects", "starts")} == {
        ("errored", "could not be computed (PermissionError)")
    }
    assert of["raises"] == ("errored", "could not be computed (ValueError)")
    assert of["exits"] == ("errored", f"its process ended{AGAIN}")
    assert of["never_ends"] == ("errored", f"killed after {LIMIT_S:g} s{AGAIN}")
    assert said["steps.mine:expect_unknown"][0] == "errored"
    assert said["steps.mine:expect_column_mean_to_be_between:step"][0] == "failed"
    assert found["suite:steps.mine:expect_column_mean_to_be_between:step"].observed == "49.5"
    assert said["steps.defined:expect_column_min_to_be_between:step"] == ("passed", None)
    assert said["broken.py"][1].startswith("not run: ModuleNotFoundError: No module named")
    assert not (tmp_path / "written.txt").exists()
    assert (tmp_path / "precious.txt").read_text() == "mine"
    assert not report.passed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "status"),
    [
        (pa.table({"x": pa.array([], pa.int64())}), True),
        (pa.table({"x": pa.array([1], pa.int64())}), True),
        (pa.table({"x": pa.array([None, None], pa.int64())}), True),
        (pa.table({"x": pa.array([2**62 + 1, None], pa.int64())}), False),
    ],
)
def test_tables_of_few_rows_are_judged(isolated, rows, status):
    """No rows, one row, all NULL, and integers that no float holds."""
    isolated.take(rows)
    found = isolated.judge("expect_column_values_to_be_in_set", {"column": "x", "value_set": [1]}, classified=False)
    assert (found.error, found.success) == ("", status)


@pytest.mark.slow
def test_a_table_of_ten_thousand_columns_is_judged(isolated):
    """All of them can be asked about."""
    isolated.take(pa.table({f"c{number}": [number] for number in range(10_000)}))
    found = isolated.judge("expect_column_max_to_be_between", {"column": "c9999", "max_value": 9999}, classified=False)
    assert (found.error, found.success, found.observed) == ("", True, 9999.0)
    found = isolated.judge("expect_table_column_count_to_equal", {"value": 10_000}, classified=False)
    assert found.success


@pytest.mark.slow
def test_of_classified_columns_no_value_comes_back(isolated):
    """Neither an observed value nor what an error quotes."""
    isolated.take(pa.table({"secret": [7_777_777.0, 7_777_778.0], "who": ["Alice", "Bob"]}))
    mean = isolated.judge("expect_column_mean_to_be_between", {"column": "secret", "max_value": 1}, classified=True)
    assert (mean.success, mean.observed) == (False, None)
    wrong = isolated.judge("expect_column_values_to_be_between", {"column": "who", "max_value": 1}, classified=True)
    assert (wrong.success, wrong.error) == (None, "could not be computed (TypeError)")
    bob = {"column": "who", "value_set": ["Bob"]}
    found = isolated.judge("expect_column_values_to_be_in_set", bob, classified=True)
    assert (found.success, found.checked, found.failed, found.observed) == (False, 2, 1, None)


@pytest.mark.slow
def test_a_partition_that_vanishes_is_errored_and_a_sample_is_stated(site, suites, monkeypatch):
    """What was judged of a sample says so; a date whose file is gone between scan and question is errored, alone."""
    site.bring(step_rows(100))
    mean = expectation("expect_column_mean_to_be_between", column="step", min_value=0, max_value=10)
    suites("steps.mine", mean, expectation("expect_column_values_to_not_be_null", column="run"))
    _, found = judged(site, suites, rows=25)
    one = found["suite:steps.mine:expect_column_mean_to_be_between:step"]
    columns = len(contract("steps").names)
    kept = -(-100 // -(-100 // max(1, min(25, 25 * 40 // columns))))
    assert (one.status, one.rows_checked) == ("failed", kept)
    assert one.observed.endswith(f"a sample of {kept} of 100 rows")
    genuine = asking.read_batches

    def vanished(store, *args, **options):
        for path in (site.folder / "lake" / "tables" / "steps").rglob("*.parquet"):
            path.unlink()
        return genuine(store, *args, **options)

    monkeypatch.setattr(asking, "read_batches", vanished)
    suites("steps.mine", mean, expectation("expect_column_values_to_not_be_null", column="step"))
    report, found = judged(site, suites)
    assert "cannot be read" in found["suite:steps.mine:expect_column_mean_to_be_between:step"].message
    assert found["suite:steps.mine:expect_column_values_to_not_be_null:step"].status == "passed"
    assert {one.partition_date for one in report.results} == {DAY.date()}
