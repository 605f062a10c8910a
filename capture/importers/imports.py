"""Imports: convert files of one format to segments in a spool, file by file."""

import hashlib
import posixpath
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from zoneinfo import available_timezones

import fsspec

from ranklake.capture.importers.formats import (
    Format,
    foreign_format,
    formats,
    formats_at,
    is_document,
    is_of,
    nearest_format,
)
from ranklake.capture.importers.imported_rows import ImportIdentity, ImportTarget
from ranklake.capture.importers.imported_run import FIRST_REASONS, ImportedRun
from ranklake.capture.importers.mapping import Mapping as ColumnMapping
from ranklake.capture.importers.mapping import MappingError
from ranklake.capture.importers.mapping_reader import load_mapping
from ranklake.capture.importers.shipping import Shipping, refuse_changed
from ranklake.capture.importers.source import HEAD_BYTES, ZIP, Source, SourceError, sources, stored_runs
from ranklake.capture.provenance.names import clean
from ranklake.capture.sealing.keys import NO_KEYS, SealingKeys
from ranklake.capture.sealing.masked import SealedMasks
from ranklake.errors import did_you_mean
from ranklake.lake.contracts.overlay import Overlay
from ranklake.redaction.redact import REDACTED
from ranklake.segments.segment import RUN_NAME
from ranklake.segments.storage_options import fsspec_options

_REDACTED_PART: Final = REDACTED.strip("[]")
"""Replaces a credential in a run's name."""
_PARSE_ERRORS: Final = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error,
)  # fmt: skip
"""Exceptions of readers on malformed bytes that they do not handle themselves."""
_MIXED_HEAD_BYTES: Final = 8 << 20
"""Bytes to search for the first line of a format whose lines are mixed with other output."""
_DIGEST_DIGITS: Final = 8
_MAX_NAME_CHARACTERS: Final = 128


@dataclass
class ImportResult:
    """The result of an import; ``ranklake import --json`` shows its attributes.

    Attributes
    ----------
    runs
        Names of runs, in the order of the files.
    rows, refused
        Number of converted rows by table, and of refused rows by reason. Ingest sends refused rows to quarantine.
    left_out
        Rows that the mapping's filters excluded.
    not_imported
        Number of values of each kind that has no place here, such as audio.
    again
        Number of files that an earlier import had already sent. Ingest stores no row twice.
    cut
        Damage at the end of a file, by file name.
    first_refused
        ``file:line: reason`` of the first `FIRST_REASONS` reasons.
    nothing
        Why a file has no converted row, by file name. An import in which no file has one raises an error instead.
    skipped
        Runs of a store that were not imported, by reason, such as deleted runs.
    notes
        One sentence for each assumption, and for each kind of content that was not imported.
    hidden
        Runs whose name was made from a file name in which a credential was replaced.
    """

    format: str
    files: int = 0
    runs: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    not_imported: dict[str, int] = field(default_factory=dict)
    again: int = 0
    cut: dict[str, str] = field(default_factory=dict)
    first_refused: list[str] = field(default_factory=list)
    nothing: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    segments: int = 0
    segment_bytes: int = 0
    objects: int = 0
    elapsed_s: float = 0.0

    @property
    def is_all_refused(self) -> bool:
        """Whether all rows of the files go to quarantine."""
        return bool(self.refused) and not self.rows

    def try_file(self, source: Source, step: Callable[..., None], *args: Any) -> bool:  # noqa: ANN401 - the step's
        """Run one step of a file's import, and return whether it succeeded. `nothing` gets the reason of a failure.

        Raises `SourceError` or `MappingError` if all other files have failed, too.
        """
        try:
            step(source, *args)
        except (SourceError, MappingError) as error:
            if len(self.nothing) + 1 >= self.files:
                raise
            self.nothing[source.name] = str(error)
            return False
        return True

    def add(self, source: Source, recording: ImportedRun, *, is_named: bool) -> None:
        """Add the result of a file. `is_named`: the caller named the run, so its name is not made from the file's."""
        self.runs += [run for run in recording.runs if run not in self.runs]
        self.rows = {t: self.rows.get(t, 0) + recording.rows.get(t, 0) for t in sorted({*self.rows, *recording.rows})}
        self.refused = dict((Counter(self.refused) + Counter(recording.refused)).most_common())
        self.first_refused = [*self.first_refused, *recording.first_refused][:FIRST_REASONS]
        self.left_out += recording.left_out
        self.not_imported = dict(Counter(self.not_imported) + recording.not_imported)
        self.notes += [note for note in recording.notes if note not in self.notes]
        if damage := source.cut or source.damage:
            self.cut[source.name] = damage
        if recording.refused and not recording.rows:
            self.nothing[source.name] = recording.first_refused[0]
        if not is_named and _REDACTED_PART in recording.run and _REDACTED_PART not in source.stem:
            self.hidden.append(recording.run)


class _FileOfRun(NamedTuple):
    """A file, the SHA-256 of its bytes, and the run to which its rows are added."""

    source: Source
    sha256: str
    run: str


def import_files(  # noqa: PLR0913 - options of an import, by name
    format_name: str,
    paths: Iterable[str],
    spool: str,
    *,
    run: str | None = None,
    mapping: str | None = None,
    zone: str | None = None,
    storage: Mapping[str, str] | None = None,
    keys: SealingKeys | None = None,
    contracts: Path | None = None,
    masks: SealedMasks | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ImportResult:
    """Import files into a spool.

    Parameters
    ----------
    run
        Name of the run; by default made from the file's name, and for some formats from a digest of its content. If
        each of several files is a run, the file's name is appended.
    mapping
        For ``table``: the name of a packaged mapping, or the path of a file.
    zone
        Time zone of times that name none, such as Europe/Berlin; default: UTC.
    storage
        The options of ``[storage]``.
    keys
        Keys that encrypt and sign segments.
    contracts
        Folder of the operator's own contracts. A mapping may name their tables and columns.
    masks
        Masks to apply to rows before they are sealed.
    progress
        Called with the number of bytes read, and the total.

    Raises
    ------
    SourceError
        A format or file does not exist, a file is of another format or changed since its import into the same run,
        or the run already has rows of another file.
    MappingError
        The mapping is invalid.
    ContractError
        `contracts` is no overlay.
    UploadError
        The spool cannot be written. Sent segments remain there; the same import again completes them.
    """
    start_s = time.monotonic()
    overlay = None if contracts is None else Overlay.read(contracts)
    kind, columns = _check_mapping(format_name, mapping, run, overlay)
    _check_zone(format_name, kind, zone)
    result = ImportResult(format_name)
    found_sources = _find_sources(paths, kind, lambda uri: fsspec_options(uri, storage or {}), result)
    shipping = Shipping(spool, fsspec_options(spool, storage or {}))
    active = keys.active() if keys is not None else NO_KEYS
    target = ImportTarget(shipping.take, datetime.now(UTC).date().isoformat(), active, overlay, masks or SealedMasks())
    own_run = (kind.own_run or (kind.by_file and run is None)) if columns is None else columns.own_run
    by_name = kind.by_name if columns is None else columns.by_name
    import_kind = format_name if columns is None else f"{format_name}/{columns.contract.table}/{columns.name}"
    digest = columns.sha256 if columns else zone or ""

    # `kind.find` has already checked the format of a store's runs
    accepted = [s for s in found_sources if kind.find or result.try_file(s, _refuse_other_format, format_name, columns)]
    files = []
    for source, sha256, new_name in _name_runs(accepted, run, columns, format_name, own_run=own_run):
        note = shipping.last_import(import_kind, source.place, "") if own_run and run is None else None
        is_same = note is not None and (note["sha256"], note["mapping"]) == (sha256, digest)
        # an unchanged file keeps the run of its first import, whichever files are imported with it
        name = str(note["run"]) if note is not None and is_same else new_name
        previous = shipping.last_import(import_kind, source.place, name)
        folder = None if kind.maps else "" if own_run else _folder_digest(source) if kind.by_folder else None
        args = (shipping, format_name, sha256, name, previous, digest, folder)
        if kind.find is None:
            _refuse_mixed(source, *args)
        elif not result.try_file(source, _refuse_mixed, *args):  # continue with the other runs of the store
            continue
        result.again += previous is not None
        if kind.find is not None and previous is not None:  # of a store, import only new runs
            result.runs.append(name)
        else:
            files.append(_FileOfRun(source, sha256, name))
    described_runs: set[str] = set()
    report = _progress_report(progress, sum(source.size_bytes for source in found_sources))
    for source, sha256, name in files:
        identity = ImportIdentity(format_name, digest, source.name, sha256, by_name)
        recording = ImportedRun(identity, name, 0, target, has_run_row=name not in described_runs, zone=zone or "")
        source.progress = report
        if not result.try_file(source, _read, recording, kind, columns):
            continue
        recording.close()
        shipping.flush()
        if "runs" in recording.rows:
            described_runs.update(recording.runs)
        note = {
            "format": format_name, "run": name, "sha256": sha256, "mapping": digest, "file": source.name,
            "at": datetime.now(UTC).isoformat(timespec="seconds"), "rows": recording.rows,
        } | ({"folder": _folder_digest(source)} if kind.by_folder else {})  # fmt: skip
        for key in (name, "") if run is None and own_run else (name,):
            shipping.remember(import_kind, source.place, key, note)
        result.add(source, recording, is_named=name == run)
    result.segments, result.segment_bytes, result.objects = shipping.segments, shipping.segment_bytes, shipping.objects
    result.elapsed_s = time.monotonic() - start_s
    return result


def _find_sources(
    paths: Iterable[str], kind: Format, options: Callable[[str], dict[str, Any]], result: ImportResult
) -> list[Source]:
    """Return the files at `paths`, or the runs of the stores there. Raises `SourceError`."""
    paths = list(paths)
    try:
        if kind.find is None:
            files = sources(paths, options, kind.inside)
            result.files = len(files)
            return files
        content = stored_runs(paths, options, kind.find)
        if content.unreadable and not content.runs:
            raise content.unreadable[0]
    except SourceError as error:
        _suggest_formats(paths, options, result.format, error)
        raise
    _refuse_foreign_files(paths, options, result.format)
    result.files = len(content.runs) + len(content.unreadable)
    result.skipped = content.left_out
    result.nothing = {error.where or "?": str(error) for error in content.unreadable}
    return list(content.runs)


def _suggest_formats(
    paths: Iterable[str], options: Callable[[str], dict[str, Any]], name: str, error: SourceError
) -> None:
    """Raise `SourceError` with the command to use if a path has files of other formats than `name`."""
    for path in paths:
        fs, root = fsspec.url_to_fs(path, **options(path))
        if not fs.exists(root) or name in (others := formats_at(fs, root)) or not others:
            continue
        hint = f"it holds {' and '.join(others)}: ranklake import {others[0]} {path}"
        raise SourceError(f"no file of format {name}", where=path, hint=hint) from error


def _refuse_foreign_files(paths: Iterable[str], options: Callable[[str], dict[str, Any]], name: str) -> None:
    """Raise `SourceError` for a file that `Format.find` would accept but that is clearly of another format."""
    for path in paths:
        fs, root = fsspec.url_to_fs(path, **options(path))
        if formats()[name].mark is not None and fs.isfile(root):
            _refuse_other_format(Source(fs, root, int(fs.info(root)["size"] or 0)), name, None)


def _refuse_mixed(
    source: Source,
    shipping: Shipping,
    format_name: str,
    sha256: str,
    run: str,
    previous: Mapping[str, Any] | None,
    mapping: str,
    folder: str | None,
) -> None:
    """Raise `SourceError` if a run has rows of an older version of the file, or of another file."""
    refuse_changed(previous, sha256, mapping, where=source.name, run=run)
    if folder is not None:
        shipping.refuse_merged(format_name, sha256, run, folder, where=source.name)


def _progress_report(progress: Callable[[int, int], None] | None, total: int) -> Callable[[int], None]:
    """Return a function that adds up bytes as they are read, and calls `progress` with the sum and the total."""
    bytes_read = 0

    def report(count: int) -> None:
        nonlocal bytes_read
        bytes_read += count
        if progress is not None:
            progress(min(bytes_read, total), total)

    return report


def _check_mapping(
    format_name: str, mapping: str | None, run: str | None, overlay: Overlay | None
) -> tuple[Format, ColumnMapping | None]:
    """Return the format and the mapping. Raises `SourceError` and `MappingError` if they do not fit the options."""
    by_name = formats()
    if format_name not in by_name:
        raise SourceError(f"no such format {format_name!r}", hint=did_you_mean(format_name, by_name))
    kind = by_name[format_name]
    if kind.maps and not mapping:
        raise SourceError(
            f"{format_name} needs a mapping",
            hint="name one with --mapping: a file, helios, straggler-trace, worker-steps",
        )
    if mapping and not kind.maps:
        raise SourceError(f"{format_name} takes no mapping", where="--mapping", hint="leave it out")
    columns = load_mapping(mapping, overlay) if mapping else None
    if run is not None and columns is not None and columns.run_rule is not None:
        raise SourceError("the mapping takes the run from a column", where="--run", hint="leave --run out")
    if run is not None and not RUN_NAME.fullmatch(run):
        raise SourceError(
            "not a run's name", where="--run", hint="letters, digits, dots, dashes and underscores, at most 128"
        )
    return kind, columns


def _check_zone(format_name: str, kind: Format, zone: str | None) -> None:
    """Raise `SourceError` if no such time zone exists, or the format has no option for one."""
    if zone is None:
        return
    if not kind.zoned:
        hint = "name it in the mapping: zone" if kind.maps else "leave it out"
        raise SourceError(f"{format_name} takes no zone", where="--zone", hint=hint)
    if zone not in (zones := available_timezones()):
        raise SourceError(f"no such zone {zone!r}", where="--zone", hint=did_you_mean(zone, zones))


def _read(source: Source, recording: ImportedRun, kind: Format, columns: ColumnMapping | None) -> None:
    try:
        kind.read_file(source, recording, columns)
    except _PARSE_ERRORS as error:
        damage = f"damaged, or not of this format ({type(error).__name__})"
        raise SourceError(damage, where=source.name, hint="copy or write the file again") from error


def _refuse_other_format(source: Source, name: str, columns: ColumnMapping | None) -> None:
    """Raise `SourceError` for a file that is empty, or clearly of another format."""
    kind, head = formats()[name], source.head()
    if not head.strip():
        flaw = "the file is empty" if not source.size_bytes else "the file has no readable content"
        raise SourceError(flaw, where=source.name, hint="name a file with rows")
    if columns is not None:
        return
    is_complete = len(head) < HEAD_BYTES
    if kind.among and not is_complete:
        head = source.head(_MIXED_HEAD_BYTES)
        is_complete = len(head) < _MIXED_HEAD_BYTES
    if is_of(kind, head):
        return
    if (foreign := foreign_format(head)) is not None:
        raise SourceError(f"{foreign[0]}, which import {name} does not read", where=source.name, hint=foreign[1])
    other = nearest_format(name, head, is_complete=is_complete)
    is_unclear = is_document(head) or head.startswith(ZIP)
    if is_unclear and kind.find is None and (other is None or formats()[other].maps):
        other = next(iter(formats_at(source.fs, source.path)), None)  # slower: tries every reader
        if other is None and not head.startswith(ZIP):
            hint = "save rows as JSON lines: jq -c '.[]' FILE > FILE.jsonl"
            raise SourceError(f"a JSON document, which import {name} does not read", where=source.name, hint=hint)
    if other is not None:
        option = " --mapping MAPPING" if formats()[other].maps else ""
        hint = (
            f"it looks like {other}: ranklake import {other} {Path(source.path).name}{option}; "
            f"{name} reads {kind.recognises}"
        )
        raise SourceError(f"the file does not begin like {name}", where=source.name, hint=hint)


def _name_runs(
    files: list[Source], run: str | None, columns: ColumnMapping | None, format_name: str, *, own_run: bool
) -> list[_FileOfRun]:
    """Return files with the names of their runs.

    A name ends with a digest if files of different content would get the same. Raises `SourceError` if the content of
    files shows that they are not of one run.
    """
    kind = formats()[format_name]
    top = posixpath.commonpath([source.parent for source in files]) if files else ""
    named_files = []
    for source in files:
        sha256, subfolder = source.digest(), source.parent.removeprefix(top).strip("/")
        stem = clean("-".join(filter(None, (clean(subfolder.replace("/", "-")) if subfolder else "", source.stem))))
        if run is not None:
            name = f"{run}-{stem}"[:_MAX_NAME_CHARACTERS] if len(files) > 1 and own_run else run
            if kind.by_folder and subfolder:
                name = clean("-".join([run, *subfolder.split("/")]))[:_MAX_NAME_CHARACTERS]
        elif not own_run:  # files of one run are in one folder
            folder_name = clean("-".join(filter(None, source.folders)) or format_name)[:_MAX_NAME_CHARACTERS]
            name = (columns.run if columns is not None else None) or folder_name
        elif kind.by_file or columns is not None:
            name = stem[:_MAX_NAME_CHARACTERS]
        else:
            name = _with_digest(stem, sha256)
        named_files.append(_FileOfRun(source, sha256, name))
    by_run: dict[str, list[_FileOfRun]] = {}
    for file in named_files:
        by_run.setdefault(file.run, []).append(file)
    for run_files in by_run.values():
        if kind.refuse_strangers is not None:
            kind.refuse_strangers([file.source for file in run_files])
    shared = {name for name, run_files in by_run.items() if own_run and len({file.sha256 for file in run_files}) > 1}
    return [
        file._replace(run=_with_digest(file.run, file.sha256)) if file.run in shared else file for file in named_files
    ]


def _with_digest(name: str, sha256: str) -> str:
    return f"{name[: _MAX_NAME_CHARACTERS - 1 - _DIGEST_DIGITS]}-{sha256[:_DIGEST_DIGITS]}"


def _folder_digest(source: Source) -> str:
    """Return a digest of the path of a file's folder, so that notes in the spool contain no path."""
    return hashlib.sha256(source.parent.encode()).hexdigest()[:16]
