"""Ten minutes of outage, a store that flaps, a disk that is full: the books add up, and training does not wait.

`make bench-outage` shows the figures.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from recorded import check_books, gaps, rows, totals

CHILD = Path(__file__).with_name("outage_child.py")
MOST_US = 5000.0
OFTEN_US = 1000.0


def trained(tmp_path, trouble, seconds, disk_mib=0):
    """Let a rank train through some trouble; return what it says, and its spool."""
    local, spool = tmp_path / "local", tmp_path / "spool"
    local.mkdir()
    job = {"trouble": trouble, "local": str(local), "spool": str(spool), "seconds": seconds, "seed": 7}
    command = [sys.executable, str(CHILD), json.dumps(job)]
    if disk_mib:  # a small disk of its own, which goes when the process does
        mount = f'mount -t tmpfs -o size={disk_mib}m tests "$0" && exec "$@"'
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(local), *command]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    print(f"\n{trouble}: {said['count']:,} calls, {said['puts']} PUTs of which {said['failed']} failed")
    for who in ("calls", "bare"):
        print(f"  {who:6}", "  ".join(f"{name} {value:8.1f} us" for name, value in said[who].items()))
    return said, spool


def does_not_block(said):
    """Assert that no call waited: none took longer than 5 ms, but for what the machine takes from a bare loop, too."""
    assert said["calls"]["max"] <= max(MOST_US, 2 * said["bare"]["max"])
    assert said["calls"]["p99.9"] <= max(OFTEN_US, 2 * said["bare"]["p99.9"])


def adds_up(said, spool):
    """Assert that what was recorded is stored or counted as gaps, table by table; return the gaps."""
    check_books(spool)
    lost = gaps(spool)
    for table in ("steps", "scalars"):
        assert len(rows(spool, table)) + sum(lost.get(table, {}).values()) == said[table]
    (found,) = totals(spool).values()
    assert sum(found["steps"]) == said["steps"]
    assert sum(found["scalars"]) == said["scalars"]
    return lost


@pytest.mark.slow
def test_ten_minutes_of_outage(tmp_path):
    """The store is away for ten minutes of the breaker's time: everything waits on the disk and arrives, no row lost."""
    said, spool = trained(tmp_path, "outage", 10.5)
    assert not adds_up(said, spool)
    assert said["failed"] > 5
    assert said["puts"] - said["failed"] >= 3
    assert not [path for path in said["left"] if not path.endswith(".json")]
    does_not_block(said)


@pytest.mark.slow
def test_a_store_that_flaps(tmp_path):
    """Hangs, resets, 503s, half objects and answers that lie: every segment is there in the end, whole, once."""
    said, spool = trained(tmp_path, "flapping", 8.0)
    assert not adds_up(said, spool)
    assert said["failed"] > 5
    does_not_block(said)


@pytest.mark.slow
def test_a_full_disk_in_an_outage(tmp_path):
    """With no byte left on the disk rows are given up, each counted; with room again recording goes on."""
    said, spool = trained(tmp_path, "full", 8.0, disk_mib=64)
    lost = adds_up(said, spool)
    assert sum(lost["scalars"].values()) > 0
    stored = {row["step"] for row in rows(spool, "steps")}
    assert {0, said["steps"] - 1} <= stored
    does_not_block(said)
