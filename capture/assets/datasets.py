"""Datasets: the data that a run was trained and evaluated on, digested in the background."""

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
    """The datasets of one run."""

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
        """Record what is trained or evaluated on, with a fingerprint of its files; a row of ``datasets``.

        Parameters
        ----------
        place
            A folder, a file, or an fsspec URI; hashed in the background (see `ranklake.capture.assets.merkle_digest`).
        split, version, role, data_format, samples, tokens, preprocessing_version, tokenizer
            As the columns of these names say; ``role`` is what the split is called, where it is not given.
        index
            Which samples the split has, in which order: a file, or numbers, hashed as decimal lines.
        expected
            The fingerprint that it should have, ``merkle_root_sha256`` of an earlier run, with or without ``sha256:``.
            Another one is reported once, and fails the check ``as_expected``; training goes on.
        preprocessing
            Its configuration, of which the digest is recorded.
        storage_options
            For fsspec.
        wait
            Return when the row is written.
        attributes
            What else is known, kept as JSON.
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
            why: dict[str, str] = {}
            if place is not None:
                made = self._hashing.merkle_digest(place, options, stopped, why, "merkle_root_sha256")
                columns |= {
                    "merkle_root_sha256": made.root_sha256 or None,
                    "fingerprint_method": METHOD if made.root_sha256 else None,
                    "file_count": made.file_count if made.root_sha256 else None,
                    "bytes": made.size_bytes if made.root_sha256 else None,
                    "unreadable_file_count": made.unreadable_count if made.root_sha256 else None,
                    "duration_ns": made.duration_ns or None,
                }
                expected = columns["expected_merkle_root_sha256"]
                if expected and made.root_sha256 and expected != made.root_sha256:
                    self._sink.gaps.warn("dataset", f"dataset {columns['name']} is not the one that was expected")
                why |= {f"file {text(path, 200)}": reason for path, reason in made.unreadable.items()}
            if index is not None:
                try:
                    columns["index_sha256"] = _index_sha256(index)
                except Exception as error:  # noqa: BLE001 - whatever users hand over
                    why["index_sha256"] = type(error).__name__
            columns["unavailable"] = json_text(redact(why))
            self._sink.record("datasets", columns)


def _sha256_of(configuration: Mapping[str, Any]) -> str:
    return hashlib.sha256((json_text(dict(configuration)) or "{}").encode()).hexdigest()


def _index_sha256(index: Place | Iterable[int]) -> str:
    digest = hashlib.sha256()
    if isinstance(index, str | os.PathLike):
        made = merkle_digest(index)
        if made.unreadable_count:
            raise OSError(next(iter(made.unreadable.values())))
        return made.sha256
    for sample in index:
        digest.update(b"%d\n" % int(sample))
    return digest.hexdigest()
