"""Delta statistics of a data file, taken from its own footer."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from ranklake.lake.contracts.delta import statistics_columns

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract


STATISTIC_CHARACTERS = 64


def statistics(contract: "Contract", footer: pq.FileMetaData, nulls: Mapping[str, int]) -> str:
    """Return Delta statistics, as JSON, of the contract's statistics columns.

    A column whose bounds are long text has none: cut short they would be no values of the column, and some readers
    answer MIN and MAX from them. Nor has text that the rows are not sorted by: nothing could be skipped by it.

    Parameters
    ----------
    footer
        Of the file.
    nulls
        How many NULLs each column has; a column that is not there has nothing else.
    """
    names = statistics_columns(contract)
    extremes = _extremes(footer, set(names))
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for name in names:
        if name not in extremes:
            continue
        least, most = extremes[name]
        if isinstance(least, float) and not (math.isfinite(least) and math.isfinite(most)):
            continue  # JSON has no infinity
        if isinstance(least, bool) or (isinstance(most, str) and max(len(least), len(most)) > STATISTIC_CHARACTERS):
            continue
        low[name], high[name] = _plain(least), _plain(most)
    counts = {name: nulls.get(name, footer.num_rows) for name in names}
    return json.dumps(
        {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": counts}, allow_nan=False
    )


def _extremes(footer: pq.FileMetaData, names: set[str]) -> dict[str, tuple[Any, Any]]:
    """Return (minimum, maximum) of columns; none of a column of which a row group with values has none."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    lacking: set[str] = set()
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for index in range(footer.num_columns):
            column = group.column(index)
            name = column.path_in_schema
            if name not in names:
                continue
            told = column.statistics
            if told is None or not told.has_min_max:
                if told is None or told.null_count != group.num_rows:
                    lacking.add(name)
                continue
            try:
                found.setdefault(name, []).append((told.min, told.max))
            except (OverflowError, ValueError):  # a time that Python cannot hold
                lacking.add(name)
    return {
        name: (min(low for low, _ in some), max(high for _, high in some))
        for name, some in found.items()
        if name not in lacking
    }


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    return value
