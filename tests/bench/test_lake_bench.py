"""All ways into the lake write the same rows and columns, else their costs tell nothing."""

import sys

import pyarrow.parquet as pq
import pytest
import telemetry
from benched import BENCHES

pytestmark = pytest.mark.bench
sys.path.insert(0, str(BENCHES))


@pytest.mark.parametrize("table", ["spans", "gpu_samples"])
def test_all_ways_write_the_same_columns(tmp_path, table):
    """Among them the key's, which stand in the footers of segments; a slot file that was sealed twice counts once."""
    import lake_bench

    telemetry.fill(tmp_path / "spool", table, 60_000, a_segment=10_000, again=4)
    found = {}
    for way in ("polars", "duckdb", "ingest", "limit"):
        out = tmp_path / way
        lake_bench.measured(way, tmp_path / "spool", table, out)
        files = ((out / "tables" / table) if way == "ingest" else out).rglob("*.parquet")
        rows = pq.ParquetDataset([str(path) for path in files], partitioning=None).read()
        key = rows.select(lake_bench.KEY).group_by(list(lake_bench.KEY)).aggregate([]).num_rows
        filled = {name for name in rows.column_names if rows[name].null_count < rows.num_rows}
        found[way] = (key, rows.num_rows if way != "limit" else key, filled)
    assert found == dict.fromkeys(found, found["ingest"])
