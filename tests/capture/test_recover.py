"""Recovery: what dead processes left is sealed and uploaded, whatever became of the files meanwhile."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import check_books, gaps, left_in, rows, segments, totals

from ranklake.capture.common.layouts import WRITTEN
from ranklake.capture.node.agent import Agent
from ranklake.capture.recording.recovery import adopted
from ranklake.capture.recover import recover
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.sealing.tables import arrow_table
from ranklake.capture.spool import frames
from ranklake.capture.spool.owner import HELD
from ranklake.capture.spool.stream import sweep
from ranklake.capture.spool.stream_files import sealed_files, streams

# A process that records and is killed: 300 steps with two metrics each, half of them sealed before.
RECORD = """
import os, signal, sys
from ranklake import capture
run = capture.start(job="j", run="dead", spool=sys.argv[1] or None, local_dir=sys.argv[2])
for number in range(300):
    with run.step(number, tokens=8), run.phase("forward"):
        run.log({"a": number + 0.5, "b": -1.0 * number})
        run.scalar("c").add(1.0, number)
    if number == 150 and len(sys.argv) > 3:
        run.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def record(local, spool="", *, flush=False):
    """Let a process record into a local spool and be killed."""
    command = [sys.executable, "-c", RECORD, str(spool), str(local), *(["flush"] if flush else [])]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL


@pytest.fixture(scope="module", params=["mmap", "records"])
def dead(tmp_path_factory, request):
    """Give a local spool with one dead process's stream, to be copied; one of each way to write."""
    local = tmp_path_factory.mktemp("dead") / "local"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKLAKE_CAPTURE_SPOOL_WRITES", request.param)
        record(local, "/nowhere/spool", flush=False)
    return local


@pytest.fixture
def local(dead, tmp_path):
    """Give a copy of the dead stream."""
    shutil.copytree(dead, tmp_path / "local")
    return tmp_path / "local"


def stream_of(local):
    """Return the one stream's folder."""
    (folder,) = streams(local)
    return folder


def adopt(local, spool):
    """Recover into a spool, as an agent does that the streams were meant for."""
    for folder in streams(local):
        owner = folder / "owner.json"
        owner.write_text(owner.read_text().replace("/nowhere/spool", str(spool)))
    return recover(local, spool)


def test_everything_acknowledged_is_recovered(local, tmp_path):
    """Each step, span and metric is there, an event says that the run was abandoned, and the local spool is empty."""
    done = adopt(local, tmp_path / "spool")
    spool = tmp_path / "spool"
    assert (done.streams, done.left, done.troubles) == (1, 0, ())
    assert [row["step"] for row in rows(spool, "steps")] == list(range(300))
    assert len(rows(spool, "scalars")) == 900
    assert len(rows(spool, "spans")) == 600
    events = rows(spool, "events")
    assert [row["event"] for row in events] == ["run_start", "rank_start", "abandoned"]
    assert events[-1]["ts"] >= rows(spool, "steps")[-1]["ts"]
    assert done.rows == 300 + 900 + 600 + 3 + 1
    check_books(spool)
    assert len(totals(spool)) == 1
    assert left_in(local) == []
    assert recover(local, spool).streams == 0


@pytest.mark.slow
def test_what_was_uploaded_before_the_kill_is_not_doubled(tmp_path):
    """Rows sealed and sent by the process itself and rows recovered later make one whole."""
    record(tmp_path / "local", tmp_path / "spool", flush=True)
    sent = {segment.name for segment in segments(tmp_path / "spool")}
    assert sent
    recover(tmp_path / "local", tmp_path / "spool")
    assert sent < {segment.name for segment in segments(tmp_path / "spool")}
    assert [row["step"] for row in rows(tmp_path / "spool", "steps")] == list(range(300))
    assert sum(segment.rows.num_rows for segment in segments(tmp_path / "spool", "scalars")) == 900
    check_books(tmp_path / "spool")


@pytest.mark.slow
def test_a_living_process_is_left_alone(place, tmp_path):
    """The stream of a process that runs is not touched: not by another process, and not by itself."""
    run = place.start()
    with run.step(0):
        pass
    before = sorted(path.name for path in next(streams(place.local)).glob("*.[of]*"))
    assert recover(place.local, place.spool).alive == 1
    script = "import sys; from ranklake.capture.recover import recover; print(recover(*sys.argv[1:]).alive)"
    command = [sys.executable, "-c", script, str(place.local), str(place.spool)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"
    assert sorted(path.name for path in next(streams(place.local)).glob("*.[of]*")) == before
    run.close()
    assert [row["step"] for row in rows(place.spool, "steps")] == [0]


def test_a_stream_meant_for_another_spool_is_left_alone(local, tmp_path):
    """A recovery for one spool does not send another project's rows there."""
    done = recover(local, tmp_path / "spool")
    assert (done.streams, done.foreign) == (0, 1)
    assert not (tmp_path / "spool").exists()


def test_without_a_spool_each_stream_goes_where_it_was_meant_to(local, tmp_path):
    """An agent that is given no spool serves every run of its node."""
    owner = stream_of(local) / "owner.json"
    owner.write_text(owner.read_text().replace("/nowhere/spool", str(tmp_path / "theirs")))
    assert recover(local).rows == 1804
    assert len(rows(tmp_path / "theirs", "steps")) == 300


@pytest.mark.slow
def test_two_recoveries_at_once_do_not_meet(local, tmp_path):
    """While somebody has taken a stream over, nobody else does."""
    with adopted(stream_of(local), SealingKeys()) as taken:
        assert taken is not None
        with adopted(stream_of(local), SealingKeys()) as again:
            assert again is None
        script = "import sys; from ranklake.capture.recover import recover; print(recover(*sys.argv[1:]).alive)"
        command = [sys.executable, "-c", script, str(local), "/nowhere/spool"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"
    assert not HELD._held


def test_an_unreachable_spool_keeps_everything(local, tmp_path):
    """Segments that cannot be uploaded wait, sealed, and go later; nothing is doubled."""
    (tmp_path / "spool").write_text("a file where a folder should be")
    done = adopt(local, tmp_path / "spool")
    assert (done.streams, done.rows) == (1, 0)
    assert done.left == len(list(stream_of(local).glob("*.sealed"))) > 0
    (tmp_path / "spool").unlink()
    again = recover(local, tmp_path / "spool")
    assert (again.rows, again.left) == (1804, 0)
    check_books(tmp_path / "spool")


def test_a_stream_half_removed_is_not_taken_for_an_abandoned_one(local, tmp_path, monkeypatch):
    """A recovery killed while it removed a finished stream adds nothing when it is repeated."""
    with monkeypatch.context() as patch:
        patch.setattr(
            "ranklake.capture.spool.stream.shutil.rmtree",
            lambda path, **_: (path / "meta.frames").unlink(missing_ok=True),
        )
        adopt(local, tmp_path / "spool")
    before = {segment.name for segment in segments(tmp_path / "spool")}
    assert len(list(local.rglob("owner.json"))) == 1
    recover(local, tmp_path / "spool")
    assert {segment.name for segment in segments(tmp_path / "spool")} == before
    assert not list(local.rglob("owner.json"))


def test_a_recovery_killed_after_any_effect_is_carried_on(dead, tmp_path):
    """With the slots still there: a segment sealed but not noted, and one noted, are finished and not sealed again."""
    local, spool = tmp_path / "local", tmp_path / "spool"
    shutil.copytree(dead, local)
    spool.write_text("unreachable")
    adopt(local, spool)
    sealed_all = stream_of(local)
    spool.unlink()
    for moment in ("noted", "sealed"):
        again, to = tmp_path / moment / "local", tmp_path / moment / "spool"
        shutil.copytree(dead, again)
        folder = stream_of(again)
        for path in sealed_all.iterdir():
            if path.suffix == ".sealed" and path.name.startswith(("steps", "spans")):
                shutil.copy(path, folder)
        if moment == "noted":
            shutil.copy(sealed_all / "meta.frames", folder)
        adopt(again, to)
        assert len(segments(to, "steps")) == len(segments(to, "spans")) == 1
        assert [row["step"] for row in rows(to, "steps")] == list(range(300))
        assert not list(again.rglob("*.open"))
    assert {s.name for s in segments(tmp_path / "sealed" / "spool")} >= {
        s.name for s in segments(tmp_path / "noted/spool")
    }


def test_sealing_the_same_slots_gives_the_same_bytes(dead, tmp_path):
    """Two recoveries of one stream make segments of equal names, which hold the digest of their bytes."""
    names = []
    for attempt in ("first", "second"):
        shutil.copytree(dead, tmp_path / attempt / "local")
        adopt(tmp_path / attempt / "local", tmp_path / attempt / "spool")
        names.append([segment.name for segment in segments(tmp_path / attempt / "spool")])
    assert names[0] == names[1]


def files_of(local):
    """Return the stream's files that may be damaged, by name."""
    return sorted(path for path in stream_of(local).iterdir() if path.suffix in {".open", ".frames", ".json"})


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_costs_only_what_it_hit(dead, data):
    """Files cut short or with bits flipped at random: recovery ends, whole rows come back, and no row is made up."""
    with tempfile.TemporaryDirectory() as folder:
        local, spool = Path(folder) / "local", Path(folder) / "spool"
        shutil.copytree(dead, local)
        victim = data.draw(st.sampled_from(files_of(local)), "file")
        raw = bytearray(victim.read_bytes())
        used = len(raw.rstrip(b"\0")) or 1
        hits = 0
        if data.draw(st.booleans(), "cut"):
            raw = raw[: data.draw(st.integers(0, used), "length")]
        else:
            hits = data.draw(st.integers(1, 3), "flips")
            for _ in range(hits):
                raw[data.draw(st.integers(0, used - 1), "place")] ^= 1 << data.draw(st.integers(0, 7), "bit")
        victim.write_bytes(bytes(raw))
        done = adopt(local, spool) if victim.name != "owner.json" else recover(local, spool)
        assert done.troubles == ()
        if done.foreign:  # a flip in owner.json: it is meant for another spool now
            return
        assert (done.streams, done.left) == (1, 0)
        for table, count in {"steps": 300, "scalars": 900, "spans": 600}.items():
            found = rows(spool, table)
            lost = count - len(found)
            lanes = {
                "steps": {"steps"},
                "spans": {"spans", "meta.frames"},
                "scalars": {"scalars", "rows", "meta.frames"},
            }
            lane = victim.name.split("-")[0].removesuffix(WRITTEN)
            if lane not in lanes[table]:  # steps need nothing that meta.frames defines
                assert lost == 0, (table, victim.name)
            elif hits and victim.suffix == ".open":
                assert lost <= 2 * hits, (table, victim.name)
            if table == "steps" and not hits:
                assert [row["step"] for row in found] == list(range(len(found)))
        check_books(spool)


def test_a_damaged_slot_is_counted_and_its_file_kept(local, tmp_path):
    """A slot whose commit word decayed is a gap of its table, and the file is kept for a person to look at."""
    (victim,) = stream_of(local).glob("steps*-*.open")
    raw = bytearray(victim.read_bytes())
    raw[144 * 5 - 1] ^= 1
    victim.write_bytes(bytes(raw))
    adopt(local, tmp_path / "spool")
    assert len(rows(tmp_path / "spool", "steps")) == 299
    assert gaps(tmp_path / "spool") == {"steps": {"damaged": 1}}
    assert len(list((local / "damaged").iterdir())) == 1
    check_books(tmp_path / "spool")


def test_a_file_that_cannot_be_sealed_blocks_no_other(local, tmp_path, monkeypatch):
    """Should sealing a file fail for a reason nobody thought of, its rows are counted and the file is kept."""

    def fail(rows, of, *rest):
        if of.table == "steps" and len(rows):
            raise ValueError("unthought of")
        return arrow_table(rows, of, *rest)

    monkeypatch.setattr("ranklake.capture.sealing.segment_bytes.arrow_table", fail)
    done = adopt(local, tmp_path / "spool")
    assert (done.troubles, done.left) == ((), 0)
    assert gaps(tmp_path / "spool") == {"steps": {"file not sealable": 300}}
    assert len(rows(tmp_path / "spool", "scalars")) == 900
    assert len(list((local / "damaged").iterdir())) == 1


def test_unknown_files_are_moved_out_of_the_way(local, tmp_path):
    """What is no file of ours, or of a lane of a later version, blocks nothing and is kept."""
    for name in ("notes.txt", "futures-000000.open", "steps-12.open"):
        (stream_of(local) / name).write_text("x")
    adopt(local, tmp_path / "spool")
    assert len(rows(tmp_path / "spool", "steps")) == 300
    assert len(list((local / "damaged").iterdir())) == 3


def test_a_stream_that_cannot_be_finished_does_not_hold_up_others(dead, tmp_path):
    """One stream that fails is told of; the next one is recovered all the same."""
    local = tmp_path / "local"
    shutil.copytree(dead, local)
    bad = stream_of(local).with_name("r00000-0000000000000001")
    shutil.copytree(stream_of(local), bad)
    (bad / "meta.frames").unlink()
    (bad / "meta.frames").mkdir()
    done = adopt(local, tmp_path / "spool")
    assert (done.streams, len(done.troubles)) == (1, 1)
    assert "meta.frames" in done.troubles[0]
    assert [row["step"] for row in rows(tmp_path / "spool", "steps")] == list(range(300))


def test_a_torn_last_frame_is_no_damage(local, tmp_path):
    """The frame that its writer was killed in is dropped, and the totals are still known."""
    with (stream_of(local) / "meta.frames").open("ab") as file:
        file.write(b"\x40\0\0\0\1\2\3\4{")
    (tmp_path / "spool").write_text("unreachable")
    adopt(local, tmp_path / "spool")
    found = frames.read(stream_of(local) / "meta.frames")
    assert (found.damaged, found.torn_bytes) == (0, 0)
    (tmp_path / "spool").unlink()
    recover(local, tmp_path / "spool")
    check_books(tmp_path / "spool")
    assert len(totals(tmp_path / "spool")) == 1


def test_a_new_run_recovers_an_old_one_in_the_background(place):
    """A run that starts on the same node with the same spool finishes what a killed one left."""
    record(place.local, place.spool)
    run = place.start(run="next")
    run.close()
    recover(place.local, place.spool)  # what the background had no time for
    assert {row["run"] for row in rows(place.spool, "steps")} == {"dead"}
    assert len(rows(place.spool, "steps")) == 300


def test_zombies_count_as_dead(tmp_path):
    """A killed child that nobody has waited for yet does not look alive."""
    command = [sys.executable, "-c", RECORD, str(tmp_path / "spool"), str(tmp_path / "local")]
    with subprocess.Popen(command) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert recover(tmp_path / "local", tmp_path / "spool").streams == 1
    assert len(rows(tmp_path / "spool", "steps")) == 300


@pytest.mark.parametrize("by_agent", [False, True])
def test_a_disk_that_takes_nothing_does_not_keep_what_is_sealed(local, tmp_path, by_agent):
    """Where sealing fails for the local disk's sake, what waits is sent all the same: that is what makes room."""
    (tmp_path / "file").touch()
    assert adopt(local, tmp_path / "file" / "spool").left > 0
    (stream_of(local) / "unknown").touch()
    (local / "damaged").touch()  # so it cannot be put aside
    spool = tmp_path / "spool"
    owner = stream_of(local) / "owner.json"
    owner.write_text(owner.read_text().replace(str(tmp_path / "file" / "spool"), str(spool)))
    done = Agent(local, str(spool)).look() if by_agent else recover(local, spool)
    assert len(done.troubles) == 1
    assert [row["step"] for row in rows(spool, "steps")] == list(range(300))
    assert not sealed_files(stream_of(local))


def test_empty_folders_of_attempts_and_runs_are_swept(tmp_path):
    """A process that is killed after it removed its stream leaves them; what is not one of ours stays."""
    for folder in ("run-1/a0", "run-2/a0", "run-2/a1/kept", "run-3", ".claims", "no run"):
        (tmp_path / folder).mkdir(parents=True)
    sweep(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == [".claims", "no run", "run-2", "run-2/a1", "run-2/a1/kept"]
