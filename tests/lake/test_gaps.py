"""Listings of a log, made beside its writers, that lack a commit between two others; and logs that do lack one."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from rollup_inputs import NOON, rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.lake.tables.commit import LostRaceError, number_of, swap
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.tables import at_version, delta_table, ensure_table, refresh, retry_listing

STEPS = contract("steps")
GAP = "Kernel error: Generic delta kernel error: Expected contiguous commit files, but found gap"


def new(lake, step):
    """Write a file of one row; commit nothing."""
    facts = rows("steps", [{"run": "a", "step": step, "ts": NOON, "step_time_s": 1.0}])
    return append_files(lake.store, STEPS, facts, step + 1)


@pytest.fixture
def lake(tmp_path):
    """Give a lake of three commits to its steps."""
    lake = Lake.create(str(tmp_path / "lake"))
    for step in range(3):
        swap(ensure_table(lake.tables, STEPS), step + 1, add=new(lake, step))
    return lake


class Failing:
    """A method that finds a gap a few times, before it does its work or behind it, and then no more."""

    def __init__(self, monkeypatch, name, times, *, behind=False):
        """Take the place of a method of delta-rs's tables."""
        self.left, self.behind, self.genuine = times, behind, getattr(DeltaTable, name)

        def stands_in(*given, **more):  # a function, which becomes a method of the table
            return self(*given, **more)

        monkeypatch.setattr(DeltaTable, name, stands_in)

    def __call__(self, *given, **more):
        """Do the work, or fail."""
        self.left -= 1
        if self.left < 0:
            return self.genuine(*given, **more)
        if self.behind:
            self.genuine(*given, **more)
        raise DeltaError(GAP)


@pytest.mark.parametrize(
    ("name", "look"),
    [
        ("__init__", lambda lake, _: delta_table(lake.store, "steps").version()),
        ("__init__", lambda lake, _: at_version(lake.store, "steps", 3).version()),
        ("update_incremental", lambda _, handle: refresh(handle) or handle.version()),
    ],
)
def test_a_listing_that_lacks_a_commit_is_made_again(lake, monkeypatch, name, look):
    """Whoever looks sees the table as it is."""
    handle = delta_table(lake.store, "steps")
    failing = Failing(monkeypatch, name, 3)
    assert look(lake, handle) == 3
    assert failing.left == -1


def test_a_log_that_lacks_a_commit_is_told(lake):
    """It is no matter of a listing: the same is found again and again."""
    (Path(lake.uri) / "tables/steps/_delta_log" / f"{2:020}.json").unlink()
    with pytest.raises(LakeUnreachableError, match="steps cannot be opened"):
        delta_table(lake.store, "steps")


@pytest.mark.parametrize("behind", [False, True])
def test_a_commit_beside_a_gap_is_made_once(lake, monkeypatch, behind):
    """Whether delta-rs met the gap before its commit or after it: it is there, and the caller knows."""
    handle, file = ensure_table(lake.tables, STEPS), new(lake, 3)
    Failing(monkeypatch, "create_write_transaction", 1, behind=behind)
    assert swap(handle, 4, add=file)
    monkeypatch.undo()
    found = delta_table(lake.store, "steps")
    assert (found.version(), number_of(found)) == (4, 4)
    assert files(found)["path"].to_pylist().count(file[0].path) == 1


def test_a_race_that_was_lost_beside_a_gap_is_lost(lake, monkeypatch):
    """What another committed under the number is not taken for this call's."""
    handle = ensure_table(lake.tables, STEPS)
    swap(ensure_table(lake.tables, STEPS), 4, add=new(lake, 5))
    Failing(monkeypatch, "create_write_transaction", 1)
    with pytest.raises(LostRaceError):
        swap(handle, 4, add=new(lake, 6))
    assert files(delta_table(lake.store, "steps")).num_rows == 4


def test_a_path_that_reads_like_a_gap_is_no_gap():
    """What quotes a path such as that of a lake in Singapore is raised at once: asking a store again takes minutes."""
    asked = []

    def ask():
        asked.append(1)
        raise DeltaError("Generic S3 error: PUT s3://singapore/tables/gap timed out")

    with pytest.raises(DeltaError, match="timed out"):
        retry_listing(ask)
    assert asked == [1]
