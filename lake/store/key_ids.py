"""Names of the keys that a lake's configuration refers to, by what they are for. The keys themselves go nowhere."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ranklake.segments.envelope import MissingKeyError
from ranklake.segments.keys import read_keyring

if TYPE_CHECKING:
    from ranklake.lake.store.lake_config import LakeConfig


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
