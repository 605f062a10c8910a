"""A process that folds values in two threads until it is killed; it writes a letter to a pipe for each that returned.

python fold_child.py LOCAL SPOOL DESCRIPTOR
"""

import itertools
import os
import sys
import threading

import numpy as np

from ranklake import capture

LOCAL, SPOOL, TOLD = sys.argv[1], sys.argv[2], int(sys.argv[3])

run = capture.start(run="run", spool=SPOOL, local_dir=LOCAL, seal_every_s=0.05)
aggregate = run.aggregate("folded/aggregate", every_s=0.02)
counter = run.counter("folded/counter")
histogram = run.histogram("folded/histogram", every_s=0.02)


def fold():
    """Add 0, 1, 2, … to the aggregate, and to the counter ones."""
    for number in itertools.count():
        aggregate.add(float(number))
        os.write(TOLD, b"a")
        counter.add()
        os.write(TOLD, b"c")


def record():
    """Record arrays of 1, 2 and 3 values of very different size."""
    for number in itertools.count():
        histogram.record(np.full(number % 3 + 1, 2.0 ** (number % 200 - 100)))
        os.write(TOLD, b"h")


threading.Thread(target=record, daemon=True).start()
fold()
