"""One Dask task of ingest: some segments of one table in, sorted Parquet files and an account of every row out.

segments ─▶ batches.py, segment_reading.py: digest, types, whose ─▶ piece.py: some hundred megabytes of rows
                                                                      │
        deduplication.py: one row a key ─▶ contracts/edge.py: judged ─┼─▶ delta/parquet.py: one sorted file a date
                                                                      └─▶ rejects.py ─▶ rejects

A task holds one piece at a time, whatever it is given: segments without end, one segment of any size, or a slot file
that was sealed a thousand times. Of the rows before the piece it remembers only the slots of the last slot file.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from ranklake.lake.ingest.batches import BATCH_SHARE, Loader
from ranklake.lake.ingest.group import Compacted, Group, as_one
from ranklake.lake.ingest.incoming import IncomingSegment, into_quarantine, recorded_table, segment_name, unreadable
from ranklake.lake.ingest.piece import Piece
from ranklake.lake.ingest.segment_reading import within
from ranklake.lake.ingest.spool.gate import GONE, UnreadError
from ranklake.lake.ingest.spool.packs import Reader
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.store.planned_segment import PlannedSegment
from ranklake.lake.store.store import Lake, LakeError
from ranklake.segments.envelope import EncryptionError


def compact(group: Group) -> Compacted:
    """Carry out one task. Repeatable: files of an earlier try are orphans that no commit names.

    Whatever segments raise, alone or together, becomes an outcome of theirs, and the others go in. What is no fault of
    theirs is raised: the store, memory and keys that are not there.
    """
    try:
        return _compact(group)
    except Exception as error:
        if not _is_of_segments(error):
            raise
        return _parted(group, error)


def _compact(group: Group) -> Compacted:
    lake = Lake.open(group.lake_uri, group.storage).configured(ingest=group.limits, subjects=group.subjects)
    lake = lake.under(group.contracts, group.code)
    spool = Spool(group.spool_uri, group.storage, lake.config)
    target = recorded_table(lake, group.table)
    paths = (path for row in group.segments for path in (row["path"], *row["others"]))
    reader = Reader(spool.fs, paths, spool.root)
    loader = Loader(lake, reader, target, group.authenticator, group.piece_bytes // BATCH_SHARE)
    segments: list[IncomingSegment] = []
    piece = Piece(lake, group, target) if target is not None else None
    for loaded in loader.load(group.segments):
        segments += loaded.segments
        for rows in loaded.rows:
            assert piece is not None, "rows of no table"
            piece.add(rows)
    if piece is not None:
        piece.finish()
    files, rejects = (piece.files, piece.rejects) if piece is not None else ([], [])
    return Compacted(files, rejects, [segment.outcome(group.table) for segment in segments])


def _is_of_segments(error: Exception) -> bool:
    """Say whether an error can come of what segments hold; Arrow's about their bytes has no number of the system's."""
    if isinstance(error, OSError):
        return error.errno is None
    return not isinstance(error, (MemoryError, ImportError, LakeError, EncryptionError))


def _parted(group: Group, error: Exception) -> Compacted:
    """Carry out in parts what failed as a whole, down to the segments that are to blame, which are set aside."""
    files = slot_files(group.segments)
    if len(files) > 1:
        middle = len(files) // 2
        parts = [[row for file in some for row in file] for some in (files[:middle], files[middle:])]
        return as_one([compact(replace(group, segments=some)) for some in parts])
    if len(group.segments) == 1:
        return set_aside(group, unreadable(error))
    # Cuts of one slot file repeat each other, so they stay together; each was tried alone to see whether it can.
    bad = [row for row in group.segments if compact(replace(group, segments=[row])).outcomes[0]["unreadable"]]
    good = [row for row in group.segments if row not in bad]
    if not bad or not good:
        return set_aside(group, unreadable(error))
    alone = [set_aside(replace(group, segments=[row]), unreadable(error)) for row in bad]
    return as_one([compact(replace(group, segments=good)), *alone])


def slot_files(segments: Sequence[PlannedSegment]) -> list[list[PlannedSegment]]:
    """Return segments of a plan, in its order, those of one slot file together."""
    return [list(rows) for _, rows in groupby(segments, key=_slot_file)]


def _slot_file(row: PlannedSegment) -> tuple[Any, ...]:
    name = segment_name(row["path"])
    return (row["path"],) if name is None else (name.incarnation, name.segment)


def set_aside(group: Group, why: str) -> Compacted:
    """Put segments into quarantine for a reason, as if they were damaged; raises what the store does."""
    lake = Lake.open(group.lake_uri, group.storage).configured(ingest=group.limits)
    spool = Spool(group.spool_uri, group.storage, lake.config)
    outcomes = []
    for row in group.segments:
        segment = IncomingSegment(row["path"], row["sha256"], row["bytes"], segment_name(row["path"]), unreadable=why)
        reader = Reader(spool.fs, [row["path"]], spool.root)
        try:
            raw = reader.read(within(row, group.limits))
        except FileNotFoundError:
            segment.unreadable = GONE
        except UnreadError as error:
            segment.unreadable = error.what
        else:
            into_quarantine(lake, segment, raw)
        outcomes.append(segment.outcome(group.table))
    return Compacted([], [], outcomes)
