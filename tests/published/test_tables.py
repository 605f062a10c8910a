"""Published tables, imported by the packaged mappings, give the published figures."""

import pytest
from importing import ask, imported


@pytest.mark.slow
def test_helios(lake, spool, published):
    """GPU-weighted utilization of vc6YE and of all eight virtual clusters over May 2020; each row's ratio as stated."""
    done = imported(lake, spool, "table", published("helios") / "vc*.csv.gz", mapping="helios")
    assert (done.rows, done.refused) == ({"pools": 8 * 44_640, "runs": 1}, {})
    ratio = "sum(gpu_allocated) / sum(gpu_total)"
    assert ask(lake, f"SELECT {ratio} u FROM pools WHERE pool = 'vc6YE'")[0]["u"] == pytest.approx(0.902629, abs=5e-7)
    assert ask(lake, f"SELECT {ratio} u FROM pools")[0]["u"] == pytest.approx(0.717492, abs=5e-7)
    stated = ask(lake, "SELECT DISTINCT gpu_allocated a, gpu_total t, gpu_utilization_ratio u FROM pools")
    assert all(round(row["a"] / row["t"], 3) == pytest.approx(row["u"], abs=1e-7) for row in stated)


def test_stragglers(lake, spool, published):
    """Every operation is a span with its coordinates; times are those of the trace to the microsecond."""
    done = imported(lake, spool, "table", published("stragglers") / "trace-ST.parquet", mapping="straggler-trace")
    assert (done.rows, done.refused) == ({"runs": 1, "spans": 6_784}, {})
    facts = "count(DISTINCT rank) r, count(DISTINCT dp_rank) d, count(DISTINCT pp_rank) p, count(DISTINCT name) n"
    assert ask(lake, f"SELECT {facts} FROM spans") == [{"r": 8, "d": 2, "p": 4, "n": 13}]
    first = "SELECT name, duration_ns, microbatch FROM spans WHERE span_id = 0"
    assert ask(lake, first) == [{"name": "backward-compute", "duration_ns": 138_679_683, "microbatch": 0}]
    assert ask(lake, "SELECT DISTINCT microbatch FROM spans WHERE name = 'forward-send'") == [{"microbatch": None}]


def test_worker_steps(lake, spool, published):
    """Each job is a run and each worker a rank; a duplicate stays one, for the checks to find."""
    done = imported(lake, spool, "table", published("worker_steps") / "job_*_norm.csv", mapping="worker-steps")
    assert done.runs == [f"job_{number}_norm" for number in range(1, 5)]
    assert done.refused == {}
    workers = ask(lake, "SELECT run, count(DISTINCT rank) n FROM steps GROUP BY run ORDER BY run")
    assert [row["n"] for row in workers] == [10, 10, 10, 10]
    twice = "SELECT run FROM steps GROUP BY run, rank, step HAVING count(*) > 1"
    assert ask(lake, twice) == [{"run": "job_2_norm"}]
