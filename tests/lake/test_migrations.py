"""Migrations of a lake: stored rows come to the next contract and back, once, whoever dies on the way."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pyarrow as pa
import pytest
from bringing import adds_up, books, bring
from changed_contracts import column, convert, rename, retype
from deltalake import DeltaTable
from killing import Killer
from segments import DAY, put_segment, segment_bytes, step_rows

from ranklake.lake.audit.trail import trail
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.ingest.replay.run import replay
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.migrations import applying, composing, registry, rewriting
from ranklake.lake.migrations.drift import drift
from ranklake.lake.migrations.due import due as are_due
from ranklake.lake.migrations.migration import read_migration
from ranklake.lake.migrations.proof import verify
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans.plan import RefusedPlanError
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.table_schema import UnmigratedTableError
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.migrations import MIGRATIONS
from ranklake.retention.proposals.proposals import NotApprovedError, SameOperatorError


def drop(facts, name="loss"):
    """Let a column go."""
    gone = column(facts, name)
    facts["columns"].remove(gone)
    tomb = {"id": gone["id"], "name": name, "type": gone["type"], "retired_in": facts["version"] + 1, "reason": "-"}
    facts.setdefault("retired", []).append(tomb)
    facts["checks"] = [one for one in facts.get("checks", []) if name not in one.get("columns", [])]


def rows_of(lake, *names):
    """Return columns of ``steps`` in the order of their keys."""
    rows = read(lake.tables, contract("steps"), ["incarnation", "segment", "slot", *names])
    return rows.sort_by([("incarnation", "ascending"), ("segment", "ascending"), ("slot", "ascending")])


def apply(lake, **options):
    """Apply what is due."""
    return applying.apply(lake, InProcess(), "Ada", **options)


@pytest.mark.slow
def test_rows_come_along_and_go_back(lake, spool, changed):
    """A rename, a unit and a type in one migration: rows of before and after mean the same; undo gives them back."""
    put_segment(spool, step_rows(50))
    bring(lake, spool)
    before = rows_of(lake, "tokens", "step_time_s", "loss")
    put_segment(spool, step_rows(20, segment=1), rows_before=50)  # of the older writer, ingested afterwards

    def change(facts):
        rename(facts)
        convert(facts)
        retype(facts)

    changed.migrate("steps", change, factor=1000)
    (due,) = are_due(lake)
    assert (due.files, due.rows) == (1, 50)
    (done,) = apply(lake)
    assert (done.table, done.version, done.rows) == ("steps", 2, 50)
    assert list(are_due(lake)) == []
    assert bring(lake, spool).rows_stored == 20
    after = rows_of(lake, "tokens_seen", "step_time_ms", "loss")
    assert after["tokens_seen"].to_pylist() == [1024] * 70
    expected = [value * 1000 for value in before["step_time_s"].to_pylist()]
    assert after["step_time_ms"].to_pylist()[:50] == pytest.approx(expected, rel=1e-6)
    assert after["loss"].type == "double"
    assert after["loss"].to_pylist()[:50] == before["loss"].to_pylist()
    assert query(lake, "SELECT avg(step_time_ms) AS t FROM steps")["t"][0].as_py() == pytest.approx(1000, rel=0.2)
    adds_up(lake, spool)
    proof = verify(lake, "steps")
    assert (proof.files, proof.rows, proof.gone, proof.faults) == (1, 50, 0, [])
    assert {"run", "slot", "ts", "step"} <= proof.untouched
    ends = proof.ranges["step_time_ms"]
    assert ends["after"] == pytest.approx([1000 * one for one in ends["before"]])
    upkeep(lake, InProcess())
    applying.undo(lake, InProcess(), "Ada", "steps")
    changed.earlier()
    back = rows_of(lake, "tokens", "step_time_s", "loss")
    assert back["loss"].to_pylist()[:50] == before["loss"].to_pylist()
    assert back["step_time_s"].to_pylist()[:50] == pytest.approx(before["step_time_s"].to_pylist(), rel=1e-6)
    assert back["tokens"].to_pylist() == [1024] * 70
    adds_up(lake, spool)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["forth", "back"])
def test_whoever_dies_anywhere_the_next_goes_on(lake, spool, changed, monkeypatch, way):
    """Killed before or after each file, note, plan and commit that it writes, a migration ends as one that was not."""
    for segment in range(2):
        rows = step_rows(20, segment=segment, start=DAY + timedelta(days=segment))
        put_segment(spool, rows, rows_before=20 * segment)
    bring(lake, spool)
    changed.migrate("steps", rename)
    if way == "back":
        apply(lake)
    with monkeypatch.context() as patch:
        killer = Killer(patch)
        work = (lambda: apply(lake)) if way == "forth" else (lambda: applying.undo(lake, InProcess(), "Ada", "steps"))
        while not killer.survives(work):
            with killer.spared():
                found = query(lake, "SELECT * FROM steps")  # a reader meanwhile: all of one, or all of the other
            assert ("tokens" in found.column_names) != ("tokens_seen" in found.column_names)
            assert found.num_rows == 40
    assert killer.last > 7
    if way == "back":
        changed.earlier()
    name = "tokens_seen" if way == "forth" else "tokens"
    assert rows_of(lake, name)[name].to_pylist() == [1024] * 40
    states = read(lake.tables, contract("migrations"), ["status", "plan"]).sort_by("plan")["status"].to_pylist()
    assert states == ["applied", "reverted"][: 1 if way == "forth" else 2]
    adds_up(lake, spool)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["forth", "back"])
def test_a_disk_that_fills_on_the_way(small_disk, spool, changed, way):
    """A full disk raises in a line, wherever it comes; with room again, the next call ends what was begun, once."""
    place, remount = small_disk
    remount("size=20m")
    lake = Lake.create(str(place / "lake"))
    for segment in range(3):
        rows = step_rows(5_000, segment=segment, start=DAY + timedelta(days=segment))
        put_segment(spool, rows, rows_before=5_000 * segment)
    bring(lake, spool)
    changed.migrate("steps", rename)
    if way == "back":
        apply(lake)
    taken = sum(path.stat().st_blocks * 512 for path in place.rglob("*") if path.is_file()) // 1024
    full = 0
    for kilobytes in (*range(taken + 20, taken + 500, 40), 20_000):
        remount(f"size={kilobytes}k")
        names = query(lake, "SELECT * FROM steps").column_names
        assert ("tokens" in names) != ("tokens_seen" in names)
        try:
            apply(lake) if way == "forth" else applying.undo(lake, InProcess(), "Ada", "steps")
        except LakeUnreachableError:
            full += 1
        except MigrationError as error:
            found = str(error)
            break
    else:
        found = "to undo"
    assert "to undo" in found, "whoever came first undid it"
    assert full > 2, "the disk was full, now and then"
    if way == "back":
        changed.earlier()
    name = "tokens_seen" if way == "forth" else "tokens"
    assert rows_of(lake, name)[name].to_pylist() == [1024] * 15_000
    adds_up(lake, spool)


@pytest.mark.slow
def test_a_table_that_was_restored_to_before_is_migrated_again(lake, spool, changed):
    """Who restores a version of before is told; the migration is due again, and rows that came since by a replay."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    version = delta_table(lake.store, "steps").version()
    changed.migrate("steps", rename)
    apply(lake)
    changed.earlier()  # as their writers are of before
    others = [segment_bytes(step_rows(5, segment=number), rows_before=15 + 5 * number) for number in (1, 2)]
    changed.later()
    (spool / "segments" / "2026-03-01" / others[0][0]).write_bytes(others[0][1])
    bring(lake, spool)
    DeltaTable(lake.store.table_uri("steps")).restore(version)
    fresh = Lake.open(lake.uri)
    assert any("RESTORE" in one.message for one in drift(fresh) if one.table == "steps")
    (spool / "segments" / "2026-03-01" / others[1][0]).write_bytes(others[1][1])
    with pytest.raises(UnmigratedTableError, match="ranklake migrate apply"):
        bring(fresh, spool)
    with pytest.raises(MigrationError, match="is not at version 2 any more"):
        applying.undo(fresh, InProcess(), "Ada", "steps")
    (due,) = are_due(fresh)
    assert due.rows == 20
    (done,) = apply(fresh)
    assert (done.version, done.rows) == (2, 20)
    assert bring(fresh, spool).rows_stored == 5
    lost = [fault for item in books(fresh, spool).values() for fault in item.faults]
    assert lost, "five rows are missing, and the books say so"
    replay(fresh, Spool(str(spool)), InProcess(), "steps", (DAY.date(), DAY.date()))
    assert rows_of(fresh, "tokens_seen")["tokens_seen"].to_pylist() == [1024] * 30
    adds_up(fresh, spool)


@pytest.mark.slow
def test_rows_that_come_meanwhile_are_taken_along(lake, spool, changed, monkeypatch):
    """An older driver that ingests during the rewrite takes the number; its rows are in the next plan, and once."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    others = [step_rows(10, segment=segment) for segment in (1, 2)]
    changed.migrate("steps", rename)
    rewritten = []

    def slow(task, work=rewriting.rewrite):
        rewritten.append(task.file["path"])
        if others:
            changed.earlier()
            put_segment(spool, others.pop(0), rows_before=20 + 10 * (1 - len(others)))
            bring(lake, spool)
            changed.later()
        return work(task)

    with monkeypatch.context() as patch:
        patch.setattr(composing, "rewrite", slow)
        (done,) = apply(lake)
    assert len(rewritten) == len(set(rewritten)) == 3  # no file twice
    assert (done.rows, done.plan) == (40, 4)
    assert rows_of(lake, "tokens_seen")["tokens_seen"].to_pylist() == [1024] * 40
    assert bring(lake, spool).plans == []
    adds_up(lake, spool)


def test_two_that_apply_at_once_do_it_once(lake, spool, changed):
    """One of two threads carries it out, or both help; there is one plan, and one row of the table migrations."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    changed.migrate("steps", rename)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: apply(Lake.open(lake.uri)), range(2)))
    assert sum(map(len, results)) >= 1
    assert len(rows_of(lake, "tokens_seen")) == 20
    assert read(lake.tables, contract("migrations"), ["status"])["status"].to_pylist() == ["applied"]
    adds_up(lake, spool)


@pytest.mark.slow
def test_values_go_only_by_approval_and_come_back(lake, spool, changed):
    """A drop is approved by one and applied by another; undo reads the dropped values from the files of before."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    losses = rows_of(lake, "loss")["loss"].to_pylist()
    changed.migrate("steps", drop)
    (due,) = are_due(lake)
    with pytest.raises(NotApprovedError):
        apply(lake)
    lifecycle.approve(lake, MIGRATIONS, due.proposal, "Ada")
    with pytest.raises(SameOperatorError):
        apply(lake)
    moment = f"steps={delta_table(lake.store, 'steps').version()}"
    assert len(applying.apply(lake, InProcess(), "Otto")) == 1
    assert "loss" not in query(lake, "SELECT * FROM steps").column_names
    assert len(query(lake, "SELECT loss FROM steps", as_of=moment)["loss"]) == 20  # time travel has it, for a while
    applying.undo(lake, InProcess(), "Otto", "steps")
    (again,) = are_due(lake)
    assert again.proposal != due.proposal  # what was approved was applied; a second time is another question
    with pytest.raises(NotApprovedError):
        apply(lake)
    changed.earlier()
    assert rows_of(lake, "loss")["loss"].to_pylist() == losses
    assert [row["action"] for row in trail(lake.tables)] == [
        *("migration.approve", "migration.apply", "migration.applied", "migration.undo", "migration.undone"),
    ]


def test_other_columns_stay_and_other_readers_see_the_default(lake, spool, changed):
    """A column of somebody else's contract is carried along; `fill` writes a default where other readers look."""
    changed.edit("steps", lambda facts: facts["columns"].append(OTHERS))
    rows = step_rows(20)
    put_segment(spool, rows.set_column(rows.schema.get_field_index("reward"), "reward", pa.array([0.5] * 20)))
    bring(lake, spool)
    changed.edit("steps", lambda facts: facts["columns"].pop())

    def change(facts):
        new = {"id": 901, "name": "precision", "type": "string", "class": "operational", "doc": "-", "default": "bf16"}
        facts["columns"].append(new)

    path = changed.migrate("steps", change)
    path.write_text(path.read_text().replace("- add: precision", "- {add: precision, fill: true}"))
    apply(lake)
    found = DeltaTable(lake.store.table_uri("steps")).to_pyarrow_dataset().to_table(columns=["reward", "precision"])
    assert found.to_pylist() == [{"reward": 0.5, "precision": "bf16"}] * 20


OTHERS = {"id": 10000, "name": "reward", "type": "float64", "class": "operational", "unit": "1", "doc": "-"}


def test_an_additive_migration_is_metadata_only(lake, spool, changed):
    """Nothing is rewritten; the table migrations has its row, with 0 rows."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    paths = files(delta_table(lake.store, "steps"))["path"].to_pylist()
    new = {"id": 901, "name": "late", "type": "string", "class": "operational", "doc": "-"}
    changed.migrate("steps", lambda facts: facts["columns"].append(new))
    (done,) = apply(lake)
    assert (done.rows, files(delta_table(lake.store, "steps"))["path"].to_pylist()) == (0, paths)
    assert DeltaTable(lake.store.table_uri("steps")).schema().fields[-1].name == "late"


@pytest.mark.slow
def test_a_plan_that_drops_without_approval_is_refused(lake, spool, changed, monkeypatch):
    """Whoever finds such a plan carries nothing of it out; nor one of a migration that is another now."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    path = changed.migrate("steps", drop)
    work = composing.Work(lake, InProcess(), read_migration(path))
    plan = work.compose(2, {"round": 0, "single_operator": False})
    lake.put_if_absent(plan.name, plan.to_json())
    with pytest.raises(RefusedPlanError, match="drop values without approval"):
        bring(lake, spool)
    path.write_text(path.read_text() + "\n")
    with pytest.raises(RefusedPlanError, match="not the one that the plan was made by"):
        bring(lake, spool)
    assert len(query(lake, "SELECT loss FROM steps")) == 20


def test_an_edited_migration_that_was_applied_stops_everything(lake, spool, changed):
    """The lake remembers the file's digest."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    path = changed.migrate("steps", rename)
    assert list(registry.problems({"steps": contract("steps")})) == []
    apply(lake)
    path.write_text(path.read_text() + "\n")
    with pytest.raises(MigrationError, match="was edited after it was applied"):
        list(are_due(lake))
    path.unlink()
    assert "version 2 of steps has no migration" in next(registry.problems({"steps": contract("steps")}))
