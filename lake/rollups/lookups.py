"""Lookups: small constant tables that rollups read in addition to the lake's tables."""

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
    SHA-256(outer key ‖ hex SHA-256(inner key ‖ name)): HMAC (RFC 2104) with two derived keys, in a form that SQL can
    compute, too. A hash without a key could be reversed by hashing all names of a company.
    """
    inner, outer = _blocks(key)
    digest = hashlib.sha256((inner + name).encode()).hexdigest()
    return "u-" + hashlib.sha256((outer + digest).encode()).hexdigest()[:_DIGITS]


def pseudonym_key() -> "Key | None":
    """Return the configured key; None without one.

    Raises
    ------
    RanklakeError
        The variable is set but has no valid key. Without the error, names would be stored in clear text.
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
    """Return both derived keys for SQL, in one row; NULL without a key."""
    key = pseudonym_key()
    inner, outer = (None, None) if key is None else _blocks(key)
    return pa.table({"inner_key": pa.array([inner], pa.string()), "outer_key": pa.array([outer], pa.string())})


def _blocks(key: "Key") -> tuple[str, str]:
    """Return two derived keys as text, each of the length of a SHA-256 block."""
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
"""Usual names of metrics by column of ``steps``.

The names are from Lightning, Transformers, torchtitan, Megatron, DeepSpeed, OLMo, Composer, fairseq and TensorBoard.
Tokens and samples have one name each, since metrics with other names are usually cumulative.
"""

PRICES: Final = "prices"
"""Name of the lookup with the operator's prices, from the lake's configuration."""

PUE_VARIABLE: Final = "RANKLAKE_POWER_USAGE_EFFECTIVENESS"
"""Environment variable with the facility's energy divided by that of its devices."""


@cache
def peaks() -> pa.Table:
    """Return the peaks of all devices by canonical number format, see `ranklake.lake.rollups.peaks.peak_rows`."""
    return pa.Table.from_pylist([row for row in peak_rows() if row["dtype"] == row["canonical_dtype"]])


@cache
def dtypes() -> pa.Table:
    """Return all names of number formats (``word``), each with torch's name (``dtype``)."""
    words = {name_key(word): dtype for dtype, others in DTYPES.items() for word in (dtype, *others)}
    return pa.table({"word": list(words), "dtype": list(words.values())})


@cache
def step_metrics() -> pa.Table:
    """Return the usual names of metrics that are columns of ``steps``, in lower case with ``_`` between words.

    The columns are ``name``, ``column`` and ``place``. If a step has two names of one column, the lower place wins.
    """
    rows = [
        {"name": name, "column": column, "place": place}
        for column, names in STEP_METRICS.items()
        for place, name in enumerate(names)
    ]
    return pa.Table.from_pylist(rows)


def facility() -> pa.Table:
    """Return the configured power usage effectiveness: one row, NULL if not configured. Raises `RanklakeError`."""
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
