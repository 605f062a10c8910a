"""A mistake of the user comes back as one line that says what, where and the mend, with exit code 2: no traceback."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with a lake, a folder that is none, a bad configuration and a bad contract."""
    place = tmp_path_factory.mktemp("errors")
    put_segment(place / "spool", step_rows(5))
    ingest(Lake.create(str(place / "lake")), Spool(str(place / "spool")), InProcess())
    (place / "other").mkdir()
    (place / "other" / "photo.txt").write_text("not a lake")
    (place / "bad.toml").write_text('[lake]\nurl = "x"\n')
    (place / "contracts").mkdir()
    (place / "contracts" / "mine.yaml").write_text(
        "table: mine\nversion: 1\nkind: fact\nowner: me\nsteward: me\nsummary: Mine.\ngrain: [run]\n"
        "partition: [date]\nsort: [run]\nretention: raw\nenvelope: true\ncolumns:\n"
        "  - {id: 10020, name: heat, type: float46, class: operational, doc: Heat.}\n"
    )
    return place


def ranklake(*arguments, cwd, **environment):
    """Call the command line as a process of its own."""
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("RANKLAKE_")}, **environment}
    command = [sys.executable, "-m", "ranklake", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=120, check=False)


@pytest.fixture
def called(place, monkeypatch, capfd):
    """Return a function that calls the command line in this process; it gives exit code, stdout and stderr."""
    for name in [name for name in os.environ if name.startswith("RANKLAKE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(place)

    def call(*arguments):
        capfd.readouterr()
        return (run(arguments), *capfd.readouterr())

    return call


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sql", "SELECT * FROM stepz", "--lake", "lake"], "did you mean 'steps'?"),
        (["sql", "SELECT step_time FROM steps", "--lake", "lake"], "did you mean 'step_time_s'?"),
        (["sql", "SELEC 1", "--lake", "lake"], "SELEC"),
        (["sql", "DROP TABLE steps", "--lake", "lake"], "SELECT"),
        (["catalog", "stepz"], "did you mean 'steps'?"),
        (["catalog", "train/los"], "did you mean 'train/loss'?"),
        (["catalog", "--contracts", "contracts"], "mine.yaml:13"),
        (["status", "--lake", "other"], "not a lake"),
        (["status", "--lake", "nowhere"], "not a lake"),
        (["ingest", "--lake", "other", "--spool", "spool"], "not a lake, and not empty"),
        (["ingest", "--new", "--lake", "/proc/lake", "--spool", "spool"], "cannot be written"),
        (["status", "--lake", "weird://bucket/lake"], "weird://bucket/lake: no store is reached by weird:"),
        (
            ["ingest", "--lake", "lake", "--spool", "weird://bucket/spool"],
            "weird://bucket/spool: no store is reached by weird:",
        ),
        (["status"], "no lake configured"),
        (["rollup", "mfuu", "--lake", "lake"], "did you mean 'mfu'?"),
        (["retain", "apply", "nonsense", "--lake", "lake"], "nonsense"),
        (["stats"], "did you mean 'status'?"),
        (["status", "--lak", "lake"], "--lak"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_line(called, arguments, said):
    """One line on stderr, nothing on stdout, exit code 2."""
    code, out, err = called(*arguments)
    assert (code, out) == (2, ""), err
    assert said in err
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("ranklake: ")


@pytest.mark.slow
def test_a_mistake_is_one_line_of_a_process(place):
    """So it is to whoever calls the command: of the process itself comes no word more."""
    done = ranklake("ingest", "--lake", "lake", "--spool", "spool", "--dask", "tcp://127.0.0.1:9", cwd=place)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "no Dask scheduler answers" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_bad_configuration_key_names_its_line(called, monkeypatch):
    """A misspelt key of the configuration is refused before anything is done."""
    monkeypatch.setenv("RANKLAKE_CONFIG", "bad.toml")
    code, _, err = called("status")
    assert (code, err.strip()) == (2, "ranklake: bad.toml:2: unknown key 'url' in [lake]; did you mean 'uri'?")


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "--lake", "weird://user:hunter2@bucket/lake"),
        ("sql", "SELECT 'x' FROM stepz WHERE token='hunter2-9'", "--lake", "lake"),
    ],
)
def test_credentials_are_not_repeated(called, arguments):
    """An error about a URI leaves out its user information, and one about a query what is a secret in it."""
    code, _, err = called(*arguments)
    assert (code, "hunter2" in err) == (2, False)


def _running(group):
    """Return the processes of a group that run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        if state[2] == str(group) and state[0] != "Z":
            found.append(process.name)
    return found


@pytest.fixture(scope="module")
def much(tmp_path_factory):
    """Return a spool that takes long enough to ingest that it can be interrupted."""
    spool = tmp_path_factory.mktemp("much")
    for segment in range(20):
        put_segment(spool, step_rows(100_000, segment=segment))
    return spool


WITHIN_EXEC = """
import ranklake.cli
def run(args):
    try:
        exec("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
    except KeyboardInterrupt:
        return ranklake.cli.INTERRUPTED
ranklake.cli.run = run
"""


def test_an_interrupt_within_exec_ends_with_its_code(tmp_path):
    """Python would end by the signal there: modules that define dataclasses are loaded while a command works."""
    (tmp_path / "sitecustomize.py").write_text(WITHIN_EXEC)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "import runpy; runpy.run_module('ranklake', run_name='__main__')"]
    for argv in (command, [sys.executable, "-m", "ranklake"]):
        assert subprocess.run(argv, env=environment, check=False, timeout=60).returncode == 130, argv


@pytest.mark.parametrize("at_work", ["this process", "a cluster that starts", "a cluster"])
@pytest.mark.slow
def test_an_interrupt_is_one_line_and_leaves_nothing_running(much, tmp_path, at_work):
    """Ctrl-C, which a terminal sends to the workers too, ends ingest with code 130, one line and no stack trace."""
    if at_work != "this process":
        (tmp_path / "ranklake.toml").write_text("[dask]\nworkers = 2\n")
    command = [sys.executable, "-m", "ranklake", "ingest", "--new", "--lake", "lake", "--spool", str(much)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True) as started:

        def begun():
            if at_work == "a cluster that starts":
                return len(_running(started.pid)) > 1
            return any((tmp_path / "lake" / "plans").glob("*.json"))

        deadline = time.monotonic() + 60
        while not begun() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(started.pid, signal.SIGINT)
        _, said = started.communicate(timeout=60)
    assert (started.returncode, said.strip()) == (130, "ranklake: interrupted; run it again to go on where it stopped")
    deadline = time.monotonic() + 60
    while _running(started.pid) and time.monotonic() < deadline:  # Python's own resource tracker ends after its parent
        time.sleep(0.1)
    assert _running(started.pid) == []


def test_no_command_shows_the_help(called):
    """Without a command the help is shown, in lines, and the exit code says that nothing was done."""
    code, _, err = called()
    assert code == 2
    assert "  ingest " in err
