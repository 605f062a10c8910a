"""Files of the audit log are merged beside writers who append to it all the time."""

import pytest
from deltalake import DeltaTable

from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import record, trail
from ranklake.lake.ingest.maintenance.compaction import FAN_IN
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table

MOST_TRIES = 5


def recorded(place, number):
    """Add a row as another process does; return its number."""
    return record(Lake.open(str(place)), "somebody", "test.act", f"row {number}")


@pytest.fixture
def lake(tmp_path):
    """Give a lake whose trail has twelve files."""
    lake = Lake.create(str(tmp_path / "lake"))
    for number in range(12):
        recorded(lake.uri, number)
    return lake


@pytest.mark.slow
def test_upkeep_ends_though_others_write_before_each_of_its_commits(lake, monkeypatch):
    """A row comes between each look of delta-rs and its commit, and a few before ours; each row stays, once."""
    rows, tries = iter(range(100, 1000)), []
    genuine = DeltaTable.create_write_transaction

    def outrun(table, actions, *given, **more):
        is_merge = table.table_uri.rstrip("/").endswith("/audit") and len(actions) > 1
        if is_merge and len(tries) < MOST_TRIES:
            tries.append(table.version())
            recorded(lake.uri, next(rows))
        return genuine(table, actions, *given, **more)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", outrun)
    before = files(delta_table(lake.store, "audit")).num_rows
    upkeep(lake, InProcess())
    monkeypatch.undo()
    assert len(tries) == MOST_TRIES
    assert files(delta_table(lake.store, "audit")).num_rows < before
    found = prove(lake)
    assert found.whole, found.why
    subjects = [row["subject"] for row in trail(lake.tables)]
    assert len(set(subjects)) == len(subjects)
    assert {f"row {number}" for number in (*range(12), *range(100, next(rows)))} <= set(subjects)


@pytest.mark.slow
def test_upkeep_ends_though_others_bring_as_many_files_as_it_merges(lake, monkeypatch):
    """While each plan is carried out, more files come than are merged at a time."""
    rows, plans, genuine = iter(range(100, 100_000)), [], action_plan.execute

    def busy(lake, plan, *given):
        if plan.kind == "compaction":
            plans.append(plan.number)
            assert len(plans) <= MOST_TRIES, "there is no end to it"
            for _ in range(FAN_IN):
                recorded(lake.uri, next(rows))
        return genuine(lake, plan, *given)

    monkeypatch.setattr(action_plan, "execute", busy)
    upkeep(lake, InProcess())
    assert plans
    found = prove(lake)
    assert found.whole, found.why
