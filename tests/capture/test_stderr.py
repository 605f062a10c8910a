"""Standard error: passed on to the byte, and recorded; what a process says while it dies is there after it has."""

import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from recorded import check_books, left_in, rows

from ranklake.capture.logs.faults import FAULTS_FILE
from ranklake.capture.logs.stderr import Grouping, columns_of
from ranklake.capture.recover import recover
from ranklake.capture.spool import frames
from ranklake.capture.spool.stream import META_FILE
from ranklake.capture.spool.stream_files import streams
from ranklake.redaction.redact import redact

CHILD = Path(__file__).with_name("stderr_child.py")
SECRET = b"hf_abcdefghijklmnopqrstuvwxyz"


def rank(folder, how, mode):
    """Let a rank say something; return its status and what came out of its standard error."""
    command = [sys.executable, str(CHILD), how, str(folder / "spool"), str(folder / "local"), mode]
    done = subprocess.run(command, stderr=subprocess.PIPE, check=False, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_helper_that_was_killed_costs_rows_and_nothing_else(tmp_path):
    """Standard error is what it was before: who writes there neither raises nor dies of SIGPIPE."""
    status, said = rank(tmp_path, "orphaned", "all")
    assert (status, said) == (0, b"still here\nand a child\n")
    check_books(tmp_path / "spool")


@pytest.mark.parametrize("mode", ["faults", "all"])
def test_what_a_segfault_leaves(tmp_path, mode):
    """The fault handler's text is in the spool, with the file of Python that it happened in."""
    status, _ = rank(tmp_path, "faults", mode)
    assert status == -signal.SIGSEGV
    (folder,) = streams(tmp_path / "local")
    assert (folder / FAULTS_FILE).read_text().startswith("Fatal Python error: Segmentation fault")
    recover(tmp_path / "local", tmp_path / "spool")
    (row,) = rows(tmp_path / "spool", "logs")
    assert (row["stream"], row["severity_number"]) == ("faulthandler", 21)
    assert row["message"] == row["template"] == "Fatal Python error: Segmentation fault"
    assert "stderr_child.py" in row["exception_stacktrace"]
    tick = timedelta(milliseconds=20)  # files' times are of the kernel's last tick
    assert row["ts"] >= rows(tmp_path / "spool", "steps")[0]["ts"] - tick
    check_books(tmp_path / "spool")
    assert left_in(tmp_path / "local") == []


@pytest.mark.parametrize(("mask", "trace"), [("redact", "[redacted]"), ("nullify", None), ("later:1", None)])
def test_what_a_segfault_leaves_is_masked(tmp_path, monkeypatch, mask, trace):
    """Whoever makes a row of it masks it as the process would have, whatever its own settings are; once."""
    policy = tmp_path / "masking.yaml"
    said = "nullify" if mask == "later:1" else mask
    policy.write_text(f"at_capture: {{masks: {{personal: {said}}}}}\n")
    folder = tmp_path / "home" / "planted-ada"
    folder.mkdir(parents=True)
    child = folder / CHILD.name
    child.write_text(CHILD.read_text())
    monkeypatch.setenv("RANKLAKE_MASKING_POLICY", str(policy))
    command = [sys.executable, str(child), "faults", str(tmp_path / "spool"), str(tmp_path / "local"), "faults"]
    subprocess.run(command, stderr=subprocess.PIPE, check=False, timeout=60)
    monkeypatch.delenv("RANKLAKE_MASKING_POLICY")
    (stream,) = streams(tmp_path / "local")
    if mask == "later:1":
        meta = stream / META_FILE
        known = frames.read(meta).frames
        meta.write_bytes(b"".join(frames.pack(_with_mask(frame, mask)) for frame in known))
    recover(tmp_path / "local", tmp_path / "spool")
    (row,) = rows(tmp_path / "spool", "logs")
    assert row["stream"] == "faulthandler"
    shown = row.get("exception_stacktrace")
    assert shown is None if trace is None else "planted-ada" not in shown
    every = b"".join(path.read_bytes() for path in tmp_path.rglob("*.parquet"))
    assert b"planted-ada" not in every
    check_books(tmp_path / "spool")


def _with_mask(frame, said):
    if frame.get("k") != "masks":
        return frame
    return {**frame, "t": {table: dict.fromkeys(of, said) for table, of in frame["t"].items()}}


@pytest.mark.slow
def test_the_second_run_of_a_process_has_its_faults(tmp_path):
    """The fault handler writes to the stream of the run that is open."""
    rank(tmp_path, "again", "faults")
    recover(tmp_path / "local", tmp_path / "spool")
    assert [row["run"] for row in rows(tmp_path / "spool", "logs")] == ["again"]


@pytest.mark.slow
def test_a_users_fault_handler_stays(tmp_path):
    """Turned on after the start, it writes where the user wants it to, also when the run has closed."""
    _, out = rank(tmp_path, "users", "faults")
    assert out.startswith(b"Fatal Python error: Segmentation fault")


def test_a_recovery_that_was_killed_tells_of_faults_once(tmp_path):
    """A row that was written before the kill is not written again."""
    rank(tmp_path, "faults", "faults")
    (folder,) = streams(tmp_path / "local")
    text = (folder / FAULTS_FILE).read_text().strip()
    (folder / "logs-000000.open").write_bytes(frames.pack({"s": 0, "m": 1, "exception_stacktrace": text}))
    recover(tmp_path / "local", tmp_path / "spool")
    assert len(rows(tmp_path / "spool", "logs")) <= 1


def test_standard_error_is_passed_on_and_recorded(tmp_path):
    """Every byte comes out in its order, whoever wrote it; lines are rows with a severity, a traceback is one row."""
    status, out = rank(tmp_path, "says", "all")
    assert status == 1
    begin = b"node1:7:9 [0] misc/socket.cc:4 NCCL WARN Net : Connect failed\n[rank0]:[W1122"
    assert out.startswith(begin)
    assert "half a line, \u00e9\n50%\r100%\nfrom a child\n".encode() in out
    assert out.endswith(b"ValueError: the end\n")
    assert SECRET in out
    found = {row["message"]: row for row in rows(tmp_path / "spool", "logs")}
    nccl = found["node1:7:9 [0] misc/socket.cc:4 NCCL WARN Net : Connect failed"]
    assert (nccl["stream"], nccl["severity_text"]) == ("nccl", "WARNING")
    glog = found["[rank0]:[W1122 01:02:03.456 ProcessGroupNCCL.cpp:12] slow"]
    assert (glog["stream"], glog["source_file"], glog["source_line"]) == ("nccl", "ProcessGroupNCCL.cpp", 12)
    assert {"half a line, \u00e9", "100%", "from a child", "token=[redacted]"} <= set(found)
    error = found["ValueError: the end"]
    said = error["exception_type"], error["exception_message"], error["severity_number"]
    assert said == ("ValueError", "the end", 17)
    assert error["exception_stacktrace"].startswith("Traceback")
    assert not any(SECRET in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    check_books(tmp_path / "spool")


@pytest.mark.slow
def test_a_flood_is_passed_on_whole(tmp_path):
    """20,000 lines come out as they went in; what a busy machine makes no rows of before the end is counted as gaps."""
    status, out = rank(tmp_path, "floods", "all")
    assert status == 0
    whole = b"".join(b"line %06d of many\n" % number for number in range(20_000))
    assert out.startswith(whole)
    said = out.removeprefix(whole)
    assert said in {b"", b"ranklake: not recorded in logs: after close; counted as gaps from here on\n"}
    check_books(tmp_path / "spool")
    found = rows(tmp_path / "spool", "logs")
    assert {row["template"] for row in found} == {"line <…> of many"}


def test_nothing_is_touched_by_default(tmp_path):
    """Without being asked for, standard error is the descriptor that it was, and no process reads it."""
    status, out = rank(tmp_path, "says", "faults")
    assert status == 1
    assert [row["stream"] for row in rows(tmp_path / "spool", "logs")] == ["excepthook"]
    assert out.endswith(b"ValueError: the end\n")


@pytest.mark.parametrize(
    ("line", "severity", "stream"),
    [
        ("W1122 01:02:03.456789 12345 file.cpp:12] slow", 13, "stderr"),
        ("E20261122 01:02:03.456789 12345 file.cpp:12] bad", 17, "stderr"),
        ("/a/b.py:3: UserWarning: old", 13, "stderr"),
        ("ERROR something", 17, "stderr"),
        ("NCCL version 2.21.5", 9, "nccl"),
        ("plain", 9, "stderr"),
        ("Fatal Python error: Aborted", 21, "faulthandler"),
    ],
)
def test_what_a_line_says_of_itself(line, severity, stream):
    """Levels of glog, of NCCL and of Python are found; a line without one is information."""
    found = columns_of(line)
    assert (found["severity_number"], found["stream"]) == (severity, stream)


def test_lines_however_they_are_cut():
    """Cut anywhere, bytes give the same rows; a traceback that never ends is given as lines."""
    begin = b"Traceback (most recent call last):\n"
    raw = b"one\n" + begin + b'  File "a", line 1\nValueError: x\ntwo\n' + begin

    def told(*pieces):
        grouping = Grouping()
        return [row["message"] for piece in pieces for row in grouping.feed(piece)] + [
            row["message"] for row in grouping.end()
        ]

    whole = told(raw)
    assert whole == ["one", "ValueError: x", "two", "Traceback (most recent call last):"]
    assert all(told(raw[:at], raw[at:]) == whole for at in range(len(raw)))


def test_a_private_key_is_one_row_however_many_lines_it_has():
    """No line of it says what it is a part of; the last may be short, and the end may never come."""
    begin, end = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    key = "\n".join(["[rank0]: " + begin, "MIIEowIBAAKC" * 5, "ab12", "[rank0]: " + end])
    for raw in (f"before\n{key}\nafter\n", f"before\n{begin}\nab12\n"):
        grouping = Grouping()
        rows_ = [*grouping.feed(raw.encode()), *grouping.end()]
        shown = [redact(row["message"]) for row in rows_]
        assert shown[0] == "before"
        assert "ab12" not in str(shown)
        assert shown[2:] == (["after"] if "after" in raw else [])
