"""Imports: files of a format become segments in a spool, file by file."""

import hashlib
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ranklake.capture.importers.foreign import foreign
from ranklake.capture.importers.formats import FORMATS, Format, rather
from ranklake.capture.importers.import_identity import ImportIdentity
from ranklake.capture.importers.imported_run import ImportedRun, today
from ranklake.capture.importers.mapping import Mapping as ColumnMapping
from ranklake.capture.importers.mapping import MappingError
from ranklake.capture.importers.mapping_reader import load_mapping
from ranklake.capture.importers.naming import known_as, named, of_before
from ranklake.capture.importers.shipping import TOGETHER, Shipping, refuse_changed
from ranklake.capture.importers.source import HEAD_BYTES, Source, SourceError, sources
from ranklake.capture.sealing.keys import NO_KEYS, SealingKeys
from ranklake.capture.sealing.masked import SealedMasks
from ranklake.errors import did_you_mean
from ranklake.lake.contracts.overlay import Overlay
from ranklake.redaction.redact import REDACTED
from ranklake.segments.segment import RUN_NAME
from ranklake.segments.storage_options import fsspec_options

_SHOWN_REASONS: Final = 3
_HIDDEN: Final = REDACTED.strip("[]")
"""What stands in a run's name for a credential."""
_HOSTILE: Final = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error,
)  # fmt: skip
"""What bytes raise that no reader has foreseen."""
_AMONG_BYTES: Final = 8 << 20
"""How far lines are looked for that stand among others."""


@dataclass
class Imported:
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
    hidden: list[str] = field(default_factory=list)
    segments: int = 0
    segment_bytes: int = 0
    objects: int = 0
    elapsed_s: float = 0.0

    @property
    def is_all_refused(self) -> bool:
        """Whether nothing came of the files but rows for quarantine."""
        return bool(self.refused) and not self.rows

    def of_format(self, files: list[Source], take: Callable[[Source], None]) -> list[Source]:
        """Return the files that are of the format; others of several stop nobody, and `nothing` has the reason.

        Raises `SourceError` or `MappingError` where no file is left.
        """
        kept = []
        for source in files:
            try:
                take(source)
                kept.append(source)
            except (SourceError, MappingError) as error:
                if len(self.nothing) + 1 >= self.files:
                    raise
                self.nothing[source.name] = str(error)
        return kept

    def took(self, source: Source, recording: ImportedRun, *, is_named: bool) -> None:
        """Add what came of a file; `is_named` says whether its run was given, not made of the file's name."""
        self.runs += [run for run in recording.runs if run not in self.runs]
        self.rows = {t: self.rows.get(t, 0) + recording.rows.get(t, 0) for t in {*self.rows, *recording.rows}}
        self.first_refused += [one for one in recording.first_refused if len(self.first_refused) < _SHOWN_REASONS]
        self.left_out += recording.left_out
        if recording.refused and not recording.rows:
            self.nothing[source.name] = recording.first_refused[0]
        if not is_named and _HIDDEN in recording.run and _HIDDEN not in source.stem:
            self.hidden.append(recording.run)


def import_files(  # noqa: PLR0913 - what an import may be told, by name
    format_name: str,
    paths: Iterable[str],
    spool: str,
    *,
    run: str | None = None,
    mapping: str | None = None,
    storage: Mapping[str, str] | None = None,
    keys: SealingKeys | None = None,
    contracts: Path | None = None,
    masks: SealedMasks | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Import files into a spool.

    Parameters
    ----------
    run
        Name of the run; by default made from the file's name (and, where such names say little, its content). Where
        each of several files is a run of its own, the file's name goes behind it.
    mapping
        For ``table``: a packaged mapping's name, or the path of a file.
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
    kind, columns = _asked(format_name, mapping, run, overlay)
    files = sources(paths, lambda uri: fsspec_options(uri, storage or {}), kind.inside)
    shipping = Shipping(spool, fsspec_options(spool, storage or {}))
    done = Imported(format_name, len(files))
    refused: Counter[str] = Counter()
    total, seen = sum(source.size_bytes for source in files), 0
    own_run = (kind.own_run or (kind.by_file and run is None)) if columns is None else columns.own_run

    def told(count: int) -> None:
        nonlocal seen
        seen += count
        if progress is not None:
            progress(min(seen, total), total)

    by_name = kind.by_name if columns is None else columns.by_name
    todo = []
    files = done.of_format(files, lambda source: _refuse_other(source, format_name, kind, columns))
    memory = format_name if columns is None else f"{format_name}/{columns.contract.table}/{columns.name}"
    digest = columns.sha256 if columns else ""
    for source, sha256, fresh in named(files, run, columns, format_name, own_run=own_run):
        name = known_as(shipping, memory, source, sha256, digest, run) if own_run else None
        name = name or fresh
        before = shipping.remembered(memory, source.path, name) or of_before(shipping, columns, source, name)
        refuse_changed(before, sha256, digest, where=source.name, run=name)
        identity = ImportIdentity(format_name, digest, source.name, sha256, by_name)
        done.again += before is not None
        before = before or _elsewhere(shipping, kind, source, identity, name, own_run=own_run)
        todo.append((source, name, identity, before is not None and not before.get(TOGETHER)))
    active = keys.active() if keys is not None else NO_KEYS
    for source, name, identity, rank_by_rank in todo:
        recording = ImportedRun(
            identity, name, 0, shipping.take, today(), active, says_run=name not in done.runs,
            rank_by_rank=rank_by_rank, overlay=overlay, masks=masks,
        )  # fmt: skip
        source.told = told
        if not done.of_format([source], _reading(kind, recording, columns)):
            continue
        if source.cut:
            done.cut[source.name] = source.cut
        recording.close()
        shipping.flush()
        facts: dict[str, Any] = {
            "format": format_name,
            "run": name,
            "sha256": identity.sha256,
            "mapping": identity.mapping,
        }
        facts |= {"file": source.name, "at": datetime.now(UTC).isoformat(timespec="seconds"), "rows": recording.rows}
        facts |= ({} if rank_by_rank else {TOGETHER: True}) | ({"folder": _folder(source)} if kind.by_folder else {})
        shipping.remember(memory, source.path, name, facts)
        if run is None and own_run:
            shipping.remember(memory, source.path, "", facts)
        refused.update(recording.refused)
        done.took(source, recording, is_named=name == run)
    done.rows = dict(sorted(done.rows.items()))
    done.refused = dict(refused.most_common())
    done.segments, done.segment_bytes, done.objects = shipping.segments, shipping.segment_bytes, shipping.objects
    done.elapsed_s = time.monotonic() - began
    return done


def _asked(
    format_name: str, mapping: str | None, run: str | None, overlay: Overlay | None
) -> tuple[Format, ColumnMapping | None]:
    """Return the format and the mapping. Raises `SourceError` and `MappingError` for what does not go together."""
    kind = _format(format_name)
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


def _reading(kind: Format, recording: ImportedRun, columns: ColumnMapping | None) -> Callable[[Source], None]:
    def read(source: Source) -> None:
        try:
            kind.read(source, recording, columns)
        except _HOSTILE as error:
            what = f"damaged, or not of this format ({type(error).__name__})"
            raise SourceError(what, where=source.name, hint="fetch it again, or have it written again") from error

    return read


def _elsewhere(
    shipping: Shipping, kind: Format, source: Source, identity: ImportIdentity, run: str, *, own_run: bool
) -> dict[str, Any] | None:
    """Return what was noted of the same content at another path.

    Raises `SourceError` where the run has rows of another file, and each file, or folder, is a run of its own.
    """
    if not kind.maps and (own_run or kind.by_folder):
        folder = "" if own_run else _folder(source)
        shipping.refuse_merged(identity.format, identity.sha256, run, folder, where=source.name)
    return shipping.elsewhere(identity.format, identity.sha256, identity.mapping, run)


def _folder(source: Source) -> str:
    """Return what stands for a file's folder in notes: two are told apart, and no path is told."""
    return hashlib.sha256(source.parent.encode()).hexdigest()[:16]


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise SourceError(f"no such format {name!r}", hint=did_you_mean(name, FORMATS))
    return FORMATS[name]


def _refuse_other(source: Source, name: str, kind: Format, columns: ColumnMapping | None) -> None:
    """Raise `SourceError` for a file that is empty, or plainly of another format."""
    head = source.head()
    if not head.strip():
        what = "the file is empty" if not source.size_bytes else "nothing can be read of the file"
        raise SourceError(what, where=source.name, hint="name one with rows")
    if columns is not None:
        return
    whole = len(head) < HEAD_BYTES
    if kind.among and not whole:
        head = source.head(_AMONG_BYTES)
        whole = len(head) < _AMONG_BYTES
    if kind.looks is not None and kind.looks.search(head):
        return
    if (known := foreign(head)) is not None:
        raise SourceError(f"{known[0]}, which import {name} does not read", where=source.name, hint=known[1])
    if (other := rather(name, head, whole=whole)) is not None:
        own = " --mapping MAPPING" if FORMATS[other].maps else ""
        hint = (
            f"it looks like {other}: ranklake import {other} {Path(source.path).name}{own}; "
            f"of {name} are {kind.recognises}"
        )
        raise SourceError(f"nothing of {name} at its beginning", where=source.name, hint=hint)
