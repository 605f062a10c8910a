"""A rollup may be a Python function behind the same declaration as a SQL file: same digits, same rules of being due."""

import subprocess
import sys
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from python_rollup import EPOCHS
from rollup_inputs import DAY, NOON, append, context, rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.rollups import registry
from ranklake.lake.rollups.declaration import AFFECTED, Input, PythonBody, replace_table
from ranklake.lake.rollups.evaluate import evaluate_day
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.store import Lake
from ranklake.lake.tables.read import read

(IN_SQL,) = (rollup for rollup in ROLLUPS if rollup.name == "run_epochs")
IN_PYTHON = replace(IN_SQL, body=EPOCHS)
TOLD = st.lists(
    st.fixed_dictionaries(
        {
            "run": st.sampled_from(["r1", "r2"]),
            "attempt": st.integers(0, 1),
            "ts": st.integers(0, 30 * 3600).map(lambda s: NOON + timedelta(seconds=s)),
            "step": st.none() | st.integers(0, 9),
            "metric": st.sampled_from(["train/epoch", "train/epoch", "train/loss"]),
            "value": st.sampled_from([0.0, 0.25, 1.0, 1.75, 2.5, -1.0, 2147483647.0, float("inf")]),
        }
    ),
    min_size=1,
    max_size=40,
)


def sorted_rows(table):
    """Return rows in the order of their grain."""
    return table.sort_by([(name, "ascending") for name in contract("run_epochs").grain])


@pytest.fixture
def in_python(monkeypatch):
    """Have the registry's `run_epochs` computed in Python."""
    monkeypatch.setattr(registry, "ROLLUPS", tuple(IN_PYTHON if one is IN_SQL else one for one in ROLLUPS))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(told=TOLD)
def test_python_gives_the_rows_of_sql(told):
    """On any rows the function and the SQL file give the same table, digit for digit."""
    ctx = context(scalars=told)
    for day in (DAY, DAY + timedelta(1)):
        assert sorted_rows(evaluate_day(ctx, IN_PYTHON, day)).equals(sorted_rows(evaluate_day(ctx, IN_SQL, day)))


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(told=TOLD, data=st.data())
def test_incremental_is_full(tmp_path_factory, in_python, told, data):
    """Rows that arrive in two parts in any order give the rows of a rebuild, and nothing is due then."""
    table = rows("scalars", told)
    table = table.take(pa.array(data.draw(st.permutations(range(len(told))))))
    cut = data.draw(st.integers(0, len(told)))
    lake = Lake.create(str(tmp_path_factory.mktemp("lake")))
    for part in (table.slice(0, cut), table.slice(cut)):
        if part.num_rows:
            append(lake, "scalars", part)
            run_rollups(lake, ["run_epochs"])
    (again,) = run_rollups(lake, ["run_epochs"])
    assert (again.computed, again.partitions) == (0, ())
    incremental = sorted_rows(read(lake, contract("run_epochs")))
    run_rollups(lake, ["run_epochs"], full=True)
    assert sorted_rows(read(lake, contract("run_epochs"))).equals(incremental)
    ctx = context(scalars=told)
    days = sorted({row["ts"].date() for row in told})
    in_sql = sorted_rows(pa.concat_tables([evaluate_day(ctx, IN_SQL, day) for day in days]))
    assert incremental.select(in_sql.column_names).equals(in_sql)


def test_a_body_is_part_of_what_lineage_vouches_for():
    """Another function, other columns or another module make the rollup due; SQL files' digests are as ever."""
    other = replace(IN_SQL, body=PythonBody(EPOCHS.function, {"scalars": ("run",)}))
    assert len({IN_SQL.sha256, IN_PYTHON.sha256, other.sha256}) == 3
    assert "def run_epochs" in EPOCHS.source
    assert IN_SQL.transform.source.startswith("-- grain")


@pytest.mark.parametrize(
    ("reach", "offsets"), [("day", [0]), ("days", [-1, 0, 1]), ("until", [-2, -1, 0]), ("over", [-2, -1, 0, 1])]
)
def test_a_function_is_given_the_dates_that_it_depends_on(reach, offsets):
    """By the reach of an input, as a date's SQL would read it."""
    ctx = context(runs=[{"ts": NOON + timedelta(day), "device_type": "cpu"} for day in (-2, -1, 0, 1)])
    seen = PythonBody(lambda inputs, _: inputs["runs"], {"runs": ("date",)})
    found = seen.rows(ctx, (Input("runs", reach),), {"date": pa.scalar(DAY, pa.date32())})
    assert sorted(found["date"].to_pylist()) == [DAY + timedelta(offset) for offset in offsets]


def test_a_function_is_given_the_runs_that_are_computed():
    """Of a run rollup: the rows of the affected runs, and no others."""
    ctx = context(runs=[{"run": run, "ts": NOON, "device_type": "cpu"} for run in ("r1", "r2")])
    replace_table(ctx, AFFECTED, pa.table({"run": ["r2"]}))
    seen = PythonBody(lambda inputs, _: inputs["runs"], {"runs": ("run",)})
    assert seen.rows(ctx, (Input("runs", "run"),), {})["run"].to_pylist() == ["r2"]


@pytest.mark.slow
def test_digests_are_the_same_in_every_process():
    """What is vouched for by one process is not due for the next: no digest depends on the order of a set."""
    program = "from ranklake.lake.rollups.registry import ROLLUPS; print([one.sha256 for one in ROLLUPS])"
    said = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
