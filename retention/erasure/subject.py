"""The subject of an erasure, a person or a run: finds its rows, removes them, and replaces names by pseudonyms."""

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
from ranklake.retention.erasure.needles import NAMES as RUN_NAMES
from ranklake.retention.erasure.needles import SHORTEST_WORD, WORDS, Needles, make_needles
from ranklake.retention.erasure.search import ARCHIVES, COPIED, COPIES, FOLDER, FileMatches, make_unsealer, search_files
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
"""Cost parameter of scrypt: about 30 ms per guess."""


class ColumnError(RanklakeError):
    """A column does not contain values about people in every table."""


class OtherSubjectError(RanklakeError):
    """The given values are not those of the approved erasure."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A person, or a run.

    Attributes
    ----------
    sha256
        Slow digest of the values, with the lake's identity as salt.
    needles
        Search patterns for the values as words.
    run
        Name of the run; None for a person.
    names
        Normalized values of a person.
    """

    sha256: str
    needles: Needles
    run: str | None = None
    names: tuple[str, ...] = field(default=(), repr=False)

    @property
    def pseudonym(self) -> str:
        """Replacement for a value whose row or file has to stay."""
        return f"{ERASED}{self.sha256[:8]}"

    @property
    def keyed(self) -> "tuple[SubjectName, ...]":
        """Names under which the subject's keys are stored."""
        return self.names if self.run is None else (RunSubject(self.run),)

    @property
    def kind(self) -> str:
        """``person`` or ``run``."""
        return "person" if self.run is None else "run"

    @property
    def rule(self) -> str:
        """Description of what counts as the subject's in a file."""
        if self.run is not None:
            return "the name of the run, where no longer name has it as its part, in any bytes"
        words = f"values of {SHORTEST_WORD} characters and more, as words, in any bytes"
        if not self.needles.short.columns:
            return words
        columns = ", ".join(sorted(self.needles.short.columns))
        short = f"shorter values, as all that a column {columns} holds, or in JSON a key of that name, and nowhere else"
        return f"{words}; {short}" if self.needles.texts else short

    def marks(self, rows: pa.Table) -> pa.Array:
        """Return a Boolean for each row: whether it is of the run, or contains a value of the person."""
        if self.run is not None and "run" in rows.column_names:
            return pc.fill_null(pc.equal(rows["run"], self.run), fill_value=False).combine_chunks()
        return rows_holding(rows, self.needles)


def subject_of(lake: "Lake", values: Iterable[str], run: str | None = None, columns: Collection[str] = ()) -> Subject:
    """Return the subject in a lake: a person by values, or a run; see `subject_under`.

    Its search patterns also match in texts that are sealed under keys of other people. Raises `ColumnError`.
    """
    refuse_columns(lake.catalog, columns)
    subject = subject_under(lake_identity(lake.store), values, run, columns)
    unseal = make_unsealer(lake, subject.keyed)
    return subject if unseal is None else replace(subject, needles=replace(subject.needles, unseal=unseal))


def refuse_columns(catalog: "Catalog", columns: Iterable[str]) -> None:
    """Raise `ColumnError` unless each column is text about people in every table that has it."""
    classes_by_name: dict[str, set[str]] = {}
    for contract in catalog.contracts().values():
        for column in contract.columns:
            class_ = column.class_ if column.type == "string" else column.type
            classes_by_name.setdefault(column.name, set()).add(class_)
    allowed = sorted(name for name, classes in classes_by_name.items() if classes <= {"personal", "pseudonymous"})
    for name in columns:
        if name not in allowed:
            message = f"no column {name!r} tells of people in every table that has it"
            raise ColumnError(message, where="--column", hint=did_you_mean(name, allowed))


def subject_under(
    identity: str, values: Iterable[str], run: str | None = None, columns: Collection[str] = ()
) -> Subject:
    """Return the subject for a lake's identity: a person by values, or a run.

    Values that are too short to search for as words count only if they are the whole content of one of `columns`.
    These columns are then part of the digest. Raises `ranklake.retention.erasure.needles.NeedleError` if such values
    are given without columns.
    """
    texts = [run] if run is not None else list(values)
    needles = make_needles(
        texts, word_letters=RUN_NAMES if run is not None else WORDS, columns=() if run is not None else columns
    )
    names = sorted({normalized_name(value) for value in texts if value.strip()})
    where = [f"\0in {name}" for name in sorted(needles.short.columns)]
    text = "\n".join(["person" if run is None else "run", *names, *where])
    digest = hashlib.scrypt(text.encode(), salt=identity.encode(), n=_COST, r=8, p=1, dklen=32)
    return Subject(digest.hex(), needles, run, () if run is not None else tuple(names))


@dataclass(frozen=True, slots=True)
class Reach:
    """Where to search for a subject and erase it: a lake, its spool, and folders.

    Attributes
    ----------
    spool
        The spool; None if there is none.
    folders
        Local folders, such as a report's site or Prefect's home.
    """

    lake: "Lake"
    spool: "Spool | None" = None
    folders: tuple[Path, ...] = ()

    def search(self, subject: "Subject", progress: "Progress | None" = None) -> Iterator[FileMatches]:
        """Yield every file with the matches of a subject in it."""
        yield from search_files(self.lake, self.spool, subject.needles, self.folders, progress=progress)

    def spooled(self, files: Iterable[FileMatches]) -> list[str]:
        """Return the paths of the segments and packs in the spool that have matches."""
        if self.spool is None:
            return []
        sources = (file.source for file in files if file.counts and file.source.version is None)
        paths = [source.uri for source in sources if not source.is_folder]
        return [path for path in paths if path.startswith(f"{self.spool.root}/") and "/segments/" in path]


@dataclass(frozen=True, slots=True)
class DatedRows:
    """Rows of a partition that are erased, or whose names become pseudonyms.

    Attributes
    ----------
    files, live
        The files with these rows, and all files of the partition: rows of `ranklake.lake.tables.live_files.files`.
    slot_files
        The slot files in which they were recorded: table, incarnation, segment.
    """

    item: Item
    files: pa.Table
    live: pa.Table
    slot_files: frozenset[SlotFile] = frozenset()


def is_accounting_table(contract: "Contract") -> bool:
    """Return whether rows of a table are always kept, so that an erasure does not remove them."""
    return contract.retention in KEPT


def stay_reason(catalog: "Catalog", subject: "Subject", matches: FileMatches) -> str:
    """Return why a file with matches is left as it is; empty if the erasure changes it."""
    if matches.source.place == COPIED:
        return "" if subject.run is None else "bytes of an artifact, which goes with the last run that refers to it"
    top, _, rest = matches.source.path.partition("/")
    if matches.source.place.startswith((FOLDER, COPIES, ARCHIVES, "segments in", "records of imports")):
        return ""
    table = rest.partition("/")[0]
    contract = catalog.contracts().get(table)
    if (
        top == "tables"
        and contract is not None
        and is_accounting_table(contract)
        and table != NAMED
        and "/_delta_log/" not in f"/{rest}"
    ):
        return "the books, which are kept"
    return "operators' own words" if top == "contracts" else ""


def subject_rows(tables: "Tables", subject: "Subject", contract: "Contract") -> Iterator[DatedRows]:
    """Yield the subject's rows of a table, by date. Of tables that are always kept, only names in ``segments``."""
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
            matches = rows.filter(subject.marks(rows.select(texts)))
            if matches.num_rows:
                counts[path] = matches.num_rows
                total += keys_digest(matches, keys)
                slot_files |= _slot_files(contract, matches)
        if counts:
            digest = None if contract.kind == "derived" else digest_text(total)
            place = NAMES if named else ROWS
            item = Item(place, contract.table, day, None, sum(counts.values()), len(counts), digest)
            matching_files = partition.filter(pc.is_in(partition["path"], value_set=pa.array(list(counts))))
            yield DatedRows(item, matching_files, partition, frozenset(slot_files))


def files_with_left_words(lake: "Lake", files_found: "Iterable[FileMatches]") -> dict[str, list[str]]:
    """Return the paths of live files, by table, whose Parquet dictionaries contain a value that no row has.

    Tables that are always kept are left out.
    """
    paths: dict[str, list[str]] = {}
    for match in files_found:
        top, _, rest = match.source.path.partition("/")
        table, _, path = rest.partition("/")
        is_own = top == "tables" and match.source.uri == lake.path(match.source.path)
        if is_own and match.source.version is None and any(where.startswith(LEFT_WORDS) for where in match.counts):
            contract = lake.contracts().get(table)
            if contract is not None and (table == NAMED or not is_accounting_table(contract)):
                paths.setdefault(table, []).append(path)
    return paths


def rewrite_files(
    lake: "Lake", table: str, paths: Sequence[str], number: int
) -> "tuple[pa.Table, pa.Table, list[DataFile]]":
    """Write live files of a table again with the same rows, so that their dictionaries have only values of rows.

    Commits nothing. Returns the files to drop, all live files of their dates, and the new files. Raises
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
    """Write the files of a partition without the subject's rows, or with pseudonyms; return the new files.

    Commits nothing. Raises `ranklake.lake.tables.live_files.DamagedFileError`.
    """
    contract = lake.contract(dated.item.table or "")
    if dated.item.place == NAMES:
        return [
            file
            for _, rows in read_some(lake.tables, contract, dated.files, verify=True)
            for file in append_files(lake.store, contract, with_pseudonyms(rows, subject), number)
        ]
    texts = text_columns(contract)
    changes = remove_rows(lake.tables, contract, number, dated.files, lambda rows: subject.marks(rows.select(texts)))
    return [file for _, added, _ in changes for file in added]


def with_pseudonyms(rows: pa.Table, subject: "Subject") -> pa.Table:
    """Return rows of ``segments`` with pseudonyms instead of the subject's names."""
    for name in NAME_COLUMNS:
        values = rows[name].to_pylist()
        changed = [None if text is None else subject.needles.replace(text, subject.pseudonym) for text in values]
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, rows.schema.field(index), pa.array(changed, rows.schema.field(index).type))
    return rows


def text_columns(contract: "Contract") -> list[str]:
    """Return the columns of a table that can contain text."""
    return [field.name for field in arrow_schema(contract) if has_text(field.type)]


def marks_in(catalog: "Catalog", subject: "Subject", table: str, rows: pa.Table) -> pa.Array:
    """Return a Boolean for each row of a table: whether it is the subject's.

    The rows may lack columns of the table, or have dictionary encoded columns.
    """
    texts = [name for name in text_columns(catalog.contract(table)) if name in rows.column_names]
    plain = rows.select(texts)
    for index, column in enumerate(plain.schema):
        if pa.types.is_dictionary(column.type):
            plain = plain.set_column(index, column.name, plain[column.name].cast(column.type.value_type))
    return subject.marks(plain)
