"""Admission: what a plan records of new segments before they are read, from their names, places and streams.

A digest may lie in several places, and a process's number in several mouths.

claims of a digest ─▶ by prefix, those that may not lie there apart ─▶ one writer a process ─▶ rows of the plan
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from ranklake.lake.ingest.ingestion_index import Cuts, SlotFile, Standing, slot_file_of, stream_of
from ranklake.lake.store.planned_segment import EarlierCut, PlannedSegment
from ranklake.lake.store.writers import NOT_ENCRYPTED, OTHERS_INCARNATION

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.ingest.spool.spooled import Spooled

_LATE: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Files that claim one digest, of one prefix.

    Attributes
    ----------
    files
        At least one.
    prefix
        Which the operator says something of; None if nothing.
    refused
        Why none of them may be there; empty if they may.
    """

    files: list["Spooled"]
    prefix: str | None = None
    refused: str = ""

    @property
    def file(self) -> "Spooled":
        """The first."""
        return self.files[0]

    @property
    def key_id(self) -> str:
        """Of the key that they are encrypted with; empty if they are not."""
        return self.file.name.key_id if self.file.name else ""


def candidates(spool: "Spool", new: Sequence[list["Spooled"]]) -> list[Candidate]:
    """Return new files, those that claim one digest together as far as the operator says the same of them."""
    if not spool.writers.prefixes:
        return [Candidate(claims) for claims in new]
    found: list[Candidate] = []
    for claims in new:
        kept: dict[tuple[str | None, str], list[Spooled]] = {}
        for item in claims:
            below = spool.below(item.path)
            own = spool.writers.of(below)
            refused = spool.writers.against(below, item.name) if item.name else ""
            kept.setdefault((own.prefix if own else None, refused), []).append(item)
        for (prefix, refused), items in kept.items():
            found += [Candidate([item], prefix, refused) for item in items] if refused else [Candidate(items, prefix)]
    return found


def undisputed(chosen: Sequence[Candidate], known: Mapping[int, Standing]) -> list[Candidate]:
    """Return candidates without those that wait, since it is not known yet whose a process's number is.

    Of those that claim a number which nothing is known of, those of one stream come first: the encrypted before the
    clear, then whose file was written first, as the store says. Once one of them was read, it is known.
    """
    firsts: dict[int, Candidate] = {}
    for one in chosen:
        name = one.file.name
        if name is None or one.refused or name.incarnation in known:
            continue
        before = firsts.setdefault(name.incarnation, one)
        if _precedence(one) < _precedence(before):
            firsts[name.incarnation] = one
    return [one for one in chosen if one.refused or _goes_with(one, firsts)]


def _goes_with(one: Candidate, firsts: Mapping[int, Candidate]) -> bool:
    name = one.file.name
    first = firsts.get(name.incarnation) if name is not None else None
    if first is None:
        return True
    return stream_of(one.file) == stream_of(first.file) and bool(one.key_id) == bool(first.key_id)


def _precedence(one: Candidate) -> tuple[bool, datetime]:
    return not one.key_id, one.file.modified or _LATE


def plan_rows(
    spool: "Spool",
    chosen: Sequence[Candidate],
    cuts: Mapping[SlotFile, Cuts],
    known: Mapping[int, Standing],
    rules: Sequence[str],
) -> Iterator[PlannedSegment]:
    """Yield what a plan says of segments.

    Parameters
    ----------
    cuts, known
        What earlier plans took in of their slot files, and of the processes that recorded them.
    rules
        Prefixes that the plan has a rule for, in its order.
    """
    places = {prefix: place for place, prefix in enumerate(rules)}
    for one in chosen:
        item = one.file
        standing = known.get(item.name.incarnation) if item.name else None
        refused = one.refused or _against(one, standing)
        earlier = cuts.get(slot_file_of(item)) if item.name and not refused else None
        yield {
            "path": item.path,
            "others": [other.path for other in one.files[1:]],
            "table": item.table,
            "bytes": item.size_bytes,
            "rows": item.name.rows if item.name else 0,
            "sha256": item.sha256,
            "seen": earlier.slots if earlier else "",
            "earlier": _places(spool, earlier),
            "taken": False,
            "refused": refused,
            "rule": places.get(one.prefix, -1) if one.prefix is not None else -1,
            "sign": standing is not None and standing.signed,
        }


def _places(spool: "Spool", earlier: Cuts | None) -> list[EarlierCut]:
    """Return where segments of a slot file lie that were taken in; the table that tells is no word to leave a spool."""
    places = earlier.places if earlier else ()
    return [
        {"path": path, "sha256": sha256, "signed": signed}
        for path, sha256, signed in places
        if spool.below(path) != path and ".." not in path.split("/")
    ]


def _against(one: Candidate, standing: Standing | None) -> str:
    """Return what the process that a segment names has to say against it; empty if nothing."""
    if standing is None:
        return ""
    if stream_of(one.file) not in standing.streams:
        return OTHERS_INCARNATION
    return NOT_ENCRYPTED if standing.encrypted and not one.key_id else ""
