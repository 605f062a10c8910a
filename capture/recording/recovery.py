"""Recovery: adopt the streams of dead processes in a local spool, seal and upload them.

A stream is adopted by acquiring its owner's lock, so two processes never handle the same stream. Every step can be
repeated: after a kill the next process continues, and no row is lost or stored twice.
"""

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ranklake.capture.common.gaps import LOGGER
from ranklake.capture.lanes.masks import mask_of_stream
from ranklake.capture.logs.faults import FAULTS_FILE
from ranklake.capture.logs.faults import adopt as adopt_faults
from ranklake.capture.recording.upload import Uploader, UploadResult
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.sealing.seal import Sealing, keep_damaged, seal
from ranklake.capture.sealing.tables import read_rows
from ranklake.capture.spool import frames
from ranklake.capture.spool.clock import Anchor, straighten
from ranklake.capture.spool.eviction import finish as finish_evictions
from ranklake.capture.spool.files import TEMPORARY, is_mine, open_regular, read_regular, write_whole
from ranklake.capture.spool.frames import FrameFile
from ranklake.capture.spool.meta import Meta, read_meta
from ranklake.capture.spool.owner import HELD, OWNER_FILE, Owner, OwnerLock
from ranklake.capture.spool.stream import META_FILE, discard, sweep
from ranklake.capture.spool.stream_files import (
    ACKED,
    DROPPED,
    OPEN,
    SEALED,
    SPARE,
    OpenFile,
    SealedFile,
    StreamName,
    open_files,
    sealed_files,
    streams,
)
from ranklake.segments.envelope import EncryptionError

_ENDINGS: Final = frozenset({"rank_end", "abandoned"})


@contextlib.contextmanager
def adopted(folder: Path, keys: SealingKeys) -> Iterator["AbandonedStream | None"]:
    """Adopt a dead process's stream for the block.

    The value is None if the owner is alive, another process has adopted the stream, or it belongs to another user.
    """
    name = StreamName.of(folder)
    if name is None or not is_mine(folder) or not HELD.take(name.incarnation):
        yield None
        return
    try:
        seized = OwnerLock.seize(folder, name.incarnation)
    except OSError:  # deleted meanwhile, or not accessible
        seized = None
    if seized is None:
        HELD.drop(name.incarnation)
        yield None
        return
    lock, owner = seized
    try:
        yield AbandonedStream(name, folder, owner, keys)
    finally:
        lock.release()


@dataclass(frozen=True, slots=True)
class AbandonedStream:
    """A stream whose owner is dead, and whose lock this process has."""

    name: StreamName
    folder: Path
    owner: Owner | None
    keys: SealingKeys

    def finish(self, uploader: Uploader | None, stop: Callable[[], bool] = lambda: False) -> UploadResult:
        """Seal all files, upload all segments, and delete the stream if nothing is left.

        Raises `OSError` for errors of the local disk, and `EncryptionError` without a key. In both cases, segments that
        were sealed before are uploaded first.
        """
        try:
            self.seal()
        except (EncryptionError, OSError):  # on a full disk, only uploads free space
            if uploader is not None:
                uploader.push(self.folder, stop=stop)
            raise
        if uploader is None:
            return UploadResult(left=len(sealed_files(self.folder)))
        pushed = uploader.push(self.folder, stop=stop)
        self.discard_if_empty()
        return pushed

    def discard_if_empty(self) -> None:
        """Delete the stream if all its segments are in the spool. Raises `OSError`."""
        if not sealed_files(self.folder) and not open_files(self.folder):
            discard(self.folder)

    def seal(self) -> None:
        """Clean up the stream and seal all unsealed files.

        Raises `OSError` for errors of the local disk, and `EncryptionError` without a key.
        """
        self._tidy()
        self._drop_torn_tail()
        meta_file = FrameFile(self.folder / META_FILE)
        try:
            finish_evictions(self.folder, meta_file.append)
            meta = read_meta(self.folder)
            self._add_ending(meta)
            if not meta.final:
                mask = mask_of_stream(meta.contract("logs"), meta.masks.get("logs", {}))
                adopt_faults(self.folder, self._anchors(meta), self._next_path, mask)
            job = Sealing(
                name=self.name,
                folder=self.folder,
                world_size=self.owner.world_size if self.owner is not None else 0,
                boot_id=self.owner.boot_id if self.owner is not None else "",
                fallback=self.owner.anchor if self.owner is not None else None,
                note=meta_file.append,
                next_segment=self._next_segment,
                keys=self.keys,
                encrypted=self._is_encrypted(),
                signed=self.owner is not None and self.owner.signed,
            )
            seal(job, open_files(self.folder), final=True)
        finally:
            meta_file.close()

    def _is_encrypted(self) -> bool:
        """Whether segments must be encrypted, by owner.json; if it is damaged, whether any sealed segment is."""
        return self.owner.encrypted if self.owner is not None else any(f.key_id for f in sealed_files(self.folder))

    def _tidy(self) -> None:
        """Delete spares, acknowledged segments and temporary files; move unknown files to the folder for damage."""
        for path in sorted(self.folder.iterdir()):
            temporary = path.name.startswith(".") and path.name.endswith(TEMPORARY)
            if path.name.endswith((SPARE, ACKED)) or temporary or _is_no_file(path):
                path.unlink()
        meta = read_meta(self.folder)  # after links in its place were deleted
        for path in sorted(self.folder.iterdir()):
            if path.name not in {OWNER_FILE, META_FILE, FAULTS_FILE} and not _is_known(path, meta):
                keep_damaged(self.folder, path)

    def _drop_torn_tail(self) -> None:
        """Remove an incomplete last frame from meta.frames; frames appended after it would make it count as damage."""
        path = self.folder / META_FILE
        scan = frames.read(path)
        if scan.torn_bytes:
            fd = open_regular(path, os.O_RDWR)
            try:
                os.ftruncate(fd, os.fstat(fd).st_size - scan.torn_bytes)
            finally:
                os.close(fd)

    def _add_ending(self, meta: Meta) -> None:
        """Add an event ``abandoned`` if the process did not record its end. Workers never record theirs."""
        if meta.ended or meta.final or (self.owner is not None and self.owner.role == "worker"):
            return
        straight = self._anchors(meta)
        last = straight[-1][0]
        for file in open_files(self.folder):
            raw = read_regular(file.path)
            if file.table == "events" and any(f.get("event") in _ENDINGS for f in frames.scan(raw).frames):
                return
            rows = read_rows(file.lane, raw, meta, straight)
            last = max(last, int(rows.mono_ns.max()) if len(rows) else last)
        event = {
            "s": 0,
            "m": last,
            "event": "abandoned",
            "severity": "error",
            "message": "the process ended without closing the run",
        }
        write_whole(self._next_path("events"), frames.pack(event))

    def _anchors(self, meta: Meta) -> list[Anchor]:
        return straighten(meta.anchors, meta.clock) or [self.owner.anchor if self.owner is not None else (0, 0)]

    def _next_path(self, table: str) -> Path:
        return self.folder / f"{table}-{self._next_segment(table):06d}{OPEN}"

    def _next_segment(self, table: str) -> int:
        """Return the next segment number of a table."""
        numbers = [read_meta(self.folder).highest.get(table, -1)]
        numbers += [file.segment for file in open_files(self.folder) if file.table == table]
        numbers += [file.segment for file in sealed_files(self.folder) if file.table == table]
        return 1 + max(numbers)


def _is_no_file(path: Path) -> bool:
    """Whether a path is a link, a FIFO, a socket or a device, which recorders never create. Raises `OSError`."""
    mode = path.lstat().st_mode
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _is_known(path: Path, meta: Meta) -> bool:
    sealed = path.with_suffix(SEALED) if path.name.endswith(DROPPED) else path
    file = OpenFile.of(path)
    return bool((file and meta.has_table(file.table)) or SealedFile.of(sealed))


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """Counts and errors of a recovery.

    Attributes
    ----------
    streams
        Adopted streams.
    segments, rows
        Uploaded segments, and their rows.
    left
        Segments that could not be uploaded yet.
    alive, foreign
        Skipped streams: of live processes, and with another spool as destination.
    troubles
        One line for each stream that could not be finished.
    """

    streams: int = 0
    segments: int = 0
    rows: int = 0
    left: int = 0
    alive: int = 0
    foreign: int = 0
    troubles: tuple[str, ...] = ()


@dataclass
class Recovery:
    """Recovers the streams of a local spool; `run` may be called repeatedly."""

    root: Path
    spool: str
    storage_options: Mapping[str, Any] | None = None
    uploader: Uploader | None = None
    keys: SealingKeys = field(default_factory=SealingKeys)
    _uploaders: dict[str, Uploader] = field(default_factory=dict)

    def run(self, stop: Callable[[], bool] = lambda: False) -> RecoveryResult:
        """Recover all streams once. `stop` is checked before each stream and each upload."""
        counts: Counter[str] = Counter()
        troubles: list[str] = []
        for folder in streams(self.root):
            if stop():
                break
            try:
                result = self._recover(folder, stop)
            except Exception as error:  # noqa: BLE001 - one damaged stream must not block the others
                troubles.append(f"{folder}: {type(error).__name__}: {error}")
                LOGGER.warning("ranklake: cannot recover %s: %s", folder, error)
            else:
                if isinstance(result, str):
                    counts[result] += 1
                else:
                    counts.update(streams=1, segments=result.segments, rows=result.rows, left=result.left)
        sweep(self.root)
        return RecoveryResult(**counts, troubles=tuple(troubles))

    def _recover(self, folder: Path, stop: Callable[[], bool]) -> UploadResult | str:
        with adopted(folder, self.keys) as stream:
            if stream is None:
                return "alive"
            destination = stream.owner.spool if stream.owner is not None else ""
            if self.spool and destination and destination != self.spool:
                return "foreign"
            return stream.finish(self._uploader_for(self.spool or destination), stop)

    def _uploader_for(self, uri: str) -> Uploader | None:
        if self.uploader is not None and self.uploader.uri == uri:
            return self.uploader
        if uri and uri not in self._uploaders:
            self._uploaders[uri] = Uploader(uri, self.storage_options)
        return self._uploaders.get(uri)


def recover_stream(folder: Path, uploader: Uploader | None, *, family: int, keys: SealingKeys) -> UploadResult | None:
    """Finish the stream of a dead forked child of the process family `family`; None for any other stream."""
    with adopted(folder, keys) as stream:
        if stream is None or stream.owner is None or stream.owner.role != "worker" or stream.owner.family != family:
            return None
        return stream.finish(uploader)
