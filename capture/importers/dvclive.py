"""DVCLive: reads folders with a ``metrics.json``, and a table of steps and values for each metric.

    dvclive/metrics.json                    last values, nested; metrics without a table become the run's summary
    dvclive/params.yaml                     settings
    dvclive/plots/metrics/train/loss.tsv    step, loss; in old releases also a column ``timestamp``

Source: dvclive/live.py and dvclive/plots/metric.py.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from ranklake.capture.importers.folders import walk
from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.source import Source, SourceError, StoredRun
from ranklake.capture.importers.trainer_values import (
    MOST_BYTES,
    TrainerValues,
    find_files,
    parse_csv,
    read_values,
    yaml_beside,
)

_NAME: Final = "metrics.json"
_PLOTS: Final = ("plots/metrics", "scalars", "plots/scalars")
"""Folders of the tables in different releases."""


def find(fs: Any, path: str) -> Iterator[StoredRun | SourceError]:  # noqa: ANN401 - a file system of fsspec
    """Yield the runs of folders of DVCLive below a folder. Raises `SourceError`."""
    return find_files(fs, path, (_NAME,), _parse)


def _parse(source: Source, record: TrainerValues) -> None:
    try:
        summary = json.loads(source.read_all(MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise SourceError("not JSON", where=source.name, hint="copy it again") from error
    for root in (f"{source.parent}/{folder}" for folder in _PLOTS):
        for path, entry in walk(source.fs, root):
            if path.endswith(".tsv"):
                metric = path.removeprefix(f"{root}/").removesuffix(".tsv")
                table = Source(source.fs, path, int(entry["size"] or 0))
                parse_csv(table, record, "step", separator="\t", metric=metric)
    if not record.values and not record.refusals:
        raise SourceError("no metrics of DVCLive in its folder", where=source.name, hint="name a folder of DVCLive")
    record.config = yaml_beside(source, "params.yaml")
    names = {value.name for value in record.values}
    for name, value in _flatten(summary if isinstance(summary, dict) else {}):
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1 << 200
        if is_number and name not in {*names, "step"}:
            record.summary[name] = float(value)
    record.sha256 = "\0".join([record.sha256, *map(repr, record.values)])


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


FORMAT: Final = Format(
    summary="folders of DVCLive, metrics.json and plots/metrics",
    recognises="metrics.json with tables of steps in plots/metrics",
    read=read_values,
    table="scalars",
    by_file=True,
    by_name=True,
    find=find,
)
