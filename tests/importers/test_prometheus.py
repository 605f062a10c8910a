"""Prometheus' pages and answers: devices become samples, all else scalars."""

import json
import os

import pytest
from importing import ask, imported

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError

PAGE = """# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",Hostname="n1",modelName="NVIDIA H100"} 87 1700000000000
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",Hostname="n1",modelName="NVIDIA H100"} 10 1700000000000
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2",Hostname="n1",modelName="NVIDIA H100"} 5 1700000000000
# TYPE http_requests_total counter
http_requests_total{code="200"} 1027
queue_depth NaN
this is no sample
"""


def test_a_page(lake, spool, tmp_path):
    """Each device is one row in our units; other metrics keep name and labels; what is no sample is in quarantine."""
    file = tmp_path / "metrics.prom"
    file.write_text(PAGE)
    os.utime(file, (1_700_000_060, 1_700_000_060))
    done = imported(lake, spool, "prometheus", file)
    assert done.rows == {"gpu_samples": 2, "runs": 1, "scalars": 2}
    assert sum(done.refused.values()) == 1
    first = ask(lake, "SELECT * FROM gpu_samples ORDER BY device_uuid")[0]
    assert (first["device_uuid"], first["host"], first["memory_used_bytes"]) == ("GPU-1", "n1", 10 * 2**20)
    assert first["gpu_utilization_ratio"] == pytest.approx(0.87)
    scalars = ask(lake, "SELECT metric, value, value_flag, kind, ts FROM scalars ORDER BY metric")
    assert [(row["metric"], row["value"], row["value_flag"], row["kind"]) for row in scalars] == [
        ('prometheus/http_requests_total{code="200"}', 1027.0, None, "counter"),
        ("prometheus/queue_depth", None, "nan", "gauge"),
    ]
    assert str(scalars[0]["ts"]) == "2023-11-14 22:14:20+00:00"


def test_a_range(lake, spool, tmp_path):
    """A matrix gives a row a device and time; values that are none are refused."""
    uuid = {"UUID": "GPU-1", "gpu": "0", "Hostname": "n1"}
    result = [
        {
            "metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", **uuid},
            "values": [[1_700_000_000, "50"], [1_700_000_015.5, "60"]],
        },
        {"metric": {"__name__": "up", "job": "x"}, "values": [[1_700_000_000, "1"], [1_700_000_015, "one"], None]},
    ]
    file = tmp_path / "range.json"
    file.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
    done = imported(lake, spool, "prometheus", file)
    assert done.rows == {"gpu_samples": 2, "runs": 1, "scalars": 1}
    assert done.refused == {"a value that is none": 2}
    rows = ask(lake, "SELECT ts, gpu_utilization_ratio u FROM gpu_samples ORDER BY ts")
    assert [round(row["u"], 4) for row in rows] == [0.5, 0.6]


def test_another_answer(spool, tmp_path):
    """JSON that is no answer is refused."""
    file = tmp_path / "x.json"
    file.write_text('{"status": "success", "resultType": "matrix"}')
    with pytest.raises(SourceError, match="no answer of Prometheus' API"):
        import_files("prometheus", [str(file)], str(spool))
