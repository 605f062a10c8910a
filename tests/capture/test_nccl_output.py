"""NCCL's output: taken apart, recorded from standard output and from its own file, passed on to the byte."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from recorded import check_books, rows

from ranklake.capture.logs.nccl_lines import NcclFile, debug_file, nccl_line

CHILD = Path(__file__).with_name("stderr_child.py")


@pytest.mark.parametrize(
    ("line", "severity", "facts"),
    [
        ("NCCL version 2.21.5+cuda12.4", 9, {"subject": "version", "nccl_version": "2.21.5", "cuda_version": "12.4"}),
        ("h:1:2 [0] NCCL INFO NCCL version 2.22.3+cuda12.6", 9,
         {"subject": "version", "nccl_version": "2.22.3", "cuda_version": "12.6"}),
        ("h:982:1255 [2] NCCL INFO comm 0x560 rank 34 nranks 64 cudaDev 2 busId 49000 commId 0x5a - Init COMPLETE",
         9, {"subject": "init", "rank": 34, "ranks": 64, "bus_id": "49000", "communicator": "0x5a",
             "state": "complete"}),
        ("s-04:2017:2671 [2] NCCL INFO Init timings: rank 2 nranks 16 total 1.08 (kernels 0.51, rest 0.57)",
         9, {"subject": "init_timings", "rank": 2, "ranks": 16, "total_s": 1.08, "kernels_s": 0.51,
             "rest_s": 0.57}),
        ("h:1:2 [0] NCCL INFO === System : maxBw 48.0 totalBw 370.8 ===", 9,
         {"subject": "topology", "max_gbyte_per_s": 48.0, "total_gbyte_per_s": 370.8}),
        ("h:1:2 [0] NCCL INFO               + PCI[48.0] - GPU/0-19000 (0)", 9, {"subject": "topology"}),
        ("h:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 4[4] [send] via NET/IB/1/GDRDMA", 9,
         {"subject": "connection", "from_rank": 0, "to_rank": 4, "transport": "NET/IB/1/GDRDMA"}),
        ("h:1:2 [0] NCCL INFO Using network Socket", 9, {"subject": "network", "network": "Socket"}),
        ("h:9:7 [4] a.c:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<1> with status=12 vendor err 129", 13,
         {"subject": "network", "peer": "10.0.0.9", "status": 12, "vendor_error": 129}),
        ("[2026-06-11 11:44:19] h:1:2 [0] socket.cc:4 (connect) NCCL WARN socketPoll timed out", 13,
         {"subject": "timeout"}),
        ("h:1:2 [0] init.cc:1057 NCCL WARN Multiple Ranks are using the same GPU/Partition.", 13,
         {"subject": "warning"}),
        # as NCCL 2.28.9 wrote them on an H200
        ("vm:616:616 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.2<0>", 9, {"subject": "network"}),
        ("vm:616:616 [0] NCCL INFO Failed to initialize NET plugin IB", 9, {"subject": "network"}),
        ("vm:616:616 [0] NCCL INFO NCCL version 2.28.9+cuda13.0", 9,
         {"subject": "version", "nccl_version": "2.28.9", "cuda_version": "13.0"}),
        (("vm:616:616 [0] NCCL INFO ncclCommInitRankConfig comm 0x1f319a60 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId "
         "60 commId 0xc102ca5e73852c3f - Init START"), 9,
         {"subject": "init", "rank": 0, "ranks": 1, "bus_id": "60", "communicator": "0xc102ca5e73852c3f",
          "state": "start"}),
        (("vm:616:616 [0] NCCL INFO Init timings - ncclCommInitRankConfig: rank 0 nranks 1 total 0.37 (kernels 0.35, "
         "alloc 0.00, bootstrap 0.00, allgathers 0.00, topo 0.00, graphs 0.00, connections 0.01, rest 0.00)"), 9,
         {"subject": "init_timings", "rank": 0, "ranks": 1, "total_s": 0.37, "kernels_s": 0.35, "alloc_s": 0.0,
          "bootstrap_s": 0.0, "allgathers_s": 0.0, "topo_s": 0.0, "graphs_s": 0.0, "connections_s": 0.01,
          "rest_s": 0.0}),
        ("vm:616:616 [0] NCCL INFO comm 0x1f319a60 rank 0 nRanks 1 nNodes 1 localRanks 1 localRank 0 MNNVL 0", 9,
         {"subject": "topology"}),
        ("vm:616:616 [0] NCCL INFO Channel 00/64 : 0", 9, {"subject": "topology"}),
        (("[2026-11-29 19:21:39] vm:964:964 [0] init.cc:904 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both "
         "on CUDA device 60"), 13, {"subject": "warning"}),
        ("h:1:2 NCCL CALL ncclCommInitRank(0x1, 2, 0x3, 0, 0)", 5, {}),
    ],
)  # fmt: skip
def test_what_a_line_is_about(line, severity, facts):
    """Version, initialization with its times, topology, transports, errors of the fabric, timeouts."""
    parts = nccl_line(line)
    assert (parts.severity, parts.facts) == (severity, facts)


def test_where_a_warning_comes_from():
    """File, line and function are NCCL's; host, process and device the rank's."""
    parts = nccl_line("[2026-06-11 11:44:19] n-1:7:9 [3] misc/socket.cc:4 (read) NCCL WARN Net : closed")
    assert (parts.host, parts.pid, parts.device, parts.text) == ("n-1", 7, 3, "Net : closed")
    columns = parts.columns("…")
    assert [columns[name] for name in ("source_file", "source_line", "source_function")] == [
        "misc/socket.cc",
        4,
        "read",
    ]
    assert nccl_line("we use NCCL here") is None
    assert nccl_line("x" * 10**6) is None


def rank(folder, stdout, **environment):
    """Let a rank say what NCCL says; return what came out of its standard output."""
    command = [sys.executable, str(CHILD), "nccl", str(folder / "spool"), str(folder / "local"), "faults", stdout]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        check=False,
        timeout=60,
        env=os.environ | {"PYTHONUNBUFFERED": ""} | environment,
    )
    assert done.returncode == 0
    return done.stdout


PRINTED = b"\n[2026-06-11 11:44:19] node1:7:9 [0] misc/socket.cc:4 (read) NCCL WARN Net : timed out\nnot NCCL's\n"


@pytest.mark.parametrize(("stdout", "messages"), [("off", []), ("nccl", 2), ("all", 3)])
def test_standard_output_is_passed_on_and_recorded(tmp_path, stdout, messages):
    """By default nothing is read; else NCCL's lines, or all, are rows, also those that C held back."""
    out = rank(tmp_path, stdout)
    assert sorted(out.splitlines()) == sorted((PRINTED + b"NCCL version 2.21.5+cuda12.4\n").splitlines())
    known = {row["message"]: row for row in rows(tmp_path / "spool", "logs")} if messages else {}
    assert len(known) == (messages or 0)
    if messages:
        version = known["NCCL version 2.21.5+cuda12.4"]
        assert json.loads(version["fields"])["nccl_version"] == "2.21.5"
        (warning,) = (row for row in known.values() if row["severity_number"] == 13)
        assert (warning["stream"], json.loads(warning["fields"])["subject"]) == ("nccl", "timeout")
        assert stdout != "all" or known["not NCCL's"]["stream"] == "stdout"
    check_books(tmp_path / "spool")


def test_its_own_file_is_followed(tmp_path):
    """%h and %p are replaced as NCCL does; lines of other processes that share it are theirs."""
    rank(tmp_path, "off", NCCL_DEBUG_FILE=str(tmp_path / "nccl.%h.%p"))
    (row,) = rows(tmp_path / "spool", "logs")
    assert row["stream"] == "nccl"
    assert json.loads(row["fields"]) == {"subject": "network", "network": "IB", "device": 0}


def test_a_file_that_is_emptied_grows_or_waits(tmp_path):
    """An older process's text is nobody's; half a line waits; a file that NCCL empties begins anew."""
    path, taken = tmp_path / "log", []
    path.write_text("of the process before\n")
    file = NcclFile(taken.append, {"NCCL_DEBUG_FILE": str(path)})
    file.look()
    assert taken == []
    own = f"h:{os.getpid()}:1 [0] NCCL INFO one\n".encode()
    path.write_bytes(own + b"half")
    file.look()
    file.look()
    assert taken == [own]
    path.write_bytes(own + b"half a line\n")
    file.look()
    assert taken[1:] == [b"half a line\n"]
    path.write_bytes(own)
    file.look()
    assert taken[2:] == [own]
    path.unlink()
    file.look()
    os.mkfifo(path)
    file.look()
    assert len(taken) == 3
    assert NcclFile(taken.append, {}).look() is None


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("/a/%h.%p", "/a/n1.7"), ("/a/100%%p.%p", "/a/100%p.7"), ("/a/%x", "/a/%x"), ("/a/b", "/a/b")],
)
def test_where_nccl_writes_to(pattern, path):
    """As its source does: the host's name up to its first dot, two percent signs for one."""
    assert debug_file(pattern, "n1.cluster.local", 7) == path
