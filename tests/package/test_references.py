"""Secrets by reference: one mechanism for keys, storage options and flows; nothing read is ever shown."""

import json
import os
import pickle
import stat
import time
from pathlib import Path

import pytest
from segments import put_segment, step_rows
from stores import KEY, SECRET, Proxy, moto_server, s3_server, s3_storage

from ranklake import capture
from ranklake.cli import run
from ranklake.config import load_config
from ranklake.context import Context
from ranklake.flows.settings import StorageReferenceError, storage_options
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.segments import references
from ranklake.segments.references import SecretError, is_reference, read_reference, resolve_references
from ranklake.segments.storage_options import fsspec_options

PLANTED = "q8Zr3xKpW1vT6yLmN4cJ9sHd2fGb7aQe"


@pytest.fixture(autouse=True)
def forgotten():
    """Let no test go by what another read."""
    references.forget()
    yield
    references.forget()


def helper(path, script):
    """Write an executable shell script; return the reference to it."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(stat.S_IRWXU)
    return f"command:{path}"


def test_all_three_forms_give_the_same(tmp_path, monkeypatch):
    """A file, a variable and a helper give a text; around an option's value, spaces and newlines go."""
    (tmp_path / "secret").write_text(f"{PLANTED}\n")
    monkeypatch.setenv("OUR_SECRET", PLANTED)
    found = resolve_references(
        {
            "a": f"file:{tmp_path}/secret",
            "b": "env:OUR_SECRET",
            "c": helper(tmp_path / "helper", f'echo "{PLANTED}" | cat'),
            "d": "http://127.0.0.1:9000",
        }
    )
    assert found == {"a": PLANTED, "b": PLANTED, "c": PLANTED, "d": "http://127.0.0.1:9000"}
    assert not [text for text in ("", "env:", "s3://b", "fil:/x", "AKIA") if is_reference(text)]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("file:/nowhere/x", "/nowhere/x: the value of a cannot be read (No such file or directory)"),
        ("file:{tmp}", "the value of a cannot be read (not a regular file)"),
        ("file:{tmp}/fifo", "the value of a cannot be read (not a regular file)"),
        ("file:{tmp}/long", "the value of a has more than 65,536 bytes"),
        ("file:{tmp}/binary", "the value of a is not text"),
        ("file:{tmp}/empty", "the value of a is empty"),
        ("file:~nobody-of-that-name/x", "the value of a cannot be read (RuntimeError)"),
        ("env:NOT_SET_ANYWHERE", "$NOT_SET_ANYWHERE: the variable that should hold the value of a is not set"),
        ("command:/nowhere/helper hunter2", "/nowhere/helper: the command for a cannot be run"),
        ("command:{tmp}/fails hunter2", "{tmp}/fails: the command for a ended with status 3"),
        ("command:{tmp}/yes hunter2", "{tmp}/yes: the value of a has more than 65,536 bytes"),
        ("command:'hunter2", "the command for a is not valid"),
    ],
)
def test_a_reference_that_gives_nothing_is_one_line(tmp_path, source, said):
    """Whatever stands there, it is said where and why, without arguments, output or complaints of a helper."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "long").write_text("x" * (1 << 17))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_text("\n")
    helper(tmp_path / "fails", f"echo {PLANTED}; echo {PLANTED} >&2; exit 3")
    helper(tmp_path / "yes", "yes hunter2")
    began = time.monotonic()
    with pytest.raises(SecretError) as caught:
        resolve_references({"a": source.replace("{tmp}", str(tmp_path))})
    assert said.replace("{tmp}", str(tmp_path)) in str(caught.value)
    assert not {"hunter2", PLANTED, "\n"} & {word for word in ("hunter2", PLANTED, "\n") if word in str(caught.value)}
    assert time.monotonic() - began < references.COMMAND_S


def test_a_helper_is_ended_with_what_it_started(tmp_path, monkeypatch):
    """A helper whose child holds its output open has its time, and both are gone afterwards."""
    monkeypatch.setattr(references, "COMMAND_S", 0.3)
    source = helper(tmp_path / "hangs", f"echo {PLANTED}; sleep 600 & echo $! > {tmp_path}/pid; exit 0")
    with pytest.raises(SecretError, match="took longer than"):
        read_reference(source)
    child = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    deadline = time.monotonic() + 20
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_helper_said_is_kept_for_a_while(tmp_path, monkeypatch):
    """A table is opened often, and a helper is a process: it runs once in five minutes, and again after that."""
    source = helper(tmp_path / "counts", f"echo x >> {tmp_path}/runs; wc -l < {tmp_path}/runs")
    assert [resolve_references({"a": source})["a"] for _ in range(3)] == ["1", "1", "1"]
    monkeypatch.setattr(references, "KEPT_S", 0.0)
    assert resolve_references({"a": source})["a"] == "2"


@pytest.mark.slow
def test_a_lake_and_a_spool_open_by_references(tmp_path, monkeypatch):
    """Ingest runs against a store that checks signatures, by a variable and a helper; nothing that travels has them."""
    monkeypatch.setenv("OUR_KEY_ID", KEY)
    config = tmp_path / "ranklake.toml"
    source = helper(tmp_path / "helper", f"echo {SECRET}")
    with s3_server(tmp_path / "rclone") as url, Proxy(url) as proxy:
        storage = s3_storage(proxy.url) | {"aws_access_key_id": "env:OUR_KEY_ID", "aws_secret_access_key": source}
        lines = "\n".join(f'{name} = "{value}"' for name, value in storage.items())
        config.write_text(f'[lake]\nuri = "{tmp_path}/lake"\n[spool]\nuri = "s3://bucket/spool"\n[storage]\n{lines}\n')
        context = Context.of(load_config(config))
        put_segment(tmp_path / "rclone" / "buckets" / "bucket" / "spool", step_rows(5))
        lake = context.create_lake()
        assert ingest(lake, context.spool(), InProcess()).rows_stored == 5
        for shown in (repr(context), repr(context.config), repr(lake), str(context.spool().__dict__["_storage"])):
            assert SECRET not in shown
        assert SECRET.encode() not in pickle.dumps((lake.uri, lake.store.storage, context.config))
        assert lake.store.storage["aws_secret_access_key"] == source
        assert lake.store.delta_storage == dict(lake.store.storage), "a folder needs none: no helper runs"
        proxy.rule = lambda seen: 403
        monkeypatch.setattr(references, "KEPT_S", 0.0)
        with pytest.raises(LakeUnreachableError, match="Access Denied") as caught:
            context.spool().listing()
        assert SECRET not in str(caught.value)


@pytest.mark.slow
def test_both_clients_of_a_lake_follow_references(tmp_path, monkeypatch):
    """Fsspec and delta-rs sign with the key that a reference gives; not one request names the reference."""
    monkeypatch.setenv("OUR_KEY_ID", KEY)
    with moto_server(tmp_path) as url, Proxy(url) as proxy:
        lake = Lake.create("s3://bucket/lake", s3_storage(proxy.url) | {"aws_access_key_id": "env:OUR_KEY_ID"})
        put_segment(tmp_path / "spool", step_rows(5))
        assert ingest(lake, Spool(str(tmp_path / "spool")), InProcess()).rows_stored == 5
        signed = [(one.headers.get("user-agent", ""), one.headers["authorization"]) for one in proxy.seen]
    assert all(f"Credential={KEY}/" in said for _, said in signed)
    assert len({agent.partition("/")[0] for agent, _ in signed}) > 1, "requests of both clients came by"


def test_training_waits_for_no_helper(tmp_path, monkeypatch):
    """A helper runs when the spool is connected to, not when recording starts; what was recorded arrives by it."""
    source = helper(tmp_path / "helper", f"echo {SECRET}; touch {tmp_path}/ran")
    with s3_server(tmp_path / "rclone") as url:
        storage = s3_storage(url) | {"aws_secret_access_key": source}
        lines = "\n".join(f'{name} = "{value}"' for name, value in storage.items())
        config = tmp_path / "ranklake.toml"
        config.write_text(f'[spool]\nuri = "s3://bucket/spool"\n[storage]\n{lines}\n')
        monkeypatch.setenv("RANKLAKE_CONFIG", str(config))
        monkeypatch.setenv("RANKLAKE_LOCAL_SPOOL", str(tmp_path / "local"))
        run_ = capture.start(run="waits-for-none", seal_every_s=3600)
        with run_.step(0):
            pass
        assert not (tmp_path / "ran").exists()
        run_.close()
        assert (tmp_path / "ran").exists()
        sent = [path.name for path in (tmp_path / "rclone" / "buckets").rglob("waits-for-none*.parquet")]
    assert sent


def test_a_reference_that_gives_nothing_stops_the_command(tmp_path, monkeypatch, capsys):
    """A command that needs a store's secret says which option has none; one that needs no store runs."""
    config = tmp_path / "ranklake.toml"
    config.write_text('[storage]\naws_secret_access_key = "env:NOT_SET_ANYWHERE"\n')
    monkeypatch.setenv("RANKLAKE_CONFIG", str(config))
    assert run(["status", "--lake", "s3://bucket/lake"]) == 2
    said = capsys.readouterr().err
    assert "$NOT_SET_ANYWHERE: the variable that should hold the value of aws_secret_access_key is not set" in said
    assert said.count("\n") == 1
    assert fsspec_options(str(tmp_path), load_config(config).storage) == {}
    assert fsspec_options("gs://bucket", load_config(config).storage) == {}


def test_flows_take_the_same_references(tmp_path, monkeypatch):
    """A flow's options come from a file, a variable or a helper, as JSON or as the section of a ranklake.toml."""
    (tmp_path / "ranklake.toml").write_text('[lake]\nuri = "x"\n[storage]\naws_region = "eu"\n')
    monkeypatch.setenv("OUR_OPTIONS", json.dumps({"aws_region": "eu"}))
    sources = (
        f"file:{tmp_path}/ranklake.toml",
        "env:OUR_OPTIONS",
        helper(tmp_path / "helper", """echo '{"aws_region": "eu"}'"""),
    )
    assert [storage_options(one) for one in sources] == [{"aws_region": "eu"}] * 3
    monkeypatch.setenv("OUR_OPTIONS", PLANTED)
    for wrong in ("env:OUR_OPTIONS", "hunter2", "command:/bin/false hunter2"):
        with pytest.raises(StorageReferenceError) as caught:
            storage_options(wrong)
        assert PLANTED not in str(caught.value)
        assert "hunter2" not in str(caught.value)
