"""Datasets: records the data that a run is trained and evaluated on, hashed in the background."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from ranklake.capture.assets.hashing import Hashing, Place, given_digest, short_text, shown_place
from ranklake.capture.assets.merkle_digest import METHOD, merkle_digest
from ranklake.capture.common.values import integer, json_text, text, to_json
from ranklake.capture.lanes.series import check_name
from ranklake.capture.lanes.sink import Sink
from ranklake.redaction.redact import redact, redact_names

_ROLES: Final = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "test": "test",
}


class Datasets:
    """Records the datasets of one run."""

    def __init__(self, sink: Sink, hashing: Hashing) -> None:
        self._sink, self._hashing = sink, hashing

    def add(  # noqa: PLR0913 - columns of a table
        self,
        /,
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
        expected: str | None = None,
        preprocessing_version: str | None = None,
        preprocessing: Mapping[str, Any] | None = None,
        tokenizer: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        wait: bool = False,
        **attributes: object,
    ) -> None:
        """Record a dataset with a fingerprint of its files, as a row of ``datasets``.

        Parameters
        ----------
        place
            A folder, a file, or an fsspec URI; hashed in the background (see `ranklake.capture.assets.merkle_digest`).
        split, version, role, data_format, samples, tokens, preprocessing_version, tokenizer
            Values of the columns with these names; ``role`` is derived from the split by default.
        index
            The samples of the split in order: a file, or numbers, which are hashed as decimal lines.
        expected
            The expected fingerprint: ``merkle_root_sha256`` of an earlier run, with or without ``sha256:``. A different
            one is reported once, and fails the check ``as_expected``; training continues.
        preprocessing
            Configuration of the preprocessing; its digest is recorded.
        storage_options
            Options of fsspec.
        wait
            Whether to return only after the row is written.
        attributes
            Other facts, stored as JSON.
        """
        with self._sink.recording("datasets"):
            role = role or _ROLES.get((split or "").lower(), "other")
            columns: dict[str, Any] = {
                "name": check_name(name),
                "version": short_text(version),
                "split": short_text(split),
                "role": role if role in _ROLES.values() else "other",
                "uri": None if place is None else shown_place(place),
                "data_format": short_text(data_format),
                "samples": None if samples is None else integer(samples),
                "tokens": None if tokens is None else integer(tokens),
                "expected_merkle_root_sha256": None if expected is None else given_digest(expected),
                "preprocessing_version": short_text(preprocessing_version),
                "preprocessing_sha256": None if preprocessing is None else _sha256_of(preprocessing),
                "tokenizer": short_text(tokenizer),
                "attributes": json_text(redact_names(to_json(attributes))),
            }
            options = dict(storage_options or {})
            self._hashing.submit(partial(self._finish, columns, place, index, options), "datasets", wait=wait)

    def _finish(
        self,
        columns: dict[str, Any],
        place: Place | None,
        index: Place | Iterable[int] | None,
        options: dict[str, Any],
        stopped: Callable[[], bool],
    ) -> None:
        with self._sink.recording("datasets"):
            reasons: dict[str, str] = {}
            if place is not None:
                digest = self._hashing.merkle_digest(place, options, stopped, reasons, "merkle_root_sha256")
                columns |= {
                    "merkle_root_sha256": digest.root_sha256 or None,
                    "fingerprint_method": METHOD if digest.root_sha256 else None,
                    "file_count": digest.file_count if digest.root_sha256 else None,
                    "bytes": digest.size_bytes if digest.root_sha256 else None,
                    "unreadable_file_count": digest.unreadable_count if digest.root_sha256 else None,
                    "duration_ns": digest.duration_ns or None,
                }
                expected = columns["expected_merkle_root_sha256"]
                if expected and digest.root_sha256 and expected != digest.root_sha256:
                    self._sink.gaps.warn("dataset", f"dataset {columns['name']} is not the one that was expected")
                reasons |= {f"file {text(path, 200)}": reason for path, reason in digest.unreadable.items()}
            if index is not None:
                try:
                    columns["index_sha256"] = _index_sha256(index)
                except Exception as error:  # noqa: BLE001 - users may pass any object
                    reasons["index_sha256"] = type(error).__name__
            columns["unavailable"] = json_text(redact(reasons))
            self._sink.record("datasets", columns)


def _sha256_of(configuration: Mapping[str, Any]) -> str:
    return hashlib.sha256((json_text(dict(configuration)) or "{}").encode()).hexdigest()


def _index_sha256(index: Place | Iterable[int]) -> str:
    if isinstance(index, str | os.PathLike):
        files = merkle_digest(index)
        if files.unreadable_count:
            raise OSError(next(iter(files.unreadable.values())))
        return files.sha256
    digest = hashlib.sha256()
    for sample in index:
        digest.update(b"%d\n" % int(sample))
    return digest.hexdigest()
