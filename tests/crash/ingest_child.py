"""One ingest, rows of the audit log, and one upkeep that die by SIGKILL, for `test_ingest_kills.py`.

    python ingest_child.py LAKE SPOOL MODE NUMBER

MODE ``event``: die at the NUMBER-th time that the interpreter enters or leaves a function of the lake room, or that
one of these calls into C: so also just before and just after every write, link and commit. MODE ``time``: die NUMBER
milliseconds after the work began, in the middle of whatever is then under way. MODE ``never``: print how many events
there were.
"""

import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

from ranklake.lake.audit import trail
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import AuditSection

MODE, NUMBER = "never", 0
ROOM = str(Path(sys.modules["ranklake.lake"].__file__).parent)
seen = 0


def watch(frame, event, argument):
    """Count what happens in the room, and die when it is time."""
    global seen  # noqa: PLW0603 - a profile function has no other place to count
    if frame.f_code.co_filename.startswith(ROOM):
        seen += 1
        if MODE == "event" and seen == NUMBER:
            os.kill(os.getpid(), signal.SIGKILL)


def die_later():
    """Die in the middle of whatever is under way."""
    time.sleep(NUMBER / 1000)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    LAKE, SPOOL, MODE, NUMBER = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    if MODE == "time":
        threading.Thread(target=die_later, daemon=True).start()
    else:
        sys.setprofile(watch)
    lake = Lake.create(LAKE).configured(audit=AuditSection(f"file:{LAKE}-witness"))
    ingest(lake, Spool(SPOOL), InProcess())
    trail.record(lake, "child", "test.act", "ingest")
    trail.record_all(lake, [trail.Entry("child", "test.once", f"{number}", once=True) for number in range(3)])
    # Nobody else is at work, so nothing need be kept for anybody: a file too many that goes is a row lost.
    upkeep(lake, InProcess(), grace=timedelta(0))
    sys.setprofile(None)
    print(seen)
