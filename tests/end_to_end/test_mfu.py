"""MFU and HFU of real training steps: what is counted, stored and rolled up is what the published formulas say by hand.

model FLOPs of a step      72 B s L h^2 (1 + s/6h + V/12Lh)     Narayanan et al. 2021, equation 3, less recomputation
with full recomputation    96 B s L h^2 (1 + s/6h + V/16Lh)     equation 3 as printed
with selective             + 4 B s^2 L h                        Korthikanti et al. 2022: the two attention products
of a mixture of experts    (6 N + 12 L h s) B s                 Chowdhery et al. 2022, with the parameters a token meets
"""

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ranklake import capture
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.flops import Model, convention, token_flops
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake

pytestmark = pytest.mark.slow

B, L, H, S, V = 2, 3, 64, 32, 128
HEADS, EXPERTS, CHOSEN = 4, 8, 2
STEPS = 3
PEAK = 1e12
MODEL = 72 * B * S * L * H**2 * (1 + S / (6 * H) + V / (12 * L * H))
FULL = 96 * B * S * L * H**2 * (1 + S / (6 * H) + V / (16 * L * H))
SELECTIVE = MODEL + 4 * B * S**2 * L * H
LAST = 2 * B * S * 4 * H * H * L
"""The last product of each block: torch's checkpointing without re-entry stops before it, as nobody needs it again."""
ACTIVE = L * (4 * H**2 + EXPERTS * H + CHOSEN * 8 * H**2) + V * H
"""Parameters in products that one token meets in the mixture: attention, router, two experts of eight; the logits."""


def linear(wide, narrow):
    return torch.nn.Linear(wide, narrow, bias=False)


class Experts(torch.nn.Module):
    """A feed-forward layer of experts, of which each token meets the first `CHOSEN` that its router names."""

    def __init__(self):
        super().__init__()
        self.router = linear(H, EXPERTS)
        self.up = torch.nn.ModuleList(linear(H, 4 * H) for _ in range(EXPERTS))
        self.down = torch.nn.ModuleList(linear(4 * H, H) for _ in range(EXPERTS))

    def forward(self, x):
        """Send each token through its experts."""
        flat = x.reshape(-1, H)
        weights, chosen = self.router(flat).softmax(-1).topk(CHOSEN)
        out = torch.zeros_like(flat)
        for number in range(EXPERTS):
            token, place = (chosen == number).nonzero(as_tuple=True)
            found = self.down[number](functional.gelu(self.up[number](flat[token])))
            out = out.index_add(0, token, found * weights[token, place, None])
        return out.reshape(x.shape)


class Block(torch.nn.Module):
    """Attention and a feed-forward layer of four times the width, without norms, which no formula counts."""

    def __init__(self, *, is_mixture):
        super().__init__()
        self.qkv, self.out = linear(H, 3 * H), linear(H, H)
        dense = torch.nn.Sequential(linear(H, 4 * H), torch.nn.GELU(), linear(4 * H, H))
        self.forward_layer = Experts() if is_mixture else dense

    def forward(self, x, recompute="none"):
        """Add attention and feed-forward; ``selective`` has the attention products computed again."""
        qkv = (part.view(B, S, HEADS, H // HEADS).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        attend = functional.scaled_dot_product_attention
        found = checkpoint(attend, *qkv, use_reentrant=False) if recompute == "selective" else attend(*qkv)
        x = x + self.out(found.transpose(1, 2).reshape(B, S, H))
        return x + self.forward_layer(x)


class Transformer(torch.nn.Module):
    """An embedding, blocks, and the product that gives the logits."""

    def __init__(self, *, is_mixture=False):
        super().__init__()
        self.embedding, self.logits = torch.nn.Embedding(V, H), linear(H, V)
        self.blocks = torch.nn.ModuleList(Block(is_mixture=is_mixture) for _ in range(L))

    def forward(self, tokens, recompute):
        """Return logits; ``full…`` has whole blocks computed again."""
        x = self.embedding(tokens)
        for block in self.blocks:
            if recompute.startswith("full"):
                x = checkpoint(block, x, use_reentrant=recompute == "full, re-entrant")
            else:
                x = block(x, recompute)
        return self.logits(x)


def train(place, name, model, recompute):
    """Train and record some steps, the first of which is counted."""
    tokens = torch.randint(0, V, (B, S), generator=torch.Generator().manual_seed(1))
    spools = {"spool": str(place / "spool"), "local_dir": str(place / "local")}
    with capture.start("job", run=name, compute_dtype="float32", **spools) as run:
        run.scalar("device/peak_flops_measured").add(PEAK)
        for number in range(STEPS):
            with run.step(number, tokens=B * S):
                if number:
                    loss_of(model, tokens, recompute).backward()
                    continue
                with run.count_flops(tokens=B * S):
                    loss_of(model, tokens, recompute).backward()


def loss_of(model, tokens, recompute):
    return functional.cross_entropy(model(tokens, recompute).view(-1, V), tokens.view(-1))


CASES = {
    "none": (MODEL, MODEL),
    "selective": (MODEL, SELECTIVE),
    "full": (MODEL, FULL - LAST),
    "full, re-entrant": (MODEL, FULL),
    "mixture": (B * S * (6 * ACTIVE + 12 * L * H * S), B * S * (6 * ACTIVE + 12 * L * H * S)),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return each case's row of `mfu`."""
    place = tmp_path_factory.mktemp("mfu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other longer than these products take
    for number, name in enumerate(CASES):
        torch.manual_seed(number)
        is_mixture = name == "mixture"
        train(place, f"run-{number}", Transformer(is_mixture=is_mixture), "none" if is_mixture else name)
    torch.set_num_threads(threads)
    lake = Lake.create(str(place / "lake"))
    ingest(lake, Spool(str(place / "spool")), InProcess())
    run_rollups(lake, ["mfu"])
    sums = ", ".join(
        f"sum({name}) AS {name}" for name in ("model_flops", "hardware_flops", "peak_flops", "step_time_ns")
    )
    rows = query(lake, f"SELECT run, {sums}, sum(rank_steps) AS steps FROM mfu GROUP BY run").to_pylist()
    by_run = {row["run"]: row for row in rows}
    return {name: by_run[f"run-{number}"] for number, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_a_run_is_what_the_formula_says(found, name):
    """Model and hardware FLOPs of a run's steps are the formula's, to the last operation."""
    row, (model, hardware) = found[name], CASES[name]
    assert (row["steps"], row["model_flops"], row["hardware_flops"]) == (STEPS, STEPS * model, STEPS * hardware)
    assert row["peak_flops"] == pytest.approx(PEAK * row["step_time_ns"] / 1e9, rel=1e-12)


def test_the_calculator_agrees(found):
    """`ranklake mfu` counts the same for these shapes: equation 3, and 6N + 12LHS with active parameters."""
    shape = {"layers": L, "d_model": H, "seq_len": S, "vocab": V}
    dense = token_flops(Model(**shape), convention("narayanan"), recompute="full")
    assert STEPS * B * S * dense.model == pytest.approx(found["full, re-entrant"]["model_flops"], rel=1e-12)
    assert STEPS * B * S * dense.hardware == pytest.approx(found["full, re-entrant"]["hardware_flops"], rel=1e-12)
    every = ACTIVE + L * (EXPERTS - CHOSEN) * 8 * H**2
    mixture = token_flops(Model(params=every, active_params=ACTIVE, **shape), convention("6N+12LHS"))
    assert STEPS * B * S * mixture.model == pytest.approx(found["mixture"]["model_flops"], rel=1e-12)
