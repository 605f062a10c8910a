"""Hugging Face's Trainer: reads ``trainer_state.json`` of an output folder, or of its last checkpoint.

Source: transformers/trainer_callback.py (TrainerState). An entry of ``log_history`` has values and their ``step``.
Metrics get the names that Trainer reports to other tools (transformers/integrations, rewrite_logs): ``eval_loss``
becomes ``eval/loss``, and ``loss`` becomes ``train/loss``. Each checkpoint has the complete history before it.
"""

import json
import math
import posixpath
import re
from collections.abc import Iterator
from typing import Any, Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.source import Source, SourceError, StoredRun
from ranklake.capture.importers.trainer_values import (
    MOST_BYTES,
    Refusal,
    TrainerValues,
    add,
    checkpoint_step,
    find_files,
    read_values,
    run_folder,
)

_NAME: Final = "trainer_state.json"
_SUMMARY: Final = ("best_global_step", "best_metric", "global_step", "total_flos")
_SETTINGS: Final = (
    "eval_steps", "logging_steps", "max_steps", "num_train_epochs", "save_steps", "train_batch_size", "trial_name",
    "trial_params",
)  # fmt: skip


def find(fs: Any, path: str) -> Iterator[StoredRun | SourceError]:  # noqa: ANN401 - a file system of fsspec
    """Yield the runs of output folders below a folder. Raises `SourceError`."""
    return find_files(fs, path, (_NAME,), _parse, _latest_files)


def _latest_files(paths: list[str]) -> list[str]:
    """Return one file for each output folder: the one directly in it, or else that of its last checkpoint."""
    latest: dict[str, tuple[float, str]] = {}
    for path in paths:
        step, run = checkpoint_step(posixpath.dirname(path)), run_folder(path)
        latest[run] = max(latest.get(run, (-1.0, "")), (math.inf if step is None else step, path))
    return sorted(path for _, path in latest.values())


def _parse(source: Source, record: TrainerValues) -> None:
    try:
        state = json.loads(source.read_all(MOST_BYTES))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise SourceError("not JSON", where=f"{source.name}:{line}", hint="copy it again") from error
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise SourceError("has no log_history", where=source.name, hint="name a trainer_state.json")
    record.config = {name: state[name] for name in _SETTINGS if state.get(name) is not None}
    for name in _SUMMARY:
        value = state.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1 << 200:
            record.summary[name] = float(value)
    for number, entry in enumerate(history, 1):
        step = entry.get("step") if isinstance(entry, dict) else None
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 1 << 63:
            record.refusals.append(Refusal("an entry of log_history without a step", repr(entry), number))
            continue
        for name, value in entry.items():
            if name != "step":
                add(record, reported_name(name), value, step)


def reported_name(name: str) -> str:
    """Return the name under which Trainer reports a value to TensorBoard and wandb.

    >>> [reported_name(name) for name in ("loss", "eval_loss", "test_f1")]
    ['train/loss', 'eval/loss', 'test/f1']
    """
    for kind in ("eval", "test"):
        if name.startswith(f"{kind}_"):
            return f"{kind}/{name.removeprefix(f'{kind}_')}"
    return f"train/{name}"


FORMAT: Final = Format(
    summary="trainer_state.json of Hugging Face's Trainer",
    recognises="JSON with log_history",
    read=read_values,
    table="scalars",
    mark=re.compile(rb'\A\s*\{(?=[\s\S]*"log_history"\s*:\s*\[)'),
    by_file=True,
    by_name=True,
    find=find,
)
