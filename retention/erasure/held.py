"""Legal holds over a subject's rows: where there is one, nothing of the subject is erased."""

from collections.abc import Iterable
from datetime import date
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.tables.read import read_some
from ranklake.retention.erasure.archived import Hit, held_in, held_rows
from ranklake.retention.erasure.rows import DatedRows, text_columns
from ranklake.retention.holds.hold import Hold
from ranklake.retention.holds.holds import holds_of
from ranklake.retention.policies.order import Level
from ranklake.retention.policies.parts import Parts, RunFacts, run_facts
from ranklake.retention.proposals.erasures import NAMES, Item
from ranklake.retention.proposals.kept import KeptFile

if TYPE_CHECKING:
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake
    from ranklake.retention.erasure.subject import Subject


class HeldError(RanklakeError):
    """The subject's data are under a legal hold. Nothing was changed."""


def refuse_held(
    lake: "Lake",
    subject: "Subject",
    rows: Iterable[DatedRows],
    raw: Iterable[Item],
    archived: Iterable[Hit],
    kept: Iterable[KeptFile],
    today: date,
) -> None:
    """Raise `HeldError` where a hold is about rows of the subject, or about any rows of a table whose raw bytes go.

    What a hold is about is evidence, and so are its copies, logs and names: so nothing of the subject goes at all.
    """
    holds = holds_of(lake, today)
    if not holds:
        return
    facts = run_facts(lake.tables, [one.rule for one in holds])
    for hold in holds:
        held = sum(_rows_on_hold(lake, subject, one, hold, facts) for one in rows if one.item.place != NAMES)
        held += sum(held_rows(lake, subject, one, hold, facts) for one in archived)
        held += sum(held_in(lake, subject, one, hold, facts) for one in kept)
        held += sum(_is_about(lake.catalog, hold, item) for item in raw)
        if held:
            message = f"the legal hold {hold.name} is about {held:,} rows or files of this subject until {hold.until}"
            raise HeldError(message, hint="a hold goes before every erasure; see 'ranklake retain holds'")


def _rows_on_hold(lake: "Lake", subject: "Subject", dated: DatedRows, hold: Hold, facts: RunFacts) -> int:
    contract, day = lake.contract(dated.item.table or ""), dated.item.partition_date
    if day is None or not hold.covers(day) or not hold.rule.may_match(contract):
        return 0
    parts = Parts(lake, contract, (), (hold.rule,), facts)
    if not parts.columns:
        return dated.item.rows if parts.of_table().level is Level.HOLD else 0
    texts = text_columns(contract)
    count = 0
    for _, rows in read_some(lake.tables, contract, dated.files, list(dict.fromkeys([*texts, *parts.columns]))):
        mine = rows.filter(subject.marks(rows.select(texts)))
        count += int(pc.sum(parts.mask(mine, lambda values: parts.of(values).level is Level.HOLD)).as_py() or 0)
    return count


def _is_about(catalog: "Catalog", hold: Hold, item: Item) -> bool:
    known = catalog.contracts().get(item.table or "")
    return known is None or hold.rule.may_match(known)
