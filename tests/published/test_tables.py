"""Published tables, imported by the packaged mappings, give the published figures."""

import pytest
from importing import ask, imported
from published_lakes import helios_capacity, worker_steps


@pytest.mark.slow
def test_helios_capacity(lake, spool, published):
    """Virtual clusters side by side become pools; the day on which one of them has all devices is flagged."""
    found = helios_capacity(published("helios"), lake, spool)
    assert found == {"refused": 0, "days_flagged": 1, "is_9_may": 1, "gpus": 840}


def test_stragglers(lake, spool, published):
    """Every operation is a span with its coordinates; times are those of the trace to the microsecond."""
    trace = published("stragglers") / "stragglers" / "trace-ST.parquet"
    done = imported(lake, spool, "table", trace, mapping="straggler-trace")
    assert (done.rows, done.refused) == ({"runs": 1, "spans": 6_784}, {})
    facts = "count(DISTINCT rank) r, count(DISTINCT dp_rank) d, count(DISTINCT pp_rank) p, count(DISTINCT name) n"
    assert ask(lake, f"SELECT {facts} FROM spans") == [{"r": 8, "d": 2, "p": 4, "n": 13}]
    first = "SELECT name, duration_ns, microbatch FROM spans WHERE span_id = 0"
    assert ask(lake, first) == [{"name": "backward-compute", "duration_ns": 138_679_683, "microbatch": 0}]
    assert ask(lake, "SELECT DISTINCT microbatch FROM spans WHERE name = 'forward-send'") == [{"microbatch": None}]


def test_worker_steps(lake, spool, published):
    """Each job is a run and each worker a rank; a duplicate stays one, for the checks to find."""
    found = worker_steps(published("worker_steps"), lake, spool)
    assert found == {
        "refused": 0, "jobs": 4, "workers": 40, "twice": 1, "twice_in_job_2": 1, "job_2_ragged": True,
    }  # fmt: skip
    workers = ask(lake, "SELECT run, count(DISTINCT rank) n FROM steps GROUP BY run ORDER BY run")
    assert [(row["run"], row["n"]) for row in workers] == [(f"job_{number}_norm", 10) for number in range(1, 5)]
