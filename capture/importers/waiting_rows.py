"""Waiting rows: what was read of a foreign file for one table, and is not sealed yet."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ranklake.capture.common.arrays import Array, numbers, texts
from ranklake.capture.importers.typed_rows import RANK
from ranklake.capture.sealing.rows import Columns, Rows
from ranklake.redaction.redact import redact
from ranklake.segments.segment import REFUSED, REFUSED_ROW

_TEXT_CHARACTERS: Final = 4_096


@dataclass
class WaitingRows:
    """Rows of one table that wait to be sealed: of one rank, or of all.

    Attributes
    ----------
    times, rows, ranks
        Rows that were given one by one.
    batches
        Those that were given as columns: times, columns, ranks. Only one of the two waits at a time.
    refused
        Reason, foreign row and rank of what could not be converted.
    held
        How many wait, without those.
    """

    times: list[int] = field(default_factory=list)
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    batches: list[tuple[Array, Columns, Array]] = field(default_factory=list)
    refused: list[tuple[str, str, int]] = field(default_factory=list)
    held: int = 0

    def refuse(self, reason: str, file: str, line: int | None, text: str, rank: int) -> None:
        """Keep what could not be converted; credentials in it are redacted, and it is cut at `_TEXT_CHARACTERS`."""
        place = {"file": file} | ({} if line is None else {"line": line})
        whole = json.dumps(place | {"text": redact(text[:_TEXT_CHARACTERS])}, ensure_ascii=False)
        self.refused.append((f"import: {reason}", whole, rank))

    def take_rows(self) -> tuple[list[int], list[Mapping[str, Any]], list[int]]:
        """Return times, rows and ranks of those that were given one by one; they wait no longer."""
        taken = self.times, self.rows, self.ranks
        self.times, self.rows, self.ranks = [], [], []
        return taken

    def take_refused(self) -> Rows:
        """Return what could not be converted, for quarantine; it waits no longer."""
        reasons, wholes, ranks = zip(*self.refused, strict=True)
        self.refused = []
        zeros = np.zeros(len(reasons), np.int64)
        columns = {REFUSED: texts(reasons), REFUSED_ROW: texts(wholes), RANK: numbers(np.array(ranks), pa.int32())}
        return Rows(zeros, np.arange(len(reasons)), columns, 0)
