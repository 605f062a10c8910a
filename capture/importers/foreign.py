"""Foreign files: formats that are often taken for one that can be imported, what they are, and what to do with them."""

import re
from typing import Final

_JOBS: Final = "write a CSV of its jobs, and import that: ranklake import table FILE --mapping MAPPING (docs/import.md)"
_SACCT: Final = "save accounting: sacct --parsable2 --allusers --format=JobID,State,Submit,Start,End,AllocTRES"
_NODES: Final = rb"(?:idle|alloc|allocated|mix|mixed|down|drain|drained|draining|comp|maint|resv|reserved|unk|unknown)"
_STATES: Final = (
    rb"(?:RUNNING|PENDING|COMPLETING|COMPLETED|CONFIGURING|SUSPENDED|CANCELLED|FAILED|TIMEOUT|PREEMPTED|NODE_FAIL|"
    rb"OUT_OF_MEMORY|R|PD|CG|CD|CF|S|CA|F|TO|PR|NF)"
)
_FOREIGN: Final = tuple(
    (re.compile(pattern, re.MULTILINE), name, hint)
    for pattern, name, hint in (
        (rb"\A\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;[A-Z];\S+;", "accounting of PBS or Torque", _JOBS),
        (rb"\A(?:#[^\n]*\n)*(?:[^:\n]*:){30,}", "accounting of Grid Engine (SGE)", _JOBS),
        (rb'\A"JOB_[A-Z]+" "[\d.]+" \d+ ', "accounting of LSF", _JOBS),
        (rb'\A\s*\{(?=[\s\S]*"(?:jobs|errors)"\s*:)(?=[\s\S]*"(?:slurm|job_id|plugins?)")', "JSON of sacct or squeue",
         _SACCT),
        (rb"\A(?:\d+(?:[_.+]\S*?)?\|)(?:[^|\n]*\|){4,}", "output of sacct without its header",
         "save it without --noheader: " + _SACCT.partition(": ")[2]),
        (rb"\A\**\s*sdiag output at ", "output of sdiag", _SACCT),
        (rb"\A\s*(?:JOBID\s+PARTITION|JobId=\d+ )|\A\s*\d+[,|\t ]+" + _STATES + rb"\s*$", "output of squeue", _SACCT),
        (rb"\A\s*(?:PARTITION\s+AVAIL|NODELIST\s+NODES|NodeName=)|\A\S+[,|\t ]+" + _NODES + rb"[*~#!%$@^+-]?\s*$",
         "output of sinfo", _SACCT),
        (rb"\btime \(ms\) \| [a-z_]*_microstep: ", "DeepSpeed's breakdown of micro-steps",
         "it tells no steps: import a log that has lines of iterations, or of CurrSamplesPerSec"),
        (rb'\A\s*\{(?=[\s\S]*"log_history"\s*:\s*\[)', "a trainer_state.json of Hugging Face's Trainer",
         "name the columns of its log_history in a mapping: ranklake import table FILE --mapping MAPPING"),
        (rb"\A\s*[\[{]\s*(?:\n|\"[^\"\n]*\"\s*:\s*[\[{]?\s*\n)", "a JSON document",
         "save rows as JSON lines: jq -c '.[]' FILE > FILE.jsonl"),
    )
)  # fmt: skip


def foreign(head: bytes) -> tuple[str, str] | None:
    """Return what a file is and what to do with it, by its beginning; None if it is of no format that is known here."""
    return next(((name, hint) for pattern, name, hint in _FOREIGN if pattern.search(head)), None)
