"""Disowned segments and streams, from the table ``disowned``: what their footers count is ignored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.ingestion_index import Stream
from ranklake.lake.tables.read import read
from ranklake.segments.segment import STREAM_NAME

if TYPE_CHECKING:
    from ranklake.lake.store.tables import Tables

TABLE: Final = "disowned"
DISOWN: Final = "disown"
"""Action of the audit row that is written before a claim is disowned; the row's subject is the claim."""
COLUMNS: Final = ("table", "run", "attempt", "rank", "incarnation", "segment")
_HOW: Final = "name it like steps/r1~a0~r00000~0123456789abcdef~000002, or without table or segment for more"


class NotAClaimError(RanklakeError):
    """A text that names neither a segment nor a stream."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A stream or one of its slot files, in one table or in all.

    Attributes
    ----------
    table, segment
        None for all tables or all segments.
    stream
        Run, attempt, rank, incarnation.
    """

    table: str | None
    stream: Stream
    segment: int | None = None

    def __str__(self) -> str:
        run, attempt, rank, incarnation = self.stream
        text = f"{run}~a{attempt}~r{rank:05d}~{incarnation:016x}"
        text = f"{self.table}/{text}" if self.table else text
        return text if self.segment is None else f"{text}~{self.segment:06d}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a segment's path or name, as in the spool, or the part of it that names a stream.

        Raises `NotAClaimError`.
        """
        folders, _, name = text.rpartition("/")
        match = STREAM_NAME.match(name)
        if match is None:
            raise NotAClaimError("neither a segment nor a stream", where=text, hint=_HOW)
        numbers = (int(match["attempt"]), int(match["rank"]), int(match["incarnation"], 16))
        segment = None if match["segment"] is None else int(match["segment"])
        return cls(folders.rpartition("/")[2] or None, (match["run"], *numbers), segment)

    def covers(self, table: str, stream: Stream, segment: int | None) -> bool:
        """Whether the claim includes a segment of a stream; a `segment` of None is the whole stream."""
        return (
            self.stream == stream and self.table in {None, table} and (self.segment is None or self.segment == segment)
        )


def disowned_claims(tables: "Tables") -> list[Claim]:
    """Read all claims of the table ``disowned``."""
    return [claim_of(row) for row in read(tables, contract(TABLE), COLUMNS).to_pylist()]


def claim_of(row: Mapping[str, Any]) -> Claim:
    """Return the claim that a row of the table ``disowned`` names; the row has `COLUMNS`."""
    return Claim(row["table"], (row["run"], row["attempt"], row["rank"], row["incarnation"]), row["segment"])
