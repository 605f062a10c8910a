"""Copies of tables in a share: the contract with what a role sees, and the pieces that are copied and still valid.

A copy is rebuilt when its definition changes: columns, masks, conditions, or keys of pseudonyms. A piece relates
files of the share to the files of the table that they were copied from. A table's data files never change, so a piece
is valid as long as all its source files are live. New files give new pieces, and removed or rewritten files
invalidate only their own pieces. The name of a merged file contains the digests of its parts, so a merge is
distinguished from a change of rows.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Self

from ranklake.lake.query.roles import Role
from ranklake.lake.tables.live_files import files_digest
from ranklake.retention.shares.place import ShareError

if TYPE_CHECKING:
    import pyarrow as pa

    from ranklake.lake.contracts.model import Contract

FORMAT: Final = 1
"""Version of the files of copies; raising it rebuilds every copy."""
_SORTED: Final = frozenset({"string", "bool", "int32", "int64", "float32", "float64", "timestamp", "date"})


def copy_contract(role: Role, contract: "Contract") -> "Contract":
    """Return the contract of a role's copy of a table: the columns that the role sees.

    A masked column may be NULL, and has no default and no format. If the role does not see a sort column unmasked, the
    copy is sorted by all visible columns, so that the order of rows reveals nothing. Raises `ShareError` if the role
    does not see the partition column unmasked.
    """
    sights = role.sights(contract)
    plain = {sight.column.name for sight in sights if sight.mask is None and not sight.is_hidden}
    if unseen := set(contract.partition) - plain:
        message = f"{role.name} does not see {contract.table}.{min(unseen)} as it is, and copies are laid out by it"
        raise ShareError(message, where=role.name, hint=f"take {contract.table} out of its tables, or let it see that")
    groups = role.groups.get(contract.table)
    group_columns = frozenset() if groups is None else frozenset(groups.by)
    columns = tuple(
        sight.column
        if sight.mask is None and sight.column.name not in group_columns
        else replace(sight.column, required=False, default=None, format=None, mask=None)
        for sight in sights
        if not sight.is_hidden
    )
    visible = {column.name for column in columns}
    order = [name for name in contract.sort if name in visible]
    if not plain.issuperset(contract.sort):
        order += [column.name for column in columns if column.name not in order and column.type in _SORTED]
    return replace(
        contract,
        columns=columns,
        sort=tuple(order),
        grain=tuple(name for name in contract.grain if name in visible),
        checks=(),
        retired=(),
        rollup=None,
        lint=(),
    )


def is_resorted(contract: "Contract", copied: "Contract") -> bool:
    """Return whether a copy has another sort order than its table."""
    return contract.sort != copied.sort


def definition(role: Role, contract: "Contract", key_ids: Sequence[str]) -> str:
    """Return a digest of how a role sees a table: columns, masks, conditions, and the keys of its pseudonyms."""
    has_hash = False
    columns = []
    for sight in role.sights(contract):
        if not sight.is_hidden:
            column = sight.column
            columns.append([column.id, column.name, column.type, column.required, column.class_, sight.visibility])
            has_hash = has_hash or sight.visibility == "hash"
    facts = [FORMAT, columns, list(contract.sort), role.conditions(contract), list(key_ids) if has_hash else []]
    if (groups := role.groups.get(contract.table)) is not None:
        facts.append(groups.text)
    return _digest(facts)


@dataclass(frozen=True, slots=True)
class CopyInputs:
    """The inputs of a copy other than its source rows.

    Attributes
    ----------
    asked
        Digest of the tables that the role's conditions read (`conditions_digest`).
    theirs
        Runs of the role's teams; None if rows do not depend on teams.
    """

    asked: str
    theirs: frozenset[str] | None = None

    def digest(self, runs: Iterable[str]) -> str:
        """Return a digest that changes when rows of these runs must be copied again."""
        return self.asked if self.theirs is None else _digest([self.asked, sorted(self.theirs.intersection(runs))])


def conditions_digest(live: Mapping[str, "pa.Table"], moment: str) -> str:
    """Return a digest of the tables that conditions read, and of `moment`, which is empty unless they use the time."""
    if not live and not moment:
        return ""
    return _digest([moment, {name: files_digest(rows["path"].to_pylist()) for name, rows in sorted(live.items())}])


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


GROUP_BYTES: Final = 64 * 2**20
"""Most bytes of source files for one piece."""
SMALL_BYTES: Final = 16 * 2**20
MOST_SMALL: Final = 12
"""Most small pieces with files per date; more are combined. Pieces without files are always combined: otherwise the
time of combining would reveal how many files arrived whose rows the role does not see."""


@dataclass(frozen=True, slots=True)
class Source:
    """A live data file of a table: its path, date, rows and bytes."""

    path: str
    day: date
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Files of a share and the source files that they were copied from.

    Attributes
    ----------
    sources
        Files of the lake's table.
    files
        Files of the share; empty if the role sees none of the rows.
    size_bytes
        Bytes of `files`.
    behind
        Digest of the inputs of the copy (`CopyInputs.digest`).
    runs
        Runs of the sources, including hidden ones, if rows depend on teams; otherwise empty.
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
    """The work for one date.

    Attributes
    ----------
    groups
        Source files to copy, grouped by new piece.
    replaced
        Old pieces that are removed afterwards.
    is_regrouped
        Whether the new pieces have the same rows as the old ones, in fewer files.
    """

    day: date
    groups: tuple[tuple[Source, ...], ...]
    replaced: tuple[Piece, ...]
    is_regrouped: bool = False


def split_pieces(
    known: Iterable[Piece], live: Iterable[Source], shared: frozenset[str], behind: CopyInputs
) -> tuple[list[Piece], list[DueDate]]:
    """Return the valid pieces, and the work to do by date.

    Parameters
    ----------
    known
        Recorded pieces.
    live
        The table's live files.
    shared
        Live files of the share.
    behind
        Current inputs of the copy; pieces with another digest are stale.
    """
    pieces, sources = _by_day(known), _by_day(live)
    valid: list[Piece] = []
    due: list[DueDate] = []
    for day in sorted(pieces.keys() | sources.keys()):
        kept, stale, uncovered = _of_day(pieces.get(day, []), sources.get(day, []), shared, behind)
        kept = _combine_empty(kept, behind)
        small = [piece for piece in kept if piece.files and piece.size_bytes < SMALL_BYTES]
        is_regrouped = len(small) > MOST_SMALL
        if is_regrouped:
            small_sources = {path for piece in small for path in piece.sources}
            kept = [piece for piece in kept if piece not in small]
            uncovered += [source for source in sources[day] if source.path in small_sources]
        valid += kept
        if uncovered or stale or is_regrouped:
            replaced = (*stale, *(small if is_regrouped else ()))
            due.append(DueDate(day, tuple(_groups(uncovered)), replaced, is_regrouped=is_regrouped and not stale))
    return valid, due


def stale_pieces(known: Iterable[Piece], live: Iterable[Source], shared: frozenset[str]) -> list[Piece]:
    """Return the pieces with rows that were removed or changed in the table."""
    pieces, sources = _by_day(known), _by_day(live)
    days = ((items, sources.get(day, [])) for day, items in pieces.items())
    return [piece for items, day_sources in days for piece in _of_day(items, day_sources, shared, None)[1]]


def _of_day(
    pieces: Sequence[Piece], sources: Sequence[Source], shared: frozenset[str], behind: CopyInputs | None
) -> tuple[list[Piece], list[Piece], list[Source]]:
    """Return the valid pieces of a date, the stale pieces, and the source files without a valid piece."""
    live = {source.path for source in sources}
    current = (piece for piece in pieces if behind is None or piece.behind == behind.digest(piece.runs))
    complete = [piece for piece in current if shared.issuperset(piece.files)]
    stale = [piece for piece in pieces if piece not in complete]
    kept = [piece for piece in complete if live.issuperset(piece.sources)]
    moved = [piece for piece in complete if piece not in kept]
    uncovered = _uncovered_sources(kept, sources)
    if (merged := _merge(moved, uncovered, behind)) is not None:
        kept.append(merged)
        return kept, stale, _uncovered_sources(kept, sources)
    return kept, [*stale, *moved], uncovered


def _combine_empty(kept: Sequence[Piece], behind: CopyInputs) -> list[Piece]:
    """Return pieces with those without files combined into one."""
    empty = [piece for piece in kept if not piece.files]
    if len(empty) < 2:  # noqa: PLR2004 - nothing to combine
        return list(kept)
    combined = _combine(empty, tuple(path for piece in empty for path in piece.sources), behind)
    return [*(piece for piece in kept if piece.files), combined]


def _combine(pieces: Sequence[Piece], sources: tuple[str, ...], behind: CopyInputs | None) -> Piece:
    """Return one piece with the files of several pieces, and the given sources."""
    files = tuple(path for piece in pieces for path in piece.files)
    runs = tuple(sorted({run for piece in pieces for run in piece.runs}))
    digest = pieces[0].behind if behind is None else behind.digest(runs)
    size = sum(piece.size_bytes for piece in pieces)
    return Piece(pieces[0].day, sources, files, size, digest, runs)


def _uncovered_sources(kept: Iterable[Piece], sources: Iterable[Source]) -> list[Source]:
    covered = {path for piece in kept for path in piece.sources}
    return [source for source in sources if source.path not in covered]


def _merge(moved: Sequence[Piece], uncovered: Iterable[Source], behind: CopyInputs | None) -> Piece | None:
    """Return pieces as one if their source files were only merged; None if rows changed."""
    before = [path for piece in moved for path in piece.sources]
    after = tuple(source.path for source in uncovered if "~" in source.path or source.path in before)
    if not after or files_digest(before) != files_digest(after):
        return None
    return _combine(moved, after, behind)


def _groups(sources: Sequence[Source]) -> Iterable[tuple[Source, ...]]:
    """Yield sources in groups of about `GROUP_BYTES`."""
    group: list[Source] = []
    for source in sorted(sources, key=lambda source: source.path):
        if group and sum(member.size_bytes for member in group) + source.size_bytes > GROUP_BYTES:
            yield tuple(group)
            group = []
        group.append(source)
    if group:
        yield tuple(group)


def split_by_rows(due: DueDate, rows_most: int) -> DueDate:
    """Return the work for a date in groups of at most `rows_most` rows; a larger source file is a group alone."""
    return replace(due, groups=tuple(part for group in due.groups for part in _parts(group, rows_most)))


def _parts(group: Sequence[Source], rows_most: int) -> Iterable[tuple[Source, ...]]:
    part: list[Source] = []
    for source in group:
        if part and sum(member.rows for member in part) + source.rows > rows_most:
            yield tuple(part)
            part = []
        part.append(source)
    yield tuple(part)


def _by_day(items: Iterable[Any]) -> dict[date, list[Any]]:
    by_day: dict[date, list[Any]] = defaultdict(list)
    for item in items:
        by_day[item.day].append(item)
    return by_day
