"""Small constant tables that rollups read beside the lake's."""

import hashlib
import hmac
import math
import os
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.errors import RanklakeError
from ranklake.lake.rollups.peaks import DTYPES, name_key, peak_rows
from ranklake.segments.envelope import MissingKeyError
from ranklake.segments.keys import read_keyring

if TYPE_CHECKING:
    from ranklake.segments.envelope import Key

KEY_VARIABLE: Final = "RANKLAKE_PSEUDONYM_KEY"
"""Environment variable with the source of the key."""
_PURPOSE: Final = b"ranklake pseudonym 1: "
_DIGITS: Final = 16


def pseudonym(key: "Key", name: str) -> str:
    """Return a user's pseudonym: ``u-`` and 64 bits of a keyed hash, in hex.

    Notes
    -----
    SHA-256 over one block of key and the SHA-256 over another and the name: HMAC (RFC 2104) with two derived keys, in
    the form that SQL can compute as well. A hash without a key would be undone by trying all names of a company.
    """
    inner, outer = _blocks(key)
    digest = hashlib.sha256((inner + name).encode()).hexdigest()
    return "u-" + hashlib.sha256((outer + digest).encode()).hexdigest()[:_DIGITS]


def pseudonym_key() -> "Key | None":
    """Return the key that is configured; None without one.

    Raises
    ------
    RanklakeError
        The variable is set, and gives no key: names in clear would be no answer to that.
    """
    source = os.environ.get(KEY_VARIABLE, "")
    if not source:
        return None
    try:
        return read_keyring(source).active
    except MissingKeyError as error:
        hint = "give file:/path, env:NAME or command:/path/to/helper, with 32 bytes in base64 or hex"
        raise RanklakeError(error.what, where=KEY_VARIABLE, hint=hint) from None


def pseudonym_table() -> pa.Table:
    """Return both blocks of the key for SQL, in one row; NULL without a key."""
    key = pseudonym_key()
    inner, outer = (None, None) if key is None else _blocks(key)
    return pa.table({"inner_key": pa.array([inner], pa.string()), "outer_key": pa.array([outer], pa.string())})


def _blocks(key: "Key") -> tuple[str, str]:
    """Return two derived keys as text; each is a whole block of SHA-256."""
    inner, outer = (hmac.digest(key.secret, _PURPOSE + part, "sha256").hex() for part in (b"inner", b"outer"))
    return inner, outer


STEP_METRICS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "loss": (
            *("train_loss", "loss", "training_loss", "loss_train", "loss_training", "trainer_loss", "train_train_loss"),
            *("train_loss_step", "train_step_loss", "train_batch_loss", "loss_step", "step_loss", "batch_loss"),
            *("train_total_loss", "train_loss_total", "loss_train_total", "total_loss", "loss_total"),
            *("loss_total_loss", "lm_loss", "train_lm_loss", "lm_loss_training_lm_loss", "train_inner_loss"),
            *(
                "train_samples_train_loss",
                "train_crossentropyloss",
                "train_cross_entropy_loss",
                "train_ce_loss",
                "cross_entropy_loss",
            ),
            *("loss_metrics_global_avg_loss", "train_loss_epoch", "trainloss", "running_loss"),
        ),
        "lr": (
            *("train_lr", "lr", "learning_rate", "train_learning_rate", "training_lr", "training_learning_rate"),
            *("trainer_lr", "optim_lr", "optim_learning_rate", "optimizer_lr", "optimizer_learning_rate", "lr_lr"),
            *("optim_learning_rate_group0", "lr_group0", "lr_0", "lr_pg0", "lr_adam", "lr_adamw", "lr_sgd"),
            *("lr_decoupledadamw_group0", "train_samples_lr", "train_inner_lr", "learningrate"),
        ),
        "grad_norm": (
            *("train_grad_norm", "grad_norm", "gradient_norm", "train_gradient_norm", "training_grad_norm"),
            *("training_gradient_norm", "trainer_grad_norm", "global_grad_norm", "train_global_grad_norm"),
            *(
                "grad_norm_total",
                "total_grad_norm",
                "optim_total_grad_norm",
                "optim_grad_norm",
                "grad_norm_global",
                "grad_2_0_norm_total",
            ),
            *("l2_norm_grad_global", "gnorm", "train_gnorm", "train_inner_gnorm", "gradnorm"),
        ),
        "tokens": ("train_tokens",),
        "samples": ("train_samples",),
    }
)
"""Columns of a step and the names under which people log them.

Of Lightning, Transformers, torchtitan, Megatron, DeepSpeed, OLMo, Composer, fairseq and TensorBoard's users. Tokens and
samples have one name: under others people log sums so far.
"""

PRICES: Final = "prices"
"""Lookup of the operator's prices, which a lake is opened with."""

PUE_VARIABLE: Final = "RANKLAKE_POWER_USAGE_EFFECTIVENESS"
"""Environment variable with the facility's energy over its devices'."""


@cache
def peaks() -> pa.Table:
    """Return the devices' peaks by the precision that each is stored under."""
    return pa.Table.from_pylist([row for row in peak_rows() if row["dtype"] == row["canonical_dtype"]])


@cache
def dtypes() -> pa.Table:
    """Return the words for number formats, each with the one that it is stored under."""
    words = {name_key(word): dtype for dtype, others in DTYPES.items() for word in (dtype, *others)}
    return pa.table({"word": list(words), "dtype": list(words.values())})


@cache
def step_metrics() -> pa.Table:
    """Return the names under which people log what a step's row has, lower-case with ``_`` between words.

    Each with the column that it stands for, and its place: of two names in one step the one of the lower place counts.
    """
    rows = [
        {"name": name, "column": column, "place": place}
        for column, names in STEP_METRICS.items()
        for place, name in enumerate(names)
    ]
    return pa.Table.from_pylist(rows)


def facility() -> pa.Table:
    """Return the assumptions about the building: one row, NULL where none is configured."""
    text = os.environ.get(PUE_VARIABLE, "")
    try:
        effectiveness = float(text) if text else None
    except ValueError:
        effectiveness = math.nan
    if effectiveness is not None and not 1 <= effectiveness < math.inf:
        raise RanklakeError(
            "is not a power usage effectiveness",
            where=PUE_VARIABLE,
            hint="give facility over device energy, such as 1.2",
        )
    return pa.table({"power_usage_effectiveness": pa.array([effectiveness], pa.float64())})
