"""A lake's place: its marker, its folders, and how files get there.

One set of storage options, under delta-rs's names, serves fsspec and delta-rs alike, so that a bucket is named once.
"""

import json
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem
from pyarrow.fs import LocalFileSystem as ArrowLocal

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.storage import PUT, fsspec_options

FORMAT: Final = 1
MARKER: Final = "ranklake.json"


class LakeError(RanklakeError):
    """A lake that cannot be used."""


class NotALakeError(LakeError):
    """The place exists, or not, but holds no lake."""


class LakeUnreachableError(LakeError):
    """The place cannot be read, or not be written."""


@dataclass(frozen=True)
class Lake:
    """An open lake.

    Attributes
    ----------
    uri
        As the user named it, without a trailing slash.
    storage
        Options under delta-rs's names, for delta-rs and (translated) for fsspec.
    fs, root
        The file system and the path of the lake in it.
    encryption_key
        Where the keys of encrypted segments are, for ingest; see `ranklake.lake.contracts.keys`.
    """

    uri: str
    storage: dict[str, str] = field(default_factory=dict)
    fs: Any = field(default=None, repr=False, compare=False)
    root: str = ""
    encryption_key: str = ""

    @classmethod
    def open(cls, uri: str, storage: dict[str, str] | None = None, encryption_key: str = "") -> "Lake":
        """Open an existing lake. Raises `NotALakeError` or `LakeUnreachableError`."""
        lake = cls._at(uri, storage, encryption_key)
        try:
            raw = lake.fs.cat_file(lake.path(MARKER))
        except FileNotFoundError as error:
            mend = "check the URI; 'ranklake ingest' makes a lake in an empty place"
            raise NotALakeError("not a lake (no ranklake.json there)", where=uri, mend=mend) from error
        except Exception as error:  # object stores raise a class of their own per client
            raise _unreachable(uri, error) from error
        try:
            found = int(json.loads(raw)["format"])
        except (ValueError, KeyError, TypeError) as error:
            mend = "restore ranklake.json from a backup"
            raise NotALakeError("ranklake.json is damaged", where=uri, mend=mend) from error
        if found != FORMAT:
            raise NotALakeError(f"lake format {found} is not {FORMAT}", where=uri, mend="upgrade ranklake")
        return lake

    @classmethod
    def create(cls, uri: str, storage: dict[str, str] | None = None, encryption_key: str = "") -> "Lake":
        """Open the lake, making it first where the place is empty or absent. Creating twice at once is harmless."""
        lake = cls._at(uri, storage, encryption_key)
        marker = json.dumps({"format": FORMAT, "lake": uuid.uuid4().hex}).encode()
        try:
            # Another process may be making the lake right now: its marker, whole or not, is no stranger's file, and
            # what it makes next comes after the marker, which is therefore looked for last.
            found = lake.fs.ls(lake.root, detail=False) if lake.fs.exists(lake.root) else []
            strange = [path for path in found if not path.rpartition("/")[2].startswith(MARKER)]
            marked = lake.fs.exists(lake.path(MARKER))
            taken = bool(strange) and not marked
            if not marked and not taken:
                lake.put_if_absent(MARKER, marker)
        except Exception as error:  # object stores raise a class of their own per client
            raise _unreachable(uri, error) from error
        if taken:
            raise NotALakeError("not a lake, and not empty", where=uri, mend="name an empty place")
        return cls.open(uri, storage, encryption_key)

    @classmethod
    def _at(cls, uri: str, storage: dict[str, str] | None, encryption_key: str) -> "Lake":
        options = dict(storage or {})
        try:
            fs, root = filesystem(uri, options)
        except Exception as error:
            raise _unreachable(uri, error) from error
        return cls(uri.rstrip("/"), options, fs, root.rstrip("/"), encryption_key)

    @property
    def address(self) -> str:
        """The URI for another process, whose current folder may be another."""
        return self.root if self.is_local else self.uri

    @property
    def is_local(self) -> bool:
        """True where the lake is a folder of this machine."""
        return isinstance(self.fs, LocalFileSystem)

    def arrow_filesystem(self) -> FileSystem:
        """Return the lake's file system as pyarrow reads through it; a local one without the way round by fsspec."""
        return ArrowLocal() if self.is_local else PyFileSystem(FSSpecHandler(self.fs))

    def path(self, *parts: str) -> str:
        """Return the path, for `fs`, of something in the lake."""
        return "/".join([self.root, *parts])

    def table_uri(self, table: str) -> str:
        """Return the URI of a Delta table, for delta-rs."""
        return f"{self.address}/tables/{table}"

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a whole file unless the name is taken; return whether this call wrote it.

        A reader sees all of the file or none. Killed half-way, it leaves a stray temporary file on a local disk.
        """
        target = self.path(name)
        if not self.is_local:
            try:
                self.fs.pipe_file(target, data, mode="create")
            except FileExistsError:
                return False
            return True
        scratch = f"{target}.{uuid.uuid4().hex}.tmp"
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - fsspec paths are strings
            with open(scratch, "xb") as file:  # noqa: PTH123 - likewise
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(scratch, target)  # a link fails if the name is taken; a rename would not
        except FileExistsError:
            return False
        except OSError as error:
            raise cannot_write(target, error) from error
        finally:
            with suppress(OSError):  # it may never have been opened
                os.unlink(scratch)  # noqa: PTH108 - likewise
        return True


def filesystem(uri: str, storage: dict[str, str]) -> tuple[Any, str]:
    """Return (fsspec file system, path in it) of a URI or folder, with delta-rs's option names translated."""
    options = fsspec_options(uri, storage)
    options.pop(PUT, None)  # a bucket's own default encrypts what the lake itself writes there
    fs, path = url_to_fs(uri, **options)
    return fs, str(path)


def cannot_write(path: str, error: OSError) -> LakeUnreachableError:
    """Return the error for a file that a full or read-only place refused."""
    mend = "make room or get the right to write there, then run it again"
    return LakeUnreachableError(f"cannot be written: {error.strerror or error}", where=path, mend=mend)


def _unreachable(uri: str, error: Exception) -> LakeUnreachableError:
    reason = str(error) or type(error).__name__
    mend = "check the URI, the network and your rights there"
    return LakeUnreachableError(f"cannot be reached: {reason}", where=_without_user_info(uri), mend=mend)


def _without_user_info(uri: str) -> str:
    scheme, found, rest = uri.partition("://")
    if not found:
        return uri
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
