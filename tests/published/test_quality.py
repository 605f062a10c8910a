"""What checks say of published tables: the faults that are known to be in them, and nothing else that is critical."""

from datetime import date

import pytest
from importing import imported

from ranklake.quality.check import run_checks

pytestmark = pytest.mark.slow


def failed(report, *severities):
    """Return (table, date, check) of what failed with one of these severities."""
    return {
        (one.table, one.partition_date, one.check_id)
        for one in report.unsound
        if not severities or one.severity in severities
    }


def test_the_silent_day_of_a_month_is_found(lake, spool, published):
    """Of a month of eight virtual clusters, the day on which none has a job is critical, and nothing else is."""
    imported(lake, spool, "table", published("helios") / "helios" / "vc*.csv.gz", mapping="helios")
    report = run_checks(lake, ["pools"])
    assert failed(report, "critical") == {("pools", date(2020, 5, 10), "fleet_not_idle_all_day")}
    assert not [one for one in report.results if one.status == "errored"]


def test_the_capacity_jump_of_a_month_is_found(lake, spool, published, tmp_path):
    """The day on which one virtual cluster is said to have all devices is critical, and nothing else is."""
    lines = (published("helios") / "helios" / "Earth_gpu_number.csv").read_text().splitlines()
    some = tmp_path / "Earth_gpu_number.csv"
    some.write_text("\n".join([lines[0], *(line for line in lines if line[:7] in {"2020-04", "2020-05"})]) + "\n")
    imported(lake, spool, "table", some, mapping="helios-capacity")
    report = run_checks(lake, ["pools"])
    assert failed(report, "critical") == {("pools", date(2020, 5, 9), "capacity_stays")}


def test_what_is_wrong_with_a_job_of_a_trace_is_found(lake, spool, published):
    """Of four jobs the duplicate and the ragged times of one are told, by its name."""
    imported(
        lake, spool, "table", published("worker_steps") / "worker_steps" / "job_*_norm.csv", mapping="worker-steps"
    )
    report = run_checks(lake, ["steps"])
    told = {one.check_id: one for one in report.unsound}
    assert told["steps_unique"].rows_failed == 1
    assert "job_2_norm" in told["steps_of_all_ranks"].observed
    assert failed(report, "critical") == set()
