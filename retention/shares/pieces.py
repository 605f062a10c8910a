"""Pieces: which files of a share hold the rows of which files of a table, and which of them hold.

A table's data files never change, so a piece is up to date as long as all its sources are live. What brings rows makes
pieces; what removes or rewrites files makes those of them stale, and no other. Merged files carry the digests of what
they were merged from, so a merge is reported from a change.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final, Self

from ranklake.lake.tables.live_files import files_digest
from ranklake.retention.shares.definition import CopyInputs

GROUP_BYTES: Final = 64 * 2**20
"""Of sources that are read for one piece."""
SMALL_BYTES: Final = 16 * 2**20
MOST_SMALL: Final = 12
"""Small pieces of a date that have files; more are made one. Pieces without files are one anyway: their number would
tell readers, by when files are made one, how many files came of which they see nothing."""


@dataclass(frozen=True, slots=True)
class Source:
    """A live data file of a table: its path, date, rows and bytes."""

    path: str
    day: date
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Files of a share, and what they were made of.

    Attributes
    ----------
    sources
        Files of the lake's table.
    files
        Of the share; none where the role sees none of the rows.
    size_bytes
        Of `files`.
    behind
        Digest of what the role's conditions asked.
    runs
        Runs of the sources, hidden ones among them, where the rows depend on whose they are; else none.
    """

    day: date
    sources: tuple[str, ...]
    files: tuple[str, ...]
    size_bytes: int
    behind: str = ""
    runs: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"day": self.day.isoformat()}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the piece of plain values. Raises `ValueError`, `KeyError` or `TypeError`."""
        sources, files = tuple(map(str, record["sources"])), tuple(map(str, record["files"]))
        runs = tuple(map(str, record["runs"]))
        return cls(
            date.fromisoformat(record["day"]), sources, files, int(record["size_bytes"]), str(record["behind"]), runs
        )


@dataclass(frozen=True, slots=True)
class DueDate:
    """What is to be done about one date.

    Attributes
    ----------
    groups
        Sources to read, those of one piece together.
    replaced
        Pieces that go when that is done.
    is_regrouped
        Whether the rows that go are those that come, in fewer files.
    """

    day: date
    groups: tuple[tuple[Source, ...], ...]
    replaced: tuple[Piece, ...]
    is_regrouped: bool = False


def settle(
    known: Iterable[Piece], live: Iterable[Source], shared: frozenset[str], behind: CopyInputs
) -> tuple[list[Piece], list[DueDate]]:
    """Return the pieces that hold, and what is to be done, by date.

    Parameters
    ----------
    known
        Pieces as they were written down.
    live
        The table's live files.
    shared
        Live files of the share.
    behind
        What the role's conditions ask now; pieces of another digest are stale.
    """
    pieces, sources = _by_day(known), _by_day(live)
    held: list[Piece] = []
    due: list[DueDate] = []
    for day in sorted(pieces.keys() | sources.keys()):
        kept, stale, fresh = _of_day(pieces.get(day, []), sources.get(day, []), shared, behind)
        kept = _without_files_as_one(kept, behind)
        small = [one for one in kept if one.files and one.size_bytes < SMALL_BYTES]
        regrouped = len(small) > MOST_SMALL
        if regrouped:
            mine = {path for one in small for path in one.sources}
            kept = [one for one in kept if one not in small]
            fresh += [source for source in sources[day] if source.path in mine]
        held += kept
        if fresh or stale or regrouped:
            replaced = (*stale, *(small if regrouped else ()))
            due.append(DueDate(day, tuple(_groups(fresh)), replaced, is_regrouped=regrouped and not stale))
    return held, due


def stale_pieces(known: Iterable[Piece], live: Iterable[Source], shared: frozenset[str]) -> list[Piece]:
    """Return the pieces some of whose rows are gone from the table, or were changed there."""
    pieces, sources = _by_day(known), _by_day(live)
    return [one for day, some in pieces.items() for one in _of_day(some, sources.get(day, []), shared, None)[1]]


def _of_day(
    pieces: Sequence[Piece], sources: Sequence[Source], shared: frozenset[str], behind: CopyInputs | None
) -> tuple[list[Piece], list[Piece], list[Source]]:
    """Return pieces that hold, pieces that do not, and sources that are in none that holds."""
    live = {source.path for source in sources}
    asked = (piece for piece in pieces if behind is None or piece.behind == behind.digest(piece.runs))
    whole = [one for one in asked if shared.issuperset(one.files)]
    stale = [one for one in pieces if one not in whole]
    kept = [one for one in whole if live.issuperset(one.sources)]
    moved = [one for one in whole if one not in kept]
    fresh = _uncovered_sources(kept, sources)
    if (merged := _merge(moved, fresh, behind)) is not None:
        kept.append(merged)
        return kept, stale, _uncovered_sources(kept, sources)
    return kept, [*stale, *moved], fresh


def _without_files_as_one(kept: Sequence[Piece], behind: CopyInputs) -> list[Piece]:
    empty = [one for one in kept if not one.files]
    if len(empty) < 2:  # noqa: PLR2004 - two make one
        return list(kept)
    joined = _as_one_source(empty, tuple(path for each in empty for path in each.sources), behind)
    return [*(each for each in kept if each.files), joined]


def _as_one_source(pieces: Sequence[Piece], sources: tuple[str, ...], behind: CopyInputs | None) -> Piece:
    """Return pieces that hold as one of some sources."""
    files = tuple(path for one in pieces for path in one.files)
    runs = tuple(sorted({run for one in pieces for run in one.runs}))
    digest = pieces[0].behind if behind is None else behind.digest(runs)
    size = sum(one.size_bytes for one in pieces)
    return Piece(pieces[0].day, sources, files, size, digest, runs)


def _uncovered_sources(kept: Iterable[Piece], sources: Iterable[Source]) -> list[Source]:
    covered = {path for one in kept for path in one.sources}
    return [source for source in sources if source.path not in covered]


def _merge(moved: Sequence[Piece], fresh: Iterable[Source], behind: CopyInputs | None) -> Piece | None:
    """Return pieces as one, where their sources were only merged; None where they changed."""
    before = [path for one in moved for path in one.sources]
    after = tuple(one.path for one in fresh if "~" in one.path or one.path in before)
    if not after or files_digest(before) != files_digest(after):
        return None
    return _as_one_source(moved, after, behind)


def _groups(sources: Sequence[Source]) -> Iterable[tuple[Source, ...]]:
    """Yield sources in groups of about `GROUP_BYTES`."""
    group: list[Source] = []
    for source in sorted(sources, key=lambda source: source.path):
        if group and sum(each.size_bytes for each in group) + source.size_bytes > GROUP_BYTES:
            yield tuple(group)
            group = []
        group.append(source)
    if group:
        yield tuple(group)


def split_by_rows(due: DueDate, rows_most: int) -> DueDate:
    """Return what is to be done about a date in groups of so many rows at most, or of one source."""
    return replace(due, groups=tuple(part for group in due.groups for part in _parts(group, rows_most)))


def _parts(group: Sequence[Source], rows_most: int) -> Iterable[tuple[Source, ...]]:
    part: list[Source] = []
    for source in group:
        if part and sum(each.rows for each in part) + source.rows > rows_most:
            yield tuple(part)
            part = []
        part.append(source)
    yield tuple(part)


def _by_day(items: Iterable[Any]) -> dict[date, list[Any]]:
    by_day: dict[date, list[Any]] = defaultdict(list)
    for item in items:
        by_day[item.day].append(item)
    return by_day
