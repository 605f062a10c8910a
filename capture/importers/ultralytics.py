"""Ultralytics: reads ``results.csv`` of a run, and settings from ``args.yaml`` (YOLOv5: ``opt.yaml``) in its folder.

Source: ultralytics/engine/trainer.py, save_metrics. Each row is an epoch; ``time`` is in seconds since training began.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.source import Source, SourceError, StoredRun
from ranklake.capture.importers.trainer_values import (
    TrainerValues,
    find_files,
    parse_csv,
    read_values,
    yaml_beside,
)

_NAME: Final = "results.csv"


def find(fs: Any, path: str) -> Iterator[StoredRun | SourceError]:  # noqa: ANN401 - a file system of fsspec
    """Yield the runs of files below a folder, such as ``runs``. Raises `SourceError`."""
    return find_files(fs, path, (_NAME,), _parse)


def _parse(source: Source, record: TrainerValues) -> None:
    record.config = yaml_beside(source, "args.yaml") or yaml_beside(source, "opt.yaml")
    parse_csv(source, record, "epoch", "time")


FORMAT: Final = Format(
    summary="results.csv of Ultralytics and YOLOv5",
    recognises="CSV with a column epoch and others such as train/box_loss",
    read=read_values,
    table="scalars",
    mark=re.compile(rb"\A *epoch *,[^\n]*\b(?:train|metrics)/"),
    by_file=True,
    by_name=True,
    find=find,
)
