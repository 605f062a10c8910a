"""Hashing: fingerprints of files, computed by a background thread, and the rows of `artifacts` that they become."""

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
_LONGEST: Final = 1024
_LONGEST_MESSAGE: Final = 4096


def short_text(value: object) -> str | None:
    """Return a text as columns have it, redacted and cut; None for None."""
    return None if value is None else redacted_text(value, _LONGEST)


def shown_place(place: Place) -> str:
    """Return a place as others can find it: a URI without its user, or an absolute path."""
    shown = os.fspath(place)
    return text(redact_uri(text(shown if "://" in shown else os.path.abspath(shown))), 4096)  # noqa: PTH100 - links stay


def last_part(uri: str) -> str:
    """Return the last part of a path or a URI."""
    return uri.rstrip("/").rpartition("/")[2]


def given_digest(sha256: str) -> str | None:
    """Return a SHA-256 that a caller gave as rows have it: lower case, without the algorithm's name before it."""
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
    """Return what is known of an artifact at once; ``attributes`` is a mapping still, to which reasons are added."""
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
    """Return what an exception says, redacted, and how long it took until then."""
    columns: Columns = {"duration_ns": spent_ns, "blocking_ns": spent_ns}
    if error is not None:
        kind = type(error)
        columns |= {"exception_type": text(getattr(kind, "__qualname__", kind), 256)}
        columns |= {"exception_message": redacted_text(error, _LONGEST_MESSAGE)}
    return columns


def attributes_text(attributes: Mapping[str, object], why: Mapping[str, str]) -> str | None:
    """Return the JSON of attributes, with why columns have no value."""
    return json_text({**attributes, "unavailable": dict(why)} if why else dict(attributes) or None)


RUN_ENDED: Final = "the run ended before it was found out"


class Hashing:
    """Has files of one run hashed, one after the other.

    Parameters
    ----------
    root
        Local spool, which keeps the digests of files that do not change; None for a run that records nothing.
    """

    def __init__(self, sink: Sink, lifecycle: Lifecycle, root: Path | None) -> None:
        self._sink, self._lifecycle, self._root = sink, lifecycle, root
        self.background: Background | None = None

    def submit(self, job: Callable[[Callable[[], bool]], None], table: str, *, wait: bool) -> None:
        """Have a job done beside training, which writes a row of a table; see `Background`."""
        if not self._sink.enabled:
            self._sink.record(table, {})  # counted
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
        why: dict[str, str],
        column: str,
        *,
        is_cached: bool = True,
    ) -> MerkleDigest:
        """Return a fingerprint; an empty one, and why, if it could not be taken.

        Parameters
        ----------
        is_cached
            Whether the digest of a file that looks unchanged may stand for reading it.
        """
        from ranklake.capture.assets.known_files import KnownFiles  # sqlite: not before something is hashed

        known = None if self._root is None or not is_cached else KnownFiles(self._root)
        try:
            return merkle_digest(place, known=known, storage_options=options, stopped=stopped)
        except StoppedError:
            why[column] = RUN_ENDED
        except OSError as error:
            why[column] = error.strerror or type(error).__name__
        except Exception as error:  # noqa: BLE001 - file systems of all kinds
            why[column] = type(error).__name__
        finally:
            if known is not None:
                known.close()
        return MerkleDigest()

    def keep_checkpoint(self, place: str, sha256: str, state: str) -> None:
        """Keep the digest of a checkpoint that was written, for loads of it on this node."""
        known = self._known_checkpoints()
        if known is not None:
            known.put(place, sha256, state)

    def known_checkpoint(self, place: str) -> tuple[str, str] | None:
        """Return digest and state of what was last written to a place on this node; None if they are not known."""
        known = self._known_checkpoints()
        return None if known is None else known.get(place)

    def _known_checkpoints(self) -> "KnownCheckpoints | None":
        from ranklake.capture.assets.known_files import KnownCheckpoints  # sqlite, as above

        return None if self._root is None else KnownCheckpoints(self._root)


_JOIN_S: Final = 2.0


class Background:
    """A queue of jobs and the thread that does them, which is there while there are any.

    Notes
    -----
    A job is called with a function that says whether to give up; it then writes down what it has, and returns. A
    forked child has no such thread: what is given there is done at once, and what its parent has to do is left to it.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._jobs: deque[tuple[Callable[[Callable[[], bool]], None], threading.Event]] = deque()
        self._lock = threading.RLock()  # a signal's handler may write a checkpoint in the middle of this
        self._thread: threading.Thread | None = None
        self._stopping = False

    def submit(self, job: Callable[[Callable[[], bool]], None]) -> threading.Event:
        """Have a job done; the event is set when it is. Raises `RuntimeError` where no thread can be started."""
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
        """Wait until all is done that was submitted so far."""
        deadline = time.monotonic() + timeout_s
        if os.getpid() == self._pid:
            for _, done in list(self._jobs):
                done.wait(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Have what is left given up: each job still writes down that it was."""
        self._stopping = True
        thread = self._thread
        if thread is not None and os.getpid() == self._pid and thread is not threading.current_thread():
            thread.join(_JOIN_S)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job, done = self._jobs[0]
            try:
                job(lambda: self._stopping)
            except Exception as error:  # noqa: BLE001 - the next job's turn must come
                LOGGER.warning("ranklake: in the background: %s: %s", type(error).__name__, error)
            finally:
                done.set()
                self._jobs.popleft()
