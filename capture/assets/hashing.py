"""Hashing: computes fingerprints of files in a background thread, and columns of `artifacts`."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.assets.merkle_digest import MerkleDigest, StoppedError, merkle_digest
from ranklake.capture.common.gaps import LOGGER
from ranklake.capture.common.values import integer, json_text, redacted_name, redacted_text, text, to_json
from ranklake.capture.lanes.series import check_name
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.lifecycle.lifecycle import Lifecycle
from ranklake.redaction.redact import redact_names, redact_uri

if TYPE_CHECKING:
    from ranklake.capture.assets.known_files import KnownCheckpoints

Place = str | os.PathLike[str]
_MAX_CHARACTERS: Final = 1024
_MAX_MESSAGE_CHARACTERS: Final = 4096


def short_text(value: object) -> str | None:
    """Convert a value to text for a column, redacted and cut at `_MAX_CHARACTERS`; None for None."""
    return None if value is None else redacted_text(value, _MAX_CHARACTERS)


def shown_place(place: Place) -> str:
    """Return a path as an absolute path, or a URI without credentials."""
    path = os.fspath(place)
    path = path if "://" in path else os.path.abspath(path)  # noqa: PTH100 - keep symbolic links
    return text(redact_uri(text(path)), 4096)


def last_part(uri: str) -> str:
    """Return the last part of a path or a URI."""
    return uri.rstrip("/").rpartition("/")[2]


def given_digest(sha256: str) -> str | None:
    """Normalize a caller's SHA-256 to lower case without the prefix ``sha256:``."""
    return redacted_text(sha256.strip().lower().removeprefix("sha256:"), 64)


Columns = dict[str, Any]

KINDS: Final = frozenset({"checkpoint", "model", "profile", "dump", "plot", "dataset", "log", "other"})
NOT_READ_BACK: Final = "it is in a store, and is not read back unasked"


def artifact_row(
    action: str,
    name: str,
    place: Place,
    *,
    kind: str,
    step: object = None,
    inputs: Sequence[str] = (),
    attributes: Mapping[str, object] | None = None,
) -> Columns:
    """Return the columns of an artifact that need no hashing; ``attributes`` is still a mapping, not JSON."""
    return {
        "name": check_name(name),
        "kind": kind if kind in KINDS else "other",
        "action": action,
        "uri": shown_place(place),
        "step": None if step is None else integer(step),
        "inputs": json_text([redacted_name(item, 80) for item in inputs] or None),
        "attributes": redact_names(to_json(dict(attributes or {}))),
    }


def failure_columns(error: BaseException | None, spent_ns: int | None) -> Columns:
    """Return the columns of a failure: type and redacted message of the exception, and the time until it."""
    columns: Columns = {"duration_ns": spent_ns, "blocking_ns": spent_ns}
    if error is not None:
        kind = type(error)
        columns |= {"exception_type": text(getattr(kind, "__qualname__", kind), 256)}
        columns |= {"exception_message": redacted_text(error, _MAX_MESSAGE_CHARACTERS)}
    return columns


def attributes_text(attributes: Mapping[str, object], reasons: Mapping[str, str]) -> str | None:
    """Return attributes as JSON, with the reasons why columns have no value under ``unavailable``."""
    return json_text({**attributes, "unavailable": dict(reasons)} if reasons else dict(attributes) or None)


RUN_ENDED: Final = "the run ended before it was found out"


class Hashing:
    """Hashes the files of one run in the background, one after the other.

    Parameters
    ----------
    root
        Local spool, which caches digests of unchanged files; None for a run that records nothing.
    """

    def __init__(self, sink: Sink, lifecycle: Lifecycle, root: Path | None) -> None:
        self._sink, self._lifecycle, self._root = sink, lifecycle, root
        self.background: Background | None = None

    def submit(self, job: Callable[[Callable[[], bool]], None], table: str, *, wait: bool) -> None:
        """Run a job that records a row of a table in the background (`Background`); `wait` for its end."""
        if not self._sink.enabled:
            self._sink.record(table, {})  # counts the missing row
            return
        if self.background is None:
            self.background = Background()
            self._lifecycle.drains.append(self.background.drain)
            self._lifecycle.closers.append(self.background.close)
        done = self.background.submit(job)
        if wait:
            done.wait()

    def merkle_digest(
        self,
        place: Place,
        options: dict[str, Any],
        stopped: Callable[[], bool],
        reasons: dict[str, str],
        column: str,
        *,
        is_cached: bool = True,
    ) -> MerkleDigest:
        """Return a fingerprint; if that fails, an empty one, and the reason in `reasons` under `column`.

        Parameters
        ----------
        is_cached
            Whether to use cached digests of files whose status is unchanged.
        """
        from ranklake.capture.assets.known_files import KnownFiles  # imports sqlite3, needed only for hashing

        known = None if self._root is None or not is_cached else KnownFiles(self._root)
        try:
            return merkle_digest(place, known=known, storage_options=options, stopped=stopped)
        except StoppedError:
            reasons[column] = RUN_ENDED
        except OSError as error:
            reasons[column] = error.strerror or type(error).__name__
        except Exception as error:  # noqa: BLE001 - any file system of fsspec
            reasons[column] = type(error).__name__
        finally:
            if known is not None:
                known.close()
        return MerkleDigest()

    def keep_checkpoint(self, place: str, sha256: str, state: str) -> None:
        """Cache the digest of a written checkpoint, to verify later loads on this node."""
        known = self._known_checkpoints()
        if known is not None:
            known.put(place, sha256, state)

    def known_checkpoint(self, place: str) -> tuple[str, str] | None:
        """Return digest and state of the last checkpoint written to a path on this node; None if not cached."""
        known = self._known_checkpoints()
        return None if known is None else known.get(place)

    def _known_checkpoints(self) -> "KnownCheckpoints | None":
        from ranklake.capture.assets.known_files import KnownCheckpoints  # imports sqlite3

        return None if self._root is None else KnownCheckpoints(self._root)


_JOIN_TIMEOUT_S: Final = 2.0


class Background:
    """A queue of jobs, and a thread that runs them and ends when the queue is empty.

    Notes
    -----
    A job is called with a function that returns whether to stop. It then records an incomplete row, and returns. A
    forked child has no such thread: it runs its own jobs immediately, and not those of its parent.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._jobs: deque[tuple[Callable[[Callable[[], bool]], None], threading.Event]] = deque()
        self._lock = threading.RLock()  # reentrant: a signal handler may write a checkpoint here
        self._thread: threading.Thread | None = None
        self._stopping = False

    def submit(self, job: Callable[[Callable[[], bool]], None]) -> threading.Event:
        """Add a job, and return an event that is set at its end. Raises `RuntimeError` if no thread can be started."""
        done = threading.Event()
        if os.getpid() != self._pid:
            job(lambda: False)
            done.set()
            return done
        with self._lock:
            self._jobs.append((job, done))
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="ranklake-background", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no thread can be started
                    self._jobs.pop()
                    raise
                self._thread = thread
        return done

    def drain(self, timeout_s: float) -> None:
        """Wait until all jobs submitted so far have ended, at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        if os.getpid() == self._pid:
            for _, done in list(self._jobs):
                done.wait(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Tell all remaining jobs to stop, and wait briefly for them to record that they did."""
        self._stopping = True
        thread = self._thread
        if thread is not None and os.getpid() == self._pid and thread is not threading.current_thread():
            thread.join(_JOIN_TIMEOUT_S)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job, done = self._jobs[0]
            try:
                job(lambda: self._stopping)
            except Exception as error:  # noqa: BLE001 - continue with the next job
                LOGGER.warning("ranklake: in the background: %s: %s", type(error).__name__, error)
            finally:
                done.set()
                self._jobs.popleft()
