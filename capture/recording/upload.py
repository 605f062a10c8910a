"""Upload: send sealed segments to the store under content-based names, so that a repeated upload does no harm.

    ….sealed ─▶ PUT ─▶ verify ─▶ ….acked ─▶ deleted

In object stores, an object appears only when it is complete. In other stores, the bytes are first written to a name
ending in .tmp, which ingest ignores, and then renamed.
"""

import contextlib
import importlib.util
import os
import posixpath
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.recording.breaker import Breaker
from ranklake.capture.spool.files import sync_folder
from ranklake.capture.spool.stream_files import SealedFile, StreamName, ready_files
from ranklake.errors import RanklakeError
from ranklake.redaction.redact import remove_secrets, secrets_in
from ranklake.segments.references import forget
from ranklake.segments.storage_options import LATER, PUT, followed_options

if TYPE_CHECKING:
    import fsspec

_OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "r2"})
_EXTRAS: Final = {"s3": "s3", "s3a": "s3"}
"""Our extras that install the client of a protocol."""
_BUSY: Final = frozenset({429, 503})


class UploadError(RanklakeError):
    """A segment could not be stored; it stays in the local spool."""


@dataclass(frozen=True, slots=True)
class UploadResult:
    """Result of uploading a stream: segments and rows stored, and segments left."""

    segments: int = 0
    rows: int = 0
    left: int = 0


def missing_package(uri: str) -> str:
    """Return why a spool's URI cannot be opened, with the command that installs its client; empty if it can."""
    protocol, has_scheme, _ = uri.partition("://")
    if not has_scheme or "::" in uri:
        return ""
    from fsspec.registry import known_implementations, registry  # not at the top: only runs with a spool pay for it

    if protocol in registry:
        return ""
    implementation = known_implementations.get(protocol)
    if implementation is None:
        return f"unknown file system {protocol!r}"
    module = implementation["class"].partition(".")[0]
    if importlib.util.find_spec(module) is not None:
        return ""
    extra = _EXTRAS.get(protocol)
    package = f"'ranklake[{extra}]'" if extra else module
    return f"pip install {package}"


class Uploader:
    """Uploads to the store of a spool URI. Several threads may share one object.

    Parameters
    ----------
    uri
        Folder or fsspec URI of the spool.
    storage_options
        Options for fsspec, with two exceptions. References to secrets are resolved, and resolved again after a failure.
        ``put`` has keywords for each PUT, such as ``encryption_scope`` for az:// and ``kms_key_name`` for gs:// (for
        s3://, use ``s3_additional_kwargs``).

    Attributes
    ----------
    retries
        Number of failed attempts.
    last_error
        Reason of the last failure, without credentials; empty after a success.
    """

    def __init__(
        self, uri: str, storage_options: Mapping[str, Any] | None = None, breaker: Breaker | None = None
    ) -> None:
        self.uri = uri
        self.breaker = breaker or Breaker()
        self.retries = 0
        self.last_error = ""
        self._given_options = dict(storage_options or {})
        self._options = self._given_options
        self._put_options: dict[str, Any] = {}
        self._store: tuple[fsspec.AbstractFileSystem | None, str] | None = None

    def push(
        self,
        folder: Path,
        *,
        acked: Callable[[SealedFile], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
        deadline: float | None = None,
    ) -> UploadResult:
        """Upload the sealed segments of a stream's folder, one by one.

        Parameters
        ----------
        acked
            Called with each stored segment.
        stop
            Checked before each segment; true ends the upload.
        deadline
            Time of `time.monotonic` until which to wait for the breaker; by default, a wait ends the upload.

        Returns
        -------
        Counts of stored and remaining segments. Errors of the store are not raised; see `last_error`. Raises `OSError`
        for errors of the local spool.

        Notes
        -----
        Segments that were damaged on disk are sent, too. Ingest finds that they do not match the digest in their name,
        and moves them to quarantine. Segments that the node's agent has sent meanwhile are skipped.
        """
        name = StreamName.of(folder)
        if name is None:
            return UploadResult()
        segments = rows = 0
        waiting = ready_files(folder)
        for index, file in enumerate(waiting):
            if stop() or not self._push_one(name, file, deadline):
                return UploadResult(segments, rows, len(waiting) - index)
            segments, rows = segments + 1, rows + file.rows
            if acked is not None:
                acked(file)
        return UploadResult(segments, rows, 0)

    def _may_go(self, deadline: float | None) -> bool:
        while (wait := self.breaker.wait_s()) > 0:
            if deadline is None or time.monotonic() + wait > deadline:
                return False
            time.sleep(wait)
        return True

    def _push_one(self, name: StreamName, file: SealedFile, deadline: float | None) -> bool:
        try:
            raw = file.read_to_send()
        except FileNotFoundError:
            file.acked.unlink()  # the agent has sent it; if not, the folder was deleted, and this raises
            return True
        if not self.send(file.remote(name), raw, deadline):
            return False
        file.acknowledge().unlink(missing_ok=True)
        return True

    def send(self, path: str, raw: bytes, deadline: float | None = None) -> bool:
        """Store bytes under a path in the spool, with repeated attempts until a deadline, as the breaker allows.

        Return whether they were stored; if not, `last_error` has the reason. Without a deadline, there is at most one
        attempt.
        """
        while self._may_go(deadline):
            try:
                self.put(path, raw)
            except Exception as error:  # noqa: BLE001 - each store's client raises different classes
                self.retries += 1
                self.last_error = self._error_line(error)
                if LATER in self._given_options:  # referenced secrets may have been rotated
                    forget()
                    self._store = None
                self.breaker.failed(throttled=_is_throttled(error))
                if deadline is None:
                    return False
            except BaseException:  # the process is being ended: do not leave the breaker in a probe
                self.breaker.failed()
                raise
            else:
                self.breaker.succeeded()
                self.last_error = ""
                return True
        return False

    def _error_line(self, error: Exception) -> str:
        """Return one line about an error, without secrets: clients quote requests, which may contain signatures."""
        line = " ".join(f"{type(error).__name__}: {error}".split())
        return remove_secrets(line, secrets_in(self._options))[:300]

    def put(self, path: str, raw: bytes) -> None:
        """Store bytes under a path in the spool and verify their size. Raises the store's errors."""
        fs, root = self._connect()
        target = f"{root}/{path}"
        if fs is None:
            _put_local(Path(target), raw)
            return
        if _OBJECT_STORES.isdisjoint([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol):
            temporary = f"{target}.{secrets.token_hex(4)}.tmp"
            fs.makedirs(posixpath.dirname(target), exist_ok=True)
            fs.pipe_file(temporary, raw)
            fs.mv(temporary, target)
        else:
            self._put_object(fs, target, raw)
        fs.invalidate_cache(posixpath.dirname(target))
        size = fs.info(target)["size"]
        if size != len(raw):
            raise UploadError(f"the store has {size} bytes of {len(raw)}", where=f"{self.uri}/{path}")

    def _put_object(self, fs: "fsspec.AbstractFileSystem", target: str, raw: bytes) -> None:
        if self._put_options and "gs" in fs.protocol:  # its pipe_file does not accept these keywords
            with fs.open(target, "wb", **self._put_options) as file:
                file.write(raw)
        else:
            fs.pipe_file(target, raw, **self._put_options)

    def _connect(self) -> "tuple[fsspec.AbstractFileSystem | None, str]":
        """Return the store's client and the root path; None as the client for local folders.

        The client is not shared, so that changing its settings does not affect other code of the process.
        """
        if self._store is None:
            self._store = _folder(self.uri) or self._client()
        return self._store

    def _client(self) -> "tuple[fsspec.AbstractFileSystem | None, str]":
        # Not at the top: the agent starts a process every minute, and these imports would double its start time.
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        self._options = followed_options(self.uri, self._given_options)  # `_error_line` removes these secrets
        self._put_options = dict(self._options.pop(PUT, None) or {})
        options = _one_try(self.uri, self._options)
        fs, root = fsspec.url_to_fs(self.uri, skip_instance_cache=True, **options)
        if hasattr(fs, "retries"):
            fs.retries = 1
        return None if isinstance(fs, LocalFileSystem) else fs, str(root).rstrip("/")


def _folder(uri: str) -> tuple[None, str] | None:
    """Return the absolute path of a URI that is a plain path; None if it needs fsspec."""
    if "://" in uri or "::" in uri:
        return None
    return None, str(Path(uri).expanduser().absolute())


def _one_try(uri: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options that turn off a client's own retries, because the breaker decides when to try again.

    By default, s3fs and botocore try about twenty times before they report an error.
    """
    if not uri.startswith(("s3://", "s3a://")):
        return options
    config = dict(options.get("config_kwargs") or {})
    config.setdefault("retries", {"total_max_attempts": 1})
    return {**options, "config_kwargs": config}


def _put_local(target: Path, raw: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name[-64:]}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        is_equal = temporary.read_bytes() == raw
        if is_equal:
            temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if not is_equal:
        temporary.unlink()
        raise UploadError("the bytes read back are not those written", where=str(target))
    sync_folder(target.parent)


def _is_throttled(error: BaseException | None) -> bool:
    """Whether a store's error means too many requests, by the HTTP status in the places where clients put it."""
    while error is not None:
        response = getattr(error, "response", None)
        statuses = [getattr(error, name, None) for name in ("status", "status_code", "code", "http_status")]
        statuses.append(getattr(response, "status_code", None))
        if isinstance(response, Mapping):
            statuses.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
        if any(status in _BUSY for status in statuses if isinstance(status, int)) or "SlowDown" in str(error):
            return True
        error = error.__cause__
    return False


PACK_BYTES: Final = 32 << 20
PACK_MEMBERS: Final = 5000


@dataclass(frozen=True, slots=True)
class WaitingSegment:
    """A sealed segment of some stream.

    Attributes
    ----------
    remote
        Path in the spool if it is sent alone.
    uri
        Destination; empty if unknown.
    size_bytes, age_s
        Size of the file, and time since it was sealed.
    adopted
        Whether its process is dead. Such a segment is sent immediately, and deleted by the agent.
    """

    file: SealedFile
    remote: str
    uri: str
    size_bytes: int
    age_s: float
    adopted: bool


def packs_of(waiting: list[WaitingSegment]) -> Iterator[list[WaitingSegment]]:
    """Yield the members of each pack: segments for the same spool, sorted by table."""
    members: list[WaitingSegment] = []
    size = 0
    for item in sorted(waiting, key=lambda item: (item.uri, item.file.table, item.remote)):
        full = size + item.size_bytes > PACK_BYTES or len(members) >= PACK_MEMBERS
        if members and (full or item.uri != members[0].uri):
            yield members
            members, size = [], 0
        members.append(item)
        size += item.size_bytes
    if members:
        yield members
