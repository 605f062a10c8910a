"""A place where bytes are kept: a folder, or a bucket's, how files are written there, and the client that does it.

One set of storage options, under delta-rs's names, serves fsspec (s3fs, gcsfs, adlfs) and delta-rs alike, so that a
bucket is named once. Both are set to give up within a minute: the failure is reported without a secret, and whoever ran
the command runs it again.
"""

import contextlib
import importlib
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import quote

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from pyarrow import BufferReader, NativeFile, PythonFile
from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem
from pyarrow.fs import LocalFileSystem as ArrowLocal

from ranklake.errors import RanklakeError
from ranklake.lake.store.reachability import LakeError, LakeUnreachableError, NotALakeError, cannot_write, unreachable
from ranklake.lake.store.store_requests import counted_session
from ranklake.redaction.redact import redact_uri
from ranklake.segments.references import fingerprint, forget, is_reference, resolve_references
from ranklake.segments.storage_options import (
    CLIENTS,
    PUT,
    SCHEMES,
    STORES,
    StorageOptionError,
    fsspec_options,
    uri_fault,
)

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
        if uri.partition("://")[0] in STORES and any(fault := uri_fault(uri)):
            raise LakeError(fault[0], where=redact_uri(uri), hint=fault[1])
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
        return dict(self.storage) if self.is_local else resolve_references(self.storage)

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
            return _link(scratch, target)
        except OSError as error:
            raise cannot_write(target, error) from error
        finally:
            with suppress(OSError):  # it may never have been opened
                os.unlink(scratch)  # noqa: PTH108 - likewise

    def overwrites(self, name: str, data: bytes) -> bool:
        """Whether the store replaces a file that it is asked to write only if absent: two commits could both win.

        The file is there, and holds `data`: so nothing changes, whatever the store does. Raises `LakeUnreachableError`.
        """
        return self.put_if_absent(name, data)


def _link(scratch: str, target: str) -> bool:
    """Give a file its name, and return True; False where the name is taken: a rename would not say so.

    Of all that writing a file calls, only this may say that its name is taken. Making its folder raises
    `FileExistsError`, too, where something else has the folder's name, or the folder is not to be seen just then.
    """
    try:
        os.link(scratch, target)
    except FileExistsError:
        return False
    return True


WHOLE_BYTES: Final = 16 * 2**20
"""Files up to this are read at one go: a request costs as long as a few MiB do."""
_AZURE_SCOPE: Final = "https://storage.azure.com/.default"
_QUIET: Final = logging.NullHandler()
_GS: Final = ("gs://", "gcs://")
_S3: Final = ("s3://", "s3a://")
_ONE_PIECE_BYTES: Final = 5 * 2**30  # what a store takes in one PUT; a condition holds for that, not for parts
_CONNECT_S, _SILENCE_S, _TRIES = 5, 8, 3
"""How long a store may say nothing, and how often it is asked: who accepts and never answers costs half a minute."""
_REQUEST_S: Final = 60
"""What a whole request of delta-rs may take."""
_AGAIN: Final = 409  # S3: another conditional request on the same name is under way
_TAKEN: Final = 412
_REFUSED: Final = frozenset({400, 401, 403})
"""How stores answer credentials that are over: S3 says 400 of a token that has expired."""
_OURS: Final = (FileNotFoundError, FileExistsError, NotImplementedError, RanklakeError, AttributeError, TypeError)


def file_system(uri: str, storage: Mapping[str, str]) -> tuple[Any, str]:
    """Return (file system, path in it) of a URI or folder, with delta-rs's option names translated.

    A local one is fsspec's own; one of an object store is `GuardedFileSystem`. Raises `LakeUnreachableError`.
    """
    options = fsspec_options(uri, storage) if "://" in uri else {}  # a folder takes none
    options.pop(PUT, None)  # a bucket's own default encrypts what the lake itself writes there
    if "://" in uri and not uri.startswith(("file://", "memory://")):
        options["use_listings_cache"] = False  # others write there, too: what they wrote last must be seen
    if uri.startswith(_S3):
        options["max_concurrency"] = 1  # else every file's size is asked for before it is read
        patience = {"connect_timeout": _CONNECT_S, "read_timeout": _SILENCE_S}
        again = {"retries": {"mode": "standard", "total_max_attempts": _TRIES}}
        # addresses are signed so, too: S3 takes older ones for no new bucket, and for none that a KMS key encrypts
        options["config_kwargs"] = {**patience, **again, "signature_version": "s3v4"}
    try:
        if uri.startswith(_S3):
            options["session"] = counted_session()
        if uri.startswith(_GS) and "token" not in options:
            # gcsfs would go on without any, and ask for most of a minute before it says so
            importlib.import_module("google.auth").default()
        fs, path = url_to_fs(uri, **options)
        if getattr(fs, "sync_credential", None) is not None:
            fs.sync_credential.get_token(_AZURE_SCOPE)  # adlfs would find out by a minute and a half of tries
    except Exception as error:  # noqa: BLE001 - object stores raise a class of their own per client
        raise _unopened(uri, error, storage) from None
    if isinstance(fs, LocalFileSystem):
        return fs, str(path)
    logging.getLogger("gcsfs").addHandler(_QUIET)  # it logs each try, trace and all; what counts is raised
    if hasattr(fs, "retries"):
        fs.retries = 1 if uri.startswith(_S3) else _TRIES  # botocore tries by itself
    return GuardedFileSystem(fs, uri, storage, is_client=True), str(path)


def _unopened(uri: str, error: Exception, storage: Mapping[str, str]) -> LakeUnreachableError:
    """Return the error for a URI that no client could be made for."""
    scheme = uri.partition("://")[0]
    client, extra = CLIENTS.get(scheme, ("", ""))
    if client and isinstance(error, ImportError):
        hint = f"pip install 'ranklake[{extra}]'"
        return LakeUnreachableError(f"{scheme}:// needs {client}, which is not installed", where=uri, hint=hint)
    fault, hint = uri_fault(uri)
    if fault:
        return LakeUnreachableError(fault, where=redact_uri(uri), hint=hint)
    return unreachable(uri, error, storage)


def delta_options(uri: str, storage: Mapping[str, str]) -> dict[str, str]:
    """Return the options for delta-rs: as named, with those that an http:// endpoint needs, and timeouts.

    Raises `StorageOptionError` for options under which two commits could both win.
    """
    is_folder = "://" not in uri or uri.startswith("file://")
    named = {name.lower(): value for name, value in (storage if is_folder else resolve_references(storage)).items()}
    for name, bad in (("aws_s3_allow_unsafe_rename", "true"), ("aws_conditional_put", "disabled")):
        for key in (name, name.removeprefix("aws_")):
            if named.get(key, "").lower() == bad:
                hint = "take it out of [storage]; commits would be lost"
                raise StorageOptionError(f"{key} = {bad} is not supported", where=uri, hint=hint)
    options = dict(storage)
    if is_folder:
        return options
    if uri.startswith(_S3) and named.get("aws_endpoint_url", "").startswith("http://"):
        options.setdefault("aws_allow_http", "true")
    endpoints = ("azure_storage_endpoint", "google_base_url", "google_endpoint_url")
    if not uri.startswith(_S3) and any(named.get(name, "").startswith("http://") for name in endpoints):
        options.setdefault("allow_http", "true")
    if named.get("google_endpoint_url"):
        options.setdefault("google_base_url", named["google_endpoint_url"])
    if named.get("google_service_account") == "anon":
        options.pop("google_service_account")
        options.setdefault("google_skip_signature", "true")
    for name, value in (("connect_timeout", f"{_CONNECT_S}s"), ("timeout", f"{_REQUEST_S}s"), ("retry_timeout", "30s")):
        options.setdefault(name, value)
    return options


def put_new(fs: Any, path: str, data: bytes) -> bool:  # noqa: ANN401 - fsspec ships no types
    """Write a whole object unless the name is taken; return whether this call wrote it.

    It goes in one piece, however large: stores of S3's protocol may pass over the condition where parts are put
    together. A try of this call that the store carried out and did not confirm takes the name, too: then the answer
    is False, and the object holds `data`. Raises `LakeError` where no store that takes such a condition is reached.
    """
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if protocols.isdisjoint(SCHEMES):
        hint = f"name a folder, or a place of {', '.join(STORES)}"
        raise LakeError(f"no store is reached by {min(protocols)}:", where=redact_uri(path), hint=hint)
    pieces = {} if "abfs" in fs.protocol or "az" in fs.protocol else {"chunksize": _ONE_PIECE_BYTES}
    wait_s = 0.1
    while True:
        try:
            fs.pipe_file(path, data, mode="create", **pieces)
        except FileExistsError:
            return False
        except LakeUnreachableError as error:
            if error.status == _TAKEN:  # said in words that the client does not know
                return False
            if error.status != _AGAIN or wait_s > _CONNECT_S:
                raise
            time.sleep(wait_s)
            wait_s *= 2
        else:
            return True


class GuardedFileSystem:
    """A file system of fsspec, or a file of one, whose failures are `LakeUnreachableError`: one line, no credentials.

    A file that is not there, or is there already, stays the error that it is. A file system that the store refuses is
    made again where references give other credentials by now, and asked again.
    """

    def __init__(self, fs: Any, uri: str, storage: Mapping[str, str], *, is_client: bool = False) -> None:  # noqa: ANN401 - likewise
        self._fs, self._uri, self._storage = fs, uri, storage
        self._made_with = fingerprint(storage) if is_client else ""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - likewise
        value = getattr(self._fs, name)
        if not callable(value):
            return value

        def guarded(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - likewise
            try:
                given = value(*args, **options)
            except Exception as error:  # noqa: BLE001 - object stores raise a class of their own per client
                ours = self._translate_error(error)
                if not self._is_renewed(ours):
                    raise ours from None
                return getattr(self, name)(*args, **options)
            if name == "cat_ranges":
                return [self._translate_error(one) if isinstance(one, Exception) else one for one in given]
            return GuardedFileSystem(given, self._uri, self._storage) if name == "open" else given

        return guarded

    def _is_renewed(self, error: Exception) -> bool:
        """Return whether the client has other credentials now than those that the store refused."""
        is_refused = isinstance(error, LakeUnreachableError) and error.status in _REFUSED
        if not is_refused or not self._made_with or not any(map(is_reference, self._storage.values())):
            return False
        forget()
        if (given := fingerprint(self._storage)) == self._made_with:
            return False
        self._made_with = given
        self._fs = file_system(self._uri, self._storage)[0]._fs  # noqa: SLF001 - of this class
        return True

    def _translate_error(self, error: Exception) -> Exception:
        return error if isinstance(error, _OURS) else unreachable(self._uri, error, self._storage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close a file. One that was being written when something failed is thrown away, not sent half."""
        if kind is None or self.mode == "rb":
            self.close()
            return
        with contextlib.suppress(Exception):  # what failed first is what is reported
            self._fs.discard()
        self._fs.closed = True

    def __iter__(self) -> Any:  # noqa: ANN401 - likewise
        return iter(self._fs)


class Files(FSSpecHandler):  # type: ignore[misc] # pyarrow ships no types
    """How pyarrow reads an object store: small files at one go, and no look whether a file is one."""

    def open_input_file(self, path: str, size_bytes: int | None = None) -> NativeFile:
        """Open a file for reading; its size, where it is known, saves a request. Raises as `GuardedFileSystem` does."""
        size = int(self.fs.size(path)) if size_bytes is None else size_bytes
        if size <= WHOLE_BYTES:
            return BufferReader(self.fs.cat_file(path))
        return PythonFile(self.fs.open(path, mode="rb", cache_type="none", size=size), mode="r")
