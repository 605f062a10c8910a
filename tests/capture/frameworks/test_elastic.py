"""Elastic training: a node joins or dies, torchrun starts its ranks anew in another world, and the lake knows all."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bringing import adds_up, bring
from recorded import attributes, check_books, rows
from stores import free_port

from ranklake.capture.recover import recover
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake

CHILD = Path(__file__).with_name("elastic_child.py")
SHRINKING = Path(__file__).with_name("shrinking_child.py")


def end_all_of(node):
    """Kill a node: torchrun, and the ranks that it has started in sessions of their own."""
    children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
    for pid in (node.pid, *map(int, children)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.communicate()


@pytest.mark.frameworks
@pytest.mark.slow
def test_a_node_that_joins_makes_the_world_larger(tmp_path):
    """Torchrun counts no restart then: the attempt stays, and each life of a rank has its world's size."""
    spool, done = tmp_path / "spool", tmp_path / "done"
    options = [
        "--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
        "--rdzv-id=elastic", "--rdzv-conf=last_call_timeout=1", "--monitor-interval=0.1",
    ]  # fmt: skip
    places = [str(spool), str(tmp_path / "local"), str(done)]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(CHILD), *places]
    # Else a node that joins a world that was there before waits in vain for the address of its store (torch 2.13).
    environ = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    nodes = []
    try:
        for size in (1, 2):
            nodes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ))
            assert nodes[-1].stdout.readline() == f"world of {size}\n".encode()
        done.touch()
        for node in nodes:
            node.communicate(timeout=60)
            assert node.returncode == 0
    finally:
        for node in nodes:
            node.kill()
            node.communicate()
    lives = {}
    for row in rows(spool, "events"):
        if row["event"] in {"rank_start", "preemption", "rank_end"}:
            lives.setdefault((row["attempt"], row["rank"], row["incarnation"]), []).append(row)
    told = [
        (attempt, rank, attributes(life[0])["world_size"], [row["event"] for row in life])
        for (attempt, rank, _), life in lives.items()
    ]
    assert sorted(told) == [
        (0, 0, 1, ["rank_start", "preemption", "rank_end"]),
        (0, 0, 2, ["rank_start", "rank_end"]),
        (0, 1, 2, ["rank_start", "rank_end"]),
    ]
    check_books(spool)
    lake = Lake.create(str(tmp_path / "lake"))
    bring(lake, spool)
    adds_up(lake, spool)
    asked = "SELECT attempt, rank, world_size, node_count FROM runs ORDER BY ts"
    assert query(lake, asked).to_pylist() == [
        {"attempt": 0, "rank": 0, "world_size": size, "node_count": size} for size in (1, 2)
    ]


@pytest.mark.frameworks
@pytest.mark.slow
def test_a_node_that_dies_makes_the_world_smaller(tmp_path):
    """The rank that is left fails, its torchrun counts a restart, and the next attempt has a world of one."""
    spool, done = tmp_path / "spool", tmp_path / "done"
    patience = "last_call_timeout=1,keep_alive_interval=2,keep_alive_max_attempt=5"  # missed after ten seconds
    options = [
        "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=1", "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=elastic", f"--rdzv-conf={patience}",
        "--monitor-interval=0.1",
    ]  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(SHRINKING), str(spool)]
    environ = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    nodes = []
    try:
        for size in (1, 2):
            places = [str(tmp_path / f"node{size}"), str(done)]  # each node has a disk of its own
            nodes.append(
                subprocess.Popen([*command, *places], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ)
            )
            assert nodes[-1].stdout.readline() == f"world of {size}\n".encode()
        assert nodes[0].stdout.readline() == b"world of 2\n"
        end_all_of(nodes[1])
        assert nodes[0].stdout.readline() == b"world of 1\n"
        done.touch()
        nodes[0].communicate(timeout=60)
        assert nodes[0].returncode == 0
    finally:
        for node in nodes:
            with contextlib.suppress(OSError):
                end_all_of(node)
    recover(tmp_path / "node2", str(spool))  # its disk was spared
    lives = {}
    for row in rows(spool, "events"):
        if row["event"] in {"rank_start", "preemption", "rank_end", "abandoned"}:
            lives.setdefault((row["attempt"], row["rank"], row["incarnation"]), []).append(row)
    told = [
        (attempt, rank, attributes(life[0])["world_size"], [row["event"] for row in life])
        for (attempt, rank, _), life in lives.items()
    ]
    assert sorted(told) == [
        (0, 0, 1, ["rank_start", "preemption", "rank_end"]),
        (0, 0, 2, ["rank_start", "rank_end"]),
        (0, 1, 2, ["rank_start", "abandoned"]),
        (1, 0, 1, ["rank_start", "rank_end"]),
    ]
    assert {row["attempt"] for row in rows(spool, "events") if row["event"] == "failure"} == {0}
    check_books(spool)
    lake = Lake.create(str(tmp_path / "lake"))
    bring(lake, spool)
    adds_up(lake, spool)
    asked = "SELECT attempt, rank, world_size, node_count FROM runs ORDER BY ts"
    assert query(lake, asked).to_pylist() == [
        {"attempt": attempt, "rank": 0, "world_size": size, "node_count": size}
        for attempt, size in ((0, 1), (0, 2), (1, 1))
    ]
