"""Hashing: fingerprints of files, computed in the background, and the rows that a run records of them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.assets.artifact_row import Place
from ranklake.capture.assets.background import Background
from ranklake.capture.assets.merkle_digest import MerkleDigest, StoppedError, merkle_digest
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.lifecycle.lifecycle import Lifecycle

if TYPE_CHECKING:
    from ranklake.capture.assets.known_files import KnownCheckpoints

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
