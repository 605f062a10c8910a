"""Loads: records checkpoints that a run loads, verifies their digests, and records failed loads and saves.

end of loading    duration and path
background        the files are hashed again, without cached digests
row `loaded`      verified: true if the digest equals the expected one, or the one recorded on this node; false if it
                  differs and no file was written since; otherwise NULL, with the reason in attributes
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from ranklake.capture.assets.file_entries import state_of
from ranklake.capture.assets.hashing import (
    NOT_READ_BACK,
    Columns,
    Hashing,
    Place,
    artifact_row,
    attributes_text,
    failure_columns,
    given_digest,
    last_part,
    shown_place,
)
from ranklake.capture.common.monotonic import now
from ranklake.capture.lanes.sink import Sink

NO_DIGEST: Final = "no digest of it was recorded on this node"
WRITTEN_SINCE: Final = "it was written again since its digest was recorded"
NOT_HASHED: Final = "it was not hashed"


class Loads:
    """Records loads of checkpoints, and failures, of one run, without making training wait."""

    def __init__(self, sink: Sink, hashing: Hashing) -> None:
        self._sink, self._hashing = sink, hashing

    @contextmanager
    def loading(
        self,
        /,
        place: Place,
        *,
        step: int | None = None,
        sha256: str | None = None,
        name: str | None = None,
        **attributes: object,
    ) -> Iterator[Place]:
        """Record that the block loads a checkpoint, and verify its digest; a row of ``artifacts``.

            with run.loading("out/step-100.pt", step=100) as place:
                state = torch.load(place)

        The row's action is ``loaded``, or ``load_failed`` if the block raises; the exception is not caught. After the
        block, the files are hashed in the background. ``verified`` is true if the digest is the expected one, and false
        if it differs. It is NULL for a URI, or without an expected digest; ``attributes`` has the reason. The block
        runs even if the run records nothing.

        Parameters
        ----------
        place
            A file, a folder or a URI; it is yielded unchanged.
        step
            The step whose state the checkpoint contains.
        sha256
            The expected digest, in the form of ``artifacts.sha256``; by default the one recorded when a rank of this
            node wrote the checkpoint.
        """
        start_ns = time.monotonic_ns()
        facts: Mapping[str, Any] = {"step": step, "name": name, "attributes": attributes}
        try:
            yield place
        except BaseException as error:
            self.failed("load_failed", place, error, spent_ns=time.monotonic_ns() - start_ns, **facts)
            raise
        self.record_load(place, spent_ns=time.monotonic_ns() - start_ns, sha256=sha256, **facts)

    def record_load(
        self,
        place: Place,
        *,
        spent_ns: int | None,
        step: int | None = None,
        sha256: str | None = None,
        name: str | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> None:
        """Record a loaded checkpoint, after hashing it in the background.

        Parameters
        ----------
        spent_ns
            Duration of the load.
        sha256
            The expected digest; by default the one recorded when a rank of this node wrote the checkpoint.
        """
        with self._sink.recording("artifacts"):
            uri = shown_place(place)
            columns = artifact_row(
                "loaded", name or last_part(uri), place, kind="checkpoint", step=step, attributes=attributes
            )
            columns |= {"duration_ns": spent_ns, "blocking_ns": spent_ns}
            columns["expected_sha256"] = None if sha256 is None else given_digest(sha256)
            if "://" in uri:
                reasons = dict.fromkeys(("sha256", "verified"), NOT_READ_BACK)
                attributes_json = attributes_text(columns["attributes"], reasons)
                self._sink.record("artifacts", columns | {"attributes": attributes_json})
            else:
                self._hashing.submit(partial(self._finish, columns, place, now()), "artifacts", wait=False)

    def failed(
        self,
        action: str,
        place: Place,
        error: BaseException | None,
        *,
        spent_ns: int | None = None,
        step: int | None = None,
        name: str | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> None:
        """Record immediately that a checkpoint could not be saved (``save_failed``) or loaded (``load_failed``)."""
        with self._sink.recording("artifacts"):
            label = name or last_part(shown_place(place))
            columns = artifact_row(action, label, place, kind="checkpoint", step=step, attributes=attributes)
            columns["attributes"] = attributes_text(columns["attributes"], {})
            self._sink.record("artifacts", columns | failure_columns(error, spent_ns))

    def _finish(self, columns: Columns, place: Place, moment: int, stopped: Callable[[], bool]) -> None:
        with self._sink.recording("artifacts"):
            reasons: dict[str, str] = {}
            state = state_of(place)
            files = self._hashing.merkle_digest(place, {}, stopped, reasons, "sha256", is_cached=False)
            if files.unreadable:
                reason = next(iter(files.unreadable.values()))
                reasons["sha256"] = f"{files.unreadable_count} files cannot be read: {reason}"
            elif files.root_sha256:
                columns |= {"sha256": files.sha256, "bytes": files.size_bytes, "file_count": files.file_count}
            self._verify(columns, state, reasons)
            attributes_json = attributes_text(columns["attributes"], reasons)
            self._sink.record("artifacts", columns | {"attributes": attributes_json}, moment)

    def _verify(self, columns: Columns, state: str, reasons: dict[str, str]) -> None:
        """Set ``verified``, or its reason in `reasons` if there is nothing to compare."""
        digest, expected = columns.get("sha256"), columns["expected_sha256"]
        recorded = None if expected else self._hashing.known_checkpoint(os.fspath(columns["uri"]))
        if recorded is not None:
            expected, recorded_state = recorded
            if digest is not None and expected != digest and recorded_state != state:
                reasons["verified"] = WRITTEN_SINCE
                return
        columns["expected_sha256"] = expected
        if digest is None:
            reasons["verified"] = NOT_HASHED
        elif expected is None:
            reasons["verified"] = NO_DIGEST
        else:
            columns["verified"] = digest == expected
