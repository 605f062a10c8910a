"""Published MLPerf logs give the figures of their README, exact in ms."""

import pytest
from importing import ask
from published_lakes import CATEGORIES, gpt3, jobs, lora


@pytest.mark.slow
def test_gpt3_on_512(lake, spool, published):
    """Events, ranks, goodput and steps of GPT-3 on 512 H100."""
    found = gpt3(published("mlperf"), lake, spool)
    assert [found[name] for name in ("events", "steps", "refused", "init_starts", "ranks", "nodes")] == [
        1_086, 288, 0, 512, 512, 64,
    ]  # fmt: skip
    account = ask(lake, f"SELECT {', '.join(f'{name}_ns' for name in CATEGORIES)} FROM goodput")[0]
    ms = {name: value // 10**6 for name, value in account.items()}
    assert ms == {"wall_ns": 252_509 + 2_986_485, "init_ns": 252_509, "productive_ns": 2_746_995,
                  "evaluation_ns": 238_373, "unattributed_ns": 1_117}  # fmt: skip
    assert all(value % 10**6 == 0 for value in account.values())
    assert found["step_median_s"] == pytest.approx(9.493094, abs=1e-6)
    assert found["step_sum_s"] == pytest.approx(2734.3427, abs=1e-4)


def test_lora(lake, spool, published):
    """The ten runs' minutes without best and worst, scaled, are the result."""
    found = lora(published("mlperf"), lake, spool)
    assert found["runs"] == 10
    assert found["result_min"] == pytest.approx(28.1628, abs=5e-5)


def test_accounting(lake, spool, published):
    """GPU hours by hour are those of the jobs, though nearly all jobs name no GPUs."""
    found = jobs(published("published2"), lake, spool)
    assert found["delivered_h"] == pytest.approx(506.9128, abs=5e-5)
    assert found["wait_h"] == pytest.approx(18_829.9292, abs=5e-5)
