"""Drivers that are about to die, for `chaos.py`. Imported once, by the server that forks them."""

import random
import sys
import time
import traceback
from datetime import timedelta

import ingest_child
from distributed.comm.core import CommClosedError

from ranklake.errors import RanklakeError
from ranklake.lake.audit.trail import record
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.dask_workers import workers
from ranklake.lake.plans.workers import DaskSection, InProcess
from ranklake.lake.store.lake import Lake

GRACE = timedelta(minutes=2)
"""Longer than any driver here lives; much shorter than a campaign."""


def drive(lake, spool, storage, address, seed):
    """Ingest again and again until killed, half of the time by its own hand at a random event in the lake room."""
    _arm(seed)

    def once():
        with workers(DaskSection(address)) as crew:
            while True:
                ingest(Lake.create(lake, storage), Spool(spool, storage), crew)
                time.sleep(0.05)

    _for_ever(once)


def keep_up(lake, spool, storage, address, seed):
    """Keep the lake in shape again and again until killed, in the same ways."""
    del spool, address
    _arm(seed)

    def once():
        opened = Lake.create(lake, storage)
        record(opened, "child", "test.upkeep", f"{random.random()}")
        upkeep(opened, InProcess(), grace=GRACE)
        time.sleep(0.2)

    _for_ever(once)


def _arm(seed):
    rng = random.Random(seed)
    if rng.random() < 0.5:
        ingest_child.MODE, ingest_child.NUMBER = "event", rng.randint(1, 20_000)
        sys.setprofile(ingest_child.watch)


def _for_ever(once):
    """Go on after what a schedule would try again; anything else is a finding, and ends the process with status 3."""
    while True:
        try:
            once()
        except (RanklakeError, CommClosedError):
            time.sleep(0.1)
        except Exception:  # noqa: BLE001 - whatever else it is
            traceback.print_exc()
            sys.exit(3)
