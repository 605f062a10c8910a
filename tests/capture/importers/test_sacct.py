# ruff: noqa: E501 - rows as sacct prints them
"""Slurm accounting: states, exit codes, resources and times as sacct prints them."""

import random

import pytest
from importing import ask, imported, rejects
from slurm_rows import HEADER, ROWS

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError
from ranklake.lake.rollups.runner import run_rollups


def test_rows_are_jobs(lake, spool, tmp_path):
    """Each row says what its job got, how long it waited and ran, and what came of it."""
    file = tmp_path / "sacct.txt"
    file.write_text("\n".join([HEADER, *ROWS]) + "\n")
    done = imported(lake, spool, "sacct", file, run="accounting")
    assert (done.rows["jobs"], done.refused) == (6, {})
    jobs = {row["job_id"]: row for row in ask(lake, "SELECT * FROM jobs")}
    whole = jobs["100"]
    assert (whole["gpu_count"], whole["gpu_type"], whole["memory_bytes"]) == (8, "h100", 1 << 40)
    assert (whole["elapsed_s"], whole["queue_time_s"], whole["time_limit_s"]) == (90_030, 300, 172_800)
    assert (whole["gpu_time_s"], whole["energy_joules"], whole["cpu_time_s"]) == (720_240, 3.6e6, 36_000)
    assert (whole["outcome"], whole["exit_code"], whole["exit_signal"]) == ("completed", 0, 0)
    assert whole["attributes"] == '{"AdminComment": "x"}'
    assert (jobs["100.batch"]["max_rss_bytes"], jobs["100.batch"]["cpu_time_s"]) == (12345 * 1024, 35_999.5)
    array = jobs["101_7"]
    assert (array["array_job_id"], array["gpu_count"], array["outcome"], array["exit_code"]) == ("101", 2, "failed", 1)
    het = jobs["102+0"]
    assert (het["state"], het["exit_signal"], het["start_ts"], het["node_list"]) == ("cancelled", 15, None, None)
    assert '"CancelledBy": "1000"' in het["attributes"]
    assert (jobs["103_[1-9%2]"]["outcome"], jobs["103_[1-9%2]"]["state_reason"]) == (None, "Priority")
    assert (jobs["104"]["state"], jobs["104"]["cpu_time_s"]) == ("out_of_memory", 8.25)


def test_a_bar_in_what_people_write_shifts_no_column(lake, spool, tmp_path):
    """Sacct does not escape it: it is in the one text where all other columns fit; in two lines glued to one it is not."""
    named = ROWS[0].replace("|train|", "|sweep|lr=1|", 1)
    noted = ROWS[0].replace("100|", "105|", 1).replace("None|x", "None|see|a|b")
    glued = ROWS[0].replace("100|", "106|", 1) + ROWS[1]
    short = "JobID|JobName|State|End\n107|a|COMPLETED|2024-05-01T10:00:00108|b|FAILED|2024-05-01T10:00:00\n"
    (tmp_path / "sacct.txt").write_text(f"{HEADER}\n{named}\n{noted}\n{glued}\n")
    (tmp_path / "short.txt").write_text(short)
    done = imported(lake, spool, "sacct", tmp_path / "sacct.txt")
    assert (done.rows["jobs"], sum(done.refused.values())) == (2, 1)
    jobs = {row["job_id"]: row for row in ask(lake, "SELECT * FROM jobs")}
    assert (jobs["100"]["job_name"], jobs["100"]["pool"], jobs["100"]["gpu_count"]) == ("sweep|lr=1", "gpu", 8)
    assert jobs["105"]["attributes"] == '{"AdminComment": "see|a|b"}'
    assert sum(imported(lake, spool, "sacct", tmp_path / "short.txt").refused.values()) == 1


def test_what_is_no_job_is_in_quarantine(lake, spool, tmp_path):
    """Rows cut anywhere are jobs or in quarantine, counted; nothing raises."""
    chance = random.Random(7)
    cut = [row[: chance.randrange(1, len(row))] for row in ROWS * 20]
    wrong = ROWS[0].replace("2024-05-01T10:05:00", "yesterday"), ROWS[0].replace("|64|", "|many|", 1)
    file = tmp_path / "sacct.txt"
    file.write_text("\n".join([HEADER, *cut, *wrong, ROWS[0]]) + "\n")
    done = imported(lake, spool, "sacct", file)
    assert done.rows["jobs"] + sum(done.refused.values()) == len(cut) + 3
    assert {"import: Start: not a time", "import: NCPUS: not a whole number"} <= {
        row["reason"] for row in rejects(lake)
    }


def test_steps_hold_nothing_of_their_own(lake, spool, tmp_path):
    """What a job held is counted once, whatever its steps are called: of heterogeneous jobs they have numbers, too."""
    steps = [
        ROWS[0].replace("100|", f"100.{name}|", 1) for name in ("batch", "extern", "interactive", "0", "1+0", "1+1")
    ]
    (tmp_path / "sacct.txt").write_text("\n".join([HEADER, ROWS[0], *steps]) + "\n")
    done = imported(lake, spool, "sacct", tmp_path / "sacct.txt")
    assert (done.rows["jobs"], done.refused) == (7, {})
    run_rollups(lake, ["job_facts"])
    assert ask(lake, "SELECT job_id, gpu_s FROM job_facts") == [{"job_id": "100", "gpu_s": 720_240}]


def test_no_header(spool, tmp_path):
    """Without sacct's header nothing is imported, and what to print is said."""
    file = tmp_path / "sacct.txt"
    file.write_text("JobId|Stat\n1|2\n")
    with pytest.raises(
        SourceError, match=r"the header lacks JobID, State, .*; did you mean 'JobId'\? print it with: sacct"
    ):
        import_files("sacct", [str(file)], str(spool))


def test_elapsed_follows_from_start_and_end(lake, spool, tmp_path):
    """Where no column tells it, it is from start to end, less what was suspended; it stays NULL where one is unknown."""
    file = tmp_path / "sacct.txt"
    file.write_text(
        "JobID|State|Start|End|Suspended|AllocTRES\n"
        "1|COMPLETED|2024-05-01T10:00:00|2024-05-01T10:01:30|00:00:30|gres/gpu=2\n"
        "2|RUNNING|2024-05-01T10:00:00|Unknown||gres/gpu=2\n"
    )
    imported(lake, spool, "sacct", file, run="accounting")
    found = [list(row.values()) for row in ask(lake, "SELECT elapsed_s, gpu_time_s FROM jobs ORDER BY job_id")]
    assert found == [[60.0, 120.0], [None, None]]


def test_a_job_without_gpus_in_its_tres_has_none(lake, spool, tmp_path):
    """AllocTRES leaves out what is none, of clusters that count GPUs; what a part of a GPU is worth nobody knows."""
    (tmp_path / "sacct.txt").write_text(
        "JobID|Cluster|Submit|Start|End|State|NNodes|NCPUS|AllocTRES|ReqTRES\n"
        "1|a|2026-03-01T08:00:00|2026-03-01T08:00:00|2026-03-04T08:00:00|COMPLETED|1|12|cpu=12,gres/gpu=2,node=1|\n"
        "2|a|2026-03-02T06:00:00|2026-03-02T06:00:00|2026-03-03T18:00:00|COMPLETED|1|8|cpu=8,node=1|\n"
        "3|a|2026-03-02T06:00:00|Unknown|2026-03-03T18:00:00|CANCELLED|1|8||gres/gpu=4\n"
        "4|b|2026-03-02T06:00:00|2026-03-02T06:00:00|2026-03-03T18:00:00|COMPLETED|1|8|cpu=8,node=1|\n"
        "5|a|2026-03-02T06:00:00|2026-03-02T06:00:00|2026-03-03T18:00:00|COMPLETED|1|8|cpu=8,gres/gpu=0.5|\n"
        "6|a|2026-03-02T06:00:00|2026-03-02T07:00:00|2026-03-02T07:00:00|CANCELLED by 1|1|8|cpu=8,gres/gpu=1|\n"
    )
    done = imported(lake, spool, "sacct", tmp_path / "sacct.txt")
    assert done.refused == {"AllocTRES: gres/gpu is not a whole number": 1}
    run_rollups(lake, ["cluster_hourly"])
    told = {row["job_id"]: row["gpu_count"] for row in ask(lake, "SELECT job_id, gpu_count FROM jobs")}
    assert told == {"1": 2, "2": 0, "3": None, "4": None, "6": 1}
    sums = "sum(gpu_delivered_s) / 3600 h, sum(queue_time_count) n, sum(queue_time_sum_s) s, sum(queue_job_s) q"
    of = "FROM cluster_hourly WHERE scope = 'cluster' AND cluster = 'a'"
    # what was cancelled in the queue never started
    assert ask(lake, f"SELECT {sums} {of}") == [{"h": 144, "n": 2, "s": 0, "q": 37 * 3600}]


def test_accounting_is_no_run(lake, spool, tmp_path):
    """Files of a scheduler's jobs stand among its jobs, and not among runs as one that trained nothing."""
    for number, hour in enumerate(("08", "12")):
        row = f"{number}|2026-03-01T{hour}:00:00|2026-03-01T{hour}:00:00|2026-03-01T{hour}:30:00|COMPLETED"
        (tmp_path / f"jobs{number}.txt").write_text(f"JobID|Submit|Start|End|State\n{row}\n")
    imported(lake, spool, "sacct", tmp_path / "jobs*.txt", run="accounting")
    run_rollups(lake)
    assert ask(lake, "SELECT count(*) AS n FROM jobs") == [{"n": 2}]
    for table in ("runs", "run_summary", "run_goodput", "goodput_daily"):
        assert ask(lake, f"SELECT * FROM {table}") == [], table


def test_resources_of_strange_sites(lake, spool, tmp_path):
    """A share of a GPU is none of a known number; counts may be in K; a type of GPU may begin with digits."""
    times = "COMPLETED|2024-05-01T10:00:00|2024-05-01T10:00:00|2024-05-01T11:00:00"
    rows = [
        ("1|1|cpu=2,gres/mps=25,node=1|", None, "mps", 1), ("2|1K|gres/gpu:a100=4096|", 4_096, "a100", 1_024),
        ("3|1|cpu=2,gres/shard=4|", None, "shard", 1), ("4|1||gpu:2080ti:4", 4, None, 1),
        ("5|1||gpu:tesla_v100:2(S:0-1)", 2, None, 1), ("6|1|cpu=2|", 0, None, 1), ("7|1||", 0, None, 1),
    ]  # fmt: skip
    lines = ["JobIDRaw|NNodes|AllocTRES|AllocGRES|State|Submit|Start|End|NCPUS"]
    (tmp_path / "sacct.txt").write_text("\n".join([*lines, *(f"{row}|{times}|2" for row, *_ in rows)]) + "\n")
    assert imported(lake, spool, "sacct", tmp_path / "sacct.txt").refused == {}
    found = ask(lake, "SELECT gpu_count, gpu_type, node_count FROM jobs ORDER BY job_id")
    assert [tuple(row.values()) for row in found] == [tuple(told) for _, *told in rows]
    run_rollups(lake, ["cluster_hourly"])
    held = {row["job_id"]: row["gpu_s"] for row in ask(lake, "SELECT job_id, gpu_s FROM job_facts")}
    assert (held["1"], held["3"], held["4"], held["6"]) == (None, None, 4 * 3_600, 0)
    first = "SELECT gpu_delivered_s d FROM cluster_hourly WHERE scope = 'cluster' ORDER BY hour LIMIT 1"
    assert ask(lake, first) == [{"d": None}]
