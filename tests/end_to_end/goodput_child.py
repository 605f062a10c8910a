"""A rank of a small DDP training that resumes from its checkpoint; in its first attempt rank 1 is killed in a step.

It notes by its own clock when each step began and ended, outside and inside of what records it.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from ranklake import capture

SPOOL, LOCAL, PLACE = (Path(text) for text in sys.argv[1:4])
STEPS, EVERY, KILLED_IN = 14, 5, 8

# A store of the attempt's own: nothing that the killed rank left there can be taken for its successor's.
attempt, rank, world = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
torch.distributed.init_process_group(
    "gloo", f"file://{PLACE}/store-a{attempt}", rank=rank, world_size=world, timeout=timedelta(seconds=30)
)
run = capture.start("job", run="killed", spool=str(SPOOL), local_dir=str(LOCAL))
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
saved = PLACE / "checkpoint.pt"
first = 0
if saved.exists():
    state = torch.load(saved)
    model.module.load_state_dict(state["model"])
    first = state["step"] + 1
notes = (PLACE / f"notes-a{run.attempt}-r{rank}.jsonl").open("a")


def now():
    return time.clock_gettime_ns(time.CLOCK_REALTIME)


for number in range(first, STEPS):
    outer = now()
    with run.step(number):
        inner = now()
        for _ in range(4):
            loss = model(torch.randn(256, 512)).square().mean()
            loss.backward()
        if run.attempt == 0 and rank == 1 and number == KILLED_IN:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss.detach().item(), tokens=1000, **{"train/epoch": number // 10})
        inner_end = now()
    outer_end = now()
    notes.write(json.dumps([number, outer, inner, inner_end, outer_end]) + "\n")
    notes.flush()
    if rank == 0 and number % EVERY == EVERY - 1:
        begin = now()
        with run.checkpoint(saved, step=number) as temporary:
            torch.save({"model": model.module.state_dict(), "step": number}, temporary)
        notes.write(json.dumps(["checkpoint", begin, now()]) + "\n")
        notes.flush()
run.close()
torch.distributed.destroy_process_group()
