"""Process: metrics of one rank's process, under the names of ``host_samples``. Source: proc(5)."""

import os
from typing import Any, Final

from ranklake.capture.samplers.reading import Reading, Tree

_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_MINOR, _MAJOR, _USER, _SYSTEM, _THREADS, _START, _RSS = 7, 9, 11, 12, 17, 19, 21
"""Fields of /proc/<pid>/stat behind the command's closing bracket."""


def read(tree: Tree, pid: int, reading: Reading) -> None:
    """Add the columns of a process. Raises `OSError` if it is gone; what else is missing is said in the row."""
    fields = tree.text(f"proc/{pid}/stat").rpartition(") ")[2].split()
    uptime_s = float(tree.text("proc/uptime").split()[0])
    reading.columns |= {
        "pid": pid,
        "cpu_time_s": (int(fields[_USER]) + int(fields[_SYSTEM])) * _TICK_S,
        "major_fault_count": int(fields[_MAJOR]),
        "minor_fault_count": int(fields[_MINOR]),
        "process_thread_count": int(fields[_THREADS]),
        "process_rss_bytes": int(fields[_RSS]) * _PAGE_BYTES,
        "uptime_s": max(0.0, uptime_s - int(fields[_START]) * _TICK_S),
    }
    reading.take(["context_switch_count"], lambda: _switches(tree, pid))
    reading.take(["disk_read_bytes", "disk_write_bytes"], lambda: _io(tree, pid))
    reading.take(["process_open_file_count"], lambda: {"process_open_file_count": len(tree.names(f"proc/{pid}/fd"))})


def _switches(tree: Tree, pid: int) -> dict[str, Any]:
    lines = tree.text(f"proc/{pid}/status").splitlines()
    counts = [int(line.partition(":")[2]) for line in lines if "ctxt_switches" in line]
    return {"context_switch_count": sum(counts)}


def _io(tree: Tree, pid: int) -> dict[str, Any]:
    found = dict(line.split(": ") for line in tree.text(f"proc/{pid}/io").splitlines())
    return {"disk_read_bytes": int(found["read_bytes"]), "disk_write_bytes": int(found["write_bytes"])}
