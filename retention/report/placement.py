"""Placement: whether tables lie where policies demand: encrypted, by which key, in which region; the age of keys.

    demands of policies ──┐
    places of tables    ──┴─▶ posture of each place, as its store says ──▶ met, differs, or unknown with the reason

Nothing that a store does not say counts as met.
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
    """The key of a setting that is used now.

    Attributes
    ----------
    setting, kind
        Where it is referred to, and what kind of place it comes from; the place stands nowhere.
    age_days
        Days since it was first seen in use, or else since its file was written; None if nobody knows.
    by
        Which of the two.
    unknown, hint
        Why its age is not known, and what to do; empty where it is.
    """

    setting: str
    kind: str
    age_days: int | None = None
    by: str = ""
    unknown: str = ""
    hint: str = ""


def key_ages(lake: "Lake", now: datetime) -> tuple[KeyAge, ...]:
    """Return the ages of all keys that the lake is configured with. Runs helpers of references."""
    return tuple(_ages(lake, now))


def _ages(lake: "Lake", now: datetime) -> Iterator[KeyAge]:
    references, known = key_references(lake.config), first_uses(lake.store)
    ids = dict(key_ids(references))
    for purpose, (setting, reference) in references.items():
        kind = reference.strip().partition(":")[0]
        if purpose not in ids:
            hint = "'ranklake config check' says why"
            yield KeyAge(setting=setting, kind=kind, unknown="it cannot be read here", hint=hint)
            continue
        since = known.get((purpose, ids[purpose][0]))
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
        Which.
    tables
        Those there that it is about.
    what
        ``encryption``, ``key`` or ``region``.
    wanted, found
        In words.
    state
        ``met``, ``differs`` or ``unknown``.
    hint
        What to do about it; empty where it is met.
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
        """One clause."""
        tables = ", ".join(self.tables[:3]) + (f" and {len(self.tables) - 3} more" if len(self.tables) > 3 else "")  # noqa: PLR2004
        return f"{self.demand}: {self.what} of {self.place} ({tables}) is to be {self.wanted}, and is {self.found}"

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """A place that has rows of tables, and how it is protected."""

    posture: Posture
    tables: frozenset[str]


def places(tables: "Tables", contracts: "Mapping[str, Contract]", spool: "Store | None" = None) -> list[StoragePlace]:
    """Return every place that has rows of a lake's tables: itself, its spool, archives, shares. Asks their stores.

    Raises what reading the registers of archives and shares raises; a place that does not answer is unknown.
    """
    held = [StoragePlace(posture("lake", tables.store), frozenset(contracts))]
    if spool is not None:
        recorded = frozenset(contract.table for contract in contracts.values() if contract.envelope)
        held.append(StoragePlace(posture("spool", spool, ""), recorded))
    rows = archives(tables)
    for place in archive_places(tables):
        there = frozenset(one.table for one in rows if one.uri == place.uri)
        held.append(StoragePlace(posture(f"archive {redact_uri(place.uri)}", place, ""), there))
    for share in shares(tables.store):
        place = open_place(tables.store, share.uri)
        held.append(
            StoragePlace(
                posture(f"share of {share.role} at {redact_uri(share.uri)}", place, ""),
                frozenset(recorded_tables(tables.store, share)),
            )
        )
    return held


def verdicts(
    demands: "tuple[Demand, ...]", held: "list[StoragePlace]", contracts: "Mapping[str, Contract]"
) -> list[Verdict]:
    """Return the result of each demand at each place, unmet ones first."""
    result = []
    for demand in demands:
        about = frozenset(contract.table for contract in contracts.values() if demand.is_about(contract))
        for place in held:
            if tables := sorted(about & place.tables):
                result += [
                    Verdict(demand=demand.name, place=place.posture.place, tables=tuple(tables), **said)
                    for said in _checks(demand, place.posture)
                ]
    order = {DIFFERS: 0, UNKNOWN: 1, MET: 2}
    return sorted(result, key=lambda place: order[place.state])


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
        return facts | {"found": "off for an object that is there", "state": DIFFERS, "hint": hint}
    if place.by_default is None or place.of_object is None:
        return facts | _unknown_verdict(place)
    return facts | {"found": place.by_default, "state": MET, "hint": ""}


def _key(demand: "Demand", place: Posture) -> dict[str, str]:
    facts = {"what": "key", "wanted": " or ".join(demand.keys)}
    hint = "name the key in default encryption of the bucket, then copy older objects onto themselves"
    asked = [(place.by_default, place.by_default_key, "new objects")]
    asked += [] if place.of_object == EMPTY else [(place.of_object, place.of_object_key, "an object that is there")]
    doubts = []
    for how, key, owner in asked:
        if how is None:
            doubts.append(place.unknown or f"the store says nothing of {owner}")
        elif key is None:
            reason = f"none ({how}) for {owner}" if how == NONE else f"the store's own ({how}) for {owner}"
            return facts | {"found": reason, "state": DIFFERS, "hint": hint}
        elif (same := matches_key(key, demand.keys)) is False:
            return facts | {"found": f"{key} for {owner}", "state": DIFFERS, "hint": hint}
        elif same is None:
            doubts.append(f"{key} may stand for it, and an alias cannot be told from here")
    if doubts:
        return facts | _unknown_verdict(place, "; ".join(dict.fromkeys(doubts)))
    return facts | {"found": str(place.by_default_key), "state": MET, "hint": ""}


def _region(demand: "Demand", place: Posture) -> dict[str, str]:
    facts = {"what": "region", "wanted": " or ".join(demand.regions)}
    if place.region is None:
        return facts | _unknown_verdict(place)
    if place.region in demand.regions:
        return facts | {"found": place.region, "state": MET, "hint": ""}
    hint = "copy it into a bucket there, and name that; or take the tables out of the demand, with whoever made it"
    return facts | {"found": place.region, "state": DIFFERS, "hint": hint}


def _unknown_verdict(place: Posture, why: str = "") -> dict[str, str]:
    reason = why or place.unknown or "the store says nothing"
    return {"found": f"not known ({reason})", "state": UNKNOWN, "hint": _ASK}
