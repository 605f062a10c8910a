"""Imports: files of a format become segments in a spool, file by file."""

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

_HIDDEN: Final = REDACTED.strip("[]")
"""What stands in a run's name for a credential."""
_HOSTILE: Final = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error,
)  # fmt: skip
"""What bytes raise that no reader has foreseen."""
_AMONG_BYTES: Final = 8 << 20
"""How far lines are looked for that stand among others."""
_DIGITS: Final = 8
_LONGEST_NAME: Final = 128


@dataclass
class ImportResult:
    """What was imported.

    Attributes
    ----------
    runs
        Names, in the order of the files.
    rows, refused
        Rows that were converted, by table, and those that were not, by reason: ingest sends them to quarantine.
    left_out
        Rows that the mapping's filters did not let through.
    again
        Files that had been imported before: ingest stores nothing of them twice.
    cut
        What was wrong with the end of files, by name.
    first_refused
        Where the first reasons for refusing rows were met: file, line, reason.
    nothing
        Files of which nothing was converted, among others: and the first reason, or what they are.
    skipped
        Runs of a store that are left out, by reason: those that were deleted there.
    notes
        What was assumed of files, or left out of them, a sentence each.
    hidden
        Runs whose names, made of the names of files, lost what looks like a credential.
    """

    format: str
    files: int = 0
    runs: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
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
        """Whether the files gave rows for quarantine alone."""
        return bool(self.refused) and not self.rows

    def try_file(self, source: Source, step: Callable[..., None], *args: Any) -> bool:  # noqa: ANN401 - the step's
        """Run a step of a file's import, and return whether it succeeded. If not, `nothing` says why.

        Raises `SourceError` or `MappingError` where no file is left.
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
        """Add the result of a file; `is_named` says whether its run was given, not made of the file's name."""
        self.runs += [run for run in recording.runs if run not in self.runs]
        self.rows = {t: self.rows.get(t, 0) + recording.rows.get(t, 0) for t in sorted({*self.rows, *recording.rows})}
        self.refused = dict((Counter(self.refused) + Counter(recording.refused)).most_common())
        self.first_refused = [*self.first_refused, *recording.first_refused][:FIRST_REASONS]
        self.left_out += recording.left_out
        self.notes += [note for note in recording.notes if note not in self.notes]
        if damage := source.cut or source.damage:
            self.cut[source.name] = damage
        if recording.refused and not recording.rows:
            self.nothing[source.name] = recording.first_refused[0]
        if not is_named and _HIDDEN in recording.run and _HIDDEN not in source.stem:
            self.hidden.append(recording.run)


class _ImportFile(NamedTuple):
    """A file, the digest of its bytes, and the run that it goes into."""

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
        Name of the run; by default made from the file's name (and, where such names say little, its content). Where
        each of several files is a run of its own, the file's name goes behind it.
    mapping
        For ``table``: a packaged mapping's name, or the path of a file.
    zone
        For formats whose times name no zone: theirs, such as Europe/Berlin; by default UTC.
    storage
        The options of ``[storage]``.
    keys
        What segments are encrypted and signed with.
    contracts
        Folder of the operator's own contracts, whose tables and columns a mapping may name.
    masks
        What is masked before it is sealed.
    progress
        Called with bytes read, and bytes in all.

    Raises
    ------
    SourceError
        No such format or file, a file of another format, one that changed since its run was imported, or one that is
        another run than that of its name in the spool.
    MappingError
        The mapping is none.
    ContractError
        `contracts` is no overlay.
    UploadError
        The spool cannot be written. What was sent stays; the same import again completes it.
    """
    began = time.monotonic()
    overlay = None if contracts is None else Overlay.read(contracts)
    kind, columns = _check_mapping(format_name, mapping, run, overlay)
    _check_zone(format_name, kind, zone)
    result = ImportResult(format_name)
    resolved = _resolve(paths, kind, lambda uri: fsspec_options(uri, storage or {}), result)
    shipping = Shipping(spool, fsspec_options(spool, storage or {}))
    active = keys.active() if keys is not None else NO_KEYS
    target = ImportTarget(shipping.take, datetime.now(UTC).date().isoformat(), active, overlay, masks or SealedMasks())
    own_run = (kind.own_run or (kind.by_file and run is None)) if columns is None else columns.own_run
    by_name = kind.by_name if columns is None else columns.by_name
    memory = format_name if columns is None else f"{format_name}/{columns.contract.table}/{columns.name}"
    digest = columns.sha256 if columns else zone or ""

    # a store's runs were recognized when they were found
    fitting = [s for s in resolved if kind.find or result.try_file(s, _refuse_other, format_name, columns)]
    files = []
    for source, sha256, fresh in _name_runs(fitting, run, columns, format_name, own_run=own_run):
        note = shipping.last_import(memory, source.place, "") if own_run and run is None else None
        is_same = note is not None and (note["sha256"], note["mapping"]) == (sha256, digest)
        # a file stays the run that it became, whatever is imported beside it
        name = str(note["run"]) if note is not None and is_same else fresh
        before = shipping.last_import(memory, source.place, name)
        folder = None if kind.maps else "" if own_run else _folder_digest(source) if kind.by_folder else None
        mixing = (shipping, format_name, sha256, name, before, digest, folder)
        if kind.find is None:
            _refuse_mixed(source, *mixing)
        elif not result.try_file(source, _refuse_mixed, *mixing):  # the other runs of a store still come
            continue
        result.again += before is not None
        if kind.find is not None and before is not None:  # a store is read again for what is new in it
            result.runs.append(name)
        else:
            files.append(_ImportFile(source, sha256, name))
    described: set[str] = set()
    report = _report_to(progress, sum(source.size_bytes for source in resolved))
    for source, sha256, name in files:
        identity = ImportIdentity(format_name, digest, source.name, sha256, by_name)
        recording = ImportedRun(identity, name, 0, target, has_run_row=name not in described, zone=zone or "")
        source.progress = report
        if not result.try_file(source, _read, recording, kind, columns):
            continue
        recording.close()
        shipping.flush()
        if "runs" in recording.rows:
            described.update(recording.runs)
        note = {
            "format": format_name, "run": name, "sha256": sha256, "mapping": digest, "file": source.name,
            "at": datetime.now(UTC).isoformat(timespec="seconds"), "rows": recording.rows,
        } | ({"folder": _folder_digest(source)} if kind.by_folder else {})  # fmt: skip
        for key in (name, "") if run is None and own_run else (name,):
            shipping.remember(memory, source.place, key, note)
        result.add(source, recording, is_named=name == run)
    result.segments, result.segment_bytes, result.objects = shipping.segments, shipping.segment_bytes, shipping.objects
    result.elapsed_s = time.monotonic() - began
    return result


def _resolve(
    paths: Iterable[str], kind: Format, options: Callable[[str], dict[str, Any]], result: ImportResult
) -> list[Source]:
    """Return the files, or the runs of stores, that paths name. Raises `SourceError`."""
    paths = list(paths)
    try:
        if kind.find is None:
            resolved = sources(paths, options, kind.inside)
            result.files = len(resolved)
            return resolved
        content = stored_runs(paths, options, kind.find)
        if content.unreadable and not content.runs:
            raise content.unreadable[0]
    except SourceError as error:
        _refuse_as_other(paths, options, result.format, error)
        raise
    _refuse_files(paths, options, result.format)
    result.files = len(content.runs) + len(content.unreadable)
    result.skipped = content.left_out
    result.nothing = {error.where or "?": str(error) for error in content.unreadable}
    return list(content.runs)


def _refuse_as_other(
    paths: Iterable[str], options: Callable[[str], dict[str, Any]], name: str, error: SourceError
) -> None:
    """Raise `SourceError` where a path of which nothing can be imported is of another format."""
    for path in paths:
        fs, root = fsspec.url_to_fs(path, **options(path))
        if not fs.exists(root) or name in (others := formats_at(fs, root)) or not others:
            continue
        hint = f"it holds {' and '.join(others)}: ranklake import {others[0]} {path}"
        raise SourceError(f"nothing of {name} is there", where=path, hint=hint) from error


def _refuse_files(paths: Iterable[str], options: Callable[[str], dict[str, Any]], name: str) -> None:
    """Raise `SourceError` for a file that a format's reader of stores would take though it plainly is another's."""
    for path in paths:
        fs, root = fsspec.url_to_fs(path, **options(path))
        if formats()[name].mark is not None and fs.isfile(root):
            _refuse_other(Source(fs, root, int(fs.info(root)["size"] or 0)), name, None)


def _refuse_mixed(
    source: Source,
    shipping: Shipping,
    format_name: str,
    sha256: str,
    run: str,
    before: Mapping[str, Any] | None,
    mapping: str,
    folder: str | None,
) -> None:
    """Raise `SourceError` where a run would come to hold rows of other content, or of another file."""
    refuse_changed(before, sha256, mapping, where=source.name, run=run)
    if folder is not None:
        shipping.refuse_merged(format_name, sha256, run, folder, where=source.name)


def _report_to(progress: Callable[[int, int], None] | None, total: int) -> Callable[[int], None]:
    """Return what adds up the bytes that are read, and reports them."""
    seen = 0

    def report(count: int) -> None:
        nonlocal seen
        seen += count
        if progress is not None:
            progress(min(seen, total), total)

    return report


def _check_mapping(
    format_name: str, mapping: str | None, run: str | None, overlay: Overlay | None
) -> tuple[Format, ColumnMapping | None]:
    """Return the format and the mapping. Raises `SourceError` and `MappingError` for what does not go together."""
    known = formats()
    if format_name not in known:
        raise SourceError(f"no such format {format_name!r}", hint=did_you_mean(format_name, known))
    kind = known[format_name]
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
    """Raise `SourceError` for a zone that there is not, or of a format that takes none."""
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
    except _HOSTILE as error:
        damage = f"damaged, or not of this format ({type(error).__name__})"
        raise SourceError(damage, where=source.name, hint="fetch it again, or have it written again") from error


def _refuse_other(source: Source, name: str, columns: ColumnMapping | None) -> None:
    """Raise `SourceError` for a file that is empty, or plainly of another format."""
    kind, head = formats()[name], source.head()
    if not head.strip():
        flaw = "the file is empty" if not source.size_bytes else "nothing can be read of the file"
        raise SourceError(flaw, where=source.name, hint="name one with rows")
    if columns is not None:
        return
    whole = len(head) < HEAD_BYTES
    if kind.among and not whole:
        head = source.head(_AMONG_BYTES)
        whole = len(head) < _AMONG_BYTES
    if is_of(kind, head):
        return
    if (foreign := foreign_format(head)) is not None:
        raise SourceError(f"{foreign[0]}, which import {name} does not read", where=source.name, hint=foreign[1])
    other = nearest_format(name, head, whole=whole)
    is_unclear = is_document(head) or head.startswith(ZIP)
    if is_unclear and kind.find is None and (other is None or formats()[other].maps):
        other = next(iter(formats_at(source.fs, source.path)), None)  # a file that says less than those beside it
        if other is None and not head.startswith(ZIP):
            hint = "save rows as JSON lines: jq -c '.[]' FILE > FILE.jsonl"
            raise SourceError(f"a JSON document, which import {name} does not read", where=source.name, hint=hint)
    if other is not None:
        own = " --mapping MAPPING" if formats()[other].maps else ""
        hint = (
            f"it looks like {other}: ranklake import {other} {Path(source.path).name}{own}; "
            f"of {name} are {kind.recognises}"
        )
        raise SourceError(f"nothing of {name} at its beginning", where=source.name, hint=hint)


def _name_runs(
    files: list[Source], run: str | None, columns: ColumnMapping | None, format_name: str, *, own_run: bool
) -> list[_ImportFile]:
    """Return files with their runs: a run's name ends with a digest where files of other content would share it.

    Raises `SourceError` where files that would be one run say that they are not.
    """
    kind = formats()[format_name]
    top = posixpath.commonpath([source.parent for source in files]) if files else ""
    named = []
    for source in files:
        sha256, below = source.digest(), source.parent.removeprefix(top).strip("/")
        stem = clean("-".join(filter(None, (clean(below.replace("/", "-")) if below else "", source.stem))))
        if run is not None:
            name = f"{run}-{stem}"[:_LONGEST_NAME] if len(files) > 1 and own_run else run
            if kind.by_folder and below:
                name = clean("-".join([run, *below.split("/")]))[:_LONGEST_NAME]
        elif not own_run:  # files of one run lie side by side
            of_folder = clean("-".join(filter(None, source.folders)) or format_name)[:_LONGEST_NAME]
            name = (columns.run if columns is not None else None) or of_folder
        elif kind.by_file or columns is not None:
            name = stem[:_LONGEST_NAME]
        else:
            name = _with_digest(stem, sha256)
        named.append(_ImportFile(source, sha256, name))
    by_run: dict[str, list[_ImportFile]] = {}
    for file in named:
        by_run.setdefault(file.run, []).append(file)
    for together in by_run.values():
        if kind.refuse_strangers is not None:
            kind.refuse_strangers([file.source for file in together])
    shared = {name for name, together in by_run.items() if own_run and len({file.sha256 for file in together}) > 1}
    return [file._replace(run=_with_digest(file.run, file.sha256)) if file.run in shared else file for file in named]


def _with_digest(name: str, sha256: str) -> str:
    return f"{name[: _LONGEST_NAME - 1 - _DIGITS]}-{sha256[:_DIGITS]}"


def _folder_digest(source: Source) -> str:
    """Return what stands for a file's folder in notes: two folders get two names, and no path is shown."""
    return hashlib.sha256(source.parent.encode()).hexdigest()[:16]
