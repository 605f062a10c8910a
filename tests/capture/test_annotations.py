"""Annotations: what people, scripts and trainers call a run and say of it: rows with history, and lines that tell."""

import os
import subprocess
import sys

import pytest
from recorded import gaps, rows

from ranklake.capture.common.values import BadValueError
from ranklake.capture.frameworks.follower import follow
from ranklake.capture.provenance.annotations import annotation
from ranklake.segments.segment import readable_name


def told(spool):
    """Return kind, key, value, number, removed and source of each annotation, in order."""
    names = ("kind", "key", "value", "number", "text", "removed", "source")
    found = sorted(rows(spool, "annotations"), key=lambda row: row["slot"])
    return [tuple(row[name] for name in names) for row in found]


def test_everything_said_is_a_row_and_nothing_is_overwritten(place):
    """Names, tags, notes and summary values come with kind and source; taken back is a row, too; author is the user."""
    with place.start() as run:
        run.rename("  the one\nthat works ")
        run.tags.add("baseline", stage="ablation", layers=12)
        run.tags.remove("baseline")
        run.note("diverged at 300; see mail to ada@example.org with password=hunter2hunter2")
        run.summary["best_loss"] = 1.5
        run.summary.update(verdict="fine", curve=[1, 2])
        del run.summary["verdict"]
        assert dict(run.summary) == {"best_loss": 1.5, "curve": [1, 2]}
    found = told(place.spool)
    assert found[:5] == [
        ("name", None, "the one that works", None, None, None, "script"),
        ("tag", "baseline", None, None, None, None, "script"),
        ("tag", "stage", "ablation", None, None, None, "script"),
        ("tag", "layers", "12", None, None, None, "script"),
        ("tag", "baseline", None, None, None, True, "script"),
    ]
    assert found[5][0] == "note"
    assert "hunter2" not in found[5][4]
    assert [row[:4] for row in found[6:9]] == [
        ("summary", "best_loss", "1.5", 1.5),
        ("summary", "verdict", "fine", None),
        ("summary", "curve", "[1,2]", None),
    ]
    assert found[9] == ("summary", "verdict", None, None, None, True, "script")
    assert gaps(place.spool) == {}


def test_what_says_nothing_is_a_gap_and_raises_nothing(place):
    """An empty name, a tag that is none, a summary value that is odd: counted or kept, never raised."""
    with place.start() as run:
        run.rename("")
        run.tags.add("", None)
        run.note(None)
        run.summary["loss"] = float("nan")
        assert run.gaps() == {"annotations": {"bad value": 4}}
    assert [row[:4] for row in told(place.spool)] == [("summary", "loss", '"nan"', None)]
    with pytest.raises(BadValueError, match="the name of a tag is empty"):
        annotation("tag", " ", source="person")


def test_a_trainers_name_is_taken_over_once_and_by_rank_0_alone(place):
    """What a framework's settings call the run becomes its name; rank 1 says nothing."""
    for rank in (0, 1):
        run = place.start(rank=rank, world_size=2)
        follow(run).lead(object(), name="llama-sweep-7")
        run.close()
    assert told(place.spool) == [("name", None, "llama-sweep-7", None, None, None, "trainer")]


def test_a_readable_name_is_made_of_the_id_alone(place):
    """All ranks come to the same name, different ids to different ones, whatever letters they have."""
    run = place.start()
    assert run.readable_name == readable_name("run")
    assert len({readable_name(f"run-{number}") for number in range(1000)}) > 990
    assert all(part.isalnum() for part in readable_name("\ud800 größe").split("-"))


CHILD = """
import sys
from ranklake import capture
spool, local, rank = sys.argv[1:]
with capture.start(job="gpt", run="r", spool=spool, local_dir=local, rank=int(rank), world_size=2) as run:
    with run.step(0): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "announce"), [(0, "on"), (0, "off"), (1, "on")])
def test_rank_0_says_where_it_goes_and_what_it_did(tmp_path, rank, announce):
    """One line at the start, one at the end; with what is not sent and lost; none if asked, none of other ranks."""
    environment = {**os.environ, "RANKLAKE_CAPTURE_ANNOUNCE": announce}
    command = [sys.executable, "-c", CHILD, str(tmp_path / "spool"), str(tmp_path / "local"), str(rank)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    if rank or announce == "off":
        assert done.stderr == ""
        return
    start, end = done.stderr.splitlines()
    recorded_to = f"run r ({readable_name('r')}) is recorded to {tmp_path}/spool"
    assert start == f"ranklake: {recorded_to}; to look at it: ranklake watch r"
    recorded = sum(len(rows(tmp_path / "spool", table)) for table in ("steps", "spans", "events", "runs", "ranks"))
    assert f"run r ended: rank 0 recorded {recorded:,} rows, 0 not sent yet, 0 lost" in end


def test_a_name_that_folders_cannot_have_is_the_one_for_people(place):
    """Letters of other scripts, spaces: rows are kept by another name, and people find the run by theirs."""
    place.start(run="Zoë's größter Lauf 3").close()
    place.start(run="hf_" + "a" * 34).close()
    place.start(run="plain").close()
    names = {row["run"]: row["value"] for row in rows(place.spool, "annotations") if row["kind"] == "name"}
    assert names == {"Zo-s-gr-ter-Lauf-3-2c257b06": "Zoë's größter Lauf 3"}
