"""What a lake must do on every store: subclass `LakeSuite` and give a fixture ``place`` (see `stores.Store`)."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from bringing import adds_up
from changed_contracts import convert
from packing import pack_up
from retaining import APPROVER, CONTRACTS, POLICIES, TODAY, days_ago
from segments import put_segment, step_rows
from stores import sent

from ranklake.lake.audit.proof import prove
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import ingest_plan
from ranklake.lake.ingest.maintenance.run import scrub
from ranklake.lake.ingest.replay.run import replay
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.migrations import applying as migrations
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.recompute import recompute
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import AuditSection, LakeConfig
from ranklake.lake.store.reachability import LakeError, NotALakeError
from ranklake.lake.store.store import MARKER
from ranklake.lake.tables import commit
from ranklake.lake.tables.live_files import DamagedFileError, files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table, ensure_table
from ranklake.quality.check import run_checks
from ranklake.retention.erasure import apply as erasure_apply
from ranklake.retention.erasure import plan as erasure_plan
from ranklake.retention.erasure.subject import Reach, subject_of
from ranklake.retention.plans.apply import apply, approve
from ranklake.retention.plans.plan import make_plan
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.sweep import sweep

RACERS = 8
AWKWARD = "my lake ü+#1? 100%"


def keys(lake):
    """Count the rows of ``steps`` by key."""
    rows = read(lake.tables, contract("steps"), ["incarnation", "segment", "slot"])
    return Counter(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))


def spooled(place, tmp_path, *rows):
    """Send each of some tables of rows as a segment into the place's spool, and return the spool."""
    local = tmp_path / "spool"
    for number, part in enumerate(rows):
        before = sum(one.num_rows for one in rows[:number] if one["run"][0] == part["run"][0])
        put_segment(local, part, rows_before=before)
    sent(place.below("spool"), local)
    return Spool(f"{place.uri}/spool", place.storage)


class LakeSuite:
    """The contract of a lake: conditional writes hold, and everything works as it does in a folder."""

    @pytest.mark.slow
    def test_all_commands_work_there(self, place, tmp_path):
        """Ingest twice, checks, rollups, SQL, status and retention, with spool and lake in the store."""
        spool = spooled(
            place,
            tmp_path,
            step_rows(50, start=days_ago(3)),
            step_rows(50, run="old", incarnation=8, start=days_ago(900)),
        )
        config = LakeConfig(audit=AuditSection(f"{place.uri}/witness"), spools=(spool.uri,))
        lake = Lake.create(f"{place.uri}/lake", place.storage, config)
        left = ingest_plan.compose(lake, spool, 1).plan
        lake.put_if_absent(left.name, left.to_json())  # somebody who died before anything was done
        assert ingest(lake, spool, InProcess()).rows_stored == 100
        assert ingest(lake, spool, InProcess()).plans == []
        assert run_checks(lake).summary()["passed"] is not None
        assert {result.name for result in run_rollups(lake, ["goodput"])} >= {"step_rollup", "goodput"}
        asked = query(Lake.open(lake.uri, place.storage), "SELECT count(*) n, sum(tokens) t FROM steps", {}, None)
        assert asked.to_pylist() == [{"n": 100, "t": 102400}]
        plan = make_plan(lake, CONTRACTS, POLICIES, TODAY)
        approve(lake, plan.name, APPROVER, "as agreed")
        apply(lake, plan.name, "Otto Operator", CONTRACTS, POLICIES, TODAY)
        found = adds_up(lake, spool)["steps"]
        assert (found.recorded, found.stored, found.retired) == (100, 50, 50)
        assert sweep(lake, spool, "Otto Operator").segments == 1
        proof = prove(lake)
        assert (proof.why, proof.rows, set(proof.witnessed.values())) == ("", 4, {4})
        assert removal_faults(lake) == []

    @pytest.mark.slow
    def test_a_migration_rewrites_no_damaged_file(self, place, tmp_path, changed):
        """A migration stops at a file in which a bit turned, and goes on once the file is sound again."""
        spool = spooled(place, tmp_path, step_rows(50, start=days_ago(3)))
        lake = Lake.create(f"{place.uri}/lake", place.storage)
        ingest(lake, spool, InProcess())
        (row,) = files(delta_table(lake.store, "steps")).to_pylist()
        path = lake.path("tables", "steps", row["path"])
        sound = lake.fs.cat_file(path)
        raw = bytearray(sound)
        raw[len(raw) // 2] ^= 16
        lake.fs.pipe_file(path, bytes(raw))
        changed.migrate("steps", convert, factor=1000)
        with pytest.raises(DamagedFileError, match="differ from the digest in its name"):
            migrations.apply(Lake.open(lake.uri, place.storage), InProcess(), "Ada")
        lake.fs.pipe_file(path, sound)
        migrations.apply(Lake.open(lake.uri, place.storage), InProcess(), "Ada")
        assert read(lake.tables, contract("steps"), ["tokens"]).num_rows == 50

    def test_a_damaged_object_is_found_and_mended(self, place, tmp_path):
        """A bit that turned in a data file keeps its date out of the rollups, until a replay wrote it anew."""
        day = days_ago(3).date()
        spool = spooled(place, tmp_path, step_rows(50, start=days_ago(3)))
        lake = Lake.create(f"{place.uri}/lake", place.storage)
        ingest(lake, spool, InProcess())
        (row,) = files(delta_table(lake.store, "steps")).to_pylist()
        path = lake.path("tables", "steps", row["path"])
        raw = bytearray(lake.fs.cat_file(path))
        raw[len(raw) // 2] ^= 16
        lake.fs.pipe_file(path, bytes(raw))
        assert [one.path for one in scrub(lake, InProcess()).damaged] == [row["path"]]
        with pytest.raises(DamagedFileError):
            query(lake, "SELECT sum(loss) FROM steps", verify=True)
        with pytest.raises(DamagedFileError):
            recompute(lake, "step_rollup", [day])
        replay(lake, spool, InProcess(), "steps", (day, day))
        assert recompute(lake, "step_rollup", [day])[0] == [day]
        assert scrub(lake, InProcess()).damaged == []

    @pytest.mark.slow
    def test_an_erasure_leaves_nothing_there(self, place, tmp_path):
        """A run is erased from tables, logs, plans and packs of the store; the other one is as it was."""
        local = tmp_path / "spool"
        for incarnation, run in ((7, "ada.lovelace-1"), (8, "other")):
            put_segment(local, step_rows(20, run=run, incarnation=incarnation))
        pack_up(local)
        sent(place.below("spool"), local)
        spool = Spool(f"{place.uri}/spool", place.storage)
        lake = Lake.create(f"{place.uri}/lake", place.storage, LakeConfig(spools=(spool.uri,)))
        ingest(lake, spool, InProcess())
        delta_table(lake.store, "steps").create_checkpoint()
        rows = [row for row in read(lake.tables, contract("steps")).to_pylist() if row["run"] == "other"]
        subject, reach = subject_of(lake, ["ada.lovelace"]), Reach(lake, spool)
        made = erasure_plan.make_plan(reach, subject)
        erasure_plan.propose(lake, made, "Petra")
        erasure_apply.approve(lake, made.name, "Anna")
        done = erasure_apply.apply(reach, made.name, subject, "Otto")
        assert done.certificate.is_clean
        assert not [path for path, raw in place.contents().items() if b"ada.lovelace" in raw or "ada.lovelace" in path]
        assert read(lake.tables, contract("steps")).to_pylist() == rows
        assert [item.name.run for item in spool.listing()] == ["other"]
        assert removal_faults(lake) == []
        adds_up(lake, spool)

    def test_one_writer_of_a_name_wins(self, place):
        """Of many that write a name at once if it is absent, one does, and its bytes are there."""
        lake = Lake.create(place.uri, place.storage)
        for number in range(3):
            with ThreadPoolExecutor(RACERS) as pool:
                won = list(pool.map(lambda i, n=number: lake.put_if_absent(f"plans/{n}", b"%d" % i), range(RACERS)))
            assert sum(won) == 1
            assert lake.fs.cat_file(lake.path(f"plans/{number}")) == b"%d" % won.index(True)

    def test_one_commit_of_a_number_wins(self, place):
        """Of many handles that were read before, one commits the number; the others lose the race, and say so."""
        lake = Lake.create(place.uri, place.storage)
        ensure_table(lake.tables, contract("steps"))
        handles = [delta_table(lake.store, "steps") for _ in range(RACERS)]
        barrier = threading.Barrier(RACERS)

        def swap(handle):
            barrier.wait()
            try:
                return commit.swap(handle, 1)
            except commit.LostRaceError:
                return False

        with ThreadPoolExecutor(RACERS) as pool:
            assert sum(pool.map(swap, handles)) == 1
        assert delta_table(lake.store, "steps").version() == 1

    def test_many_may_make_a_lake_at_once(self, place):
        """All get the same lake; nothing but its marker is there, of the look at the store nothing is left."""
        with ThreadPoolExecutor(4) as pool:
            lakes = list(pool.map(lambda _: Lake.create(place.uri, place.storage), range(4)))
        found = place.contents()
        assert list(found) == [MARKER]
        Lake.create(place.uri, place.storage)
        assert place.contents() == found
        assert len({lake.fs.cat_file(lake.path(MARKER)) for lake in lakes}) == 1

    def test_awkward_names_are_kept(self, place, tmp_path):
        """Spaces, percent signs and letters beyond ASCII in a lake's path mean themselves, to all clients."""
        spool = spooled(place, tmp_path, step_rows(10))
        lake = Lake.create(f"{place.uri}/{AWKWARD}", place.storage)
        assert ingest(lake, spool, InProcess()).rows_stored == 10
        assert len(keys(lake)) == 10
        assert query(lake, "SELECT count(*) n FROM steps", {}, None).to_pylist() == [{"n": 10}]
        assert {path.partition("/")[0] for path in place.contents()} == {"spool", AWKWARD}

    def test_what_looks_escaped_is_refused(self, place):
        """delta-rs and its kernel do not agree on what such a path means: better no lake than half of one elsewhere."""
        with pytest.raises(LakeError, match="two digits"):
            Lake.create(f"{place.uri}/my%20lake", place.storage)
        assert place.contents() == {}

    def test_what_others_send_is_seen(self, place, tmp_path):
        """A spool that was listed before shows what came since: clients must not remember listings."""
        spool = spooled(place, tmp_path, step_rows(10))
        assert len(spool.listing()) == 1
        put_segment(tmp_path / "spool", step_rows(10, segment=1, start=days_ago(1) + timedelta(hours=1)))
        sent(place.below("spool"), tmp_path / "spool")
        assert len(spool.listing()) == 2

    def test_an_empty_place_is_no_lake(self, place):
        """Opening makes nothing."""
        with pytest.raises(NotALakeError, match="not a lake"):
            Lake.open(place.uri, place.storage)
        assert place.contents() == {}
