"""A rank of a small compiled DDP training, which notes by its own clock when parts of its start began and ended."""

import json
import os
import sys
import time
from pathlib import Path

from ranklake import capture

SPOOL, LOCAL, NOTES = (Path(text) for text in sys.argv[1:4])
STEPS = 40
run = capture.start("job", run="started", spool=str(SPOOL), local_dir=str(LOCAL), startup="on")
notes = {"capture": time.time_ns()}


def note(part, began_ns):
    notes[part] = began_ns, time.time_ns()


began = time.time_ns()
import torch  # noqa: E402 - what is timed here
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

note("imports", began)
attempt, rank = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
began = time.time_ns()
if rank == 1:
    time.sleep(2)  # rank 0 waits for it
# A store of the attempt's own: nothing that was left there can be taken for a successor's.
torch.distributed.init_process_group("gloo", f"file://{NOTES}/store-a{attempt}", rank=rank, world_size=2)
note("distributed", began)
torch.set_num_threads(1)
with run.phase("init/tokenizer"):
    began = time.time_ns()
    time.sleep(0.5)
    note("tokenizer", began)
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))))
trained = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for number in range(STEPS * attempt, STEPS * (attempt + 1)):
    began = time.time_ns()
    with run.step(number):
        trained(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    note(f"step {number}", began)
(NOTES / f"notes-a{attempt}-r{rank}.json").write_text(json.dumps(notes))
run.close()
torch.distributed.barrier()
if attempt == 0:
    os._exit(1)  # so that torchrun starts it again
torch.distributed.destroy_process_group()
