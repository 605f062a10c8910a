"""Proposes an erasure: whose data go, and where they are now, as items that somebody answers for.

values ─▶ rows of every table, and every file that holds one ─▶ held? waiting in the spool? ─▶ items ─▶ register

What keys of a subject sealed stays where it is, and says nothing any more once they are forgotten. Neither the register
nor a certificate says which keys went, or how many rows they sealed: whoever guesses the person could tell by that
which rows were theirs.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.lake.plans.driver import finish
from ranklake.lake.plans.kinds import ERASURE
from ranklake.lake.plans.workers import InProcess
from ranklake.retention.erasure.archived import kept_hits, matching_archives, refuse_held
from ranklake.retention.erasure.contents import ContentMatch, look
from ranklake.retention.erasure.needles import WORDS, needles
from ranklake.retention.erasure.places import as_items, refuse_waiting, slot_files
from ranklake.retention.erasure.search import FileMatches, Trace, opener
from ranklake.retention.erasure.subject import DatedRows, Reach, subject_rows, why_it_stays
from ranklake.retention.holds.holds import holds_of
from ranklake.retention.plans.due import raw_bytes
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.erasures import ERASURES, FILES, RAW, REGISTER, STAYS, SUBJECT, Erasure, Item
from ranklake.retention.proposals.identities import NOT_SIGNING, Signing
from ranklake.retention.subjects.keys import known_columns
from ranklake.retention.subjects.store import KeyStore, has_keys

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake
    from ranklake.retention.erasure.subject import Subject

PLACE: Final = "keys of subjects"


def key_store(lake: "Lake") -> KeyStore | None:
    """Return the keys of a lake's subjects; None where none are configured, and no column was ever stored under keys.

    Raises `ranklake.retention.subjects.keys.SubjectKeysError` where some were, and the keys are not available.
    """
    return KeyStore(lake) if has_keys(lake) else None


def key_items(lake: "Lake", subject: "Subject") -> list[Item]:
    """Return the keys that go, as items: one for each table with columns under keys; none where there is no key."""
    store = key_store(lake)
    if store is None or not store.places_with_keys(subject.keyed):
        return []
    columns: dict[str, list[str]] = {}
    places = len(store.places)
    if not known_columns(lake.store):  # whoever took the list of them away left the keys
        return [Item(FILES, about=PLACE, files=places)]
    for name in sorted(known_columns(lake.store)):
        table, _, column = name.partition(".")
        columns.setdefault(table, []).append(column)
    return [Item(FILES, table, about=f"{PLACE}: {', '.join(some)}", files=places) for table, some in columns.items()]


def refuse_held_keys(reach: "Reach", subject: "Subject", today: date) -> None:
    """Raise `ranklake.retention.erasure.archived.HeldError` where a hold is about rows that a subject's keys sealed."""
    lake, store = reach.lake, key_store(reach.lake)
    if store is None or not holds_of(lake, today):
        return
    ids = [key.id for one in subject.keyed if (key := store.find(one)) is not None]
    if not ids:
        return
    sealed = replace(subject, sought=needles([f"s-{one}" for one in ids], within=WORDS), run=None)
    rows = [
        subject_row
        for contract in lake.contracts().values()
        for subject_row in subject_rows(lake.tables, sealed, contract)
    ]
    keys = [one for one in reach.each(sealed) if one.counts]
    refuse_held(
        lake, sealed, rows, (), list(matching_archives(lake.tables, keys)), list(kept_hits(lake.tables, keys)), today
    )


def forget_keys(lake: "Lake", subject: "Subject") -> int:
    """Forget the keys of a subject in every place; return how many places had some. A second call changes nothing."""
    store = key_store(lake)
    if store is None:
        return 0
    places = len(store.places_with_keys(subject.keyed))
    store.forget(subject.keyed)
    return places


def key_traces(lake: "Lake", values: Iterable[str]) -> list[Trace]:
    """Return where keys of some people are, as a search tells where values are."""
    store = key_store(lake)
    places = [] if store is None else store.places_with_keys(list(values))
    return [Trace(PLACE, "what their keys sealed can be read", 1, 1, (uri,)) for uri in places]


def keys_left(lake: "Lake", subject: "Subject") -> list[str]:
    """Return the places that have keys of a subject."""
    store = key_store(lake)
    return [] if store is None else store.places_with_keys(subject.keyed)


class NothingToEraseError(RanklakeError):
    """The subject is nowhere."""

    exit_code = 1

    def __init__(self) -> None:
        hint = (
            "check the spelling: a value that is part of a longer word does not count; 'ranklake erase find' shows all"
        )
        super().__init__("nothing to erase: the subject is in no file", hint=hint)
        self.exit_code = 1


@dataclass(frozen=True, slots=True)
class SubjectMatches:
    """Where a subject is.

    Attributes
    ----------
    rows
        Rows of partitions, and names in ``segments``.
    files
        Every file of lake, spool and folders that holds something, or could not be looked into.
    raw
        Raw bytes in quarantine, as items.
    """

    rows: tuple[DatedRows, ...]
    files: tuple[FileMatches, ...]
    raw: tuple[Item, ...]


def find(reach: Reach, subject: "Subject", progress: "Progress | None" = None) -> SubjectMatches:
    """Look where a subject is, now. Raises what the stores raise."""
    lake = reach.lake
    rows = [
        subject_row
        for contract in lake.contracts().values()
        for subject_row in subject_rows(lake.tables, subject, contract)
    ]
    files = tuple(one for one in reach.each(subject, progress) if one.counts or one.unsearched)
    hit = [file.source.path for file in files if file.counts]
    digests = {path.rpartition("/")[2] for path in hit if path.startswith("quarantine/")}
    raw = []
    for table, day, file_rows in raw_bytes(lake) if digests else ():
        raw += [Item(RAW, table, day, sha256, 0, 1) for sha256 in file_rows["path"].to_pylist() if sha256 in digests]
    return SubjectMatches(tuple(rows), files, tuple(raw))


def make_plan(
    reach: Reach,
    subject: "Subject",
    *,
    today: date | None = None,
    progress: "Progress | None" = None,
) -> Erasure:
    """Propose to erase a subject, and write that down; equal items are one proposal.

    Raises
    ------
    NothingToEraseError, HeldError, NotIngestedError
        Nothing was written.
    """
    lake, spool = reach.lake, reach.spool
    finish(lake, ERASURE, InProcess())  # what an application that died left half done
    matches = find(reach, subject, progress)
    refuse_unfit(reach, subject, matches, today)
    recorded = {slot_file for some in matches.rows for slot_file in some.slot_files}
    if spool is not None:
        recorded |= set(slot_files(spool, reach.spooled(matches.files), member_check(lake, subject)))
    items = [
        Item(SUBJECT, about=_subject_description(subject), content_sha256=subject.sha256),
        *plan_items(lake.catalog, matches),
        *as_items(recorded),
        *_count_files(lake.catalog, subject, matches.files),
        *key_items(lake, subject),
    ]
    if len(items) == 1:
        raise NothingToEraseError
    return REGISTER.add(lake.tables, items)


def _subject_description(subject: "Subject") -> str:
    return f"{subject.kind}: {subject.rule}" if subject.sought.short.columns else subject.kind


def plan_items(catalog: "Catalog", matches: SubjectMatches) -> list[Item]:
    """Return the items of an erasure: rows and raw bytes; derived tables are one item each for all dates."""
    items: dict[tuple[str, str], Item] = {}
    others = [*matches.raw]
    for item in (some.item for some in matches.rows):
        if catalog.contract(item.table or "").kind != "derived":
            others.append(item)
            continue
        place = (item.place, item.table or "")
        known = items.get(place, Item(*place))
        items[place] = replace(known, rows=known.rows + item.rows, files=known.files + item.files)
    return [*others, *items.values()]


def propose(lake: "Lake", erasure: Erasure, by: str, signing: Signing = NOT_SIGNING) -> None:
    """Write into the trail who proposed an erasure, and so may not approve it."""
    lifecycle.propose(lake, ERASURES, erasure.name, by, signing)


def refuse_unfit(reach: Reach, subject: "Subject", matches: SubjectMatches, today: date | None) -> None:
    """Raise `HeldError` or `NotIngestedError` where nothing may be erased (yet)."""
    archived, kept = (
        list(matching_archives(reach.lake.tables, matches.files)),
        list(kept_hits(reach.lake.tables, matches.files)),
    )
    today = today or datetime.now(UTC).date()
    refuse_held(reach.lake, subject, matches.rows, matches.raw, archived, kept, today)
    refuse_held_keys(reach, subject, today)
    refuse_waiting(reach.lake.store, reach.spool, reach.spooled(matches.files))


def member_check(lake: "Lake", subject: "Subject") -> Callable[[str, bytes], bool]:
    """Return a function that tells from a pack member's name and bytes whether it is the subject's."""
    opened = opener(lake.config.encryption_key)

    def holds(name: str, raw: bytes) -> bool:
        if subject.sought.count(name.encode()):
            return True
        return any(isinstance(one, ContentMatch) for one in look(io.BytesIO(raw), name, subject.sought, opened))

    return holds


def _count_files(catalog: "Catalog", subject: "Subject", files: Iterable[FileMatches]) -> list[Item]:
    """Return how many files of each kind of place hold something, and what stays."""
    counts: Counter[tuple[str, str]] = Counter()
    for file in files:
        stays = why_it_stays(catalog, subject, file) if file.counts else ""
        if file.counts and not file.source.is_folder:
            counts[(STAYS if stays else FILES, file.source.place + (f": {stays}" if stays else ""))] += 1
        for why in file.unsearched:
            counts[STAYS, f"{file.source.place}: {why}"] += 1
    return [
        Item(place, about=subject.sought.mask_name(about), files=count)
        for (place, about), count in sorted(counts.items())
    ]
