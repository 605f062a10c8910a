"""Rows of the table ``rejects``: refused rows, whole, with the reason."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.row_text import row_texts

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

REJECTED_ROWS: Final = 50_000
"""Rows to hand over at a time: each takes some kilobytes while it becomes text."""


def reject_rows(
    rows: pa.Table,
    reasons: pa.Array,
    digests: Sequence[str | None],
    source: str,
    target: "Contract",
    plan: int,
    when: datetime,
) -> pa.Table:
    """Return rows of the table ``rejects``; each refused row goes along whole as JSON, so that it can be replayed."""
    schema = arrow_schema(contract("rejects"))
    columns: dict[str, Any] = {
        name: rows[name] for name in ("run", "attempt", "rank", "incarnation", "segment", "slot")
    }
    columns["reason"] = reasons
    columns["row"] = row_texts(rows)
    columns["sha256"] = digests
    constants = {
        "plan": plan,
        "source": source,
        "table": target.table,
        "ts": when,
        "date": when.date(),
    }
    arrays = []
    for column in schema:
        if column.name in constants:
            arrays.append(pa.repeat(pa.scalar(constants[column.name], column.type), rows.num_rows))
        elif column.name in columns:
            values = columns[column.name]
            arrays.append(values.cast(column.type) if hasattr(values, "cast") else pa.array(values, column.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, column.type))
    return pa.table(arrays, schema=schema)
