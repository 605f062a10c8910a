"""Three ranks that train one model twice, with and without its all-reduce timed; one import of torch for them all."""

import sys

import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from ranklake import capture

RANKS = 3


def gradients(rank, watch):
    """Return the gradients of a backward pass."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    watch(model)
    torch.manual_seed(1 + rank)
    model(torch.randn(8, 64)).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


def train(rank, folder):
    """Compare them to the last bit."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    plain = gradients(rank, lambda model: None)
    where = {"spool": f"{folder}/spool", "local_dir": f"{folder}/local", "rank": rank, "world_size": RANKS}
    with capture.start(job="job", run="run", **where) as run:
        timed = gradients(rank, run.collectives)
    assert all(torch.equal(one, other) for one, other in zip(plain, timed, strict=True))
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    multiprocessing.start_processes(train, (sys.argv[1],), RANKS, start_method="fork")
