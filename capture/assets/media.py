"""Media: records small images, tables, confusion matrices and texts of a run, with their bytes.

The bytes are stored in rows of a table, so that retention, erasure, roles, archives and shares apply to them.
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

_MAX_WAITING_BYTES: Final = 32 << 20
_MAX_CAPTION_CHARACTERS: Final = 1024


class Media:
    """Records the media of one run. Training waits only for a copy of the value; a thread does the rest.

    Attributes
    ----------
    kept
        Number of rows written.
    """

    def __init__(self, sink: Sink, progress: Progress, lifecycle: Lifecycle, settings: CaptureSettings) -> None:
        self._sink, self._progress, self._lifecycle, self._settings = sink, progress, lifecycle, settings
        self._most_bytes = min(settings.media_max_bytes, MOST_BYTES)
        self._background: Background | None = None
        # Threads change these without a lock, so limits are approximate.
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
            Name of the medium; use the same at other steps.
        value
            An image: PNG or JPEG bytes, or a path to such a file, which is read later; an array or tensor of height,
            width and channels, integers from 0 to 255 or floats from 0 to 1; a PIL image; a figure or axes of
            matplotlib. Large images are scaled down (bytes and files only if Pillow is installed).
            A table: a data frame, a mapping of names to columns, or a list of rows.
            A confusion matrix: a square matrix with true classes as rows and predicted classes as columns, at most 100.
            A text.
        kind
            image, table, confusion_matrix or text; by default derived from the value's type.
        step
            The step that the medium belongs to; by default the running step, or the last one.
        labels
            Names of a confusion matrix's classes.
        columns
            Names of a table's columns, if its rows have none.
        caption
            A sentence to show with it.
        personal
            Whether it may contain personal data; then only roles that see personal data can read it. True by default,
            except for confusion matrices.

        Notes
        -----
        Nothing is raised. A medium that is too large (``media_max_bytes``), exceeds a limit of the run
        (``media_max_count``, ``media_max_total_bytes``), is on a GPU, or is invalid is counted as a gap, with the
        reason. Texts and cells are redacted like log lines; images are not changed.
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
            row["kind"], held = self._hold(value, kind, labels, columns)
            if self._waiting_bytes + held.size_bytes > _MAX_WAITING_BYTES:
                raise RefusedError(MEDIA_QUEUE_FULL, row["name"])
            row["caption"] = None if caption is None else redacted_text(caption, _MAX_CAPTION_CHARACTERS)
            is_personal = row["kind"] != CONFUSION_MATRIX if personal is None else bool(personal)
            self._submit(row, held, is_personal=is_personal)

    def after_fork(self) -> None:
        """Reset the counts in a forked child, because waiting media belong to the parent, and limits to a process."""
        self._taken = self._waiting_bytes = self._kept_bytes = 0
        self.kept = 0

    def _hold(self, value: object, kind: str | None, labels: object, columns: object) -> tuple[str, HeldMedia]:
        """Return the kind of a value, and a copy. Errors of the value's own code become `BadValueError`."""
        try:
            kind = kind_of(value) if kind is None else kind
            return kind, hold(value, kind, labels=labels, columns=columns, most_bytes=self._most_bytes)
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

    def _submit(self, row: dict[str, Any], held: HeldMedia, *, is_personal: bool) -> None:
        if not self._sink.enabled:
            self._sink.record("media", row)  # counts the missing row
            return
        if self._background is None:
            self._background = Background()
            self._lifecycle.drains.append(self._background.drain)
            self._lifecycle.finishers.append(self._background.drain)
            self._lifecycle.closers.append(self._background.close)
        self._taken += 1
        self._waiting_bytes += held.size_bytes
        self._background.submit(partial(self._finish, row, held, now(), is_personal))

    def _finish(
        self, row: dict[str, Any], held: HeldMedia, at_ns: int, is_personal: bool, stopped: Callable[[], bool]
    ) -> None:
        with self._sink.recording("media"):
            try:
                if stopped():
                    raise RefusedError(NOT_IN_TIME, row["name"])
                medium = held.make()
                size = len(medium.raw)
                if size > (most := self._most_bytes):
                    raise RefusedError(TOO_LARGE, f"{row['name']}: {size:,} bytes; media_max_bytes = {most:,}")
                if self._kept_bytes + size > (total := self._settings.media_max_total_bytes):
                    raise RefusedError(MEDIA_LIMIT, f"media_max_total_bytes = {total:,}")
                column = personal_column(row["kind"]) if is_personal else "content"
                is_masked = self._sink.masks("media", column)  # a digest would reveal a masked value
                row |= medium.row(row["kind"], column, has_digest=not is_masked)
                if self._sink.record("media", row, at_ns):
                    self.kept += 1
                    self._kept_bytes += size
            finally:
                self._waiting_bytes -= held.size_bytes
