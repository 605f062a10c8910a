"""Since when keys are used: a small file for each, by what it is for and its name, which says nothing of the key.

    <lake>/keys/<purpose>~<key id>.json     {"since": date}, written once

A reference to a keyring tells where a key is, not how old it is. So whoever runs upkeep notes keys when they are first
seen in a ring; a rotated key is then as young as that.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import TYPE_CHECKING, Final

from ranklake.lake.store.files import listed
from ranklake.segments.envelope import MissingKeyError
from ranklake.segments.keys import read_keyring

if TYPE_CHECKING:
    from ranklake.lake.store.lake_config import LakeConfig
    from ranklake.lake.store.store import Store


FOLDER: Final = "keys"
_NAME: Final = re.compile(r".*/(?P<purpose>[a-z_0-9]+)~(?P<id>[0-9a-f]{8})\.json")


def first_uses(store: "Store") -> dict[tuple[str, str], date]:
    """Return since when keys are known, by purpose and id; a file that cannot be read says nothing."""
    dates = {}
    for file in listed(store.fs, store.path(FOLDER)):
        name = _NAME.fullmatch(file.path)
        if name is None:
            continue
        try:
            since = json.loads(store.fs.cat_file(file.path))["since"]
            dates[name["purpose"], name["id"]] = date.fromisoformat(since)
        except (ValueError, KeyError, TypeError):
            continue
    return dates


def lost_keys(store: "Store", purpose: str, ids: Iterable[str]) -> list[str]:
    """Return the files of keys that were noted for a purpose and are not in its ring any more, by their ids."""
    gone = {key for known, key in first_uses(store) if known == purpose}.difference(ids)
    return [store.path(f"{FOLDER}/{purpose}~{key}.json") for key in sorted(gone)]


def note_keys(store: "Store", rings: Mapping[str, Iterable[str]], today: date) -> int:
    """Note keys that are in use and not known yet, by purpose; return how many. A second call changes nothing."""
    known = first_uses(store)
    new = [(purpose, key) for purpose, ids in rings.items() for key in ids if (purpose, key) not in known]
    return sum(
        store.put_if_absent(f"{FOLDER}/{purpose}~{key}.json", json.dumps({"since": today.isoformat()}).encode())
        for purpose, key in new
    )


def key_references(config: "LakeConfig") -> Mapping[str, tuple[str, str]]:
    """Return setting and reference of each keyring that is configured, by purpose."""
    every = {
        "encryption": ("[capture] encryption_key", config.encryption_key),
        "masking": ("[masking] key", config.masking.key),
        "plans": ("[plans] key", config.plans.key),
    }
    of_writers = {
        f"signing_{number}": (f"[[spool.prefixes]] keys, the {number}.", one.keys)
        for number, one in enumerate(config.spool.prefixes, 1)
    }
    return {purpose: said for purpose, said in (every | of_writers).items() if said[1]}


def key_ids(references: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the names of each keyring's keys, the active one first; a ring that cannot be read here has none."""
    for purpose, (_, reference) in references.items():
        try:
            ring = read_keyring(reference)
        except MissingKeyError:
            continue
        yield purpose, tuple(key.id for key in ring.keys)
