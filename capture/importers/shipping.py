"""Shipping: sends sealed segments to the spool, many in one object; the spool remembers what was imported."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import fsspec

from ranklake.capture.importers.source import SourceError
from ranklake.capture.recording.upload import PACK_BYTES, PACK_MEMBERS, Uploader, UploadError
from ranklake.capture.spool.stream_files import SealedFile, StreamName
from ranklake.segments.pack import pack

FOLDER: Final = "imports"
"""Below the spool: one small file for each run and file that was imported into it."""
_PATIENCE_S: Final = 60.0


@dataclass
class Shipping:
    """Segments on their way to a spool.

    Attributes
    ----------
    segments, segment_bytes, objects
        What was sent so far.
    """

    spool: str
    options: Mapping[str, Any]
    segments: int = 0
    segment_bytes: int = 0
    objects: int = 0
    _uploader: Uploader = field(init=False, repr=False)
    _waiting: dict[str, bytes] = field(default_factory=dict, repr=False)
    _bytes: int = 0
    _notes: list[dict[str, Any]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._uploader = Uploader(self.spool, self.options)

    def take(self, file: SealedFile, name: StreamName, raw: bytes) -> None:
        """Take a segment, and send those that wait where they are many. Raises `UploadError`."""
        if self._waiting and (self._bytes + len(raw) > PACK_BYTES or len(self._waiting) >= PACK_MEMBERS):
            self.flush()
        self._waiting[file.remote(name)] = raw
        self._bytes += len(raw)
        self.segments += 1
        self.segment_bytes += len(raw)

    def flush(self) -> None:
        """Send what waits. Raises `UploadError`; what was sent stays, and an import of the same file completes it."""
        if not self._waiting:
            return
        path, raw = pack(self._waiting) if len(self._waiting) > 1 else next(iter(self._waiting.items()))
        self._put(path, raw)
        self._waiting, self._bytes = {}, 0
        self.objects += 1

    def last_import(self, format_: str, path: str, run: str) -> dict[str, Any] | None:
        """Return what was noted when a file of this path was last imported into a run; None if it never was."""
        fs, root = self._spool()
        try:
            note: dict[str, Any] = json.loads(fs.cat_file(f"{root}/{_name(format_, path, run)}"))
        except (FileNotFoundError, ValueError):
            return None
        return note

    def refuse_merged(self, format_: str, sha256: str, run: str, folder: str, *, where: str) -> None:
        """Raise `SourceError` where a run has rows of another file, each of which is a run of its own.

        Parameters
        ----------
        folder
            What stands for the file's folder, of formats whose runs are folders: files of one go together. Else empty.
        """
        for note in self._all_notes():
            if (note.get("format"), note.get("run")) != (format_, run) or note.get("sha256") == sha256:
                continue
            if folder and note.get("folder") == folder:
                continue
            file, day = str(note.get("file", "")), str(note.get("at", ""))[:10]
            raise SourceError(
                f"run {run} has rows of another run since {day}, of {file}",
                where=where,
                hint="import it into a run of its own with --run NAME",
            )

    def _all_notes(self) -> list[dict[str, Any]]:
        if self._notes is None:
            fs, root = self._spool()
            try:
                paths = [path for path in fs.ls(f"{root}/{FOLDER}", detail=False) if path.endswith(".json")]
            except FileNotFoundError:
                paths = []
            raws = fs.cat(paths, on_error="omit").values() if paths else []
            self._notes = [note for raw in raws if isinstance(note := _json(raw), dict)]
        return self._notes

    def remember(self, format_: str, path: str, run: str, facts: Mapping[str, Any]) -> None:
        """Note that a file is imported. Raises `UploadError`."""
        self._put(_name(format_, path, run), json.dumps(dict(facts), sort_keys=True).encode())

    def _spool(self) -> tuple[Any, str]:
        return fsspec.url_to_fs(self.spool, **{k: v for k, v in self.options.items() if k != "put"})  # type: ignore[no-any-return]

    def _put(self, path: str, raw: bytes) -> None:
        if not self._uploader.send(path, raw, time.monotonic() + _PATIENCE_S):
            hint = "fix that and import again: nothing is stored twice"
            raise UploadError(f"the spool cannot be written ({self._uploader.last_error})", where=self.spool, hint=hint)


def _json(raw: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(raw)
    except ValueError:
        return None


def refuse_changed(before: Mapping[str, Any] | None, sha256: str, mapping: str, *, where: str, run: str) -> None:
    """Raise `SourceError` where a run has rows of other content of the same file: it would hold both."""
    if before is None or (before.get("sha256"), before.get("mapping")) == (sha256, mapping):
        return
    options = "mapping" if len(mapping) == len(sha256) else "zone"  # a mapping is noted by its digest, a zone by name
    changed = "file" if before.get("sha256") != sha256 else options
    raise SourceError(
        f"the {changed} changed since it was imported into run {run} on {str(before.get('at', ''))[:10]}",
        where=where,
        hint="import it into another run with --run NAME: the old rows stay where they are",
    )


def _name(format_: str, path: str, run: str) -> str:
    key = f"{format_}\0{path}\0{run}".encode(errors="surrogatepass")  # ids of foreign runs are any text of JSON
    return f"{FOLDER}/{hashlib.sha256(key).hexdigest()[:32]}.json"
