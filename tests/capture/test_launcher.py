"""Launchers: every rank finds out who it is, and all ranks of a run find the same name."""

import re
import subprocess
import sys

import pytest
from recorded import rows

from ranklake.capture.provenance.launcher import find_launch
from ranklake.capture.provenance.names import SET_RUN, clean, script_name
from ranklake.segments.segment import RUN_NAME

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "my-job",
    "TORCHELASTIC_RESTART_COUNT": "3",
    "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_a/none_b/attempt_3/1/error.json",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_RESTART_COUNT": "2",
    "SLURM_NNODES": "4",
}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
LIGHTNING = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
DEEPSPEED = {"RANK": "3", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "WORLD_SIZE": "4", "CROSS_RANK": "1", "CROSS_SIZE": "2"}
HOROVOD = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1"}
MVAPICH = {"MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_LOCAL_RANK": "0"}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "4711"}


def facts(launch):
    """Return what tests compare."""
    return (launch.launcher, launch.run, launch.rank, launch.world_size, launch.attempt, launch.warning)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, ("torchrun", "my-job", 5, 8, 3, "")),
        (SLURM, ("slurm", "gpt-4711.0", 3, 8, 2, "")),
        ({**SLURM, **TORCHRUN}, ("torchrun", "my-job", 5, 8, 3, "")),
        ({**SLURM, **TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, ("torchrun", "gpt-4711.0", 5, 8, 3, "")),
        ({**OPEN_MPI, "PMIX_NAMESPACE": "prte-1"}, ("mpi", "gpt-prte-1", 2, 4, 0, "")),
        ({**OPEN_MPI, "RANKLAKE_RUN": "mine", "RANKLAKE_ATTEMPT": "4"}, ("mpi", "mine", 2, 4, 4, "")),
        ({**TORCHRUN, "RANKLAKE_RUN": "mine"}, ("torchrun", "mine", 5, 8, 3, "")),
        (BATCH, ("none", "gpt-4711", 0, 1, 0, "")),
        ({**LIGHTNING, "RANKLAKE_RUN": "mine"}, ("lightning", "mine", 1, 2, 0, "")),
        ({**BATCH, **LIGHTNING, "RANKLAKE_RUN": "mine"}, ("lightning", "mine", 1, 2, 0, "")),
        ({**TORCHRUN, "NODE_RANK": "1"}, ("torchrun", "my-job", 5, 8, 3, "")),
        ({**DEEPSPEED, "RANKLAKE_RUN": "mine"}, ("torchrun", "mine", 3, 4, 0, "")),
        ({**HOROVOD, "RANKLAKE_RUN": "mine"}, ("horovod", "mine", 1, 4, 0, "")),
        ({**MVAPICH, "RANKLAKE_RUN": "mine"}, ("mpi", "mine", 2, 4, 0, "")),
    ],
    ids=[
        "torchrun",
        "slurm",
        "torchrun in slurm",
        "no id in slurm",
        "mpi",
        "named",
        "named torchrun",
        "batch",
        "lightning",
        "lightning in a batch script",
        "lightning under torchrun",
        "deepspeed",
        "horovod",
        "mvapich",
    ],
)
def test_each_launcher_is_understood(environ, expected):
    """Rank, world, attempt and name come from the launcher's variables; RANKLAKE_RUN overrides the name."""
    assert facts(find_launch("gpt", environ)) == expected


def test_arguments_come_first():
    """What the caller says overrides everything."""
    launch = find_launch("gpt", TORCHRUN, run="r", rank=0, world_size=2, attempt=9)
    assert facts(launch) == ("torchrun", "r", 0, 2, 9, "")


def test_local_ranks_without_an_id_agree_across_restarts_and_launches_differ():
    """With torchrun's default id, the name is made from what the ranks of one launch on one host share."""
    alone = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1"}
    name = find_launch("gpt", alone).run
    other_rank = "/tmp/torchelastic_a/none_b/attempt_4/0/error.json"
    assert find_launch("gpt", {**alone, "RANK": "0", "TORCHELASTIC_ERROR_FILE": other_rank}).run == name
    later = "/tmp/torchelastic_a/none_c/attempt_0/0/error.json"
    assert find_launch("gpt", {**alone, "TORCHELASTIC_ERROR_FILE": later}).run != name
    assert find_launch("gpt", alone).warning == ""


def test_several_nodes_without_an_id_are_told_to_agree():
    """Nodes that share nothing cannot make up one name; a warning says what to set."""
    assert find_launch("gpt", {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}).warning == SET_RUN
    assert find_launch("gpt", OPEN_MPI).warning == SET_RUN
    assert find_launch("gpt", {}, rank=1, world_size=2).warning == SET_RUN


@pytest.mark.parametrize("name", ["a/b", "x" * 300, "..", "été", " ", "?", "a\nb", "ok.name-1_2"])
def test_names_are_made_to_fit(name):
    """Any text becomes a name that paths and contracts take; different texts stay different."""
    cleaned = clean(name)
    assert RUN_NAME.fullmatch(cleaned)
    assert not cleaned.startswith(".")
    assert cleaned == clean(name) != clean(name + "!")
    assert (cleaned == name) == (name == "ok.name-1_2")


def test_single_processes_get_names_of_their_own():
    """Without a launcher a run is named by job, time and chance."""
    names = {find_launch("gpt", {}).run for _ in range(500)}
    assert len(names) == 500
    assert all(re.fullmatch(r"gpt-\d{8}T\d{6}Z-[0-9a-f]{6}", name) for name in names)


@pytest.mark.parametrize("wrong", [{"rank": 3, "world_size": 3}, {"rank": -1}, {"attempt": -1}])
def test_impossible_ranks_are_refused(wrong):
    """A rank outside of its world is an error for `start` to tell."""
    with pytest.raises(ValueError, match="rank"):
        find_launch("gpt", {}, **wrong)


SCRIPT = """
import os
from ranklake import capture
with capture.start(job="gpt", spool=os.environ["SPOOL"], local_dir=os.environ["LOCAL"]) as run:
    with run.step(run.rank): pass
"""


@pytest.mark.slow
def test_under_a_real_torchrun(tmp_path):
    """Two ranks started by torchrun without an id record one run, each under its rank."""
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(tmp_path / "train.py")]
    environ = {"SPOOL": str(tmp_path / "spool"), "LOCAL": str(tmp_path / "local"), "PATH": "/usr/bin:/bin"}
    subprocess.run(command, env=environ, check=True, capture_output=True, timeout=100)
    found = rows(tmp_path / "spool", "steps")
    assert sorted((row["rank"], row["step"], row["attempt"]) for row in found) == [(0, 0, 0), (1, 1, 0)]
    assert len({row["run"] for row in found}) == 1
    (run,) = rows(tmp_path / "spool", "runs")
    assert (run["launcher"], run["world_size"], run["local_world_size"]) == ("torchrun", 2, 2)


NO_NUMBER = "is not a number from 0 to 999999999"


@pytest.mark.parametrize(
    ("environ", "rank", "said"),
    [
        ({"RANK": "1"}, (0, 1), "RANK is set, and WORLD_SIZE is not: this process is recorded as rank 0 of 1"),
        ({"RANK": "abc1", "WORLD_SIZE": "2"}, (0, 1), f"RANK='abc1' {NO_NUMBER}: this process is recorded as rank 0"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, (0, 1), f"RANK='-1' {NO_NUMBER}"),
        ({"RANK": "1", "WORLD_SIZE": "two"}, (0, 1), f"WORLD_SIZE='two' {NO_NUMBER}"),
        ({"RANK": "9" * 21, "WORLD_SIZE": "2"}, (0, 1), f"RANK='{'9' * 21}' {NO_NUMBER}"),
        ({"PMIX_RANK": "1"}, (0, 1), "PMIX_RANK is set, and OMPI_COMM_WORLD_SIZE is not"),
        ({"RANKLAKE_ATTEMPT": "x1"}, (0, 1), f"RANKLAKE_ATTEMPT='x1' {NO_NUMBER}"),
        ({"RANK": "1", "WORLD_SIZE": "1"}, (1, 2), "rank 1 of 1 cannot be, and is recorded as rank 1 of 2"),
    ],
)
def test_variables_that_make_no_sense_are_told(environ, rank, said):
    """In one line, which says what the process is recorded as; nothing where another source tells the rank."""
    launch = find_launch("gpt", {**environ, "RANKLAKE_RUN": "mine"})
    assert (launch.rank, launch.world_size, launch.attempt) == (*rank, 0)
    assert launch.warning.startswith(said)
    assert "\n" not in launch.warning
    assert find_launch("gpt", environ, run="mine", rank=0, world_size=2, attempt=0).warning == ""


@pytest.mark.parametrize("environ", [{"RANK": "", "WORLD_SIZE": ""}, {"WORLD_SIZE": "2"}, {"SLURM_NTASKS": "8"}])
def test_variables_that_say_nothing_are_not_told(environ):
    """Empty ones, and a number of ranks without a rank, as a shell in an allocation has it."""
    assert find_launch("gpt", {**environ, "RANKLAKE_RUN": "mine"}).warning == ""


@pytest.mark.parametrize(
    ("script", "name"),
    [
        *(("/home/me/train_gpt.py", "train_gpt"), ("train.v2.py", "train.v2"), ("-c", "job"), ("", "job")),
        *(("/x/pkg/__main__.py", "job"), ("/x/ipykernel_launcher.py", "job"), ("/usr/bin/pytest", "job")),
    ],
)
def test_a_job_is_called_as_its_script(monkeypatch, script, name):
    """Runs of two scripts are of two jobs, though neither names one."""
    monkeypatch.setattr("sys.argv", [script, "--lr", "0.1"])
    assert script_name() == name
