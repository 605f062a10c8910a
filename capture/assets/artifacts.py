"""Artifacts: records files of a run, hashed in the background, and writes checkpoints atomically.

A checkpoint is written under a temporary name in the same folder, synchronized to disk, and renamed. A killed process
leaves only ``.<name>.<random>.ranklake-tmp``, which no reader takes for the checkpoint.
"""

import contextlib
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from ranklake.capture.assets.file_entries import identity_of, state_of
from ranklake.capture.assets.hashing import (
    KINDS,
    NOT_READ_BACK,
    Columns,
    Hashing,
    Place,
    artifact_row,
    attributes_text,
    last_part,
    short_text,
    shown_place,
)
from ranklake.capture.assets.loads import Loads
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.values import number
from ranklake.capture.lanes.series import check_name
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.spool.files import sync_folder
from ranklake.capture.steps.events import Events
from ranklake.capture.steps.progress import Progress
from ranklake.errors import RanklakeError
from ranklake.redaction.redact import redact_uri

WRITTEN_AGAIN: Final = "it was written again, or removed, before it was hashed"


class Artifacts:
    """Records the artifacts of one run. Training waits only if `wait` is set."""

    def __init__(self, sink: Sink, events: Events, progress: Progress, hashing: Hashing) -> None:
        self._sink, self._events, self._progress, self._hashing = sink, events, progress, hashing
        self._tagged: dict[tuple[str, str], str] = {}
        self.loads = Loads(sink, hashing)

    def add(  # noqa: PLR0913 - columns of a table
        self,
        /,
        name: str,
        place: Place,
        *,
        kind: str = "other",
        step: int | None = None,
        tag: str | None = None,
        media_type: str | None = None,
        inputs: Sequence[str] = (),
        storage_options: Mapping[str, Any] | None = None,
        wait: bool = False,
        **attributes: object,
    ) -> None:
        """Record a file or folder of the run, with path, size and digest, as a row of ``artifacts``.

        Parameters
        ----------
        place
            A folder, a file, or an fsspec URI. It is hashed in the background, so do not write to it later.
        kind
            checkpoint, model, profile, dump, plot, dataset, log or other.
        step
            The step whose state it contains; by default the latest step.
        tag
            A tag to give it, as `tag` does.
        inputs
            SHA-256 of each file that it was made from.
        storage_options
            Options of fsspec for a URI.
        wait
            Whether to return only after the row is written.
        attributes
            Other facts, stored as JSON.
        """
        with self._sink.recording("artifacts"):
            columns = self._columns(name, place, kind, step, inputs, attributes)
            columns["media_type"] = short_text(media_type)
            self._hash(columns, place, storage_options, wait=wait)
            if tag is not None:
                self.tag(name, tag, kind=kind)

    @contextmanager
    def checkpoint(
        self,
        /,
        path: Place,
        *,
        step: int | None = None,
        tag: str | None = None,
        tag_value: float | None = None,
        tag_metric: str | None = None,
        name: str | None = None,
        inputs: Sequence[str] = (),
        **attributes: object,
    ) -> Iterator[Path]:
        """Write a checkpoint atomically: yield a temporary path, which is renamed to `path` at the end of the block.

            with run.checkpoint("out/step-100.pt", step=100, tag="best-val-loss", tag_value=loss) as place:
                torch.save(model.state_dict(), place)

        Create a file or a folder at the yielded path; its parent folder exists. If the block raises, its files are
        removed, `path` is unchanged, and a row with the action ``save_failed`` has the reason. If the block writes
        nothing, `path` is unchanged, and a warning is logged. The digest is computed in the background. The checkpoint
        is written even if the run records nothing.

        Raises
        ------
        OSError
            The files cannot be synchronized to disk, or renamed.
        RanklakeError
            `path` is a URI. Upload the files, and record them with `artifact`.
        """
        target = os.fspath(path)
        if "://" in target:
            hint = "write it to a local path, upload it, and call run.artifact(name, uri, kind='checkpoint')"
            raise RanklakeError(
                "a checkpoint is renamed, which object stores cannot do", where=redact_uri(target), hint=hint
            )
        writing = AtomicWrite(Path(target).absolute())
        facts: Mapping[str, Any] = {"step": step, "name": name or writing.target.name, "attributes": attributes}
        try:
            yield writing.temporary
        except BaseException as error:
            writing.abandon()
            self.loads.failed("save_failed", writing.target, error, spent_ns=writing.spent_ns(), **facts)
            raise
        if writing.is_empty():  # no error: of many ranks, some may write nothing
            self._sink.gaps.warn(
                "checkpoint", f"nothing was written to {shown_place(writing.temporary)}: no checkpoint"
            )
            return
        try:
            writing.commit()
        except BaseException as error:
            self.loads.failed("save_failed", writing.target, error, spent_ns=writing.spent_ns(), **facts)
            raise
        spent_ns = writing.spent_ns()
        with self._sink.recording("artifacts"):
            label = name or writing.target.name
            columns = self._columns(label, writing.target, "checkpoint", step, inputs, attributes)
            columns |= {"atomic": True, "duration_ns": spent_ns, "blocking_ns": spent_ns}
            self._hash(columns, writing.target)
            if self._sink.enabled:
                self._events.add("checkpoint", step=columns["step"], duration_s=spent_ns / 1e9, artifact=label)
            if tag is not None:
                self.tag(label, tag, value=tag_value, metric=tag_metric)

    def tag(
        self, /, name: str, tag: str, *, value: float | None = None, metric: str | None = None, kind: str = "checkpoint"
    ) -> None:
        """Give an artifact a tag, such as ``best-val-loss``, and remove the tag from this process's previous artifact.

        Rows of ``artifacts`` with the actions ``tagged`` and ``untagged`` are the tag's history.
        """
        with self._sink.recording("artifacts"):
            name, tag = check_name(name), check_name(tag)
            kind = kind if kind in KINDS else "other"
            previous = self._tagged.get((kind, tag))
            if previous is not None and previous != name:
                self._sink.record("artifacts", {"name": previous, "kind": kind, "action": "untagged", "tag": tag})
            self._tagged[kind, tag] = name
            columns = {"name": name, "kind": kind, "action": "tagged", "tag": tag, "tag_metric": short_text(metric)}
            self._sink.record("artifacts", columns | {"tag_value": None if value is None else _finite(number(value))})

    # ── files of frameworks and of ranklake ──

    def record_checkpoint(
        self, place: Place, *, step: int | None = None, duration_s: float | None = None, at_ns: int | None = None
    ) -> None:
        """Record a checkpoint that a framework has written as a row of ``artifacts``, hashed in the background.

        A checkpoint in an object store gets no digest, because hashing would download all of it.

        Parameters
        ----------
        duration_s
            Duration of writing.
        at_ns
            End of writing, on the clock of `ranklake.capture.common.monotonic.now`; by default now.
        """
        with self._sink.recording("artifacts"):
            uri = shown_place(place)
            columns = self._columns(last_part(uri), place, "checkpoint", step, (), {})
            columns["duration_ns"] = None if duration_s is None else round(duration_s * 1e9)
            if "://" in uri:
                columns["attributes"] = attributes_text({}, {"sha256": NOT_READ_BACK})
                self._sink.record("artifacts", columns, at_ns)
            else:
                self._hash(columns, place, at_ns=at_ns)

    def record_file(self, file: Path, kind: str, **columns: object) -> None:
        """Record a file that ranklake wrote, hashed before this returns.

        Such files are written when training hangs, fails or ends, and background jobs may not run any more.
        """
        with self._sink.recording("artifacts"), file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            facts = {"bytes": stream.tell(), "file_count": 1, "sha256": digest, **columns}
            row = self._columns(file.name, file, kind, None, (), {})
            self._sink.record("artifacts", row | {"attributes": None} | facts)

    # ── in the background ──

    def _columns(
        self, name: str, place: Place, kind: str, step: object, inputs: Sequence[str], attributes: Mapping[str, object]
    ) -> Columns:
        step = self._progress.latest_step() if step is None else step
        return artifact_row("created", name, place, kind=kind, step=step, inputs=inputs, attributes=attributes)

    def _hash(
        self,
        columns: Columns,
        place: Place,
        options: Mapping[str, Any] | None = None,
        *,
        at_ns: int | None = None,
        wait: bool = False,
    ) -> None:
        moment = now() if at_ns is None else at_ns
        finish = partial(self._finish, columns, place, dict(options or {}), _state(place), moment)
        self._hashing.submit(finish, "artifacts", wait=wait)

    def _finish(
        self,
        columns: Columns,
        place: Place,
        options: dict[str, Any],
        state: object,
        moment: int,
        stopped: Callable[[], bool],
    ) -> None:
        with self._sink.recording("artifacts"):
            reasons: dict[str, str] = {}
            files = state_of(place) if columns["kind"] == "checkpoint" else ""
            digest = self._hashing.merkle_digest(place, options, stopped, reasons, "sha256")
            if state is not None and digest.root_sha256 and _state(place) != state:
                reasons["sha256"] = WRITTEN_AGAIN
            elif digest.unreadable:
                reason = next(iter(digest.unreadable.values()))
                reasons["sha256"] = f"{digest.unreadable_count} files cannot be read: {reason}"
            elif digest.root_sha256:
                columns |= {"sha256": digest.sha256, "bytes": digest.size_bytes, "file_count": digest.file_count}
            if files and "sha256" in columns and files == state_of(place):
                self._hashing.keep_checkpoint(columns["uri"], columns["sha256"], files)
            columns["attributes"] = attributes_text(columns["attributes"], reasons)
            self._sink.record("artifacts", columns, moment)


def _state(place: Place) -> object:
    """Return a value that changes when a file, or the list of a folder's entries, changes; None if it has no status."""
    try:
        return identity_of(os.stat(place))  # noqa: PTH116 - a place may be a text
    except (OSError, ValueError):
        return None


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


SUFFIX: Final = ".ranklake-tmp"


class AtomicWrite:
    """Writes a file or folder under a temporary name, which `commit` renames to the target.

    Attributes
    ----------
    temporary
        Path of the file or folder to create. Its parent folder exists.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        with contextlib.suppress(OSError):  # writing to the temporary path then raises
            target.parent.mkdir(parents=True, exist_ok=True)
        self.temporary = target.with_name(f".{target.name[:128]}.{secrets.token_hex(4)}{SUFFIX}")
        self.start_ns = time.monotonic_ns()

    def commit(self) -> None:
        """Synchronize the files to disk, and rename them to the target, which is replaced.

        A file is replaced atomically. An old folder is renamed first, so for a moment there is no target, but never a
        mixture of old and new files.

        Raises
        ------
        OSError
            The target is unchanged, and the temporary files are removed.
        """
        try:
            _sync(self.temporary)
            if self.target.is_dir() and not self.target.is_symlink():
                old = self.target.with_name(f".{self.target.name[:128]}.{secrets.token_hex(4)}.old{SUFFIX}")
                self.target.rename(old)
                try:
                    self.temporary.rename(self.target)
                except OSError:
                    old.rename(self.target)
                    raise
                shutil.rmtree(old, ignore_errors=True)
            else:
                self.temporary.replace(self.target)
        except BaseException:
            self.abandon()
            raise
        sync_folder(self.target.parent)

    def spent_ns(self) -> int:
        """Return the time since the begin of the write, ns."""
        return time.monotonic_ns() - self.start_ns

    def is_empty(self) -> bool:
        """Whether nothing was written."""
        return not os.path.lexists(self.temporary)

    def abandon(self) -> None:
        """Remove the temporary files."""
        with contextlib.suppress(OSError):
            if self.temporary.is_dir():
                shutil.rmtree(self.temporary, ignore_errors=True)
            else:
                self.temporary.unlink()


def _sync(place: Path) -> None:
    """Synchronize a file, or all files and folders below a folder, to disk."""
    if not place.is_dir():
        _sync_file(place)
        return
    for folder, _, names in os.walk(place):
        for name in names:
            _sync_file(Path(folder, name))
        sync_folder(Path(folder))


def _sync_file(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
