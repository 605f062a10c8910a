"""The body of the rollup ``node_findings``: which minutes are bad, by SQL, and what detectors say of them in a row."""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.rollups.declaration import SqlBody, replace_table
from ranklake.lake.rollups.detectors import devices, hosts
from ranklake.lake.rollups.findings import Findings
from ranklake.lake.rollups.hardware import xid_meanings

if TYPE_CHECKING:
    from ranklake.lake.query.engine import SessionContext

_MINUTES: Final = "node_minutes"
_COLUMNS: Final = ("first_ts", "last_ts", "newest_ts", "value", "baseline", "detail", "amount", "node", "device_index")
_ORDER: Final = ("first_ts", "last_ts", "detail")
_SQL: Final = SqlBody("node_findings")


@dataclass(frozen=True)
class NodeFindings(Findings):
    """Minutes of all devices and hosts in one pass over the samples, then each detector over its own.

    A detector reads what the SQL gives under its name, whatever table it is declared to watch.
    """

    @property
    def source(self) -> str:
        """Text of the SQL, and of all that findings are computed with."""
        modules = [inspect.getsource(module) for module in (sys.modules[__name__], devices, hosts)]
        return "\n".join([_SQL.source, super().source, *modules, repr(dict(xid_meanings()))])

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
        """Return the findings of a date."""
        replace_table(ctx, _MINUTES, _SQL.rows(ctx, {name.replace(".", "_"): value for name, value in values.items()}))
        minutes = tuple(
            replace(each, table=_MINUTES, columns=_COLUMNS, order=_ORDER, where=f"detector = '{each.name}'")
            for each in self.detectors
        )
        try:
            rows = Findings(self.table, minutes, "", self.limit_s).rows(ctx, values)
        finally:
            ctx.deregister_table(_MINUTES)
        first = {name: place for place, name in reversed(list(enumerate(rows["finding_id"].to_pylist())))}
        return rows.take(pa.array(sorted(first.values()), pa.int64()))  # a fault that was recorded twice is one
