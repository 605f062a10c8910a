"""What is wrong with demands on places."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import combinations
from typing import TYPE_CHECKING, Final

from ranklake.errors import did_you_mean
from ranklake.retention.rules.demand import is_one_of
from ranklake.retention.rules.findings import Finding
from ranklake.retention.rules.model import ALL_KINDS, Place

if TYPE_CHECKING:
    from ranklake.retention.rules.look import Look

_NOUNS: Final = {"class": "no contract uses the retention class", "table": "there is no table",
                 "kind": "no kind of data is"}  # fmt: skip


def demands(look: "Look") -> Iterator[Finding]:
    """Yield unknown names, and demands for which nobody answers, that ask nothing, are of no table, or there twice.

    Likewise two that no place can meet at once.
    """
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
    yield from _contradictions(look)


def _contradictions(look: "Look") -> Iterator[Finding]:
    """Yield pairs of demands that have a table in common, and no region or no key: no place of it meets both."""
    for one, other in combinations(look.sources.demands, 2):
        both = [
            table for table, contract in look.contracts.items() if one.is_about(contract) and other.is_about(contract)
        ]
        apart = []
        if one.regions and other.regions and not set(one.regions) & set(other.regions):
            apart.append("regions")
        if one.keys and other.keys and all(is_one_of(key, other.keys) is False for key in one.keys):
            apart.append("keys")
        if both and apart:
            what = f"{other.name!r} wants other {' and '.join(apart)} for {both[0]} than {one.name!r} in {one.at}"
            yield Finding("RP029", other.at, what, "agree on one, or take the table out of one of them")
