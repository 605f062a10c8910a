"""A rank under an elastic torchrun: trains until the world has two ranks and a file is there."""

import sys
import time
from pathlib import Path

from ranklake import capture

SPOOL, LOCAL, DONE = sys.argv[1:4]
run = capture.start("job", spool=SPOOL, local_dir=LOCAL)
number = 0
while run.world_size == 1 or not Path(DONE).exists():
    with run.step(number):
        time.sleep(0.02)
    number += 1
    if number == 1:
        print(f"world of {run.world_size}", flush=True)
run.close()
