"""A process that records steps when it is told to, for tests that look at a run while it goes on."""

import subprocess
import sys

CHILD = """
import os, sys, time
from ranklake import capture
from ranklake.capture.spool.clock import wall_ns
rank, width = int(sys.argv[3]), int(sys.argv[4])
run = capture.start(run="live", spool=sys.argv[1], local_dir=sys.argv[2], rank=rank, world_size=width, samplers="off")
for line in sys.stdin:
    number = int(line)
    with run.step(number, tokens=100):
        time.sleep(0.02 if rank else 0.005)
        run.log(loss=1.0 / (number + 1))
    print(time.time_ns(), flush=True)
run.close()
"""


class Child:
    """A process that records the steps it is told, one by one."""

    def __init__(self, place, rank=0, width=1):
        places = [str(place.spool), str(place.local), str(rank), str(width)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", CHILD, *places], **pipes)

    def record(self, *numbers):
        """Record steps; return when the last ended (wall ns)."""
        for number in numbers:
            self.process.stdin.write(f"{number}\n")
            self.process.stdin.flush()
            ended = int(self.process.stdout.readline())
        return ended

    def close(self):
        """End it as a training that is done."""
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
