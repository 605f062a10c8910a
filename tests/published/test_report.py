"""The report of published figures: what it says, and what it must not let pass."""

import json
from dataclasses import replace
from pathlib import Path

import published_report
import pytest
from click.testing import CliRunner
from published_figures import Figure, figures, tolerance_of


def some(data, *groups):
    return [figure for figure in figures(data) if figure.group in groups]


def test_what_is_right_passes(published, capsys):
    """Rows that are wrong as published stand there as such, and match nothing; all others are within."""
    data = published("mlperf")
    assert published_report.report(some(data, "MFU, BigScience", "MLPerf LoRA"))
    printed = capsys.readouterr().out
    assert printed.count("| inconsistent as published: ") == 3
    assert "MLPerf LoRA | minutes, scaled | 28.1628 | 28.162" in printed
    assert "| MLPerf LoRA | 3 | 3 | 0 | 0 | 0 | 0 |" in printed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"published": 28.1630}, "| OUT OF TOLERANCE"),
        ({"key": "no_such_number"}, "| NOT COMPUTED: KeyError"),
        ({"inconsistent": "a slip"}, "| OUT OF TOLERANCE: matches, and is wrong as published"),
    ],
)
def test_what_is_wrong_fails(published, capsys, change, said):
    """A wrong published value, a figure that is not given, and a match that must not be: each fails the report."""
    figure = next(one for one in some(published("mlperf"), "MLPerf LoRA") if one.key == "result_min")
    assert not published_report.report([replace(figure, **change)])
    assert said in capsys.readouterr().out


def test_what_is_known_passes(capsys):
    """A figure that the software is known not to give stands there with the reason, without a number."""
    known = Figure(group="g", name="n", source="s", published=1.5, unknown="nobody asked")
    assert published_report.report([known])
    assert "g | n | 1.5 | - | exact | not computed: nobody asked" in capsys.readouterr().out


def test_without_the_data(monkeypatch):
    """Where the data is absent one line says so, and that is no failure."""
    monkeypatch.setattr(published_report, "DATA", Path("/no/such/data"))
    done = CliRunner().invoke(published_report.main, [])
    assert done.exit_code == 0
    assert done.output.splitlines() == ["the published data is not there: /no/such/data; set RANKLAKE_PUBLISHED_DATA"]


def test_another_folder(tmp_path, monkeypatch, capsys):
    """Whatever is there of the known kinds is run, with names and tolerances of its own; what is absent is not told."""
    (tmp_path / "megatron_logs").mkdir()
    (tmp_path / "mlperf" / "v9").mkdir(parents=True)
    (tmp_path / "kineto").mkdir()
    (tmp_path / "worker_steps").mkdir()
    (tmp_path / "worker_steps" / "job_7_norm.csv").write_text("x\n1\n")
    told = " iteration {:8d}/ 100 | consumed samples: 1 | elapsed time per iteration (ms): 1500.0 |\n"
    (tmp_path / "megatron_logs" / "own.log").write_text("".join(told.format(step) for step in (10, 20, 30)))
    keys = {"init_start": 0, "run_start": 5_000, "block_start": 5_000, "block_stop": 9_000, "eval_start": 9_000,
            "eval_stop": 9_500, "run_stop": 9_750}  # fmt: skip
    entries = (json.dumps({"time_ms": 1_700_000_000_000 + at, "key": key, "value": None}) for key, at in keys.items())
    (tmp_path / "mlperf" / "v9" / "log.txt").write_text("".join(f":::MLLOG {one}\n" for one in entries))
    head = "file,rank,world_size,gpu,step,step_us,gpu_busy_us,compute_us,nccl_us,overlap_us\n"
    (tmp_path / "kineto" / "per_step_reference.csv").write_text(
        head + "t.json,0,2,,4,10.25,3.125,3.125,0,0\ngone.json,1,2,,4,1,1,1,1,1\n"
    )
    parts = (("user_annotation", "ProfilerStep#4", 0, 10.25), ("kernel", "gemm", 1.5, 3.125))
    events = [
        {"ph": "X", "cat": cat, "name": name, "ts": 1e15 + at, "dur": length, "args": {}}
        for cat, name, at, length in parts
    ]
    (tmp_path / "kineto" / "t.json").write_text(json.dumps({"traceEvents": events}))
    monkeypatch.setattr(published_report, "DATA", tmp_path)
    assert published_report.report(figures(tmp_path))
    printed = capsys.readouterr().out
    assert "Megatron-LM | own: iterations told | 30 | 30 | exact | within" in printed
    assert "v9/log.txt: train, s | 4 | 4 | exact | within" in printed
    assert "t.json, step 4: gpu_busy_us | 3.125 | 3.125 | 0.0005 | within" in printed
    assert "not computed: the trace is not there" in printed
    assert "not computed: it was published of other files than these" in printed
    assert "| **all** | 22 | 11 | 0 | 11 | 0 | 0 |" in printed


@pytest.mark.parametrize(
    ("words", "what", "tolerance"),
    [
        ("exact", "params", (0.0, False)),
        ("±0.2 pp", "mfu_pct", (0.2, False)),
        ("±0.1 % (8B,70B); 405B row is 0.8 % off as published", "tflops_per_gpu", (0.001, True)),
        ("params ±0.05B; pct ±0.6; aggregate ±0.4 %", "aggregate_pflops", (0.004, True)),
        ("params ±0.05B; pct ±0.6; aggregate ±0.4 %", "pct_peak", (0.6, False)),
    ],
)
def test_tolerances_in_words(words, what, tolerance):
    """A row's own words say how far it may be off, for each of its figures."""
    assert tolerance_of(words, what) == pytest.approx(tolerance)
