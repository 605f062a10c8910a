"""Rows of the register of archives that a retention plan writes: what it archives, and which archives end."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ranklake.retention.archive.register import ARCHIVED, REMOVED, every_archive

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake
    from ranklake.retention.archive.stow import Stowed


def made_rows(some: "Iterable[Stowed]") -> Iterator[dict[str, Any]]:
    """Yield the rows of archives that a plan makes."""
    yield from (one.archive.row(ARCHIVED) for one in some)


def ended_rows(
    lake: "Lake", ended: Mapping[str, Mapping[str, list[str]]], proposal: str, number: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows of archives that end with a plan."""
    known = every_archive(lake) if ended else {}
    for days in ended.values():
        for name in (name for some in days.values() for name in some):
            yield {**known[name].row(REMOVED), "proposal": proposal, "plan": number}
