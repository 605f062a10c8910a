"""LLaMA-Factory: ``trainer_log.jsonl``, with metrics and the time since training began in each line.

Source: llamafactory/train/callbacks.py (LogCallback). Metrics get the names of Hugging Face's Trainer, as in
``trainer_state.json``.
"""

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.source import Source, SourceError, StoredRun
from ranklake.capture.importers.trainer_state import reported_name
from ranklake.capture.importers.trainer_values import Refusal, TrainerValues, add, find_files, read_values
from ranklake.capture.importers.units import quantity

_NAME: Final = "trainer_log.jsonl"
_STEP, _ELAPSED, _TOTAL = "current_steps", "elapsed_time", "total_steps"
_NOT_METRICS: Final = frozenset({_STEP, _ELAPSED, _TOTAL, "percentage", "remaining_time"})
_NAMES: Final = {"lr": "learning_rate"}


def find(fs: Any, path: str) -> Iterator[StoredRun | SourceError]:  # noqa: ANN401 - a file system of fsspec
    """Yield the runs of files below a folder, such as ``saves``. Raises `SourceError`."""
    return find_files(fs, path, (_NAME,), _parse)


def _parse(source: Source, record: TrainerValues) -> None:
    for line in source.lines():
        if not line.text.strip() and line.flaw is None:
            continue
        try:
            row = json.loads(line.text) if line.flaw is None else None
        except (ValueError, RecursionError):
            row = None
        step = row.get(_STEP) if isinstance(row, dict) else None
        if row is None or isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 1 << 63:
            record.refusals.append(Refusal("a line without current_steps", line.text, line.number))
            continue
        if isinstance(row.get(_TOTAL), int):
            record.config[_TOTAL] = row[_TOTAL]
        elapsed = quantity(str(row.get(_ELAPSED)))
        at_s = float(Fraction(elapsed[0])) if elapsed is not None and elapsed[1] == "s" else None
        for name, value in row.items():
            if name not in _NOT_METRICS:
                add(record, reported_name(_NAMES.get(name, name)), value, step, at_s)
    if not record.values:
        raise SourceError("no line has current_steps and a value", where=source.name, hint=f"name a {_NAME}")


FORMAT: Final = Format(
    summary="trainer_log.jsonl of LLaMA-Factory",
    recognises="JSON lines with current_steps",
    read=read_values,
    table="scalars",
    mark=re.compile(rb'\A\s*\{[^\n]*"current_steps"\s*:'),
    by_file=True,
    by_name=True,
    find=find,
)
