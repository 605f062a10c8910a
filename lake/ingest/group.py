"""The input of an ingest task, and its result."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ranklake.lake.store.lake_config import SubjectsSection
from ranklake.lake.store.limits import DEFAULT, Limits
from ranklake.lake.store.planned_segment import PlannedSegment
from ranklake.lake.store.writers import NOT_ASKED, Authenticator
from ranklake.lake.tables.data_file import DataFile

NO_SUBJECTS: Final = SubjectsSection()
PIECE_BYTES: Final = 256 * 2**20
"""Decoded rows that a task holds. With a sorted row group, the writer's pages and the libraries, a worker then stays
below 1 GiB."""


@dataclass(frozen=True, slots=True)
class Group:
    """A task: segments of one table that are compacted together.

    Attributes
    ----------
    lake_uri, spool_uri, storage
        Where to read and write.
    table
        As the spool's folder says.
    segments
        Rows of the plan.
    plan, created
        The plan's number and time; rejected rows carry them.
    store_rows, store_rejects
        False where an earlier try of the plan committed that table: then rows are counted, not written.
    authenticator
        By what their writers are known.
    piece_bytes
        Decoded rows to hold at a time.
    limits
        What one segment may ask.
    contracts
        Number of the overlay, among those that the lake keeps, by which rows are read; 0 for none.
    subjects
        Which columns are stored under keys of whom they tell, and where the keys are: references, no key.
    code
        Texts of Python in it that may be run.
    """

    lake_uri: str
    spool_uri: str
    storage: dict[str, str]
    table: str
    segments: list[PlannedSegment]
    plan: int
    created: datetime
    store_rows: bool = True
    store_rejects: bool = True
    authenticator: Authenticator = NOT_ASKED
    piece_bytes: int = PIECE_BYTES
    limits: Limits = DEFAULT
    contracts: int = 0
    subjects: SubjectsSection = NO_SUBJECTS
    code: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a task did.

    Attributes
    ----------
    files, rejects
        New data files of the table and of ``rejects``; no commit names them yet.
    outcomes
        One row of the table ``segments`` per segment, as a dict, without plan and date.
    """

    files: list[DataFile]
    rejects: list[DataFile]
    outcomes: list[dict[str, Any]]


def as_one(parts: Sequence[Compacted]) -> Compacted:
    """Return what tasks did as if it had been one."""
    files, rejects, outcomes = ([one for part in parts for one in getattr(part, name)] for name in _RESULTS)
    return Compacted(files, rejects, outcomes)


_RESULTS: Final = ("files", "rejects", "outcomes")
