"""A rank that records for a while, as training does, for ``up_chaos.py``: ``up_rank.py SPOOL LOCAL RUN RANK STEPS``."""

import sys
import time

from ranklake import capture

spool, local, name, rank, steps = sys.argv[1:]
run = capture.start(
    "chaos",
    run=name,
    spool=spool,
    local_dir=local,
    rank=int(rank),
    world_size=2,
    seal_every_s=2.0,
    samplers="off",
)
for number in range(int(steps)):
    with run.step(number):
        with run.phase("forward"):
            time.sleep(0.01)
        run.log({"loss": 1 / (1 + number)})
run.close()
print(number + 1, flush=True)
