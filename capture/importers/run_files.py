"""Run files: a tracker's files of one run, in a folder or a ZIP archive."""

import json
import mimetypes
import posixpath
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fsspec.implementations.zip import ZipFileSystem

from ranklake.capture.assets.media_value import MOST_HELD_BYTES
from ranklake.capture.common.values import redacted_name, redacted_text
from ranklake.capture.importers.folders import files_at
from ranklake.capture.importers.formats import LONGEST_NAME
from ranklake.capture.importers.source import ZIP, Source, SourceError
from ranklake.redaction.redact import redact_uri

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun

_MAX_NOTE_CHARACTERS: Final = 8_192
_MAX_JSON_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Location of a run's files; `path` is that of the folder, or of the archive."""

    fs: Any
    path: str
    is_archive: bool

    @contextmanager
    def opened(self) -> Iterator["OpenFiles"]:
        """Open the files. Raises `SourceError` if the archive is damaged or encrypted, also while files are read."""
        if not self.is_archive:
            yield OpenFiles(self.fs, self.path)
            return
        try:
            with self.fs.open(self.path, "rb") as raw:
                yield OpenFiles(ZipFileSystem(raw), "")
        except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:  # encrypted: RuntimeError
            flaw, hint = "the ZIP archive cannot be read", "copy it again, or unpack it and name its folder"
            raise SourceError(flaw, where=posixpath.basename(self.path), hint=hint) from error


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """Opened files of a run. Paths are relative to the run's folder."""

    fs: Any
    root: str

    def source(self, path: str) -> Source | None:
        """Return a file to read; None if it does not exist."""
        full_path = f"{self.root}/{path}" if self.root else path
        return Source(self.fs, full_path, 0) if self.fs.isfile(full_path) else None

    def document(self, path: str) -> dict[str, Any]:
        """Return the object in a JSON file; empty if the file does not exist. Raises `SourceError`."""
        source = self.source(path)
        if source is None:
            return {}
        try:
            document = json.loads(source.read_all(_MAX_JSON_BYTES))
        except (ValueError, RecursionError) as error:
            raise SourceError("not JSON", where=path, hint="export it again") from error
        if not isinstance(document, dict):
            raise SourceError("not a JSON object", where=path, hint="export it again")
        return document

    def digests(self, *paths: str) -> list[str]:
        """Return the SHA-256 of each file in hex; empty if it does not exist."""
        return [source.digest() if (source := self.source(path)) else "" for path in paths]

    def add(
        self,
        recording: "ImportedRun",
        name: str,
        path: object,
        at_ns: int,
        media_kind: str = "",
        **columns: Any,  # noqa: ANN401
    ) -> None:
        """Add a file to `media` if `media_kind` is set and fits, otherwise to `artifacts` by reference.

        An artifact has no URI if the file is missing from the run's folder, or in an archive.
        """
        source = None
        if isinstance(path, str) and not posixpath.isabs(path) and ".." not in path.split("/"):
            source = self.source(path)
        size = int(self.fs.info(source.path)["size"] or 0) if source else None
        if source and size is not None and media_kind and size <= MOST_HELD_BYTES:
            raw = self.fs.cat_file(source.path)
            value = raw.decode(errors="replace") if media_kind == "text" else raw
            if recording.media(name, value, media_kind, at_ns, **columns):
                return
        where = "not beside the export" if size is None else "in the archive" if not self.root else None
        facts: dict[str, Any] = {"kind": "other", "action": "created", "file_count": 1, "bytes": size}
        facts["uri"] = redact_uri(source.path) if source and self.root else None
        facts["media_type"] = mimetypes.guess_type(str(path))[0]
        facts["attributes"] = json.dumps({"file": where}) if where else None
        recording.row("artifacts", at_ns, name=name, **(facts | columns))


def find_run_files(fs: Any, path: str, marks: tuple[str, ...], tool: str) -> Iterator[RunFiles | SourceError]:  # noqa: ANN401
    """Yield the runs of a tracker below a path: folders and archives with a file of one of the names in `marks`.

    If the path itself is such a file, its folder is yielded. An unreadable archive is yielded as an error.

    Raises
    ------
    SourceError
        There is no run.
    """
    root = path.rstrip("/")
    names = files_at(fs, root)
    folders = {posixpath.dirname(name): None for name in names if posixpath.basename(name) in marks}
    results: list[RunFiles | SourceError] = [RunFiles(fs, folder, is_archive=False) for folder in folders]
    for name in names:
        if posixpath.dirname(name) not in folders and (name.endswith(".zip") or name == root):
            try:
                if fs.cat_file(name, end=len(ZIP)) != ZIP:
                    if name != root:
                        hint = "copy it again, or delete it"
                        results.append(SourceError("no ZIP archive", where=posixpath.basename(name), hint=hint))
                    continue
                files = RunFiles(fs, name, is_archive=True)
                with files.opened() as content:
                    if any(content.source(mark) for mark in marks):
                        results.append(files)
            except SourceError as error:
                results.append(error)
            except OSError as error:
                flaw = f"cannot be read ({type(error).__name__})"
                results.append(SourceError(flaw, where=posixpath.basename(name), hint="see its permissions"))
    if not any(isinstance(result, RunFiles) for result in results):
        first = next((error for error in results if isinstance(error, SourceError)), None)
        hint = f"name a folder or a ZIP archive that has {' or '.join(marks)}"
        raise first or SourceError(f"no run of {tool}", where=path, hint=hint)
    yield from results


def annotate(
    recording: "ImportedRun", at_ns: int, *, name: object = "", note: object = "", tags: Iterable[object] = ()
) -> None:
    """Add a run's name, note and tags, unless they are empty; credentials are redacted."""
    rows: list[dict[str, Any]] = []
    if shown_name := " ".join(redacted_name(name or "", LONGEST_NAME).split()):
        rows.append({"kind": "name", "value": shown_name})
    if text := redacted_text(note or "", _MAX_NOTE_CHARACTERS):
        rows.append({"kind": "note", "text": text})
    rows += [{"kind": "tag", "key": redacted_name(tag, LONGEST_NAME)} for tag in tags if str(tag).strip()]
    for row in rows:
        recording.row("annotations", at_ns, source="script", **row)
