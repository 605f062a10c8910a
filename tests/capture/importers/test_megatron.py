"""Megatron's standard output: iterations are found however other ranks' output cut them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from importing import ask, imported

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError
from ranklake.lake.store.lake import Lake

LINE = (
    " iteration {n:8d}/    1000 | consumed samples: {n:12d} | elapsed time per iteration (ms): 1500.0 | "
    "learning rate: 1.875E-05 | global batch size:  1024 | lm loss: {loss} | loss scale: 12.0 | grad norm: 67.593 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |"
)
MEMORY = (
    "[Rank 43] (after 1 iterations) memory (MB) | allocated: 100.5 | max allocated: 200.0 | reserved: 1.0 | "
    "max reserved: 300.0"
)
TIMERS = "time (ms) | forward-compute: 500.25 | backward-compute: 800.00 | optimizer: 58.73 | batch-generator: 184.79"


def line(n, loss="1.244238E+01"):
    return LINE.format(n=n, loss=loss)


def run(lake, spool, file, text):
    file.write_text(text)
    return imported(lake, spool, "megatron", file, run="r")


def test_steps_scalars_and_memory(lake, spool, tmp_path):
    """An iteration is a step with its loss, phases and times; other figures are scalars under their ranks."""
    head = (
        "using world size: 64, data-parallel-size: 2, tensor-model-parallel size: 4, pipeline-model-parallel size: 8 \n"
    )
    text = (
        head + "[before the start of training step] datetime: 2021-06-10 23:06:14 \n  hidden_size ............ 8192\n"
    )
    text += "\n".join(
        [
            line(1),
            TIMERS,
            MEMORY,
            line(2, "nan"),
            " validation loss at iteration 2 | lm loss value: 5.0E+00 | lm loss PPL: 1.5E+02 | ",
        ]
    )
    done = run(lake, spool, tmp_path / "log", text)
    assert (done.rows["steps"], done.refused) == (2, {})
    first, second = ask(lake, "SELECT * FROM steps ORDER BY step")
    assert (round(first["loss"], 4), round(first["forward_time_s"], 5), first["step_time_s"]) == (12.4424, 0.50025, 1.5)
    assert (second["loss"], second["non_finite"], str(second["ts"])) == (
        None,
        "loss:nan",
        "2021-06-10 23:06:15.500000+00:00",
    )
    memory = ask(lake, "SELECT rank, step, value FROM scalars WHERE metric = 'device/memory_allocated'")
    assert memory == [{"rank": 43, "step": 1, "value": 200.0 * 2**20}]
    assert ask(lake, "SELECT step, value FROM scalars WHERE metric = 'eval/loss'") == [{"step": 2, "value": 5.0}]
    assert ask(lake, "SELECT world_size w, pp_size p FROM runs") == [{"w": 64, "p": 8}]


def test_a_line_in_two_halves(lake, spool, tmp_path):
    """What another rank wrote into an iteration's line is taken out, and its halves are joined."""
    whole = line(5)
    text = f"[x] datetime: 2021-06-10 23:06:14\n{whole[:70]}{MEMORY}\nsome warning\n{whole[70:]}\n{line(6)}{MEMORY}\n"
    done = run(lake, spool, tmp_path / "log", text)
    assert done.refused == {}
    assert [row["step"] for row in ask(lake, "SELECT step FROM steps ORDER BY step")] == [5, 6]
    assert ask(lake, "SELECT count(*) n FROM scalars WHERE rank = 43") == [{"n": 4}]


def test_what_is_lost_is_counted(lake, spool, tmp_path):
    """An iteration whose other half never comes is in quarantine."""
    text = "[x] datetime: 2021-06-10 23:06:14\n" + line(1) + "\n" + line(2)[:60] + "\n" + line(3) + "\n"
    done = run(lake, spool, tmp_path / "log", text)
    assert (done.rows["steps"], done.refused) == (2, {"other output cut the iteration off": 1})


@settings(max_examples=5, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 330), st.sampled_from(["", "\n", MEMORY, "NCCL", "\n| x |\n"])), max_size=12))
@pytest.mark.slow
def test_cut_anywhere(tmp_path_factory, cuts):
    """However lines are cut, each iteration is a step or refused, and no step is made up."""
    place = tmp_path_factory.mktemp("log")
    text = "[x] datetime: 2021-06-10 23:06:14\n"
    for number, (at, noise) in enumerate(cuts, 1):
        whole = line(number)
        text += whole[:at] + noise + whole[at:] + "\n"
    lake = Lake.create(str(place / "lake"))
    run(lake, place / "spool", place / "log", text + line(99) + "\n")
    steps = [row["step"] for row in ask(lake, "SELECT step FROM steps")]
    assert 99 in steps
    assert len(steps) == len(set(steps))


def stamped(n, second):
    return f" [2024-06-01 12:00:{second:02d}.500000]{line(n)}"


def test_lines_that_bear_a_time(lake, spool, tmp_path):
    """Megatron-LM since 2024 tells when it wrote a line; labels of launchers and colours in front change nothing."""
    text = stamped(1, 10) + "\n"
    text += "(min, max) time across ranks (ms):\n"
    text += "    forward-compute ................................: (500.00, 510.00)\n"
    text += f"\x1b[32m[default7]:\x1b[0m{stamped(2, 12).replace('.5', ',5', 1)}\x1b[0m\n"
    text += " validation loss at iteration 2 on validation set | lm loss value: 9.5E+00 | lm loss PPL: 1.3E+04 | \n"
    done = run(lake, spool, tmp_path / "log", text)
    assert (done.rows["steps"], done.refused) == (2, {})
    steps = ask(lake, "SELECT step, ts, forward_time_s f FROM steps ORDER BY step")
    assert [str(row["ts"]) for row in steps] == ["2024-06-01 12:00:09+00:00", "2024-06-01 12:00:11+00:00"]
    assert round(steps[0]["f"], 6) == 0.51
    wanted = "SELECT metric, value FROM scalars WHERE metric LIKE 'eval/l%' OR metric LIKE '%least' ORDER BY metric"
    assert ask(lake, wanted) == [
        {"metric": "eval/loss", "value": 9.5}, {"metric": "megatron/time/forward-compute/least", "value": 0.5},
    ]  # fmt: skip


def test_a_mean_with_the_first_iteration_in_it(lake, spool, tmp_path):
    """The timer goes on behind the first line: the second one tells a mean over both. Primus tells arguments."""
    head = "[20240601 12:00:00][rank-0/8][INFO] [---module_utils.py:227] :   seq_length      : 4096 (int)"
    told = [(1, "30.000000", 20_000.0), (2, "31.500000", 10_750.0), (3, "33.000000", 1_500.0)]
    timed = "[2024-06-01 12:00:{at}] {line}"
    text = [timed.format(at=at, line=line(n).replace("1500.0", f"{ms}")) for n, at, ms in told]
    run(lake, spool, tmp_path / "log", "\n".join([head, *text]))
    steps = ask(lake, "SELECT step, ts, step_time_s AS took, tokens FROM steps ORDER BY step")
    assert [round(row["took"], 6) for row in steps] == [20.0, 1.5, 1.5]
    assert [str(row["ts"])[17:21] for row in steps] == ["10+0", "30+0", "31.5"]
    assert [row["tokens"] for row in steps] == [1024 * 4096, 4096, 4096]


def test_a_log_that_goes_back_is_a_restart(lake, spool, tmp_path):
    """Iterations that come again are those of the next attempt; the very same line is no iteration."""
    text = "\n".join([stamped(1, 2), stamped(2, 4), stamped(3, 6), stamped(3, 6), "Traceback", stamped(2, 20)])
    done = run(lake, spool, tmp_path / "log", text)
    assert (done.rows["steps"], done.runs) == (4, ["r"])
    assert done.refused == {"the iteration is in the log twice": 1}
    told = ask(lake, "SELECT attempt, step FROM steps ORDER BY attempt, step")
    assert [(row["attempt"], row["step"]) for row in told] == [(0, 1), (0, 2), (0, 3), (1, 2)]


def test_lines_of_several_ranks(lake, spool, tmp_path):
    """An iteration that another rank tells, too, is one; one that comes again much later is a restart's."""
    other = stamped(3, 6).replace("1500.0", "1500.1")
    done = run(lake, spool, tmp_path / "log", "\n".join([stamped(2, 4), stamped(3, 6), other, stamped(3, 40)]))
    assert done.refused == {"the iteration is in the log twice": 1}
    told = ask(lake, "SELECT attempt, step FROM steps ORDER BY attempt, step")
    assert [(row["attempt"], row["step"]) for row in told] == [(0, 2), (0, 3), (1, 3)]


def test_flops_and_parameters(lake, spool, tmp_path):
    """Forks tell effective TFLOP/s and parameters behind an iteration: a scalar of its step, and the run's."""
    told = "time (ms) | forward: 5.5 | batch: 1.00 Effective Tera Flops per GPU: 45.25 and total parameters 6.65 B"
    run(lake, spool, tmp_path / "log", "\n".join([stamped(1, 2), told]))
    flops = ask(lake, "SELECT step, value FROM scalars WHERE metric = 'megatron/effective_tera_flops_per_gpu'")
    assert flops == [{"step": 1, "value": 45.25}]
    assert ask(lake, "SELECT param_count n FROM runs") == [{"n": 6_650_000_000}]


def test_deepspeed_tells_a_step_too(lake, spool, tmp_path):
    """A step that both tell is one; one that DeepSpeed tells without its time is refused."""
    told = "steps: {} loss: 2.5 iter time (s): {} samples/sec: 61.2"
    text = "\n".join(["[x] datetime: 2021-06-10 23:06:14", line(1), told.format(2, 1.6), line(2), told.format(2, 1.6),
                      told.format(3, 0.5), told.format(4, "nan")])  # fmt: skip
    done = run(lake, spool, tmp_path / "log", text)
    assert done.refused == {"the step has no duration": 1}
    steps = ask(lake, "SELECT step, ts, step_time_s s FROM steps ORDER BY step")
    assert [(row["step"], row["s"], str(row["ts"])[14:19]) for row in steps] == [
        (1, 1.5, "06:14"), (2, 1.5, "06:15"), (3, 0.5, "06:17"),
    ]  # fmt: skip


def test_deepspeed_alone_goes_back(spool, tmp_path):
    """Without Megatron's lines a restart shows in DeepSpeed's, each of them for the steps since the last."""
    told = "steps: {} loss: 2.5 iter time (s): 0.5 samples/sec: 61.2\n"
    (tmp_path / "log").write_text("".join(told.format(step) for step in (10, 20, 30, 20, 30)))
    done = import_files("megatron", [str(tmp_path / "log")], str(spool))
    assert (done.rows["steps"], done.rows["runs"], len(done.runs)) == (50, 2, 1)


def test_another_file(spool, tmp_path):
    """A file without a word of it is refused."""
    (tmp_path / "log").write_text("hello\n")
    with pytest.raises(SourceError, match="log: the file has no line of Megatron-LM or DeepSpeed"):
        import_files("megatron", [str(tmp_path / "log")], str(spool))


def test_a_log_of_another_trainer_is_not_taken_for_a_page(spool, tmp_path):
    """Lines such as "epoch 1" make no page of Prometheus, and commas no table: only what all lines are is named."""
    log = [
        "+ export A=1",
        "Setting ds_accelerator, to cuda",
        "steps 12",
        "Some information",
        "{'loss': 1.5, 'epoch': 1.0}",
    ]
    (tmp_path / "hf.out").write_text("\n".join(log * 9))
    with pytest.raises(SourceError, match="the file has no line of Megatron-LM or DeepSpeed"):
        import_files("megatron", [str(tmp_path / "hf.out")], str(spool))
    (tmp_path / "page").write_text('# TYPE up gauge\nup{job="a b"} 1\nload 1.5e3 1700000000000\n')
    with pytest.raises(SourceError, match="it looks like prometheus"):
        import_files("megatron", [str(tmp_path / "page")], str(spool))


ENGINE = (
    "[2026-01-01 10:00:{at:02d},000] [INFO] [x] [Rank 0] step={n}, skipped={skip}, lr=[2e-05], mom=[]\n"
    "[2026-01-01 10:00:{at:02d},010] [INFO] [timer.py:199:stop] {place}, MemAllocated=3.96GB\n"
)


def test_the_engine_before_it_told_steps(lake, spool, tmp_path):
    """DeepSpeed before 2023 tells the step in the line before: steps take the time between lines."""
    told = [ENGINE.format(at=2 * n, n=n, skip=n // 15, place=f"0/{n}, SamplesPerSec=83.7") for n in (5, 10, 15)]
    done = run(lake, spool, tmp_path / "log", "".join(told))
    assert done.refused == {"the step has no duration": 1}
    steps = ask(lake, "SELECT step, step_time_s AS s, samples, lr FROM steps ORDER BY step")
    assert [(row["step"], row["s"], row["samples"]) for row in steps] == [(step, 2.0, None) for step in range(6, 16)]
    assert ask(lake, "SELECT step, value FROM scalars") == [{"step": 15, "value": 1.0}]


def test_rates_that_agree_on_no_batch(lake, spool, tmp_path):
    """Where pauses hide how many samples a step has, nobody guesses it."""
    place = "epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=9.0, CurrSamplesPerSec=8.0"
    told = [ENGINE.format(at=at, n=n, skip=0, place=place.format(n=n)) for n, at in ((1, 1), (2, 2), (3, 5), (4, 25))]
    run(lake, spool, tmp_path / "log", "".join(told))
    steps = ask(lake, "SELECT step, step_time_s AS s, samples FROM steps ORDER BY step")
    assert [tuple(row.values()) for row in steps] == [(2, 1.0, None), (3, 3.0, None), (4, 20.0, None)]


def test_gpt_neox(lake, spool, tmp_path):
    """Its names have underscores, and DeepSpeed's engine tells the same steps."""
    neox = (
        " samples/sec: 7.799 | iteration {n:8d}/   10000 | elapsed time per iteration (ms): 2000.0 | "
        "learning rate: 2.111E-06 | approx flops per GPU: 112.9TFLOPS | lm_loss: 1.125000E+01 | loss scale: 8.0 |\n"
    )
    place = "epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=8.0, CurrSamplesPerSec=8.0"
    told = [ENGINE.format(at=2 * n, n=n, skip=0, place=place.format(n=n)) + neox.format(n=n) for n in (1, 2, 3)]
    done = run(lake, spool, tmp_path / "log", "".join(told))
    assert done.refused == {}
    steps = ask(lake, "SELECT step, step_time_s AS s, loss FROM steps ORDER BY step")
    assert [tuple(row.values()) for row in steps] == [(step, 2.0, 11.25) for step in (1, 2, 3)]


def test_nemo_over_epochs(lake, spool, tmp_path):
    """An iteration begins anew in each epoch of NeMo; the step goes on, and its total is not the run's last step."""
    nemo = (
        "[NeMo I] Training epoch {e}, iteration {i}/1 | lr: 3e-05 | consumed_samples: {n} | global_batch_size: 4 | "
        "global_step: {s} | reduced_train_loss: {loss} | grad_norm: 2.5 | train_step_timing in s: 0.5\n"
    )
    told = [nemo.format(e=s // 2, i=s % 2, s=s, n=4 * s + 4, loss="nan" if s == 3 else 1.5) for s in range(4)]
    done = run(lake, spool, tmp_path / "log", "".join(told))
    assert (done.refused, done.rows.get("events")) == ({}, None)
    steps = ask(lake, "SELECT step, loss, non_finite AS odd, grad_norm AS g, samples FROM steps ORDER BY step")
    assert [tuple(row.values()) for row in steps] == [
        (0, 1.5, None, 2.5, 4), (1, 1.5, None, 2.5, 4), (2, 1.5, None, 2.5, 4), (3, None, "loss:nan", 2.5, 4),
    ]  # fmt: skip


def test_nemo_behind_a_time_and_a_role(lake, spool, tmp_path):
    """A launcher's time in brackets, with a zone, is the step's end where NeMo tells none; fields come in any order."""
    nemo = (
        "[2026-01-01T18:00:{at:02d}+08:00] training/0 Training epoch 0, iteration {n}/9 | lr: 1e-05 | "
        "global_batch_size: 8 | "
        "global_step: {n} | reduced_train_loss: 6.5 | train_step_timing in s: 2.5 | consumed_samples: {samples}\n"
    )
    told = [nemo.format(at=10 + 3 * n, n=n, samples=8 * n + 8) for n in (3, 4)]
    run(lake, spool, tmp_path / "log", "".join(told))
    steps = ask(lake, "SELECT step, ts, samples FROM steps ORDER BY step")
    assert [(row["step"], str(row["ts"])[11:21], row["samples"]) for row in steps] == [
        (3, "10:00:16.5", 8), (4, "10:00:19.5", 8),
    ]  # fmt: skip


def test_lines_with_equals_signs(lake, spool, tmp_path):
    """A fork of Megatron-DeepSpeed writes names and values so; DeepSpeed's engine tells the same step, timeless."""
    place = "epoch=0/micro_step=3/global_step=3, RunningAvgSamplesPerSec=74.6, CurrSamplesPerSec=74.6"
    told = ENGINE.format(at=2, n=3, skip=0, place=place) + (
        "[2026-01-01 10:00:40][INFO][training:1251] -  iteration=       3/  900 | consumed_samples=         768 | "
        "elapsed_time_per_iteration_ms=16000.0 | global_batch_size=  256 | lm loss=11.25 | actual_seqlen= 4096 |\n"
    )
    done = run(lake, spool, tmp_path / "log", told)
    assert done.refused == {}
    assert [tuple(row.values()) for row in ask(lake, "SELECT step, step_time_s, loss, samples, tokens FROM steps")] == [
        (3, 16.0, 11.25, 256, 256 * 4096)
    ]
