"""Stores of MLflow as its releases lay them out: folders of a file store, tables of a SQL store."""

import sqlite3
from contextlib import closing

BEGIN_MS = 1_700_000_000_000

DDL = """
CREATE TABLE experiments (experiment_id INTEGER NOT NULL, name VARCHAR(256) NOT NULL, artifact_location VARCHAR(256),
    lifecycle_stage VARCHAR(32), creation_time BIGINT, last_update_time BIGINT);
CREATE TABLE runs (run_uuid VARCHAR(32) NOT NULL, name VARCHAR(250), source_type VARCHAR(20), source_name VARCHAR(500),
    entry_point_name VARCHAR(50), user_id VARCHAR(256), status VARCHAR(9), start_time BIGINT, end_time BIGINT,
    source_version VARCHAR(50), lifecycle_stage VARCHAR(20), artifact_uri VARCHAR(200), experiment_id INTEGER,
    deleted_time BIGINT);
CREATE TABLE params ("key" VARCHAR(250) NOT NULL, value VARCHAR(8000) NOT NULL, run_uuid VARCHAR(32) NOT NULL);
CREATE TABLE tags ("key" VARCHAR(250) NOT NULL, value VARCHAR(8000), run_uuid VARCHAR(32) NOT NULL);
CREATE TABLE metrics ("key" VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL,
    run_uuid VARCHAR(32) NOT NULL, step BIGINT DEFAULT '0' NOT NULL, is_nan BOOLEAN DEFAULT '0' NOT NULL);
CREATE TABLE model_versions (name VARCHAR(256) NOT NULL, version INTEGER NOT NULL, creation_time BIGINT,
    current_stage VARCHAR(20), source VARCHAR(500), run_id VARCHAR(32));
CREATE TABLE registered_model_aliases (alias VARCHAR(256) NOT NULL, version INTEGER NOT NULL, name VARCHAR(256));
"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def experiment(root, number, name, stage="active"):
    """Make an experiment's folder."""
    write(root / number / "meta.yaml", f"experiment_id: '{number}'\nlifecycle_stage: {stage}\nname: {name}\n"
                                       f"artifact_location: file:///elsewhere/{number}\n")  # fmt: skip
    return root / number


def run(folder, run_id, *, status=3, stage="active", params=(), tags=(), metrics=(), **meta):
    """Make a run's folder; `metrics` are name and text of its file."""
    facts = {
        "artifact_uri": f"file:///elsewhere/{run_id}/artifacts", "end_time": BEGIN_MS + 9_000, "lifecycle_stage": stage,
        "run_id": run_id, "run_name": "one", "start_time": BEGIN_MS, "status": status, "user_id": "ann",
    } | meta  # fmt: skip
    place = folder / run_id
    write(place / "meta.yaml", "".join(f"{name}: {value}\n" for name, value in facts.items()))
    for part, items in (("params", params), ("tags", tags), ("metrics", metrics)):
        for name, text in dict(items).items():
            write(place / part / name, text)
    return place


def tables(path, rows):
    """Make a SQLite file with rows, by table: dicts."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(DDL)
        for table, items in rows.items():
            for item in items:
                names, marks = ", ".join(f'"{name}"' for name in item), ", ".join("?" * len(item))
                connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(item.values()))
    return path
