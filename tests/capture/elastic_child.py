"""A rank under torchrun: in its first attempt rank 1 fails while the others wait in C; in its second all end well."""

import ctypes
import sys

from ranklake import capture

run = capture.start("job", spool=sys.argv[1], local_dir=sys.argv[2])
with run.step(0):
    pass
if run.attempt == 0:
    if run.rank == 1:
        raise RuntimeError("injected")
    while True:
        ctypes.CDLL(None).sleep(60)
run.close()
