"""Opening the Delta tables of a lake."""

import pickle
import shutil
from pathlib import Path

import pytest
from segments import put_segment, step_rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeUnreachableError, NotALakeError
from ranklake.lake.store.store import MARKER
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table, ensure_table, latest


def test_a_damaged_log_is_said_in_one_line(tmp_path):
    """A commit file that was cut short is refused in words, without the backtrace of the library below."""
    put_segment(tmp_path / "spool", step_rows(5))
    lake = Lake.create(str(tmp_path / "lake"))
    ingest(lake, Spool(str(tmp_path / "spool")), InProcess())
    commit = max((tmp_path / "lake" / "tables" / "steps" / "_delta_log").glob("*.json"))
    commit.write_bytes(commit.read_bytes()[:300])
    with pytest.raises(LakeUnreachableError) as caught:
        delta_table(lake.store, "steps")
    assert "table steps cannot be opened" in str(caught.value)
    assert "<unknown>" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("number", "hint"), [(1, "make a new lake"), (99, "upgrade ranklake")])
def test_a_lake_of_another_format_is_refused(tmp_path, number, hint):
    """One line says which format it has, and what to do: no release wrote an older one."""
    lake = Lake.create(str(tmp_path / "lake"))
    Path(lake.path(MARKER)).write_text(f'{{"format": {number}}}')
    with pytest.raises(NotALakeError, match=f"lake format {number}, .*{hint}"):
        Lake.open(lake.uri)


def test_a_table_never_written_is_none(tmp_path):
    """A table that nothing was stored in is no error."""
    assert delta_table(Lake.create(str(tmp_path / "lake")).store, "steps") is None


@pytest.fixture
def lake(tmp_path):
    """Return a lake with five rows of `steps`."""
    put_segment(tmp_path / "spool", step_rows(5))
    lake = Lake.create(str(tmp_path / "lake"))
    ingest(lake, Spool(str(tmp_path / "spool")), InProcess())
    return lake


def test_the_kept_handle_sees_what_others_commit(lake, tmp_path):
    """Opened once; news of another process are in it; a lake that is sent to another process takes none along."""
    kept = latest(lake.tables, "steps")
    version = kept.version()
    put_segment(tmp_path / "spool", step_rows(7, segment=1))
    ingest(Lake.open(lake.uri), Spool(str(tmp_path / "spool")), InProcess())
    assert latest(lake.tables, "steps") is kept
    assert kept.version() == version + 1 == delta_table(lake.store, "steps").version()
    assert pickle.loads(pickle.dumps(lake)).tables.opened == {}


def test_a_handle_of_its_own_stays_where_it_was(lake, tmp_path):
    """Who commits by what he has read is not moved on by others who look."""
    mine, version = delta_table(lake.store, "steps"), delta_table(lake.store, "steps").version()
    put_segment(tmp_path / "spool", step_rows(7, segment=1))
    ingest(lake, Spool(str(tmp_path / "spool")), InProcess())
    assert latest(lake.tables, "steps").version() == version + 1
    assert mine.version() == version


def test_the_kept_handle_of_a_table_that_is_gone_is_none(lake, tmp_path):
    """A table that was removed is not remembered, and one that was made anew is another."""
    assert latest(lake.tables, "steps").version() == 1
    table = tmp_path / "lake" / "tables" / "steps"
    table.rename(tmp_path / "old")
    assert latest(lake.tables, "steps") is None
    (tmp_path / "old").rename(table)
    assert latest(lake.tables, "steps").version() == 1
    shutil.rmtree(table)
    assert ensure_table(lake.tables, contract("steps")).version() == 0
    assert latest(lake.tables, "steps").version() == 0


def test_a_table_made_anew_with_as_many_commits_is_another(lake, tmp_path):
    """The kept handle goes by the file of its commit, not by the commit's number: what is read is what is there."""
    assert read(lake.tables, contract("steps")).num_rows == 5
    shutil.rmtree(tmp_path / "lake")
    put_segment(tmp_path / "other", step_rows(9, incarnation=8))
    other = Lake.create(lake.uri)
    ingest(other, Spool(str(tmp_path / "other")), InProcess())
    assert delta_table(other.store, "steps").version() == 1
    assert read(lake.tables, contract("steps")).num_rows == 9


def test_a_log_that_fails_after_it_was_opened_is_said_in_one_line(lake):
    """A handle reads the log's checkpoint when it is asked; what the disk says of it then is no traceback."""
    delta_table(lake.store, "steps").create_checkpoint()
    handle = delta_table(lake.store, "steps")
    (checkpoint,) = Path(lake.path("tables", "steps", "_delta_log")).glob("*.checkpoint.parquet")
    checkpoint.write_bytes(b"PAR1" * 40)
    with pytest.raises(LakeUnreachableError, match="its log cannot be read"):
        number_of(handle)


def test_a_commit_that_is_refused_while_none_is_seen_to_win_ends(lake):
    """Where a listing hides the commit that won, nobody tries for ever: it is said in one line."""
    log = Path(lake.path("tables", "steps", "_delta_log"))
    newest = max(log.glob("*.json"))
    raw = newest.read_bytes()
    newest.unlink()
    handle = delta_table(lake.store, "steps")
    newest.mkdir()  # taken, and no commit
    with pytest.raises(LakeUnreachableError):
        swap(handle, 99, add=[])
    newest.rmdir()
    newest.write_bytes(raw)
