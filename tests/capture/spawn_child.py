"""Two ranks started through multiprocessing: the second fails, as its first argument says how; the first waits."""

import contextlib
import multiprocessing
import os
import sys
import time
from pathlib import Path

from ranklake import capture

HOW, SPOOL, LOCAL = sys.argv[1:4]


def train(rank):
    """Record one step; the second rank fails in the next."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "RANKLAKE_RUN": "run"}
    run = capture.start("job", spool=SPOOL, local_dir=LOCAL)
    with run.step():
        pass
    print("ready", flush=True)
    is_up = Path(f"{LOCAL}.up")
    if rank:
        while not is_up.exists():  # the other would be ended before it could tell of it
            time.sleep(0.01)
        raise ValueError("a bad batch")
    is_up.touch()
    time.sleep(60)


def wrapped(rank):
    """Train, and end as torch.multiprocessing has its processes end."""
    try:
        train(rank)
    except ValueError:
        sys.exit(1)


def swallowed(rank):
    """Train, and have Ctrl-C swallowed, as torch.multiprocessing does."""
    with contextlib.suppress(KeyboardInterrupt):
        train(rank)


if __name__ == "__main__":
    if HOW == "swallowed":
        one = multiprocessing.get_context("spawn").Process(target=swallowed, args=(0,))
        one.start()
        print(one.pid, flush=True)
        one.join()
        sys.exit(one.exitcode)
    if HOW == "torch":
        import torch.multiprocessing

        torch.multiprocessing.spawn(train, nprocs=2)
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target={"raises": train, "exits": wrapped}[HOW], args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    ranks[1].join()
    ranks[0].terminate()
    ranks[0].join()
