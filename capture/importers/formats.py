"""Formats: the declaration of an importer, the list of all formats, and how files are recognized.

Each module of this folder with a `FORMAT` is an importer. Installed packages add importers by entry points of the group
``ranklake.importers``. The name of the module or entry point is the name of the format:

    [project.entry-points."ranklake.importers"]
    ourlog = "our_package.ourlog:FORMAT"
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.source import Source, SourceError

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.mapping import Mapping
    from ranklake.capture.importers.source import StoredRun

GROUP: Final = "ranklake.importers"
LONGEST_NAME: Final = 500
"""Characters of a metric's name; importers refuse longer names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of foreign telemetry.

    Attributes
    ----------
    summary
        One line for the list of formats.
    recognises
        Description of the content that the importer reads, for error messages.
    read
        Adds the rows of a source to a recording: ``read(source, recording)``, or with `maps`
        ``read(source, recording, mapping)``. Raises `SourceError` if the file has no content of the format.
    table
        A damaged end of an archive is counted as a refused row of this table; with `maps` of the mapping's table.
    mark
        Matches the first bytes of the format's files; None if files have no typical beginning.
    nothing
        Error and hint for a file that gives neither rows nor refused rows; None if such a file is valid.
    own_run
        Whether each file is a run; otherwise all files of one import are one run.
    by_file
        For formats whose files may share a run: whether each file is a run if the caller names no run.
    maps
        Whether the format needs a mapping.
    zoned
        Whether times are local, without a time zone.
    inside
        Glob of the files to take from a folder; empty if folders are refused.
    among
        Whether other output may stand between the format's lines, and before the first.
    by_name
        Whether two files with equal content are two imports, because rows depend on the file's name or time.
    by_folder
        Whether each folder of files is a run, even if the caller names the run.
    refuse_strangers
        Raises `SourceError` if the content of files that would share a run shows that they are of several runs.
    fills
        Whether nearly all of the given lines are of the format. For formats whose `mark` also matches other files:
        error messages suggest them last, and only if this returns true.
    find
        For formats with many runs in a store: yields the runs of a store, given its file system and path, and an error
        in place of each unreadable run. Raises `SourceError` if the path is no such store.
    """

    summary: str
    recognises: str
    read: Callable[..., None]
    table: str
    mark: re.Pattern[bytes] | None = None
    nothing: tuple[str, str] | None = None
    own_run: bool = True
    by_file: bool = False
    maps: bool = False
    zoned: bool = False
    inside: str = ""
    among: bool = False
    by_name: bool = False
    by_folder: bool = False
    refuse_strangers: Callable[[list[Source]], None] | None = None
    fills: Callable[[list[bytes]], bool] | None = None
    find: "Callable[[Any, str], Iterator[StoredRun | SourceError]] | None" = None

    def read_file(self, source: Source, recording: "ImportedRun", mapping: "Mapping | None") -> None:
        """Read a file to its end. Raises `SourceError`, and any exception of a reader on malformed bytes."""
        if mapping is None:
            self.read(source, recording)
        else:
            self.read(source, recording, mapping)
        if source.cut:
            recording.refuse(self.table if mapping is None else mapping.contract.table, source.cut, "")
        if self.nothing and recording.is_empty:
            raise SourceError(self.nothing[0], where=source.name, hint=self.nothing[1])


@cache
def formats() -> dict[str, Format]:
    """Return all formats by name; formats of installed packages follow ranklake's.

    Raises `SourceError` if an installed importer cannot be loaded.
    """
    by_name: dict[str, Format] = {}
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        declared = getattr(importlib.import_module(f"ranklake.capture.importers.{info.name}"), "FORMAT", None)
        if declared is not None:
            by_name[info.name] = declared
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            by_name[entry.name] = entry.load()
        except Exception as error:
            message = f"importer {entry.name} cannot be loaded ({type(error).__name__}: {error})"
            raise SourceError(message, where=entry.value, hint="upgrade or uninstall its package") from error
    return by_name


def is_of(kind: Format, head: bytes) -> bool:
    """Whether the first bytes of a file may be of a format; true if the format has no `mark`."""
    head = _COLOURS.sub(b"", head)
    if kind.mark is None or not kind.mark.search(head):
        return kind.mark is None
    return kind.among or kind.fills is None or kind.fills(_lines(head))


def nearest_format(name: str, head: bytes, *, is_complete: bool) -> str | None:
    """Return the format that a file is more likely of than of format `name`; None if `name` is likely enough.

    Parameters
    ----------
    head
        First bytes of the file.
    is_complete
        Whether `head` is the whole file.
    """
    kind, head = formats()[name], _COLOURS.sub(b"", head)
    if kind.mark is None or is_of(kind, head):
        return None
    if certain := certain_format(head):
        return certain
    if kind.mark.search(head) or kind.find is not None:  # files of `name` may begin so, too
        return None
    if kind.among and not is_complete:  # lines of `name` may follow later
        return None
    lines = _lines(head)
    is_document = not lines or head.lstrip().startswith((b"{", b"PAR1"))
    candidates = ((other, item) for other, item in formats().items() if item.mark and item.mark.search(head))
    return next((other for other, item in candidates if is_document or (item.fills and item.fills(lines))), None)


def certain_format(head: bytes) -> str | None:
    """Return the format that `head` certainly is of: its `mark` matches no other format's files. Else None."""
    marked = ((name, kind.mark) for name, kind in formats().items() if kind.mark and not kind.fills)
    return next((name for name, mark in marked if mark.search(head)), None)


def formats_at(fs: Any, path: str) -> list[str]:  # noqa: ANN401 - a file system of fsspec
    """Return the formats of a file, or of the stores and files in a folder."""
    if not (fs.isfile(path) or fs.isdir(path)):  # a pipe
        return []
    stores = [name for name, kind in formats().items() if _contains(kind, fs, path)]
    files = [path] if fs.isfile(path) else sorted(fs.ls(path, detail=False))[:_MAX_FILES]
    by_head = [name for file in files if fs.isfile(file) if (name := _format_of(fs, file))]
    return list(dict.fromkeys([*stores, *by_head]))


def _format_of(fs: Any, file: str) -> str | None:  # noqa: ANN401 - a file system of fsspec
    """Return the format of a file by its first bytes; None if no format matches, or the file cannot be read."""
    try:
        head = _COLOURS.sub(b"", Source(fs, file, 0).head())
    except (SourceError, OSError):
        return None
    line_formats = ((name, kind) for name, kind in formats().items() if kind.fills and not kind.maps)
    return certain_format(head) or next(
        (name for name, kind in line_formats if kind.mark and kind.mark.search(head) and is_of(kind, head)), None
    )


def _contains(kind: Format, fs: Any, folder: str) -> bool:  # noqa: ANN401 - a file system of fsspec
    try:
        if kind.find is not None:
            certain = certain_format(Source(fs, folder, 0).head()) if fs.isfile(folder) else None
            is_foreign = certain is not None and formats()[certain] is not kind
            return not is_foreign and any(not isinstance(run, SourceError) for run in kind.find(fs, folder))
        return bool(kind.inside and fs.glob(f"{folder.rstrip('/')}/{kind.inside}"))
    except (SourceError, OSError):
        return False


def _lines(head: bytes) -> list[bytes]:
    return [line for line in head.splitlines()[:_MAX_LINES] if line.strip()]


def foreign_format(head: bytes) -> tuple[str, str] | None:
    """Return name and hint for a file of a tool that has no importer, by its first bytes; None if no tool matches."""
    return next(((name, hint) for pattern, name, hint in _FOREIGN if pattern.search(head)), None)


def is_document(head: bytes) -> bool:
    """Whether the first bytes look like one JSON document over several lines."""
    return _DOCUMENT.search(head) is not None


_MAX_LINES: Final = 200
_MAX_FILES: Final = 20
_COLOURS: Final = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_SACCT: Final = "save accounting: sacct --parsable2 --allusers --format=JobID,State,Submit,Start,End,AllocTRES"
_WANDB: Final = "fetch the runs by the script of docs/coming-over.md, and: ranklake import tracker_export wandb-export"
_NODES: Final = rb"(?:idle|alloc|allocated|mix|mixed|down|drain|drained|draining|comp|maint|resv|reserved|unk|unknown)"
_STATES: Final = (
    rb"(?:RUNNING|PENDING|COMPLETING|COMPLETED|CONFIGURING|SUSPENDED|CANCELLED|FAILED|TIMEOUT|PREEMPTED|NODE_FAIL|"
    rb"OUT_OF_MEMORY|R|PD|CG|CD|CF|S|CA|F|TO|PR|NF)"
)
_FOREIGN: Final = tuple(
    (re.compile(pattern, re.MULTILINE), name, hint)
    for pattern, name, hint in (
        (rb"\A(?:\d+(?:[_.+]\S*?)?\|)(?:[^|\n]*\|){4,}", "output of sacct without its header",
         "save it without --noheader: " + _SACCT.partition(": ")[2]),
        (rb"\A\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?, ", "output of nvidia-smi without its header",
         "save it without noheader, or put the fields of --query-gpu in front as a line"),
        (rb"\A\**\s*sdiag output at ", "output of sdiag", _SACCT),
        (rb"\A\s*(?:JOBID\s+PARTITION|JobId=\d+ )|\A\s*\d+[,|\t ]+" + _STATES + rb"\s*$", "output of squeue", _SACCT),
        (rb"\A\s*(?:PARTITION\s+AVAIL|NODELIST\s+NODES|NodeName=)|\A\S+[,|\t ]+" + _NODES + rb"[*~#!%$@^+-]?\s*$",
         "output of sinfo", _SACCT),
        (rb'\A"[^"\n]+","[^"\n]+ - [^"\n]+","[^"\n]+__MIN"', "the CSV of a chart of wandb, sampled and without times",
         _WANDB),
        (rb'\A"?Name"?,"?State"?,"?Notes"?,"?User"?,"?Tags"?,', "the CSV of wandb's table of runs", _WANDB),
        (rb"\btime \(ms\) \| [a-z_]*_microstep: ", "DeepSpeed's breakdown of micro-steps",
         "it has no step numbers: import a log with lines of iterations, or of CurrSamplesPerSec"),
    )
)  # fmt: skip
_DOCUMENT: Final = re.compile(rb"\A\s*[\[{]\s*(?:\n|\"[^\"\n]*\"\s*:\s*[\[{]?\s*\n)")
