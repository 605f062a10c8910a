"""The shape of masked values: whether values are ones that a mask may have left, told without the originals."""

import re
from typing import Final

import pyarrow as pa

from ranklake.masking.columns import masked
from ranklake.masking.masks import Mask
from ranklake.masking.pseudonyms import Pseudonyms

_PSEUDONYM: Final = re.compile(r"p-[0-9a-f]{8}-[0-9a-f]{32}")


def unmasked(values: pa.Array, mask: Mask, pseudonyms: Pseudonyms | None = None) -> pa.Array:
    """Return those of some values that a mask cannot have left; NULL is none of them.

    A masked value stays as it is when it is masked again. A pseudonym is one if a key of the ring made it, the oldest
    among them; without the ring whatever has the form of one is.
    """
    there = values.drop_null()
    if mask.kind == "nullify":
        return there
    if mask.kind == "hash":
        is_one = _has_form if pseudonyms is None else pseudonyms.is_one
        return there.filter(pa.array([not is_one(text) for text in there.cast(pa.string()).to_pylist()], pa.bool_()))
    shown = masked(there, mask, pseudonyms).to_pylist()
    pairs = zip(there.to_pylist(), shown, strict=True)
    differs = [one != other and one == one for one, other in pairs]  # noqa: PLR0124 - NaN is left as it is
    return there.filter(pa.array(differs, pa.bool_()))


def _has_form(text: str) -> bool:
    return _PSEUDONYM.fullmatch(text) is not None
