"""Keys of a subject: what they sealed stays where it is, and says nothing any more once they are forgotten.

    values ─▶ has the key store keys of them? ─▶ is a legal hold on what they sealed?
        ─▶ mark in the lake, gone from all places

Neither the register nor a certificate says which keys went, or how many rows they sealed: whoever guesses the person
could tell by that which rows were theirs.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Final

from ranklake.retention.erasure.archived import hits, kept_hits
from ranklake.retention.erasure.held import refuse_held
from ranklake.retention.erasure.needles import WORDS, needles
from ranklake.retention.erasure.rows import subject_rows
from ranklake.retention.erasure.search import Trace
from ranklake.retention.holds.holds import holds_of
from ranklake.retention.proposals.erasures import FILES, Item
from ranklake.retention.subjects.known import known_columns
from ranklake.retention.subjects.store import KeyStore, has_keys

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake
    from ranklake.retention.erasure.subject import Reach, Subject

PLACE: Final = "keys of subjects"


def key_store(lake: "Lake") -> KeyStore | None:
    """Return the keys of a lake's subjects; None where none are configured, and no column was ever stored under keys.

    Raises `ranklake.retention.subjects.store.SubjectKeysError` where some were, and the keys are not available.
    """
    return KeyStore(lake) if has_keys(lake) else None


def key_items(lake: "Lake", subject: "Subject") -> list[Item]:
    """Return what of keys goes, as items: one for each table with columns under keys; none where there is no key."""
    store = key_store(lake)
    if store is None or not store.left(subject.keyed):
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
    """Raise `ranklake.retention.erasure.held.HeldError` where a hold is about rows that a subject's keys sealed."""
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
    refuse_held(lake, sealed, rows, (), list(hits(lake.tables, keys)), list(kept_hits(lake.tables, keys)), today)


def forget_keys(lake: "Lake", subject: "Subject") -> int:
    """Forget the keys of a subject in every place; return how many places had some. Again changes nothing."""
    store = key_store(lake)
    if store is None:
        return 0
    places = len(store.left(subject.keyed))
    store.forget(subject.keyed)
    return places


def key_traces(lake: "Lake", values: Iterable[str]) -> list[Trace]:
    """Return where keys of some people are, as a search tells where values are."""
    store = key_store(lake)
    places = [] if store is None else store.left(list(values))
    return [Trace(PLACE, "what their keys sealed can be read", 1, 1, (uri,)) for uri in places]


def keys_left(lake: "Lake", subject: "Subject") -> list[str]:
    """Return the places that have keys of a subject."""
    store = key_store(lake)
    return [] if store is None else store.left(subject.keyed)
