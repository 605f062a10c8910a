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
    assert done.refused == {"not a time and a number": 2}
    rows = ask(lake, "SELECT ts, gpu_utilization_ratio u FROM gpu_samples ORDER BY ts")
    assert [round(row["u"], 4) for row in rows] == [0.5, 0.6]


def test_another_answer(spool, tmp_path):
    """JSON that is no answer is refused."""
    file = tmp_path / "x.json"
    file.write_text('{"status": "success", "resultType": "matrix"}')
    with pytest.raises(SourceError, match="not a response of Prometheus' API"):
        import_files("prometheus", [str(file)], str(spool))


def test_openmetrics(lake, spool, tmp_path):
    """A page that ends with EOF has its times in seconds, and exemplars behind its samples."""
    text = '# TYPE foo counter\nfoo_total{a="b # {"} 17.0 1772323200.5 # {trace_id="x"} 0.5 1772323200.1\n'
    file = tmp_path / "a.prom"
    file.write_text(text + "g 3 1772323200\n# EOF\n")
    assert imported(lake, spool, "prometheus", file).refused == {}
    found = ask(lake, "SELECT ts, value, kind FROM scalars ORDER BY metric")
    assert [(str(row["ts"])[:21], row["value"], row["kind"]) for row in found] == [
        ("2026-03-01 00:00:00.5", 17.0, "counter"), ("2026-03-01 00:00:00+0", 3.0, "gauge"),
    ]  # fmt: skip


def test_what_is_alike_is_kept_apart(lake, spool, tmp_path):
    """Pages of the same text are two samples; devices of one number are two where scrapers are; histograms count."""
    page = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",Hostname="n1"} 0\n'
    for name, at in (("p0.prom", 1_772_323_200), ("p1.prom", 1_772_323_230)):
        (tmp_path / name).write_text(page)
        os.utime(tmp_path / name, (at, at))
    imported(lake, spool, "prometheus", tmp_path / "p*.prom", run="pages")
    assert ask(lake, "SELECT count(DISTINCT ts) n FROM gpu_samples") == [{"n": 2}]
    load = {"__name__": "DCGM_FI_DEV_GPU_UTIL", "gpu": "0"}
    result = [
        {"metric": load | {"instance": "a:9400"}, "values": [[1_772_323_200, "50"]]},
        {"metric": load | {"instance": "b:9400"}, "values": [[1_772_323_200, "70"]]},
        {"metric": {"__name__": "lat"}, "histograms": [[1_772_323_200, {"count": "3", "sum": "1.5"}]]},
    ]
    (tmp_path / "r.json").write_text(json.dumps({"data": {"resultType": "matrix", "result": result}}))
    done = imported(lake, spool, "prometheus", tmp_path / "r.json", run="range")
    assert (done.rows["gpu_samples"], done.refused) == (2, {"native histograms are not supported": 1})


def test_samples_with_long_labels(lake, spool, tmp_path):
    """A line may be 4 KiB; what is longer is refused. Labels without a value are as if they were not there."""
    long = "x" * 3_900
    (tmp_path / "a.prom").write_text(f'a{{b="{long}",c=""}} 1 1700000000000\nb{{c="{long * 2}"}} 2 1700000000000\n')
    done = imported(lake, spool, "prometheus", tmp_path / "a.prom", run="r")
    assert done.refused == {"the name is too long": 1}
    assert ask(lake, "SELECT metric FROM scalars") == [{"metric": f'prometheus/a{{b="{long}"}}'}]
