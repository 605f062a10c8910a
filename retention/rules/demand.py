"""A demand: what the places of some tables must be: encrypted, by which keys, in which regions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from ranklake.retention.rules.model import Place, table_facts

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

SECTION: Final = "places"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What places of tables must be.

    Attributes
    ----------
    where
        Which tables: by ``table``, ``kind`` and ``class`` texts or globs, one of which must match; all keys must.
    encrypted
        Whether their places must be encrypted.
    keys, regions
        By one of these keys, in one of these regions, as the store names them; none: by any, anywhere.
    owner, reason
        Who answers for it; why.
    at
        Where it stands.
    """

    name: str
    where: Mapping[str, tuple[str, ...]]
    encrypted: bool
    keys: tuple[str, ...]
    regions: tuple[str, ...]
    owner: str
    reason: str
    at: Place

    @classmethod
    def of(cls, name: str, facts: Mapping[str, Any], at: Place) -> "Demand":
        """Return the demand that a file makes, which keeps to the schema."""
        where = {key: (texts,) if isinstance(texts, str) else tuple(texts) for key, texts in facts["where"].items()}
        keys = tuple(facts.get("keys", ()))
        return cls(
            name=name,
            where=where,
            encrypted=bool(keys) or "encrypted" in facts,
            keys=keys,
            regions=tuple(facts.get("regions", ())),
            owner=facts.get("owner", ""),
            reason=facts["reason"],
            at=at,
        )

    def is_about(self, contract: "Contract") -> bool:
        """Say whether it is about a table."""
        facts = table_facts(contract)
        return all(
            any(fnmatchcase(text, pattern) for text in facts[key] for pattern in patterns)
            for key, patterns in self.where.items()
        )


def is_one_of(key: str, wanted: Sequence[str]) -> bool | None:
    """Say whether a key is one of some: by the same name, or an ARN whose key id it is; None where an alias stands."""
    for one in wanted:
        short, long = sorted((key, one), key=len)
        if key == one or (":" not in short and "/" not in short and long.endswith(f":key/{short}")):
            return True
    return None if any("alias/" in one for one in (key, *wanted)) else False
