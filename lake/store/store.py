"""A place where bytes are kept: a folder, or a bucket's, and how files are written there.

One set of storage options, under delta-rs's names, serves fsspec and delta-rs alike, so that a bucket is named once.
"""

import json
import os
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from fsspec.implementations.local import LocalFileSystem
from pyarrow import NativeFile
from pyarrow.fs import FileSystem, PyFileSystem
from pyarrow.fs import LocalFileSystem as ArrowLocal

from ranklake.lake.store.objects import Files, delta_options, file_system, put_new
from ranklake.lake.store.reachability import LakeError, NotALakeError, cannot_write, unreachable
from ranklake.redaction.redact import redact_uri
from ranklake.segments.references import resolved

FORMAT: Final = 2
MARKER: Final = "ranklake.json"
_ESCAPE: Final = re.compile("%[0-9A-Fa-f]{2}")


@dataclass(frozen=True)
class Store:
    """A place for files: that of a lake, a witness, an archive, a share, or of pages.

    Attributes
    ----------
    uri
        As the user named it, without a trailing slash.
    storage
        Options under delta-rs's names, for delta-rs and (translated) for fsspec; references among them as they are, so
        that no other process gets what they stand for.
    fs, root
        The file system and the path of the place in it.
    """

    uri: str
    storage: dict[str, str] = field(default_factory=dict, repr=False)
    fs: Any = field(default=None, repr=False, compare=False)
    root: str = ""

    def __repr__(self) -> str:
        return f"<store {redact_uri(self.uri)}>"

    @classmethod
    def at(cls, uri: str, storage: dict[str, str] | None = None) -> "Store":
        """Return a place by its URI; nothing is looked at there. Raises `LakeError` or `LakeUnreachableError`."""
        uri = uri.removeprefix("file:") if not uri.startswith("file://") else uri
        options = delta_options(uri, storage or {})
        fs, root = file_system(uri, options)
        if not isinstance(fs, LocalFileSystem) and _ESCAPE.search(root):
            hint = "name another; a space or a letter beyond ASCII may stand there as it is"
            raise LakeError("Delta clients take % and two digits for an escaped character", where=uri, hint=hint)
        return cls(uri.rstrip("/"), options, fs, root.rstrip("/"))

    def marker(self) -> bytes:
        """Return the marker of the lake there. Raises `NotALakeError` or `LakeUnreachableError`."""
        try:
            raw = bytes(self.fs.cat_file(self.path(MARKER)))
        except FileNotFoundError as error:
            hint = "check the URI; 'ranklake ingest' makes a lake in an empty place"
            raise NotALakeError("not a lake (no ranklake.json there)", where=self.uri, hint=hint) from error
        except OSError as error:
            raise unreachable(self.uri, error, self.storage) from None
        try:
            number = int(json.loads(raw)["format"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            hint = "restore ranklake.json from a backup"
            raise NotALakeError("ranklake.json is damaged", where=self.uri, hint=hint) from error
        if number != FORMAT:
            hint = "upgrade ranklake" if number > FORMAT else "make a new lake: no release wrote this one"
            raise NotALakeError(f"lake format {number}, and this ranklake reads {FORMAT}", where=self.uri, hint=hint)
        return raw

    @property
    def delta_storage(self) -> dict[str, str]:
        """Options as delta-rs takes them, references followed. Raises `ranklake.segments.references.SecretError`."""
        return dict(self.storage) if self.is_local else resolved(self.storage)

    @property
    def number(self) -> str:
        """What tells the lake in it from others, from its marker; empty where that has none."""
        try:
            return str(json.loads(self.fs.cat_file(self.path(MARKER))).get("lake", ""))
        except (ValueError, AttributeError, RecursionError):
            return ""

    @property
    def address(self) -> str:
        """The URI for another process, whose current folder may be another."""
        return self.root if self.is_local else self.uri

    @property
    def is_local(self) -> bool:
        """True where it is a folder of this machine."""
        return isinstance(self.fs, LocalFileSystem)

    def arrow_filesystem(self) -> FileSystem:
        """Return the file system as pyarrow reads through it; a local one without the way round by fsspec."""
        return ArrowLocal() if self.is_local else PyFileSystem(Files(self.fs))

    def open_file(self, path: str, size_bytes: int | None = None) -> NativeFile:
        """Open a file as pyarrow reads it; its size, where it is known, spares a store a request.

        Raises `FileNotFoundError`, `OSError` or `LakeUnreachableError`.
        """
        return ArrowLocal().open_input_file(path) if self.is_local else Files(self.fs).open_input_file(path, size_bytes)

    def path(self, *parts: str) -> str:
        """Return the path, for `fs`, of something in the place."""
        return "/".join([self.root, *parts])

    def table_uri(self, table: str) -> str:
        """Return the URI of a Delta table, for delta-rs, which reads one of an object store as a URL."""
        scheme, mark, rest = self.address.partition("://")
        return f"{scheme}{mark}{quote(rest)}/tables/{table}"

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a whole file unless the name is taken; return whether this call wrote it.

        A reader sees all of the file or none. Killed half-way, it leaves a stray temporary file on a local disk.
        Raises `LakeUnreachableError`.
        """
        target = self.path(name)
        if not self.is_local:
            return put_new(self.fs, target, data)
        scratch = f"{target}.{uuid.uuid4().hex}.tmp"
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - fsspec paths are strings
            with open(scratch, "xb") as file:  # noqa: PTH123 - likewise
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            return _linked(scratch, target)
        except OSError as error:
            raise cannot_write(target, error) from error
        finally:
            with suppress(OSError):  # it may never have been opened
                os.unlink(scratch)  # noqa: PTH108 - likewise

    def overwrites(self, name: str, data: bytes) -> bool:
        """Say whether the store replaces a file that it is asked to write only if absent: two commits could both win.

        The file is there, and holds `data`: so nothing changes, whatever the store does. Raises `LakeUnreachableError`.
        """
        return self.put_if_absent(name, data)


def _linked(scratch: str, target: str) -> bool:
    """Give a file its name, and return True; False where the name is taken: a rename would not say so.

    Of all that writing a file calls, only this may say that its name is taken. Making its folder raises
    `FileExistsError`, too, where something else has the folder's name, or the folder is not to be seen just then.
    """
    try:
        os.link(scratch, target)
    except FileExistsError:
        return False
    return True
