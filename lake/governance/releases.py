"""The register of releases: partitions that checks hold back, and rows in quarantine, that somebody answers for.

A release's name is a digest of its items, and is reckoned again when it is read, as that of a retention plan is.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from ranklake.lake.contracts.load import contract
from ranklake.lake.delta.read import read
from ranklake.lake.governance.proposals import Proposal, ProposalKind, Risk, digest_of
from ranklake.lake.plans.ledger import append_own
from ranklake.lake.plans.plan import last_finished

if TYPE_CHECKING:
    from ranklake.lake.storage.store import Lake

TABLE: Final = "quality_releases"
RowKind = Literal["proposal", "item", "approval", "application"]


@dataclass(frozen=True, slots=True)
class Item:
    """What becomes free.

    Attributes
    ----------
    item_kind
        ``partition``: it is held back no more. ``rows``: they go from ``rejects`` to their table. ``segment``: the next
        ingest judges it again.
    table, partition_date
        Which: a partition of the table; of rows the date of ``rejects`` on which they were taken out; of a segment the
        date on which it was refused.
    about
        The checks that hold the partition, the reason for which the rows were taken out, or that and a segment's name.
    rows
        How many.
    content_sha256
        Digest of the partition's files, of the rows' keys, or of the segment.
    """

    item_kind: str
    table: str
    partition_date: date
    about: str
    rows: int
    content_sha256: str


@dataclass(frozen=True, slots=True)
class Release(Proposal):
    """A proposal to let items go on; its name is a digest of them."""

    items: tuple[Item, ...]

    @property
    def items_sha256(self) -> str:
        """Digest of all that its items say."""
        return digest_of(asdict(item) for item in self.items)

    @property
    def intact(self) -> bool:
        """Whether its items are those that its name stands for."""
        return self.name == release_name(self.items)

    @property
    def facts(self) -> dict[str, Any]:
        """What the trail says of it."""
        told = {"partitions": len(self.of("partition")), "rows": sum(item.rows for item in self.of("rows"))}
        segments = self.of("segment")
        return {**told, "segments": len(segments)} if segments else told

    @property
    def outcome(self) -> dict[str, Any]:
        """What the trail says when it was applied."""
        return self.facts

    @property
    def risk(self) -> Risk:
        """What it puts at stake: nothing goes, and what was released can be taken out and held again."""
        return Risk(irreversible=False)

    def of(self, item_kind: str) -> tuple[Item, ...]:
        """Return its items of a kind."""
        return tuple(item for item in self.items if item.item_kind == item_kind)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        moments = {"proposed": self.proposed, "approved": self.approved, "applied": self.applied}
        times = {name: None if when is None else when.isoformat() for name, when in moments.items()}
        items = [{**asdict(item), "partition_date": str(item.partition_date)} for item in self.items]
        head = {"release": self.name, "state": self.state, "single_operator": self.single_operator, "plan": self.plan}
        return {**head, **self.facts, **times, "items": items}


def release_name(items: Iterable[Item]) -> str:
    """Return the name of a release of these items."""
    return f"qr-{digest_of(asdict(item) for item in items)[:16]}"


def register(lake: "Lake") -> dict[str, Release]:
    """Return every release by name, oldest first. One is applied when the lake's plan that applies it is finished."""
    rows = read(lake, contract(TABLE)).to_pylist()
    if not rows:
        return {}
    finished = last_finished(lake)
    found: dict[str, Release] = {}
    for row in sorted(rows, key=lambda row: (row["row_kind"] != "proposal", row["ts"])):
        name = row["release"]
        known = found.setdefault(name, Release(name, items=()))
        if row["row_kind"] == "proposal":
            found[name] = replace(known, proposed=row["ts"])
        elif row["row_kind"] == "item":
            item = Item(**{field: row[field] for field in Item.__dataclass_fields__})
            found[name] = replace(known, items=(*known.items, item))
        elif row["row_kind"] == "approval":
            found[name] = replace(known, approved=row["ts"], approver=row["actor"])
        elif row["row_kind"] == "application" and row["plan"] is not None and row["plan"] <= finished:
            alone = bool(row["single_operator"])
            found[name] = replace(known, applied=row["ts"], plan=row["plan"], single_operator=alone)
    return {name: replace(one, items=tuple(sorted(one.items, key=_order))) for name, one in found.items()}


def released(lake: "Lake") -> set[tuple[str, date, str]]:
    """Return the partitions (table, date, digest of files) that applied releases let go on."""
    return {
        (item.table, item.partition_date, item.content_sha256)
        for one in register(lake).values()
        if one.applied is not None and one.intact
        for item in one.of("partition")
    }


def write_down(lake: "Lake", items: Iterable[Item], by: str, reason: str) -> Release:
    """Write a release into the register, once, and return what became of it so far. Its authors are in the trail."""
    release = Release("", items=tuple(items))
    release = replace(release, name=release_name(release.items))

    def compose(_: object) -> list[dict[str, Any]]:
        if release.name in register(lake):
            return []
        head = {**head_row(release, "proposal", by), "reason": reason}
        items = [{"release": release.name, "row_kind": "item", **asdict(item)} for item in release.items]
        return stamped([head, *items])

    append_own(lake, TABLE, compose)
    return RELEASES.find(lake, release.name)


def head_row(
    release: Release, kind: RowKind, actor: str, number: int | None = None, *, single_operator: bool = False
) -> dict[str, Any]:
    """Return the row of a proposal, approval or application, without its time."""
    rows = sum(item.rows for item in release.items)
    facts = {"release": release.name, "row_kind": kind, "rows": rows, "actor": actor, "plan": number}
    return {**facts, "single_operator": single_operator or None}


def stamped(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the time of now."""
    when = datetime.now(UTC)
    return [{**row, "ts": when, "date": when.date()} for row in rows]


def _order(item: Item) -> tuple[str, str, date, str]:
    return (item.item_kind, item.table, item.partition_date, item.about)


def _add_approval(lake: "Lake", release: Release, by: str) -> bool:
    def compose(_: object) -> list[dict[str, Any]]:
        known = register(lake).get(release.name)
        done = known is not None and known.approved is not None
        return [] if done else stamped([head_row(release, "approval", by)])

    return append_own(lake, TABLE, compose) > 0


RELEASES: Final = ProposalKind(
    noun="release",
    action="release",
    command="ranklake quality release",
    register=register,
    add_approval=_add_approval,
)
"""Releases as proposals: `ranklake.lake.governance.lifecycle` approves and applies them."""
