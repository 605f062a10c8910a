"""Loads: checkpoints that were read back, whether they had the digest that was recorded, and those that failed.

loading ends    duration, place
background      the bytes are hashed, never taken from the cache of digests
row `loaded`    verified: true if that is the digest that was said, or recorded on this node; false if it is another
                and no file was written since; NULL otherwise, and the reason in attributes
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
    """The loads of one run, and what failed. Training waits for none of it."""

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
        """Time the loading of a checkpoint, and record whether it was what was saved; a row of ``artifacts``.

            with run.loading("out/step-100.pt", step=100) as place:
                state = torch.load(place)

        The row's action is ``loaded``, or ``load_failed`` if the block raises: then the exception goes on. Afterwards
        the files are read once more in the background. ``verified`` is true if their digest is the expected one, false
        if it is another, NULL if there is none to compare with, or it is a URI; ``attributes`` has the reason. This
        works in a run that records nothing, too.

        Parameters
        ----------
        place
            A file, a folder or a URI; given back as it is.
        step
            The step that it holds the state of.
        sha256
            The expected digest, as ``artifacts.sha256`` has it; by default what was recorded when a rank of this node
            wrote it.
        """
        began_ns = time.monotonic_ns()
        facts: Mapping[str, Any] = {"step": step, "name": name, "attributes": attributes}
        try:
            yield place
        except BaseException as error:
            self.failed("load_failed", place, error, spent_ns=time.monotonic_ns() - began_ns, **facts)
            raise
        self.record_load(place, spent_ns=time.monotonic_ns() - began_ns, sha256=sha256, **facts)

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
        """Record a checkpoint that was loaded just now, once it is hashed.

        Parameters
        ----------
        sha256
            What its digest should be; by default what was recorded when a rank of this node wrote it.
        """
        with self._sink.recording("artifacts"):
            uri = shown_place(place)
            columns = artifact_row(
                "loaded", name or last_part(uri), place, kind="checkpoint", step=step, attributes=attributes
            )
            columns |= {"duration_ns": spent_ns, "blocking_ns": spent_ns}
            columns["expected_sha256"] = None if sha256 is None else given_digest(sha256)
            if "://" in uri:
                why = dict.fromkeys(("sha256", "verified"), NOT_READ_BACK)
                self._sink.record("artifacts", columns | {"attributes": attributes_text(columns["attributes"], why)})
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
        """Record at once that a checkpoint could not be saved (``save_failed``) or loaded (``load_failed``)."""
        with self._sink.recording("artifacts"):
            shown = name or last_part(shown_place(place))
            columns = artifact_row(action, shown, place, kind="checkpoint", step=step, attributes=attributes)
            columns["attributes"] = attributes_text(columns["attributes"], {})
            self._sink.record("artifacts", columns | failure_columns(error, spent_ns))

    def _finish(self, columns: Columns, place: Place, moment: int, stopped: Callable[[], bool]) -> None:
        with self._sink.recording("artifacts"):
            why: dict[str, str] = {}
            before = state_of(place)
            made = self._hashing.merkle_digest(place, {}, stopped, why, "sha256", is_cached=False)
            if made.unreadable:
                why["sha256"] = f"{made.unreadable_count} files cannot be read: {next(iter(made.unreadable.values()))}"
            elif made.root_sha256:
                columns |= {"sha256": made.sha256, "bytes": made.size_bytes, "file_count": made.file_count}
            self._judge(columns, before, why)
            self._sink.record(
                "artifacts", columns | {"attributes": attributes_text(columns["attributes"], why)}, moment
            )

    def _judge(self, columns: Columns, state: str, why: dict[str, str]) -> None:
        """Whether the digest is the expected one; `why` where that cannot be said."""
        digest, expected = columns.get("sha256"), columns["expected_sha256"]
        known = None if expected else self._hashing.known_checkpoint(os.fspath(columns["uri"]))
        if known is not None:
            expected, recorded_state = known
            if digest is not None and expected != digest and recorded_state != state:
                why["verified"] = WRITTEN_SINCE
                return
        columns["expected_sha256"] = expected
        if digest is None:
            why["verified"] = NOT_HASHED
        elif expected is None:
            why["verified"] = NO_DIGEST
        else:
            columns["verified"] = digest == expected
