"""FLOPs counted on a real step."""

import pytest
import torch
from recorded import rows
from torch.nn import functional

from ranklake.capture.steps.flops import _flop_counter


@pytest.mark.parametrize(("query_heads", "key_heads"), [(4, 4), (8, 2)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.slow
def test_fused_attention_counts_like_its_matrix_products(query_heads, key_heads, causal):
    """Attention costs 2 products forward, 4 backward, whichever kernel runs it; scores computed again do not count."""
    batch, positions, channels = 2, 32, 16
    query = torch.randn(batch, query_heads, positions, channels, requires_grad=True)
    key, value = (torch.randn(batch, key_heads, positions, channels, requires_grad=True) for _ in range(2))
    with _flop_counter() as counter:
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
        out.sum().backward()
    product = 2 * batch * query_heads * positions * positions * channels
    assert counter.get_total_flops() == 6 * product


def test_a_linear_layer_counts_six_per_weight_and_token():
    """Forward, and backward by weight and by input: six FLOPs a weight and token."""
    layer = torch.nn.Linear(32, 48, bias=False)
    x = torch.randn(10, 32, requires_grad=True)
    with _flop_counter() as counter:
        layer(x).sum().backward()
    assert counter.get_total_flops() == 6 * 32 * 48 * 10


@torch.library.custom_op("ranklake_test::product", mutates_args=())
def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply in a way that torch has no formula for."""
    return torch.from_numpy(left.numpy() @ right.numpy())


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (lambda: product(torch.ones(4, 4), torch.ones(4, 4)) @ torch.ones(4, 4), "ranklake_test::product"),
        (lambda: torch.nn.LSTM(4, 4)(torch.ones(3, 2, 4)), "rnn"),
        (lambda: torch.ones(4).exp(), "no matrix product"),
    ],
    ids=["custom", "recurrent", "none"],
)
def test_what_cannot_be_counted_is_told_and_not_made_up(place, step, why):
    """A step with operators that have no formula has no FLOPs, and an event says which they are."""
    with place.start() as run, run.step(0), run.count_flops(tokens=4) as count:
        step()
    assert count.flops is None
    assert rows(place.spool, "scalars") == []
    (told,) = (row for row in rows(place.spool, "events") if row["event"] == "flops_not_counted")
    assert why in told["message"]
