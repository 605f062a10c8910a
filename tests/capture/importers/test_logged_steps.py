"""A line of a log that stands for several steps: their rows, tokens, time, restarts and MFU go by steps."""

from datetime import UTC, datetime, timedelta

import pytest
from importing import ask, imported

from ranklake.lake.ingest.status.liveness import liveness
from ranklake.lake.rollups.runner import run_rollups

BEGIN = datetime(2024, 6, 1, 12, 0, 0, tzinfo=UTC)
HEAD = (
    "using world size: 8, data-parallel size: 4, context-parallel size: 1, tensor-model-parallel size: 2, "
    "pipeline-model-parallel size: 1\n"
    "  seq_length ...................................... 2048\n"
    "  params_dtype .................................... torch.bfloat16\n"
    "  seed ............................................ 1234\n"
    "[before the start of training step] datetime: {at} \n"
)
DEVICE = "table: runs\nrun: r\ntime: {value: 2024-06-01T12:00:00Z}\ncolumns: {device_name: device}\n"
FLOPS = (
    "table: scalars\nrun: r\ntime: {value: 2024-06-01T12:00:00Z}\n"
    "columns: {metric: {value: model/flops_per_token}, kind: {value: gauge}, value: flops}\n"
)


def at(seconds):
    return str(BEGIN + timedelta(seconds=seconds))[:19]


def line(step, seconds, stamp=None, batch=16, total=1000):
    own = f" [{at(stamp)}]" if stamp is not None else ""
    return (
        f"{own} iteration {step:8d}/{total:8d} | consumed samples: {step * batch:12d} | "
        f"elapsed time per iteration (ms): {seconds * 1000:.1f} | learning rate: 1.0E-05 | "
        f"global batch size: {batch} | lm loss: {10 / step:.6E} | grad norm: 1.5 | number of skipped iterations:   0 |"
    )


def written(file, *texts, head=HEAD):
    file.write_text(head.format(at=at(0)) + "\n".join(texts) + "\n")
    return file


def run(lake, spool, tmp_path, *texts, head=HEAD, rollups=("run_goodput",)):
    done = imported(lake, spool, "megatron", written(tmp_path / "log", *texts, head=head), run="r")
    run_rollups(lake, list(rollups))
    return done


def goodput(lake, *columns):
    return [list(row.values()) for row in ask(lake, f"SELECT {', '.join(columns)} FROM goodput ORDER BY attempt")]


@pytest.mark.slow
@pytest.mark.parametrize("stamped", [True, False])
def test_a_line_for_ten_steps(lake, spool, tmp_path, stamped):
    """A run that trained throughout has a goodput of one, all steps and all tokens, with times told or reckoned."""
    seconds = 0.9
    lines = [line(n, seconds, round(n * seconds) if stamped else None) for n in range(10, 70, 10)]
    done = run(lake, spool, tmp_path, *lines, rollups=["run_summary"])
    assert (done.rows["steps"], done.refused) == (60, {})
    ((wall, ratio, steps, tokens, status),) = goodput(
        lake, "wall_ns / 1e9", "goodput_ratio", "steps", "tokens", "status"
    )
    assert (steps, tokens, status) == (60, 60 * 16 * 2048, "imported")
    assert wall == pytest.approx(54, abs=1.01)
    assert ratio > 0.97
    told = ask(lake, "SELECT * FROM steps WHERE step IN (10, 11, 20) ORDER BY step")
    assert [row["interval_end_step"] for row in told] == [10, 20, 20]
    assert [row["loss"] and round(row["loss"], 3) for row in told] == [1.0, None, 0.5]
    assert [(row["samples"], row["tokens"], row["ranks"]) for row in told] == [(16, 16 * 2048, 8)] * 3
    summary = ask(lake, "SELECT steps, tokens_per_s, mean_step_time_s s FROM run_summary")[0]
    assert (summary["steps"], round(summary["s"], 6)) == (60, 0.9)
    assert summary["tokens_per_s"] == pytest.approx(16 * 2048 / 0.9, rel=1e-6)
    facts = "world_size w, dp_size d, tp_size t, cp_size c, seed, compute_dtype f"
    assert list(ask(lake, f"SELECT {facts} FROM runs")[0].values()) == [8, 4, 2, 1, 1234, "torch.bfloat16"]


@pytest.mark.slow
def test_restarts_count_steps(lake, spool, tmp_path):
    """What a restart lost is counted in steps; its first line stands for those since its checkpoint."""
    first = [line(n, 1.0, n) for n in (10, 20, 30, 40)]
    loaded = "successfully loaded checkpoint from /x [ t 0, p 0 ] at iteration 25"
    again = [loaded, line(30, 1.0, 105), line(40, 1.0, 115)]
    run(lake, spool, tmp_path, *first, "Traceback (most recent call last):", HEAD.format(at=at(100)), *again)
    assert goodput(lake, "steps", "steps_lost", "lost_work_ns / 1e9", "status") == [
        [40, 15, 15.0, "failed"], [15, 0, 0.0, "imported"],
    ]  # fmt: skip
    assert ask(lake, "SELECT restarts, steps_lost, productive_ns / 1e9 p FROM run_goodput") == [
        {"restarts": 1, "steps_lost": 15, "p": 40.0}
    ]


def test_what_begins_anew_is_a_restart(lake, spool, tmp_path):
    """A log that goes on from its last step after the trainer began anew is a restart that lost nothing."""
    text = [*(line(n, 1.0, n) for n in (10, 20)), HEAD.format(at=at(60)), line(30, 1.0, 80), line(40, 1.0, 90)]
    run(lake, spool, tmp_path, *text)
    assert goodput(lake, "attempt", "steps", "steps_lost") == [[0, 20, 0], [1, 20, 0]]


@pytest.mark.slow
def test_a_line_that_is_lost(lake, spool, tmp_path):
    """Of a line that other output destroyed the steps are missing; the next line stands for no more than its own."""
    lines = [line(n, 1.0, n) for n in (10, 20, 30, 40, 50)]
    lines[2] = lines[2][:70]
    done = run(lake, spool, tmp_path, *lines)
    assert (done.rows["steps"], sum(done.refused.values())) == (40, 1)
    assert ask(lake, "SELECT step FROM steps WHERE step BETWEEN 20 AND 31 ORDER BY step") == [
        {"step": 20},
        {"step": 31},
    ]


@pytest.mark.slow
def test_mfu_of_a_job_that_one_rank_logs(lake, spool, tmp_path):
    """Tokens are the whole job's, and so are the devices that MFU and HFU are taken against."""
    run(lake, spool, tmp_path, *(line(n, 2.0, 2 * n) for n in (10, 20, 30)), rollups=[])
    for name, text in (("d", DEVICE), ("f", FLOPS)):
        (tmp_path / f"{name}.csv").write_text("device,flops\nNVIDIA H100 80GB HBM3,4.2e10\n")
        (tmp_path / f"{name}.yaml").write_text(text)
        imported(lake, spool, "table", tmp_path / f"{name}.csv", mapping=str(tmp_path / f"{name}.yaml"))
    run_rollups(lake, ["step_mfu"])
    wanted = 4.2e10 * 16 * 2048 / 2.0 / (8 * 989.4e12)
    told = ask(lake, "SELECT mfu_ratio m, ranks, rank_steps FROM mfu")
    assert [(row["ranks"], row["rank_steps"]) for row in told] == [(8, 240)]
    assert told[0]["m"] == pytest.approx(wanted, rel=1e-3)
    steps = ask(lake, "SELECT min(mfu_ratio) low, max(mfu_ratio) high, count(*) n FROM step_mfu")[0]
    assert (steps["n"], steps["low"]) == (30, pytest.approx(told[0]["m"]))
    assert steps["high"] == pytest.approx(told[0]["m"])


ENDS = {
    "slurmstepd: error: *** JOB 12 ON r6i4n5 CANCELLED AT 2024-06-01T12:01:30 DUE TO TIME LIMIT ***": ("preempted", 90),
    "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2024-06-01T12:01:30 DUE TO NODE FAILURE, SEE LOG ***":
        ("failed", 90),
    "[after training is done] datetime: 2024-06-01 12:01:10 ": ("finished", 70),
    "[exiting program after 1190.5 minutes] datetime: 2024-06-01 12:01:05 ": ("preempted", 65),
    "srun: error: node3: task 25: Exited with exit code 1": ("failed", 20),
    "nothing that anybody knows": ("imported", 20),
}  # fmt: skip


@pytest.mark.slow
def test_how_it_ended(lake, spool, tmp_path):
    """A run ended as its log says, and when it says; one whose log says nothing is imported, and ends where it ends."""
    for number, last in enumerate(ENDS):
        written(tmp_path / f"log{number}", line(10, 1.0, 10), line(20, 1.0, 20), last)
    imported(lake, spool, "megatron", tmp_path / "log*", run="r")
    run_rollups(lake, ["goodput"])
    told = ask(lake, "SELECT status, wall_ns / 1e9 s FROM goodput ORDER BY run")
    assert [(row["status"], row["s"]) for row in told] == [
        (how, pytest.approx(wall_s, abs=1.0)) for how, wall_s in ENDS.values()
    ]
    states = {(one.run, one.state) for one in liveness(lake, now=BEGIN + timedelta(minutes=2))}
    assert {state for _, state in states} == {"ended", "preempted", "failed"}


@pytest.mark.slow
def test_steps_under_way_at_the_end_are_no_stall(lake, spool, tmp_path):
    """What a run did between its last line and its end is no stall while a line is not due; beyond that it is."""
    cancelled = "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2024-06-01T12:0{}:00 DUE TO TIME LIMIT ***"
    for minute in (5, 8):
        lines = [line(10, 9.0, 90), line(20, 9.0, 180), cancelled.format(minute)]
        written(tmp_path / f"log{minute}", *lines)
    imported(lake, spool, "megatron", tmp_path / "log*", run="r")
    run_rollups(lake, ["goodput"])
    told = ask(lake, "SELECT stall_ns / 1e9 s, unattributed_ns / 1e9 u, wall_ns / 1e9 w FROM goodput ORDER BY run")
    assert [list(row.values()) for row in told] == [[0.0, 120.0, 300.0], [210.0, 90.0, 480.0]]


@pytest.mark.slow
def test_the_last_step_is_an_end(lake, spool, tmp_path):
    """A run that reached the step that it was to end with is finished, whatever stands behind."""
    lines = [line(n, 1.0, n, total=20) for n in (10, 20)]
    run(lake, spool, tmp_path, *lines, "Traceback (most recent call last):")
    assert goodput(lake, "status") == [["finished"]]


@pytest.mark.slow
def test_the_first_line_has_no_time(lake, spool, tmp_path):
    """Steps before the first time that a log tells end there, not in the year 2000."""
    memory = "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | max reserved: 3.0"
    text = [memory, line(1, 1.0), line(2, 1.0), f"[after training is done] datetime: {at(2)} ", "end"]
    run(lake, spool, tmp_path, *text, head="")
    assert goodput(lake, "wall_ns / 1e9", "CAST(ts AS STRING)") == [[2.0, "2024-06-01T12:00:00Z"]]
    assert ask(lake, "SELECT count(DISTINCT date) n FROM scalars") == [{"n": 1}]


PRIMUS = (
    "\x1b[32m[20250825 13:42:{at:02d}][rank-7/8][INFO ] [--------trainer.py:2154] : \x1b[0m iteration {n:8d}/      60 "
    "| consumed samples: {samples:12d} | elapsed time per iteration (ms): 1595.5{ms} | "
    "rocm mem usage/free/total/usage_ratio: 99.07GB/92.92GB/191.98GB/51.60% | "
    "throughput per GPU (TFLOP/s/GPU): 92.8{tf} | tokens per GPU (tokens/s/GPU): 5134.5{tk} | "
    "learning rate: 1.464466E-06 | global batch size:    16 | lm loss: 9.732306E+00 | loss scale: 1.0 | "
    "grad norm: 10.682 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)


def test_primus(lake, spool, tmp_path):
    """AMD's lines bear a coloured prefix with time and rank, and averages behind the values."""
    for number, form in enumerate(["/{}", " ({})", ""]):
        averages = {key: form.format(value) for key, value in (("ms", 1630.1), ("tf", 90.8), ("tk", 5026.5))}
        lines = [PRIMUS.format(at=35 + 2 * n, n=n, samples=16 * n, **averages) for n in (4, 5, 6)]
        written(tmp_path / f"log{number}", *lines, head="")
    assert imported(lake, spool, "megatron", tmp_path / "log*", run="r").refused == {}
    told = ask(lake, "SELECT step, step_time_s s, tokens, ranks, CAST(ts AS STRING) ts FROM steps ORDER BY run, step")
    assert [(row["step"], round(row["s"], 4), row["tokens"], row["ranks"]) for row in told] == [
        (n, 1.5955, 16 * 4096, 8) for n in (4, 5, 6)
    ] * 3
    assert told[2]["ts"] == "2025-08-25T13:42:45.404500Z"
    assert ask(lake, "SELECT DISTINCT world_size w FROM runs") == [{"w": 8}]
    assert ask(lake, "SELECT DISTINCT value FROM scalars WHERE metric LIKE '%tflop%'") == [{"value": 92.8}]


def counts(lake):
    return [tuple(row.values()) for row in ask(lake, "SELECT step, samples, tokens FROM steps ORDER BY step")]


def test_consumed_samples_across_a_gap(lake, spool, tmp_path):
    """Where no batch size is stated, lines share what was consumed since the line before, if that is whole."""
    lines = [line(n, 1.0).replace("global batch size: 16 |", "") for n in (1, 2, 3, 6)]
    run(lake, spool, tmp_path, *lines, rollups=[])
    assert counts(lake) == [(1, None, None), (2, 16, 16 * 2048), (3, 16, 16 * 2048), (6, 16, 16 * 2048)]


def test_a_batch_that_grows(lake, spool, tmp_path):
    """A line says the batch of its last step: what was consumed counts, unless lines between are lost."""
    grown = [(10, 160, 16), (20, 400, 32), (30, 720, 32), (50, 1360, 32), (60, 99_999, 32)]
    text = [line(n, 1.0, batch=batch).replace(f"{n * batch:12d}", f"{consumed:12d}") for n, consumed, batch in grown]
    run(lake, spool, tmp_path, *text, rollups=[])
    ends = {step: samples for step, samples, _ in counts(lake) if step % 10 == 0}
    assert ends == {10: 16, 20: 24, 30: 32, 50: 32, 60: 32}


def test_an_interval_that_the_log_states(lake, spool, tmp_path):
    """Where every other line is lost, the stated interval says for how many steps a line stands."""
    head = HEAD + "  log_interval .................................... 10\n"
    run(lake, spool, tmp_path, *(line(n, 1.0) for n in (10, 30, 50)), head=head, rollups=[])
    assert [step for step, *_ in counts(lake)] == [*range(1, 11), *range(21, 31), *range(41, 51)]


def test_runs_put_together_in_any_order(lake, spool, tmp_path):
    """What begins before the attempt above it is a run of its own; what overlaps it is an attempt."""
    text = [*(line(n, 1.0, 1000 + n) for n in (10, 20)), *(line(n, 1.0, n) for n in (10, 20, 30)), line(20, 1.0, 29)]
    run(lake, spool, tmp_path, *text, rollups=[])
    told = ask(lake, "SELECT run, attempt, count(*) AS n FROM steps GROUP BY 1, 2 ORDER BY 1, 2")
    assert [tuple(row.values()) for row in told] == [("r", 0, 20), ("r-2", 0, 30), ("r-2", 1, 10)]
