"""Formats: what an importer declares about its format, which formats there are, and how files are recognized.

Each module of this folder that has a `FORMAT` is an importer. So is each entry point of the group
``ranklake.importers`` in an installed package; its name is the format's:

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
"""Characters of a metric's name; one with more is no name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of foreign telemetry.

    Attributes
    ----------
    summary
        One line about it.
    recognises
        What of a file it reads, in words, for refusals.
    read
        Reads a source into a recording. Raises `SourceError` where nothing of the file is of the format. A format that
        takes a mapping gets that as its third argument.
    table
        Table of which the end of a damaged archive is refused; a mapping's own goes before it.
    mark
        Matches the beginning of its files; None where that tells nothing.
    nothing
        What is wrong with a file of which neither rows nor refusals came, and how to fix it; None if nothing is.
    own_run
        Whether each file is a run of its own; else all files of one call go into one.
    by_file
        Whether, though files may share a run, each is a run called after it where no name is given.
    maps
        Whether it takes a mapping.
    zoned
        Whether its times are local ones that name no zone.
    inside
        Glob of the files that are meant where a folder is named; empty where folders are refused.
    among
        Whether its lines stand among other output, so that a beginning without any says little.
    by_name
        Whether files of the same content may say different things: pages whose samples bear no time do.
    by_folder
        Whether each folder of files is a run of its own, whatever name is given for them.
    refuse_strangers
        Raises `SourceError` where files that are to be one run say that they are not.
    fills
        Whether nearly all lines of a beginning are of it. For formats of which a line is easily found in other files:
        another importer's refusal names them only then, and after all others.
    find
        Yields the runs of a store that a path names, given its file system, and for a run that cannot be read the
        error. Raises `SourceError` where there is no such store. For formats whose stores hold many runs.
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
        """Read a file whole. Raises `SourceError`, and whatever bytes raise that no reader has foreseen."""
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
    """Return the formats that can be imported, by name; those of installed packages last.

    Raises `SourceError` for an installed importer that cannot be loaded.
    """
    known: dict[str, Format] = {}
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        own = getattr(importlib.import_module(f"ranklake.capture.importers.{info.name}"), "FORMAT", None)
        if own is not None:
            known[info.name] = own
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            known[entry.name] = entry.load()
        except Exception as error:
            message = f"importer {entry.name} cannot be loaded ({type(error).__name__}: {error})"
            raise SourceError(message, where=entry.value, hint="upgrade or uninstall its package") from error
    return known


def is_of(kind: Format, head: bytes) -> bool:
    """Whether a file's beginning is of a format, as far as that tells."""
    head = _COLOURS.sub(b"", head)
    if kind.mark is None or not kind.mark.search(head):
        return kind.mark is None
    return kind.among or kind.fills is None or kind.fills(_lines(head))


def nearest_format(name: str, head: bytes, *, whole: bool) -> str | None:
    """Return the other format that a file more likely is of; None if it may well be of this one.

    Parameters
    ----------
    head
        Its beginning.
    whole
        Whether that is all of it.
    """
    kind, head = formats()[name], _COLOURS.sub(b"", head)
    if kind.mark is None or is_of(kind, head):
        return None
    if surest := sure_format(head):
        return surest
    if kind.mark.search(head) or kind.find is not None:  # its own files may begin so
        return None
    if kind.among and not whole:  # what comes later may be ours, whatever commas there are here
        return None
    lines = _lines(head)
    is_document = not lines or head.lstrip().startswith((b"{", b"PAR1"))
    others = ((other, item) for other, item in formats().items() if item.mark and item.mark.search(head))
    return next((other for other, item in others if is_document or (item.fills and item.fills(lines))), None)


def sure_format(head: bytes) -> str | None:
    """Return the format whose files alone begin so; None if there is none."""
    known = formats().items()
    return next((name for name, kind in known if kind.mark and not kind.fills and kind.mark.search(head)), None)


def formats_at(fs: Any, path: str) -> list[str]:  # noqa: ANN401 - a file system of fsspec
    """Return the formats that a file is of, or that find something of theirs in a folder: a store, or files."""
    stores = [name for name, kind in formats().items() if _is_in(kind, fs, path)]
    files = [path] if fs.isfile(path) else sorted(fs.ls(path, detail=False))[:_MOST_FILES]
    by_head = [name for file in files if fs.isfile(file) if (name := _format_of(fs, file))]
    return list(dict.fromkeys([*stores, *by_head]))


def _format_of(fs: Any, file: str) -> str | None:  # noqa: ANN401 - a file system of fsspec
    """Return the format of a file by its beginning, or by nearly all lines of that; None if none is known."""
    try:
        head = _COLOURS.sub(b"", Source(fs, file, 0).head())
    except (SourceError, OSError):
        return None
    known = ((name, kind) for name, kind in formats().items() if kind.fills and not kind.maps)
    return sure_format(head) or next(
        (name for name, kind in known if kind.mark and kind.mark.search(head) and is_of(kind, head)), None
    )


def _is_in(kind: Format, fs: Any, folder: str) -> bool:  # noqa: ANN401 - a file system of fsspec
    try:
        if kind.find is not None:
            surest = sure_format(Source(fs, folder, 0).head()) if fs.isfile(folder) else None
            is_other = surest is not None and formats()[surest] is not kind
            return not is_other and any(not isinstance(run, SourceError) for run in kind.find(fs, folder))
        return bool(kind.inside and fs.glob(f"{folder.rstrip('/')}/{kind.inside}"))
    except (SourceError, OSError):
        return False


def _lines(head: bytes) -> list[bytes]:
    return [line for line in head.splitlines()[:_LOOKED_AT] if line.strip()]


def foreign_format(head: bytes) -> tuple[str, str] | None:
    """Return what a file is and what to do with it, by its beginning; None if it is of no format that is known here."""
    return next(((name, hint) for pattern, name, hint in _FOREIGN if pattern.search(head)), None)


def is_document(head: bytes) -> bool:
    """Whether a file seems to be one JSON document."""
    return _DOCUMENT.search(head) is not None


_LOOKED_AT: Final = 200
_MOST_FILES: Final = 20
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
         "it tells no steps: import a log that has lines of iterations, or of CurrSamplesPerSec"),
    )
)  # fmt: skip
_DOCUMENT: Final = re.compile(rb"\A\s*[\[{]\s*(?:\n|\"[^\"\n]*\"\s*:\s*[\[{]?\s*\n)")
