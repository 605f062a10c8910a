"""Source: a file to import. It is decompressed and split into lines, even if it is damaged.

Files are read in blocks and lines of limited size, never into memory as a whole, except by `Source.read_all`.
"""

import codecs
import gzip
import hashlib
import io
import os
import posixpath
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Final

import fsspec

from ranklake.capture.importers.folders import leads_to_file
from ranklake.errors import RanklakeError, did_you_mean

LINE_BYTES: Final = 16 << 20
"""Longer lines are refused, and counted."""
HEAD_BYTES: Final = 1 << 16
ZIP: Final = b"PK\x03\x04"
"""First bytes of a ZIP archive."""
NO_TEXT: Final = "\ufdd0"
"""Replaces bytes that are not UTF-8: a character that no Unicode text contains."""
_CHUNK_BYTES: Final = 1 << 20
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")
_GZIP: Final = b"\x1f\x8b"
_COLOURS: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_SLASHES: Final = re.compile("/{2,}")
_SUFFIXES: Final = (
    ".gz", ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".parquet", ".log", ".out", ".prom", ".wandb",
)  # fmt: skip
Progress = Callable[[int], None]
"""Called with the number of bytes that were read since the last call, before decompression."""


class SourceError(RanklakeError):
    """A file cannot be imported; no segment of it was written."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its line end.

    Attributes
    ----------
    number
        Line number, from 1.
    text
        U+FFFD replaces bytes that are not UTF-8. Empty if the line is too long.
    flaw
        Problem of the line, without any of its text; None if it is readable.
    """

    number: int
    text: str
    flaw: str | None = None


@dataclass
class Source:
    """A file to import.

    Attributes
    ----------
    path, size_bytes
        Path within the file system `fs`, and compressed size.
    cut
        Damage at the end of the file, such as a truncated archive, set while it is read.
    damage
        Damage at the end that the importer itself found and refused.
    base
        The folder in the user's arguments that contains the file; empty if the user named the file itself.
    """

    fs: Any
    path: str
    size_bytes: int
    progress: Progress = field(default=lambda _: None, repr=False)
    cut: str | None = None
    damage: str | None = None
    base: str = ""

    @contextmanager
    def first_look(self) -> Iterator[None]:
        """Read the file ahead of its import, without reporting progress or keeping `cut`."""
        progress, self.progress = self.progress, lambda _: None
        try:
            yield
        finally:
            self.progress, self.cut = progress, None

    @property
    def folders(self) -> list[str]:
        """Names of the folders from `base` down to the file; without `base`, the name of the file's folder."""
        if not self.base:
            return [posixpath.basename(self.parent)]
        return [posixpath.basename(self.base), *self.parent.removeprefix(self.base).split("/")[1:]]

    @property
    def place(self) -> str:
        """Identifies the file in the spool's notes of imports."""
        return self.path

    @property
    def parent(self) -> str:
        """Path of the file's folder within the file system."""
        return posixpath.dirname(self.path.rstrip("/"))

    @property
    def name(self) -> str:
        """The file's name, without folders."""
        return posixpath.basename(self.path.rstrip("/"))

    @property
    def stem(self) -> str:
        """The name without suffixes of file types."""
        name = self.name
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        return name or self.name

    def digest(self) -> str:
        """Return the SHA-256 of the file's bytes before decompression, in hex. Raises `OSError`."""
        with self.fs.open(self.path, "rb") as raw:
            sha = hashlib.sha256()
            while block := raw.read(_CHUNK_BYTES):
                sha.update(block)
        return sha.hexdigest()

    def head(self, most_bytes: int = HEAD_BYTES) -> bytes:
        """Return at least the first `most_bytes`, decompressed; fewer if the file is shorter or damaged.

        Raises `SourceError` for text in UTF-16, or `OSError`.
        """
        head = b""
        with self.first_look():
            for block in self.blocks(HEAD_BYTES):
                head += block
                if len(head) >= most_bytes:
                    break
        if head.startswith(_UTF16_BOMS):
            raise SourceError("the text is UTF-16", where=self.name, hint="convert it: iconv -f UTF-16 -t UTF-8")
        return head

    def blocks(self, block_bytes: int = _CHUNK_BYTES) -> Iterator[bytes]:
        """Yield the decompressed bytes, without a byte order mark.

        A damaged archive ends early and sets `cut`. Raises `OSError`.
        """
        with self.fs.open(self.path, "rb") as raw:
            file: Any = io.BufferedReader(_CountingFile(raw, self.progress), block_bytes)
            if file.peek(len(_GZIP)).startswith(_GZIP):
                file = gzip.GzipFile(fileobj=file)
            try:
                block = file.read1(block_bytes).removeprefix(_UTF8_BOM)
                while block:
                    yield block
                    block = file.read1(block_bytes)
            except EOFError:
                self.cut = "the gzip archive is cut off"
            except (gzip.BadGzipFile, zlib.error):
                self.cut = "the gzip archive is damaged"

    def read_all(self, most_bytes: int) -> bytes:
        """Return all decompressed bytes. Raises `SourceError` if there are more, or the archive is damaged."""
        parts: list[bytes] = []
        size = 0
        for block in self.blocks():
            size += len(block)
            if size > most_bytes:
                raise SourceError(f"more than {most_bytes >> 20} MiB", where=self.name, hint="split it")
            parts.append(block)
        if self.cut:
            raise SourceError(self.cut, where=self.name, hint="fetch it again")
        return b"".join(parts)

    def changed_ms(self) -> int:
        """Return when the file was last changed, ms since 1970. Raises `SourceError` if that is unknown."""
        info = self.fs.info(self.path)
        changed = info.get("mtime") or info.get("LastModified") or info.get("last_modified") or info.get("updated")
        seconds = changed.timestamp() if hasattr(changed, "timestamp") else changed
        if not isinstance(seconds, int | float):
            raise SourceError(
                "neither the rows nor the store give a time", where=self.name, hint="copy the file to a local disk"
            )
        return round(seconds * 1000)

    def binary_stream(self) -> IO[bytes]:
        """Return the decompressed bytes as a readable file."""
        return io.BufferedReader(_Blocks(self.blocks()), _CHUNK_BYTES)

    def text_stream(self) -> IO[bytes]:
        """Return the decompressed text as a readable file of UTF-8; `NO_TEXT` replaces bytes that are not UTF-8."""
        return io.BufferedReader(_Blocks(_as_utf8(self.blocks())), _CHUNK_BYTES)

    def lines(self) -> Iterator[Line]:
        """Yield the lines. No content of a line raises; a damaged archive is treated as by `blocks`."""
        number = 0
        rest = b""
        skipping = False
        for block in self.blocks():
            pieces = block.split(b"\n")
            for at, piece in enumerate(pieces):
                if at < len(pieces) - 1:
                    number += 1
                    yield _line(number, rest + piece, too_long=skipping)
                    rest, skipping = b"", False
                elif not skipping:
                    rest += piece
            if len(rest) > LINE_BYTES:
                rest, skipping = b"", True
        if rest or skipping:
            yield _line(number + 1, rest, too_long=skipping)


@dataclass
class StoredRun(Source):
    """One of the runs of a store; `path` and `fs` are the store's.

    Attributes
    ----------
    id, title
        The run's id in the store, and its name in ranklake. Neither changes while the run continues.
    record
        The importer's object for the run; its ``digest()`` covers everything that will be imported.
    left_out
        Why the run is not imported; empty if it is.
    """

    id: str = ""
    title: str = ""
    record: Any = field(default=None, repr=False)
    left_out: str = ""

    @property
    def folders(self) -> list[str]:
        """Empty: a run of a store is named by its title."""
        return []

    @property
    def parent(self) -> str:
        """Empty, like `folders`."""
        return ""

    @property
    def place(self) -> str:
        """The run's id, so that a store may be moved."""
        return f"run {self.id}"

    @property
    def name(self) -> str:
        """The run's title, for messages."""
        return self.title

    @property
    def stem(self) -> str:
        """The run's title."""
        return self.title

    def digest(self) -> str:
        """Return the SHA-256 of the content to import, in hex. Raises `SourceError` or `OSError`."""
        return str(self.record.digest())


def stored_runs(
    paths: Iterable[str],
    options: Callable[[str], dict[str, Any]],
    find: Callable[[Any, str], Iterator["StoredRun | SourceError"]],
) -> "StoreContent":
    """Return the runs of the stores at `paths`, each once.

    Raises
    ------
    SourceError
        A path does not exist, or is no store.
    """
    runs: dict[str, StoredRun] = {}
    content = StoreContent()
    for path in paths:
        fs, root = fsspec.url_to_fs(path, **options(path))
        names = [root] if fs.exists(root) else sorted(fs.glob(root)) if any(mark in root for mark in "*?[") else []
        if not names:
            raise _no_such_file(fs, path, root, "")
        for name in names:
            if not fs.isdir(name) and not leads_to_file(fs, name):
                raise _no_regular_file(name)
            for run in find(fs, name):
                if isinstance(run, SourceError):
                    content.unreadable.append(run)
                elif run.left_out:
                    content.left_out[run.left_out] = content.left_out.get(run.left_out, 0) + 1
                else:
                    runs.setdefault(run.id, run)
    content.runs = list(runs.values())
    return content


@dataclass
class StoreContent:
    """Content of stores: runs to import, errors of unreadable runs, and the number of left out runs by reason."""

    runs: list[StoredRun] = field(default_factory=list)
    unreadable: list[SourceError] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)


def strip_colours(text: str) -> str:
    """Return text without the codes that set colours on a terminal (ECMA-48, control sequences)."""
    return _COLOURS.sub("", text) if "\x1b" in text else text


def sources(paths: Iterable[str], options: Callable[[str], dict[str, Any]], inside: str = "") -> list[Source]:
    """Return the files at paths and globs, sorted, each once.

    Parameters
    ----------
    options
        Returns fsspec's options for a path.
    inside
        Glob of the files to take from a folder; if empty, folders are refused.

    Raises
    ------
    SourceError
        A path or glob matches no file.
    """
    files: dict[str, Source] = {}
    is_local = True
    for path in paths:
        fs, root = fsspec.url_to_fs(path, **options(path))
        is_local = "file" in fs.protocol
        root = _SLASHES.sub("/", root) if is_local else root  # object keys may contain "//"
        base = ""
        if inside and fs.isdir(root):
            base = root.rstrip("/")
            root = f"{base}/{inside}"
        exists = fs.exists(root)
        names = [root] if exists else sorted(fs.glob(root)) if any(mark in root for mark in "*?[") else []
        if not names:
            raise _no_such_file(fs, path, root, inside if base else "")
        for name in names:
            if not fs.isdir(name):
                if not leads_to_file(fs, name):
                    raise _no_regular_file(name)
                files[name] = Source(fs, name, int(fs.info(name)["size"] or 0), base=base)
            elif exists:
                raise SourceError("is a folder", where=path, hint=f"name its files: '{path.rstrip('/')}/*'")
    # a symbolic link and its target are one file
    by_place = {os.path.realpath(name) if is_local else name: name for name in sorted(files, reverse=True)}
    return [files[name] for name in sorted(by_place.values())]


def _no_such_file(fs: Any, path: str, root: str, inside: str) -> SourceError:  # noqa: ANN401 - a file system of fsspec
    if inside:
        hint = f"name a folder with files {inside.removeprefix('**/')} at any depth"
        return SourceError("the folder has no file of this format", where=root.removesuffix(f"/{inside}"), hint=hint)
    parent = posixpath.dirname(root)
    siblings = [posixpath.basename(str(name)) for name in fs.ls(parent, detail=False)] if fs.isdir(parent) else []
    hint = did_you_mean(posixpath.basename(root), siblings) if siblings else "name a file, or a glob in quotes"
    return SourceError("no such file", where=path, hint=hint)


def _no_regular_file(path: str) -> SourceError:
    return SourceError("is a pipe or a device", where=path, hint="write its content to a file, and name that")


def _line(number: int, raw: bytes, *, too_long: bool) -> Line:
    if too_long or len(raw) > LINE_BYTES:
        return Line(number, "", f"a line longer than {LINE_BYTES >> 20} MiB")
    raw = raw.removesuffix(b"\r")
    try:
        return Line(number, raw.decode())
    except UnicodeDecodeError:
        return Line(number, raw.decode(errors="replace"), "not UTF-8")


def _as_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield blocks of UTF-8, with `NO_TEXT` in place of invalid bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")(_ERROR_HANDLER)
    for block in blocks:
        if text := decoder.decode(block):
            yield text.encode()
    if text := decoder.decode(b"", final=True):
        yield text.encode()


def _replace_invalid(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return NO_TEXT, error.end


_ERROR_HANDLER: Final = "ranklake.no_text"
codecs.register_error(_ERROR_HANDLER, _replace_invalid)


class _ReadOnlyFile(io.RawIOBase):
    """A file that is only read, from beginning to end."""

    def readable(self) -> bool:
        return True


class _CountingFile(_ReadOnlyFile):
    """A file that reports the bytes read from it."""

    def __init__(self, raw: Any, progress: Progress) -> None:  # noqa: ANN401 - any binary file
        super().__init__()
        self._raw, self._progress = raw, progress

    def readinto(self, into: Any) -> int:  # noqa: ANN401 - a buffer
        block = self._raw.read(len(into))
        into[: len(block)] = block
        self._progress(len(block))
        return len(block)


class _Blocks(_ReadOnlyFile):
    """A file over an iterator of blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks, self._rest = blocks, b""

    def readinto(self, into: Any) -> int:  # noqa: ANN401 - a buffer
        if not self._rest:
            self._rest = next(self._blocks, b"")
        part, self._rest = self._rest[: len(into)], self._rest[len(into) :]
        into[: len(part)] = part
        return len(part)
