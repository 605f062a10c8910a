"""Artifacts: the part of a run that records the files it has made, hashed beside training."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from ranklake.capture.assets.background import Background
from ranklake.capture.assets.checkpoints import AtomicWrite
from ranklake.capture.assets.fingerprint import Fingerprint, StoppedError, fingerprint, identity_of
from ranklake.capture.common.values import integer, json_text, number, plain, redacted, text
from ranklake.capture.lifecycle.lifecycle import Lifecycle
from ranklake.capture.metrics.series import checked
from ranklake.capture.steps.phases import now
from ranklake.errors import RanklakeError
from ranklake.redaction.redact import redact, redact_uri

Columns = dict[str, Any]
Place = str | os.PathLike[str]

RUN_ENDED: Final = "the run ended before it was found out"
WRITTEN_AGAIN: Final = "it was written again, or removed, before it was hashed"
NOT_READ_BACK: Final = "it is in a store, and is not read back unasked"
_KINDS: Final = frozenset({"checkpoint", "model", "profile", "dump", "plot", "dataset", "log", "other"})
_LONGEST: Final = 1024


class Artifacts(Lifecycle):
    """The part of a run that records artifacts. It makes training wait only where it is asked to."""

    _background: Background | None = None
    _tagged: dict[tuple[str, str], str]

    def artifact(  # noqa: PLR0913 - columns of a table
        self,
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
        with self.recording("artifacts"):
            columns = self._artifact_columns(name, place, kind, step, inputs, attributes)
            columns["media_type"] = short_text(media_type)
            self._hash(columns, place, storage_options, wait=wait)
            if tag is not None:
                self.tag(name, tag, kind=kind)

    @contextmanager
    def checkpoint(
        self,
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
        it wrote is removed and `path` is as it was; so it is if the block wrote nothing, which is told. The digest is
        found out in the background. This works in a run that records nothing, too.

        Raises
        ------
        OSError
            It cannot be brought to the disk or renamed.
        RanklakeError
            `path` is a URI: upload what was written, and record that with `artifact`.
        """
        target = os.fspath(path)
        if "://" in target:
            mend = "write it to a local path, upload it, and call run.artifact(name, uri, kind='checkpoint')"
            raise RanklakeError(
                "a checkpoint is renamed, which object stores cannot do", where=redact_uri(target), mend=mend
            )
        writing = AtomicWrite(Path(target).absolute())
        try:
            yield writing.temporary
        except BaseException:
            writing.abandon()
            raise
        if writing.is_empty():  # by one of many ranks, say: to raise would end the training of those that wrote none
            self._gaps.warn("checkpoint", f"nothing was written to {shown_place(writing.temporary)}: no checkpoint")
            return
        writing.commit()
        spent_ns = time.monotonic_ns() - writing.began_ns
        with self.recording("artifacts"):
            shown = name or writing.target.name
            columns = self._artifact_columns(shown, writing.target, "checkpoint", step, inputs, attributes)
            columns |= {"atomic": True, "duration_ns": spent_ns, "blocking_ns": spent_ns}
            self._hash(columns, writing.target)
            if self.enabled:
                self.event("checkpoint", step=columns["step"], duration_s=spent_ns / 1e9, artifact=shown)
            if tag is not None:
                self.tag(shown, tag, value=tag_value, metric=tag_metric)

    def tag(
        self, name: str, tag: str, *, value: float | None = None, metric: str | None = None, kind: str = "checkpoint"
    ) -> None:
        """Give an artifact a tag, such as ``best-val-loss``; the one that this process gave it to before loses it.

        Rows of ``artifacts`` with the actions ``tagged`` and ``untagged`` are its history.
        """
        with self.recording("artifacts"):
            name, tag = checked(name), checked(tag)
            kind = kind if kind in _KINDS else "other"
            held = self.__dict__.setdefault("_tagged", {})
            before = held.get((kind, tag))
            if before is not None and before != name:
                self.record("artifacts", {"name": before, "kind": kind, "action": "untagged", "tag": tag})
            held[kind, tag] = name
            columns = {"name": name, "kind": kind, "action": "tagged", "tag": tag, "tag_metric": short_text(metric)}
            self.record("artifacts", columns | {"tag_value": None if value is None else _finite(number(value))})

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
            When that ended, on the clock of `ranklake.capture.steps.phases.now`; by default now.
        """
        with self.recording("artifacts"):
            uri = shown_place(place)
            columns = self._artifact_columns(last_part(uri), place, "checkpoint", step, (), {})
            columns["duration_ns"] = None if duration_s is None else round(duration_s * 1e9)
            if "://" in uri:
                columns["attributes"] = json_text({"unavailable": {"sha256": NOT_READ_BACK}})
                self.record("artifacts", columns, at_ns)
            else:
                self._hash(columns, place, at_ns=at_ns)

    def record_file(self, file: Path, kind: str, **columns: object) -> None:
        """Record a file of ours, hashed before this returns: it is made where training hangs, fails or ends.

        What is in the background then is given up.
        """
        with self.recording("artifacts"), file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            facts = {"bytes": stream.tell(), "file_count": 1, "sha256": digest, **columns}
            made = self._artifact_columns(file.name, file, kind, None, (), {})
            self.record("artifacts", made | {"attributes": None} | facts)

    # ── in the background ──

    def _artifact_columns(
        self, name: str, place: Place, kind: str, step: object, inputs: Sequence[str], attributes: Mapping[str, object]
    ) -> Columns:
        return {
            "name": checked(name),
            "kind": kind if kind in _KINDS else "other",
            "action": "created",
            "uri": shown_place(place),
            "step": self.latest_step() if step is None else integer(step),
            "inputs": json_text([redacted(one, 80) for one in inputs] or None),
            "attributes": redact(plain(dict(attributes))),
        }

    def _later(self, job: Callable[[Callable[[], bool]], None], table: str, *, wait: bool) -> None:
        if not self.enabled:
            self.record(table, {})  # counted
            return
        if self._background is None:
            self._background = Background()
            self.drains.append(self._background.drain)
            self.closers.append(self._background.close)
        done = self._background.submit(job)
        if wait:
            done.wait()

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
        finish = partial(self._finish_artifact, columns, place, dict(options or {}), _state(place), moment)
        self._later(finish, "artifacts", wait=wait)

    def _finish_artifact(
        self,
        columns: Columns,
        place: Place,
        options: dict[str, Any],
        state: object,
        moment: int,
        stopped: Callable[[], bool],
    ) -> None:
        with self.recording("artifacts"):
            why: dict[str, str] = {}
            made = self._fingerprint(place, options, stopped, why, "sha256")
            if state is not None and made.root_sha256 and _state(place) != state:
                why["sha256"] = WRITTEN_AGAIN
            elif made.unreadable:
                why["sha256"] = f"{made.unreadable_count} files cannot be read: {next(iter(made.unreadable.values()))}"
            elif made.root_sha256:
                columns |= {"sha256": made.sha256, "bytes": made.size_bytes, "file_count": made.file_count}
            columns["attributes"] = json_text(columns["attributes"] | ({"unavailable": why} if why else {}))
            self.record("artifacts", columns, moment)

    def _fingerprint(
        self, place: Place, options: dict[str, Any], stopped: Callable[[], bool], why: dict[str, str], column: str
    ) -> Fingerprint:
        """Return a fingerprint; an empty one, and why, if it could not be taken."""
        from ranklake.capture.assets.known_files import KnownFiles  # sqlite: not before something is hashed

        recorder = self._recorder
        known = None if recorder is None else KnownFiles(recorder.root)
        try:
            return fingerprint(place, known=known, storage_options=options, stopped=stopped)
        except StoppedError:
            why[column] = RUN_ENDED
        except OSError as error:
            why[column] = error.strerror or type(error).__name__
        except Exception as error:  # noqa: BLE001 - file systems of all kinds
            why[column] = type(error).__name__
        finally:
            if known is not None:
                known.close()
        return Fingerprint()


def short_text(value: object) -> str | None:
    """Return a text as columns have it, redacted and cut; None for None."""
    return None if value is None else redacted(value, _LONGEST)


def shown_place(place: Place) -> str:
    """Return a place as others can find it: a URI without its user, or an absolute path."""
    shown = os.fspath(place)
    return text(redact_uri(text(shown if "://" in shown else os.path.abspath(shown))), 4096)  # noqa: PTH100 - links stay


def last_part(uri: str) -> str:
    """Return the last part of a path or a URI."""
    return uri.rstrip("/").rpartition("/")[2]


def _state(place: Place) -> object:
    """Return what changes when a file is written again, or a folder's entries are; None of what cannot be looked at."""
    try:
        return identity_of(os.stat(place))  # noqa: PTH116 - a place may be a text
    except (OSError, ValueError):
        return None


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
