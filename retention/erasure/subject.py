"""Whose data are to be erased: the values that name a person, or a run."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.governance.statements import lake_identity
from ranklake.lake.ingest.ingestion_index import ERASED
from ranklake.lake.subjects.whose import RunSubject, folded
from ranklake.retention.traces.marks import rows_holding
from ranklake.retention.traces.needles import Needles, needles
from ranklake.retention.traces.sealed import opened_by_others
from ranklake.retention.traces.words import NAMES, WORDS

if TYPE_CHECKING:
    from ranklake.lake.storage.store import Lake
    from ranklake.lake.subjects.whose import Whose

_COST: Final = 2**14
"""Of scrypt: some 30 ms a try."""


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
    def keyed(self) -> "tuple[Whose, ...]":
        """Whose keys are the subject's."""
        return self.names if self.run is None else (RunSubject(self.run),)

    @property
    def said(self) -> str:
        """Whether it is a person or a run."""
        return "person" if self.run is None else "run"

    def marks(self, rows: pa.Table) -> pa.Array:
        """Return true where a row is the subject's: it holds a value anywhere; of a run, it is the run's."""
        if self.run is not None and "run" in rows.column_names:
            return pc.fill_null(pc.equal(rows["run"], self.run), fill_value=False).combine_chunks()
        return rows_holding(rows, self.sought)


def subject_of(lake: "Lake", values: Iterable[str], run: str | None = None) -> Subject:
    """Return the subject that values name in a lake, or a run; see `subject_under`.

    It is looked for in what keys of other people sealed, too.
    """
    made = subject_under(lake_identity(lake), values, run)
    opened = opened_by_others(lake, made.keyed)
    return made if opened is None else replace(made, sought=replace(made.sought, opened=opened))


def subject_under(identity: str, values: Iterable[str], run: str | None = None) -> Subject:
    """Return the subject that values name, or a run, under a lake's identity.

    Raises `ranklake.retention.traces.needles.NeedleError` where they would be found everywhere.
    """
    given = [run] if run is not None else list(values)
    sought = needles(given, within=NAMES if run is not None else WORDS)
    said = sorted({folded(value) for value in given if value.strip()})
    text = "\n".join(["person" if run is None else "run", *said])
    digest = hashlib.scrypt(text.encode(), salt=identity.encode(), n=_COST, r=8, p=1, dklen=32)
    return Subject(digest.hex(), sought, run, () if run is not None else tuple(said))
