"""Two ranks that train with collectives of all kinds, for test_collectives.py; one import of torch for both."""

import json
import sys
import threading
import time
from pathlib import Path

import torch
from torch import distributed, multiprocessing
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ranklake import capture

RANKS = 2
STEPS = 4


def model(width=64, depth=4):
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(depth)])


def train(run, parallel, rank, first=0, *, late_s=0.0, micro=1):
    """Train a few steps; rank 1 is late to each backward. Returns the gradients' sum at the end."""
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for step in range(first, first + STEPS):
        with run.step(step):
            for part in range(micro):
                quiet = part + 1 < micro
                with parallel.no_sync() if quiet else run.phase("forward"):
                    loss = parallel(torch.randn(4, 64, generator=generator)).pow(2).sum()
                    if rank == 1:
                        time.sleep(late_s)
                    if quiet:
                        loss.backward()
            with run.phase("backward"):
                loss.backward()
            with run.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
    return [round(float(parameter.detach().double().sum()), 6) for parameter in parallel.parameters()]


def ddp(run, rank):
    """Gradients are those of plain DDP, with our hook, with the user's behind ours, and with ours refused."""
    plain = train(capture.start(enabled=False), DistributedDataParallel(model(), bucket_cap_mb=0.02), rank)
    timed = DistributedDataParallel(model(), bucket_cap_mb=0.02)
    run.collectives(timed)
    ours = train(run, timed, rank, late_s=0.05)
    compressed = DistributedDataParallel(model())
    run.collectives(compressed)
    compressed.register_comm_hook(None, fp16_compress_hook)
    both = train(run, compressed, rank, 10)
    theirs = DistributedDataParallel(model())
    theirs.register_comm_hook(None, fp16_compress_hook)
    run.collectives(theirs)
    alone = train(run, theirs, rank, 20)
    accumulated = train(run, timed, rank, 30, micro=3)
    try:
        compressed.register_comm_hook(None, fp16_compress_hook)
    except RuntimeError as error:
        refused = str(error)
    return {"plain": plain, "ours": ours, "both": both, "alone": alone, "refused": refused, "all": accumulated}


def sharded(run, rank):
    """FSDP2 trains; its collectives are torch.distributed's."""
    run.collectives()
    net = model()
    for layer in net:
        fully_shard(layer)
    fully_shard(net)
    for step in range(40, 40 + STEPS):
        with run.step(step):
            with run.phase("forward"):
                loss = net(torch.ones(4, 64)).pow(2).sum()
            with run.phase("backward"):
                loss.backward()


def calls(run, rank, before):
    """Plain calls: waited for, not waited for, in groups, as a barrier, and one that fails."""
    assert run.collectives() is run.collectives()
    group = distributed.new_group([0, 1])
    with run.step(50):
        distributed.all_reduce(torch.ones(1000))
        work = distributed.all_reduce(torch.ones(10, dtype=torch.float64), distributed.ReduceOp.SUM, group, True)  # noqa: FBT003 - by position on purpose
        work.wait()
        distributed.barrier()
        out = torch.empty(20)
        distributed.all_gather_into_tensor(out, torch.full((10,), float(rank)))
        try:
            distributed.all_reduce("no tensor")
        except Exception as error:  # noqa: BLE001 - torch's own
            failed = type(error).__name__
    run.close()
    return {"restored": distributed.all_reduce is before, "failed": failed, "gathered": out.tolist()}


def record(rank, spool, local):
    """Train, and write down beside the spool what this rank saw."""
    store = f"file://{Path(spool).parent}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    run = capture.start(job="job", run="run", spool=spool, local_dir=local)
    run.coordinates(dp=rank, pp=0)
    before = distributed.all_reduce
    said = ddp(run, rank)
    sharded(run, rank)
    said |= calls(run, rank, before) | {"gaps": run.gaps()}
    (Path(spool).parent / f"said-{rank}.json").write_text(json.dumps(said))
    distributed.destroy_process_group()
    assert threading.active_count() < 20


if __name__ == "__main__":
    torch.set_num_threads(1)
    multiprocessing.start_processes(record, sys.argv[1:3], RANKS, start_method="fork")
