"""A place for files: a local folder, or a prefix of a bucket, with the client that reads and writes it.

Storage options have the names of delta-rs. They are translated for fsspec (s3fs, gcsfs, adlfs), so that users configure
a bucket once. Both clients give up within a minute, and errors contain no secrets.
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
    """The place of a lake, a witness, an archive, a share, or of pages.

    Attributes
    ----------
    uri
        URI or folder as the user gave it, without a trailing slash.
    storage
        Options with the names of delta-rs. References to secrets are not resolved here, so that a pickled store
        contains no secret.
    fs, root
        The fsspec file system, and the path of the place in it.
    """

    uri: str
    storage: dict[str, str] = field(default_factory=dict, repr=False)
    fs: Any = field(default=None, repr=False, compare=False)
    root: str = ""

    def __repr__(self) -> str:
        return f"<store {redact_uri(self.uri)}>"

    @classmethod
    def at(cls, uri: str, storage: dict[str, str] | None = None) -> "Store":
        """Return the store for a URI or folder, without a request. Raises `LakeError` or `LakeUnreachableError`."""
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
        """Return the bytes of the lake's marker. Raises `NotALakeError` or `LakeUnreachableError`."""
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
        """Options for delta-rs, with secrets resolved. Raises `ranklake.segments.references.SecretError`."""
        return dict(self.storage) if self.is_local else resolve_references(self.storage)

    @property
    def number(self) -> str:
        """The unique id of the lake, from its marker; empty if the marker contains none."""
        try:
            return str(json.loads(self.fs.cat_file(self.path(MARKER))).get("lake", ""))
        except (ValueError, AttributeError, RecursionError):
            return ""

    @property
    def address(self) -> str:
        """The URI for other processes; for a folder its absolute path."""
        return self.root if self.is_local else self.uri

    @property
    def is_local(self) -> bool:
        """Whether the place is a folder of this machine."""
        return isinstance(self.fs, LocalFileSystem)

    def arrow_filesystem(self) -> FileSystem:
        """Return the file system for pyarrow; for a local place Arrow's own, which is faster than fsspec's."""
        return ArrowLocal() if self.is_local else PyFileSystem(Files(self.fs))

    def open_file(self, path: str, size_bytes: int | None = None) -> NativeFile:
        """Open a file for pyarrow. A known `size_bytes` saves one request.

        Raises `FileNotFoundError`, `OSError` or `LakeUnreachableError`.
        """
        return ArrowLocal().open_input_file(path) if self.is_local else Files(self.fs).open_input_file(path, size_bytes)

    def path(self, *parts: str) -> str:
        """Return the path in `fs` of a file or folder of the place."""
        return "/".join([self.root, *parts])

    def table_uri(self, table: str) -> str:
        """Return the URI of a Delta table for delta-rs, percent-encoded for object stores."""
        scheme, mark, rest = self.address.partition("://")
        return f"{scheme}{mark}{quote(rest)}/tables/{table}"

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a file atomically unless the name exists. Returns whether this call wrote it.

        Readers see the complete file or none. If the process is killed, a temporary file may remain on a local disk.
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
            with suppress(OSError):  # opening it may have failed
                os.unlink(scratch)  # noqa: PTH108 - likewise

    def overwrites(self, name: str, data: bytes) -> bool:
        """Whether the store ignores the condition of `put_if_absent`, so that two commits could both succeed.

        The file must exist and contain `data`, so that nothing changes in either case. Raises `LakeUnreachableError`.
        """
        return self.put_if_absent(name, data)


def _link(scratch: str, target: str) -> bool:
    """Link a temporary file to its final name. Returns False if the name exists; a rename would overwrite it.

    Only this call may conclude from `FileExistsError` that the name exists. Creating the folder raises it, too, if a
    file has the folder's name, or on network file systems whose listing lags behind.
    """
    try:
        os.link(scratch, target)
    except FileExistsError:
        return False
    return True


WHOLE_BYTES: Final = 16 * 2**20
"""Files up to this size are read with one request, because a request takes as long as reading a few MiB."""
_AZURE_SCOPE: Final = "https://storage.azure.com/.default"
_QUIET: Final = logging.NullHandler()
_GS: Final = ("gs://", "gcs://")
_S3: Final = ("s3://", "s3a://")
_ONE_PIECE_BYTES: Final = 5 * 2**30  # maximum of one PUT; conditions are honoured for a PUT, not for multipart uploads
_CONNECT_S, _READ_S, _TRIES = 5, 8, 3
"""Timeouts and number of tries. A store that accepts connections and never answers costs half a minute."""
_REQUEST_S: Final = 60
"""Timeout of a complete request of delta-rs."""
_CONFLICT: Final = 409  # S3: another conditional request for the same name is in progress
_PRECONDITION_FAILED: Final = 412
_REFUSED: Final = frozenset({400, 401, 403})
"""HTTP statuses for expired credentials. S3 answers 400 to an expired token."""
_PASSED_ON: Final = (FileNotFoundError, FileExistsError, NotImplementedError, RanklakeError, AttributeError, TypeError)
"""Exceptions that `GuardedFileSystem` does not translate."""


def file_system(uri: str, storage: Mapping[str, str]) -> tuple[Any, str]:
    """Return the fsspec file system of a URI or folder, and the path in it. Translates delta-rs's option names.

    For object stores the file system is a `GuardedFileSystem`. Raises `LakeUnreachableError`.
    """
    options = fsspec_options(uri, storage) if "://" in uri else {}  # folders have no options
    options.pop(PUT, None)  # the bucket's default encryption applies to files of the lake
    if "://" in uri and not uri.startswith(("file://", "memory://")):
        options["use_listings_cache"] = False  # other processes write there; listings must be current
    if uri.startswith(_S3):
        options["max_concurrency"] = 1  # otherwise s3fs requests the size of every file before it reads it
        timeouts = {"connect_timeout": _CONNECT_S, "read_timeout": _READ_S}
        retries = {"retries": {"mode": "standard", "total_max_attempts": _TRIES}}
        # also for presigned URLs: S3 rejects older signatures for new buckets and for objects encrypted with KMS
        options["config_kwargs"] = {**timeouts, **retries, "signature_version": "s3v4"}
    try:
        if uri.startswith(_S3):
            options["session"] = counted_session()
        if uri.startswith(_GS) and "token" not in options:
            # without credentials gcsfs would retry for most of a minute before it fails
            importlib.import_module("google.auth").default()
        fs, path = url_to_fs(uri, **options)
        if getattr(fs, "sync_credential", None) is not None:
            fs.sync_credential.get_token(_AZURE_SCOPE)  # without credentials adlfs would retry for 90 s
    except Exception as error:  # noqa: BLE001 - each client raises its own classes
        raise _client_error(uri, error, storage) from None
    if isinstance(fs, LocalFileSystem):
        return fs, str(path)
    logging.getLogger("gcsfs").addHandler(_QUIET)  # it logs each try with a traceback; the last error is raised anyway
    if hasattr(fs, "retries"):
        fs.retries = 1 if uri.startswith(_S3) else _TRIES  # botocore retries already
    return GuardedFileSystem(fs, uri, storage, is_client=True), str(path)


def _client_error(uri: str, error: Exception, storage: Mapping[str, str]) -> LakeUnreachableError:
    """Return the error for a URI whose client could not be created."""
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
    """Return the options for delta-rs, completed with timeouts and with those that an ``http://`` endpoint needs.

    Raises `StorageOptionError` for options with which two commits of one number could both succeed.
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
    """Write an object unless the name exists. Returns whether this call wrote it.

    The object is written with a single PUT: S3-compatible stores may ignore the condition for multipart uploads. If the
    store writes the object but its confirmation is lost, the retry finds the name taken, and the result is False
    although the object contains `data`. Raises `LakeError` if the store does not support conditional writes.
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
            if error.status == _PRECONDITION_FAILED:  # some clients do not raise FileExistsError for it
                return False
            if error.status != _CONFLICT or wait_s > _CONNECT_S:
                raise
            time.sleep(wait_s)
            wait_s *= 2
        else:
            return True


class GuardedFileSystem:
    """Wraps an fsspec file system, or one of its files, and translates errors to `LakeUnreachableError`.

    Translated errors have one line and contain no credentials. `FileNotFoundError` and `FileExistsError` are passed on.
    If the store refuses the credentials and the references to secrets now return other ones, the client is created
    again and the call repeated.
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
                result = value(*args, **options)
            except Exception as error:  # noqa: BLE001 - each client raises its own classes
                translated = self._translate_error(error)
                if not self._renew_client(translated):
                    raise translated from None
                return getattr(self, name)(*args, **options)
            if name == "cat_ranges":
                return [self._translate_error(item) if isinstance(item, Exception) else item for item in result]
            return GuardedFileSystem(result, self._uri, self._storage) if name == "open" else result

        return guarded

    def _renew_client(self, error: Exception) -> bool:
        """Create the client again after refused credentials. Returns False if there are no other credentials."""
        is_refused = isinstance(error, LakeUnreachableError) and error.status in _REFUSED
        if not is_refused or not self._made_with or not any(map(is_reference, self._storage.values())):
            return False
        forget()
        if (current := fingerprint(self._storage)) == self._made_with:
            return False
        self._made_with = current
        self._fs = file_system(self._uri, self._storage)[0]._fs  # noqa: SLF001 - of this class
        return True

    def _translate_error(self, error: Exception) -> Exception:
        return error if isinstance(error, _PASSED_ON) else unreachable(self._uri, error, self._storage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close a file. After an error, a partly written file is discarded instead of uploaded."""
        if kind is None or self.mode == "rb":
            self.close()
            return
        with contextlib.suppress(Exception):  # the first error is the one to report
            self._fs.discard()
        self._fs.closed = True

    def __iter__(self) -> Any:  # noqa: ANN401 - likewise
        return iter(self._fs)


class Files(FSSpecHandler):  # type: ignore[misc] # pyarrow ships no types
    """Reads files of an object store for pyarrow: small files with one request, none for their type."""

    def open_input_file(self, path: str, size_bytes: int | None = None) -> NativeFile:
        """Open a file for reading. A known `size_bytes` saves one request. Raises the errors of `GuardedFileSystem`."""
        size = int(self.fs.size(path)) if size_bytes is None else size_bytes
        if size <= WHOLE_BYTES:
            return BufferReader(self.fs.cat_file(path))
        return PythonFile(self.fs.open(path, mode="rb", cache_type="none", size=size), mode="r")
