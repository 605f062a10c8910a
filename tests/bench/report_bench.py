"""Measures the site of data quality: built, written again after one check, and its largest page.

    lake     every fact and derived table, and tables of an operator's up to `--tables`, each with `--days` partitions
    results  of all checks of all partitions, seeded: a few fail, some for a while, some could not be computed

Times are of this process, without imports. The chart library, which is made once a site, is told apart.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import load_contracts, load_metrics
from ranklake.lake.plans.plan import append_own
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import ContractsSection, LakeConfig
from ranklake.lake.store.store import Store
from ranklake.lake.tables.commit import replace_partitions
from ranklake.lake.tables.live_files import files, files_digest
from ranklake.lake.tables.tables import latest
from ranklake.quality.report.gather import gather
from ranklake.quality.suite import compile_suite
from ranklake.views.html.charts import library
from ranklake.views.html.quality_pages import section
from ranklake.views.html.site import PublishResult, publish

LAST = date(2026, 3, 31)
RUN = "made-up"
_VALUES = {
    "string": "a", "bool": False, "int32": 0, "int64": 0, "float32": 0.5, "float64": 0.5, "decimal": 0,
    "timestamp": datetime(2026, 3, 1, tzinfo=UTC), "int64_list": [0],
}  # fmt: skip
OWN = """table: own_{number:02}
version: 1
kind: fact
owner: lab
steward: lab
summary: "An operator's table."
grain: [incarnation, segment, slot]
envelope: true
partition: [date]
sort: [ts]
retention: raw
columns:
  - {{id: 20, name: value, type: float64, unit: "1", class: operational, doc: "Value.",
     checks: [{{id: value_range, kind: between, min: 0, max: 1}}]}}
"""


@dataclass(frozen=True)
class Measured:
    """Seconds and bytes of one site."""

    tables: int
    days: int
    results: int
    pages: int
    library_s: float
    built_s: float
    unchanged_s: float
    refreshed_s: float
    rewritten: int
    largest_bytes: int


def made(folder: Path, tables: int, days: int) -> tuple[Lake, int]:
    """Return a lake of so many tables and dates, and the number of results in it."""
    Lake.create(str(folder / "lake"))
    known = [name for name, one in load_contracts().items() if one.kind in {"fact", "derived"}]
    overlay = folder / "overlay"
    overlay.mkdir()
    for number in range(max(0, tables - len(known))):
        (overlay / f"own_{number:02}.yaml").write_text(OWN.format(number=number))
    lake = Lake.open(str(folder / "lake"), config=LakeConfig(contracts=ContractsSection(str(overlay))))
    lake.catalog.keep()
    contracts = [one for one in lake.contracts().values() if one.kind in {"fact", "derived"}][-tables:]
    dates = [LAST - timedelta(days=back) for back in reversed(range(days))]
    results = []
    for place, contract in enumerate(contracts):
        rows = pa.concat_tables([_row(contract, day) for day in dates])
        replace_partitions(lake.tables, contract, rows, dates)
        results += _judged(lake, contract, dates, np.random.default_rng(place))
    append_own(lake.tables, "quality_results", lambda _: results)  # a file a date, as upkeep leaves them
    return lake, len(results)


def _row(contract, day: date) -> pa.Table:
    columns = {
        one.name: [day if one.type == "date" else _VALUES[one.type] if one.required else None]
        for one in contract.columns
    }
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in arrow_schema(contract)})


def _judged(lake: Lake, contract, dates: list[date], rng: np.random.Generator) -> list[dict]:
    """Return what checks of a table said of each date, on the day after."""
    suite = compile_suite(contract, load_metrics())
    handle = latest(lake.tables, contract.table)
    live = files(handle)
    paths: dict[date, list[str]] = {}
    for day, path in zip(live["date"].to_pylist(), live["path"].to_pylist(), strict=True):
        paths.setdefault(day, []).append(path)
    bad = rng.random(len(suite.expectations)) < 0.1
    rows = []
    for day in dates:
        when = datetime(day.year, day.month, day.day, 3, tzinfo=UTC) + timedelta(days=1)
        for place, one in enumerate(suite.expectations):
            failed = bool(bad[place] and rng.random() < 0.2)
            errored = failed and rng.random() < 0.1
            rows.append({
                "check_run": RUN, "table": contract.table, "partition_date": day, "table_version": handle.version(),
                "suite": suite.name, "expectation": one.kind, "column": one.about, "check_id": one.check.id,
                "severity": one.check.severity, "on_fail": one.on_fail,
                "status": "errored" if errored else "failed" if failed else "passed",
                "rows_checked": None if errored else 100_000, "rows_failed": None if errored else 37 if failed else 0,
                "failed_ratio": None if errored else 37e-5 if failed else 0.0,
                "message": "could not be computed (ValueError)" if errored else one.wrong if failed else None,
                "observed": "3.5, 4" if failed and not errored else None, "quarantined_rows": 0, "gx_version": "1.24",
                "files_sha256": files_digest(paths[day]), "expected": one.expected, "duration_s": 0.2,
                "contract_version": contract.version, "ts": when, "date": when.date(),
            })  # fmt: skip
    return rows


def measure(folder: Path, tables: int, days: int) -> Measured:
    """Make a lake and its site; return what that took."""
    lake, results = made(folder, tables, days)
    place = Store.at(str(folder / "site"))
    begun = time.perf_counter()
    library()
    library_s = time.perf_counter() - begun
    built, built_s = _published(lake, place)
    _, unchanged_s = _published(lake, place)
    last = _last_results(lake)
    append_own(lake.tables, "quality_results", lambda _: last)
    again, refreshed_s = _published(lake, place)
    return Measured(
        tables, days, results, built.pages, library_s, built_s, unchanged_s, refreshed_s, again.written,
        built.largest_bytes,
    )  # fmt: skip


def _published(lake: Lake, place: Store) -> tuple[PublishResult, float]:
    begun = time.perf_counter()
    done = publish(place, section(gather(lake)))
    return done, time.perf_counter() - begun


def _last_results(lake: Lake) -> list[dict]:
    """Return what a check of one partition finds a day later: one more failure."""
    from ranklake.lake.contracts.load import contract
    from ranklake.lake.tables.read import read

    day = LAST + timedelta(days=1)
    rows = read(lake.tables, contract("quality_results"), partitions=[day]).to_pylist()
    table = rows[0]["table"]
    mine = [one for one in rows if one["table"] == table and one["partition_date"] == LAST]
    later = mine[0]["ts"] + timedelta(days=1)
    mine[0] |= {"status": "failed", "rows_failed": 5, "rows_checked": 100_000}
    return [{**one, "ts": later, "date": later.date()} for one in mine]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=42)
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--keep", help="folder to make lake and site in, and to leave them in")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(options.keep or tempfile.mkdtemp(prefix="ranklake-bench-"))
    try:
        folder.mkdir(exist_ok=True)
        print("making the lake…", file=sys.stderr)
        found = measure(folder, options.tables, options.days)
    finally:
        if options.keep is None:
            shutil.rmtree(folder)
    if options.json:
        print(json.dumps(asdict(found)))
        return
    print(f"{found.tables} tables x {found.days} days, {found.results:,} results, {found.pages} pages")
    print(f"built      {found.built_s:6.2f} s, with a chart library that takes {found.library_s:.2f} s once a site")
    print(f"unchanged  {found.unchanged_s:6.2f} s")
    print(f"refreshed  {found.refreshed_s:6.2f} s, {found.rewritten} pages written after a check of one partition")
    print(f"largest    {found.largest_bytes / 1e6:6.2f} MB")


if __name__ == "__main__":
    main()
