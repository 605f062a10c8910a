"""Asking the lake in SQL: from Python, from the command line, and with other readers."""

import csv
import io
import json
import math
import subprocess
import sys
from datetime import timedelta

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from rollup_inputs import NOON, append

import ranklake.lake
from ranklake.commands.sql import sql
from ranklake.commands.stages import rollup
from ranklake.errors import RanklakeError
from ranklake.insight.runs.run import UnknownFrameError
from ranklake.lake.contracts.arrow import ARROW_TYPES
from ranklake.lake.contracts.load import contract, load_contracts
from ranklake.lake.query.sql import NotReadOnlyError, QueryError, engine, query, session
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table

COUNT = "SELECT rank, count(*) AS n, sum(tokens) AS tokens FROM steps GROUP BY rank ORDER BY rank"


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with 3 ranks' steps over two days and one run; all other tables were never written."""
    lake = Lake.create(str(tmp_path_factory.mktemp("lake")))
    for day in range(2):
        facts = [
            {"rank": rank, "step": n, "ts": NOON + timedelta(days=day, seconds=n), "step_time_s": 0.5, "tokens": n}
            for rank in range(3)
            for n in range(100)
        ]
        append(lake, "steps", facts)
    append(lake, "runs", [{"ts": NOON, "job": "a\nb", "user": None, "world_size": 3}])
    return lake


def ask(lake, *arguments):
    return CliRunner().invoke(sql, [*arguments, "--lake", lake.uri])


def test_every_table_of_the_contracts_can_be_asked(lake):
    """A table that was never written is empty and has its contract's columns and types."""
    ctx = session(lake)
    for name, one in load_contracts().items():
        found = ctx.sql(f"SELECT * FROM {name}").to_arrow_table()
        assert found.column_names == list(one.names)
        assert found.num_rows == {"steps": 600, "runs": 1}.get(name, 0)
    empty = query(lake, "SELECT * FROM gpu_samples")
    assert [column.type for column in empty.columns] == [
        ARROW_TYPES[column.type] for column in load_contracts()["gpu_samples"].columns
    ]
    assert query(lake, "SELECT count(*) AS n FROM gpu_samples").to_pylist() == [{"n": 0}]


def test_tables_meet(lake):
    """Joins and unions of tables whose columns carry different facts in their metadata work."""
    text = """
        SELECT job, count(*) AS n FROM steps JOIN runs USING (run, attempt) GROUP BY job
        UNION ALL SELECT run, count(*) FROM (SELECT run FROM runs UNION ALL SELECT run FROM events) GROUP BY run
    """
    assert query(lake, text).sort_by("job").to_pylist() == [{"job": "a\nb", "n": 600}, {"job": "r1", "n": 1}]


def test_text_in_lists_and_structs_is_plain(lake):
    """Libraries that know no string views take what a query gathers, too."""
    found = query(lake, "SELECT array_agg(DISTINCT run) AS runs, named_struct('run', max(run)) AS one FROM steps")
    assert found.schema.types == [pa.list_(pa.string()), pa.struct([("run", pa.string())])]
    assert list(found.to_pandas()["runs"][0]) == ["r1"]


def test_parameters_and_limits(lake):
    """`$name` takes a value, never text to be read as SQL; a limit cuts."""
    found = query(lake, "SELECT count(*) AS n FROM steps WHERE step < $most AND run = $run", {"most": 10, "run": "r1"})
    assert found.to_pylist() == [{"n": 60}]
    assert query(lake, "SELECT count(*) AS n FROM steps WHERE run = $run", {"run": "' OR 1=1 --"}).to_pylist() == [
        {"n": 0}
    ]
    assert query(lake, "SELECT step FROM steps", limit=7).num_rows == 7


def test_only_what_is_asked_for_is_read(lake):
    """A condition on the date leaves the other date's files out of the plan; others reach the Parquet reader."""
    plan = query(lake, "EXPLAIN SELECT sum(tokens) FROM steps WHERE date = '2026-03-02' AND rank = 1")
    text = "".join(plan["plan"].to_pylist())
    assert "steps: 1 of 2 files" in text
    assert "date=2026-03-02" in text
    assert "date=2026-03-01" not in text
    assert "rank_min" in text


class Distant(Store):
    """A store that is read as one on an object store is: through its own file system."""

    is_local = False


@pytest.mark.parametrize("kind", [Store, Distant])
def test_near_and_far_tables_are_read_alike(lake, kind):
    """As a folder of links or as a dataset, a table gives the same rows and types, and the same dates of it."""
    one = Lake.of(kind(lake.uri, fs=lake.fs, root=lake.store.root))
    assert query(one, COUNT)["n"].to_pylist() == [200, 200, 200]
    found = query(one, "SELECT * FROM steps WHERE date = '2026-03-02' AND rank = 1 AND step < 5 ORDER BY step")
    assert found["step"].to_pylist() == [0, 1, 2, 3, 4]
    assert found["date"].to_pylist() == [NOON.date() + timedelta(days=1)] * 5
    assert [column.type for column in found.columns] == [
        ARROW_TYPES[column.type] for column in load_contracts()["steps"].columns
    ]
    none = query(one, "SELECT count(*) AS n FROM steps WHERE rank = 7 OR ts > '2027-01-01T00:00:00Z'")
    assert none.to_pylist() == [{"n": 0}]
    chosen = session(one, ["steps"], days={"steps": [NOON.date()]})
    assert chosen.sql("SELECT DISTINCT date FROM steps").to_arrow_table()["date"].to_pylist() == [NOON.date()]


@pytest.mark.parametrize("kind", [Store, Distant])
def test_nulls_are_in_no_answer_of_not_in(tmp_path, kind):
    """Nobody knows whether a NULL is in a list, near and far, though pyarrow says that it is not."""
    near = Lake.create(str(tmp_path / "lake"))
    facts = [{"step": n, "ts": NOON, "step_time_s": 1.0, "tokens": tokens} for n, tokens in enumerate((None, 0, 7))]
    append(near, "steps", facts)
    one = Lake.of(kind(near.uri, fs=near.fs, root=near.store.root))
    for condition in ("tokens NOT IN (0, 1, 2, 3, 4)", "NOT (tokens IN (0, 1, 2, 3, 4))", "tokens IN (NULL, 7)"):
        assert query(one, f"SELECT step FROM steps WHERE {condition}").to_pylist() == [{"step": 2}]


@pytest.mark.parametrize("kind", [Store, Distant])
@pytest.mark.parametrize(
    ("condition", "steps"),
    [
        ("loss NOT IN (0, 5, 7, 8)", [0, 1, 20, 30, 41]),  # a list of four and more holds -0.0 and 0.0 apart
        ("loss IN (0, 5, 7, 8)", [10, 11, 21, 31]),
        ("loss NOT IN (0, 5)", [20, 21, 41]),
        ("loss < 'NaN'", [0, 1, 10, 11, 20, 21, 30, 31, 41]),
        ("loss >= 'NaN'", []),
        ("loss BETWEEN -0.0 AND 4", [0, 1, 10, 20, 30, 31, 41]),
    ],
)
def test_floats_are_compared_as_sql_does(tmp_path, kind, condition, steps):
    """Zeros of both signs and what is no number give the same rows whatever reads them, and with all files or some."""
    near = Lake.create(str(tmp_path / "lake"))
    for number, losses in enumerate(((-0.0, -0.0), (0.0, 5.0), (3.0, 7.0), (-0.0, 0.0), (None, 1.0))):
        facts = {"ts": NOON, "step_time_s": 1.0}
        append(near, "steps", [{"step": 10 * number + n, "loss": loss, **facts} for n, loss in enumerate(losses)])
    text = f"SELECT step FROM steps WHERE {condition} ORDER BY step"
    plain = engine()
    plain.register_record_batches("steps", [read(near.tables, contract("steps")).to_batches()])
    assert plain.sql(text).to_arrow_table()["step"].to_pylist() == steps
    assert query(Lake.of(kind(near.uri, fs=near.fs, root=near.store.root)), text)["step"].to_pylist() == steps


@pytest.mark.parametrize("kind", [Store, Distant])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT step, isnan(loss) AS x FROM steps ORDER BY step", [False, True, True]),
        ("SELECT max(loss) > 1e30 AS x FROM steps", [True]),
        ("SELECT step AS x FROM steps WHERE loss > 50 ORDER BY step", [1, 2]),
        ("SELECT step AS x FROM steps WHERE loss = 'NaN' ORDER BY step", [1, 2]),
        ("SELECT count(*) AS x FROM steps WHERE NOT loss <= 50", [2]),
    ],
)
def test_what_is_no_number_stays_so(tmp_path, kind, text, expected):
    """Of a file with one finite loss and NaN behind it, its extremes would say that all losses are the same."""
    near = Lake.create(str(tmp_path / "lake"))
    losses = (2.0, math.nan, math.nan)
    append(near, "steps", [{"step": n, "loss": loss, "ts": NOON, "step_time_s": 1.0} for n, loss in enumerate(losses)])
    assert query(Lake.of(kind(near.uri, fs=near.fs, root=near.store.root)), text)["x"].to_pylist() == expected


def test_a_lake_in_a_folder_with_an_odd_name(tmp_path):
    """Brackets, stars, spaces and percent signs in the lake's path are letters like others."""
    odd = Lake.create(str(tmp_path / "l [a]*?% ü#"))
    append(odd, "steps", [{"step": 1, "ts": NOON, "step_time_s": 1.0}])
    assert query(odd, "SELECT step FROM steps")["step"].to_pylist() == [1]


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO steps SELECT * FROM steps",
        "CREATE TABLE mine AS SELECT 1",
        "CREATE EXTERNAL TABLE e STORED AS CSV LOCATION '/etc/passwd'",
        "COPY steps TO '/tmp/steps.csv'",
        "DROP TABLE steps",
        "SET datafusion.execution.batch_size = 1",
        "PREPARE p AS SELECT 1",
    ],
)
def test_nothing_can_be_changed(lake, text):
    """Statements that write, define, copy out or set are refused."""
    with pytest.raises(NotReadOnlyError, match="only queries"):
        query(lake, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT * FROM stpes", "unknown table 'stpes'; did you mean 'steps'?"),
        ("SELECT step_tme_s FROM steps", "unknown column 'step_tme_s'; did you mean 'step_time_s'?"),
        ("SELECT s.tokns FROM steps s", "did you mean 'tokens'?"),
        ("SELECT avrg(tokens) FROM steps", "unknown function 'avrg'; did you mean 'avg'?"),
        ("SELEC 1", "SQL:1:1: syntax error: Expected: an SQL statement, found: SELEC"),
        ("SELECT 1\nFROM steps GROUP rank", "SQL:2:12: syntax error"),
        ("SELECT 1 +", "syntax error: Expected: an expression, found: EOF"),
        ("SELECT 1; SELECT 2", "single SQL statement"),
        ("", "No SQL statements"),
        ("SELECT CAST('x' AS INT)", "Cannot cast string 'x'"),
        ("SELECT $missing", "missing"),
        ("SELECT * FROM '/etc/passwd'", "unknown table"),
    ],
)
def test_errors_are_one_line_that_says_what_and_the_mend(lake, text, message):
    """Unknown names come with the nearest, syntax errors with their place; nothing shows a traceback."""
    with pytest.raises(QueryError) as caught:
        query(lake, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_call_from_python(lake, monkeypatch, tmp_path):
    """`ranklake.lake.sql` answers as Arrow, pandas or Polars, for an open lake, a URI or the configured one."""
    assert ranklake.lake.sql(COUNT, lake)["n"].to_pylist() == [200, 200, 200]
    assert ranklake.lake.sql(COUNT, lake.uri, as_="pandas")["tokens"].sum() == 29700
    monkeypatch.setenv("RANKLAKE_LAKE", lake.uri)
    assert isinstance(ranklake.lake.sql(COUNT, as_="polars"), pl.DataFrame)
    monkeypatch.delenv("RANKLAKE_LAKE")
    with pytest.raises(QueryError, match="no lake configured"):
        ranklake.lake.sql(COUNT)
    (tmp_path / "ranklake.toml").write_text(f'[lake]\nuri = "{lake.uri}"\n')
    monkeypatch.chdir(tmp_path)
    assert ranklake.lake.sql(COUNT)["n"].to_pylist() == [200, 200, 200]
    with pytest.raises(UnknownFrameError, match="did you mean 'pandas'"):
        ranklake.lake.sql(COUNT, lake, as_="panda")
    with pytest.raises(AttributeError):
        _ = ranklake.lake.nothing


def test_the_room_stays_light():
    """Importing the room imports no engine: `sql` is found when it is asked for."""
    code = "import sys, ranklake.lake; print(sorted({'datafusion', 'deltalake', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_table_for_people(lake):
    """Columns line up, numbers to the right, six digits of a float, NULL as NULL, no line break in a cell."""
    result = ask(lake, 'SELECT job, "user", world_size, 1.0/3 AS third, ts FROM runs')
    assert result.output == (
        "job | user | world_size |    third | ts\n"
        "----+------+------------+----------+---------------------\n"
        "a b | NULL |          3 | 0.333333 | 2026-03-01 12:00:00Z\n"
        "(1 row)\n"
    )


def test_json_for_machines(lake):
    """JSON is a list of objects with ISO times; what has no JSON number is null."""
    result = ask(lake, "SELECT ts, date, job, 0.0/0.0 AS nan, [1, 2] AS list FROM runs", "--format", "json")
    assert json.loads(result.stdout) == [
        {"ts": "2026-03-01T12:00:00Z", "date": "2026-03-01", "job": "a\nb", "nan": None, "list": [1, 2]}
    ]
    assert json.loads(ask(lake, "SELECT 1 AS x WHERE false", "--format", "json").stdout) == []


def test_csv_for_machines(lake):
    """CSV has a header, quotes what needs it, and leaves NULL empty."""
    result = ask(lake, 'SELECT job, "user", world_size FROM runs', "--format", "csv")
    assert list(csv.reader(io.StringIO(result.stdout))) == [["job", "user", "world_size"], ["a\nb", "", "3"]]


def test_files_in_every_format(lake, tmp_path):
    """The suffix names the format; Parquet keeps types; a file that cannot be written leaves none behind."""
    for suffix, reads in ((".parquet", pq.read_table), (".csv", None), (".json", None)):
        target = tmp_path / f"out{suffix}"
        result = ask(lake, COUNT, "--output", str(target))
        assert (result.exit_code, result.stdout) == (0, "")
        assert "3 rows" in result.stderr
        if reads:
            assert reads(target)["n"].to_pylist() == [200, 200, 200]
    assert json.loads((tmp_path / "out.json").read_text())[2] == {"rank": 2, "n": 200, "tokens": 9900}
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "rank,n,tokens"
    failed = ask(lake, COUNT, "--output", str(tmp_path / "no" / "such.csv"))
    assert "cannot be written" in str(failed.exception)
    assert isinstance(ask(lake, COUNT, "--format", "parquet").exception, RanklakeError)


def test_parameters_on_the_command_line(lake):
    """`--param` gives numbers as numbers and text as text."""
    text = "SELECT count(*) AS n FROM steps WHERE run = $run AND step < $most"
    assert json.loads(ask(lake, text, "--param", "run=r1", "--param", "most=5", "--format", "json").stdout) == [
        {"n": 30}
    ]
    assert "not NAME=VALUE" in str(ask(lake, text, "--param", "run").exception)


@pytest.mark.leaky("threads of Polars and DuckDB that met Python stay known to it")
def test_other_readers_agree(lake):
    """Polars over the Delta log and DuckDB over the live files give the counts and sums that SQL gives."""
    ours = query(lake, COUNT).to_pylist()
    uri = lake.store.table_uri("steps")
    polars = pl.scan_delta(uri).group_by("rank").agg(pl.len().alias("n"), pl.col("tokens").sum()).sort("rank").collect()
    assert polars.to_dicts() == ours
    live = [f"{uri}/{path}" for path in files(delta_table(lake.store, "steps"))["path"].to_pylist()]
    with duckdb.connect() as connection:
        found = connection.execute(COUNT.replace("FROM steps", "FROM read_parquet(?)"), [live]).fetchall()
    assert [dict(zip(("rank", "n", "tokens"), map(int, row), strict=True)) for row in found] == ours


@pytest.mark.slow
def test_rolling_up_from_the_command_line(lake):
    """`ranklake rollup` says what it wrote, and the second time that nothing changed."""
    first = CliRunner().invoke(rollup, ["step_rollup", "--lake", lake.uri, "--json"])
    (result,) = json.loads(first.stdout)
    assert (result["name"], result["partitions"], result["rows"]) == ("step_rollup", ["2026-03-01", "2026-03-02"], 200)
    second = CliRunner().invoke(rollup, ["step_rollup", "--lake", lake.uri])
    assert second.output == "nothing changed; nothing was committed\n"
    third = CliRunner().invoke(rollup, ["--lake", lake.uri])
    assert "run_summary" in third.output
    unknown = CliRunner().invoke(rollup, ["godput", "--lake", lake.uri])
    assert "did you mean 'goodput'" in str(unknown.exception)
    assert isinstance(query(lake, "SELECT * FROM run_summary"), pa.Table)
