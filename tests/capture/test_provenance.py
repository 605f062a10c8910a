"""Provenance: what the row of a run says of its code, its surroundings and its framework, and why it says nothing."""

import argparse
import collections
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
import types
from pathlib import Path

import pytest

from ranklake.capture.provenance import run_record
from ranklake.capture.provenance.environment import allowed_variables, container, lockfile_sha256, packages
from ranklake.capture.provenance.repository import Git, repository_facts
from ranklake.capture.recover import recover
from ranklake.cli import run as ranklake
from tests.support.recorded import rows

TOKEN = "ghp_" + "Zx81kQ0vTn" * 4
IDENTITY = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")


def git(folder, *arguments):
    """Run the real git."""
    command = ["git", *IDENTITY, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60).stdout


@pytest.fixture
def repository(tmp_path):
    """Give a repository with one commit, on a branch, with a remote that holds a token."""
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "trunk")
    (folder / "train.py").write_text("lr = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    git(folder, "remote", "add", "origin", f"https://someone:{TOKEN}@example.org/team/code.git")
    return folder


def row_of(place):
    """Return the only row of the run."""
    (row,) = rows(place.spool, "runs")
    return row


def why(row):
    """Return why columns are missing."""
    return json.loads(row["unavailable"])


def test_a_clean_repository(repository):
    """Commit, branch and remote without its user are there; nothing differs."""
    found = repository_facts(Git(repository, 20), 1000)
    assert found.columns == {
        "git_commit": git(repository, "rev-parse", "HEAD").decode().strip(),
        "git_branch": "trunk",
        "git_remote": "https://example.org/team/code.git",
        "git_dirty": False,
    }
    nothing = "nothing that git tracks is changed"
    absent = ("git_diff_summary", "git_patch", "git_patch_sha256", "git_patch_bytes")
    assert found.unavailable == dict.fromkeys(absent, nothing)
    (repository / "new.py").write_text("x\n")
    found = repository_facts(Git(repository, 20), 1000)
    assert (found.columns["git_dirty"], found.columns["git_diff_summary"]) == (True, "1 untracked")
    assert found.unavailable == dict.fromkeys(absent[1:], nothing)


def test_a_dirty_repository(repository):
    """The difference is there, redacted, with its hash, size and statistics; untracked files are counted."""
    (repository / "train.py").write_text(f'lr = 2\napi_key = "{TOKEN}"\npassword = "swordfish"\n')
    (repository / "new.py").write_text("x\n")
    columns = repository_facts(Git(repository / "..", 20), 1000).columns
    assert columns == {}
    columns = repository_facts(Git(repository, 20), 10_000).columns
    whole = git(repository, "diff", "HEAD", "--full-index")
    assert columns["git_dirty"] is True
    assert columns["git_diff_summary"] == "1 file changed, 3 insertions(+), 1 deletion(-), 1 untracked"
    assert columns["git_patch_sha256"] == hashlib.sha256(whole).hexdigest()
    assert columns["git_patch_bytes"] == len(whole)
    assert columns["git_patch"].startswith("diff --git a/train.py b/train.py\nindex ")
    assert "+lr = 2" in columns["git_patch"]
    assert "[redacted]" in columns["git_patch"]
    assert TOKEN not in columns["git_patch"]
    assert "swordfish" not in columns["git_patch"]


@pytest.mark.slow
def test_a_large_difference_is_cut_and_takes_no_memory(repository):
    """Of 40 MB the beginning is kept, with the hash and size of all; a token across the cut does not come out."""
    kept = 2000
    (repository / "train.py").write_text("a" * (kept - 200) + " " + TOKEN + "\n")
    for number in range(3):
        (repository / f"{number}.py").write_text(("0123456789 " * 8 + "\n") * 150_000)
    git(repository, "add", "--intent-to-add", ".")
    tracemalloc.start()
    try:
        columns = repository_facts(Git(repository, 60), kept).columns
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    whole = hashlib.sha256(git(repository, "diff", "HEAD", "--full-index"))
    assert columns["git_patch_sha256"] == whole.hexdigest()
    assert columns["git_patch_bytes"] > 39_000_000
    assert len(columns["git_patch"]) <= kept + len("\n[cut]")
    assert TOKEN[:12] not in columns["git_patch"]
    assert peak_bytes < 4 << 20


@pytest.mark.slow
def test_a_file_beyond_measure_is_hashed_by_git(repository):
    """A changed file of more than 16 MB stands in the difference by its hash: it is not compared line by line."""
    with (repository / "train.py").open("wb") as file:
        file.truncate(64 << 20)
    columns = repository_facts(Git(repository, 60), 10_000).columns
    blob = git(repository, "hash-object", "train.py").decode().strip()
    assert blob in columns["git_patch"]
    assert columns["git_patch_bytes"] < 1000


def test_git_that_takes_too_long_is_stopped(repository):
    """What git said until then stays; hash and size, which would be of a part, are not available."""
    with (repository / "train.py").open("w") as file:
        for number in range(100_000):
            file.write(f"{number}\n")
    found = repository_facts(Git(repository, 0.0), 1000)
    assert "git_patch_sha256" not in found.columns
    assert set(found.unavailable) >= {"git_patch_sha256", "git_patch_bytes"}
    assert "took more than" in found.unavailable["git_patch_bytes"]


def test_the_end_of_git_is_enough(repository, tmp_path, monkeypatch):
    """Where somebody else holds git's output open, such as a worker forked in that moment, its end is the answer's."""
    real = subprocess.run(["which", "git"], check=True, capture_output=True, text=True).stdout.strip()
    holding = tmp_path / "bin" / "git"
    holding.parent.mkdir()
    holding.write_text(f'#!/bin/sh\nsleep 30 &\n{real} "$@"\n')
    holding.chmod(0o755)
    monkeypatch.setenv("PATH", f"{holding.parent}:{os.environ['PATH']}")
    before = time.monotonic()
    found = repository_facts(Git(repository, 20), 1000)
    assert time.monotonic() - before < 25
    assert found.columns["git_branch"] == "trunk"
    assert set(found.unavailable.values()) == {"nothing that git tracks is changed"}


def test_a_repository_without_commits(tmp_path):
    """There is no commit to differ from; the branch is known."""
    git(tmp_path, "init", "-q", "-b", "trunk")
    found = repository_facts(Git(tmp_path, 20), 1000)
    assert found.columns["git_branch"] == "trunk"
    reason = "the repository has no commits"
    assert found.unavailable["git_commit"] == found.unavailable["git_patch"] == reason


def test_folders_that_git_does_not_speak_of(tmp_path, repository, monkeypatch):
    """No repository, another's repository, no git at all: a reason each, for all columns."""
    assert set(repository_facts(Git(tmp_path, 20), 1).unavailable.values()) == {"not in a git repository"}
    assert set(repository_facts(Git(tmp_path / "gone", 20), 1).unavailable.values()) == {"the folder is gone"}
    if os.getuid() == 0:
        os.chown(repository, 65534, 65534)
        reasons = set(repository_facts(Git(repository, 20), 1).unavailable.values())
        assert reasons == {"git refuses a repository of another owner (safe.directory)"}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert set(repository_facts(Git(repository, 20), 1).unavailable.values()) == {"git is not installed"}


def test_a_changed_submodule(repository, tmp_path):
    """What differs in a submodule is part of the difference."""
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "model.py").write_text("depth = 1\n")
    git(inner, "add", ".")
    git(inner, "commit", "-qm", "first")
    git(repository, "submodule", "--quiet", "add", str(inner), "lib")
    git(repository, "commit", "-qam", "submodule")
    (repository / "lib" / "model.py").write_text("depth = 2\n")
    columns = repository_facts(Git(repository, 20), 10_000).columns
    assert columns["git_dirty"] is True
    assert "+depth = 2" in columns["git_patch"]


def test_the_row_tells_where_the_code_was(place, repository, monkeypatch):
    """A run's row, of which there is one, has what takes long as well as what is known at once."""
    (repository / "uv.lock").write_text("lock")
    (repository / "src").mkdir()
    monkeypatch.chdir(repository / "src")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "gpu")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")
    place.start(tp_size=2, pp_size=1, config={"lr": 1}).close()
    row = row_of(place)
    assert row["git_commit"] == git(repository, "rev-parse", "HEAD").decode().strip()
    assert row["lockfile_sha256"] == hashlib.sha256(b"lock").hexdigest()
    assert json.loads(row["packages"])["pytest"] == pytest.__version__
    assert (row["tp_size"], row["pp_size"], row["dp_size"], row["pool"]) == (2, 1, None, "gpu")
    assert json.loads(row["environment"])["SLURM_JOB_PARTITION"] == "gpu"
    assert "python" in row["command_line"]
    assert "hunter2" not in json.dumps(row, default=str)
    assert "git_commit" not in why(row)


def test_a_credential_across_the_cut_of_a_name_does_not_come_out(place):
    """It is redacted before the name is cut, for half of one looks like nothing; so with the run named after it."""
    with place.start(job=f"{'j' * 236} {TOKEN}", run=None) as run:
        pass
    shown = row_of(place)["job"]
    assert TOKEN[:8] not in shown + run.name
    assert shown.endswith("[redacted]")


def test_a_run_of_no_length_has_its_row_though_git_hangs(place, repository, tmp_path, monkeypatch):
    """Neither starting nor ending waits for git for long: the row says that there was no time."""
    hang = tmp_path / "bin" / "git"
    hang.parent.mkdir()
    hang.write_text("#!/bin/sh\nexec sleep 60\n")
    hang.chmod(0o755)
    monkeypatch.chdir(repository)
    monkeypatch.setenv("PATH", f"{hang.parent}:{os.environ['PATH']}")
    before = time.monotonic()
    run = place.start()
    assert time.monotonic() - before < 40
    run.close()
    assert time.monotonic() - before < 55
    row = row_of(place)
    assert row["git_commit"] is None
    assert why(row)["git_commit"] == why(row)["packages"] == run_record.NO_TIME


def test_a_killed_run_has_its_row(tmp_path):
    """The row is on its way before `start` returns, and whole whenever the process dies."""
    script = (
        "import os, sys; from ranklake import capture\n"
        "run = capture.start(run='r', local_dir=sys.argv[1], spool=sys.argv[2]); os.kill(os.getpid(), 9)"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path / "local"), str(tmp_path / "spool")]
    assert subprocess.run(arguments, check=False, timeout=60).returncode == -9
    recover(tmp_path / "local", str(tmp_path / "spool"))
    (row,) = rows(tmp_path / "spool", "runs")
    assert row["world_size"] == 1
    assert row["unavailable"]


def test_the_row_is_sealed_once_and_counted_once(place):
    """Written twice in one slot, it is one row, recorded and sealed; flushing makes it final."""
    run = place.start()
    for thread in threading.enumerate():
        if thread.name == "ranklake-facts":
            thread.join(120)
    assert run.flush()
    row = row_of(place)
    assert [column for column, reason in why(row).items() if reason == run_record.NO_TIME] == []
    run.close()
    assert len(rows(place.spool, "runs")) == 1
    assert run.gaps() == {}


@pytest.mark.slow
def test_what_is_imported_after_the_start_is_told(tmp_path):
    """A seed, flags and versions of a framework that is imported later are in the row."""
    script = (
        "import sys; from ranklake import capture\n"
        "run = capture.start(run='r', local_dir=sys.argv[1], spool=sys.argv[2])\n"
        "import torch; torch.manual_seed(7); torch.use_deterministic_algorithms(True)\n"
        "torch.backends.cudnn.benchmark = True\n"
        "run.close()"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path / "local"), str(tmp_path / "spool")]
    subprocess.run(arguments, check=True, timeout=120)
    (row,) = rows(tmp_path / "spool", "runs")
    flags = json.loads(row["determinism"])
    assert (row["framework"], row["seed"], row["deterministic"]) == ("torch", 7, True)
    assert (flags["cudnn_benchmark"], flags["torch_is_unseeded"]) == (True, False)
    assert len(flags["python_random_sha256"]) == 64
    assert row["cuda_version"] or why(row)["cuda_version"] == "the framework was built without CUDA"


def test_a_device_mesh_tells_the_topology(place):
    """Sizes of named dimensions of a real mesh; dimensions of one kind are multiplied."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=12, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2, 3, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
        place.start(mesh=mesh).close()
    finally:
        torch.distributed.destroy_process_group()
    row = row_of(place)
    assert (row["dp_size"], row["tp_size"], row["pp_size"]) == (6, 2, None)


def test_only_variables_of_the_list_are_looked_at():
    """Others are left out, however harmless; those on the list are redacted."""
    given = {"RANK": "1", "HOME": "/home/x", "HF_TOKEN": "x", "SLURM_JWT": "x", "NCCL_IB_HCA": TOKEN}
    assert allowed_variables(given) == {"RANK": "1", "NCCL_IB_HCA": "[redacted]"}


def test_containers(tmp_path):
    """The image is what variables or Podman say; a container that says nothing is told from none."""
    digest = "sha256:" + "ab" * 32
    assert container({}, tmp_path) == ({}, "no container was found")
    given = {"RANKLAKE_CONTAINER_IMAGE": f"user:pass@registry/x@{digest}"}
    assert container(given, tmp_path)[0]["container_image_digest"] == digest
    (tmp_path / ".dockerenv").touch()
    assert container({"RANKLAKE_CONTAINER_IMAGE": f"python:3.12@{digest}"}, tmp_path)[0] == {
        "container_image": f"python:3.12@{digest}",
        "container_image_digest": digest,
    }
    assert container({"RANKLAKE_CONTAINER_IMAGE": "docker://me:hunter2@host/x"}, tmp_path)[0] == {
        "container_image": "docker://host/x"
    }
    columns, reason = container({}, tmp_path)
    assert columns == {}
    assert "RANKLAKE_CONTAINER_IMAGE" in reason
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".containerenv").write_text('engine="podman-5"\nimage="docker.io/library/python:3.12"\n')
    assert container({}, tmp_path)[0] == {"container_image": "docker.io/library/python:3.12"}


def test_lock_files(tmp_path):
    """The first of the known names in the nearest folder counts."""
    (tmp_path / "requirements-dev.txt").write_text("a")
    assert lockfile_sha256([tmp_path / "none", tmp_path]) == hashlib.sha256(b"a").hexdigest()
    (tmp_path / "uv.lock").write_text("b")
    assert lockfile_sha256([tmp_path]) == hashlib.sha256(b"b").hexdigest()


def test_packages_are_those_that_metadata_lists():
    """Names and versions agree with `importlib.metadata`."""
    from importlib.metadata import distributions

    found = packages(tuple(sys.path))
    known = {one.metadata["Name"].replace("_", "-").lower(): one.version for one in reversed(list(distributions()))}
    assert {name.replace(".", "-"): version for name, version in found.items()} == {
        name.replace(".", "-"): version for name, version in known.items()
    }
    assert Path(pytest.__file__).exists()


@dataclasses.dataclass
class Held:
    """Hyperparameters as users hold them."""

    lr: float = 0.1
    api_key: str = "hunter2"


class Broken(dict):
    """A mapping that raises."""

    def items(self):
        """Raise."""
        raise RuntimeError("broken")


def test_hyperparameters_are_told_by_name_however_they_are_held(place):
    """Mappings of all kinds, what argparse gives, dataclasses, within each other; secrets go by their names."""
    held = {"lr": 0.1, "api_key": "hunter2"}
    kinds = [types.MappingProxyType(held), collections.UserDict(held), types.SimpleNamespace(**held), Held(), held]
    place.start(config=argparse.Namespace(**held, kinds=kinds)).close()
    (row,) = rows(place.spool, "runs")
    shown = {"lr": 0.1, "api_key": "[redacted]"}
    assert json.loads(row["config"]) == {**shown, "kinds": [shown] * len(kinds)}


def test_a_configuration_that_raises_costs_the_configuration_alone(place):
    """Of the run all else is recorded."""
    run = place.start(config={"lr": 1, "sub": Broken(token="hunter2")})
    with run.step(0):
        pass
    run.close()
    (row,) = rows(place.spool, "runs")
    assert "hunter2" not in row["config"]
    assert len(rows(place.spool, "steps")) == 1


class Counted(list):
    """Counts how many of its items are looked at."""

    looked_at = 0

    def __iter__(self):
        for item in super().__iter__():
            self.looked_at += 1
            yield item


def test_of_a_huge_configuration_so_much_is_kept_as_takes_no_time(place):
    """The rest is not looked at; the row says in both places that there is more."""
    ids, names = Counted(range(1_000_000)), Counted({"name": "x" * 50, "lr": 0.1} for _ in range(20_000))
    place.start(config={"lr": 0.1, "names": names, "ids": ids, "vocabulary": "ab c" * 1_000_000}).close()
    (row,) = rows(place.spool, "runs")
    config = json.loads(row["config"])
    assert config["lr"] == 0.1
    assert config["names"][0] == {"name": "x" * 50, "lr": 0.1}
    assert (config["names"][-1], config["[…]"]) == ("[…]", "more than is kept")
    assert len(row["config"]) < 1 << 18
    assert "more than is kept" in json.loads(row["unavailable"])["config"]
    assert ids.looked_at + names.looked_at < 10_000


RESOURCE = "k8s.cluster.name=otel, deployment.environment=staging,cloud.region=eu%2Dwest%2D1,half,=x"


@pytest.mark.parametrize(
    ("settings", "file", "variables", "expected"),
    [
        ({}, "", {}, (None, None, None)),
        ({}, "", {"SLURM_CLUSTER_NAME": "slurm"}, ("slurm", None, None)),
        (
            {},
            "",
            {"SLURM_CLUSTER_NAME": "slurm", "OTEL_RESOURCE_ATTRIBUTES": RESOURCE},
            ("otel", "staging", "eu-west-1"),
        ),
        ({}, "cluster = 'file'\nregion = 'here'", {"SLURM_CLUSTER_NAME": "slurm"}, ("file", None, "here")),
        (
            {},
            "cluster = 'file'",
            {"RANKLAKE_CLUSTER": "one", "OTEL_RESOURCE_ATTRIBUTES": RESOURCE},
            ("one", "staging", "eu-west-1"),
        ),
        (
            {"deployment_environment": "dev"},
            "",
            {"RANKLAKE_DEPLOYMENT_ENVIRONMENT": "prod", "RANKLAKE_REGION": "r"},
            (None, "dev", "r"),
        ),
        ({"region": f"at {TOKEN}"}, "", {"AWS_REGION": "us-east-1"}, (None, None, "at [redacted]")),
        ({}, "", {"AWS_REGION": "us-east-1"}, (None, None, None)),
    ],
)
def test_where_a_run_ran(place, tmp_path, monkeypatch, settings, file, variables, expected):
    """Arguments come before variables, these before the file, and all of them before what others say of the node."""
    config = tmp_path / "ranklake.toml"
    config.write_text(f"[capture]\n{file}\n")
    monkeypatch.setenv("RANKLAKE_CONFIG", str(config))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    place.start(**settings).close()
    (row,) = rows(place.spool, "runs")
    assert (row["cluster"], row["deployment_environment"], row["region"]) == expected


def test_every_rank_says_what_it_runs_on(place, monkeypatch):
    """Each of several ranks has a row of its own, written once; what it cannot know has a reason."""
    for rank, digest in enumerate(("sha256:aa", "sha256:bb")):
        monkeypatch.setenv("RANKLAKE_CONTAINER_IMAGE", "train:1")
        monkeypatch.setenv("RANKLAKE_CONTAINER_IMAGE_DIGEST", digest)
        run = place.start(rank=rank, world_size=2)
        run.rows.lifecycle.look()
        run.close()
    found = sorted(rows(place.spool, "ranks"), key=lambda row: row["rank"])
    assert [(row["rank"], row["container_image_digest"]) for row in found] == [(0, "sha256:aa"), (1, "sha256:bb")]
    (told,) = rows(place.spool, "runs")
    packages_told = hashlib.sha256(told["packages"].encode()).hexdigest()
    for row in found:
        assert (row["host"], row["pid"]) == (os.uname().nodename, os.getpid())
        assert row["packages_sha256"] == packages_told
        assert (row["lockfile_sha256"], row["python_version"]) == (told["lockfile_sha256"], told["python_version"])
        assert row["os_description"] == told["os_description"]
        assert {"nccl_version", "driver_version"} <= why(row).keys()
        assert all(row[column] is None for column in why(row))


def test_a_rank_that_is_alone_has_all_of_it_in_its_run(place):
    """There is nobody to compare it with."""
    place.start().close()
    assert rows(place.spool, "ranks") == []


def test_ranks_that_differ_fail_a_check(place, tmp_path, monkeypatch, capfd):
    """An image that differs between ranks, and packages that do not, are told apart by `ranklake check`."""
    for rank in range(3):
        monkeypatch.setenv("RANKLAKE_CONTAINER_IMAGE_DIGEST", f"sha256:{rank // 2}")
        place.start(rank=rank, world_size=3).close()
    lake = str(tmp_path / "lake")
    for words in (["ingest", "--spool", str(place.spool)], ["check"]):
        assert ranklake([*words, "--lake", lake]) == 0
    capfd.readouterr()
    asked = "SELECT check_id, status FROM quality_results WHERE \"table\" = 'ranks' AND check_id LIKE 'ranks_%'"
    assert ranklake(["sql", asked, "--lake", lake, "--format", "json"]) == 0
    judged = {row["check_id"]: row["status"] for row in json.loads(capfd.readouterr().out)}
    assert (judged["ranks_one_image"], judged["ranks_same_packages"]) == ("failed", "passed")
