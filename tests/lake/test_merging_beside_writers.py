"""Files of the trail are merged beside writers that are faster than delta-rs: it would lose to them again and again."""

import pytest
from deltalake import DeltaTable

from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import record, trail
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.merges import FAN_IN
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.store import Lake
from ranklake.lake.tables import log_end
from ranklake.lake.tables.commit import PLAN_ID, LostRaceError, said
from ranklake.lake.tables.data_file import removal
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.log_end import LogEnd
from ranklake.lake.tables.tables import delta_table

AUDIT = contract("audit")
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
    genuine, ours = DeltaTable.create_write_transaction, LogEnd._write

    def outrun(table, *given, **more):
        if table.table_uri.rstrip("/").endswith("/audit"):
            tries.append(table.version())
            assert len(tries) <= MOST_TRIES, "delta-rs loses every race"
            recorded(lake.uri, next(rows))
        return genuine(table, *given, **more)

    def late(end, actions, *given):
        if any("remove" in one for one in actions) and len(tries) < MOST_TRIES:
            tries.append(end.version)
            recorded(lake.uri, next(rows))
        return ours(end, actions, *given)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", outrun)
    monkeypatch.setattr(LogEnd, "_write", late)
    before = files(delta_table(lake, "audit")).num_rows
    upkeep(lake, InProcess())
    monkeypatch.undo()
    assert len(tries) == MOST_TRIES
    assert files(delta_table(lake, "audit")).num_rows < before
    found = prove(lake)
    assert found.whole, found.why
    subjects = [row["subject"] for row in trail(lake)]
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


def test_a_plan_is_carried_out_once(lake):
    """Whoever comes late finds the plan's number; what names a file that is gone is refused, and nothing changes."""
    live = files(delta_table(lake, "audit"))
    log_end.swap_at_end(lake, AUDIT, 77, [], live.slice(0, 0), {"ranklake.plan": "77"})
    version = delta_table(lake, "audit").version()
    log_end.swap_at_end(lake, AUDIT, 77, [], live, {})
    found = delta_table(lake, "audit")
    assert (found.version(), said(found, PLAN_ID)) == (version, 77)
    end = LogEnd.of(lake, AUDIT)
    with pytest.raises(LostRaceError, match="gone"):
        end.merge([removal("date=2026-01-01/no", "2026-01-01", 1, 0)], ["date=2026-01-01/no"], 78, {})
    assert delta_table(lake, "audit").version() == version
