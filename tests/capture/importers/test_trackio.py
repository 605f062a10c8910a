"""Projects of trackio: each run once, of releases with ids and of those without."""

import json
import math
import sqlite3
from contextlib import closing

import pytest
from importing import ask, imported
from mlflow_store import tables

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError

AT = "2026-03-01T12:00:0{}+00:00"
NEW = """
CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
    run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL);
CREATE TABLE configs (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, run_name TEXT NOT NULL,
    config TEXT NOT NULL, created_at TEXT NOT NULL);
CREATE TABLE system_metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
    run_name TEXT NOT NULL, metrics TEXT NOT NULL);
"""


def project(path, ddl, *rows):
    """Make a project's file: each row is a table and its values."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(ddl)
        for table, values in rows:
            marks = ", ".join("?" * len(values))
            connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
    return path


def call(number, metrics, table="metrics", **more):
    raw = metrics if isinstance(metrics, str) else json.dumps(metrics).encode()
    step = {"step": number} if table == "metrics" else {}
    return table, {"timestamp": AT.format(number), "run_name": "one", "metrics": raw, **step, **more}


def test_a_project(lake, spool, tmp_path):
    """Values with their steps and times, NaN as such, system metrics, config without trackio's own; a new run."""
    a, b = {"run_id": "a" * 32}, {"run_id": "b" * 32, "run_name": "<b>\n"}
    config = {"lr": math.nan, "api_key": "sk-live-0123456789abcdef", "_Username": "ann"}
    file = project(
        tmp_path / "digits.db", NEW, call(0, {"loss": 2.5, "note": "words", "on": True}, **a), call(1, "{", **a),
        call(1, {"loss": "NaN", "t": {"_type": "trackio.table"}}, **a), call(2, {"loss": 10**400}, **a),
        call(3, {"gpu": 87}, "system_metrics", **a), call(4, {"loss": 1}, **b),
        ("configs", {**a, "run_name": "one", "config": json.dumps(config).encode(), "created_at": ""}),
    )  # fmt: skip
    done = imported(lake, spool, "trackio", file)
    assert (len(done.runs), done.refused) == (2, {"the row has no time or values": 1})
    assert done.runs[0] == "one-aaaaaaaa"
    rows = ask(lake, "SELECT metric, step, value, value_flag f, CAST(ts AS TEXT) at FROM scalars ORDER BY ts")
    assert [(*tuple(row.values())[:4], row["at"][17:19]) for row in rows] == [
        ("loss", 0, 2.5, None, "00"), ("loss", 1, None, "nan", "01"), ("system/gpu", None, 87.0, None, "03"),
        ("loss", 4, 1.0, None, "04"),
    ]  # fmt: skip
    first = ask(lake, "SELECT job, config, labels FROM runs WHERE run = 'one-aaaaaaaa'")[0]
    assert (first["job"], json.loads(first["config"])) == ("digits", {"lr": "nan", "api_key": "[redacted]"})
    assert json.loads(first["labels"])["not_imported"] == "4 values that are not numbers"
    with closing(sqlite3.connect(file)) as connection, connection:
        table, values = call(5, {"loss": 0.5}, run_id="c" * 32)
        connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES (?, ?, ?, ?, ?)", tuple(values.values()))
    again = imported(lake, spool, "trackio", tmp_path)
    assert (again.again, again.rows["scalars"]) == (2, 1)


def test_a_project_without_ids(lake, spool, tmp_path):
    """Old releases have the run's name alone, and texts where new ones have bytes."""
    ddl = NEW.replace("run_id TEXT NOT NULL, ", "").replace("run_id TEXT NOT NULL,\n", "\n")
    file = project(tmp_path / "digits.db", ddl, call(0, '{"loss": 2.5}'), call(0, '{"loss": 1.5}', run_name="two"))
    assert imported(lake, spool, "trackio", file).runs == ["digits-one", "digits-two"]


def test_each_sqlite_file_is_named(spool, tmp_path):
    """A store of MLflow is none of trackio's, and the other way round: the refusal names the format that fits."""
    project(tmp_path / "digits.db", NEW, call(0, {"loss": 2.5}, run_id="a"))
    with pytest.raises(SourceError, match=r"no file of format mlflow; it holds trackio: ranklake import trackio /"):
        import_files("mlflow", [str(tmp_path / "digits.db")], str(spool))
    run = {"run_uuid": "a" * 32, "experiment_id": 1, "lifecycle_stage": "active", "start_time": 1_700_000_000_000}
    tables(tmp_path / "other.db", {"runs": [run]})
    with pytest.raises(SourceError, match=r"no file of format trackio; it holds mlflow: ranklake import mlflow /"):
        import_files("trackio", [str(tmp_path / "other.db")], str(spool))
    (tmp_path / "broken.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5_000)
    with pytest.raises(SourceError, match="no file of trackio"):
        import_files("trackio", [str(tmp_path / "broken.db")], str(spool))
