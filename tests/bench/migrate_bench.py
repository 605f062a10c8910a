"""What migrating a table costs, beside DuckDB and delta-rs on the same files: ratios within one run.

    python tests/bench/migrate_bench.py [--rows N] [--table NAME] [--log-rows N] [--rounds N] [--json]

    additive   one more column on a table of `--log-rows` rows, 80,000 a file; its files are links to one real file
    rewrite    one column renamed, another one converted, in a table of `--rows` rows, an hour a file

The table is the widest fact, ``host_samples``: each of its 107 columns has values, in the rows in which the sampler
fills it (`wide_rows`). With `--full` each has one in each row, which no sampler does. `--table gpu_samples` has those
30 columns filled that a real GPU's sampler fills.

A rewrite is done by

    ranklake        `ranklake.lake.migrations.applying.apply` in one process: files, plan, commit, audit log
    two workers     the same on a Dask cluster of two processes; their start counts as CPU time, and not as wall time
    duckdb          COPY of the same query over the live files to Parquet, partitioned by date, two threads
    overwrite       delta-rs: `write_deltalake` of the projected dataset, with another schema
    update, merge   delta-rs: the conversion alone; it cannot rename

An added column by `apply`, and by delta-rs's `alter.add_columns`.

Each runs in a process of its own, on a copy of the table whose data files are links. What counts is CPU seconds of all
its threads without the imports; rows a second on two cores are twice the rows a CPU second. Each must
give as many rows and the same sum of the converted column. Peaks are those of the largest process. `small` is a quarter
of the rows: where memory is flat, its peak is the same.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
import rollup_bench
import wide_rows
from changed_contracts import ChangedContracts
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.migrations import applying
from ranklake.lake.plans.dask_workers import on_demand
from ranklake.lake.plans.workers import DaskSection, InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.live_files import DataFile, files
from ranklake.lake.tables.tables import delta_table, ensure_table

PER_FILE = 80_000
COLUMNS = {
    "host_samples": ("cpu_time_s", "cpu_user_ratio"),
    "gpu_samples": ("power_watts", "gpu_utilization_ratio"),
    "steps": ("step_time_s", "data_time_s"),
}
"""By table: the column that is converted, by `FACTOR`, and the one that is renamed."""
FACTOR = 1000.0
AIM_ROWS_A_S, AIM_ADDITIVE_S, AIM_GROWTH = 1.5e6, 1.0, 1.25
REWRITES = ("ranklake", "two workers", "duckdb", "overwrite", "update", "merge")
OURS = ("ranklake", "two workers")
ADDITIVE = ("ranklake", "add_columns")


@dataclass(frozen=True)
class Cost:
    """What one way took: CPU and wall seconds, the most memory of a process; rows and a sum afterwards."""

    part: str
    way: str
    cpu_s: float
    wall_s: float
    peak_bytes: int
    rows: int
    total: float


class Work:
    """A lake of a bench, and what is to be done to a table of it."""

    def __init__(self, place: Path, table: str) -> None:
        self.place, self.table = place, table
        self.lake = Lake.open(str(place))
        self.converted, self.renamed = COLUMNS[table]

    @property
    def folder(self) -> Path:
        """The table's folder."""
        return self.place / "tables" / self.table

    def migrated(self, changed: ChangedContracts, part: str) -> None:
        """Have the contract of a later release, and its migration."""

        def change(facts: dict) -> None:
            if part == "additive":
                new = {"id": 901, "name": "late", "type": "string", "class": "operational", "doc": "-"}
                facts["columns"].append(new)
                return
            names = {self.converted: f"{self.converted}_m", self.renamed: f"{self.renamed}_of_now"}
            for one in facts["columns"]:
                if one["name"] == self.converted:
                    one["unit"] = {"W": "mW", "s": "ms"}[one["unit"]]
                one["name"] = names.get(one["name"], one["name"])
            for check in facts["checks"]:
                check["columns"] = [names.get(name, name) for name in check.get("columns", [])]

        changed.migrate(self.table, change, **({} if part == "additive" else {"factor": FACTOR}))

    def total(self) -> tuple[int, float]:
        """Return the rows of the table as it is now, and the sum of the converted column in its new unit."""
        table = DeltaTable(str(self.folder))
        names = {field.name for field in table.schema().fields}
        name = f"{self.converted}_m" if f"{self.converted}_m" in names else self.converted
        return _sum(f"read_parquet({table.file_uris()!r}, union_by_name = true)", name)

    def ranklake(self) -> tuple[int, float] | None:
        """Apply it in this process."""
        applying.apply(self.lake, InProcess(), "bench")
        return None

    def duckdb(self) -> tuple[int, float]:
        """Write what the query gives as Parquet."""
        live = DeltaTable(str(self.folder)).file_uris()
        target = self.place / "duckdb"
        query = f"""
            COPY (
                SELECT * EXCLUDE ({self.converted}, {self.renamed}),
                    CAST({self.converted} * {FACTOR} AS FLOAT) AS {self.converted}_m,
                    {self.renamed} AS {self.renamed}_of_now
                FROM read_parquet({live!r}, union_by_name = true, hive_partitioning = true, hive_types = {{date: DATE}})
            ) TO '{target}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (date))
        """
        with duckdb.connect(config={"threads": 2}) as connection:
            connection.execute(query)
        return _sum(f"read_parquet('{target}/*/*.parquet')", f"{self.converted}_m")

    def overwrite(self) -> None:
        """Write the table anew by delta-rs."""
        source = DeltaTable(str(self.folder)).to_pyarrow_dataset()
        names = {self.converted: f"{self.converted}_m", self.renamed: f"{self.renamed}_of_now"}
        columns = {names.get(name, name): ds.field(name) for name in source.schema.names}
        kind = source.schema.field(self.converted).type
        columns[f"{self.converted}_m"] = pc.multiply(ds.field(self.converted), pa.scalar(FACTOR, kind))
        reader = source.scanner(columns=columns).to_reader()
        write_deltalake(str(self.folder), reader, mode="overwrite", schema_mode="overwrite", partition_by=["date"])

    def update(self) -> None:
        """Convert the column in its place by delta-rs."""
        DeltaTable(str(self.folder)).update({self.converted: f"{self.converted} * {FACTOR}"})

    def merge(self) -> None:
        """Merge converted values into the table by its keys, by delta-rs."""
        table = DeltaTable(str(self.folder))
        keys = ["incarnation", "segment", "slot"]
        source = table.to_pyarrow_dataset().to_table(columns=[*keys, self.converted])
        place = source.schema.get_field_index(self.converted)
        kind = source.schema.field(place).type
        source = source.set_column(
            place, self.converted, pc.multiply(source[self.converted], pa.scalar(FACTOR, kind)).cast(kind)
        )
        on = " AND ".join(f"t.{key} = s.{key}" for key in keys)
        merger = table.merge(source, on, source_alias="s", target_alias="t")
        merger.when_matched_update({self.converted: f"s.{self.converted}"}).execute()

    def add_columns(self) -> None:
        """Add a column by delta-rs."""
        DeltaTable(str(self.folder)).alter.add_columns([Field("late", PrimitiveType("string"))])


def _sum(source: str, column: str) -> tuple[int, float]:
    with duckdb.connect(config={"threads": 2}) as connection:
        row = connection.execute(f"SELECT count(*), sum(CAST({column} AS DOUBLE)) FROM {source}").fetchone()
    assert row is not None
    return row[0], float(row[1])


def measured(place: Path, table: str, part: str, way: str) -> Cost:
    """Do it in this process, which did nothing before but import."""
    with pytest.MonkeyPatch.context() as patch:
        work = Work(place, table)
        if way in {"ranklake", "two workers"}:
            work.migrated(ChangedContracts(place / "later" / "tables", patch), part)
        if way == "two workers":
            return _on_workers(work, part)
        do: Callable[[], tuple[int, float] | None] = getattr(work, way)
        return _timed(part, way, work, do)


def _on_workers(work: Work, part: str) -> Cost:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    section = DaskSection(workers=2)
    with on_demand(section) as workers:
        cluster = workers.fitting(1e9)
        cluster.run(_nothing, [0, 1, 2, 3])
        cost = _timed(part, "two workers", work, lambda: applying.apply(work.lake, cluster, "bench") and None)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
    return replace(cost, cpu_s=cost.cpu_s + cpu_s, peak_bytes=max(cost.peak_bytes, now.ru_maxrss * 1024))


def _nothing(number: int) -> int:
    """Have a worker import what it needs to know this function: this file, and so the rewriting."""
    return number


def _timed(part: str, way: str, work: Work, do: Callable[[], tuple[int, float] | None]) -> Cost:
    usage, sums = rollup_bench.usage_of(do)
    rows, total = (0, 0.0) if part == "additive" else sums or work.total()
    return Cost(part, way, *usage, rows, total)


def fill(lake: Lake, table: str, rows: int, *, is_full: bool) -> int:
    """Write about as many rows; return how many."""
    if table == wide_rows.TABLE:
        return wide_rows.fill_wide(lake, rows, is_full=is_full)
    return rollup_bench.fill(lake, table, rows, 64 if table == "steps" else 8)


def fill_log(lake: Lake, table: str, rows: int, *, is_full: bool) -> int:
    """Make a table whose log names as many files of 80,000 rows as it takes, all links to one; return the rows."""
    target = contract(table)
    fill(lake, table, PER_FILE, is_full=is_full)
    handle = delta_table(lake.store, table)
    assert handle is not None
    first = files(handle).to_pylist()[0]
    folder, _, name = first["path"].rpartition("/")
    stats = json.dumps({"numRecords": first["num_records"]})
    links = []
    for number in range(1, max(2, rows // first["num_records"])):
        path = f"{folder}/p{2:010d}-{number:032x}-{name.rpartition('-')[2]}"
        os.link(lake.path("tables", table, first["path"]), lake.path("tables", table, path))
        links.append(DataFile(table, path, first["date"], first["num_records"], first["size_bytes"], stats))
    swap(ensure_table(lake.tables, target), number_of(handle) + 1, add=links)
    return first["num_records"] * (len(links) + 1)


def copied(place: Path, into: Path) -> None:
    """Copy a lake: data files as links, everything else whole."""

    def copy(source: str, target: str) -> None:
        (os.link if source.endswith(".parquet") else shutil.copy2)(source, target)

    shutil.copytree(place, into, copy_function=copy)


def compare(place: Path, table: str, part: str, ways: tuple[str, ...], rounds: int) -> list[Cost]:
    """Let each way have its turn; of each the least disturbed round. Raises `SystemExit` where results differ."""
    found: dict[str, list[Cost]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            scratch = place.with_name("scratch")
            copied(place, scratch)
            command = [sys.executable, __file__, "--only", way, "--part", part, "--lake", str(scratch)]
            told = subprocess.run([*command, "--table", table], check=False, stdout=subprocess.PIPE, text=True)
            shutil.rmtree(scratch)
            if told.returncode:
                raise SystemExit(f"{part}, {way}: ended with {told.returncode}")
            found[way].append(Cost(**json.loads(told.stdout.splitlines()[-1])))
    first = found[ways[0]][0]
    for some in found.values():
        one = some[0]
        if one.rows != first.rows or abs(one.total - first.total) > 1e-4 * abs(first.total):
            raise SystemExit(
                f"{part}: {one.way} gives {one.rows} rows, {one.total}; {first.rows}, {first.total} expected"
            )
    return [
        replace(
            min(some, key=lambda one: one.cpu_s),
            wall_s=min(one.wall_s for one in some),
            peak_bytes=max(one.peak_bytes for one in some),
        )
        for some in found.values()
    ]


def show(title: str, costs: list[Cost], rows: int) -> None:
    """Print what each way took."""
    print(title)
    heads = {"": 14, "CPU s": 9, "M rows/s on 2 cores": 21, "wall s": 9, "M rows/s by clock": 19, "peak MiB": 10}
    print("".join(f"{head:>{width}}" for head, width in heads.items()) + "  x ranklake (CPU)")
    for one in costs:
        speed = 2 * rows / max(one.cpu_s, 1e-9) / 1e6
        clock = rows / max(one.wall_s, 1e-9) / 1e6
        figures = f"{one.cpu_s:9.2f}{speed:21.2f}{one.wall_s:9.2f}{clock:19.2f}{one.peak_bytes / 2**20:10.0f}"
        print(f"{one.way:14}{figures}{one.cpu_s / costs[0].cpu_s:14.2f}")
    print(flush=True)


def verdicts(additive: list[Cost], rewrites: list[Cost], small: list[Cost], rows: int) -> dict[str, bool]:
    """Return the aims, and whether each is met."""
    ours = rewrites[0]
    return {
        "additive under 1 s": additive[0].wall_s < AIM_ADDITIVE_S,
        "1.5 M rows/s on 2 cores": 2 * rows / ours.cpu_s >= AIM_ROWS_A_S,
        "1.5 M rows/s by the clock": max(rows / one.wall_s for one in rewrites if one.way in OURS) >= AIM_ROWS_A_S,
        "flat memory": ours.peak_bytes <= AIM_GROWTH * small[0].peak_bytes,
        "less CPU than any other": all(ours.cpu_s <= one.cpu_s for one in rewrites if one.way not in OURS),
    }


def main() -> int:
    """Make the tables, measure, print; 1 if an aim was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--log-rows", type=int, default=160_000_000)
    parser.add_argument("--table", choices=COLUMNS, default="host_samples")
    parser.add_argument("--full", action="store_true", help="each column has a value in each row")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", default="", help="ways to leave out, with commas between them")
    parser.add_argument("--json", action="store_true")
    for name in ("--only", "--part", "--lake"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(asdict(measured(Path(given.lake), given.table, given.part, given.only))))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="ranklake-bench-"))
    ways = tuple(way for way in REWRITES if way not in given.without.split(","))
    try:
        made = {}
        for name, rows in (("log", given.log_rows), ("small", given.rows // 4), ("rows", given.rows)):
            lake = Lake.create(str(folder / name))
            print(f"writing about {rows:,} rows of {given.table}…", file=sys.stderr)
            made[name] = (fill_log if name == "log" else fill)(lake, given.table, rows, is_full=given.full)
        additive = compare(folder / "log", given.table, "additive", ADDITIVE, given.rounds)
        small = compare(folder / "small", given.table, "small", ("ranklake",), 1)
        rewrites = compare(folder / "rows", given.table, "rewrite", ways, given.rounds)
    finally:
        shutil.rmtree(folder)
    met = verdicts(additive, rewrites, small, made["rows"])
    if given.json:
        print(json.dumps({"rows": made, "costs": [asdict(one) for one in (*additive, *small, *rewrites)], "met": met}))
        return 0
    show(f"additive: {made['log']:,} rows of {given.table}", additive, made["log"])
    show(f"small: {made['small']:,} rows", small, made["small"])
    columns = len(arrow_schema(contract(given.table)))
    show(f"rewrite: {made['rows']:,} rows of {given.table}, {columns} columns in its contract", rewrites, made["rows"])
    print("; ".join(f"{aim}: {'met' if yes else 'MISSED'}" for aim, yes in met.items()))
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
