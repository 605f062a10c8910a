"""Assets: the part of a run that says what it was trained on and what came of it."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from ranklake.capture.background import Background
from ranklake.capture.checkpoints import AtomicWrite
from ranklake.capture.fingerprint import METHOD, Fingerprint, StoppedError, fingerprint
from ranklake.capture.lifecycle import Lifecycle
from ranklake.capture.series import checked
from ranklake.capture.values import integer, json_text, number, plain, redacted, text
from ranklake.errors import RanklakeError
from ranklake.lake.contracts.redact import redact, redact_uri

Columns = dict[str, Any]
Place = str | os.PathLike[str]

RUN_ENDED: Final = "the run ended before it was found out"
_ROLES: Final = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "test": "test",
}
_KINDS: Final = frozenset({"checkpoint", "model", "profile", "dump", "plot", "dataset", "log", "other"})
_LONGEST: Final = 1024


class Assets(Lifecycle):
    """The part of a run that records datasets and artifacts. It makes training wait only where it is asked to."""

    _background: Background | None = None
    _tagged: dict[tuple[str, str], str]

    def dataset(  # noqa: PLR0913 - columns of a table
        self,
        name: str,
        place: Place | None = None,
        *,
        split: str | None = None,
        version: str | None = None,
        role: str | None = None,
        data_format: str | None = None,
        samples: int | None = None,
        tokens: int | None = None,
        index: Place | Iterable[int] | None = None,
        preprocessing_version: str | None = None,
        preprocessing: Mapping[str, Any] | None = None,
        tokenizer: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        wait: bool = False,
        **attributes: object,
    ) -> None:
        """Record what is trained or evaluated on, with a fingerprint of its files; a row of ``datasets``.

        Parameters
        ----------
        place
            A folder, a file, or an fsspec URI; hashed in the background (see `ranklake.capture.fingerprint`).
        split, version, role, data_format, samples, tokens, preprocessing_version, tokenizer
            As the columns of these names say; ``role`` is what the split is called, where it is not given.
        index
            Which samples the split has, in which order: a file, or numbers, hashed as decimal lines.
        preprocessing
            Its configuration, of which the digest is recorded.
        storage_options
            For fsspec.
        wait
            Return when the row is written.
        attributes
            What else is known, kept as JSON.
        """
        with self.recording("datasets"):
            role = role or _ROLES.get((split or "").lower(), "other")
            columns: Columns = {
                "name": checked(name),
                "version": _text(version),
                "split": _text(split),
                "role": role if role in _ROLES.values() else "other",
                "uri": None if place is None else _uri(place),
                "data_format": _text(data_format),
                "samples": None if samples is None else integer(samples),
                "tokens": None if tokens is None else integer(tokens),
                "preprocessing_version": _text(preprocessing_version),
                "preprocessing_sha256": None if preprocessing is None else _sha256_of(preprocessing),
                "tokenizer": _text(tokenizer),
                "attributes": json_text(redact(plain(attributes))),
            }
            options = dict(storage_options or {})
            self._later(partial(self._finish_dataset, columns, place, index, options), "datasets", wait=wait)

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
            columns["media_type"] = _text(media_type)
            self._later(
                partial(self._finish_artifact, columns, place, dict(storage_options or {})), "artifacts", wait=wait
            )
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

        The place does not exist yet: make a file or a folder of it. If the block raises, what it wrote is removed and
        `path` is as it was. Its digest is found out in the background. This works in a run that records nothing, too.

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
        writing.commit()
        spent_ns = time.monotonic_ns() - writing.began_ns
        with self.recording("artifacts"):
            shown = name or writing.target.name
            columns = self._artifact_columns(shown, writing.target, "checkpoint", step, inputs, attributes)
            columns |= {"atomic": True, "duration_ns": spent_ns, "blocking_ns": spent_ns}
            self._later(partial(self._finish_artifact, columns, writing.target, {}), "artifacts", wait=False)
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
                self._write_artifact({"name": before, "kind": kind, "action": "untagged", "tag": tag})
            held[kind, tag] = name
            columns = {"name": name, "kind": kind, "action": "tagged", "tag": tag, "tag_metric": _text(metric)}
            self._write_artifact(columns | {"tag_value": None if value is None else _finite(number(value))})

    # ── in the background ──

    def _artifact_columns(
        self, name: str, place: Place, kind: str, step: object, inputs: Sequence[str], attributes: Mapping[str, object]
    ) -> Columns:
        return {
            "name": checked(name),
            "kind": kind if kind in _KINDS else "other",
            "action": "created",
            "uri": _uri(place),
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

    def _finish_dataset(
        self,
        columns: Columns,
        place: Place | None,
        index: Place | Iterable[int] | None,
        options: dict[str, Any],
        stopped: Callable[[], bool],
    ) -> None:
        with self.recording("datasets"):
            why: dict[str, str] = {}
            if place is not None:
                made = self._fingerprint(place, options, stopped, why, "merkle_root_sha256")
                columns |= {
                    "merkle_root_sha256": made.root_sha256 or None,
                    "fingerprint_method": METHOD if made.root_sha256 else None,
                    "file_count": made.file_count if made.root_sha256 else None,
                    "bytes": made.size_bytes if made.root_sha256 else None,
                    "unreadable_file_count": made.unreadable_count if made.root_sha256 else None,
                    "duration_ns": made.duration_ns or None,
                }
                why |= {f"file {text(path, 200)}": reason for path, reason in made.unreadable.items()}
            if index is not None:
                try:
                    columns["index_sha256"] = _index_sha256(index)
                except Exception as error:  # noqa: BLE001 - whatever users hand over
                    why["index_sha256"] = type(error).__name__
            columns["unavailable"] = json_text(redact(why))
            self.record("datasets", columns)

    def _finish_artifact(
        self, columns: Columns, place: Place, options: dict[str, Any], stopped: Callable[[], bool]
    ) -> None:
        with self.recording("artifacts"):
            why: dict[str, str] = {}
            made = self._fingerprint(place, options, stopped, why, "sha256")
            if made.unreadable:
                why["sha256"] = f"{made.unreadable_count} files cannot be read: {next(iter(made.unreadable.values()))}"
            elif made.root_sha256:
                columns |= {"sha256": made.sha256, "bytes": made.size_bytes, "file_count": made.file_count}
            columns["attributes"] = json_text(columns["attributes"] | ({"unavailable": why} if why else {}))
            self._write_artifact(columns)

    def _write_artifact(self, columns: Columns) -> None:
        self.record("artifacts", columns)

    def _fingerprint(
        self, place: Place, options: dict[str, Any], stopped: Callable[[], bool], why: dict[str, str], column: str
    ) -> Fingerprint:
        """Return a fingerprint; an empty one, and why, if it could not be taken."""
        from ranklake.capture.known_files import KnownFiles  # sqlite: not before something is hashed

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


def _text(value: object) -> str | None:
    return None if value is None else redacted(value, _LONGEST)


def _uri(place: Place) -> str:
    """Return a place as others can find it: a URI without its user, or an absolute path."""
    shown = os.fspath(place)
    return text(redact_uri(text(shown if "://" in shown else os.path.abspath(shown))), 4096)  # noqa: PTH100 - links stay


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _sha256_of(configuration: Mapping[str, Any]) -> str:
    return hashlib.sha256((json_text(dict(configuration)) or "{}").encode()).hexdigest()


def _index_sha256(index: Place | Iterable[int]) -> str:
    digest = hashlib.sha256()
    if isinstance(index, str | os.PathLike):
        made = fingerprint(index)
        if made.unreadable_count:
            raise OSError(next(iter(made.unreadable.values())))
        return made.sha256
    for sample in index:
        digest.update(b"%d\n" % int(sample))
    return digest.hexdigest()
