"""A demand: what the places of some tables must be: encrypted, by which keys, in which regions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import did_you_mean
from ranklake.retention.rules.findings import Finding
from ranklake.retention.rules.model import ALL_KINDS, Place, table_facts

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.retention.rules.look import Look

SECTION: Final = "places"
_NOUNS: Final = {"class": "no contract uses the retention class", "table": "there is no table",
                 "kind": "no kind of data is"}  # fmt: skip


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


def demands(look: "Look") -> Iterator[Finding]:
    """Yield unknown names, and demands for which nobody answers, that ask nothing, are of no table, or there twice."""
    contracts = look.contracts.values()
    known = {
        "class": {one.retention for one in contracts},
        "table": set(look.contracts),
        "kind": set(ALL_KINDS),
    }
    first: dict[str, Place] = {}
    for one in look.sources.demands:
        unknown = [
            Finding("RP005", one.at, f"{_NOUNS[key]} {text!r}", did_you_mean(text, known[key]))
            for key, texts in one.where.items()
            for text in texts
            if not any(fnmatchcase(name, text) for name in known[key])
        ]
        yield from unknown
        if not one.owner:
            what = f"nobody answers for the demand {one.name!r}"
            yield Finding("RP003", one.at, what, "add owner: …, here or to the file")
        if not one.encrypted and not one.regions:
            yield Finding(
                "RP028", one.at, f"{one.name!r} asks nothing", "add encrypted: true, keys: […] or regions: […]"
            )
        if not unknown and not any(map(one.is_about, contracts)):
            yield Finding(
                "RP028", one.at, f"{one.name!r} is about no table", "name a class, kind or table that there is"
            )
        if one.name in first:
            what = f"{one.name!r} stands in {first[one.name]}, too"
            yield Finding("RP012", one.at, what, "give one another name")
        first.setdefault(one.name, one.at)
