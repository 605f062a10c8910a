"""Own columns: the numbers that an overlay adds to a step's slot, as columns. Pure, and vectorised over slots."""

import numpy as np
import pyarrow as pa

from ranklake.capture.common.arrays import Array, numbers, texts, truths
from ranklake.capture.sealing.rows import FLAGS, Columns, flags
from ranklake.capture.spool.meta import Meta
from ranklake.lake.contracts.arrow import ARROW_TYPES


def own_columns(slots: Array, non_finite: pa.Array, meta: Meta) -> Columns:
    """Return the columns, and ``non_finite`` with what is to be said of them; columns no longer known are left out."""
    of = meta.contract("steps")
    found: Columns = {}
    said = np.full(len(slots), None, object)
    for place, name in enumerate(meta.own_step_columns):
        if name not in of:
            continue
        values = slots["own"][:, place]
        there = (slots["own_present"] >> np.uint32(place)) & np.uint32(1) == 1
        to = ARROW_TYPES[of.column(name).type]
        if pa.types.is_floating(to):
            with np.errstate(over="ignore"):  # beyond float32 is infinite in the column's type, and flagged so
                narrow = values.astype(np.float32 if to == pa.float32() else np.float64)
            flagged = np.where(there, flags(narrow), 0)
            found[name] = numbers(narrow, to, ~there | (flagged > 0))
            for at in np.flatnonzero(flagged):
                said[at] = f"{name}:{FLAGS[flagged[at] - 1]}" + (f",{said[at]}" if said[at] else "")
        elif pa.types.is_boolean(to):
            found[name] = truths(
                [bool(value) if is_there else None for value, is_there in zip(values, there, strict=True)]
            )
        else:
            limits = np.iinfo(np.int32 if to == pa.int32() else np.int64)
            fits = there & np.isfinite(values) & (values >= limits.min) & (values <= limits.max)
            found[name] = numbers(np.where(fits, values, 0), to, ~fits)
    if any(said):
        words = [",".join(filter(None, pair)) or None for pair in zip(non_finite.to_pylist(), said, strict=True)]
        found["non_finite"] = texts(words)
    return found
