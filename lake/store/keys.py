"""Records since when each key is in use. The files contain nothing of the key itself.

    <lake>/keys/<purpose>~<key id>.json     {"since": date}, written once

The configuration refers to a keyring but does not tell how old its keys are. So upkeep writes a file when it first
finds a key in a keyring.
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
    """Return the date of first use of each recorded key, by purpose and key id. Skips unreadable files."""
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
    """Return the files of recorded keys of a purpose that are not among the ids of its keyring any more."""
    lost = {key for key_purpose, key in first_uses(store) if key_purpose == purpose}.difference(ids)
    return [store.path(f"{FOLDER}/{purpose}~{key}.json") for key in sorted(lost)]


def note_keys(store: "Store", rings: Mapping[str, Iterable[str]], today: date) -> int:
    """Record the keys of keyrings, by purpose, that have no file yet. Returns how many were recorded."""
    known = first_uses(store)
    new = [(purpose, key) for purpose, ids in rings.items() for key in ids if (purpose, key) not in known]
    return sum(
        store.put_if_absent(f"{FOLDER}/{purpose}~{key}.json", json.dumps({"since": today.isoformat()}).encode())
        for purpose, key in new
    )


def key_references(config: "LakeConfig") -> Mapping[str, tuple[str, str]]:
    """Return the name of the setting and the reference of each configured keyring, by purpose."""
    keyrings = {
        "encryption": ("[capture] encryption_key", config.encryption_key),
        "masking": ("[masking] key", config.masking.key),
        "plans": ("[plans] key", config.plans.key),
    }
    signing_keyrings = {
        f"signing_{number}": (f"[[spool.prefixes]] keys, the {number}.", prefix.keys)
        for number, prefix in enumerate(config.spool.prefixes, 1)
    }
    return {purpose: setting for purpose, setting in (keyrings | signing_keyrings).items() if setting[1]}


def key_ids(references: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield purpose and key ids of each keyring, the active key first. Skips keyrings that cannot be read here."""
    for purpose, (_, reference) in references.items():
        try:
            ring = read_keyring(reference)
        except MissingKeyError:
            continue
        yield purpose, tuple(key.id for key in ring.keys)
