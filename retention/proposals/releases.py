"""The register of releases: partitions that checks hold back, and rows in quarantine, that somebody answers for.

A release's name is a digest of its items, and is reckoned again when it is read, as that of a retention plan is.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from ranklake.retention.proposals.proposals import Proposal, ProposalKind, Risk, digest_of
from ranklake.retention.proposals.registers import Row, RowKind, gathered, item_of, write_approval, write_once

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

TABLE: Final = "quality_releases"


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
        items = [{**asdict(item), "partition_date": str(item.partition_date)} for item in self.items]
        head = {"release": self.name, "state": self.state, "single_operator": self.single_operator, "plan": self.plan}
        return {**head, **self.facts, **self.times, "items": items}


def release_name(items: Iterable[Item]) -> str:
    """Return the name of a release of these items."""
    return f"qr-{digest_of(asdict(item) for item in items)[:16]}"


def register(lake: "Lake") -> dict[str, Release]:
    """Return every release by name, oldest first. One is applied when the lake's plan that applies it is finished."""

    def with_item(known: Release, row: Row) -> Release:
        return replace(known, items=(*known.items, item_of(TABLE, Item, row)))

    found = gathered(lake, TABLE, "release", lambda name: Release(name, items=()), with_item)
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

    head = {**head_row(release, "proposal", by), "reason": reason}
    told = [{"release": release.name, "row_kind": "item", **asdict(item)} for item in release.items]
    write_once(lake, TABLE, register, release.name, [head, *told])
    return RELEASES.find(lake, release.name)


def head_row(
    release: Release, kind: RowKind, actor: str, number: int | None = None, *, single_operator: bool = False
) -> dict[str, Any]:
    """Return the row of a proposal, approval or application, without its time."""
    rows = sum(item.rows for item in release.items)
    facts = {"release": release.name, "row_kind": kind, "rows": rows, "actor": actor, "plan": number}
    return {**facts, "single_operator": single_operator or None}


def _order(item: Item) -> tuple[str, str, date, str]:
    return (item.item_kind, item.table, item.partition_date, item.about)


def _add_approval(lake: "Lake", release: Release, by: str) -> bool:
    return write_approval(lake, TABLE, register, release.name, head_row(release, "approval", by))


RELEASES: Final = ProposalKind(
    noun="release",
    action="release",
    command="ranklake quality release",
    register=register,
    add_approval=_add_approval,
)
"""Releases as proposals: `ranklake.retention.proposals.lifecycle` approves and applies them."""
