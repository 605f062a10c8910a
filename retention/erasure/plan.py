"""Proposes an erasure: finds the data of a subject and writes the places as items into the register.

values ─▶ rows of every table, and every file that contains one ─▶ on hold? not ingested yet? ─▶ items ─▶ register

Values that are sealed under the subject's keys stay in their rows; deleting the keys makes them unreadable. Neither the
register nor the certificate names these keys or counts the sealed rows. Somebody who guesses the person could otherwise
tell which rows are theirs.
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
from ranklake.retention.erasure.archived import matching_archives, matching_kept_files, refuse_held
from ranklake.retention.erasure.contents import ContentMatch, look
from ranklake.retention.erasure.needles import WORDS, make_needles
from ranklake.retention.erasure.places import as_items, refuse_waiting, slot_files
from ranklake.retention.erasure.search import FileMatches, Trace, opener
from ranklake.retention.erasure.subject import DatedRows, Reach, stay_reason, subject_rows
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
    """Return the store of subjects' keys; None if the lake never had any.

    Raises `ranklake.retention.subjects.keys.SubjectKeysError` if there were keys and they are missing now.
    """
    return KeyStore(lake) if has_keys(lake) else None


def key_items(lake: "Lake", subject: "Subject") -> list[Item]:
    """Return items for the subject's keys, one for each table with columns under keys; empty if there are no keys."""
    store = key_store(lake)
    if store is None or not store.places_with_keys(subject.keyed):
        return []
    columns: dict[str, list[str]] = {}
    places = len(store.places)
    if not known_columns(lake.store):  # somebody removed the list of columns, but not the keys
        return [Item(FILES, about=PLACE, files=places)]
    for name in sorted(known_columns(lake.store)):
        table, _, column = name.partition(".")
        columns.setdefault(table, []).append(column)
    return [Item(FILES, table, about=f"{PLACE}: {', '.join(names)}", files=places) for table, names in columns.items()]


def refuse_held_keys(reach: "Reach", subject: "Subject", today: date) -> None:
    """Raise `ranklake.retention.erasure.archived.HeldError` if a hold covers values under a subject's keys."""
    lake, store = reach.lake, key_store(reach.lake)
    if store is None or not holds_of(lake, today):
        return
    ids = [key.id for name in subject.keyed if (key := store.find(name)) is not None]
    if not ids:
        return
    sealed = replace(subject, needles=make_needles([f"s-{key_id}" for key_id in ids], word_letters=WORDS), run=None)
    rows = [
        subject_row
        for contract in lake.contracts().values()
        for subject_row in subject_rows(lake.tables, sealed, contract)
    ]
    matches = [file for file in reach.search(sealed) if file.counts]
    archived, kept = list(matching_archives(lake.tables, matches)), list(matching_kept_files(lake.tables, matches))
    refuse_held(lake, sealed, rows, (), archived, kept, today)


def forget_keys(lake: "Lake", subject: "Subject") -> int:
    """Delete the keys of a subject in every place; return how many places had some. A second call changes nothing."""
    store = key_store(lake)
    if store is None:
        return 0
    places = len(store.places_with_keys(subject.keyed))
    store.forget(subject.keyed)
    return places


def key_traces(lake: "Lake", values: Iterable[str]) -> list[Trace]:
    """Return the places with keys of these people, as traces of a search."""
    store = key_store(lake)
    places = [] if store is None else store.places_with_keys(list(values))
    return [Trace(PLACE, "what their keys sealed can be read", 1, 1, (uri,)) for uri in places]


def keys_left(lake: "Lake", subject: "Subject") -> list[str]:
    """Return the places that still have keys of a subject."""
    store = key_store(lake)
    return [] if store is None else store.places_with_keys(subject.keyed)


class NothingToEraseError(RanklakeError):
    """No file contains the subject."""

    exit_code = 1

    def __init__(self) -> None:
        hint = (
            "check the spelling: a value that is part of a longer word does not count; 'ranklake erase find' shows all"
        )
        super().__init__("nothing to erase: the subject is in no file", hint=hint)
        self.exit_code = 1


@dataclass(frozen=True, slots=True)
class SubjectMatches:
    """The places with data of a subject.

    Attributes
    ----------
    rows
        Rows of partitions, and names in ``segments``.
    files
        All files of lake, spool and folders that have matches or could not be searched.
    raw
        Raw bytes in quarantine, as items.
    """

    rows: tuple[DatedRows, ...]
    files: tuple[FileMatches, ...]
    raw: tuple[Item, ...]


def find(reach: Reach, subject: "Subject", progress: "Progress | None" = None) -> SubjectMatches:
    """Search for a subject in everything that it can be in. Raises the errors of the stores."""
    lake = reach.lake
    rows = [
        subject_row
        for contract in lake.contracts().values()
        for subject_row in subject_rows(lake.tables, subject, contract)
    ]
    files = tuple(file for file in reach.search(subject, progress) if file.counts or file.unsearched)
    paths = [file.source.path for file in files if file.counts]
    digests = {path.rpartition("/")[2] for path in paths if path.startswith("quarantine/")}
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
    """Propose to erase a subject, and write the proposal into the register. Equal items are one proposal.

    Raises
    ------
    NothingToEraseError, HeldError, NotIngestedError
        Nothing was written.
    """
    lake, spool = reach.lake, reach.spool
    finish(lake, ERASURE, InProcess())  # an application that crashed
    matches = find(reach, subject, progress)
    refuse_unfit(reach, subject, matches, today)
    recorded = {slot_file for dated in matches.rows for slot_file in dated.slot_files}
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
    return f"{subject.kind}: {subject.rule}" if subject.needles.short.columns else subject.kind


def plan_items(catalog: "Catalog", matches: SubjectMatches) -> list[Item]:
    """Return the items for rows and raw bytes. A derived table has one item for all of its dates."""
    derived: dict[tuple[str, str], Item] = {}
    items = [*matches.raw]
    for item in (dated.item for dated in matches.rows):
        if catalog.contract(item.table or "").kind != "derived":
            items.append(item)
            continue
        key = (item.place, item.table or "")
        total = derived.get(key, Item(*key))
        derived[key] = replace(total, rows=total.rows + item.rows, files=total.files + item.files)
    return [*items, *derived.values()]


def propose(lake: "Lake", erasure: Erasure, by: str, signing: Signing = NOT_SIGNING) -> None:
    """Record in the audit log who proposed an erasure and therefore may not approve it."""
    lifecycle.propose(lake, ERASURES, erasure.name, by, signing)


def refuse_unfit(reach: Reach, subject: "Subject", matches: SubjectMatches, today: date | None) -> None:
    """Raise `HeldError` or `NotIngestedError` if the subject may not be erased now."""
    archived, kept = (
        list(matching_archives(reach.lake.tables, matches.files)),
        list(matching_kept_files(reach.lake.tables, matches.files)),
    )
    today = today or datetime.now(UTC).date()
    refuse_held(reach.lake, subject, matches.rows, matches.raw, archived, kept, today)
    refuse_held_keys(reach, subject, today)
    refuse_waiting(reach.lake.store, reach.spool, reach.spooled(matches.files))


def member_check(lake: "Lake", subject: "Subject") -> Callable[[str, bytes], bool]:
    """Return a function that takes a pack member's name and bytes, and returns whether it has data of the subject."""
    decrypt = opener(lake.config.encryption_key)

    def has_subject(name: str, raw: bytes) -> bool:
        if subject.needles.count(name.encode()):
            return True
        matches = look(io.BytesIO(raw), name, subject.needles, decrypt)
        return any(isinstance(match, ContentMatch) for match in matches)

    return has_subject


def _count_files(catalog: "Catalog", subject: "Subject", files: Iterable[FileMatches]) -> list[Item]:
    """Return items with the number of files by kind of place: files to change, and files that stay with the reason."""
    counts: Counter[tuple[str, str]] = Counter()
    for file in files:
        reason = stay_reason(catalog, subject, file) if file.counts else ""
        if file.counts and not file.source.is_folder:
            counts[(STAYS if reason else FILES, file.source.place + (f": {reason}" if reason else ""))] += 1
        for problem in file.unsearched:
            counts[STAYS, f"{file.source.place}: {problem}"] += 1
    return [
        Item(place, about=subject.needles.mask_name(about), files=count)
        for (place, about), count in sorted(counts.items())
    ]
