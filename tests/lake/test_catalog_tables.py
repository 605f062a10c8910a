"""The catalog as tables, what columns cost, and contracts in the words of ODCS: all against a real lake."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import jsonschema
import pyarrow.parquet as pq
import pytest
import yaml
from bringing import bring
from click.testing import CliRunner
from segments import DAY, put_segment, step_rows

from ranklake.bench.generate import write_node
from ranklake.bench.job import Job
from ranklake.cli import cli
from ranklake.errors import RanklakeError
from ranklake.flows.settings import FlowSettings
from ranklake.insight.catalog.refresh import refresh
from ranklake.insight.catalog.sizes import column_sizes, live_files, newest, table_size
from ranklake.lake.contracts import contract, load_contracts, load_metrics
from ranklake.lake.contracts.odcs import document
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.life.register import move
from ranklake.lake.rollups.life.state import Link
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.limits import Limits
from ranklake.pipeline.calls import catalog_once

ODCS = json.loads((Path(__file__).parent / "odcs-json-schema-v3.1.0.json").read_text(encoding="utf-8"))
ODCS_VALIDATOR = jsonschema.Draft201909Validator(ODCS)
"""One for all: a validator keeps what it resolved, and looks at the large schema itself no more than once."""
NOON = datetime(2026, 3, 9, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Return a lake with two minutes of eight synthetic ranks in it."""
    folder = tmp_path_factory.mktemp("catalog")
    write_node(Job(gpus=8, seconds=120.0, metrics=24), 0, str(folder / "spool"), {}, packed=True)
    made = Lake.create(str(folder / "lake"))
    bring(made, folder / "spool")
    return made


def run(*arguments, code=0):
    done = CliRunner().invoke(cli, ["catalog", *arguments], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


def test_the_tables_say_what_the_contracts_and_the_files_say(lake):
    """Every table and column has a row, with its owner and class, and the rows and bytes that are there."""
    done = refresh(lake, now=NOON)
    contracts = load_contracts()
    assert done.tables == len(contracts)
    assert done.columns == sum(len(one.columns) for one in contracts.values())
    tables = {row["table"]: row for row in query(lake, "SELECT * FROM catalog_tables").to_pylist()}
    assert set(tables) == set(contracts)
    for name in ("steps", "scalars", "gpu_samples", "segments"):
        stored = query(lake, f"SELECT count(*) AS n FROM {name}").to_pylist()[0]["n"]
        assert tables[name]["rows"] == stored > 0
        folder = Path(lake.store.root) / "tables" / name
        assert tables[name]["stored_bytes"] == sum(path.stat().st_size for path in folder.glob("date=*/*.parquet"))
    steps = tables["steps"]
    assert (steps["owner"], steps["retention"], steps["first_date"]) == ("training-platform", "raw", date(2026, 3, 2))
    assert steps["last_ts"] == query(lake, "SELECT max(ts) AS ts FROM steps").to_pylist()[0]["ts"]
    assert (tables["logs"]["rows"], tables["logs"]["written_ts"]) == (0, None)
    columns = query(lake, "SELECT * FROM catalog_columns WHERE table = 'runs' AND \"column\" = 'user'").to_pylist()[0]
    assert (columns["class"], columns["mask"], columns["value_count"]) == ("pseudonymous", "hash", 0)


def test_metrics_say_whether_anybody_records_them(lake):
    """Registered ones are counted where they are stored; one that is in no registry is there, too, and says so."""
    refresh(lake, now=NOON)
    metrics = {row["metric"]: row for row in query(lake, "SELECT * FROM catalog_metrics").to_pylist()}
    assert set(load_metrics()) < set(metrics)
    count = query(lake, "SELECT count(*) AS n FROM scalars WHERE metric = 'data/queue_depth'").to_pylist()[0]["n"]
    assert metrics["data/queue_depth"]["seen_values"] == count > 0
    assert metrics["data/queue_depth"]["unit"] == "{batch}"
    assert metrics["train/loss"]["seen_values"] == query(lake, "SELECT count(loss) AS n FROM steps").to_pylist()[0]["n"]
    assert (metrics["eval/loss"]["seen_values"], metrics["eval/loss"]["last_ts"]) == (0, None)
    stranger = metrics["layer_00/grad_norm"]
    assert (stranger["status"], stranger["owner"], stranger["stored_in"]) == ("unregistered", None, "scalars.value")


def test_the_catalog_says_what_became_of_a_metric(tmp_path):
    """A metric that was deprecated since the registry, and what took its place."""
    made = Lake.create(str(tmp_path / "lake"))
    move(made, "train/perplexity", "deprecated", "ada", links=[Link("eval/perplexity")])
    refresh(made, now=NOON)
    metrics = {row["metric"]: row for row in query(made, "SELECT * FROM catalog_metrics").to_pylist()}
    row = metrics["train/perplexity"]
    assert (row["status"], row["replaced_by"]) == ("deprecated", "eval/perplexity")
    assert date.fromisoformat(row["deprecated"]) <= datetime.now(UTC).date()
    assert "planned" not in {row["status"] for row in metrics.values()}, "the registry holds what something writes"


def test_a_day_has_one_refresh_and_other_days_stay(lake):
    """Refreshing again replaces the day's rows; another day's stay, so that growth can be asked for."""
    refresh(lake, now=NOON)
    refresh(lake, now=NOON + timedelta(hours=1))
    refresh(lake, now=NOON + timedelta(days=1))
    found = query(lake, "SELECT date, count(*) AS n, max(ts) AS ts FROM catalog_tables GROUP BY date ORDER BY date")
    rows = found.to_pylist()
    assert [row["n"] for row in rows if row["date"] >= NOON.date()] == [len(load_contracts())] * 2
    assert rows[-2]["ts"] == NOON + timedelta(hours=1)


def test_growth_is_a_mean_over_the_days_that_a_table_has(tmp_path):
    """Two days of steps, 30 rows on the first and 50 on the second, grow by 40 a day."""
    for number, (day, count) in enumerate(((1, 30), (2, 50))):
        start = datetime(2026, 3, day, tzinfo=UTC)
        put_segment(tmp_path / "spool", step_rows(count, start=start, incarnation=7 + number))
    made = Lake.create(str(tmp_path / "lake"))
    bring(made, tmp_path / "spool")
    size = table_size("steps", *live_files(made.tables, "steps"))
    assert (size.rows, size.daily_rows, size.first_date, size.last_date) == (
        80,
        40.0,
        date(2026, 3, 1),
        date(2026, 3, 2),
    )
    assert size.daily_bytes == size.stored_bytes / 2


def test_a_wrong_clock_makes_no_growth(tmp_path):
    """Rows of days to come, or of long ago, are in the table and not in what a day adds."""
    lake, spool = Lake.create(str(tmp_path / "lake")), tmp_path / "spool"
    put_segment(spool, step_rows(1000))
    put_segment(spool, step_rows(3000, segment=1, start=DAY + timedelta(days=1)), rows_before=1000)
    for segment, year in enumerate((2021, 2099), start=2):
        wrong = step_rows(5, segment=segment, start=datetime(year, 5, 1, tzinfo=UTC))
        put_segment(spool, wrong, rows_before=4000 + 5 * segment)
    any_time = Limits(future_hours=10**6)
    bring(lake.configured(ingest=any_time), spool)
    size = table_size("steps", *live_files(lake.tables, "steps"))
    assert (size.first_date.year, size.last_date.year, size.rows) == (2021, 2099, 4010)
    assert size.daily_rows == 2000
    assert size.daily_bytes < size.stored_bytes / 2
    only = Lake.create(str(tmp_path / "only"))
    put_segment(tmp_path / "other", step_rows(5, start=datetime(2099, 5, 1, tzinfo=UTC)))
    bring(only.configured(ingest=any_time), tmp_path / "other")
    assert table_size("steps", *live_files(only.tables, "steps")).daily_rows is None


def test_sizes_are_those_of_the_footers(lake):
    """Columns and what is left over come to the files' size; values that are NULL are not counted."""
    _, live = live_files(lake.tables, "steps")
    found = column_sizes(lake.store, contract("steps"), live)
    footer = pq.read_metadata(Path(lake.store.root) / "tables" / "steps" / live["path"][0].as_py())
    assert found.files == live.num_rows == 1
    chunk = next(
        footer.row_group(0).column(place)
        for place in range(footer.num_columns)
        if footer.row_group(0).column(place).path_in_schema == "loss"
    )
    loss = next(column for column in found.columns if column.column == "loss")
    assert (loss.stored_bytes, loss.plain_bytes) == (chunk.total_compressed_size, chunk.total_uncompressed_size)
    told = query(lake, "SELECT count(checkpoint_time_s) AS n, count(*) AS rows FROM steps").to_pylist()[0]
    saved = next(column for column in found.columns if column.column == "checkpoint_time_s")
    assert 0 < saved.values == told["n"] < told["rows"]
    assert found.rest_bytes > 0
    assert sum(column.stored_bytes for column in found.columns) + found.rest_bytes == live["size_bytes"][0].as_py()


def test_the_newest_files_are_looked_at_first(tmp_path):
    """A limit of files or rows keeps the newest, and at least one."""
    made = Lake.create(str(tmp_path / "lake"))
    for number in range(3):
        put_segment(tmp_path / "spool", step_rows(10, segment=number, first_slot=0))
        bring(made, tmp_path / "spool")
    _, live = live_files(made.tables, "steps")
    last = max(
        live["path"].to_pylist(),
        key=lambda path: (Path(made.store.root) / "tables" / "steps" / path).stat().st_mtime_ns,
    )
    assert newest(live, most_files=1)["path"].to_pylist() == [last]
    assert newest(live, most_rows=1)["path"].to_pylist() == [last]
    assert newest(live, most_rows=20).num_rows == 2


def test_the_command_shows_sizes_and_freshness(lake):
    """`ranklake catalog steps`, `catalog sizes` and `catalog sizes steps` agree, for people and machines."""
    shown = run("steps", "--lake", lake.uri)
    rows = json.loads(run("steps", "--lake", lake.uri, "--json"))["stored"]["rows"]
    assert f"holds {rows:,} rows in 1 files" in shown
    assert "a day adds" in shown
    assert "holds nothing yet" in run("logs", "--lake", lake.uri)
    tables = {one["table"]: one for one in json.loads(run("sizes", "--lake", lake.uri, "--json"))}
    assert tables["steps"]["rows"] == rows
    found = json.loads(run("sizes", "steps", "--lake", lake.uri, "--json"))
    assert found["row_bytes"] == tables["steps"]["stored_bytes"] / rows
    text = run("sizes", "steps", "--lake", lake.uri)
    assert all(name in text for name in (*contract("steps").names, "BYTE_STREAM_SPLIT"))
    assert "holds nothing yet" in run("sizes", "logs", "--lake", lake.uri)
    with pytest.raises(RanklakeError, match="did you mean 'steps'"):
        run("sizes", "stepz", "--lake", lake.uri)


def test_the_pipeline_and_the_command_refresh(lake):
    """`ranklake catalog refresh` and the pipeline's last step write the same tables."""
    done = json.loads(run("refresh", "--lake", lake.uri, "--json"))
    assert {**done, "changes": []} == catalog_once(FlowSettings(lake.uri).context())


def test_without_a_lake_the_contracts_are_shown(tmp_path, monkeypatch):
    """A configured lake that does not exist yet is no reason not to tell what a table is; one that is named is."""
    monkeypatch.setenv("RANKLAKE_LAKE", str(tmp_path / "none"))
    assert "holds" not in run("steps")
    with pytest.raises(RanklakeError, match="not a lake"):
        run("steps", "--lake", str(tmp_path / "none"))


@pytest.mark.parametrize("name", sorted(load_contracts()))
def test_each_contract_is_an_odcs_document(name):
    """The standard's own JSON Schema accepts it, and its columns, keys and classes are the contract's."""
    one = contract(name)
    made = document(one)
    ODCS_VALIDATOR.validate(made)
    properties = made["schema"][0]["properties"]
    assert [item["name"] for item in properties] == list(one.names)
    keys = sorted((item["primaryKeyPosition"], item["name"]) for item in properties if item.get("primaryKey"))
    assert [key for _, key in keys] == list(one.grain)
    assert [item["name"] for item in properties if item["required"]] == [c.name for c in one.columns if c.required]
    rules = [rule["name"] for place in (*properties, made["schema"][0]) for rule in place.get("quality", [])]
    assert sorted(rules) == sorted(check.id for check in one.all_checks())


def test_the_schema_refuses_what_is_none():
    """The schema is looked at: a document without its status, or with a type of our own, is refused."""
    ODCS_VALIDATOR.check_schema(ODCS)
    made = document(contract("steps"))
    with pytest.raises(jsonschema.ValidationError):
        ODCS_VALIDATOR.validate({**made, "status": None})
    made["schema"][0]["properties"][0]["logicalType"] = "text"
    with pytest.raises(jsonschema.ValidationError):
        ODCS_VALIDATOR.validate(made)


@pytest.mark.slow
def test_export_writes_a_file_for_each_contract(tmp_path):
    """Files hold what is printed; an unknown format is told the one there is."""
    run("export", "--output", str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.odcs.yaml" for name in load_contracts()}
    printed = list(yaml.safe_load_all(run("export", "steps", "runs")))
    assert printed == [yaml.safe_load((tmp_path / f"{name}.odcs.yaml").read_text()) for name in ("steps", "runs")]
    with pytest.raises(Exception, match="did you mean 'odcs'"):
        run("export", "--format", "odc")


def test_refreshes_at_once_leave_one_catalog(lake):
    """Whoever loses the race for a commit tries again; the day has each table once."""
    moment = NOON + timedelta(days=2)
    with ThreadPoolExecutor(4) as pool:
        done = [future.result() for future in [pool.submit(refresh, lake, now=moment) for _ in range(4)]]
    assert len(set(done)) == 1
    for name, key in (("catalog_tables", "table"), ("catalog_metrics", "metric")):
        text = f"SELECT count(*) AS n, count(DISTINCT {key}) AS names FROM {name} WHERE date = $day"
        found = query(lake, text, {"day": moment.date()}).to_pylist()[0]
        assert found["n"] == found["names"] > 0
