"""Sealed values that name a person in the words of others: their keys open them, and a search looks into them.

What is under the person's own key is not looked into: rows stay when that is forgotten.
"""

from collections.abc import Callable, Collection
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

from ranklake.retention.subjects.keys import SubjectKey, opened
from ranklake.retention.subjects.store import KeyStore, has_keys

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake
    from ranklake.retention.subjects.whose import Whose

_REMEMBERED: Final = 65_536


def opened_by_others(lake: "Lake", subjects: "Collection[Whose]") -> Callable[[str], str | None] | None:
    """Return what opens sealed texts by all keys but those of some subjects; None where a lake has no such keys.

    Keys are read when the first sealed text is met. It raises as `ranklake.retention.subjects.store.KeyStore` then.
    """
    if not has_keys(lake):
        return None

    @cache
    def keys() -> dict[str, SubjectKey]:
        return KeyStore(lake).by_id(but=subjects)

    @lru_cache(_REMEMBERED)
    def clear(text: str) -> str | None:
        return opened(text, keys())

    return clear
