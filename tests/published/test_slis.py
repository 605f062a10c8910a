"""Indicators of the packaged objectives beside a plain computation on the files that were published."""

import csv
import gzip
import json
import re
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from statistics import median

import pytest
from importing import imported

from ranklake.insight.runs.asking import asking
from ranklake.insight.slo.document import packaged_objectives
from ranklake.insight.slo.evaluation import evaluate
from ranklake.lake.rollups.runner import run_rollups


def counts(lake, name, now):
    """Return good and all events of a packaged objective without subjects in the window up to a moment."""
    (status,) = evaluate(asking(lake), packaged_objectives()[name], now)
    assert status.reason == ""
    return int(status.good_count), int(status.total_count)


def within(times, now):
    """Return which of some times are in the window of four weeks."""
    return [now - timedelta(weeks=4) < time <= now for time in times]


def test_jobs_of_a_scheduler(lake, spool, published):
    """Success, preemption and time in the queue, of XDMoD's reference data."""
    data = published("published2") / "published2" / "jobs" / "xdmod_phillips.txt.gz"
    imported(lake, spool, "sacct", data)
    run_rollups(lake, ["job_facts", "run_goodput"])
    with gzip.open(data, "rt") as file:
        rows = [row for row in csv.DictReader(file, delimiter="|") if re.fullmatch(r"\d+(_\d+)?", row["JobID"])]

    def moment(text):
        return None if text in {"Unknown", "None", ""} else datetime.fromisoformat(text).replace(tzinfo=UTC)

    now = max(filter(None, (moment(row["End"]) for row in rows)))
    success, preempted, waits = [], [], []
    for row in rows:
        state, began, end = row["State"].split()[0], moment(row["Start"]), moment(row["End"])
        if state == "CANCELLED" and began == end:
            began = None  # Slurm says of a job that was cancelled in the queue that it started as it ended
        if end is not None and within([end], now)[0]:
            success += [state == "COMPLETED"] * (state != "CANCELLED")
            preempted += [state != "PREEMPTED"] * (began is not None)
        if began is not None and within([began], now)[0]:
            waits.append((began - moment(row["Submit"])).total_seconds() <= 3600)
    for name, events in (("job-success", success), ("preemption-rate", preempted), ("queue-time", waits)):
        assert len(events) > 100
        assert counts(lake, name, now) == (sum(events), len(events)), name


def test_time_to_train(lake, spool, published):
    """Of the ten runs of a benchmark, those within 1.25 times the median from run_start to run_stop."""
    folder = published("mlperf") / "mlperf" / "v4.0" / "NVIDIA__eos_ngc24.04_nemo_llama2_70b_lora"
    imported(lake, spool, "mlperf", folder / "result_*.txt.gz", run="lora")
    run_rollups(lake, ["run_goodput", "run_summary"])
    lengths = []
    for path in sorted(folder.glob("result_*.txt.gz")):
        with gzip.open(path, "rt") as file:
            lines = [json.loads(line.split(":::MLLOG ")[1]) for line in file if ":::MLLOG " in line]
        times = {line["key"]: line["time_ms"] for line in lines if line["key"] in {"run_start", "run_stop"}}
        lengths.append(times["run_stop"] - times["run_start"])
    assert len(lengths) == 10
    good = sum(length <= 1.25 * median(lengths) for length in lengths)
    now = datetime(2024, 5, 20, tzinfo=UTC)
    assert counts(lake, "time-to-train", now) == (good, 10)


@pytest.mark.slow
def test_allocation_by_hour(lake, spool, published):
    """Hours of eight virtual clusters of Helios in which jobs held half of all GPUs."""
    files = sorted((published("helios") / "helios").glob("vc*.csv.gz"))
    imported(lake, spool, "table", *files, mapping="helios")
    run_rollups(lake, ["cluster_hourly"])
    running, every = defaultdict(int), defaultdict(int)
    for path in files:
        with gzip.open(path, "rt") as file:
            for row in csv.DictReader(file):
                running[row["time"][:13]] += int(row["running_gpu_num"])
                every[row["time"][:13]] += int(row["total_gpu_num"])
    hours = {datetime.fromisoformat(f"{text}:00").replace(tzinfo=UTC): text for text in every}
    now = max(hours)
    inside = [text for hour, text in hours.items() if within([hour], now)[0]]
    (status,) = evaluate(asking(lake), packaged_objectives()["allocation"], now)
    assert len(inside) > 600
    assert (status.good_count, status.total_count) == (
        sum(running[text] >= 0.5 * every[text] for text in inside),
        len(inside),
    )


@pytest.mark.slow
def test_time_to_repair(lake, spool, published):
    """Faults of 400 nodes: which of those that ended in the last four weeks took a day at most."""
    data = published("faults") / "faults" / "fault_trace.json"
    imported(lake, spool, "faults", data, run="faults")
    run_rollups(lake, ["node_findings"])
    begun, lengths = defaultdict(list), []
    for event in sorted(json.loads(data.read_text()), key=lambda event: event["event_time"]):
        key = (event["node_id"], *event["fault_type"].values())
        if event["event_type"] == "fault_start":
            begun[key].append(event["event_time"])
        else:
            lengths.append((event["event_time"], event["event_time"] - begun[key].pop(0)))
    last = max(end for end, _ in lengths)
    (ending,) = asking(lake)("SELECT max(end_ts) AS ts FROM node_findings").rows
    late = [length for end, length in lengths if end > last - 28]
    assert len(late) > 10
    assert counts(lake, "repair-time", ending["ts"]) == (sum(length <= 1 for length in late), len(late))
