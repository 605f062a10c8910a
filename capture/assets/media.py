"""Media: images, tables, confusion matrices and texts that a run shows, small, with their bytes.

The bytes are rows of a table, not files beside the spool: retention, erasure, roles, archives and shares apply to them
as to every other row.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ranklake.capture.assets.hashing import Background
from ranklake.capture.assets.media_value import CONFUSION_MATRIX, MOST_BYTES, HeldMedia, hold, kind_of, personal_column
from ranklake.capture.common.gaps import (
    BAD_ARGUMENTS,
    DEVICE_VALUE,
    MEDIA_LIMIT,
    MEDIA_QUEUE_FULL,
    NOT_IN_TIME,
    TOO_LARGE,
    RefusedError,
)
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.common.values import BadValueError, DeviceValueError, integer, redacted_text, repr_of, text
from ranklake.capture.lanes.series import check_name
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.lifecycle.lifecycle import Lifecycle
from ranklake.capture.steps.progress import Progress

_MOST_WAITING_BYTES: Final = 32 << 20
_LONGEST_CAPTION: Final = 1024


class Media:
    """The media of one run. Training waits for a copy of the value; the rest is done in a thread of its own.

    Attributes
    ----------
    kept
        Rows that were written.
    """

    def __init__(self, sink: Sink, progress: Progress, lifecycle: Lifecycle, settings: CaptureSettings) -> None:
        self._sink, self._progress, self._lifecycle, self._settings = sink, progress, lifecycle, settings
        self._most_bytes = min(settings.media_max_bytes, MOST_BYTES)
        self._background: Background | None = None
        # Threads may count past each other: limits are approximate then.
        self._taken = self._waiting_bytes = self._kept_bytes = 0
        self.kept = 0

    def add(
        self,
        /,
        name: object = "",
        value: object = None,
        *excess: object,
        kind: str | None = None,
        step: object = None,
        labels: object = None,
        columns: object = None,
        caption: object = None,
        personal: bool | None = None,
        **unknown: object,
    ) -> None:
        """Show an image, a table, a confusion matrix or a text on the run's page; a row of ``media``, with its bytes.

            run.media("eval/confusion", matrix, kind="confusion_matrix", labels=["cat", "dog"])
            run.media("samples/worst", pixels, step=100)
            run.media("eval/examples", [{"prompt": "…", "score": 0.4}])
            run.media("generated", "Once upon a time …", caption="temperature 0.8")

        Parameters
        ----------
        name
            What it is called, the same at other steps.
        value
            An image: PNG or JPEG bytes or a path to them, which is read later; an array or tensor of height, width and
            channels, whole numbers from 0 to 255 or floats from 0 to 1; a PIL image; a figure or axes of matplotlib's.
            One that is too large is scaled (of bytes and paths, where Pillow is installed). A table: a data frame, a
            mapping of names to columns, or a list of rows. A confusion matrix: as many columns, the predicted classes,
            as rows, the true ones; at most 100. A text.
        kind
            image, table, confusion_matrix or text; by default what the value's type says.
        step
            Step that it shows; by default the running one, or the one that ended last.
        labels
            Names of a confusion matrix's classes.
        columns
            Names of a table's columns, where its rows have none.
        caption
            A sentence on it.
        personal
            Whether it may be about persons: then only roles that see personal data get it, and no other page has it.
            Whether it may hold data about people. True by default, except for confusion matrices.

        Notes
        -----
        Nothing is raised: what is too large (``media_max_bytes``), too much (``media_max_count``,
        ``media_max_total_bytes``), on a GPU, or not what it should be is counted as a gap, with the reason. Texts and
        cells are redacted like log lines; images are kept as they are.
        """
        if self._sink.is_idle:
            self._sink.miss("media")
            return
        with self._sink.recording("media"):
            if excess or unknown:
                raise RefusedError(BAD_ARGUMENTS, repr_of(excess or sorted(unknown)))
            row: dict[str, Any] = {"name": check_name(name)}
            row["step"] = self._progress.latest_step() if step is None else integer(step)
            self._refuse_beyond_limits()
            row["kind"], taken = self._hold(value, kind, labels, columns)
            if self._waiting_bytes + taken.size_bytes > _MOST_WAITING_BYTES:
                raise RefusedError(MEDIA_QUEUE_FULL, row["name"])
            row["caption"] = None if caption is None else redacted_text(caption, _LONGEST_CAPTION)
            is_personal = row["kind"] != CONFUSION_MATRIX if personal is None else bool(personal)
            self._submit(row, taken, is_personal=is_personal)

    def after_fork(self) -> None:
        """In a forked child: what waits is the parent's, and the limits are a process's."""
        self._taken = self._waiting_bytes = self._kept_bytes = 0
        self.kept = 0

    def _hold(self, value: object, kind: str | None, labels: object, columns: object) -> tuple[str, HeldMedia]:
        """Return what a value is, and it held. What its own code raises is its fault, not ours."""
        try:
            kind_found = kind_of(value) if kind is None else kind
            return kind_found, hold(value, kind_found, labels=labels, columns=columns, most_bytes=self._most_bytes)
        except DeviceValueError as error:
            raise RefusedError(DEVICE_VALUE, text(error, 80)) from error
        except (RefusedError, BadValueError):
            raise
        except Exception as error:
            raise BadValueError(f"{type(value).__name__}: {type(error).__name__}: {text(error, 200)}") from error

    def _refuse_beyond_limits(self) -> None:
        most, most_bytes = self._settings.media_max_count, self._settings.media_max_total_bytes
        if self._taken >= most:
            raise RefusedError(MEDIA_LIMIT, f"media_max_count = {most:,}")
        if self._kept_bytes >= most_bytes:
            raise RefusedError(MEDIA_LIMIT, f"media_max_total_bytes = {most_bytes:,}")

    def _submit(self, row: dict[str, Any], taken: HeldMedia, *, is_personal: bool) -> None:
        if not self._sink.enabled:
            self._sink.record("media", row)  # counted
            return
        if self._background is None:
            self._background = Background()
            self._lifecycle.drains.append(self._background.drain)
            self._lifecycle.finishers.append(self._background.drain)
            self._lifecycle.closers.append(self._background.close)
        self._taken += 1
        self._waiting_bytes += taken.size_bytes
        self._background.submit(partial(self._finish, row, taken, now(), is_personal))

    def _finish(
        self, row: dict[str, Any], taken: HeldMedia, at_ns: int, is_personal: bool, stopped: Callable[[], bool]
    ) -> None:
        with self._sink.recording("media"):
            try:
                if stopped():
                    raise RefusedError(NOT_IN_TIME, row["name"])
                made = taken.make()
                size = len(made.raw)
                if size > (most := self._most_bytes):
                    raise RefusedError(TOO_LARGE, f"{row['name']}: {size:,} bytes; media_max_bytes = {most:,}")
                if self._kept_bytes + size > (total := self._settings.media_max_total_bytes):
                    raise RefusedError(MEDIA_LIMIT, f"media_max_total_bytes = {total:,}")
                column = personal_column(row["kind"]) if is_personal else "content"
                is_masked = self._sink.masks("media", column)  # of what is not written, its digest would tell
                row |= made.row(row["kind"], column, has_digest=not is_masked)
                if self._sink.record("media", row, at_ns):
                    self.kept += 1
                    self._kept_bytes += size
            finally:
                self._waiting_bytes -= taken.size_bytes
