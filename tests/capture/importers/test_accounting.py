# ruff: noqa: E501 - records as schedulers write them
"""Accounting of PBS, Grid Engine, LSF, and the Standard Workload Format: times, GPUs, outcomes."""

import csv
import random
import re
from datetime import UTC, datetime

import pytest
from importing import ask, imported, rejects

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError
from ranklake.lake.rollups.runner import run_rollups

PBS = """\
12/07/2020 01:00:00;Q;9.srv;queue=gpu
12/07/2020 01:00:38;E;3073070.srv;user=ann group=ann project=p1 jobname=my job queue=gpu ctime=1607291960 qtime=1607291960 etime=1607291960 start=1607291966 exec_host=h2/0*0 exec_vnode=(h2[1]:mem=190000128kb:ngpus=2:ncpus=24+h2[0]:ngpus=2:ncpus=24) Resource_List.mem=185547mb Resource_List.ncpus=48 Resource_List.ngpus=4 Resource_List.nodect=1 Resource_List.select=1:mpiprocs=48:ncpus=48:ngpus=4:mem=185547mb Resource_List.walltime=10:00:00 session=96928 end=1607328038 Exit_status=271 resources_used.cput=03:23:13 resources_used.ncpus=48 resources_used.walltime=10:01:06 run_count=2
12/07/2020 01:00:40;E;7[3].srv;user=bob account=a1 jobname=x queue=gpu ctime=1607291960 start=1607291970 end=1607291980 exec_host=n1/0-3+n2/0*5 Resource_List.select=2:ncpus=4:ngpus=8+1:ncpus=1 Exit_status=0
12/07/2020 01:00:41;E;8.srv;user=bob jobname=cpu queue=c ctime=1607291960 start=1607291970 end=1607291980 Resource_List.ncpus=4 Exit_status=-29
12/07/2020 01:00:42;D;3073070.srv;requestor=ann@h
12/07/2020 01:00:43;S;10.srv;user=bob jobname=y queue=c ctime=1607291960 start=1607291970 Resource_List.ngpus=1
12/07/2020 01:00:44;E;11.srv;user=bob jobname=y queue=c ctime=1607291960 start=1607291990 end=1607291970 Exit_status=0
12/07/2020 01:00:45;E;12.srv;user=bob user=root start=1607291990 end=1607291970 Exit_status=0
"""
SGE = """\
# Version: 8.1.9
gpu.q:n1:users:ann:train:22947:sge:0:1310761621:1311095354:1311095414:0:0:60:60.05:0.08:104188.0:0:0:0:0:28001:0:0:0.0:24:0:0:0:41:549:proj:dept:NONE:1:3:60.13:7.33:0.000044:-l gpu=2,h_rt=36000:0.0:NONE:189153280.0:0:0
gpu.q:n1:users:ann:train:22948:sge:0:1310761621:1311095354:1311095414:100:137:60:60.05:0.08:104188.0:0:0:0:0:28001:0:0:0.0:24:0:0:0:41:549:NONE:dept:mpi:16:0:60.13:7.33:0.000044:-l gpu=2 -pe mpi 16:0.0:NONE:189153280.0:0:0
gpu.q:n2:users:ann:train:22948:sge:0:1310761621:1311095354:1311095414:0:0:60:60.05:0.08:104188.0:0:0:0:0:28001:0:0:0.0:24:0:0:0:41:549:NONE:dept:mpi:16:0:60.13:7.33:0.000044:-pe mpi 16:0.0:1.n2:189153280.0:0:0
c.q:n3:users:bob:cpu:22949:sge:0:1310761621:0:0:37:0:0:0:0:0:0:0:0:0:0:0:0:0:0:0:0:0:0:0:NONE:dept:NONE:1:0:0:0:0:-l h_rt=1:0.0:NONE:0:0:0
"""
SWF = """\
; Version: 2.2
; Computer: Cray XT5
; UnixStartTime: 1269968684
; MaxJobs: 4
     1        0     10    100   64 90.5 -1  64  200 -1 1 7 1 -1 2 -1 -1 -1
     2       20     -1     -1   -1 -1   -1  32  200 -1 5 7 1 -1 2 -1 1 -1
     3       30      5     60   16 -1   -1  16   50 -1 0 8 1 -1 2  4 -1 -1
     4       30      5     10   16 -1   -1  16   50 -1 2 8 1 -1 2  4 -1 -1
     5       30      5     ten
"""


def lsf(**changes):
    """Return a JOB_FINISH of a job on one host with two GPUs, or one that differs."""
    fields = {
        "start": 1389642771, "resources": "select[ngpus>0] rusage[ngpus_physical=2]", "hosts": '1 "8*h1"', "status": 64,
        "name": '"a ""quoted"" name"', "exit": 0, "index": 0, "info": 0,
    } | changes  # fmt: skip
    rusage = "100.5 2.5 1024 " + "0 " * 16
    return (
        f'"JOB_FINISH" "10.1" 1389683139 404717 22025 33882739 8 1389642318 0 0 {fields["start"]} "ann" "gpu" '
        f'"{fields["resources"]}" "" "" "login" "/data/ann" "" "%J.out" "%J.err" "1.404717" 0 {fields["hosts"]} '
        f'{fields["status"]} 60.0 {fields["name"]} "sleep 1;#BSUB ""x""" {rusage}"" "proj" {fields["exit"]} 8 "" "" '
        f'{fields["index"]} 2048 0 "" "" "" "" 0 "" {fields["info"]} "" -1\n'
    )


def jobs_of(lake):
    return {row["job_id"]: row for row in ask(lake, "SELECT * FROM jobs")}


def test_pbs(lake, spool, tmp_path):
    """GPUs are those of the vnodes, else those asked for; signals, deletions and limits are told apart."""
    (tmp_path / "pbs").write_text(PBS)
    done = imported(lake, spool, "pbs", tmp_path / "pbs")
    assert done.refused == {"it ended before it started": 1, "a field has two values": 1}
    assert done.notes == ["records that end or start no job are left out: D 1, Q 1"]
    jobs = jobs_of(lake)
    deleted, array, late, runs = (jobs[name] for name in ("3073070.srv", "7[3].srv", "8.srv", "10.srv"))
    assert (deleted["gpu_count"], deleted["gpu_requested_count"], deleted["cpu_count"]) == (4, 4, 48)
    assert (deleted["outcome"], deleted["exit_signal"], deleted["exit_code"]) == ("cancelled", 15, None)
    assert (deleted["job_name"], deleted["team"], deleted["restart_count"]) == ("my job", "p1", 1)
    assert (deleted["queue_time_s"], deleted["elapsed_s"], deleted["gpu_time_s"]) == (6, 36_072, 4 * 36_072)
    assert (deleted["memory_bytes"], deleted["cluster"], deleted["time_limit_s"]) == (185_547 << 20, "srv", 36_000)
    assert (array["array_job_id"], array["gpu_count"], array["cpu_count"]) == ("7[].srv", 16, 9)
    assert (array["node_list"], array["node_count"], array["outcome"]) == ("n1,n2", 2, "completed")
    assert (late["state"], late["outcome"], late["gpu_count"]) == ("timeout", "failed", 0)
    assert (runs["state"], runs["outcome"], runs["end_ts"], runs["gpu_count"]) == ("running", None, None, 1)


def test_grid_engine(lake, spool, tmp_path):
    """What a GPU is asked for by a job of many slots is not known; tasks of a parallel job are in their job."""
    (tmp_path / "accounting").write_text(SGE)
    done = imported(lake, spool, "sge", tmp_path / "accounting")
    assert (done.rows["jobs"], done.refused) == (3, {})
    assert done.notes == ["1 tasks of parallel jobs are left out: their jobs count them"]
    jobs = jobs_of(lake)
    task, parallel, waiting = jobs["22947_3"], jobs["22948"], jobs["22949"]
    assert (task["gpu_count"], task["gpu_time_s"], task["array_job_id"]) == (2, 120, "22947")
    assert (task["team"], task["pool"], task["queue_time_s"]) == ("proj", "gpu.q", 1311095354 - 1310761621)
    assert (parallel["gpu_count"], parallel["gpu_time_s"], parallel["cpu_count"]) == (None, None, 16)
    assert (parallel["exit_signal"], parallel["outcome"], parallel["node_list"]) == (9, "failed", None)
    assert (waiting["start_ts"], waiting["state"], waiting["gpu_count"]) == (None, "timeout", None)


def test_lsf(lake, spool, tmp_path):
    """Doubled quotes are text; why a job ended is LSF's own word."""
    text = [
        lsf(), lsf(index=5, exit=256 * 3, status=32, resources="", info=5).replace(" 404717 ", " 2 "),
        lsf(hosts='3 "h1" "h1" "h2"', status=32, exit=9, info=14).replace(" 404717 ", " 3 "),
        lsf(start=0, status=32, exit=256, info=14, hosts="0", resources="").replace(" 404717 ", " 4 "),
        lsf()[:300] + "\n", '"JOB_NEW" "10.1" 1389683139 1\n',
    ]  # fmt: skip
    (tmp_path / "lsb.acct").write_text("".join(text))
    done = imported(lake, spool, "lsf", tmp_path / "lsb.acct")
    assert (done.rows["jobs"], done.refused) == (4, {"the record is cut off": 1})
    jobs = jobs_of(lake)
    first, limit, killed, never = (jobs[name] for name in ("404717", "2[5]", "3", "4"))
    assert (first["job_name"], first["gpu_count"], first["cpu_count"]) == ('a "quoted" name', 2, 8)
    assert (first["queue_time_s"], first["elapsed_s"], first["cpu_time_s"]) == (453, 40_368, 103)
    assert (first["outcome"], first["team"], first["max_rss_bytes"]) == ("completed", "proj", 2048 << 10)
    assert (limit["state"], limit["outcome"], limit["exit_code"], limit["gpu_count"]) == ("timeout", "failed", 3, 0)
    assert (killed["outcome"], killed["exit_signal"], killed["gpu_count"]) == ("cancelled", 9, None)
    assert (killed["node_list"], killed["node_count"]) == ("h1,h2", 2)
    assert (never["start_ts"], never["elapsed_s"], never["gpu_count"]) == (None, None, None)


def test_the_standard_workload_format(lake, spool, tmp_path):
    """Times count from the trace's start; -1 is not known."""
    (tmp_path / "trace.swf").write_text(SWF)
    done = imported(lake, spool, "swf", tmp_path / "trace.swf")
    assert (done.rows["jobs"], done.refused) == (3, {"not eighteen numbers": 1})
    jobs = jobs_of(lake)
    assert jobs["1"]["start_ts"] == datetime.fromtimestamp(1269968684 + 10, UTC)
    assert (jobs["1"]["elapsed_s"], jobs["1"]["cpu_time_s"], jobs["1"]["gpu_count"]) == (100, 90.5 * 64, None)
    assert (jobs["2"]["outcome"], jobs["2"]["start_ts"], jobs["2"]["dependency_of"]) == ("cancelled", None, "1")
    assert (jobs["3"]["outcome"], jobs["3"]["pool"], jobs["3"]["queue_time_s"]) == ("failed", "4", 5)
    assert jobs["1"]["cluster"] == "Cray XT5"


@pytest.mark.parametrize("start", ["749869200", "0 ", "soon"])
def test_a_trace_of_before_2000_counts_from_there(lake, spool, tmp_path, start):
    """As the archive's oldest traces do; no table holds their own times."""
    (tmp_path / "old.swf").write_text(SWF.replace("1269968684", start))
    done = imported(lake, spool, "swf", tmp_path / "old.swf")
    assert "the trace has no UnixStartTime since 2000: times count from 2000-01-01" in done.notes
    assert jobs_of(lake)["1"]["start_ts"] == datetime(2000, 1, 1, 0, 0, 10, tzinfo=UTC)


@pytest.mark.parametrize("kind", ["pbs", "sge", "lsf"])
def test_a_plain_reader_gives_the_same(lake, spool, wild, kind):
    """Records of public repositories: id, user, submission, start and end."""
    file = wild(f"13-hpc-accounting/{kind}_input_accounting-logs.log")
    done = imported(lake, spool, kind, file)
    plain = []
    for line in file.read_text().splitlines():
        if kind == "pbs":
            fields = dict(re.findall(r" ?([A-Za-z_.]+)=(\S*)", line.split(";", 3)[3]))
            plain.append((line.split(";")[2], fields["user"], fields["ctime"], fields["start"], fields["end"]))
        elif kind == "sge":
            fields = line.split(":")
            plain.append((fields[5], fields[3], fields[8], fields[9], fields[10]))
        else:
            fields = next(csv.reader([line], delimiter=" "))
            plain.append((fields[3], fields[11], fields[7], fields[10], fields[2]))
    assert (sum(done.rows.values()), done.refused) == (len(plain), {})
    names = 'job_id, "user", submit_ts, start_ts, end_ts'
    rows = [tuple(row.values()) for row in ask(lake, f"SELECT {names} FROM jobs ORDER BY incarnation, slot")]
    stored = [(*row[:2], *(str(int(at.timestamp())) for at in row[2:])) for row in rows]
    assert sorted(stored) == sorted(plain)


@pytest.mark.parametrize(("kind", "text"), [("pbs", PBS), ("sge", SGE), ("lsf", lsf() + lsf(index=1)), ("swf", SWF)])
def test_lines_cut_anywhere_are_jobs_or_refused(lake, spool, tmp_path, kind, text):
    """Nothing raises, nothing is lost, and the same file again stores nothing twice."""
    chance = random.Random(5)
    whole = text.splitlines()
    cut = [line[: chance.randrange(1, len(line))] for line in whole[4:] * 30 + whole[:2] * 30]
    (tmp_path / "x").write_bytes("\n".join([*whole, *cut]).encode() + b"\n\xff\xfe\n" + "☃;E;1;user=ä\n".encode())
    done = imported(lake, spool, kind, tmp_path / "x")
    assert done.rows["jobs"] >= 2
    assert imported(lake, spool, kind, tmp_path / "x").again == 1
    assert {row["table"] for row in rejects(lake)} == {"jobs"}


def test_each_is_named_where_another_was_asked_for(tmp_path):
    """A refusal says which command reads the file."""
    for kind, text in (("pbs", PBS), ("sge", SGE), ("lsf", lsf()), ("swf", SWF)):
        (tmp_path / kind).write_text(text)
        for asked in ("sacct", "kineto"):
            with pytest.raises(SourceError, match=f"ranklake import {kind} {kind}"):
                import_files(asked, [str(tmp_path / kind)], str(tmp_path / "spool"))


def test_their_gpu_hours_are_in_the_rollups(lake, spool, tmp_path):
    """A job's GPUs and time reach `job_facts`, by queue."""
    (tmp_path / "pbs").write_text(PBS)
    imported(lake, spool, "pbs", tmp_path / "pbs")
    run_rollups(lake, ["job_facts"])
    facts = ask(lake, "SELECT job_id, gpu_count, pool FROM job_facts ORDER BY job_id")
    assert ("3073070.srv", 4, "gpu") in [(row["job_id"], row["gpu_count"], row["pool"]) for row in facts]
