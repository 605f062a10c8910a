"""Small constant tables that rollups read beside the lake's."""

import math
import os
from functools import cache
from typing import Final

import pyarrow as pa

from ranklake.errors import RanklakeError
from ranklake.lake.mfu.peaks import DTYPES, name_key, peak_rows

PRICES: Final = "prices"
"""Lookup of the operator's prices, which a lake is opened with."""

PUE_VARIABLE: Final = "RANKLAKE_POWER_USAGE_EFFECTIVENESS"
"""Environment variable with the facility's energy over its devices'."""


@cache
def peaks() -> pa.Table:
    """Return the devices' peaks by the precision that each is stored under."""
    return pa.Table.from_pylist([row for row in peak_rows() if row["dtype"] == row["canonical_dtype"]])


@cache
def dtypes() -> pa.Table:
    """Return the words for number formats, each with the one that it is stored under."""
    words = {name_key(word): dtype for dtype, others in DTYPES.items() for word in (dtype, *others)}
    return pa.table({"word": list(words), "dtype": list(words.values())})


def facility() -> pa.Table:
    """Return what is assumed of the building: one row, NULL where nothing was said."""
    said = os.environ.get(PUE_VARIABLE, "")
    try:
        effectiveness = float(said) if said else None
    except ValueError:
        effectiveness = math.nan
    if effectiveness is not None and not 1 <= effectiveness < math.inf:
        raise RanklakeError(
            "is not a power usage effectiveness",
            where=PUE_VARIABLE,
            mend="give facility over device energy, such as 1.2",
        )
    return pa.table({"power_usage_effectiveness": pa.array([effectiveness], pa.float64())})
