"""Formats: which formats can be imported, which module reads each, and how their files are recognized."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers import (
    kineto,
    megatron,
    mlperf,
    prometheus,
    sacct,
    table,
    tensorboard,
    torchtitan,
    wandb,
)

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

Reader = Callable[["Source", "ImportedRun", Any], None]


@dataclass(frozen=True, slots=True)
class Format:
    """A format of foreign telemetry.

    Attributes
    ----------
    summary
        One line about it.
    recognises
        What of a file it knows, in words: a refusal says so.
    read
        Takes a source, what records it, and the mapping where the format has one.
    looks
        Matches the beginning of its files, as bytes; None where that tells nothing.
    among
        Whether its lines stand among whatever else was printed, so that a beginning without any says little.
    own_run
        Whether each file is a run of its own; else all files of one call go into one.
    by_file
        Whether, though files may share a run, each is a run called after it where no name is given.
    maps
        Whether it takes a mapping.
    inside
        Which of a folder's files are meant where the folder is named; empty where folders are none of the format's.
    by_folder
        Whether each folder of files is a run of its own, whatever name is given for them.
    refuse_strangers
        Raises `SourceError` where files that are to be one run say that they are not.
    by_name
        Whether files of the same content may say different things: pages whose samples bear no time do.
    """

    summary: str
    recognises: str
    read: Reader
    looks: re.Pattern[bytes] | None = None
    own_run: bool = True
    maps: bool = False
    inside: str = ""
    among: bool = False
    by_name: bool = False
    by_folder: bool = False
    by_file: bool = False
    refuse_strangers: "Callable[[list[Source]], None] | None" = None


FORMATS: Final[dict[str, Format]] = {
    "table": Format(
        "CSV, JSON lines or Parquet, by a mapping",
        "a header with separators, a JSON object a line, or Parquet",
        table.read,
        re.compile(rb"\APAR1|\A\s*\{\s*\"[^\n]*\}\s*(?:\n|$)|^[^\n,;\t]*[,;\t][^\n]*\n", re.MULTILINE),
        maps=True,
    ),
    "mlperf": Format(
        "MLPerf Training logs, :::MLLOG lines",
        "lines with :::MLLOG and a JSON object, or :::MLL, or :::MLPv0.5.0",
        mlperf.read,
        re.compile(rb":::MLLOG|:::SYSJSON|:::MLPv0\.|:::MLL "),
        among=True,
    ),
    "sacct": Format(
        "Slurm accounting, sacct --parsable2",
        "a header with JobID| and State|",
        sacct.read,
        re.compile(rb"^[^\n]*\bJobID[^\n|]*\|"),
        own_run=False,
        by_file=True,
    ),
    "kineto": Format(
        "torch.profiler traces, .json or .json.gz, one file a rank",
        "JSON with traceEvents",
        kineto.read,
        re.compile(rb"\"traceEvents\"|\"schemaVersion\"|\A\s*\[\s*\{"),
        own_run=False,
        refuse_strangers=kineto.refuse_strangers,
    ),
    "megatron": Format(
        "standard output of Megatron-LM, DeepSpeed, GPT-NeoX, NeMo 2 and AMD's Primus",
        "lines such as 'iteration 10/ 500 | … elapsed time per iteration (ms): …|', or 'steps: 10 … iter time (s): …'",
        megatron.read,
        re.compile(
            rb"\biteration\s+\d+/\s*\d+|\belapsed time per iteration|\busing world size:|\biter time \(s\)|"
            rb"\[Rank \d+\] \(after \d+ iterations\)|\btimer\.py:\d+:stop\] |\bGrad overflow on iteration|"
            rb"\biteration=\s*\d+/"
        ),
        among=True,
    ),
    "torchtitan": Format(
        "standard output of torchtitan",
        "lines such as 'step: 10  loss: 6.2  memory: …  tps: …' behind a time",
        torchtitan.read,
        re.compile(rb"\bstep:\s*\d+\s+loss:|\bTraining starts at step"),
        among=True,
    ),
    "prometheus": Format(
        "pages in Prometheus' text format, and answers of its query API",
        "lines such as 'name{label=\"…\"} 1.5', or JSON with status and data",
        prometheus.read,
        re.compile(
            rb"\A\s*\{\s*\"(?:status|data)\"|^# (?:HELP|TYPE) |^[a-zA-Z_:][\w:]*(?:\{[^\n]*\})? +[-+.\dIiNn]",
            re.MULTILINE,
        ),
        own_run=False,
        by_file=True,
        by_name=True,
    ),
    "tensorboard": Format(
        "event files of TensorBoard",
        "records of brain.Event",
        tensorboard.read,
        re.compile(rb"\A[\s\S]{8,24}brain\.Event:"),
        own_run=False,
        inside="**/*tfevents*",
        by_folder=True,
    ),
    "wandb": Format(
        "offline runs of wandb, .wandb",
        "records behind :W&B",
        wandb.read,
        re.compile(rb"\A:W&B"),
        inside="**/*.wandb",
    ),
}


def likely(head: bytes) -> list[str]:
    """Return the formats that a file may be of, by its beginning; the surest first."""
    return [name for name in _ORDER if name in FORMATS and (looks := FORMATS[name].looks) and looks.search(head)]


def rather(name: str, head: bytes, *, whole: bool) -> str | None:
    """Return of which other format a file rather is; None if it may be of this one.

    Parameters
    ----------
    head
        Its beginning.
    whole
        Whether that is all of it.
    """
    kind, head = FORMATS[name], _COLOURS.sub(b"", head)
    if kind.looks is None or kind.looks.search(head):
        return None
    others = [other for other in likely(head) if other != name]
    if kind.among and not whole:  # what comes later may be ours, whatever commas there are here
        others = [other for other in others if other not in _LINE_BY_LINE]
    return next((other for other in others if other not in _LINE_BY_LINE or _throughout(other, head)), None)


def _throughout(name: str, head: bytes) -> bool:
    """Return whether nearly all of the first lines are of a format that has nothing else in its files.

    A line or two of a log are easily taken for a sample, or for a row.
    """
    lines = [line for line in head.splitlines()[:_LOOKED_AT] if line.strip()]
    if not lines or head.lstrip().startswith((b"{", b"PAR1")):
        return True
    if name == "prometheus":
        fit = sum(_SAMPLE.fullmatch(line.rstrip()) is not None for line in lines)
    else:
        mark = max((b",", b";", b"\t"), key=lines[0].count)
        fit = sum(line.count(mark) >= lines[0].count(mark) > 0 for line in lines)
    return fit >= _MOSTLY * len(lines)


_LINE_BY_LINE: Final = frozenset({"table", "prometheus"})
_LOOKED_AT: Final = 200
_MOSTLY: Final = 0.9
_SAMPLE: Final = re.compile(
    rb"#.*|[a-zA-Z_:][\w:]*(?:\{.*\})?[ \t]+[-+]?(?:[\d.][\d.eE+-]*|Inf|NaN)(?:[ \t]+[-\d.]+)?(?: #.*)?"
)
_COLOURS: Final = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_ORDER: Final = ("mlperf", "kineto", "sacct", "tensorboard", "wandb", "megatron", "torchtitan", "prometheus", "table")
