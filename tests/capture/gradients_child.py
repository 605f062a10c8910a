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


def uneven(rank, watch, *, divide):
    """Return the parameters after each rank has trained on another number of batches, under ``model.join()``."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    watch(model)
    torch.manual_seed(1 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join(divide_by_initial_world_size=divide):
        for _ in range(2 + rank):
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()  # and once more all together
    return [*model.parameters(), *(parameter.grad for parameter in model.parameters())]


def train(rank, folder):
    """Compare them to the last bit."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    plain = [gradients(rank, lambda model: None)]
    plain += [uneven(rank, lambda model: None, divide=divide) for divide in (True, False)]
    where = {"spool": f"{folder}/spool", "local_dir": f"{folder}/local", "rank": rank, "world_size": RANKS}
    with capture.start(job="job", run="run", **where) as run:
        timed = [gradients(rank, run.collectives)]
        timed += [uneven(rank, run.collectives, divide=divide) for divide in (True, False)]
    for some, others in zip(plain, timed, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(some, others, strict=True))
    assert run.gaps() == {}
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])  # loads as much as torch again, once for all ranks
    multiprocessing.start_processes(train, (sys.argv[1],), RANKS, start_method="fork")
