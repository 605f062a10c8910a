"""The demo's trainer, started on every rank by torchrun. The lines with ``run`` record telemetry.

Each rank also writes a journal, one line per finished step, independently of ranklake. The demo compares the lake with
the journals.
"""

import argparse
import logging
import os
import platform
import pydoc_data.topics
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from ranklake import capture


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of the model.

    Attributes
    ----------
    vocabulary, context
        Distinct tokens; tokens in a sequence.
    layers, heads, width
        Blocks, attention heads per block, channels.
    """

    vocabulary: int = 256
    context: int = 64
    layers: int = 3
    heads: int = 4
    width: int = 128


class Block(nn.Module):
    """One pre-norm transformer block: causal self-attention, then a four-fold MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_attention = nn.LayerNorm(shape.width)
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width)
        self.project = nn.Linear(shape.width, shape.width)
        self.norm_mlp = nn.LayerNorm(shape.width)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, context, width) to the same shape."""
        batch, context, width = x.shape
        parts = self.queries_keys_values(self.norm_attention(x)).split(width, dim=2)
        q, k, v = (part.view(batch, context, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, context, width))
        return x + self.mlp(self.norm_mlp(x))  # type: ignore[no-any-return]


class SmallGpt(nn.Module):
    """Token and position embeddings, blocks, and a head that shares the token embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy (nats per token) of (batch, context) targets."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        logits = self.norm(self.blocks(x)) @ self.tokens.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


BATCH = 16
PEAK_LEARNING_RATE = 3e-3
CLIP_NORM = 1.0
LOG = logging.getLogger("demo")


def corpus() -> Tensor:
    """Return real English text that ships with Python, as bytes."""
    text = "\n\n".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics))
    return torch.tensor(list(text.encode()), dtype=torch.uint8).long()


def batches(text: Tensor, context: int, rank: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (tokens, targets), each (batch, context), at random positions; each rank draws its own."""
    generator = torch.Generator().manual_seed(1234 + rank)
    while True:
        starts = torch.randint(len(text) - context - 1, (BATCH,), generator=generator)
        window = torch.stack([text[start : start + context + 1] for start in starts.tolist()])
        yield window[:, :-1], window[:, 1:]


def train(options: argparse.Namespace) -> None:
    """Train on this rank and record the training."""
    distributed.init_process_group("gloo")
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world_size))
    torch.manual_seed(7)
    shape = Shape()
    model = SmallGpt(shape)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE)
    faults = {"slow rank": options.slow_rank, "killed rank": options.kill_rank}
    injected = ", ".join(f"{fault} {number}" for fault, number in faults.items() if number is not None) or None
    config = {**asdict(shape), "batch": BATCH, "steps": options.steps, "learning_rate": PEAK_LEARNING_RATE}
    parameters = sum(parameter.numel() for parameter in model.parameters())

    run = capture.start(job="demo-gpt", run=options.run_name, spool=options.spool, local_dir=options.local_dir,
                        config=config, injected=injected, param_count=parameters, compute_dtype="float32")  # fmt: skip
    journal = os.open(options.journal / f"rank-{rank}.steps", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    text = corpus()
    tell(run, text, parameters)
    run.coordinates(dp=rank)
    run.collectives(parallel)
    distributed.barrier()
    run.calibrate_peak()
    clipped = 0.0
    source = run.loader(batches(text, shape.context, rank))
    for step, (tokens, targets) in zip(range(options.steps), source, strict=False):
        if rank == options.kill_rank and step == options.steps // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        counted = run.count_flops(tokens=BATCH * shape.context) if step == 0 else nullcontext()
        with run.step(step, tokens=BATCH * shape.context, samples=BATCH):
            with counted:
                with run.phase("forward"):
                    if (
                        rank == options.slow_rank and step
                    ):  # the injected fault, except in step 0, whose FLOPs are counted
                        for _ in range(5):
                            model(tokens, targets)
                    loss = parallel(tokens, targets)
                with run.phase("backward"):
                    loss.backward()
            with run.phase("optimizer"):
                gradient, parameter_norm, update_norm = change(model, optimizer)
            clipped += float(gradient > CLIP_NORM)
            run.log(loss=loss, grad_norm=gradient, lr=PEAK_LEARNING_RATE)
            seen = (step + 1) * BATCH * shape.context * world_size
            run.log({"train/perplexity": loss.exp(), "train/param_norm": parameter_norm,
                     "train/update_norm": update_norm, "train/clip_ratio": clipped / (step + 1),
                     "train/batch_size": BATCH, "train/sequence_length": shape.context,
                     "train/tokens_seen": seen})  # fmt: skip
            if step + 1 == options.steps and rank == 0:
                with (run.phase("checkpoint"),
                      run.checkpoint(options.journal / "checkpoint.pt", step=step, tag="last") as place):  # fmt: skip
                    torch.save(model.state_dict(), place)
        os.write(journal, b"%d\n" % step)
        if step % 100 == 0:
            LOG.info("step %d: loss %.3f", step, loss.item())
    run.close()
    distributed.destroy_process_group()


def tell(run: capture.Run, text: Tensor, parameters: int) -> None:
    """Record the dataset, and all later log lines."""
    if run.rank == 0:
        run.dataset("python-help-topics", pydoc_data.topics.__file__, split="train", version=platform.python_version(),
                    data_format="python", tokens=len(text))  # fmt: skip
    LOG.setLevel(logging.INFO)
    LOG.addHandler(run.log_handler())
    LOG.info("training %d parameters on %d bytes of text", parameters, len(text))


def change(model: SmallGpt, optimizer: torch.optim.Optimizer) -> tuple[Tensor, Tensor, Tensor]:
    """Clip the gradients and update the parameters; return the norms of gradients, old parameters and the update."""
    gradient = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.step()
    optimizer.zero_grad()
    moved = [new.detach() - old for new, old in zip(model.parameters(), before, strict=True)]
    return gradient, get_total_norm(before), get_total_norm(moved)


def main() -> None:
    """Parse the arguments of the demo command, and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-name", required=True)
    parser.add_argument("--spool", required=True)
    parser.add_argument("--local-dir", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--slow-rank", type=int)
    parser.add_argument("--kill-rank", type=int)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
