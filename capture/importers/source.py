"""Source: a foreign file, opened, decompressed and split into lines, whatever state it is in.

Nothing here holds a file in memory: a line has at most `LINE_BYTES`, a block as many as its reader asks for.
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

from ranklake.errors import RanklakeError, did_you_mean

LINE_BYTES: Final = 16 << 20
"""A line that is longer is refused, and counted."""
HEAD_BYTES: Final = 1 << 16
ZIP: Final = b"PK\x03\x04"
"""How a ZIP archive begins."""
NO_TEXT: Final = "\ufdd0"
"""Stands for bytes that are not UTF-8: a character that Unicode keeps out of texts."""
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
"""Takes how many more bytes of a file were read, as it lies there."""


class SourceError(RanklakeError):
    """A file cannot be imported at all; nothing of it was written."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end.

    Attributes
    ----------
    number
        From 1.
    text
        What could not be decoded stands as U+FFFD; empty if the line is too long.
    flaw
        What is wrong with it, without any of its words; None for a sound one.
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
        Where it lies, as the file system names it, and its size there.
    cut
        What was wrong with the end of it, where reading found out: a truncated archive, say.
    damage
        What its importer found wrong with the end, and refused itself.
    base
        The folder that was named in its place; empty where the file was.
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
        """Read the file once ahead of its import: no progress is reported within, and no damage remembered."""
        progress, self.progress = self.progress, lambda _: None
        try:
            yield
        finally:
            self.progress, self.cut = progress, None

    @property
    def folders(self) -> list[str]:
        """Names of the folder that was named and of those in it down to the file; of the file's own if none was."""
        if not self.base:
            return [posixpath.basename(self.parent)]
        return [posixpath.basename(self.base), *self.parent.removeprefix(self.base).split("/")[1:]]

    @property
    def place(self) -> str:
        """What the spool remembers it by."""
        return self.path

    @property
    def parent(self) -> str:
        """The folder that the file lies in, as the file system names it."""
        return posixpath.dirname(self.path.rstrip("/"))

    @property
    def name(self) -> str:
        """The file's name, without folders."""
        return posixpath.basename(self.path.rstrip("/"))

    @property
    def stem(self) -> str:
        """The name without what says of what kind the file is."""
        name = self.name
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        return name or self.name

    def digest(self) -> str:
        """Return the SHA-256 of the bytes as they lie there, in hex. Raises `OSError`."""
        with self.fs.open(self.path, "rb") as raw:
            sha = hashlib.sha256()
            while block := raw.read(_CHUNK_BYTES):
                sha.update(block)
        return sha.hexdigest()

    def head(self, most_bytes: int = HEAD_BYTES) -> bytes:
        """Return the first bytes, unpacked; fewer where the file is damaged.

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
        """Yield the unpacked bytes, without a byte order mark.

        A damaged archive ends early, and `cut` says why. Raises `OSError`.
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
        """Return all of the unpacked bytes. Raises `SourceError` where they are too many, or cut off."""
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
        """Return when the file was last changed, ms since 1970. Raises `SourceError` where that is not known."""
        info = self.fs.info(self.path)
        changed = info.get("mtime") or info.get("LastModified") or info.get("last_modified") or info.get("updated")
        seconds = changed.timestamp() if hasattr(changed, "timestamp") else changed
        if not isinstance(seconds, int | float):
            raise SourceError(
                "nothing says when the samples were taken", where=self.name, hint="copy it to a local disk"
            )
        return round(seconds * 1000)

    def binary_stream(self) -> IO[bytes]:
        """Return the unpacked bytes as a file to read from."""
        return io.BufferedReader(_Blocks(self.blocks()), _CHUNK_BYTES)

    def text_stream(self) -> IO[bytes]:
        """Return the unpacked text as a file to read from; what is not UTF-8 in it has become `NO_TEXT`, in UTF-8."""
        return io.BufferedReader(_Blocks(_as_utf8(self.blocks())), _CHUNK_BYTES)

    def lines(self) -> Iterator[Line]:
        """Yield the lines. Never raises for what a line holds; see `blocks` for the rest."""
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
    """A run of a store that holds many; `path` and `fs` are the store's.

    Attributes
    ----------
    id, title
        The run's id in the store, and what to call it here: both stay the same while the run goes on.
    record
        What its importer needs to read it; its ``digest()`` is that of all that will be imported.
    left_out
        Why it is not to be imported; empty if it is.
    """

    id: str = ""
    title: str = ""
    record: Any = field(default=None, repr=False)
    left_out: str = ""

    @property
    def folders(self) -> list[str]:
        """None: runs of a store are named by their titles."""
        return []

    @property
    def parent(self) -> str:
        """None, as `folders`."""
        return ""

    @property
    def place(self) -> str:
        """The run's id, wherever its store lies."""
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
        """Return the SHA-256 of what will be imported, in hex. Raises `SourceError`, or `OSError`."""
        return str(self.record.digest())


def stored_runs(
    paths: Iterable[str],
    options: Callable[[str], dict[str, Any]],
    find: Callable[[Any, str], Iterator["StoredRun | SourceError"]],
) -> "StoreContent":
    """Return the runs of the stores that paths name, each once.

    Raises
    ------
    SourceError
        A path names nothing, or no store.
    """
    runs: dict[str, StoredRun] = {}
    content = StoreContent()
    for path in paths:
        fs, root = fsspec.url_to_fs(path, **options(path))
        names = [root] if fs.exists(root) else sorted(fs.glob(root)) if any(mark in root for mark in "*?[") else []
        if not names:
            raise _nothing_there(fs, path, root, "")
        for name in names:
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
    """What stores hold: runs to import, why some cannot be read, and how many are left out, by reason."""

    runs: list[StoredRun] = field(default_factory=list)
    unreadable: list[SourceError] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)


def strip_colours(text: str) -> str:
    """Return text without the codes that set colours on a terminal (ECMA-48, control sequences)."""
    return _COLOURS.sub("", text) if "\x1b" in text else text


def sources(paths: Iterable[str], options: Callable[[str], dict[str, Any]], inside: str = "") -> list[Source]:
    """Return the files that paths name, sorted, each once; globs are resolved, folders only by `inside`.

    Parameters
    ----------
    options
        Gives fsspec's options for a path.
    inside
        A glob of the files that are meant where a folder is named; by default folders are refused.

    Raises
    ------
    SourceError
        A path names nothing.
    """
    files: dict[str, Source] = {}
    is_local = True
    for path in paths:
        fs, root = fsspec.url_to_fs(path, **options(path))
        is_local = "file" in fs.protocol
        root = _SLASHES.sub("/", root) if is_local else root  # a key of an object store may well have two in a row
        base = ""
        if inside and fs.isdir(root):
            base = root.rstrip("/")
            root = f"{base}/{inside}"
        exists = fs.exists(root)
        names = [root] if exists else sorted(fs.glob(root)) if any(mark in root for mark in "*?[") else []
        if not names:
            raise _nothing_there(fs, path, root, inside if base else "")
        for name in names:
            if not fs.isdir(name):
                files[name] = Source(fs, name, int(fs.info(name)["size"] or 0), base=base)
            elif exists:
                raise SourceError("is a folder", where=path, hint=f"name its files: '{path.rstrip('/')}/*'")
    # a link to a run's folder is no other run
    by_place = {os.path.realpath(name) if is_local else name: name for name in sorted(files, reverse=True)}
    return [files[name] for name in sorted(by_place.values())]


def _nothing_there(fs: Any, path: str, root: str, inside: str) -> SourceError:  # noqa: ANN401 - a file system of fsspec
    if inside:
        hint = f"name one that has files in it, or in folders in it, whose names match {inside.removeprefix('**/')}"
        return SourceError("nothing of this format is in the folder", where=root.removesuffix(f"/{inside}"), hint=hint)
    parent = posixpath.dirname(root)
    beside = [posixpath.basename(str(name)) for name in fs.ls(parent, detail=False)] if fs.isdir(parent) else []
    hint = did_you_mean(posixpath.basename(root), beside) if beside else "name a file, or a glob in quotes"
    return SourceError("no such file", where=path, hint=hint)


def _line(number: int, raw: bytes, *, too_long: bool) -> Line:
    if too_long or len(raw) > LINE_BYTES:
        return Line(number, "", f"a line longer than {LINE_BYTES >> 20} MiB")
    raw = raw.removesuffix(b"\r")
    try:
        return Line(number, raw.decode())
    except UnicodeDecodeError:
        return Line(number, raw.decode(errors="replace"), "not UTF-8")


def _as_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield blocks of UTF-8; bytes that are none stand as `NO_TEXT`."""
    decoder = codecs.getincrementaldecoder("utf-8")(_MARKED)
    for block in blocks:
        if text := decoder.decode(block):
            yield text.encode()
    if text := decoder.decode(b"", final=True):
        yield text.encode()


def _marked(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return NO_TEXT, error.end


_MARKED: Final = "ranklake.marked"
codecs.register_error(_MARKED, _marked)


class _Raw(io.RawIOBase):
    """A file that is read once, from its beginning to its end."""

    def readable(self) -> bool:
        return True


class _CountingFile(_Raw):
    """A file that reports how much of it was read."""

    def __init__(self, raw: Any, progress: Progress) -> None:  # noqa: ANN401 - any binary file
        super().__init__()
        self._raw, self._progress = raw, progress

    def readinto(self, into: Any) -> int:  # noqa: ANN401 - a buffer
        block = self._raw.read(len(into))
        into[: len(block)] = block
        self._progress(len(block))
        return len(block)


class _Blocks(_Raw):
    """Blocks of bytes as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks, self._rest = blocks, b""

    def readinto(self, into: Any) -> int:  # noqa: ANN401 - a buffer
        if not self._rest:
            self._rest = next(self._blocks, b"")
        part, self._rest = self._rest[: len(into)], self._rest[len(into) :]
        into[: len(part)] = part
        return len(part)
