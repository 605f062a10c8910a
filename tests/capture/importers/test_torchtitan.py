"""torchtitan's standard output: a line every so many steps, whose time is that between lines."""

import re

import pytest
from importing import ask, imported

from ranklake.capture.importers.formats import formats
from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError
from ranklake.lake.rollups.runner import run_rollups

HEAD = """\
[rank0]:[titan] 2025-06-16 22:00:00,000 - root - INFO - Starting job: Llama 3 8B training
[rank0]:[titan] 2025-06-16 22:00:01,000 - root - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]
[rank0]:[titan] 2025-06-16 22:00:02,000 - root - INFO - CUDA capacity: NVIDIA H100 with 95.00GiB memory
[rank0]:[titan] 2025-06-16 22:00:03,000 - root - INFO - \x1b[34mModel llama3 8B \x1b[31msize: 8,030,261,248 total parameters\x1b[39m
[rank0]:[titan] 2025-06-16 22:00:04,000 - root - INFO - Trainer is initialized with local batch size 1, global batch size 8, \
gradient accumulation steps 1, sequence length 8192, total steps {total} (warmup 200)
[rank0]:[titan] 2025-06-16 22:00:{start:02d},000 - root - INFO - Training starts at step {step}
"""  # noqa: E501 - as it is printed


def line(step, at_ms, label="[rank0]:"):
    stamp = f"2025-06-16 22:{at_ms // 60_000:02d}:{at_ms // 1000 % 60:02d},{at_ms % 1000:03d}"
    return (
        f"{label}[titan] {stamp} - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: {10 / step:7.4f}  "
        "grad_norm:  2.5000  \x1b[33mmemory: 49.66GiB(52.28%)  \x1b[34mtps: 5,856  tflops: 339.16  mfu: 34.29%\x1b[39m"
    )


def test_steps(lake, spool, tmp_path):
    """Lines stand for the steps since the line before; one rank that logs speaks for all."""
    head = HEAD.format(total=20, start=10, step=1)
    end = "[rank0]:[titan] 2025-06-16 22:00:45,000 - root - INFO - Training completed"
    (tmp_path / "log").write_text("\n".join([head + line(1, 14_000), line(10, 23_000), line(20, 43_000), end]))
    done = imported(lake, spool, "torchtitan", tmp_path / "log", run="r")
    assert (done.rows["steps"], done.refused) == (20, {})
    told = ask(lake, "SELECT * FROM steps WHERE step IN (1, 2, 10, 20) ORDER BY step")
    columns = ("interval_end_step", "step_time_s", "tokens", "samples", "ranks")
    assert [tuple(row[column] for column in columns) for row in told] == [
        (None, 4.0, 8 * 8192, 8, 8), (10, 1.0, 8 * 8192, 8, 8), (10, 1.0, 8 * 8192, 8, 8), (20, 2.0, 8 * 8192, 8, 8),
    ]  # fmt: skip
    assert [row["loss"] for row in told] == [10.0, None, 1.0, 0.5]
    assert told[3]["memory_reserved_bytes"] == round(49.66 * 2**30)
    run_rollups(lake, ["run_goodput"])
    assert list(ask(lake, "SELECT status, steps, tokens, productive_ns / 1e9 FROM run_goodput")[0].values()) == [
        "finished", 20, 20 * 8 * 8192, 33.0,
    ]  # fmt: skip
    facts = "world_size w, dp_size d, tp_size t, device_name, param_count"
    assert list(ask(lake, f"SELECT {facts} FROM runs")[0].values()) == [8, 4, 2, "NVIDIA H100", 8_030_261_248]
    assert ask(lake, "SELECT DISTINCT value FROM scalars WHERE metric = 'torchtitan/tps'") == [{"value": 5856.0}]


def test_several_ranks_and_a_restart(lake, spool, tmp_path):
    """Ranks that log each have their own rows and their share of tokens; steps that go back are the next attempt's."""
    head = HEAD.format(total=100, start=10, step=1)
    lines = [line(step, 10_000 + 1_000 * step, f"[rank{rank}]:") for step in (10, 20) for rank in (0, 1)]
    again = HEAD.format(total=100, start=40, step=16)
    first = [one.replace("rank0", "rank1") for one in head.splitlines()[-1:]]
    resumed = [one.replace("rank0", "rank1") for one in again.splitlines()[-1:]]
    lines += [again + "\n".join(resumed)] + [line(20, 45_000, f"[rank{rank}]:") for rank in (0, 1)]
    (tmp_path / "log").write_text("\n".join([head + "\n".join(first), *lines]))
    done = imported(lake, spool, "torchtitan", tmp_path / "log", run="r")
    assert done.refused == {}
    told = "attempt, rank, count(*) n, min(step) a, sum(tokens) t, max(ranks) r, min(step_time_s) s"
    assert [list(row.values()) for row in ask(lake, f"SELECT {told} FROM steps GROUP BY 1, 2 ORDER BY 1, 2")] == [
        [0, 0, 20, 1, 20 * 8192, None, 1.0], [0, 1, 20, 1, 20 * 8192, None, 1.0],
        [1, 0, 5, 16, 5 * 8192, None, 1.0], [1, 1, 5, 16, 5 * 8192, None, 1.0],
    ]  # fmt: skip


def test_without_a_beginning(lake, spool, tmp_path):
    """A first line whose begin nothing tells is refused; other ranks' lines without a label are the same ones again."""
    lines = [line(step, 1_000 * step, label) for step in (5, 6, 7) for label in ("", "")]
    (tmp_path / "log").write_text("\n".join(lines))
    done = imported(lake, spool, "torchtitan", tmp_path / "log", run="r")
    assert done.rows["steps"] == 2
    assert done.refused == {
        "the step's begin is not known": 1, "the step is in the log twice": 3,
    }  # fmt: skip


NOISE = "noise, with, commas\n" * 5_000


@pytest.mark.parametrize("asked", ["megatron", "mlperf", "kineto", "sacct"])
def test_the_nearest_format_is_named(spool, tmp_path, asked):
    """Whatever a log of torchtitan is taken for, the refusal says what it looks like, and what was expected."""
    (tmp_path / "log").write_text((NOISE if formats()[asked].among else "") + line(1, 14_000))
    nearest = "it looks like torchtitan: ranklake import torchtitan log"
    with pytest.raises(SourceError, match=re.escape(f"{nearest}; {asked} reads {formats()[asked].recognises}")):
        import_files(asked, [str(tmp_path / "log")], str(spool))


def test_lines_among_others(spool, tmp_path):
    """A log whose first lines come late is read, whatever its beginning looks like."""
    (tmp_path / "log").write_text(NOISE + HEAD.format(total=9, start=10, step=1) + line(1, 14_000))
    assert import_files("torchtitan", [str(tmp_path / "log")], str(spool)).rows["steps"] == 1


def test_a_stage_without_a_loss(lake, spool, tmp_path):
    """Ranks of a pipeline's other stages print -1 for a loss that they do not have. A mesh may be told by names."""
    mesh = "[rank0]:[titan] 2025-06-16 22:00:00,500 - x - INFO - Building device mesh with parallelism: "
    mesh += "pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=4\n"
    lines = [line(step, 10_000 + 1_000 * step).replace(f"{10 / step:7.4f}", "-1.0000") for step in (1, 2)]
    (tmp_path / "log").write_text(mesh + HEAD.format(total=9, start=10, step=1) + "\n".join(lines))
    imported(lake, spool, "torchtitan", tmp_path / "log", run="r")
    assert ask(lake, "SELECT DISTINCT loss, ranks FROM steps") == [{"loss": None, "ranks": 16}]
    facts = "world_size w, dp_size d, tp_size t, pp_size p, ep_size e"
    assert list(ask(lake, f"SELECT {facts} FROM runs")[0].values()) == [16, 4, 2, 2, None]
