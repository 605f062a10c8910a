"""A small GPT over bytes, in plain torch: the model that the demo trains."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


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
        """Return the mean cross-entropy (nats per token) of (batch, context) targets given the tokens before."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        logits = self.norm(self.blocks(x)) @ self.tokens.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
