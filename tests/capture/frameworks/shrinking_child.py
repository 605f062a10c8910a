"""A rank under an elastic torchrun whose steps need all others; in a world of one it ends well once a file is there."""

import sys
import time
from pathlib import Path

import torch
from torch import distributed

from ranklake import capture

SPOOL, LOCAL, DONE = sys.argv[1:4]
distributed.init_process_group("gloo")
run = capture.start("job", spool=SPOOL, local_dir=LOCAL)
print(f"world of {run.world_size}", flush=True)
number = 0
while run.world_size > 1 or not Path(DONE).exists():
    with run.step(number):
        distributed.all_reduce(torch.ones(1))
        time.sleep(0.02)
    number += 1
run.close()
