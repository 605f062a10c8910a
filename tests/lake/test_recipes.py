"""The recipes of docs/recipes.md, run as they stand; and that the tables use nothing that readers lack."""

import json
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rollup_inputs import NOON, append

from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table, ensure_table

RECIPES = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
BLOCKS = dict(
    re.findall(r"^## (\w+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", RECIPES.read_text(), re.DOTALL | re.MULTILINE)
)
TYPES = {"string", "boolean", "integer", "long", "float", "double", "date", "timestamp", "decimal(38,9)"}
ENCODINGS = {
    "PLAIN",
    "RLE",
    "RLE_DICTIONARY",
    "PLAIN_DICTIONARY",
    "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY",
    "DELTA_BYTE_ARRAY",
    "BYTE_STREAM_SPLIT",
}
TEXT = """
    SELECT rank, count(*) AS n, avg(step_time_s) AS mean_s FROM steps
    WHERE date = '2026-03-01' AND run = 'r1' GROUP BY rank ORDER BY rank
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with two runs on two days, whose first files were replaced: they lie there, but are not live."""
    lake = Lake.create(str(tmp_path_factory.mktemp("lake")))
    for day in range(2):
        facts = [
            {"run": run, "rank": rank, "step": n, "ts": NOON + timedelta(days=day, seconds=n), "step_time_s": 0.5 + n}
            for run in ("r1", "r2")
            for rank in range(3)
            for n in range(20 + rank)
        ]
        append(lake, "steps", facts)
    for number, path in enumerate(files(delta_table(lake.store, "steps"))["path"].to_pylist()):
        dead = Path(lake.path("tables", "steps", path)).with_name(f"p0000000000-{number:032}.parquet")
        dead.write_bytes(Path(lake.path("tables", "steps", path)).read_bytes())
    return lake


def test_there_are_recipes():
    """The engines that people ask for have one that can be run; those that cannot be run have one to read."""
    assert set(BLOCKS) == {"ranklake", "Polars", "DuckDB", "pyarrow", "pandas"}
    assert {"## Spark", "## Trino"} <= set(RECIPES.read_text().splitlines())


@pytest.mark.parametrize("engine", BLOCKS)
@pytest.mark.slow
def test_a_recipe_gives_what_sql_gives(lake, engine):
    """Each is a whole program: it ends without a crash, and its rows are those of `ranklake sql`."""
    code = f"LAKE = {lake.uri!r}\n{BLOCKS[engine]}\nimport json\nprint(json.dumps(rows))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = query(lake, TEXT).to_pylist()
    found = json.loads(done.stdout)
    assert [(row["rank"], row["n"]) for row in found] == [(row["rank"], row["n"]) for row in expected]
    assert [row["mean_s"] for row in found] == pytest.approx([row["mean_s"] for row in expected])


def test_tables_use_no_feature_that_readers_lack(lake):
    """Every contract's table has the oldest protocol, one partition column, and types that JVM readers know."""
    for contract in load_contracts().values():
        table = ensure_table(lake.tables, contract)
        protocol = table.protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2), contract.table
        assert not protocol.reader_features
        assert not protocol.writer_features
        metadata = table.metadata()
        assert metadata.partition_columns == ["date"]
        assert not {"delta.columnMapping.mode", "delta.enableChangeDataFeed"} & set(metadata.configuration)
        assert metadata.configuration.get("delta.enableDeletionVectors", "false") == "false"
        for field in json.loads(table.schema().to_json())["fields"]:
            kind = field["type"]
            if isinstance(kind, dict):
                assert (kind["type"], kind["elementType"]) == ("array", "long"), (contract.table, field["name"])
            else:
                assert kind in TYPES, (contract.table, field["name"])
            assert not {key for key in field["metadata"] if key.startswith(("delta.", "__"))}


def test_files_use_no_encoding_that_readers_lack(lake):
    """Zstandard; known encodings; streams of bytes for floats alone; times as 64-bit integers."""
    append(lake, "scalars", [{"metric": "a/b", "step": n, "value": n / 7, "ts": NOON} for n in range(50)])
    for table in ("steps", "scalars"):
        for path in files(delta_table(lake.store, table))["path"].to_pylist():
            with pq.ParquetFile(lake.path("tables", table, path)) as file:
                for column in (file.metadata.row_group(0).column(n) for n in range(file.metadata.num_columns)):
                    assert column.compression == "ZSTD"
                    assert set(column.encodings) <= ENCODINGS
                    if "BYTE_STREAM_SPLIT" in column.encodings:
                        assert column.physical_type in {"FLOAT", "DOUBLE"}
                    assert column.physical_type != "INT96"
