"""Ten minutes of outage, a store that flaps, a disk that is full: the books add up, and training does not wait.

`pytest -s -m bench tests/capture/test_outage.py` shows the figures.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from recorded import check_books, gaps, rows, totals

pytestmark = pytest.mark.bench

CHILD = Path(__file__).with_name("outage_child.py")
HANG_US = 300_000.0  # how long a request of the child's store hangs: what waits for the store waits that long
GOAL_US = 5000.0


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
    """Assert that training waited for nothing: not for the store, nor for a thread that waits for it.

    The goal is 5 ms. All but a thousandth of the calls are held to it; the longest one of some ten thousand is held to
    what the machine takes from a bare loop, too, or to half of what a request hangs: a busy machine stops any thread.
    """
    assert said["calls"]["p99.9"] <= GOAL_US
    assert said["calls"]["max"] <= max(GOAL_US, 2 * said["bare"]["max"], HANG_US / 2)


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
    """The store is away, ten minutes by the breaker's clock: everything waits on the disk and arrives, no row lost."""
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
    assert said["freed_at"] < max(row["step"] for row in rows(spool, "steps"))
    does_not_block(said)
