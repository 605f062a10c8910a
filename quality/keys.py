"""Whether keys repeat in a partition, in bounded memory: what is too large to hold is spilled to disk."""

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.dataset as ds

from ranklake.lake.contracts.arrow import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store import Lake

MEMORY_BYTES: Final = 512 * 2**20


def repeated(lake: "Lake", contract: "Contract", files: pa.Table, columns: "Sequence[str]") -> tuple[int, int]:
    """Return (rows whose key has no NULL, those of them that repeat a key) in the files of one partition.

    NULLs are not equal to one another, as in SQL's UNIQUE. ``date`` is the same in all rows, so it is left out.
    """
    from datafusion import RuntimeEnvBuilder, SessionConfig, SessionContext

    names = [name for name in columns if name not in contract.partition]
    stored = arrow_schema(contract)
    paths = [lake.path("tables", contract.table, path) for path in files["path"].to_pylist()]
    rows = ds.dataset(
        paths,
        schema=pa.schema([stored.field(name) for name in names]),
        format="parquet",
        filesystem=lake.arrow_filesystem(),
    )
    runtime = RuntimeEnvBuilder().with_disk_manager_os().with_fair_spill_pool(MEMORY_BYTES)
    session = SessionContext(SessionConfig().with_target_partitions(2), runtime)
    session.register_dataset("rows", rows)
    quoted = [f'"{name}"' for name in names]
    there = " AND ".join(f"{name} IS NOT NULL" for name in quoted)
    # Names are a contract's column names, which hold letters, digits and underscores only.
    keys = f"SELECT count(*) AS n FROM rows WHERE {there} GROUP BY {', '.join(quoted)}"  # noqa: S608
    found = session.sql(f"SELECT sum(n), sum(n - 1) FROM ({keys})").to_arrow_table()  # noqa: S608
    total, surplus = (found.column(index)[0].as_py() or 0 for index in (0, 1))
    return int(total), int(surplus)
