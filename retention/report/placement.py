"""Placement: compares the encryption, keys and regions of tables' places with the policies' demands; ages of keys.

    demands of policies ──┐
    places of tables    ──┴─▶ posture of each place, as its store reports it ──▶ met, differs, or unknown with reason

A demand is met only if the store reports it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.store.keys import first_uses, key_ids, key_references
from ranklake.lake.store.posture import EMPTY, NONE, Posture, posture
from ranklake.redaction.redact import redact_uri
from ranklake.retention.archive.register import archive_places, archives
from ranklake.retention.policies.model import matches_key
from ranklake.retention.shares.place import open_place
from ranklake.retention.shares.register import recorded_tables, shares

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables
    from ranklake.retention.policies.model import Demand


_FILE: Final = "file:"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAge:
    """The age of the active key of a setting.

    Attributes
    ----------
    setting, kind
        The setting, and the kind of reference, such as ``file``; never the place itself.
    age_days
        Days since its first use, or since its file was written if the first use is unknown; None if both are unknown.
    by
        Which of the two times counts.
    unknown, hint
        Why the age is unknown, and how to fix it; empty if it is known.
    """

    setting: str
    kind: str
    age_days: int | None = None
    by: str = ""
    unknown: str = ""
    hint: str = ""


def key_ages(lake: "Lake", now: datetime) -> tuple[KeyAge, ...]:
    """Return the ages of all configured keys. Runs the commands of references."""
    return tuple(_ages(lake, now))


def _ages(lake: "Lake", now: datetime) -> Iterator[KeyAge]:
    references, first_use = key_references(lake.config), first_uses(lake.store)
    ids = dict(key_ids(references))
    for purpose, (setting, reference) in references.items():
        kind = reference.strip().partition(":")[0]
        if purpose not in ids:
            hint = "'ranklake config check' says why"
            yield KeyAge(setting=setting, kind=kind, unknown="it cannot be read here", hint=hint)
            continue
        since = first_use.get((purpose, ids[purpose][0]))
        written = _modified_time(reference)
        if since is not None:
            yield KeyAge(setting=setting, kind=kind, age_days=(now.date() - since).days, by="first seen in use")
        elif written is not None:
            yield KeyAge(setting=setting, kind=kind, age_days=(now - written).days, by="its file")
        else:
            hint = "'ranklake upkeep' notes it from now on"
            yield KeyAge(setting=setting, kind=kind, unknown="nobody noted when it came into use", hint=hint)


def _modified_time(reference: str) -> datetime | None:
    if not reference.strip().startswith(_FILE):
        return None
    try:
        return datetime.fromtimestamp(Path(reference.strip().removeprefix(_FILE)).stat().st_mtime, UTC)
    except OSError:
        return None


MET: Final = "met"
DIFFERS: Final = "differs"
UNKNOWN: Final = "unknown"
_ASK: Final = "let this account read it, or ask whoever runs the store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of one demand at one place.

    Attributes
    ----------
    demand, place
        Names of the demand and the place.
    tables
        The tables at the place that the demand selects.
    what
        ``encryption``, ``key`` or ``region``.
    wanted, found
        The demanded and the actual state, in words.
    state
        ``met``, ``differs`` or ``unknown``.
    hint
        How to fix it; empty if the demand is met.
    """

    demand: str
    place: str
    tables: tuple[str, ...]
    what: str
    wanted: str
    found: str
    state: str
    hint: str

    @property
    def text(self) -> str:
        """The result as a clause."""
        tables = ", ".join(self.tables[:3]) + (f" and {len(self.tables) - 3} more" if len(self.tables) > 3 else "")  # noqa: PLR2004
        return f"{self.demand}: {self.what} of {self.place} ({tables}) is to be {self.wanted}, and is {self.found}"

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """A place with rows of tables, and its protection."""

    posture: Posture
    tables: frozenset[str]


def places(tables: "Tables", contracts: "Mapping[str, Contract]", spool: "Store | None" = None) -> list[StoragePlace]:
    """Return every place with rows of a lake's tables: the lake, its spool, archives and shares. Asks their stores.

    Raises the errors of reading the registers of archives and shares. A place that does not answer is unknown.
    """
    result = [StoragePlace(posture("lake", tables.store), frozenset(contracts))]
    if spool is not None:
        recorded = frozenset(contract.table for contract in contracts.values() if contract.envelope)
        result.append(StoragePlace(posture("spool", spool, ""), recorded))
    rows = archives(tables)
    for place in archive_places(tables):
        archived = frozenset(archive.table for archive in rows if archive.uri == place.uri)
        result.append(StoragePlace(posture(f"archive {redact_uri(place.uri)}", place, ""), archived))
    for share in shares(tables.store):
        place = open_place(tables.store, share.uri)
        result.append(
            StoragePlace(
                posture(f"share of {share.role} at {redact_uri(share.uri)}", place, ""),
                frozenset(recorded_tables(tables.store, share)),
            )
        )
    return result


def verdicts(
    demands: "tuple[Demand, ...]", storage_places: "list[StoragePlace]", contracts: "Mapping[str, Contract]"
) -> list[Verdict]:
    """Return the result of each demand at each place, unmet ones first."""
    result = []
    for demand in demands:
        selected = frozenset(contract.table for contract in contracts.values() if demand.is_about(contract))
        for place in storage_places:
            if tables := sorted(selected & place.tables):
                result += [
                    Verdict(demand=demand.name, place=place.posture.place, tables=tuple(tables), **facts)
                    for facts in _checks(demand, place.posture)
                ]
    order = {DIFFERS: 0, UNKNOWN: 1, MET: 2}
    return sorted(result, key=lambda verdict: order[verdict.state])


def _checks(demand: "Demand", place: Posture) -> Iterator[dict[str, str]]:
    if demand.encrypted:
        yield _encryption(place)
    if demand.keys:
        yield _key(demand, place)
    if demand.regions:
        yield _region(demand, place)


def _encryption(place: Posture) -> dict[str, str]:
    facts = {"what": "encryption", "wanted": "on"}
    if place.by_default == NONE:
        hint = "switch on default encryption of the bucket, then copy older objects onto themselves"
        return facts | {"found": "off for new objects", "state": DIFFERS, "hint": hint}
    if place.of_object == NONE:
        hint = "copy older objects onto themselves: default encryption holds for new ones alone"
        return facts | {"found": "off for an existing object", "state": DIFFERS, "hint": hint}
    if place.by_default is None or place.of_object is None:
        return facts | _unknown_verdict(place)
    return facts | {"found": place.by_default, "state": MET, "hint": ""}


def _key(demand: "Demand", place: Posture) -> dict[str, str]:
    facts = {"what": "key", "wanted": " or ".join(demand.keys)}
    hint = "name the key in default encryption of the bucket, then copy older objects onto themselves"
    reported = [(place.by_default, place.by_default_key, "new objects")]
    reported += [] if place.of_object == EMPTY else [(place.of_object, place.of_object_key, "an existing object")]
    doubts = []
    for algorithm, key, noun in reported:
        if algorithm is None:
            doubts.append(place.unknown or f"the store says nothing of {noun}")
        elif key is None:
            own = f"none ({algorithm})" if algorithm == NONE else f"the store's own ({algorithm})"
            return facts | {"found": f"{own} for {noun}", "state": DIFFERS, "hint": hint}
        elif (is_accepted := matches_key(key, demand.keys)) is False:
            return facts | {"found": f"{key} for {noun}", "state": DIFFERS, "hint": hint}
        elif is_accepted is None:
            doubts.append(f"{key} may be an alias of such a key, which cannot be resolved from here")
    if doubts:
        return facts | _unknown_verdict(place, "; ".join(dict.fromkeys(doubts)))
    return facts | {"found": str(place.by_default_key), "state": MET, "hint": ""}


def _region(demand: "Demand", place: Posture) -> dict[str, str]:
    facts = {"what": "region", "wanted": " or ".join(demand.regions)}
    if place.region is None:
        return facts | _unknown_verdict(place)
    if place.region in demand.regions:
        return facts | {"found": place.region, "state": MET, "hint": ""}
    hint = "copy the data into a bucket of such a region, and configure that; or have the demand exclude these tables"
    return facts | {"found": place.region, "state": DIFFERS, "hint": hint}


def _unknown_verdict(place: Posture, reason: str = "") -> dict[str, str]:
    reason = reason or place.unknown or "the store says nothing"
    return {"found": f"not known ({reason})", "state": UNKNOWN, "hint": _ASK}
