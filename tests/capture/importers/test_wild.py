"""Logs and tables of strangers: what each holds was counted by other means (README beside each)."""

import json

import pytest
from importing import ask, imported

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError
from ranklake.lake.rollups.runner import run_rollups

BATCH, TOKENS = 1024, 4_194_304


def test_megatron_lines_that_are_lost(lake, spool, wild):
    """Each line has the tokens of its own step; those of lost lines go to nobody."""
    imported(lake, spool, "megatron", wild("23-megatron-llm/with_header.log"), run="gap")
    run_rollups(lake, ["run_summary"])
    wanted = "step, samples, tokens, tokens / step_time_s AS rate, interval_end_step"
    steps = ask(lake, f"SELECT {wanted} FROM steps ORDER BY step")
    assert [row["step"] for row in steps] == [122, 123, 125, 182, 183, 184, 185]
    assert {(row["samples"], row["tokens"], row["interval_end_step"]) for row in steps} == {(BATCH, TOKENS, None)}
    assert steps[2]["rate"] == pytest.approx(TOKENS / 89.0752, rel=1e-6)
    assert ask(lake, "SELECT tokens_per_s FROM run_summary")[0]["tokens_per_s"] == pytest.approx(37_913, abs=1)
    assert '"lost_steps":"57 between' in ask(lake, "SELECT labels FROM runs")[0]["labels"]


def test_megatron_without_a_header(lake, spool, wild):
    """An excerpt says how many samples a step has, and nothing of tokens."""
    imported(lake, spool, "megatron", wild("23-megatron-llm/megatron_llm.log"), run="excerpt")
    steps = ask(lake, "SELECT step, samples, tokens FROM steps ORDER BY step")
    assert [row["step"] for row in steps] == [122, 123, 124, 125, 182, 183, 184, 185]
    assert {(row["samples"], row["tokens"]) for row in steps} == {(BATCH, None)}


def test_torchtitan_runs_in_reversed_order(lake, spool, wild):
    """What began before the run above it in the file is a run of its own, not its restart."""
    imported(lake, spool, "torchtitan", wild("r11_titan_reversed.log", "repro"), run="r")
    run_rollups(lake, ["run_goodput"])
    runs = ask(lake, "SELECT run, restarts, wall_ns / 1e9 AS wall_s, mttf_s FROM run_goodput ORDER BY run")
    assert [(row["run"], row["restarts"], row["mttf_s"]) for row in runs] == [("r", 0, None), ("r-2", 0, None)]
    assert [row["wall_s"] for row in runs] == pytest.approx([141.609, 186.031], abs=1e-3)


def test_power_of_nvidia_smi(lake, spool, wild):
    """Values with units, behind blanks."""
    file = wild("07-nvidia-smi-csv/power.csv")
    imported(lake, spool, "table", file, mapping=str(file.with_suffix(".yaml")), run="smi")
    found = ask(lake, "SELECT count(*) AS n, min(value) AS low, max(value) AS high FROM scalars")
    assert [tuple(row.values()) for row in found] == [(73, 20.92, 23.0)]


@pytest.mark.parametrize("mapping", ["results", "results-padded"])
def test_results_of_yolo(lake, spool, wild, mapping):
    """Padded names and values, found with and without their blanks."""
    file = wild("10-yolo/results.csv")
    imported(lake, spool, "table", file, mapping=str(file.with_name(f"{mapping}.yaml")), run="yolo")
    found = ask(lake, "SELECT count(*) AS n, max(value) AS best, max(step) AS last FROM scalars")
    assert [tuple(row.values()) for row in found] == [(200, 0.93016, 199)]


def test_fractional_gpus(lake, spool, wild):
    """Thousandths of GPUs are no whole ones."""
    file = wild("r7_fraction.csv", "repro")
    done = imported(lake, spool, "table", file, mapping=str(file.with_suffix(".yaml")))
    assert (done.rows, sum(done.refused.values())) == ({}, 3)


def test_the_state_of_a_trainer(lake, spool, wild, tmp_path):
    """The 600 entries of log_history, from a document of 4,233 lines."""
    (tmp_path / "m.yaml").write_text(
        "table: scalars\ntime: {column: step, format: epoch_s}\n"
        "columns: {metric: {value: train/loss}, kind: {value: gauge}, step: step, value: loss}\n"
    )
    file = wild("09-hf-trainer-state/trainer_state.json")
    done = imported(lake, spool, "table", file, mapping=str(tmp_path / "m.yaml"), run="hf")
    assert done.refused == {}
    found = ask(lake, "SELECT count(*) AS n, min(step) AS first, max(step) AS last FROM scalars")
    assert [tuple(row.values()) for row in found] == [(600, 10, 6000)]
    with pytest.raises(SourceError, match="it looks like trainer_state: ranklake import trainer_state"):
        import_files("kineto", [str(file)], str(spool))


@pytest.mark.parametrize(
    ("kind", "name", "what"),
    [
        ("sacct", "13-hpc-accounting/lsf_input_accounting-logs.log", "ranklake import lsf "),
        ("sacct", "13-hpc-accounting/pbs_input_accounting-logs.log", "ranklake import pbs "),
        ("sacct", "13-hpc-accounting/sge_input_accounting-logs.log", "ranklake import sge "),
        ("sacct", "13-hpc-accounting/phillips.log", "sacct without its header"),
        ("sacct", "13-hpc-accounting/slurm_helper_sacct.json", "a JSON document"),
        ("sacct", "13-hpc-accounting/slurm_input_accounting-logs.log", "sacct without its header"),
        ("sacct", "13-hpc-accounting/slurm_input_accounting-logs-with-job-arrays.log", "sacct without its header"),
        ("sacct", "13-hpc-accounting/slurm_input_unknown-job-state.log", "sacct without its header"),
        ("sacct", "13-hpc-accounting/slurm_input_utf8-multibyte-chars.log", "sacct without its header"),
        ("sacct", "28-slurm-queue/sdiag.txt", "output of sdiag"),
        ("sacct", "28-slurm-queue/sinfo.txt", "output of sinfo"),
        ("sacct", "28-slurm-queue/squeue.txt", "output of squeue"),
        ("megatron", "24-gpt-neox/neox.log", "DeepSpeed's breakdown of micro-steps"),
    ],
)
def test_what_is_refused(tmp_path, wild, kind, name, what):
    """The refusal says what the file is."""
    with pytest.raises(SourceError, match=what):
        import_files(kind, [str(wild(name))], str(tmp_path / "spool"))


def test_the_engine_of_deepspeed(lake, spool, wild):
    """A line for ten steps: their samples follow from rates and times, their time from samples and rate."""
    done = imported(lake, spool, "megatron", wild("01-deepspeed-chat/sft.log"), run="ds")
    assert (done.rows["steps"], done.refused) == (710, {})
    wanted = "max(interval_end_step) AS last, count(DISTINCT interval_end_step) AS n, min(samples), max(samples)"
    assert [tuple(row.values()) for row in ask(lake, f"SELECT {wanted} FROM steps")] == [(710, 71, 128, 128)]
    rate = ask(lake, "SELECT avg(samples / step_time_s) AS rate FROM steps")[0]["rate"]
    assert rate == pytest.approx(171.7946, abs=1e-4)
    assert ask(lake, "SELECT sum(value) AS n FROM scalars WHERE metric = 'train/skipped_steps'") == [{"n": 10.0}]


def test_overflows_of_deepspeed(lake, spool, wild):
    """18 lines of six ranks tell of three skipped steps; nothing is cut off."""
    done = imported(lake, spool, "megatron", wild("01-deepspeed-chat/dpo.log"), run="ds")
    assert done.refused == {}
    assert ask(lake, "SELECT event, step FROM events ORDER BY step") == [
        {"event": "grad_overflow", "step": step} for step in (0, 1, 2)
    ]


def test_nemo_with_times(lake, spool, wild):
    """Iterations 120 to 125, as NeMo 2 prints them."""
    done = imported(lake, spool, "megatron", wild("16-nemo2/bionemo.log"), run="n")
    assert done.refused == {}
    steps = ask(lake, "SELECT step, loss, samples, step_time_s AS s FROM steps ORDER BY step")
    assert [row["step"] for row in steps] == [*range(120, 126)]
    assert [row["s"] for row in steps] == pytest.approx([0.03146, 0.03163, 0.03215, 0.03157, 0.0317, 0.03147])
    assert (steps[0]["loss"], steps[0]["samples"]) == (pytest.approx(1.233), 1)


def test_nemo_without_times(lake, spool, wild):
    """A line without its time is no step; what it says else is kept."""
    done = imported(lake, spool, "megatron", wild("16-nemo2/nemo2.log"), run="n")
    assert done.refused == {"the log does not have the iteration's duration": 9}
    losses = ask(lake, "SELECT step, value FROM scalars WHERE metric = 'train/loss' ORDER BY step")
    assert [tuple(row.values()) for row in losses] == list(
        enumerate([11.02, 9.761, 9.21, 8.595, 8.675, 7.918, 7.319, 7.889, 7.113])
    )


@pytest.mark.parametrize("name", ["r8_midday", "r8_midnight"])
def test_energy_across_midnight(lake, spool, wild, name):
    """Two hours at 300 W are 2.16 MJ, whenever they are."""
    file = wild(f"{name}.csv", "repro")
    imported(lake, spool, "table", file, mapping=str(file.with_name("r8_power.yaml")), run="p")
    run_rollups(lake, ["gpu_hourly"])
    assert ask(lake, "SELECT sum(energy_joules) AS joules FROM gpu_hourly") == [{"joules": 2_160_000.0}]


def test_power_of_a_node(lake, spool, wild):
    """What no device draws is no device's energy, and the reason names the limit."""
    file = wild("r9_node_power.csv", "repro")
    imported(lake, spool, "table", file, mapping=str(file.with_name("r8_power.yaml")), run="p")
    run_rollups(lake, ["gpu_hourly"])
    rows = ask(lake, "SELECT energy_joules, unavailable FROM gpu_hourly")
    assert {row["energy_joules"] for row in rows} == {None}
    assert all("more than 2000 W" in row["unavailable"] for row in rows)


def test_labels_of_amds_exporter(lake, spool, wild):
    """22 labels on a sample: labels without a value are none, and names may be long."""
    done = imported(lake, spool, "prometheus", wild("26-amd-exporter/amd.prom"), run="a")
    assert (done.rows["scalars"], done.refused) == (5, {})
    values = ask(lake, "SELECT value FROM scalars ORDER BY value")
    assert [row["value"] for row in values] == [0.0, 0.0, 29.0, 132.0, 900.0]


def test_what_trainers_left_needs_no_mapping(lake, spool, wild):
    """The same state as a format of its own, and results of YOLO: every number of every row, by its step."""
    state, results = wild("09-hf-trainer-state/trainer_state.json"), wild("10-yolo/results.csv")
    assert imported(lake, spool, "trainer_state", state, run="hf").refused == {}
    found = ask(lake, "SELECT count(*) AS n, min(step) AS first, max(step) AS last, sum(value) AS total FROM scalars"
                      " WHERE metric = 'train/loss'")  # fmt: skip
    losses = [entry["loss"] for entry in json.loads(state.read_text())["log_history"] if "loss" in entry]
    assert [tuple(row.values())[:3] for row in found] == [(len(losses), 10, 6000)]
    assert found[0]["total"] == pytest.approx(sum(losses))
    imported(lake, spool, "ultralytics", results, run="yolo")
    header, *rows = [[cell.strip() for cell in line.split(",")] for line in results.read_text().splitlines()]
    box = header.index("train/box_loss")
    wanted = [(int(row[0]), float(row[box])) for row in rows]
    found = ask(lake, "SELECT step, value FROM scalars WHERE metric = 'train/box_loss' ORDER BY step")
    assert [tuple(row.values()) for row in found] == wanted
    (count,) = ask(lake, "SELECT count(*) AS n FROM scalars WHERE run = 'yolo'")
    assert count["n"] == len(rows) * (len(header) - 1)
