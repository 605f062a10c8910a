"""Whose data are to be erased: the values that name a person, or a run."""

import hashlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.ingest.ingestion_index import ERASED
from ranklake.retention.erasure.columns import rows_holding
from ranklake.retention.erasure.needles import LEAST, NAMES, WORDS, Needles, needles
from ranklake.retention.erasure.search import FileMatches, each, opened_by_others
from ranklake.retention.proposals.statements import lake_identity
from ranklake.retention.subjects.keys import RunSubject, folded

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake
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
    sought = needles(given, within=NAMES if run is not None else WORDS, columns=() if run is not None else columns)
    names = sorted({folded(value) for value in given if value.strip()})
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
