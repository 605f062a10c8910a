"""What a query does not read: files by what the Delta log says, row groups and pages by what the files say."""

import re
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest
from rollup_inputs import NOON, append

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.query.scan import MissingFileError
from ranklake.lake.query.sql import query, session
from ranklake.lake.store.lake import Lake

ROWS = 300_000  # more than a row group holds
RUNS = ("alpha", "beta", "gamma")


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with two days of three runs, a file each, sorted by run, attempt, rank and step."""
    lake = Lake.create(str(tmp_path_factory.mktemp("lake")))
    for day in range(2):
        for number, run in enumerate(RUNS):
            append(lake, "steps", _steps(run, number, day, ROWS if (day, run) == (1, "beta") else 100))
    return lake


def _steps(run, number, day, count):
    per_rank = count // 4
    start = int(NOON.timestamp()) * 1_000_000 + day * 86_400_000_000
    columns = {
        "run": pa.array([run] * count),
        "attempt": np.zeros(count, np.int32),
        "rank": np.repeat(np.arange(4, dtype=np.int32), per_rank),
        "incarnation": np.full(count, number + 1),
        "segment": np.zeros(count, np.int32),
        "slot": np.arange(count, dtype=np.int32),
        "ts": pa.array(start + np.tile(np.arange(per_rank), 4) * 1000, pa.timestamp("us", "UTC")),
        "date": pa.array([NOON.date() + timedelta(days=day)] * count),
        "step": np.tile(np.arange(per_rank), 4),
        "step_time_s": np.random.default_rng(number).gamma(2, 1, count).astype(np.float32),
    }
    schema = arrow_schema(contract("steps"))
    return pa.table(
        [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(count, f.type) for f in schema],
        schema=schema,
    )


def analyzed(lake, text, **options):
    """Return what EXPLAIN ANALYZE says, as one text."""
    return "\n".join(query(lake, f"EXPLAIN ANALYZE {text}", **options)["plan"].to_pylist())


def pruned(said, metric):
    """Return (in all, kept) of a pruning metric."""
    found = re.search(rf"{metric}=([0-9.]+)( K)? total → ([0-9.]+)( K)? matched", said)
    return float(found[1]) * (1000 if found[2] else 1), float(found[3]) * (1000 if found[4] else 1)


def test_files_row_groups_and_pages_are_pruned(lake):
    """One run's one rank over some steps of one day opens one file of six, one row group of it, few of its pages."""
    condition = "run = 'beta' AND date = '2026-03-02' AND rank = 0 AND step < 500"
    said = analyzed(lake, f"SELECT avg(step_time_s) FROM steps WHERE {condition}")
    assert "steps: 1 of 6 files" in said
    assert pruned(said, "row_groups_pruned_statistics") == (2, 1)
    pages, kept = pruned(said, "page_index_pages_pruned")
    assert kept < pages
    rows, kept_rows = pruned(said, "page_index_rows_pruned")
    assert kept_rows < rows


@pytest.mark.parametrize(
    ("condition", "files"),
    [
        ("true", 6),
        ("date = '2026-03-01'", 3),
        ("date >= '2026-03-02' AND run <> 'x'", 3),
        ("run = 'alpha'", 2),
        ("run = $run", 2),
        ("run IN ('alpha', 'gamma')", 4),
        ("run = 'alpha' OR ts < '2026-03-02T00:00:00Z'", 4),
        ("run = 'delta'", 0),
        ("run = 'alpha' AND NULLIF(1, 1) = 1", 0),  # constants
        ("CAST(NULL AS BOOLEAN)", 0),
        ("ts >= '2026-03-02T12:00:00Z' AND incarnation = 3", 1),
        ("date_trunc('day', ts) = '2026-03-01T00:00:00Z'", 6),  # what is not understood prunes nothing
        ("upper(run) = 'ALPHA' AND date = '2026-03-01'", 3),
        ("date = (SELECT max(date) FROM steps WHERE run = 'beta')", 6),
        ("EXISTS (SELECT 1 FROM runs WHERE runs.run = steps.run) AND incarnation > 2", 2),
    ],
)
def test_files_by_the_log(lake, condition, files):
    """Conditions on dates and on columns with statistics leave files out; the answer is that of reading all."""
    params = {"run": "alpha"} if "$run" in condition else {}
    text = f"SELECT count(*) AS n, sum(step) AS steps FROM steps WHERE {condition}"
    plan = "\n".join(query(lake, f"EXPLAIN {text}", params)["plan"].to_pylist())
    assert f"steps: {files} of 6 files" in plan
    everything = query(lake, "SELECT * FROM steps")
    assert everything.num_rows == ROWS + 500
    unpruned = session(lake, ["steps", "runs"])
    assert query(lake, text, params).to_pylist() == unpruned.sql(text, param_values=params).to_arrow_table().to_pylist()


def test_a_bare_null_prunes_nothing(lake):
    """DataFusion fails to put such a condition before a dataset; the answer is there all the same."""
    text = "SELECT count(*) AS n FROM steps WHERE rank {} IN (NULL, 0)"
    assert query(lake, text.format("NOT")).to_pylist() == [{"n": 0}]
    assert query(lake, text.format("")).to_pylist() == [{"n": (ROWS + 500) // 4}]
    for explain in ("EXPLAIN", "EXPLAIN VERBOSE", "EXPLAIN ANALYZE"):
        said = "\n".join(query(lake, f"{explain} {text.format('')}")["plan"].to_pylist())
        assert "steps: 6 of 6 files" in said


@pytest.mark.parametrize("table", ["steps", "gpu_samples"])
@pytest.mark.parametrize("rest", ["ORDER BY ts", "ORDER BY ts LIMIT 3", "GROUP BY run, ts, rank ORDER BY ts"])
def test_nothing_can_be_sorted(lake, table, rest):
    """A question that no file can answer, or of a table that was never written, has an empty answer in any order."""
    assert query(lake, f"SELECT run, ts, rank FROM {table} WHERE run = 'nobody' {rest}").num_rows == 0
    united = f"SELECT run, ts FROM {table} WHERE run = 'nobody' UNION ALL SELECT run, ts FROM runs ORDER BY ts"
    assert query(lake, united).num_rows == 0


def test_a_table_read_twice_keeps_what_either_needs(lake):
    """A table that stands in a query twice, with other conditions, keeps the files of both."""
    text = """
        SELECT count(*) AS n FROM steps AS a JOIN steps AS b ON a.slot = b.slot
        WHERE a.run = 'alpha' AND a.date = '2026-03-01' AND b.run = 'gamma' AND b.date = '2026-03-02'
    """
    assert "steps: 2 of 6 files" in analyzed(lake, text)
    assert query(lake, text).to_pylist() == [{"n": 100}]
    union = "SELECT run FROM steps WHERE run = 'alpha' UNION SELECT run FROM steps WHERE run = 'beta'"
    assert sorted(query(lake, union)["run"].to_pylist()) == ["alpha", "beta"]


def test_a_missing_file_is_an_error_and_no_smaller_answer(tmp_path):
    """A data file that is gone, or cut short, fails the queries that need it and no others."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "steps", _steps("alpha", 0, 0, 100))
    append(lake, "steps", _steps("beta", 1, 1, 100))
    (gone,) = (tmp_path / "lake" / "tables" / "steps" / "date=2026-03-02").glob("*.parquet")
    whole = gone.read_bytes()
    gone.write_bytes(whole[:-1])
    with pytest.raises(MissingFileError, match="not of the size"):
        query(lake, "SELECT count(*) FROM steps")
    gone.unlink()
    with pytest.raises(MissingFileError, match="is missing"):
        query(lake, "SELECT count(*) FROM steps")
    assert query(lake, "SELECT count(*) AS n FROM steps WHERE run = 'alpha'").to_pylist() == [{"n": 100}]
