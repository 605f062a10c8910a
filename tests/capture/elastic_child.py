"""Two ranks under torchrun: in their first attempt rank 1 fails once rank 0 waits in C; in their second both end well.

    python elastic_child.py SPOOL LOCAL FIFO

Rank 0 opens the FIFO when it records: a signal that came before would end a process that knows nothing of it.
"""

import ctypes
import sys
from pathlib import Path

from ranklake import capture

run = capture.start("job", spool=sys.argv[1], local_dir=sys.argv[2])
with run.step(0):
    pass
if run.attempt == 0:
    with Path(sys.argv[3]).open("rb" if run.rank == 1 else "wb"):
        pass
    if run.rank == 1:
        raise RuntimeError("injected")
    while True:
        ctypes.CDLL(None).sleep(60)
run.close()
