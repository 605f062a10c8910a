"""Which rows of tables go, and which rows of ``segments`` get pseudonyms in the place of names."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.ingest.ingestion_index import SlotFile
from ranklake.lake.plans.action_plan import change_rows, take_rows_out
from ranklake.lake.tables.live_files import FILE_SCHEMA, files
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.row_keys import digest_text, key_columns, keys_digest
from ranklake.lake.tables.tables import latest, refuse_unfit
from ranklake.retention.erasure.columns import LEFT_WORDS, has_text
from ranklake.retention.erasure.roots import ARCHIVES, COPIES, FOLDER
from ranklake.retention.erasure.search import FileMatches
from ranklake.retention.policies.model import KEPT
from ranklake.retention.proposals.erasures import NAME_COLUMNS, NAMED, NAMES, ROWS, Item

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables
    from ranklake.lake.tables.live_files import DataFile
    from ranklake.retention.erasure.subject import Subject


@dataclass(frozen=True, slots=True)
class DatedRows:
    """Rows of a partition that go, or whose names do.

    Attributes
    ----------
    files, live
        Those that hold them, and all of the partition: rows of `ranklake.lake.tables.live_files.files`.
    slot_files
        In which they were recorded: table, incarnation, segment.
    """

    item: Item
    files: pa.Table
    live: pa.Table
    slot_files: frozenset[SlotFile] = frozenset()


def is_accounting_table(contract: "Contract") -> bool:
    """Return whether a table does the accounting, so that no erasure takes its rows."""
    return contract.retention in KEPT


def why_it_stays(catalog: "Catalog", matches: FileMatches) -> str:
    """Return why a file in which a subject is found is not touched; empty if it is."""
    top, _, rest = matches.source.path.partition("/")
    if matches.source.place.startswith((FOLDER, COPIES, ARCHIVES, "segments in", "records of imports")):
        return ""
    table = rest.partition("/")[0]
    known = catalog.contracts().get(table)
    if (
        top == "tables"
        and known is not None
        and is_accounting_table(known)
        and table != NAMED
        and "/_delta_log/" not in f"/{rest}"
    ):
        return "the books, which are kept"
    return "operators' own words" if top == "contracts" else ""


def subject_rows(tables: "Tables", subject: "Subject", contract: "Contract") -> Iterator[DatedRows]:
    """Yield what goes of a table, by date; of accounting tables only names in ``segments``."""
    named = contract.table == NAMED
    handle = latest(tables, contract.table)
    if handle is None or (is_accounting_table(contract) and not named):
        return
    live = files(refuse_unfit(handle, contract))
    keys = key_columns(contract, NAME_COLUMNS if named else ())
    texts = [name for name in text_columns(contract) if not named or name in NAME_COLUMNS]
    columns = list(dict.fromkeys([*texts, *keys]))
    for day in sorted(set(live["date"].to_pylist())):
        partition = live.filter(pc.equal(live["date"], pa.scalar(day, pa.date32())))
        counts: dict[str, int] = {}
        slot_files: set[SlotFile] = set()
        total = 0
        for path, rows in read_some(tables, contract, partition, columns):
            mine = rows.filter(subject.marks(rows.select(texts)))
            if mine.num_rows:
                counts[path] = mine.num_rows
                total += keys_digest(mine, keys)
                slot_files |= _slot_files(contract, mine)
        if counts:
            digest = None if contract.kind == "derived" else digest_text(total)
            place = NAMES if named else ROWS
            item = Item(place, contract.table, day, None, sum(counts.values()), len(counts), digest)
            hit = partition.filter(pc.is_in(partition["path"], value_set=pa.array(list(counts))))
            yield DatedRows(item, hit, partition, frozenset(slot_files))


def files_with_left_words(lake: "Lake", files_found: "Iterable[FileMatches]") -> dict[str, list[str]]:
    """Paths of live files, by table, whose dictionaries hold a value that no row has; none of accounting tables."""
    paths: dict[str, list[str]] = {}
    for match in files_found:
        top, _, rest = match.source.path.partition("/")
        table, _, path = rest.partition("/")
        is_own = top == "tables" and match.source.uri == lake.path(match.source.path)
        if is_own and match.source.version is None and any(where.startswith(LEFT_WORDS) for where in match.counts):
            known = lake.contracts().get(table)
            if known is not None and (table == NAMED or not is_accounting_table(known)):
                paths.setdefault(table, []).append(path)
    return paths


def written_anew(
    lake: "Lake", table: str, paths: Sequence[str], number: int
) -> "tuple[pa.Table, pa.Table, list[DataFile]]":
    """Write live files of a table again as they are, with the words of their own rows alone; commit nothing.

    Returns the files to drop, all live files of their dates, and the new ones. Raises
    `ranklake.lake.tables.integrity.DamagedFileError`.
    """
    contract, handle = lake.contract(table), latest(lake.tables, table)
    if handle is None:
        return FILE_SCHEMA.empty_table(), FILE_SCHEMA.empty_table(), []
    live = files(refuse_unfit(handle, contract))
    old = live.filter(pc.is_in(live["path"], value_set=pa.array(paths, pa.string())))
    of_dates = live.filter(pc.is_in(live["date"], value_set=old["date"].combine_chunks()))
    return old, of_dates, list(change_rows(lake.tables, contract, number, old, lambda rows: rows))


def _slot_files(contract: "Contract", rows: pa.Table) -> set[SlotFile]:
    if not contract.envelope:
        return set()
    pairs = rows.group_by(["incarnation", "segment"]).aggregate([]).to_pylist()
    return {(contract.table, row["incarnation"], row["segment"]) for row in pairs}


def rewritten(lake: "Lake", subject: "Subject", dated: DatedRows, number: int) -> "list[DataFile]":
    """Write the files of a partition without the rows that go, or with pseudonyms; commit nothing.

    Raises `ranklake.lake.tables.integrity.DamagedFileError`.
    """
    contract = lake.contract(dated.item.table or "")
    if dated.item.place == NAMES:
        return [
            file
            for _, rows in read_some(lake.tables, contract, dated.files, verify=True)
            for file in append_files(lake.store, contract, with_pseudonyms(rows, subject), number)
        ]
    texts = text_columns(contract)
    taken = take_rows_out(lake.tables, contract, number, dated.files, lambda rows: subject.marks(rows.select(texts)))
    return [file for _, added, _ in taken for file in added]


def with_pseudonyms(rows: pa.Table, subject: "Subject") -> pa.Table:
    """Return rows of ``segments`` with pseudonyms in the place of names."""
    for name in NAME_COLUMNS:
        values = rows[name].to_pylist()
        changed = [None if text is None else subject.sought.replaced(text, subject.pseudonym) for text in values]
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), pa.array(changed, rows.schema.field(at).type))
    return rows


def text_columns(contract: "Contract") -> list[str]:
    """Return the columns of a table that can hold text."""
    return [field.name for field in arrow_schema(contract) if has_text(field.type)]


def marks_in(catalog: "Catalog", subject: "Subject", table: str, rows: pa.Table) -> pa.Array:
    """Return which rows of a table are the subject's, whichever of its columns they have, and however."""
    texts = [name for name in text_columns(catalog.contract(table)) if name in rows.column_names]
    plain = rows.select(texts)
    for at, field in enumerate(plain.schema):
        if pa.types.is_dictionary(field.type):
            plain = plain.set_column(at, field.name, plain[field.name].cast(field.type.value_type))
    return subject.marks(plain)
