"""The way back from a rollup's rows to data files and segments."""

import json
import shutil
from pathlib import Path

import pytest
from bringing import bring
from changed_contracts import rename
from segments import put_segment, segment_bytes, step_rows

from ranklake.cli import run
from ranklake.insight.lineage.walk import walk
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.migrations import applying
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.live_files import plan_of
from ranklake.segments.pack import pack

TARGETS = ("steps.loss", "step_rollup.step", "attempt_facts.run", "rank_health.rank", "run_summary.run")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Make a lake with two runs, two ranks, of two segments each; what fed the run r1, by path."""
    folder = tmp_path_factory.mktemp("places")
    lake, spool = folder / "lake", folder / "spool"
    own = {}
    for name, first in (("r1", 10), ("r2", 20)):
        for rank in (0, 1):
            for segment in (0, 1):
                rows = step_rows(30 + rank, run=name, rank=rank, segment=segment, incarnation=first + rank)
                path = put_segment(spool, rows)
                if name == "r1":
                    own[str(path)] = 30 + rank
    options = ["--lake", str(lake), "--spool", str(spool)]
    assert run(["ingest", *options]) == 0
    assert run(["rollup", "--lake", str(lake)]) == 0
    return options, own


def way(capsys, options, column, status=0):
    """Return what the command prints as JSON."""
    capsys.readouterr()
    assert run(["lineage", column, "--run", "r1", *options, "--json"]) == status
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("column", TARGETS)
def test_a_number_reaches_exactly_its_segments(capsys, places, column):
    """Each of the run's segments, with its rows, and none of the other run; all verified."""
    options, own = places
    result = way(capsys, options, column)
    fed = {one["path"]: one["rows"] for one in result["segments"] if one["table"] == "steps"}
    assert fed == own
    assert {one["state"] for one in [*result["segments"], *result["files"]]} == {"verified"}
    assert sum(one["rows"] for one in result["files"] if one["table"] == "steps") == sum(own.values())
    assert bool(result["computations"]) == (column != "steps.loss")


@pytest.mark.parametrize(
    ("column", "hint"), [("steps.los", "did you mean 'loss'?"), ("step.loss", "did you mean 'steps'?")]
)
def test_an_unknown_name_has_a_near_one(capsys, places, column, hint):
    """A mistyped table or column exits 2 with the nearest."""
    options, _ = places
    assert run(["lineage", column, "--run", "r1", *options]) == 2
    assert hint in capsys.readouterr().err


def test_a_run_without_rows_exits_1(capsys, places):
    """Nothing to follow is said, not passed over."""
    options, _ = places
    assert run(["lineage", "steps.loss", "--run", "r9", *options]) == 1
    assert "no rows of run r9" in capsys.readouterr().err


def test_a_purged_segment_is_no_fault(capsys, places, tmp_path):
    """It was ingested and deleted since: its digest and rows are known, and nothing is wrong."""
    options, own = copied(places, tmp_path)
    gone = next(iter(own))
    Path(gone).unlink()
    result = way(capsys, options, "run_summary.run")
    left = [Path(one["path"]).name for one in result["segments"] if one["state"] == "not in the spool any more"]
    assert left == [Path(gone).name]
    assert (result["faults"], result["notes"]) == ([], [])


def test_another_spool_is_told_from_one_that_was_purged(capsys, places, tmp_path):
    """Nothing is known of segments that another spool had: they are not said to be gone."""
    options, own = places
    (tmp_path / "spool").mkdir()
    options = [*options[:3], str(tmp_path / "spool")]
    result = way(capsys, options, "steps.loss")
    assert {one["state"] for one in result["segments"]} == {"not in this spool: ingest read it in another"}
    assert run(["lineage", "steps.loss", "--run", "r1", *options]) == 0
    assert f"but those of {len(own)} segments that ingest read in another spool" in capsys.readouterr().out


def test_a_run_without_a_name_is_refused(capsys, places):
    """As an empty variable of a script leaves it: a usage error, before anything is read."""
    options, _ = places
    assert run(["lineage", "steps.loss", "--run", "", *options]) == 2
    assert "a run has a name" in capsys.readouterr().err


def test_segments_that_lie_elsewhere_now_are_found_by_digest(capsys, places, tmp_path):
    """A spool that was moved: each segment is verified where it lies."""
    options, own = copied(places, tmp_path)
    moved = tmp_path / "moved"
    Path(options[3]).rename(moved)
    result = way(capsys, [*options[:3], str(moved)], "steps.loss")
    assert {one["state"] for one in result["segments"]} == {"verified"}
    assert len(result["segments"]) == len(own)
    assert all(one["path"].startswith(str(moved)) for one in result["segments"])


FLIPPED = ("tables/steps/date=", "tables/run_summary/date=", "tables/step_rollup/date=", "tables/mfu/date=", "segment")


@pytest.mark.parametrize("place", FLIPPED)
def test_a_flipped_byte_is_named(capsys, places, tmp_path, place):
    """Of a recorded table, of any table that it went through, and of a segment: that file is named, and no other."""
    options, own = copied(places, tmp_path)
    lake = Path(options[1])
    if place == "segment":
        victim = Path(next(iter(own)))
    else:
        folder, _, prefix = place.rpartition("/")
        victim = min(
            path for path in (lake / folder).rglob("*.parquet") if prefix in str(path) and "_log" not in str(path)
        )
    flip(victim)
    result = way(capsys, options, "run_summary.run", status=1)
    (fault,) = result["faults"]
    shown = str(victim) if place == "segment" else str(victim.relative_to(lake / "tables"))
    assert fault["text"].startswith(f"{shown}: ")


@pytest.mark.parametrize("table", ["segments", "lineage"])
def test_a_flipped_byte_of_what_the_way_goes_by_is_named(capsys, places, tmp_path, table):
    """Of the ledger of segments and of the table lineage: nothing is told by a damaged one."""
    options, _ = copied(places, tmp_path)
    victim = min((Path(options[1]) / "tables" / table).rglob("date=*/*.parquet"))
    flip(victim)
    assert run(["lineage", "run_summary.run", "--run", "r1", *options]) == 1
    assert f"{table}/{victim.relative_to(victim.parents[1])}" in capsys.readouterr().err


def test_a_flipped_byte_of_a_pack_is_named(lake, spool):
    """Of a member it is the member, and the pack; of its directory the pack alone."""
    segments = dict(packed(step_rows(10, rank=rank, incarnation=rank + 1)) for rank in (0, 1))
    path, raw = pack(segments)
    place = spool / path
    place.parent.mkdir(parents=True)
    place.write_bytes(raw)
    bring(lake, spool)
    assert faults(lake, spool) == []
    flip(place, at=len(next(iter(segments.values()))) // 2)
    member, whole = faults(lake, spool)
    assert member.startswith(f"{place}#")
    assert whole == f"{place}: its bytes differ from the digest in its name"
    place.write_bytes(raw)
    flip(place, at=len(raw) - 30)
    assert faults(lake, spool) == [whole]


def test_what_came_later_is_not_named(lake, spool):
    """A number that was computed before more rows came is followed to what was read, and a note says so."""
    first = put_segment(spool, step_rows(10))
    bring(lake, spool)
    run_rollups(lake)
    put_segment(spool, step_rows(5, segment=1), rows_before=10)
    bring(lake, spool)
    result = walk(lake, contract("step_rollup"), "r1", None, Spool(str(spool)))
    assert [each.path for each in result.segments] == [str(first)]
    (source,) = result.computations[0].inputs
    assert source.state == "read in version 1, since then more rows came by plan 2 (ingest)"
    run_rollups(lake)
    result = walk(lake, contract("step_rollup"), "r1", None, Spool(str(spool)))
    assert len(result.segments) == 2
    assert {source.state for source in result.computations[0].inputs} == {"as it was read"}


@pytest.mark.slow
def test_a_renamed_column_is_followed(lake, spool, changed):
    """Rows that a migration rewrote are no faults: before rollups run again they are followed as they were read."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    run_rollups(lake)
    changed.migrate("steps", rename)
    applying.apply(lake, InProcess(), "Ada")
    result = walk(lake, contract("steps"), "r1", None, Spool(str(spool)))
    assert ([each.state for each in result.segments], result.faults, result.notes) == (["verified"], (), ())
    result = walk(lake, contract("rank_health"), "r1", None, Spool(str(spool)))
    assert ([each.state for each in result.segments], result.faults, result.notes) == (["verified"], (), ())
    assert result.computations[0].inputs[0].state == ("read in version 1, since then rewritten by plan 2 (migration)")
    root = Path(lake.uri) / "tables/steps"
    for path in root.rglob("date=*/*.parquet"):
        if plan_of(str(path.relative_to(root))) == 1:
            path.unlink()  # as upkeep does after days
    result = walk(lake, contract("rank_health"), "r1", None, Spool(str(spool)))
    assert ([each.state for each in result.segments], result.faults) == (["verified"], ())
    assert "what was read is gone (rewritten by plan 2 (migration))" in result.notes[0].text


def packed(rows):
    """Return a segment's path below a spool, and its bytes."""
    name, raw = segment_bytes(rows)
    return f"segments/2026-03-01/{name}", raw


def faults(lake, spool):
    """Return what is wrong on the way of the run's steps, as a process of its own finds it."""
    fresh = Lake.open(lake.uri)
    return [each.text for each in walk(fresh, contract("steps"), "r1", None, Spool(str(spool))).faults]


def copied(places, folder):
    """Return the options for a lake of one's own with the same rows, and what fed the run there."""
    options, own = places
    lake, spool = (folder / name for name in ("lake", "spool"))
    shutil.copytree(options[1], lake)
    shutil.copytree(options[3], spool)
    paths = {str(spool / Path(path).relative_to(options[3])): rows for path, rows in own.items()}
    return ["--lake", str(lake), "--spool", str(spool)], paths


def flip(path, at=None):
    """Change one bit of a file, in its middle unless it is said where."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 if at is None else at] ^= 1
    path.chmod(0o644)
    path.write_bytes(raw)
