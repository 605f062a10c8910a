"""Models that torch compiles are followed from outside: nothing of ours is compiled with them, or again without it."""

import pytest
import torch
from recorded import rows
from torch import nn

from ranklake import capture


class Block(nn.Module):
    """A block of a small model."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        """Map (batch, 8) to the same shape."""
        return torch.relu(self.inner(x)) + x


def model():
    """Return two blocks and a last layer."""
    torch.manual_seed(7)
    return nn.Sequential(Block(), Block(), nn.Linear(8, 1))


def compile_whole(made, options):
    """Wrap the model."""
    return torch.compile(made, **options)


def compile_in_place(made, options):
    """Compile the model itself."""
    made.compile(**options)
    return made


def compile_blocks(made, options):
    """Compile each block in place, as large models are."""
    for block in made[:2]:
        block.compile(**options)
    return made


def train(made, callable_):
    """Train for four steps."""
    optimizer = torch.optim.SGD(made.parameters(), lr=0.01)
    for _ in range(4):
        callable_(torch.ones(4, 8)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("compile_", [compile_whole, compile_in_place, compile_blocks])
def test_a_compiled_model_is_compiled_once_and_seen(place, compile_, recwarn):
    """As often as without recording, in one graph where that is asked for; each step has its forward pass."""
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    options = {"backend": backend, "fullgraph": True}
    torch._dynamo.reset()
    made = model()
    train(made, compile_(made, options))
    expected = len(compiled)
    torch._dynamo.reset()
    made = model()
    run = capture.autolog(run="run", spool=place.spool, local_dir=place.local)
    train(made, compile_(made, options))
    run.close()
    assert len(compiled) == 2 * expected > 0
    steps = rows(place.spool, "steps")
    assert len(steps) == 4
    assert all(row["forward_time_s"] > 0 and row["backward_time_s"] > 0 for row in steps)
    assert not [warning for warning in recwarn if "global hooks" in str(warning.message)]


def test_a_model_in_a_compiled_function_does_not_fail(place):
    """Nothing of ours is in the graph, which would not be one graph any more."""
    made = model()
    run = capture.autolog(run="run", spool=place.spool, local_dir=place.local)
    train(made, torch.compile(lambda batch: made(batch) + 1, backend="eager", fullgraph=True))
    run.close()
    assert len(rows(place.spool, "steps")) == 4
