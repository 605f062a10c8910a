"""Masks of text that keys of people sealed: opened, masked, and sealed again under the same key.

A hash is of the sealed text: a pseudonym of the name itself could be guessed after the key is forgotten. What no key
opens, as it is forgotten or lost, stays as it is.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.masking.columns import masked, unmasked
from ranklake.retention.subjects.keys import FORM, opened, sealed_by
from ranklake.retention.subjects.lineage import Lineage
from ranklake.retention.subjects.store import KeyStore, has_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Lake
    from ranklake.masking.masks import Mask
    from ranklake.masking.pseudonyms import Pseudonyms
    from ranklake.retention.subjects.keys import SubjectKey

_WHOLE: Final = frozenset({"nullify", "hash"})
"""Masks that need not know what a value says."""


class OpenedMasks:
    """Masks of values of a table, sealed ones among them.

    Its methods raise as `ranklake.retention.subjects.store.KeyStore` where a mask needs keys that are not at hand.
    """

    def __init__(self, lake: "Lake", contract: "Contract") -> None:
        self._lake, self._contract = lake, contract

    @cached_property
    def _keys(self) -> "Mapping[str, SubjectKey]":
        return KeyStore(self._lake).by_id() if has_keys(self._lake) else {}

    def needs_keys(self, masks: "Mapping[str, Mask]") -> bool:
        """Say whether some masks of columns may have to open what is sealed."""
        some = {f"{self._contract.table}.{name}" for name, mask in masks.items() if mask.kind not in _WHOLE}
        return bool(some) and not some.isdisjoint(Lineage(self._lake).sealed(self._contract))

    def masked(self, values: pa.Array, mask: "Mask", pseudonyms: "Pseudonyms | None") -> pa.Array:
        """Return values as a mask leaves them where they are stored; see `ranklake.masking.columns.masked`."""
        if mask.kind in _WHOLE or not _are_sealed(values):
            return masked(values, mask, pseudonyms)
        found = values.cast(pa.string()).dictionary_encode()
        texts = found.dictionary.to_pylist()
        clear = pa.array([self.clear(text) for text in texts], pa.string())
        shown = masked(clear, mask, pseudonyms).to_pylist()
        made = [self._sealed_again(*pair) for pair in zip(texts, shown, strict=True)]
        return pa.array(made, pa.string()).take(found.indices)

    def unmasked(self, values: pa.Array, mask: "Mask", pseudonyms: "Pseudonyms | None") -> pa.Array:
        """Return those of some values that a mask cannot have left; see `ranklake.masking.columns.unmasked`."""
        if mask.kind in _WHOLE or not _are_sealed(values):
            return unmasked(values, mask, pseudonyms)
        shown = self.masked(values, mask, pseudonyms)
        return values.filter(pc.fill_null(pc.not_equal(shown, values.cast(pa.string())), fill_value=False))

    def readable(self, values: pa.Array) -> pa.Array:
        """Return values in clear, without those that nobody can open here; distinct ones stay so."""
        if not _are_sealed(values):
            return values
        if not self._lake.config.subjects.keys:
            return values.filter(pc.invert(_sealed(values)))
        return pa.array([self.clear(text) for text in values.to_pylist()], pa.string()).drop_null()

    def clear(self, text: str) -> str | None:
        """Return what a text says; None of a sealed one that no key opens."""
        return opened(text, self._keys) if sealed_by(text) is not None else text

    def _sealed_again(self, text: str, shown: str | None) -> str | None:
        key_id = sealed_by(text)
        if key_id is None:
            return shown
        return text if shown is None else self._keys[key_id].seal(shown)


def _are_sealed(values: pa.Array) -> bool:
    """Say whether one of some values is sealed."""
    type_ = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    return pa.types.is_string(type_) and bool(pc.any(_sealed(values)).as_py())


def _sealed(values: pa.Array) -> pa.Array:
    return pc.fill_null(pc.match_substring_regex(values.cast(pa.string()), f"^{FORM.pattern}$"), fill_value=False)
