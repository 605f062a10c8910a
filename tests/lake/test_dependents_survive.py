"""Dashboards and notebooks, written for our tables as others write them for theirs, survive migrations and run.

`dependents/` has six dashboards and six notebooks. Their SQL runs on a real lake before a migration, and after it once
`ranklake migrate queries --write` was there; names and values are the same, but for what it lists to be done by hand.

Half of them ask our tables what others published for theirs, panel by panel and cell by cell, in queries of our own:

| here | asks what is asked there |
|---|---|
| `graphics_cards.json` | "Nvidia Graphics cards", grafana.com 11900: gauges and curves of a card, in rows that repeat |
| `single_job.json` | "DCGM Single Job Stats": the GPUs of one Slurm job |
| `ray_train.json` | Ray's Train dashboard: checkpoint reports, controller, states, resources |
| `waiting_gpus.ipynb` | `philly_analyse.ipynb` of Philly-Trace-Scripts: GPUs that run and that wait, by minute |
| `machines.ipynb` | `gpu_util_analyse.ipynb` of the same: how many GPUs a machine has, by what was sampled |
| `job_ends.ipynb` | `job.ipynb` of an analysis of Alibaba's Lingjun data: how jobs end, and how long they take |
"""

import ast
import json
import math
import re
import shutil
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from bringing import bring
from changed_contracts import ChangedContracts
from governed import any_rows
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.query.engine import engine
from ranklake.lake.query.errors import QueryError
from ranklake.lake.query.sql import query

FOLDER = Path(__file__).parent / "dependents"
FILES = sorted(path.name for path in FOLDER.iterdir())
DUCKDB = ("training", "stragglers", "job_ends")
OF_OTHER_TABLES = {"books.json", "waiting_gpus.ipynb"}
KEYS = {"rawSql", "rawSQL", "queryText", "rawQuery", "query", "definition"}
FILLED = {
    r"\$__timeFilter\(([\w.]+)\)": r"\1 IS NOT NULL",
    r"\$__timeGroup\(([\w.]+), '1m'\)": r"date_trunc('minute', \1)",
    r"\$\{run:singlequote\}": "'r1'",
    r"\$run|\{\{ ?run ?\}\}": "r1",
    r"\$host\b": "n1",
    r"\$gpu\b": "0",
    r"\$\{hot\}": "30",
    r"\{\{ ?most ?\}\}": "30",
    r":run\b": "'r1'",
    r"\bdelta\.lake\.": "",
}


def asked_by_dashboard(text):
    """Yield the SQL of a dashboard."""

    def walk(value, key=""):
        if isinstance(value, dict):
            for name, one in value.items():
                yield from walk(one, name)
        elif isinstance(value, list):
            for one in value:
                yield from walk(one, key)
        elif key in KEYS and isinstance(value, str) and re.match(r"\s*(--.*\n)?\s*(SELECT|WITH)", value):
            yield value

    yield from walk(json.loads(text))


class Asker:
    """What a notebook asks, written down; it answers as an empty result does."""

    def __init__(self):
        self.asked = []

    def ask(self, text, *_, **__):
        """Write a query down."""
        self.asked.append(str(text))
        return self

    sql = execute = read_sql = ask

    def __getattr__(self, name):
        return lambda *_, **__: self

    def __getitem__(self, name):
        return self

    def __len__(self):
        return 0


def asked_by_notebook(text):
    """Yield the SQL that the cells of a notebook ask when they run."""
    asker = Asker()
    names = {}
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or source.startswith("%%bash"):
            continue
        if source.startswith("%%sql"):
            asker.asked += [one for one in source.partition("\n")[2].split(";") if one.strip()]
            continue
        source = re.sub(r"%sql (?!\w+://)(.*)", lambda found: f"con.sql({found[1]!r})", source)
        source = re.sub(r"^[%!].*$", "", source, flags=re.MULTILINE)
        tree = ast.parse(source)
        tree.body = [one for one in tree.body if not isinstance(one, ast.Import | ast.ImportFrom)]
        names |= {"con": asker, "pd": asker, "text": str, "engine": None, "duckdb": asker}
        exec(compile(tree, "cell", "exec"), names)
    yield from asker.asked


def asked_by(path):
    """Return the SQL of a file, what is filled in filled in."""
    text = path.read_text(encoding="utf-8")
    found = []
    for one in asked_by_dashboard(text) if path.suffix == ".json" else asked_by_notebook(text):
        for pattern, value in FILLED.items():
            one = re.sub(pattern, value, one)  # noqa: PLW2901
        found.append(one)
    return found


def of_tables(tables):
    """Return a function that asks Arrow tables."""
    ctx, con = engine(1), duckdb.connect()
    for name, rows in tables.items():
        ctx.register_record_batches(name, [rows.combine_chunks().to_batches() or [_empty(rows.schema)]])
        con.register(name, rows)

    def ask(text, path):
        if path.name.startswith(DUCKDB):
            return con.sql(text).to_arrow_table()
        batches = ctx.sql(text)
        return pa.Table.from_batches(batches.collect(), batches.schema())

    return ask


def of_lake(lake):
    """Return a function that asks a lake."""
    duck = of_tables({name: query(lake, f"SELECT * FROM {name}") for name in ("steps", "gpu_samples", "jobs", "runs")})

    def ask(text, path):
        return duck(text, path) if path.name.startswith(DUCKDB) else query(lake, text)

    return ask


def _empty(schema):
    return pa.RecordBatch.from_pylist([], schema=schema)


def same(before, after):
    """Compare two results: names, and values in their order, floats as near as float32 is."""
    assert before.column_names == after.column_names
    assert before.num_rows == after.num_rows
    for one, other in zip(before.to_pylist(), after.to_pylist(), strict=True):
        for name, value in one.items():
            if isinstance(value, float):
                assert math.isclose(value, other[name], rel_tol=1e-5, abs_tol=1e-4), name
            else:
                assert value == other[name], name


@pytest.fixture
def files(tmp_path):
    """Return a copy of the files."""
    return Path(shutil.copytree(FOLDER, tmp_path / "files"))


def rewritten(files, *words):
    """Bring the files along; return what is left to do."""
    code = run(["migrate", "queries", str(files), "--write", *words])
    again = {path: path.read_bytes() for path in files.iterdir()}
    assert run(["migrate", "queries", str(files), "--write", *words]) == code
    assert again == {path: path.read_bytes() for path in files.iterdir()}, "a second run changes nothing"
    return code


def change_steps(facts):
    """Rename two columns, and give one another unit."""
    by_name = {one["name"]: one for one in facts["columns"]}
    by_name["samples"].update(name="examples")
    by_name["tokens"].update(name="tokens_seen")
    by_name["step_time_s"].update(name="step_time_ms", unit="ms")
    facts["checks"] = [one for one in facts["checks"] if "step_time_s" not in one["columns"]]


def change_samples(facts):
    """Rename a column, move the zero of another, split a third, and merge two."""
    by_name = {one["name"]: one for one in facts["columns"]}
    by_name["power_watts"].update(name="board_power_watts")
    by_name["temperature_celsius"].update(name="temperature_kelvin", unit="K")
    gone = {"driver_version", "memory_used_bytes", "memory_total_bytes"}
    facts["checks"] = [
        one for one in facts["checks"] if gone.union({"power_watts", "temperature_celsius"}).isdisjoint(one["columns"])
    ]
    facts["columns"] = [one for one in facts["columns"] if one["name"] not in gone]
    facts.setdefault("retired", []).extend(
        {"id": by_name[name]["id"], "name": name, "type": by_name[name]["type"], "retired_in": 2, "reason": "-"}
        for name in sorted(gone)
    )
    shared = {"type": "string", "class": "operational", "doc": "Of a later version.", "since": 2}
    first = 900
    for number, name in enumerate(("driver_branch", "driver_patch", "memory_text")):
        facts["columns"].append({**shared, "id": first + number, "name": name})


STEP_STEPS = [
    {"rename": "samples", "to": "examples"},
    {"rename": "tokens", "to": "tokens_seen"},
    {"convert": "step_time_s", "to": "step_time_ms", "unit": "ms", "factor": 1000},
]
SAMPLE_STEPS = [
    {"rename": "power_watts", "to": "board_power_watts"},
    {"convert": "temperature_celsius", "to": "temperature_kelvin", "unit": "K", "factor": 1, "offset": 273.15},
    {
        "split": "driver_version",
        "into": {
            "driver_branch": "split_part(driver_version, '.', 1)",
            "driver_patch": "substr(driver_version, strpos(driver_version, '.') + 1)",
        },
        "back": "driver_branch || '.' || driver_patch",
    },
    {
        "merge": ["memory_used_bytes", "memory_total_bytes"],
        "into": "memory_text",
        "by": "memory_used_bytes || '/' || memory_total_bytes",
        "back": {
            "memory_used_bytes": "CAST(split_part(memory_text, '/', 1) AS BIGINT)",
            "memory_total_bytes": "CAST(split_part(memory_text, '/', 2) AS BIGINT)",
        },
    },
]


@pytest.mark.slow
def test_dashboards_and_notebooks_survive_a_chain_on_a_lake(lake, spool, files, tmp_path, monkeypatch, capfd):
    """Renamed and converted columns of a real lake: the answers stay the same. What no longer runs was listed."""
    for rank in range(2):
        put_segment(spool, step_rows(20, rank=rank, incarnation=7 + rank))
    many = {
        "host": ["n1", "n2", "n2"] * 4,
        "device_index": list(range(4)) * 3,
        "device_uuid": ["g"] * 12,
        "power_watts": [100.0 + n for n in range(12)],
        "temperature_celsius": [30.5 + n for n in range(12)],
        "gpu_utilization_ratio": [0.25, 0.5, 1.0] * 4,
        "memory_used_bytes": [10**9 + n for n in range(12)],
        "memory_total_bytes": [10**10] * 12,
        "driver_version": ["570.86.10", "565.57"] * 6,
        "cuda_version": ["12.8"] * 12,
    }
    put_segment(spool, any_rows("gpu_samples", 12, incarnation=70, **many), "gpu_samples")
    bring(lake, spool)
    ask = of_lake(lake)
    before = {name: [ask(text, files / name) for text in asked_by(files / name)] for name in FILES}
    assert sum(one.num_rows > 0 for found in before.values() for one in found) >= 20
    outputs = {path: re.findall(r'"outputs": \[[^\]]*\]', path.read_text()) for path in files.glob("*.ipynb")}
    contracts = ChangedContracts(tmp_path / "contracts", monkeypatch)
    try:
        contracts.migrate("steps", change_steps, STEP_STEPS)
        contracts.migrate("gpu_samples", change_samples, SAMPLE_STEPS)
        assert run(["migrate", "apply", "--by", "ops", "--lake", lake.uri]) == 0, capfd.readouterr().err
        assert rewritten(files) == 1
        listed = set(re.findall(rf"{re.escape(str(files))}/([\w.]+):\d+: ", capfd.readouterr().err))
        ask = of_lake(lake)
        changed, by_hand = 0, []
        for name, found in before.items():
            assert (files / name).read_bytes() == (FOLDER / name).read_bytes() or name not in OF_OTHER_TABLES
            changed += (files / name).read_bytes() != (FOLDER / name).read_bytes()
            for was, text in zip(found, asked_by(files / name), strict=True):
                try:
                    now = ask(text, files / name)
                except (QueryError, duckdb.Error):
                    by_hand.append(name)
                else:
                    same(was, now)
        assert set(by_hand) <= listed
        assert len(by_hand) == 14, "columns that a step computes, and SQL that a notebook puts together"
        assert changed == len(FILES) - len(OF_OTHER_TABLES), "all but those that ask neither table"
        for path, said in outputs.items():
            assert re.findall(r'"outputs": \[[^\]]*\]', path.read_text()) == said
            assert path.read_text().count("\n") == (FOLDER / path.name).read_text().count("\n")
    finally:
        contracts.earlier()
