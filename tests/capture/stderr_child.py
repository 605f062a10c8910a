"""A rank that writes to standard error as its first argument says, and dies of it, or not."""

import ctypes
import faulthandler
import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path

from ranklake import capture

HOW, SPOOL, LOCAL, MODE, STDOUT = (*sys.argv[1:], "off")[:5]
run = capture.start("job", run="run", spool=SPOOL, local_dir=LOCAL, stderr=MODE, stdout=STDOUT, log_burst=10_000)
with run.step(0):
    pass
if HOW == "again":
    run.close()
    run = capture.start("job", run="again", spool=SPOOL, local_dir=LOCAL, stderr=MODE)
    with run.step(0):
        pass
if HOW == "users":
    faulthandler.enable()
    run.close()
if HOW in {"faults", "again", "users"}:
    ctypes.string_at(0)
elif HOW == "says":
    libc = ctypes.CDLL(None)
    libc.write(2, b"node1:7:9 [0] misc/socket.cc:4 NCCL WARN Net : Connect failed\n", 62)
    os.write(2, b"[rank0]:[W1122 01:02:03.456 ProcessGroupNCCL.cpp:12] slow\nhalf a ")
    os.write(2, "line, \u00e9\n50%\r100%\n".encode())
    subprocess.run([sys.executable, "-c", "import sys; print('from a child', file=sys.stderr)"], check=True)
    print("token=hf_abcdefghijklmnopqrstuvwxyz", file=sys.stderr)
    raise ValueError("the end")
elif HOW == "floods":
    for number in range(20_000):
        os.write(2, b"line %06d of many\n" % number)
elif HOW == "orphaned":
    (reader,) = (one for one in threading.enumerate() if one.name == "ranklake-stderr")
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        if b"tee.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(int(pid), signal.SIGKILL)
    reader.join(30)
    print("still here", file=sys.stderr)
    subprocess.run(["sh", "-c", "echo and a child >&2"], check=True)
    run.close()
elif HOW == "nccl":
    libc = ctypes.CDLL(None)
    libc.printf(b"NCCL version 2.21.5+cuda12.4\n")  # held back by C: standard output is a pipe
    os.write(
        1, b"\n[2026-06-11 11:44:19] node1:7:9 [0] misc/socket.cc:4 (read) NCCL WARN Net : timed out\nnot NCCL's\n"
    )
    name, pid = platform.node().partition(".")[0], os.getpid()
    pattern = os.environ.get("NCCL_DEBUG_FILE", "")
    if pattern:
        with Path(pattern.replace("%h", name).replace("%p", str(pid))).open("w") as file:
            file.write(f"{name}:{pid}:9 [0] NCCL INFO Using network IB\n{name}:1:1 [0] NCCL INFO another's\n")
