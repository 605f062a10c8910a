"""Since when keys are used: a small file for each, by what it is for and its name, which says nothing of the key.

    <lake>/keys/<purpose>~<key id>.json     {"since": date}, written once

A reference to a keyring tells where a key is, not how old it is. So whoever runs upkeep notes keys when they are first
seen in a ring; a rotated key is then as young as that.
"""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Final

from ranklake.lake.store.listing import listed

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

FOLDER: Final = "keys"
_NAME: Final = re.compile(r".*/(?P<purpose>[a-z_0-9]+)~(?P<id>[0-9a-f]{8})\.json")


def first_uses(lake: "Lake") -> dict[tuple[str, str], date]:
    """Return since when keys are known, by purpose and id; a file that cannot be read says nothing."""
    found = {}
    for one in listed(lake.fs, lake.path(FOLDER)):
        name = _NAME.fullmatch(one.path)
        if name is None:
            continue
        try:
            since = json.loads(lake.fs.cat_file(one.path))["since"]
            found[name["purpose"], name["id"]] = date.fromisoformat(since)
        except (ValueError, KeyError, TypeError):
            continue
    return found


def note_keys(lake: "Lake", rings: Mapping[str, Iterable[str]], today: date) -> int:
    """Note keys that are in use and not known yet, by purpose; return how many. Again changes nothing."""
    known = first_uses(lake)
    new = [(purpose, key) for purpose, ids in rings.items() for key in ids if (purpose, key) not in known]
    return sum(
        lake.put_if_absent(f"{FOLDER}/{purpose}~{key}.json", json.dumps({"since": today.isoformat()}).encode())
        for purpose, key in new
    )
