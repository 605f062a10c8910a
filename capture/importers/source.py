"""Source: a foreign file, opened, decompressed and split into lines, whatever state it is in.

Nothing here holds a file in memory: a line has at most `LINE_BYTES`, a block as many as its reader asks for.
"""

import hashlib
import io
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Final

import fsspec

from ranklake.capture.importers.decoding import (
    LINE_BYTES,
    Blocks,
    DamagedError,
    Line,
    Told,
    _Counted,
    as_utf8,
    line_of,
    unpacked,
)
from ranklake.errors import RanklakeError, did_you_mean

_CHUNK_BYTES: Final = 1 << 20
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")
HEAD_BYTES: Final = 1 << 16

_COLOURS: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


_SLASHES: Final = re.compile("/{2,}")


class SourceError(RanklakeError):
    """A file cannot be imported at all; nothing of it was written."""


@dataclass
class Source:
    """A file to import.

    Attributes
    ----------
    path, size_bytes
        Where it lies, as the file system names it, and its size there.
    cut
        What was wrong with the end of it, where reading found out: a truncated archive, say.
    base
        The folder that was named in its place; empty where the file was.
    """

    fs: Any
    path: str
    size_bytes: int
    told: Told = field(default=lambda _: None, repr=False)
    cut: str | None = None
    base: str = ""

    @contextmanager
    def first_look(self) -> Iterator[None]:
        """Let it be gone through once before it is read: no progress is told within, and no damage remembered."""
        told, self.told = self.told, lambda _: None
        try:
            yield
        finally:
            self.told, self.cut = told, None

    @property
    def folders(self) -> list[str]:
        """Names of the folder that was named and of those in it down to the file; of the file's own if none was."""
        if not self.base:
            return [posixpath.basename(self.parent)]
        return [posixpath.basename(self.base), *self.parent.removeprefix(self.base).split("/")[1:]]

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
        for ending in (
            ".gz",
            ".json",
            ".jsonl",
            ".ndjson",
            ".csv",
            ".tsv",
            ".txt",
            ".parquet",
            ".log",
            ".out",
            ".prom",
            ".wandb",
        ):
            name = name.removesuffix(ending)
        return name or self.name

    def digest(self) -> str:
        """Return the SHA-256 of the bytes as they lie there, in hex. Raises `OSError`."""
        sha = hashlib.sha256()
        with self.fs.open(self.path, "rb") as raw:
            while block := raw.read(_CHUNK_BYTES):
                sha.update(block)
        return sha.hexdigest()

    def head(self, most_bytes: int = HEAD_BYTES) -> bytes:
        """Return the first bytes, unpacked; fewer where the file is damaged.

        Raises `SourceError` for text in UTF-16, or `OSError`.
        """
        found = b""
        with self.fs.open(self.path, "rb") as raw:
            try:
                for block in unpacked(raw, HEAD_BYTES):
                    found += block
                    if len(found) >= most_bytes:
                        break
            except DamagedError:
                pass
        if found.startswith(_UTF16_BOMS):
            raise SourceError("the text is UTF-16", where=self.name, hint="convert it: iconv -f UTF-16 -t UTF-8")
        return found.removeprefix(_UTF8_BOM)

    def blocks(self, block_bytes: int = _CHUNK_BYTES) -> Iterator[bytes]:
        """Yield the unpacked bytes, without a byte order mark.

        A damaged archive ends early, and `cut` says why. Raises `OSError`.
        """
        with self.fs.open(self.path, "rb") as raw:
            first = True
            try:
                for block in unpacked(_Counted(raw, self.told), block_bytes):
                    yield block.removeprefix(_UTF8_BOM) if first else block
                    first = False
            except DamagedError as error:
                self.cut = str(error)

    def whole(self, most_bytes: int) -> bytes:
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
        about = self.fs.info(self.path)
        changed = about.get("mtime") or about.get("LastModified") or about.get("last_modified") or about.get("updated")
        seconds = changed.timestamp() if hasattr(changed, "timestamp") else changed
        if not isinstance(seconds, int | float):
            raise SourceError(
                "nothing says when the samples were taken", where=self.name, hint="copy it to a local disk"
            )
        return round(seconds * 1000)

    def binary_stream(self) -> IO[bytes]:
        """Return the unpacked bytes as a file to read from."""
        return io.BufferedReader(Blocks(self.blocks()), _CHUNK_BYTES)

    def text_stream(self) -> IO[bytes]:
        """Return the unpacked text as a file to read from; what is not UTF-8 in it has become `NO_TEXT`, in UTF-8."""
        return io.BufferedReader(Blocks(as_utf8(self.blocks())), _CHUNK_BYTES)

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
                    yield line_of(number, rest + piece, too_long=skipping)
                    rest, skipping = b"", False
                elif not skipping:
                    rest += piece
            if len(rest) > LINE_BYTES:
                rest, skipping = b"", True
        if rest or skipping:
            yield line_of(number + 1, rest, too_long=skipping)


def uncoloured(text: str) -> str:
    """Return text without the codes that set colours on a terminal (ECMA-48, control sequences)."""
    return _COLOURS.sub("", text) if "\x1b" in text else text


def sources(paths: Iterable[str], options: Callable[[str], dict[str, Any]], inside: str = "") -> list[Source]:
    """Return the files that paths name, sorted, each once: files, folders' entries are not looked at, globs are.

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
    found: dict[str, Source] = {}
    local = True
    for path in paths:
        fs, root = fsspec.url_to_fs(path, **options(path))
        local = "file" in fs.protocol
        root = _SLASHES.sub("/", root) if local else root  # a key of an object store may well have two in a row
        base = ""
        if inside and fs.isdir(root):
            base = root.rstrip("/")
            root = f"{base}/{inside}"
        there = fs.exists(root)
        names = [root] if there else sorted(fs.glob(root)) if any(mark in root for mark in "*?[") else []
        if not names and base:
            hint = f"files in it, or in folders in it, whose names match {inside.removeprefix('**/')}"
            raise SourceError("nothing of this format is in the folder", where=path, hint=f"name one that has {hint}")
        if not names:
            parent = posixpath.dirname(root)
            beside = [posixpath.basename(str(name)) for name in fs.ls(parent, detail=False)] if fs.isdir(parent) else []
            hint = did_you_mean(posixpath.basename(root), beside) if beside else "name a file, or a glob in quotes"
            raise SourceError("no such file", where=path, hint=hint)
        for name in names:
            if fs.isdir(name):
                if there:
                    raise SourceError("is a folder", where=path, hint=f"name its files: '{path.rstrip('/')}/*'")
                continue
            found[name] = Source(fs, name, int(fs.info(name)["size"] or 0), base=base)
    by_place = {os.path.realpath(name) if local else name: name for name in sorted(found, reverse=True)}
    return [found[name] for name in sorted(by_place.values())]  # a link to a run's folder is no other run
