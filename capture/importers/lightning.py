"""Lightning: reads ``metrics.csv`` of its CSVLogger, and settings from ``hparams.yaml`` in the same folder.

Source: lightning/fabric/loggers/csv_logs.py. Each row has ``step`` and the values logged at it.
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

_NAME: Final = "metrics.csv"


def find(fs: Any, path: str) -> Iterator[StoredRun | SourceError]:  # noqa: ANN401 - a file system of fsspec
    """Yield the runs of files below a folder, such as ``lightning_logs``. Raises `SourceError`."""
    return find_files(fs, path, (_NAME,), _parse)


def _parse(source: Source, record: TrainerValues) -> None:
    record.config = yaml_beside(source, "hparams.yaml")
    parse_csv(source, record, "step")


FORMAT: Final = Format(
    summary="metrics.csv of Lightning's CSVLogger",
    recognises="CSV with columns step and epoch",
    read=read_values,
    table="scalars",
    mark=re.compile(rb"\A(?=(?:[^\n]*,)?step(?:,|\r?\n))(?:[^\n]*,)?epoch(?:,|\r?\n)"),
    by_file=True,
    by_name=True,
    find=find,
)
