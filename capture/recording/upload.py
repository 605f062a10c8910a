"""Upload: sends sealed segments to the store under content-based names, so that sending one twice is harmless.

    ….sealed ─▶ PUT ─▶ verify ─▶ ….acked ─▶ deleted

Object stores show an object whole or not at all. Elsewhere the bytes go to a name ending in .tmp first, which ingest
does not look at, and are renamed when they are all there.
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
"""Extras of ours that bring what opens a protocol."""
_BUSY: Final = frozenset({429, 503})


class UploadError(RanklakeError):
    """A segment could not be stored; it stays in the local spool."""


@dataclass(frozen=True, slots=True)
class UploadResult:
    """What one round over a stream did: segments and rows stored, segments left."""

    segments: int = 0
    rows: int = 0
    left: int = 0


def missing_package(uri: str) -> str:
    """Return what is missing for a spool's URI to be opened, and how to get it; empty if nothing is."""
    protocol, has_scheme, _ = uri.partition("://")
    if not has_scheme or "::" in uri:
        return ""
    from fsspec.registry import known_implementations, registry  # not before there is a spool

    if protocol in registry:
        return ""
    known = known_implementations.get(protocol)
    if known is None:
        return f"unknown file system {protocol!r}"
    module = known["class"].partition(".")[0]
    if importlib.util.find_spec(module) is not None:
        return ""
    extra = _EXTRAS.get(protocol)
    wanted = f"'ranklake[{extra}]'" if extra else module
    return f"pip install {wanted}"


class Uploader:
    """The store behind a spool URI. One object may serve several threads.

    Parameters
    ----------
    uri
        Folder or fsspec URI of the spool.
    storage_options
        Handed to fsspec as they are, except for references among them, which are followed again after a failure, and
        ``put``: keywords that go with each PUT, such as ``encryption_scope`` for
        az:// and ``kms_key_name`` for gs://. (s3:// has a place for them, ``s3_additional_kwargs``.)

    Attributes
    ----------
    retries
        Tries that failed.
    last_error
        Why the last try failed, without credentials; empty after a try that succeeded.
    """

    def __init__(
        self, uri: str, storage_options: Mapping[str, Any] | None = None, breaker: Breaker | None = None
    ) -> None:
        self.uri = uri
        self.breaker = breaker or Breaker()
        self.retries = 0
        self.last_error = ""
        self._given = dict(storage_options or {})
        self._options = self._given
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
        """Upload what is sealed in a stream's folder, one by one.

        Parameters
        ----------
        acked
            Told of each segment that is stored.
        stop
            Asked before each segment.
        deadline
            `time.monotonic` until which waits of the breaker are sat out; by default a wait ends the round.

        Returns
        -------
        What was done. Nothing is raised for a store that fails: see `last_error`. Raises `OSError` if the local
        spool does.

        Notes
        -----
        Bytes that decayed on the disk are sent all the same: ingest sees that they do not have the digest in their
        name, and puts them into quarantine, counted. What the node's agent sent meanwhile is passed over.
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
            file.acked.unlink()  # the agent has sent it; if nobody has, the folder vanished, and this raises
            return True
        if not self.send(file.remote(name), raw, deadline):
            return False
        file.acknowledge().unlink(missing_ok=True)
        return True

    def send(self, path: str, raw: bytes, deadline: float | None = None) -> bool:
        """Store bytes under a path below the spool, as often as the breaker lets it until a deadline.

        Return whether they are there; if not, `last_error` says why. By default one try is made, if the breaker has
        nothing against it.
        """
        while self._may_go(deadline):
            try:
                self.put(path, raw)
            except Exception as error:  # noqa: BLE001 - object stores raise a class of their own per client
                self.retries += 1
                self.last_error = self._error_line(error)
                if LATER in self._given:  # what references give may have been rotated
                    forget()
                    self._store = None
                self.breaker.failed(throttled=_is_throttled(error))
                if deadline is None:
                    return False
            except BaseException:  # the process is being ended: whoever catches that finds no probe under way
                self.breaker.failed()
                raise
            else:
                self.breaker.succeeded()
                self.last_error = ""
                return True
        return False

    def _error_line(self, error: Exception) -> str:
        """Return one line about an error that may be logged: clients quote requests, and requests may be signed."""
        line = " ".join(f"{type(error).__name__}: {error}".split())
        return remove_secrets(line, secrets_in(self._options))[:300]

    def put(self, path: str, raw: bytes) -> None:
        """Store bytes under a path below the spool and verify them. Raises what the store raises."""
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
            raise UploadError(f"the store holds {size} bytes of {len(raw)}", where=f"{self.uri}/{path}")

    def _put_object(self, fs: "fsspec.AbstractFileSystem", target: str, raw: bytes) -> None:
        if self._put_options and "gs" in fs.protocol:  # its pipe_file knows of no such keywords
            with fs.open(target, "wb", **self._put_options) as file:
                file.write(raw)
        else:
            fs.pipe_file(target, raw, **self._put_options)

    def _connect(self) -> "tuple[fsspec.AbstractFileSystem | None, str]":
        """Return the store, an object of our own: what is set here must not reach the caller's other uses of it.

        None stands for this machine's folders, which need no client.
        """
        if self._store is None:
            self._store = _folder(self.uri) or self._client()
        return self._store

    def _client(self) -> "tuple[fsspec.AbstractFileSystem | None, str]":
        # Only where there is a store: the agent starts a process every minute, and half of its start would be this.
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        self._options = followed_options(self.uri, self._given)  # what is known from here on is hidden in errors
        self._put_options = dict(self._options.pop(PUT, None) or {})
        options = _one_try(self.uri, self._options)
        fs, root = fsspec.url_to_fs(self.uri, skip_instance_cache=True, **options)
        if hasattr(fs, "retries"):
            fs.retries = 1
        return None if isinstance(fs, LocalFileSystem) else fs, str(root).rstrip("/")


def _folder(uri: str) -> tuple[None, str] | None:
    """Return where a URI that is a plain path leads; None if fsspec has to be asked."""
    if "://" in uri or "::" in uri:
        return None
    return None, str(Path(uri).expanduser().absolute())


def _one_try(uri: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options by which a client tries once: a store that is asked too much is to be left alone, by the breaker.

    Left to themselves, s3fs and botocore ask it some twenty times before they say a word.
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
        sound = temporary.read_bytes() == raw
        if sound:
            temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if not sound:
        temporary.unlink()
        raise UploadError("the bytes read back are not those written", where=str(target))
    sync_folder(target.parent)


def _is_throttled(error: BaseException | None) -> bool:
    """Whether a store's error means: too many requests. Looks for an HTTP status where the clients put it."""
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
        Its path below the spool when it is sent alone.
    uri
        The spool that it is meant for; empty if nobody said.
    size_bytes, age_s
        Of the file, and since it was sealed.
    adopted
        True if its process is dead: then it is sent at once, and nobody else deletes it.
    """

    file: SealedFile
    remote: str
    uri: str
    size_bytes: int
    age_s: float
    adopted: bool


def packs_of(waiting: list[WaitingSegment]) -> Iterator[list[WaitingSegment]]:
    """Yield what goes into one pack each: one spool's segments, those of one table side by side."""
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
