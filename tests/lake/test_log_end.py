"""The end of a log, kept: as good as a fresh look at the table, whatever others did to it meanwhile."""

import pickle
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from rollup_inputs import NOON, rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.lake.store.store import Lake
from ranklake.lake.tables import log_end, tables
from ranklake.lake.tables.commit import LostRaceError, number_of, said, swap
from ranklake.lake.tables.data_file import addition, removal
from ranklake.lake.tables.live_files import DamagedLogError, files
from ranklake.lake.tables.log_end import LogEnd
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.table_schema import commit, fields_of, metadata_action
from ranklake.lake.tables.tables import delta_table

STEPS = contract("steps")


@pytest.fixture
def lake(tmp_path):
    """Give an empty lake."""
    return Lake.create(str(tmp_path / "lake"))


def new(lake, step=0):
    """Write a file of one row; commit nothing."""
    facts = rows("steps", [{"run": "a", "step": step, "ts": NOON, "step_time_s": 1.0}])
    return append_files(lake, STEPS, facts, 1)


def appended(lake, **also):
    """Append a row by the kept end; return the end."""
    end = LogEnd.of(lake, STEPS)
    assert end.append(new(lake), also)
    end.keep()
    return end


def stands(lake, end):
    """Say whether an end is what a fresh look at the table shows, a handle's, too."""
    fresh = delta_table(lake, "steps")
    assert (end.version, end.number) == (fresh.version(), number_of(fresh))
    assert end.handle().version() == fresh.version()
    return files(fresh).num_rows


def test_commits_are_those_of_any_writer(lake, monkeypatch):
    """Readers see each row; checkpoints come as from delta-rs; numbers are in the log; the table is opened once."""
    opened = []
    genuine = log_end.ensure_table
    monkeypatch.setattr(log_end, "ensure_table", lambda *given: opened.append(1) or genuine(*given))
    for index in range(22):
        appended(lake, rows=index)
    assert opened == [1]
    assert stands(lake, LogEnd.of(lake, STEPS)) == 22
    assert said(delta_table(lake, "steps"), "rows") == 21
    names = {path.name for path in Path(lake.path("tables", "steps", "_delta_log")).iterdir()}
    assert f"{19:020}.checkpoint.parquet" in names
    history = delta_table(lake, "steps").history(3)
    assert [one["operation"] for one in history] == ["WRITE"] * 3


def test_what_others_committed_is_read(lake):
    """Few commits one by one, many by opening the table anew; a number that they left alone is still known."""
    appended(lake, rows=7)
    for others in (1, 3, 21):
        for _ in range(others):
            handle = delta_table(lake, "steps")
            assert swap(handle, number_of(handle) + 1, add=new(lake), also={"theirs": others})
        end = LogEnd.of(lake, STEPS)
        assert (end.said("rows"), end.said("theirs"), end.said("nobody")) == (7, others, None)
        stands(lake, end)
        end.keep()
        appended(lake)


def test_who_loses_changes_nothing(lake):
    """The next version is taken by one alone; the other looks again."""
    appended(lake)
    mine, theirs = LogEnd.of(lake, STEPS), LogEnd(lake, STEPS)
    assert theirs.append(new(lake), {})
    assert not mine.append(new(lake), {})
    assert files(delta_table(lake, "steps")).num_rows == 2
    mine.keep()
    assert appended(lake).version == 3
    handle = delta_table(lake, "steps")
    appended(lake)
    with pytest.raises(Exception, match="committed 4 first"):
        swap(handle, 4, add=new(lake))


def test_a_commit_that_was_not_confirmed_is_known_again(lake, monkeypatch):
    """A store that carried it out and said that the name is taken: it is done. One that shows no other: one line."""
    appended(lake)
    genuine = log_end.commit
    monkeypatch.setattr(log_end, "commit", lambda *given: genuine(*given) and False)
    assert appended(lake).version == 2
    assert stands(lake, LogEnd.of(lake, STEPS)) == 2
    monkeypatch.setattr(log_end, "commit", lambda *_: False)
    with pytest.raises(LakeUnreachableError, match="no other is to be seen"):
        appended(lake)


@pytest.mark.parametrize("error", [DeltaError("no room"), ValueError("a partition without its value")])
def test_a_checkpoint_that_fails_takes_no_commit_back(lake, monkeypatch, error):
    """The row is there, and whoever added it is told so; upkeep writes what is due."""

    def fails(_):
        raise error

    monkeypatch.setattr(DeltaTable, "update_incremental", fails)
    for _ in range(20):
        appended(lake)
    monkeypatch.undo()
    assert stands(lake, LogEnd.of(lake, STEPS)) == 20
    assert not list(Path(lake.path("tables", "steps", "_delta_log")).glob("*.checkpoint.parquet"))


def test_files_are_live_that_came_since_the_table_was_opened(lake):
    """Who merges is told right of files that others brought, took out, or brought again in the commit that did."""
    end = appended(lake)
    assert end.merge([], [], 1, {})
    end.keep()
    (file,) = new(lake, 1)
    handle = delta_table(lake, "steps")
    assert swap(handle, number_of(handle) + 1, add=[file])
    end = LogEnd.of(lake, STEPS)
    assert end.merge([], [file.path], 2, {})
    end.keep()
    facts = (file.path, file.partition.isoformat(), file.size_bytes)
    actions = [removal(*facts, 0), addition(*facts, file.stats, 0)]
    assert commit(lake, "steps", end.version, actions, {"operation": "TEST"})
    with pytest.raises(LostRaceError, match="gone"):
        LogEnd.of(lake, STEPS).merge([], [file.path], 3, {})


def changed_columns(lake, folder):
    """Change what the table says of itself."""
    handle = delta_table(lake, "steps")
    action = metadata_action(handle, fields_of(handle.schema()), {"ranklake.seen": "yes"})
    assert commit(lake, "steps", handle.version(), [action], {"operation": "TEST"})


def made_anew(lake, folder):
    """Put a table of one row there."""
    shutil.rmtree(folder)
    other = Lake.create(lake.uri)
    appended(other)


def cut(lake, folder):
    """Delete the last two commits."""
    for path in sorted(folder.glob("_delta_log/0*.json"))[-2:]:
        path.unlink()


def gone(lake, folder):
    """Delete the table."""
    shutil.rmtree(folder)


def copied(lake, folder):
    """Put a copy of the table in its place."""
    shutil.copytree(folder, folder.with_name("copy"))
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)


@pytest.mark.parametrize("harm", [changed_columns, made_anew, cut, gone, copied])
def test_a_table_that_is_another_is_opened_anew(lake, harm):
    """Whatever was kept of it: what is appended then stands on what is there."""
    for _ in range(4):
        appended(lake, rows=9)
    harm(lake, Path(lake.path("tables", "steps")))
    before = delta_table(lake, "steps")
    rows_before = files(before).num_rows if before is not None else 0
    end = appended(lake)
    assert stands(lake, end) == rows_before + 1


@pytest.mark.parametrize(
    "line", ['{"txn": {"appId": "lake", "version": -1}}', '{"txn": {"appId": "lake", "version": 1e400}}', "{"]
)
def test_a_damaged_commit_is_told(lake, line):
    """As whoever opens the table tells it; nothing is committed on it."""
    appended(lake)
    place = Path(lake.path("tables", "steps", "_delta_log", f"{2:020}.json"))
    place.write_text(line)
    with pytest.raises((LakeUnreachableError, DamagedLogError)):
        appended(lake)
    assert not place.with_name(f"{3:020}.json").exists()


def test_another_process_gets_none_of_it(lake):
    """A lake that is pickled, or configured otherwise, keeps its own."""
    appended(lake)
    assert lake.ends
    assert not pickle.loads(pickle.dumps(lake)).ends
    assert not lake.configured().ends


def test_who_deletes_sees_all_that_was_there(lake, monkeypatch):
    """Beside writers that never rest a look ends; a listing that goes on without a commit is told."""
    appended(lake)
    genuine = tables.delta_table
    looks = []

    def beside_writers(*given):
        handle = genuine(*given)
        looks.append(handle.version())
        appended(lake)  # after each look there is one more
        return handle

    monkeypatch.setattr(tables, "delta_table", beside_writers)
    assert tables.last_table(lake, "steps").version() >= looks[0] + 1
    assert len(looks) == 2
    stale = genuine(lake, "steps")
    appended(lake)
    monkeypatch.setattr(tables, "delta_table", lambda *_: stale)
    with pytest.raises(LakeUnreachableError, match="lacks the newest commits"):
        tables.last_table(lake, "steps")
