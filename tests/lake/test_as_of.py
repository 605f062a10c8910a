"""Time travel: tables as they were."""

import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from rollup_inputs import NOON, append

import ranklake.lake
from ranklake.commands.sql import sql
from ranklake.lake.query.sql import QueryError, query
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.tables import delta_table

COUNT = "SELECT count(*) AS n FROM steps"
BOTH = "SELECT (SELECT count(*) FROM steps) AS steps, (SELECT count(*) FROM events) AS events"


def now():
    """Return a time that is after all commits so far and before all later ones; logs know milliseconds."""
    time.sleep(0.01)
    moment = datetime.now(UTC)
    time.sleep(0.01)
    return moment


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Give a lake and the times before its first commit, between the commits, and after the last."""
    lake = Lake.create(str(tmp_path_factory.mktemp("lake")))
    times = [now()]
    for table in ("steps", "events", "steps"):
        kind = {"event": "run_start"} if table == "events" else {"step": 1, "step_time_s": 1.0}
        append(lake, table, [{"ts": NOON, **kind}])
        times.append(now())
    return lake, times


def test_all_tables_as_they_stood_at_a_time(site):
    """A time gives each table's rows of then; one that was made later is empty."""
    lake, times = site
    found = [query(lake, BOTH, as_of=moment).to_pylist()[0] for moment in times]
    assert found == [
        {"steps": 0, "events": 0},
        {"steps": 1, "events": 0},
        {"steps": 1, "events": 1},
        {"steps": 2, "events": 1},
    ]
    assert query(lake, COUNT, as_of=times[1].replace(tzinfo=None).isoformat()).to_pylist() == [{"n": 1}]


def test_one_table_as_of_a_version(site):
    """Version 0 is the table as it was made; a version needs to say whose it is where several tables are named."""
    lake, times = site
    assert [query(lake, COUNT, as_of=version)["n"][0].as_py() for version in range(3)] == [0, 1, 2]
    assert query(lake, BOTH, as_of="steps=1").to_pylist() == [{"steps": 1, "events": 1}]
    assert query(lake, BOTH, as_of=["steps=2", times[0].isoformat()]).to_pylist() == [{"steps": 2, "events": 0}]
    assert ranklake.lake.sql(COUNT, lake, as_of=1)["n"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("as_of", "message"),
    [
        (3, "steps has no version 3; its versions end at 2"),
        ("gpu_samples=0", "the query does not name gpu_samples"),
        ("yesterday", "'yesterday' is neither a version nor a time; write a version"),
        ("events=9", "does not name events"),
    ],
)
def test_what_cannot_be_read_as_of(site, as_of, message):
    """Versions that are not there and times that are none are refused in one line that says what to write."""
    with pytest.raises(QueryError, match=message):
        query(site[0], COUNT, as_of=as_of)
    with pytest.raises(QueryError, match="of which of 2 tables"):
        query(site[0], BOTH, as_of=1)
    with pytest.raises(QueryError, match="never written"):
        query(site[0], "SELECT count(*) FROM gpu_samples", as_of=0)


def test_a_log_that_was_cleaned_is_said_to_be(tmp_path):
    """A time or version before the oldest checkpoint that is left is refused, not answered from a later state."""
    lake = Lake.create(str(tmp_path / "lake"))
    for step in range(3):
        append(lake, "steps", [{"step": step, "ts": NOON, "step_time_s": 1.0}])
    early = now()
    append(lake, "steps", [{"step": 9, "ts": NOON, "step_time_s": 1.0}])
    delta_table(lake.store, "steps").create_checkpoint()
    log = Path(lake.path("tables", "steps", "_delta_log"))
    for number in range(4):
        (log / f"{number:020}.json").unlink()
    assert query(lake, COUNT).to_pylist() == [{"n": 4}]
    assert query(lake, COUNT, as_of=datetime.now(UTC) + timedelta(days=1)).to_pylist() == [{"n": 4}]
    for as_of in (early, 2, datetime(2020, 1, 1, tzinfo=UTC)):
        with pytest.raises(QueryError, match="no longer reaches back"):
            query(lake, COUNT, as_of=as_of)


def test_a_copy_of_a_lake_goes_by_what_its_commits_say(site, tmp_path):
    """Files of a copy, or of a backup that was brought back, are all younger than the commits that they hold."""
    lake, times = site
    shutil.copytree(lake.store.root, tmp_path / "copy", copy_function=shutil.copyfile)
    copy = Lake.open(str(tmp_path / "copy"))
    for moment in times:
        assert query(copy, BOTH, as_of=moment).equals(query(lake, BOTH, as_of=moment))


def test_on_the_command_line(site):
    """`--as-of` takes versions and times, and errors come as one line."""
    lake, times = site

    def ask(*arguments):
        return CliRunner().invoke(sql, [COUNT, "--format", "csv", *arguments, "--lake", lake.uri])

    assert ask("--as-of", "1").stdout.split() == ["n", "1"]
    assert ask("--as-of", times[0].isoformat()).stdout.split() == ["n", "0"]
    assert "has no version 7" in str(ask("--as-of", "steps=7").exception)
    assert os.linesep not in str(ask("--as-of", "steps=7").exception)
