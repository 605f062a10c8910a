"""Shipping: sends sealed segments to the spool in packs, and notes there which files were imported."""

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
"""Folder in the spool with one note, a JSON file, for each imported file and run."""
_TIMEOUT_S: Final = 60.0


@dataclass
class Shipping:
    """Sends the segments of an import to a spool.

    Attributes
    ----------
    segments, segment_bytes
        Number and size of the segments taken.
    objects
        Number of objects sent.
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
        """Add a segment to the pack, and send the pack first if it is full. Raises `UploadError`."""
        if self._waiting and (self._bytes + len(raw) > PACK_BYTES or len(self._waiting) >= PACK_MEMBERS):
            self.flush()
        self._waiting[file.remote(name)] = raw
        self._bytes += len(raw)
        self.segments += 1
        self.segment_bytes += len(raw)

    def flush(self) -> None:
        """Send the pack. Raises `UploadError`; earlier packs remain, and the same import again completes them."""
        if not self._waiting:
            return
        path, raw = pack(self._waiting) if len(self._waiting) > 1 else next(iter(self._waiting.items()))
        self._put(path, raw)
        self._waiting, self._bytes = {}, 0
        self.objects += 1

    def last_import(self, format_: str, path: str, run: str) -> dict[str, Any] | None:
        """Return the note of the last import of a path into a run; None if there was none."""
        fs, root = self._spool()
        try:
            note: dict[str, Any] = json.loads(fs.cat_file(f"{root}/{_name(format_, path, run)}"))
        except (FileNotFoundError, ValueError):
            return None
        return note

    def refuse_merged(self, format_: str, sha256: str, run: str, folder: str, *, where: str) -> None:
        """Raise `SourceError` if another file was imported into this run.

        Parameters
        ----------
        folder
            Digest of the file's folder for formats whose runs are folders: files of one folder may share a run.
            Otherwise empty.
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
        """Write the note of an imported file. Raises `UploadError`."""
        self._put(_name(format_, path, run), json.dumps(dict(facts), sort_keys=True).encode())

    def _spool(self) -> tuple[Any, str]:
        return fsspec.url_to_fs(self.spool, **{k: v for k, v in self.options.items() if k != "put"})  # type: ignore[no-any-return]

    def _put(self, path: str, raw: bytes) -> None:
        if not self._uploader.send(path, raw, time.monotonic() + _TIMEOUT_S):
            hint = "fix that and import again: no row is stored twice"
            raise UploadError(f"the spool cannot be written ({self._uploader.last_error})", where=self.spool, hint=hint)


def _json(raw: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(raw)
    except ValueError:
        return None


def refuse_changed(note: Mapping[str, Any] | None, sha256: str, mapping: str, *, where: str, run: str) -> None:
    """Raise `SourceError` if the file, or its mapping or zone, differs from the `note` of its last import."""
    if note is None or (note.get("sha256"), note.get("mapping")) == (sha256, mapping):
        return
    option = "mapping" if len(mapping) == len(sha256) else "zone"  # notes have a mapping's digest, or a zone's name
    changed = "file" if note.get("sha256") != sha256 else option
    raise SourceError(
        f"the {changed} changed since it was imported into run {run} on {str(note.get('at', ''))[:10]}",
        where=where,
        hint="import it into another run with --run NAME; the old run keeps its rows",
    )


def _name(format_: str, path: str, run: str) -> str:
    key = f"{format_}\0{path}\0{run}".encode(errors="surrogatepass")  # ids of foreign runs are any text of JSON
    return f"{FOLDER}/{hashlib.sha256(key).hexdigest()[:32]}.json"
