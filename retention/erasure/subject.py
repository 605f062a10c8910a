"""Whose data are to be erased, a person's or a run's: which rows go, and which get pseudonyms in the place of names."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.ingest.ingestion_index import ERASED, SlotFile
from ranklake.lake.plans.action_plan import change_rows, remove_rows
from ranklake.lake.tables.live_files import FILE_SCHEMA, files
from ranklake.lake.tables.order import digest_text, key_columns, keys_digest
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.tables import latest, refuse_unfit
from ranklake.retention.erasure.contents import LEFT_WORDS, has_text, rows_holding
from ranklake.retention.erasure.needles import LEAST, WORDS, Needles, needles
from ranklake.retention.erasure.needles import NAMES as RUN_NAMES
from ranklake.retention.erasure.search import ARCHIVES, COPIED, COPIES, FOLDER, FileMatches, each, opened_by_others
from ranklake.retention.policies.model import KEPT
from ranklake.retention.proposals.erasures import NAME_COLUMNS, NAMED, NAMES, ROWS, Item
from ranklake.retention.proposals.identities import lake_identity
from ranklake.retention.subjects.keys import RunSubject, normalized_name

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables
    from ranklake.lake.tables.live_files import DataFile
    from ranklake.retention.subjects.keys import SubjectName

_COST: Final = 2**14
"""Of scrypt: some 30 ms a try."""


class ColumnError(RanklakeError):
    """A column whose values are about nobody."""


class OtherSubjectError(RanklakeError):
    """Other values than the erasure was approved for."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A person, or a run.

    Attributes
    ----------
    sha256
        Slow digest of the values, under the lake's identity.
    sought
        How the values are looked for: as words.
    run
        The run, where it is one; else None.
    names
        The values of a person, in small letters.
    """

    sha256: str
    sought: Needles
    run: str | None = None
    names: tuple[str, ...] = field(default=(), repr=False)

    @property
    def pseudonym(self) -> str:
        """What takes the place of a value where its row or file has to stay."""
        return f"{ERASED}{self.sha256[:8]}"

    @property
    def keyed(self) -> "tuple[SubjectName, ...]":
        """Whose keys are the subject's."""
        return self.names if self.run is None else (RunSubject(self.run),)

    @property
    def kind(self) -> str:
        """Whether it is a person or a run."""
        return "person" if self.run is None else "run"

    @property
    def rule(self) -> str:
        """What of a file counts as the subject's, in words."""
        if self.run is not None:
            return "the name of the run, where no longer name has it as its part, in any bytes"
        words = f"values of {LEAST} characters and more, as words, in any bytes"
        if not self.sought.short.columns:
            return words
        columns = ", ".join(sorted(self.sought.short.columns))
        short = f"shorter values, as all that a column {columns} holds, or in JSON a key of that name, and nowhere else"
        return f"{words}; {short}" if self.sought.texts else short

    def marks(self, rows: pa.Table) -> pa.Array:
        """Return true where a row is the subject's: it holds a value anywhere; of a run, it is the run's."""
        if self.run is not None and "run" in rows.column_names:
            return pc.fill_null(pc.equal(rows["run"], self.run), fill_value=False).combine_chunks()
        return rows_holding(rows, self.sought)


def subject_of(lake: "Lake", values: Iterable[str], run: str | None = None, columns: Collection[str] = ()) -> Subject:
    """Return the subject that values name in a lake, or a run; see `subject_under`.

    It is looked for in what keys of other people sealed, too. Raises `ColumnError` where a column cannot be meant.
    """
    refuse_columns(lake.catalog, columns)
    made = subject_under(lake_identity(lake.store), values, run, columns)
    opened = opened_by_others(lake, made.keyed)
    return made if opened is None else replace(made, sought=replace(made.sought, opened=opened))


def refuse_columns(catalog: "Catalog", columns: Iterable[str]) -> None:
    """Raise `ColumnError` where a column is about nobody in some table that has it, or no table has it."""
    of: dict[str, set[str]] = {}
    for contract in catalog.contracts().values():
        for column in contract.columns:
            of.setdefault(column.name, set()).add(column.class_ if column.type == "string" else column.type)
    about = sorted(name for name, classes in of.items() if classes <= {"personal", "pseudonymous"})
    for name in columns:
        if name not in about:
            message = f"no column {name!r} tells of people in every table that has it"
            raise ColumnError(message, where="--column", hint=did_you_mean(name, about))


def subject_under(
    identity: str, values: Iterable[str], run: str | None = None, columns: Collection[str] = ()
) -> Subject:
    """Return the subject that values name, or a run, under a lake's identity.

    Values that are too short to be words count where they are all that `columns` hold, and are part of the digest
    together with those. Raises `ranklake.retention.erasure.needles.NeedleError` where they would be found everywhere.
    """
    given = [run] if run is not None else list(values)
    sought = needles(given, within=RUN_NAMES if run is not None else WORDS, columns=() if run is not None else columns)
    names = sorted({normalized_name(value) for value in given if value.strip()})
    where = [f"\0in {name}" for name in sorted(sought.short.columns)]
    text = "\n".join(["person" if run is None else "run", *names, *where])
    digest = hashlib.scrypt(text.encode(), salt=identity.encode(), n=_COST, r=8, p=1, dklen=32)
    return Subject(digest.hex(), sought, run, () if run is not None else tuple(names))


@dataclass(frozen=True, slots=True)
class Reach:
    """Where a subject is looked for, and erased.

    Attributes
    ----------
    spool
        None where there is none.
    folders
        Local ones: a report's site, Prefect's home.
    """

    lake: "Lake"
    spool: "Spool | None" = None
    folders: tuple[Path, ...] = ()

    def each(self, subject: "Subject", progress: "Progress | None" = None) -> Iterator[FileMatches]:
        """Yield every file, with what is found of a subject in it."""
        yield from each(self.lake, self.spool, subject.sought, self.folders, progress=progress)

    def spooled(self, files: Iterable[FileMatches]) -> list[str]:
        """Return the paths of segments and packs in the spool in which something was found."""
        top = "\0" if self.spool is None else f"{self.spool.root}/"
        now = (file.source for file in files if file.counts and file.source.version is None)
        hit = [source.uri for source in now if not source.is_folder]
        return [path for path in hit if path.startswith(top) and "/segments/" in path]


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


def why_it_stays(catalog: "Catalog", subject: "Subject", matches: FileMatches) -> str:
    """Return why a file in which a subject is found is not touched; empty if it is."""
    if matches.source.place == COPIED:
        return "" if subject.run is None else "bytes of an artifact, which goes with the last run that refers to it"
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
    `ranklake.lake.tables.live_files.DamagedFileError`.
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


def rewrite_partition(lake: "Lake", subject: "Subject", dated: DatedRows, number: int) -> "list[DataFile]":
    """Write the files of a partition without the rows that go, or with pseudonyms; commit nothing.

    Raises `ranklake.lake.tables.live_files.DamagedFileError`.
    """
    contract = lake.contract(dated.item.table or "")
    if dated.item.place == NAMES:
        return [
            file
            for _, rows in read_some(lake.tables, contract, dated.files, verify=True)
            for file in append_files(lake.store, contract, with_pseudonyms(rows, subject), number)
        ]
    texts = text_columns(contract)
    taken = remove_rows(lake.tables, contract, number, dated.files, lambda rows: subject.marks(rows.select(texts)))
    return [file for _, added, _ in taken for file in added]


def with_pseudonyms(rows: pa.Table, subject: "Subject") -> pa.Table:
    """Return rows of ``segments`` with pseudonyms in the place of names."""
    for name in NAME_COLUMNS:
        values = rows[name].to_pylist()
        changed = [None if text is None else subject.sought.replace(text, subject.pseudonym) for text in values]
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
    for at, column in enumerate(plain.schema):
        if pa.types.is_dictionary(column.type):
            plain = plain.set_column(at, column.name, plain[column.name].cast(column.type.value_type))
    return subject.marks(plain)
