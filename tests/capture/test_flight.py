"""The Flight Recorder is kept when a real group of two ranks hangs, or when training fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from recorded import check_books, rows

HANG = """
import sys, time
from datetime import timedelta
import torch
from torch import distributed
from ranklake import capture
rank, folder = int(sys.argv[1]), sys.argv[2]
store = distributed.FileStore(folder + "/store", 2)
distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
run = capture.start(run="run", spool=folder + "/spool", local_dir=folder + "/local", rank=rank, world_size=2)
recorder = run.flight_recorder(timeout_s=2, folder=folder + "/dumps")
with run.step(0):
    distributed.all_reduce(torch.ones(4))
if rank == 0:
    work = distributed.all_reduce(torch.ones(8), async_op=True)
    while not any(__import__("pathlib").Path(folder).glob("dumps/*r0*.json")):  # the other rank is not coming
        time.sleep(0.05)
    open(folder + "/seen", "w").close()
else:
    while not __import__("os").path.exists(folder + "/seen"):
        time.sleep(0.05)
    distributed.all_reduce(torch.ones(8))
    recorder.dump("asked for")
if rank == 0:
    work.wait()
run.close()
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_a_collective_that_hangs_is_kept(tmp_path):
    """The rank that waits dumps once: which collective is not done; an event and an artifact say where."""
    command = [sys.executable, "-c", HANG]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path)], stderr=subprocess.PIPE) for rank in range(2)]
    for rank in ranks:
        _, said = rank.communicate(timeout=120)
        assert rank.returncode == 0, said.decode()[-3000:]
    dumps = [row for row in rows(tmp_path / "spool", "events") if row["event"] == "flight_recorder"]
    told = [row for row in dumps if row["rank"] == 0]
    assert [row["severity"] for row in told] == ["error"]
    assert [row["severity"] for row in dumps if row["message"] == "asked for"] == ["info"]
    assert "for 2 s" in told[0]["message"]
    facts = json.loads(told[0]["attributes"])
    assert (facts["collective"], facts["collective_number"], facts["ended"]) == ("gloo:all_reduce", 2, False)
    (kept,) = (row for row in rows(tmp_path / "spool", "artifacts") if row["rank"] == 0)
    assert kept["kind"] == "dump"
    entries = json.loads(Path(kept["uri"]).read_bytes())["entries"]
    assert [entry["retired"] for entry in entries][-1] is False
    assert entries[-1]["input_sizes"] == [[8]]
    check_books(tmp_path / "spool")


def test_without_a_group_there_is_nothing_to_keep(place):
    """A dump that is asked for says why there is none."""
    with place.start() as run:
        assert run.flight_recorder().dump("asked for") is None
    (told,) = (row for row in rows(place.spool, "events") if row["event"] == "flight_recorder")
    assert "nothing recorded" in told["message"]


def test_nothing_is_kept_where_nothing_went_wrong(place):
    """A run that ends well has no dump."""
    with place.start() as run:
        run.flight_recorder()
        with run.step(0):
            pass
    assert rows(place.spool, "artifacts") == []
