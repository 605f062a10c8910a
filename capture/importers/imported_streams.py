"""Imported streams: segments of one imported run, numbered by stream and table as a recorder numbers its own."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ranklake.capture.importers.import_identity import ImportIdentity
from ranklake.capture.importers.typed_rows import SEVERAL, extent_of
from ranklake.capture.sealing.keys import ActiveKeys
from ranklake.capture.sealing.masked import SealedMasks
from ranklake.capture.sealing.rows import NO_ROWS, Rows
from ranklake.capture.sealing.segment_bytes import Origin, segment_bytes
from ranklake.capture.spool.meta import Meta
from ranklake.capture.spool.stream_files import SealedFile, StreamName
from ranklake.lake.contracts.overlay import Overlay

_WALL: Final = ((0, 0),)
"""Foreign times are wall times: the one anchor says that both clocks are the same."""

Shipped = Callable[[SealedFile, StreamName, bytes], None]


class ImportedStreams:
    """Streams of what is imported into one attempt of a run: one a rank, or that of `SEVERAL`.

    Parameters
    ----------
    identity, run, attempt
        What is imported, and into what: incarnations are made of both.
    shipped
        Takes each segment.
    day, keys
        The day folder that segments go into, and what they are encrypted and signed with.
    overlay
        Operators' contracts.
    masks
        What is masked before it is sealed.
    """

    def __init__(
        self,
        identity: ImportIdentity,
        run: str,
        attempt: int,
        shipped: Shipped,
        day: str,
        keys: ActiveKeys,
        overlay: Overlay | None = None,
        masks: SealedMasks | None = None,
    ) -> None:
        self._identity, self._run, self._attempt = identity, run, attempt
        self._shipped, self._day, self._keys, self._overlay = shipped, day, keys, overlay
        self._masks = masks or SealedMasks()
        self._metas: dict[int, Meta] = {}
        self._told: set[int] = set()

    def write(self, stream: int, table: str, rows: Rows, world_size: int, *, final: bool) -> None:
        """Seal rows as the next segment of a stream: a rank's, or that of `SEVERAL`, whose rows say their ranks."""
        meta = self._metas.setdefault(stream, Meta(overlay=self._overlay))
        incarnation = self._identity.incarnation(self._run, self._attempt, stream)
        name = StreamName(self._run, self._attempt, max(stream, 0), incarnation)
        rows = self._masks.masked(table, rows)
        number = meta.highest.get(table, -1) + 1
        origin = Origin(name, world_size, "", ranks=extent_of(rows) if stream == SEVERAL else ())
        raw, footer = segment_bytes(origin, meta, table, number, rows, _WALL, final=final, keys=self._keys)
        if final and table == "events":
            self._told.add(stream)
        meta.add_sealed(table, number, len(rows), footer.gaps, final=final)
        digest = hashlib.sha256(raw).hexdigest()
        self._shipped(SealedFile(Path(), table, number, self._day, len(rows), digest, footer.key_id), name, raw)

    def end(self, world_size: int) -> None:
        """Have each stream that has not said yet how much there was say so, in a last segment without rows."""
        for stream in sorted(self._metas.keys() - self._told):
            self.write(stream, "events", NO_ROWS, world_size, final=True)
