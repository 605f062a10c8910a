"""Lines of nanotron, MaxText and OLMo as people posted them: steps, their times, and all other values."""

import os

import pytest
from importing import ask, imported

NANOTRON = """\
10/17/2025 16:31:44 [INFO|DP=0|PP=0|TP=0]: [Start training] mbs: 1 | grad_accum: 32
10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: 327281 / 378950 | consumed_tokens: 85.8G | \
elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 11.4K | global_batch_size: 64 | \
lm_loss: 2.38 | lr: 1e-05 | model_tflops_per_gpu: 38.3 | hardware_tflops_per_gpu: 38.3 | grad_norm: 1.25
10/17/2025 16:32:07 [INFO|DP=0|PP=0|TP=0]: iteration: 327282 / 378950 | consumed_tokens: 85.8G | \
elapsed_time_per_iteration_ms: 272 | tokens_per_sec: 22.8K | lm_loss: nan | lr: 1e-05 | grad_norm: 1.22 | \
hd_total_memory_tb: 312G
10/17/2025 16:32:07 [INFO|DP=0|PP=1|TP=0|ip-26-0-160-225]: iteration: 327282 / 378950 | \
elapsed_time_per_iteration_ms: 272 | lm_loss: 2.35
10/17/2025 16:40:00 [INFO|DP=0|PP=0|TP=0]: iteration: 327282 / 378950 | \
elapsed_time_per_iteration_ms: 300 | lm_loss: 2.3
"""
MAXTEXT = """\
System Information: Jax Version: 0.4
completed step: 0, seconds: 31.250, TFLOP/s/device: 24.000, Tokens/s/device: 1572.864, total_weights: 196608, \
loss: 10.901
I0219 19:34:48.976376 136489015797568 metric_logger.py:80] completed step: 1, seconds: 5.667, TFLOP/s/device: 134.924, \
Tokens/s/device: 8672.758, total_weights: 196608, loss: 10.374
completed step: 2, seconds: 2.166, TFLOP/s: 36.739, loss: 2.191
"""
OLMO = """\
    System/Peak GPU Memory (MB)=6,784
2024-08-06 09:59:26.181 node-160750:0  olmo.train:908  INFO    [step=1/739328,epoch=0]
    optim/total_grad_norm=231.7
    train/CrossEntropyLoss=12.18
    train/Perplexity=195,153
    throughput/total_tokens=1,048,576
    System/Peak GPU Memory (MB)=46,911
2024-08-06 10:00:05.520 node-160750:0  olmo.train:908  INFO    [step=2/739328,epoch=0]
    optim/total_grad_norm=0.0002
    train/CrossEntropyLoss=1.7872662283480167e-06
    train/Perplexity=1.000
    throughput/total_tokens=2,097,152
    throughput/device/tokens_per_second=26,668
2024-08-06 10:00:44.815 node-160750:0  olmo.train:908  INFO    [step=3/739328,epoch=0]
    train/CrossEntropyLoss=0.0
2024-08-06 10:00:45.000 node-160750:0  olmo.train:908  INFO    Saving checkpoint
    train/CrossEntropyLoss=7
"""
_STEPS = "SELECT step, step_time_s AS s, loss, lr, grad_norm, non_finite FROM steps ORDER BY attempt, step"


def steps(lake, spool, tmp_path, kind, text):
    """Import a log, and return what came of it and its steps."""
    (tmp_path / "log").write_text(text)
    os.utime(tmp_path / "log", (1_772_000_000, 1_772_000_000))
    done = imported(lake, spool, kind, tmp_path / "log", run="r")
    return done, [tuple(row.values()) for row in ask(lake, _STEPS)]


def test_nanotron(lake, spool, tmp_path):
    """Suffixes of thousands count; another rank's line of the same step is refused; NaN is told as that."""
    done, rows = steps(lake, spool, tmp_path, "nanotron", NANOTRON)
    assert rows == [
        (327281, 11.5, pytest.approx(2.38), pytest.approx(1e-5), 1.25, None),
        (327282, pytest.approx(0.272), None, pytest.approx(1e-5), pytest.approx(1.22), "loss:nan"),
    ]
    assert done.refused == {"the step is in the log twice": 2}
    first = ask(lake, "SELECT ts FROM steps ORDER BY step")[0]["ts"]
    assert f"{first:%Y-%m-%dT%H:%M:%S.%f}" == "2025-10-17T16:31:44.500000"
    values = {row["metric"]: row["value"] for row in ask(lake, "SELECT metric, value FROM scalars WHERE step = 327281")}
    assert (values["nanotron/consumed_tokens"], values["nanotron/global_batch_size"]) == (85.8e9, 64)
    assert ask(lake, "SELECT framework FROM runs") == [{"framework": "nanotron"}]


def test_maxtext(lake, spool, tmp_path):
    """Steps without a time end one after the other, the last when the file was last changed."""
    done, rows = steps(lake, spool, tmp_path, "maxtext", MAXTEXT)
    assert [row[:3] for row in rows] == [
        (0, 31.25, pytest.approx(10.901)), (1, pytest.approx(5.667), pytest.approx(10.374)),
        (2, pytest.approx(2.166), pytest.approx(2.191)),
    ]  # fmt: skip
    assert done.refused == {}
    first = ask(lake, "SELECT ts FROM steps ORDER BY step")[0]["ts"]
    assert first.timestamp() == pytest.approx(1_772_000_000 - 31.25 - 5.667 - 2.166, abs=1e-5)
    values = {row["metric"]: row["value"] for row in ask(lake, "SELECT metric, value FROM scalars WHERE step = 1")}
    assert values == {
        "maxtext/TFLOP/s/device": 134.924, "maxtext/Tokens/s/device": 8672.758, "maxtext/total_weights": 196608.0,
    }  # fmt: skip


def test_olmo(lake, spool, tmp_path):
    """Values below a step's line are the step's; the first step, of which nothing tells when it began, is refused."""
    done, rows = steps(lake, spool, tmp_path, "olmo", OLMO)
    assert [(row[0], row[1], row[2]) for row in rows] == [
        (2, pytest.approx(39.339), pytest.approx(1.7872662e-06)), (3, pytest.approx(39.295), 0.0),
    ]  # fmt: skip
    assert done.refused == {"the step's begin is not known": 1}
    values = {row["metric"]: row["value"] for row in ask(lake, "SELECT metric, value FROM scalars WHERE step = 2")}
    assert values["olmo/throughput/total_tokens"] == 2_097_152


def test_a_restart(lake, spool, tmp_path):
    """Steps that go back are the next attempt's; a log without a step is refused in a line."""
    last = MAXTEXT.splitlines()[-1]
    log = "\n".join([MAXTEXT, last.replace("step: 2", "step: 1"), last])
    done, rows = steps(lake, spool, tmp_path, "maxtext", log)
    assert ([row[0] for row in rows], done.refused) == ([0, 1, 2, 1, 2], {})
    assert [row["attempt"] for row in ask(lake, "SELECT DISTINCT attempt FROM steps ORDER BY 1")] == [0, 1]
