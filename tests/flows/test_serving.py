"""The parts of ``ranklake up`` that need no server."""

import contextlib
import json
import os
import select
import stat
import subprocess
import sys
import traceback
from importlib import import_module

import pytest
from prefect.utilities.callables import parameter_schema

from ranklake.cli import run
from ranklake.commands.deploy import _say
from ranklake.errors import RanklakeError
from ranklake.flows.deployments import DEPLOYMENTS
from ranklake.flows.serving.child import TracebackFilter
from ranklake.flows.serving.environment import DatabaseError, HostError, adopt, check_host, database_url, url_of
from ranklake.flows.serving.home import LOCK, Home, HomeError, HomeTakenError
from ranklake.redaction.redact import redact

PASSWORD = "pR7xQ2mZ9kLw"
ADDRESS = f"postgresql+asyncpg://prefect:{PASSWORD}@db/prefect"


def test_a_home_is_one_users_and_one_processes(tmp_path):
    """The folder is made for this user alone; whoever comes second is told the first one's pid and address."""
    home = Home.take(tmp_path / "home", "http://127.0.0.1:4200")
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    with pytest.raises(HomeTakenError, match=rf"process {os.getpid()} .*http://127.0.0.1:4200.*--home") as error:
        Home.take(tmp_path / "home", "")
    assert error.value.pid == os.getpid()
    home.release()
    Home.take(tmp_path / "home", "").release()


def test_what_a_killed_process_left_behind_hinders_nobody(tmp_path):
    """A home whose holder was killed is free, though its file still names a process that lives."""
    code = (
        "import os, signal, sys; from pathlib import Path; from ranklake.flows.serving.home import Home;"
        "Home.take(Path(sys.argv[1]), ''); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    told = json.loads((tmp_path / LOCK).read_text())
    (tmp_path / LOCK).write_text(json.dumps({**told, "pid": 1}))
    Home.take(tmp_path, "").release()


def test_a_home_that_cannot_be_written_is_refused_in_one_line(tmp_path):
    """Where the folder cannot be made or written, the error says so and how to mend it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeError, match=r"cannot be written .*--home"):
        Home.take(tmp_path / "file" / "home", "")


def test_what_else_lies_in_a_home_is_left_alone(tmp_path):
    """A ranklake.toml that lies there stays as it is, and a folder that others use is not closed to them."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "ranklake.toml").write_text("[lake]\n")
    held = Home.take(home, "")
    assert held.empty_config().exists()
    held.release()
    assert (home / "ranklake.toml").read_text() == "[lake]\n"
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (shared / "theirs").write_text("")
    with pytest.raises(HomeError, match=r"holds other files.*--home"):
        Home.take(shared, "")
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755
    assert [one.name for one in shared.iterdir()] == ["theirs"]


def test_who_reads_its_lines_may_leave(monkeypatch):
    """Ctrl-C ends `tee`, too: lines that nobody reads any more stop nothing, and neither does a full disk."""
    reader, writer = os.pipe()
    os.close(reader)
    for fd in (writer, os.open("/dev/full", os.O_WRONLY)):
        monkeypatch.setattr(sys, "stdout", os.fdopen(fd, "w"))
        _say("stopping")
        _say("stopped")
        with contextlib.suppress(OSError):
            sys.stdout.close()


def test_remedies_are_readable_where_secrets_are_left_out():
    """What is told to be set does not look like a secret itself."""
    for refused in (lambda: check_host("0.0.0.0", {}), lambda: database_url("mysql://db")):
        with pytest.raises(RanklakeError) as error:
            refused()
        assert redact(str(error.value)) == str(error.value)


def test_a_database_is_named_by_a_reference(tmp_path, monkeypatch):
    """A file or a variable holds the address; a password on the command line is refused without repeating it."""
    (tmp_path / "address").write_text(ADDRESS + "\n")
    monkeypatch.setenv("DATABASE", ADDRESS)
    assert database_url(f"file:{tmp_path}/address") == database_url("env:DATABASE") == ADDRESS
    assert database_url("") == ""
    assert database_url("postgresql+asyncpg://prefect@db/prefect")
    for reference in (ADDRESS, "env:NOWHERE", "file:/nowhere", "mysql://db"):
        with pytest.raises(DatabaseError) as error:
            database_url(reference)
        assert PASSWORD not in str(error.value)


def test_what_others_can_reach_asks_for_a_password():
    """Beyond loopback the server must ask for a password, since who reaches it may run any flow."""
    for host in ("127.0.0.1", "::1", "localhost"):
        check_host(host, {})
    for host in ("0.0.0.0", "10.0.0.1", "host.example"):
        with pytest.raises(HostError, match="PREFECT_SERVER_API_AUTH_STRING"):
            check_host(host, {})
        check_host(host, {"PREFECT_SERVER_API_AUTH_STRING": "user:password"})
    assert url_of("0.0.0.0", 1) == "http://127.0.0.1:1"
    assert url_of("::1", 1) == "http://[::1]:1"


@pytest.mark.parametrize(
    "url", ["nonsense", "ftp://x/api", "http://[bad/api", "http://127.0.0.1:99999/api", "http:///api"]
)
def test_an_address_that_is_none_is_refused(tmp_path, monkeypatch, capsys, url):
    """What is no address ends `ranklake deploy` with one line, before Prefect is asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", url)
    assert run(["deploy", "--lake", "lake", "--spool", "spool", "--pool", "x", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "PREFECT_API_URL: is not an HTTP address; set it to one such as http" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "options", [("--name", "a/b"), ("--pool", ""), ("--pool", "a<b"), ("--config", "ranklake.toml")]
)
def test_names_that_no_server_takes_are_refused(capsys, options):
    """What Prefect would refuse, and a path that depends on the worker's folder, are bad usage of `ranklake deploy`."""
    assert run(["deploy", "--lake", "lake", "--spool", "spool", "--pool", "x", *options]) == 2
    said = capsys.readouterr().err
    assert f"Invalid value for '{options[0]}'" in said
    assert said.count("\n") == 1


def test_a_users_own_prefect_settings_do_not_count(tmp_path, monkeypatch):
    """A PREFECT_API_URL of the user's would have `up` write into another server; telemetry stays off."""
    monkeypatch.setattr(
        os, "environ", {"PREFECT_API_URL": "https://elsewhere/api", "PREFECT_API_KEY": "k", "HOME": "/"}
    )
    os.environ["PREFECT_SERVER_METRICS_ENABLED"] = "true"
    adopt(tmp_path, "http://127.0.0.1:1")
    assert os.environ["PREFECT_SERVER_METRICS_ENABLED"] == "true"
    assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:1/api"
    assert "PREFECT_API_KEY" not in os.environ
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"


@pytest.mark.parametrize("told", ["os.getpid()", "'MARKED'"])
def test_a_program_on_a_leash_dies_with_its_parent(told):
    """Whoever started it is killed, at whatever moment, and so is it."""
    leash = f"[{sys.executable!r}, '-m', 'ranklake.flows.serving.leash', str({told}), 'sleep', '1000']"
    code = f"import os, subprocess; print(subprocess.Popen({leash}).pid, flush=True); input()"
    pipe, marked = subprocess.PIPE, {**os.environ, "MARKED": "1"}
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, env=marked) as parent:
        pid = int(parent.stdout.readline())
        watch = os.pidfd_open(pid)
        parent.kill()
    try:
        assert select.select([watch], [], [], 60)[0]
    finally:
        os.close(watch)


def _raise_chained(texts):
    """Raise an error, and one more from it for each further text."""
    if len(texts) == 1:
        raise ConnectionRefusedError(texts[0])
    try:
        _raise_chained(texts[1:])
    except OSError as error:
        raise OSError(texts[0]) from error


def test_six_chained_tracebacks_are_one_line():
    """Each error of a chain was raised because of the one before; the first says what happened: a lost server."""
    with pytest.raises(OSError, match="no flow") as error:
        _raise_chained(["no flow", "no task", "no slot", "no answer", "no connection", "nobody listens"])
    lines = [line for line in "".join(traceback.format_exception(error.value)).splitlines() if line]
    assert sum(line.startswith("Traceback") for line in lines) == 6
    condensed = TracebackFilter()
    kept = [line for line in ["the flow failed", *lines, "12:00 goes on"] if condensed.keeps(line)]
    assert kept == ["the flow failed", "ConnectionRefusedError: nobody listens", "12:00 goes on"]


def test_a_traceback_is_told_by_its_last_line():
    """Of a traceback only what it says is passed on: where it stood is of no use to who runs the pipeline."""
    lines = ["before", "Traceback (most recent call last):", '  File "x.py", line 1, in y', "    z()", "ValueError: no"]
    condensed = TracebackFilter()
    assert [line for line in lines if condensed.keeps(line)] == ["before", "ValueError: no"]
    assert condensed.keeps("    indented, and no traceback")


@pytest.mark.parametrize("one", DEPLOYMENTS, ids=lambda one: one.name)
def test_parameters_are_described_and_none_holds_a_secret(one):
    """Each parameter of each deployment has a type and a description; what a deployment gives is one of them."""
    module, _, name = one.entrypoint.partition(":")
    schema = parameter_schema(getattr(import_module(module), name))
    assert set(one.parameters) < set(schema.properties)
    for told in (*schema.properties.values(), *schema.definitions["FlowSettings"]["properties"].values()):
        assert told["description"]
        assert {"type", "$ref", "anyOf"} & set(told)
