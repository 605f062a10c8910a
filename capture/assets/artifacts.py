"""Artifacts: files that a run has made, hashed in the background; checkpoints appear whole or not at all.

These are written under another name in the same folder, brought to the disk, and renamed. What a killed process leaves
is named ``.<name>.<random>.ranklake-tmp``, and no reader takes it for the checkpoint.
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
    """The artifacts of one run. It makes training wait only where it is asked to."""

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
        """Record a file or folder that the run has made: its place, size and digest; a row of ``artifacts``.

        Parameters
        ----------
        place
            A folder, a file, or an fsspec URI; hashed in the background. What is written to later is another artifact.
        kind
            checkpoint, model, profile, dump, plot, dataset, log or other.
        step
            The step that it holds the state of.
        tag
            As `tag` does.
        inputs
            SHA-256 of what it was made from.
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
        """Give a place to write a checkpoint to, which appears at `path` when the block has ended, whole.

            with run.checkpoint("out/step-100.pt", step=100, tag="best-val-loss", tag_value=loss) as place:
                torch.save(model.state_dict(), place)

        The place does not exist yet: make a file or a folder of it; the folder above it does. If the block raises, what
        it wrote is removed and `path` is unchanged; a row with the action ``save_failed`` says why. If the block wrote
        nothing, a warning says so, and `path` is unchanged, too. The digest is computed in the background. This works
        in a run that records nothing, too.

        Raises
        ------
        OSError
            It cannot be brought to the disk or renamed.
        RanklakeError
            `path` is a URI: upload what was written, and record that with `artifact`.
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
        if writing.is_empty():  # by one of many ranks, say: to raise would end the training of those that wrote none
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
            shown = name or writing.target.name
            columns = self._columns(shown, writing.target, "checkpoint", step, inputs, attributes)
            columns |= {"atomic": True, "duration_ns": spent_ns, "blocking_ns": spent_ns}
            self._hash(columns, writing.target)
            if self._sink.enabled:
                self._events.add("checkpoint", step=columns["step"], duration_s=spent_ns / 1e9, artifact=shown)
            if tag is not None:
                self.tag(shown, tag, value=tag_value, metric=tag_metric)

    def tag(
        self, /, name: str, tag: str, *, value: float | None = None, metric: str | None = None, kind: str = "checkpoint"
    ) -> None:
        """Give an artifact a tag, such as ``best-val-loss``; the one that this process gave it to before loses it.

        Rows of ``artifacts`` with the actions ``tagged`` and ``untagged`` are its history.
        """
        with self._sink.recording("artifacts"):
            name, tag = check_name(name), check_name(tag)
            kind = kind if kind in KINDS else "other"
            held = self._tagged
            before = held.get((kind, tag))
            if before is not None and before != name:
                self._sink.record("artifacts", {"name": before, "kind": kind, "action": "untagged", "tag": tag})
            held[kind, tag] = name
            columns = {"name": name, "kind": kind, "action": "tagged", "tag": tag, "tag_metric": short_text(metric)}
            self._sink.record("artifacts", columns | {"tag_value": None if value is None else _finite(number(value))})

    # ── what the sources of this room have written or seen written ──

    def record_checkpoint(
        self, place: Place, *, step: int | None = None, duration_s: float | None = None, at_ns: int | None = None
    ) -> None:
        """Record a checkpoint that a framework has written, hashed in the background; a row of ``artifacts``.

        What is in a store gets no digest: hashing it would read all of it back.

        Parameters
        ----------
        duration_s
            How long writing took.
        at_ns
            When that ended, on the clock of `ranklake.capture.common.monotonic.now`; by default now.
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
        """Record a file of ours, hashed before this returns: it is made where training hangs, fails or ends.

        What is in the background then is given up.
        """
        with self._sink.recording("artifacts"), file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            facts = {"bytes": stream.tell(), "file_count": 1, "sha256": digest, **columns}
            made = self._columns(file.name, file, kind, None, (), {})
            self._sink.record("artifacts", made | {"attributes": None} | facts)

    # ── in the background ──

    def _columns(
        self, name: str, place: Place, kind: str, step: object, inputs: Sequence[str], attributes: Mapping[str, object]
    ) -> Columns:
        at = self._progress.latest_step() if step is None else step
        return artifact_row("created", name, place, kind=kind, step=at, inputs=inputs, attributes=attributes)

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
            why: dict[str, str] = {}
            files = state_of(place) if columns["kind"] == "checkpoint" else ""
            made = self._hashing.merkle_digest(place, options, stopped, why, "sha256")
            if state is not None and made.root_sha256 and _state(place) != state:
                why["sha256"] = WRITTEN_AGAIN
            elif made.unreadable:
                why["sha256"] = f"{made.unreadable_count} files cannot be read: {next(iter(made.unreadable.values()))}"
            elif made.root_sha256:
                columns |= {"sha256": made.sha256, "bytes": made.size_bytes, "file_count": made.file_count}
            if files and "sha256" in columns and files == state_of(place):
                self._hashing.keep_checkpoint(columns["uri"], columns["sha256"], files)
            columns["attributes"] = attributes_text(columns["attributes"], why)
            self._sink.record("artifacts", columns, moment)


def _state(place: Place) -> object:
    """Return what changes when a file is written again, or a folder's entries are; None of what cannot be looked at."""
    try:
        return identity_of(os.stat(place))  # noqa: PTH116 - a place may be a text
    except (OSError, ValueError):
        return None


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


SUFFIX: Final = ".ranklake-tmp"


class AtomicWrite:
    """A place to write to, which becomes the target at `commit`.

    Attributes
    ----------
    temporary
        Does not exist yet: make a file or a folder of it. The folder that it is in does.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        with contextlib.suppress(OSError):  # whoever writes there gets the error
            target.parent.mkdir(parents=True, exist_ok=True)
        self.temporary = target.with_name(f".{target.name[:128]}.{secrets.token_hex(4)}{SUFFIX}")
        self.began_ns = time.monotonic_ns()

    def commit(self) -> None:
        """Bring it to the disk and give it its name, in place of what has it now.

        A file replaces a file in one step. A folder cannot: the old one is first renamed, so that for a moment there is
        none; it is never half of one and half of the other.

        Raises
        ------
        OSError
            The target is as it was, and the temporary one is gone.
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
        """Return how long it has taken so far."""
        return time.monotonic_ns() - self.began_ns

    def is_empty(self) -> bool:
        """Whether nothing was written."""
        return not os.path.lexists(self.temporary)

    def abandon(self) -> None:
        """Remove what was written."""
        with contextlib.suppress(OSError):
            if self.temporary.is_dir():
                shutil.rmtree(self.temporary, ignore_errors=True)
            else:
                self.temporary.unlink()


def _sync(place: Path) -> None:
    """Bring a file, or all files and folders below one, to the disk."""
    if not place.is_dir():
        _sync_one(place)
        return
    for folder, _, names in os.walk(place):
        for name in names:
            _sync_one(Path(folder, name))
        sync_folder(Path(folder))


def _sync_one(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
