"""The size of the experiment's work in every step of every rank."""

from typing import Final

SIDE: Final = 128
PRODUCTS: Final = 4
FLOPS: Final = PRODUCTS * 2 * SIDE**3
"""A product of two square matrices has side^3 multiplications and as many additions."""
REDUCED_BYTES: Final = 1 << 18
WRITTEN_BYTES: Final = 1 << 16
TOKENS: Final = 2048
SAMPLES: Final = 4
DATA_S: Final = 0.002
FORWARD_S: Final = 0.008
SLOW_S: Final = 0.012
"""What the slow rank's forward pass takes longer."""
