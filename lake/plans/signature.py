"""The seal of a plan: a MAC under a key that writers of the bucket need not have.

    "seal": {"key": <id>, "hmac_sha256": HMAC-SHA256(key, what the plan file says but for seal and digest)}

Keys are a keyring by reference, as `ranklake.segments.keys` reads it: the first seals, each of them opens. So a
key is rotated by writing the new one before the others, and taken away when no plan is left unfinished under it. One
keyring serves one lake: a plan of another lake under the same key would be believed.
"""

import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

from ranklake.segments.envelope import Key
from ranklake.segments.keys import find_key, read_keyring

SEAL: Final = "seal"


def seal(facts: Mapping[str, Any], keys: str) -> dict[str, str]:
    """Return the seal of what a plan says. Raises `ranklake.segments.envelope.MissingKeyError`."""
    key = read_keyring(keys).active
    return {"key": key.id, "hmac_sha256": _mac(facts, key)}


def is_sealed(facts: Mapping[str, Any], keys: str) -> bool:
    """Say whether a plan has a seal, and one of these keys made it.

    Raises `ranklake.segments.envelope.MissingKeyError` where the key that it names is not at hand.
    """
    found = facts.get(SEAL)
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in ("key", "hmac_sha256")):
        return False
    return hmac.compare_digest(_mac(facts, find_key(keys, found["key"])), found["hmac_sha256"])


def _mac(facts: Mapping[str, Any], key: Key) -> str:
    said = {name: value for name, value in facts.items() if name != SEAL}
    return hmac.new(key.plan_secret, json.dumps(said, sort_keys=True).encode(), "sha256").hexdigest()
