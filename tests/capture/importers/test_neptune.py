"""Exports of Neptune, in the schema that its exporter writes (neptune-exporter, src/neptune_exporter/model.py)."""

import json
import math
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from importing import ask, imported

from ranklake.capture.assets.image_file import png
from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError

TIME = pa.timestamp("ms", tz="UTC")
SCHEMA = pa.schema([
    ("project_id", pa.string()), ("run_id", pa.string()), ("attribute_path", pa.string()),
    ("attribute_type", pa.string()), ("step", pa.decimal128(18, 6)), ("timestamp", TIME), ("int_value", pa.int64()),
    ("float_value", pa.float64()), ("string_value", pa.string()), ("bool_value", pa.bool_()), ("datetime_value", TIME),
    ("string_set_value", pa.list_(pa.string())), ("file_value", pa.struct([("path", pa.string())])),
    ("histogram_value", pa.struct([
        ("type", pa.string()), ("edges", pa.list_(pa.float64())), ("values", pa.list_(pa.float64())),
    ])),
])  # fmt: skip
BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def value(name, kind, given=None, **more):
    column = "string_set_value" if kind == "string_set" else f"{kind.removesuffix('_series')}_value"
    return {"attribute_path": name, "attribute_type": kind, column: given, **more}


def point(name, kind, given, step, second):
    at = None if second is None else BEGIN.replace(second=second)
    return value(name, kind, given, step=Decimal(str(step)), timestamp=at)


def export(folder, run, *rows, part=0, project="team/digits"):
    """Write a part of a run as the exporter does; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run}-0123456789abcdef_part_{part}.parquet"
    whole = [{"project_id": project, "run_id": run, **row} for row in rows]
    pq.write_table(pa.Table.from_pylist(whole, schema=SCHEMA), path, compression="snappy")
    return path


SETTINGS = (
    value("sys/name", "string", "the  first"), value("sys/owner", "string", "ann"),
    value("sys/failed", "bool", given=True),
    value("sys/creation_time", "datetime", BEGIN), value("sys/tags", "string_set", ["b", "a"]),
    value("sys/description", "string", "why"), value("parameters/lr", "float", 0.001),
    value("parameters/layers", "int", 3), value("parameters/api_key", "string", "sk-live-0123456789abcdef"),
    value("test/acc", "float", math.nan), value("began", "datetime", BEGIN), value("on", "bool", given=False),
)  # fmt: skip


def test_a_run_whole(lake, spool, tmp_path):
    """Settings, series with fractions of steps, texts, histograms and files of a run in two parts."""
    data = tmp_path / "data" / "team_digits-ab"
    files = tmp_path / "files" / "team_digits-ab"
    (files / "shown").mkdir(parents=True)
    (files / "shown" / "1.png").write_bytes(png(np.zeros((2, 3), np.uint8)).raw)
    (files / "model.bin").write_bytes(b"12345")
    (tmp_path / "outside").write_bytes(b"no file of the run")
    bins = {"type": "COUNTING", "edges": [0.0, 1.0, 3.0], "values": [2.0, 5.0]}
    export(
        data, "SAN-1", *SETTINGS,
        point("loss", "float_series", 2.5, 0, 1), point("loss", "float_series", math.inf, "1", 2),
        point("loss", "float_series", 1.5, "1.5", 3), point("loss", "float_series", 1.25, 2, None),
        point("monitoring/ab/stdout", "string_series", "epoch 1, token=hf_abcdefghijklmnopqrstuvwxyz012345", 0, 2),
    )  # fmt: skip
    export(
        data, "SAN-1", point("weights", "histogram_series", bins, 4, 9),
        point("density", "histogram_series", {**bins, "type": "PROBABILITY"}, 4, 9),
        point("shown", "file_series", {"path": "shown/1.png"}, 3, 5), value("model", "file", {"path": "model.bin"}),
        value("outside", "file", {"path": "../../outside"}), value("odd", "gitref"), part=1,
    )  # fmt: skip
    done = imported(lake, spool, "neptune", tmp_path / "data")
    assert (done.runs, done.refused) == (["SAN-1"], {"the value has no time": 1})
    scalars = ask(lake, "SELECT metric, step, value, value_flag f, CAST(ts AS TEXT) at FROM scalars ORDER BY ts")
    assert [(*tuple(row.values())[:4], row["at"][17:19]) for row in scalars] == [
        ("loss", 0, 2.5, None, "01"), ("loss", 1, None, "+inf", "02"), ("loss", None, 1.5, None, "03"),
    ]  # fmt: skip
    run = ask(lake, "SELECT job, config, labels, CAST(ts AS TEXT) at FROM runs")[0]
    assert json.loads(run["config"]) == {
        "parameters/lr": 0.001, "parameters/layers": 3, "parameters/api_key": "[redacted]", "test/acc": "nan",
        "began": "2026-03-01T12:00:00+00:00", "on": False,
    }  # fmt: skip
    labels = json.loads(run["labels"])
    assert (run["job"], labels["steps"][:1], labels["neptune_run_id"]) == ("team/digits", "1", "SAN-1")
    assert labels["not_imported"] == "1 invalid values of histogram_series, 1 values of the type gitref"
    log = ask(lake, "SELECT logger, stream, message FROM logs")[0]
    assert (log["stream"], "abcdefghij" in log["message"]) == ("stdout", False)
    assert ask(lake, "SELECT metric, step, count, sum, min, max FROM distributions") == [
        {"metric": "weights", "step": 4, "count": 7, "sum": None, "min": 0.0, "max": 3.0}
    ]
    assert ask(lake, "SELECT name, step, row_count h FROM media") == [{"name": "shown", "step": 3, "h": 2}]
    artifacts = ask(lake, "SELECT name, bytes, uri IS NULL lost FROM artifacts ORDER BY name")
    assert [tuple(row.values()) for row in artifacts] == [("model", 5, False), ("outside", None, True)]
    notes = ask(lake, "SELECT kind, key, value, text FROM annotations ORDER BY kind, key")
    assert [tuple(row.values()) for row in notes] == [
        ("name", None, "the first", None), ("note", None, None, "why"), ("tag", "a", None, None),
        ("tag", "b", None, None),
    ]  # fmt: skip
    assert ask(lake, "SELECT event FROM events WHERE event = 'failure'") == [{"event": "failure"}]


def test_an_export_goes_on(lake, spool, tmp_path):
    """A later import takes the new runs alone; the registry, a damaged file, and another folder are named."""
    data = tmp_path / "data" / "team_digits-ab"
    export(data, "SAN-1", *SETTINGS)
    assert imported(lake, spool, "neptune", tmp_path).runs == ["SAN-1"]
    export(data, "SAN-2", point("loss", "float_series", 1.0, 0, 1))
    export(data / "models", "SAN-MOD", value("sys/name", "string", "m"))
    (data / "SAN-3_part_0.parquet").write_bytes(b"PAR1 and no more")
    done = import_files("neptune", [str(tmp_path)], str(spool))
    assert (done.again, done.skipped) == (1, {"models of the registry": 1})
    assert list(done.nothing) == ["SAN-3_part_0.parquet"]
    assert sorted(done.runs) == ["SAN-1", "SAN-2"]
    with pytest.raises(SourceError, match="it holds neptune: ranklake import neptune"):
        import_files("mlflow", [str(tmp_path)], str(spool))
