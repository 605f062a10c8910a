"""What retention costs on a lake of 90 days, beside DuckDB and delta-rs on the same files: ratios within one run.

    python tests/bench/retention_bench.py [--rows N] [--without duckdb,delta-rs] [--json]

    plan        `ranklake.retention.plans.plan.make_plan`: what of 90 dates of `--rows` rows is due
    apply       `ranklake.retention.plans.apply.apply`: 30 dates go, bytes and all; no file of the others may be touched
                beside delta-rs: DELETE of the same dates, and VACUUM
    downsample  the same two, of all dates, to minutes: counts, exact sums, extremes and histograms
                beside DuckDB: counts, sums and extremes alone, to Parquet, two threads
    small       downsampling a quarter of the dates: where memory is flat, its peak is the same

Each runs in a process of its own, on a copy of the lake whose data files are links. CPU is that of all threads without
imports. Rows a second are by wall time. Sums are held against DuckDB's to within 1e-9, counts and extremes to the last
bit.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import duckdb
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from migrate_bench import copied
from rollup_bench import usage_of

from ranklake.lake.contracts.load import contract, load_contracts
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.parquet import write_partition
from ranklake.lake.tables.tables import ensure_table
from ranklake.retention.plans.apply import apply, approve
from ranklake.retention.plans.plan import make_plan
from ranklake.retention.policies.policies import load_policies
from ranklake.retention.policies.read import PACKAGED

if TYPE_CHECKING:
    from collections.abc import Callable

DAYS, GOING, RANKS, METRICS = 90, 30, 2, 4
TABLE = "scalars"
AIM_PLAN_S, AIM_APPLY_S, AIM_ROWS_A_S, AIM_GROWTH = 5.0, 10.0, 1.5e6, 1.25
RULE = """version: 2
owner: bench
basis: bench
review: 2999-01-01
rules:
  curves: {where: {table: scalars}, downsample: {after_days: 1, interval: 1m}, reason: curves stay}
"""


@dataclass(frozen=True)
class Cost:
    """What one way took: CPU and wall seconds, the most memory; what it was about, and what was found."""

    part: str
    way: str
    cpu_s: float
    wall_s: float
    peak_bytes: int
    rows: int
    found: str = ""


def fill(lake: Lake, rows: int, days: int) -> int:
    """Write so many dates of ``scalars``, a file each, the youngest two days old; return how many rows."""
    target = contract(TABLE)
    per_series = max(1, rows // (DAYS * RANKS * METRICS))
    today = datetime.now(UTC).date()
    new = []
    for back in range(DAYS + 1, DAYS + 1 - days, -1):
        day = today - timedelta(days=back)
        new.append(write_partition(lake.store, target, _day(day, back, per_series), day, 1))
    handle = ensure_table(lake.tables, target)
    swap(handle, number_of(handle) + 1, add=new)
    return sum(one.rows for one in new)


def _day(day: date, seed: int, count: int) -> pa.Table:
    series = RANKS * METRICS
    begin_us = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000
    moments = begin_us + np.arange(count, dtype=np.int64) * (86_400_000_000 // count)
    metrics = np.repeat(np.arange(METRICS, dtype=np.int32), RANKS * count)
    ranks = np.tile(np.repeat(np.arange(RANKS, dtype=np.int32), count), METRICS)
    total = series * count
    names = pa.array([f"train/value_{number:02}" for number in range(METRICS)])
    walk = np.random.default_rng(seed).normal(0, 0.01, (series, count)).cumsum(axis=1).ravel()
    return pa.table(
        {
            "run": pa.DictionaryArray.from_arrays(np.zeros(total, np.int32), pa.array(["run-1"])),
            "attempt": np.zeros(total, np.int32),
            "rank": ranks,
            "incarnation": 1_000_003 + ranks.astype(np.int64),
            "segment": np.full(total, seed, np.int32),
            "slot": np.arange(total, dtype=np.int32),
            "ts": pa.array(np.tile(moments, series)).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
            "metric": pa.DictionaryArray.from_arrays(metrics, names),
            "step": np.tile(np.arange(count, dtype=np.int64), series),
            "value": walk,
            "kind": pa.DictionaryArray.from_arrays(np.zeros(total, np.int32), pa.array(["gauge"])),
        }
    )


class Work:
    """A lake of the bench, and what is done to it."""

    def __init__(self, place: Path, part: str) -> None:
        self.place, self.part = place, part
        self.lake = Lake.open(str(place))
        self.today = datetime.now(UTC).date()
        self.contracts = load_contracts()
        folder = place.with_name("policies")
        folder.mkdir(exist_ok=True)
        text = (PACKAGED / "defaults.yaml").read_text()
        if part in {"plan", "apply"}:
            text = text.replace("delete_after_days: 90", f"delete_after_days: {DAYS - GOING + 1}")
        else:
            (folder / "more.yaml").write_text(RULE)
            text = text.replace("delete_after_days: 90", "delete_after_days: 900")
        (folder / "defaults.yaml").write_text(text)
        self.policies = load_policies(self.contracts, folder)

    @property
    def folder(self) -> Path:
        """The table's folder."""
        return self.place / "tables" / TABLE

    def plan(self) -> str:
        """Plan what is due."""
        made = make_plan(self.lake, self.contracts, self.policies, self.today)
        assert made is not None
        return made.name

    def apply(self, name: str) -> None:
        """Apply what was approved."""
        apply(self.lake, name, "operator", self.contracts, self.policies, self.today)

    def delta_rs(self) -> None:
        """Delete the dates by predicate, and what lies around of them."""
        table = DeltaTable(str(self.folder))
        table.delete(f"date < '{self.today - timedelta(days=DAYS - GOING + 1)}'")
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    def duckdb(self) -> None:
        """Write counts, sums and extremes of minutes as Parquet."""
        live = DeltaTable(str(self.folder)).file_uris()
        target = self.place / "duckdb"
        text = f"""
            COPY (
                SELECT date, run, attempt, rank, metric, kind, time_bucket(INTERVAL 1 minute, ts) AS ts,
                    count(*) AS rows, count(value) AS count, sum(value) AS sum, min(value) AS min, max(value) AS max,
                    sum(step) AS sum_step, min(step) AS min_step, max(step) AS max_step
                FROM read_parquet({live!r}, union_by_name = true, hive_partitioning = true)
                GROUP BY ALL
            ) TO '{target}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (date))
        """
        with duckdb.connect(config={"threads": 2}) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(text)

    def figures(self) -> str:
        """Return what aggregates of values sum up to: rows, values, least, greatest, sum."""
        if self.part not in {"downsample", "small"}:
            return ""
        with duckdb.connect(config={"threads": 2}) as connection:
            if (self.place / "duckdb").exists():
                source = f"read_parquet('{self.place}/duckdb/*/*.parquet')"
                asked = "sum(rows), sum(count), min(min), max(max), sum(sum), sum(sum_step)"
            else:
                live = DeltaTable(str(self.place / "tables/downsampled")).file_uris()
                source = f'read_parquet({live!r}, union_by_name = true) WHERE "column" IS NULL OR "column" != \'step\''
                steps = f"(SELECT sum(sum) FROM read_parquet({live!r}) WHERE \"column\" = 'step')"
                asked = f"sum(rows), sum(count), min(min), max(max), sum(sum), {steps}"
            row = connection.execute(f"SELECT {asked} FROM {source}").fetchone()
        assert row is not None
        return json.dumps([float(one) for one in row])


def measured(place: Path, part: str, way: str) -> Cost:
    """Do it in this process, which did nothing before but import."""
    work = Work(place, part)
    do: Callable[[], object] = work.plan
    if way != "ranklake":
        do = work.duckdb if way == "duckdb" else work.delta_rs
    elif part != "plan":
        name = work.plan()
        approve(work.lake, name, "approver")
        do = lambda: work.apply(name)  # noqa: E731
    before = _touched(work.folder)
    usage, _ = usage_of(do)
    if part == "apply" and way == "ranklake":
        after = _touched(work.folder)
        if any(before.get(path) != stamp for path, stamp in after.items()) or len(before) - len(after) != GOING:
            raise SystemExit("the apply touched files that stay")
    return Cost(part, way, *usage, 0, work.figures())


def _touched(folder: Path) -> dict[str, tuple[int, int]]:
    """Return inode and change time of each data file; links and unlinks elsewhere change the latter, so it is mtime."""
    return {str(one): (one.stat().st_ino, one.stat().st_mtime_ns) for one in folder.glob("date=*/*.parquet")}


def run(place: Path, part: str, way: str, rows: int) -> Cost:
    """Measure one way in a process of its own, on a copy."""
    scratch = place.with_name("scratch")
    copied(place, scratch)
    shutil.rmtree(place.with_name("policies"), ignore_errors=True)
    command = [sys.executable, __file__, "--only", way, "--part", part, "--lake", str(scratch)]
    told = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    shutil.rmtree(scratch)
    if told.returncode:
        raise SystemExit(f"{part}, {way}: ended with {told.returncode}")
    return replace(Cost(**json.loads(told.stdout.splitlines()[-1])), rows=rows)


def verdicts(costs: dict[tuple[str, str], Cost]) -> dict[str, bool]:
    """Return the aims, and whether each is met."""
    folded = costs["downsample", "ranklake"]
    return {
        "plan within 5 s": costs["plan", "ranklake"].wall_s <= AIM_PLAN_S,
        "30 dates applied within 10 s": costs["apply", "ranklake"].wall_s <= AIM_APPLY_S,
        "1.5 M rows/s downsampled": folded.rows / folded.wall_s >= AIM_ROWS_A_S,
        "flat memory": folded.peak_bytes <= AIM_GROWTH * costs["small", "ranklake"].peak_bytes,
    }


def agree(ours: Cost, theirs: Cost) -> None:
    """Raise `SystemExit` where the figures of two ways differ."""
    for one, other in zip(json.loads(ours.found), json.loads(theirs.found), strict=True):
        if abs(one - other) > 1e-9 * abs(other):
            raise SystemExit(f"{ours.way} and {theirs.way} differ: {one} for {other}")


def main() -> int:
    """Make the lake, measure, print; 1 if an aim was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--without", default="", help="ways to leave out, with commas between them")
    parser.add_argument("--json", action="store_true")
    for name in ("--only", "--part", "--lake"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(asdict(measured(Path(given.lake), given.part, given.only))))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="ranklake-bench-"))
    left_out = given.without.split(",")
    try:
        print(f"writing about {given.rows:,} rows of {DAYS} dates…", file=sys.stderr)
        full, small = (Lake.create(str(folder / name)) for name in ("full", "small"))
        rows, few = fill(full, given.rows, DAYS), fill(small, given.rows, DAYS // 4)
        ways = [("plan", "ranklake"), ("apply", "ranklake"), ("apply", "delta-rs"), ("downsample", "ranklake")]
        ways += [("downsample", "duckdb"), ("small", "ranklake")]
        costs = {
            (part, way): run(
                folder / ("small" if part == "small" else "full"), part, way, few if part == "small" else rows
            )
            for part, way in ways
            if way not in left_out
        }
    finally:
        shutil.rmtree(folder)
    if ("downsample", "duckdb") in costs:
        agree(costs["downsample", "ranklake"], costs["downsample", "duckdb"])
    met = verdicts(costs)
    if given.json:
        print(json.dumps({"costs": [asdict(one) for one in costs.values()], "met": met}))
        return 0
    print(f"{rows:,} rows of {TABLE} in {DAYS} dates")
    print(f"{'':12}{'':12}{'CPU s':>9}{'wall s':>9}{'M rows/s (wall)':>17}{'peak MiB':>10}  x ranklake (CPU)")
    for (part, way), one in costs.items():
        speed = f"{one.rows / one.wall_s / 1e6:17.2f}{one.peak_bytes / 2**20:10.0f}"
        ratio = one.cpu_s / costs[part, "ranklake"].cpu_s
        print(f"{part:12}{way:12}{one.cpu_s:9.2f}{one.wall_s:9.2f}{speed}{ratio:12.2f}")
    print("; ".join(f"{aim}: {'met' if yes else 'MISSED'}" for aim, yes in met.items()))
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
