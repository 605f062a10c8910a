"""What checks say of published tables: the faults that are known to be in them, and nothing else that is critical."""

import gzip
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


def spoilt_jobs(folder, source):
    """Write a job's file as it is, with a line twice, and with half of a worker's lines; return the files."""
    head, *lines = source.read_text().splitlines()
    worker = [line for line in lines if line.split(",")[1] == "3"]
    lost = set(worker[len(worker) // 2 :])
    texts = {
        "clean_norm": lines,
        "twice_norm": [*lines, lines[7]],
        "short_norm": [line for line in lines if line not in lost],
    }
    for name, some in texts.items():
        (folder / f"{name}.csv").write_text("\n".join([head, *some]) + "\n")
    return len(lost), [folder / f"{name}.csv" for name in texts]


def test_what_is_planted_in_a_job_is_found(lake, spool, published, tmp_path):
    """A repeated line and a worker that goes silent are told by their runs; the clean job has nothing above info."""
    lost, files = spoilt_jobs(tmp_path, published("worker_steps") / "worker_steps" / "job_1_norm.csv")
    imported(lake, spool, "table", *files, mapping="worker-steps")
    report = run_checks(lake)
    told = {one.check_id: one for one in report.unsound if one.severity != "info"}
    assert set(told) == {"steps_unique", "steps_of_all_ranks"}
    assert (told["steps_unique"].column, told["steps_unique"].rows_failed) == ("run,attempt,rank,step", 1)
    assert (told["steps_of_all_ranks"].column, told["steps_of_all_ranks"].severity) == ("rank,step", "warning")
    assert told["steps_of_all_ranks"].rows_failed == lost
    assert f"run short_norm, attempt 0: rank 3 lacks {lost}" in told["steps_of_all_ranks"].observed
    assert "clean_norm" not in told["steps_of_all_ranks"].observed


def spoilt_minute(line):
    """Return the lines that stand for a line of a virtual cluster: each date from 2 May on has a fault of its own."""
    values = line.split(",")
    day, hour = values[0][:10], values[0][11:13]
    if day == "2020-05-02" and hour == "07":
        return []
    if day == "2020-05-03" and hour == "08":
        values[8] = "900"
    if day == "2020-05-04":
        values[11] = str(float(values[11]) * 100)
    return [",".join(values)] * (2 if day == "2020-05-05" and hour == "09" else 1)


def test_what_is_planted_in_a_month_is_found(lake, spool, published, tmp_path):
    """A gap, more devices than there are, percent and repeated lines, each on its date; the dates around are clean."""
    for name, spoil in (("vc6YE", spoilt_minute), ("vc3sl", lambda line: [line])):
        with gzip.open(published("helios") / "helios" / f"{name}.csv.gz", "rt") as file:
            head, *lines = file.read().splitlines()
        some = [one for line in lines if line < "2020-05-07" for one in spoil(line)]
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *some]) + "\n")
    imported(lake, spool, "table", tmp_path / "*.csv", mapping="helios")
    report = run_checks(lake, ["pools"])
    told = {
        (one.partition_date.day, one.check_id, one.column, one.severity)
        for one in report.unsound
        if one.severity != "info"
    }
    assert told >= {
        (2, "snapshots_without_gaps", "ts", "warning"),
        (3, "allocated_within_total", "gpu_allocated,gpu_total", "error"),
        (4, "utilization_unit", "gpu_utilization_ratio", "warning"),
        (5, "snapshots_once", "run,cluster,pool,ts", "warning"),
    }
    assert {day for day, *_ in told} == {2, 3, 4, 5}
    assert "errored" not in {one.status for one in report.results}
    (gap,) = (one for one in report.unsound if one.check_id == "snapshots_without_gaps")
    assert "vc6YE" in gap.observed
    assert "vc3sl" not in gap.observed
