"""Masks Arrow columns, and finds values that are not masked."""

import re
from collections.abc import Callable, Mapping
from decimal import ROUND_FLOOR, Decimal, localcontext
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.masking.masks import Mask, Pseudonyms
from ranklake.masking.values import MOST_BUCKETS, domain_kept, ends_kept, redact_text

_DIGITS: Final = 60
"""Larger than any decimal of 38 digits."""


class NoPseudonymsError(RanklakeError):
    """A column must be hashed, but there is no key."""


def mask_values(values: pa.Array, mask: Mask, pseudonyms: Pseudonyms | None = None) -> pa.Array:
    """Return masked values: of the same number and type, except that string views become strings.

    Parameters
    ----------
    values
        Values of a type that fits the mask.
    pseudonyms
        Pseudonyms for ``hash``.

    Raises `NoPseudonymsError`. Values never cause other errors, which could reveal them: a value without a masked form
    (a bucket below the least number) becomes NULL.
    """
    type_ = masked_type(values.type)
    if mask.kind == "nullify":
        return pa.nulls(len(values), type_)
    if pa.types.is_list(values.type):
        ends = np.concatenate([[0], np.cumsum(pc.fill_null(pc.list_value_length(values), 0).to_numpy())])
        starts = pa.array(ends, pa.int32(), mask=np.append(pc.is_null(values).to_numpy(zero_copy_only=False), False))
        return pa.ListArray.from_arrays(starts, mask_values(values.flatten(), mask, pseudonyms), type=type_)
    if mask.kind == "truncate":
        return pc.floor_temporal(values, unit=mask.how, week_starts_monday=True)
    if mask.kind == "bucket":
        return _bucket_values(values, mask.width)
    words = values.cast(pa.string()).dictionary_encode()
    change = _change(mask, pseudonyms)
    shown = pa.array([change(text) for text in words.dictionary.to_pylist()], pa.string())
    return shown.take(words.indices)


def masked_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of masked values."""
    return pa.string() if pa.types.is_string_view(type_) or pa.types.is_large_string(type_) else type_


def _change(mask: Mask, pseudonyms: Pseudonyms | None) -> Callable[[str], str]:
    if mask.kind == "redact":
        return redact_text
    if mask.kind == "keep":
        prefix, suffix = mask.kept
        return domain_kept if mask.how == "domain" else lambda text: ends_kept(text, prefix, suffix)
    if pseudonyms is None:
        raise NoPseudonymsError("no key for pseudonyms", hint="name one by key under [masking] in ranklake.toml")
    return pseudonyms


def _bucket_values(values: pa.Array, width: Decimal) -> pa.Array:
    kind = next(of for of in _BUCKETS if of(values.type))
    return _BUCKETS[kind](values, width)


def _of_integers(values: pa.Array, width: Decimal) -> pa.Array:
    values_present = pc.fill_null(values, 0).cast(pa.int64()).to_numpy()
    with np.errstate(over="ignore"):
        low = values_present // int(width) * int(width)
    least = np.iinfo(values.type.to_pandas_dtype()).min
    lost = (low > values_present) | (low < least) | pc.is_null(values).to_numpy(zero_copy_only=False)
    return pa.array(np.where(lost, 0, low), mask=lost).cast(values.type)


def _of_floats(values: pa.Array, width: Decimal) -> pa.Array:
    """Return the greatest bucket limit that is at most the value, in the values' float type.

    Multiples of 0.1 are inexact, so a quotient may be off by one bucket. A limit must be its own bucket: else masked
    values would be reported as unmasked.
    """
    present = pc.fill_null(values, 0.0).to_numpy()

    def begins(bucket: np.ndarray) -> np.ndarray:
        return (bucket * float(width)).astype(present.dtype)

    with np.errstate(over="ignore", invalid="ignore"):
        bucket = np.floor(present.astype(np.float64) / float(width))
        low, after = begins(bucket), begins(bucket + 1)
        low = np.where(after <= present, after, np.where(low > present, begins(bucket - 1), low))
        low = np.where(np.abs(bucket) >= MOST_BUCKETS, present, low)
    lost = (np.isfinite(present) & ~np.isfinite(low)) | pc.is_null(values).to_numpy(zero_copy_only=False)
    return pa.array(low, values.type, mask=lost)


def _of_decimals(values: pa.Array, width: Decimal) -> pa.Array:
    most = Decimal(10) ** (values.type.precision - values.type.scale)
    with localcontext(prec=_DIGITS):
        present = values.to_pylist()
        low = [None if value is None else (value / width).to_integral_value(ROUND_FLOOR) * width for value in present]
        return pa.array([None if value is None or abs(value) >= most else value for value in low], values.type)


_BUCKETS: Final[Mapping[Callable[[pa.DataType], bool], Callable[[pa.Array, Decimal], pa.Array]]] = MappingProxyType(
    {pa.types.is_integer: _of_integers, pa.types.is_floating: _of_floats, pa.types.is_decimal: _of_decimals}
)


_PSEUDONYM: Final = re.compile(r"p-[0-9a-f]{8}-[0-9a-f]{32}")


def unmasked_values(values: pa.Array, mask: Mask, pseudonyms: Pseudonyms | None = None) -> pa.Array:
    """Return the values that are not masked; NULL counts as masked.

    Masking a masked value again does not change it. A pseudonym is valid if any key of the ring made it; without the
    ring, by its form.
    """
    present = values.drop_null()
    if mask.kind == "nullify":
        return present
    if mask.kind == "hash":
        is_pseudonym = _has_form if pseudonyms is None else pseudonyms.is_genuine
        return present.filter(
            pa.array([not is_pseudonym(text) for text in present.cast(pa.string()).to_pylist()], pa.bool_())
        )
    shown = mask_values(present, mask, pseudonyms).to_pylist()
    pairs = zip(present.to_pylist(), shown, strict=True)
    differs = [value != other and value == value for value, other in pairs]  # noqa: PLR0124 - NaN counts as masked
    return present.filter(pa.array(differs, pa.bool_()))


def _has_form(text: str) -> bool:
    return _PSEUDONYM.fullmatch(text) is not None
