"""The whole lake on S3's protocol, as moto speaks it; and what becomes of a store that fails or refuses."""

import random
import re
import subprocess
import sys
import time
from urllib.parse import unquote

import pytest
from bringing import adds_up, books
from lake_suite import LakeSuite, keys, spooled
from segments import segment_bytes, step_rows
from stores import SECRET, Store, moto_server, s3_server, s3_storage

from ranklake.capture.recording.upload import Uploader
from ranklake.cli import run
from ranklake.errors import RanklakeError
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeUnreachableError, UnsafeStoreError
from ranklake.retention.erasure.search import PLACE, search
from ranklake.segments.storage_options import StorageOptionError, deferred_options

pytestmark = pytest.mark.moto
SEGMENTS = 6
KILLED = """
import os, signal, sys
from ranklake import capture
run = capture.start(job="j", run="dead", spool=sys.argv[1], local_dir=sys.argv[2])
with run.step(0): pass
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Give the URL of a moto server with one bucket."""
    with moto_server(tmp_path_factory.mktemp("moto")) as found:
        yield found


@pytest.fixture
def through(proxy, tmp_path):
    """Give the place, as seen through the proxy."""
    return Store(f"s3://bucket/{tmp_path.name}", s3_storage(proxy.url))


class TestMoto(LakeSuite):
    """The contract, on moto."""


def test_versions_that_a_bucket_keeps_are_looked_into(url):
    """What a bucket keeps of deleted objects is searched; that of one that keeps none is gone."""
    for name, keeps in (("forgets", False), ("keeps", True)):
        place = Store(f"s3://{name}/lake", s3_storage(url))
        fs, _ = place.connect()
        fs.call_s3("create_bucket", Bucket=name)
        if keeps:
            fs.make_bucket_versioned(name, versioned=True)
        lake = Lake.create(place.uri, place.storage)
        lake.put_if_absent("queries/note", b"ada.lovelace")
        lake.fs.rm_file(lake.path("queries/note"))
        done = search(lake, None, ["ada.lovelace"])
        assert [one.place for one in done.traces] == ([PLACE] if keeps else [])
        assert done.is_clean is not keeps


def test_a_store_that_ignores_the_condition_is_refused(tmp_path):
    """Rclone's server overwrites whatever it is told: the lake is refused in one line, and nothing is left there."""
    with s3_server(tmp_path) as careless:
        place = Store("s3://bucket/lake", s3_storage(careless))
        with pytest.raises(UnsafeStoreError, match="only if absent; use one that honours conditional writes") as caught:
            Lake.create(place.uri, place.storage)
        assert str(caught.value).startswith("s3://bucket/lake: ")
        assert place.contents() == {}


def test_a_store_that_turned_careless_is_refused(through, proxy):
    """A lake that was made behind a good way is refused when a proxy starts to drop the header; the marker stays."""
    made = Lake.create(through.uri, through.storage)
    before = through.contents()
    proxy.dropped = "if-none-match"
    with pytest.raises(UnsafeStoreError):
        Lake.create(through.uri, through.storage)
    assert through.contents() == before
    assert Lake.open(through.uri, through.storage) == made  # whoever only reads is not kept from it


def test_a_large_file_is_written_under_the_condition(through, proxy):
    """A file of the size at which clients turn to parts goes in one piece: parts may be put together regardless."""
    lake = Lake.create(through.uri, through.storage)
    raw = bytes(101 * 2**20)
    proxy.seen.clear()
    assert lake.put_if_absent("plans/1", raw)
    assert not lake.put_if_absent("plans/1", b"small")
    assert {(one.method, one.headers.get("if-none-match")) for one in proxy.seen} == {("PUT", "*")}
    assert lake.fs.size(lake.path("plans/1")) == len(raw)


@pytest.mark.parametrize("option", ["aws_s3_allow_unsafe_rename", "AWS_CONDITIONAL_PUT"])
def test_options_that_undo_the_condition_are_refused(option, place):
    """delta-rs can be told to commit without it: not here."""
    with pytest.raises(StorageOptionError, match="commits would be lost"):
        Lake.create(place.uri, {**place.storage, option: "true" if "rename" in option else "disabled"})


def test_a_flapping_store(through, proxy, tmp_path):
    """Cut connections, 503s, and writes done but not confirmed: run again until it is through, each row is once."""
    rows = [step_rows(20, segment=number) for number in range(SEGMENTS)]
    spool = spooled(through, tmp_path, *rows)
    lake = Lake.create(f"{through.uri}/lake", through.storage)
    dice = random.Random(7)
    proxy.rule = lambda _: dice.choices([None, 503, "reset", "late"], [16, 1, 1, 1])[0]
    for _ in range(30):
        try:
            done = ingest(lake, spool, InProcess())
        except RanklakeError as error:
            assert "\n" not in str(error)  # noqa: PT017 - what fails depends on the dice
            continue
        if not done.plans:
            break
    else:
        pytest.fail("it never came through")
    proxy.rule = None
    assert set(keys(lake).values()) == {1}
    assert adds_up(lake, spool)["steps"].stored == 20 * SEGMENTS


@pytest.mark.parametrize("name", ["/plans/", "/steps/date", "/segments/_delta_log"])
def test_a_bucket_that_refuses_writes(name, through, proxy, tmp_path):
    """Full at any point of a plan, it is told in one line; nothing is lost, and the next run goes on."""
    spool = spooled(through, tmp_path, step_rows(20))
    lake = Lake.create(f"{through.uri}/lake", through.storage)
    proxy.rule = lambda one: 403 if one.method == "PUT" and name in one.path and "/lake/" in one.path else None
    with pytest.raises(LakeUnreachableError) as caught:
        ingest(lake, spool, InProcess())
    line = str(caught.value)
    assert line.startswith(through.uri)
    assert "\n" not in line
    assert not any("missing" in fault for item in books(lake, spool).values() for fault in item.faults)
    proxy.rule = None
    ingest(lake, spool, InProcess())
    assert set(keys(lake).values()) == {1}
    assert adds_up(lake, spool)["steps"].stored == 20


def test_missing_credentials_are_told_at_once(url, monkeypatch, tmp_path):
    """Nothing is retried for what no retry can mend, and the line says what to give."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    started = time.monotonic()
    for storage in ({"aws_endpoint_url": url}, {}):
        with pytest.raises(LakeUnreachableError, match="give or check credentials"):
            Lake.open("s3://bucket/lake", storage)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("named", "said"), [("http://127.0.0.1:9", "Could not connect"), (None, "Access Denied|Forbidden")]
)
def test_errors_tell_no_secret(named, said, proxy):
    """Neither an endpoint that nobody serves nor one that refuses makes us quote what we were given."""
    proxy.rule = lambda _: 403
    storage = s3_storage(named or proxy.url, aws_session_token="a-secret-token")
    for work in (Lake.open, Lake.create, lambda uri, storage: Spool(uri, storage).listing()):
        with pytest.raises(LakeUnreachableError, match=said) as caught:
            work("s3://bucket/lake", storage)
        error = caught.value
        while error is not None:
            assert SECRET not in str(error)
            assert "a-secret-token" not in str(error)
            error = error.__cause__


@pytest.mark.leaky("the first process that Dask starts brings a resource tracker, and a pipe to it, that stay")
def test_the_commands_take_uris(place, tmp_path, monkeypatch, capfd):
    """One [storage] section serves ``--lake s3://…`` and ``--spool s3://…``, in this process and in Dask's."""
    spooled(place, tmp_path, step_rows(20))
    config = tmp_path / "ranklake.toml"
    options = "".join(f'{name} = "{value}"\n' for name, value in place.storage.items() if name != "aws_allow_http")
    config.write_text(f"[dask]\nworkers = 1\n[storage]\n{options}")
    monkeypatch.setenv("RANKLAKE_CONFIG", str(config))
    lake, spool = ["--lake", f"{place.uri}/lake"], ["--spool", f"{place.uri}/spool"]
    assert run(["ingest", *lake, *spool]) == 0
    assert "20 rows stored" in capfd.readouterr().out
    assert run(["status", *lake, *spool]) == 0
    assert run(["sql", "SELECT count(*) AS n FROM steps", "--format", "csv", *lake]) == 0
    assert run(["sql", "SELECT ts FROM steps WHERE run = 'nobody' ORDER BY ts", *lake]) == 0
    assert "20" in capfd.readouterr().out
    assert run(["ingest", "--lake", f"{place.uri}/elsewhere", *spool]) == 2
    assert "this spool has fed a lake since 20" in capfd.readouterr().err
    assert run(["ingest", "--new", "--lake", f"{place.uri}/elsewhere", *spool]) == 0


@pytest.mark.parametrize("status", [403, 400])
def test_one_key_that_is_not_given(status, through, proxy, tmp_path):
    """A key that is denied, or cannot be decrypted, waits and is told; the others come in, and it when it is given."""
    spool = spooled(through, tmp_path, *(step_rows(5, segment=number) for number in range(3)))
    lake = Lake.create(f"{through.uri}/lake", through.storage)
    closed = "spool/segments/2026-03-01/steps/r1~a0~r00000~0000000000000007~000001~"
    proxy.rule = lambda one: status if one.method == "GET" and closed in unquote(one.path) else None
    done = ingest(lake, spool, InProcess())
    assert (done.rows_stored, done.unreadable) == (10, 1)
    again = ingest(lake, spool, InProcess())
    assert (again.plans, sum(again.held.values())) == ([], 1)
    assert books(lake, spool)["steps"].in_flight == 5
    proxy.rule = None
    assert not [name for name in through.contents() if "/quarantine/" in name]
    assert ingest(lake, spool, InProcess()).rows_stored == 5
    adds_up(lake, spool)


class Rotated:
    """A store that takes one access key after the other, and a file that names the one that counts."""

    def __init__(self, proxy, file):
        self._file = file
        self.taken = "first"
        self.rotate("first")
        proxy.rule = lambda one: None if f"Credential={self.taken}/" in one.headers["authorization"] else 403

    def rotate(self, key):
        """Take another key from now on, which the file has."""
        self.taken = key
        self._file.write_text(key)

    @property
    def storage(self):
        """Options that refer to the file."""
        return {"aws_access_key_id": f"file:{self._file}"}


def test_credentials_that_were_rotated_are_read_anew(through, proxy, tmp_path):
    """A lake and an uploader that were refused go on by what the references give now; nothing is started again."""
    keys = Rotated(proxy, tmp_path / "key")
    storage = {**through.storage, **keys.storage}
    rows = [step_rows(5, segment=number) for number in range(3)]
    lake = Lake.create(f"{through.uri}/lake", storage)
    uploader = Uploader(f"{through.uri}/spool", deferred_options(through.uri, storage))
    spool = Spool(f"{through.uri}/spool", storage)
    for number, part in enumerate(rows):
        keys.rotate(f"key-{number}")
        name, raw = segment_bytes(part, rows_before=5 * number)
        sent = [uploader.send(f"segments/2026-03-01/{name}", raw, time.monotonic() + 20) for _ in range(2)]
        assert sent == [True, True], uploader.last_error
        ingest(lake, spool, InProcess())
        assert query(lake, "SELECT count(*) AS n FROM steps").to_pylist() == [{"n": 5 * number + 5}]
    keys.taken = "none"
    with pytest.raises(LakeUnreachableError, match="Access Denied"):
        lake.fs.ls(lake.store.root)


def test_an_agent_tells_of_failing_uploads_and_goes_on_when_keys_change(through, proxy, tmp_path, monkeypatch, capfd):
    """One process: its line has the reason while it is refused; when the file has another key, all is sent."""
    keys = Rotated(proxy, tmp_path / "key")
    keys.taken = "second"
    options = {**through.storage, **keys.storage}
    options = "".join(f'{name} = "{value}"\n' for name, value in options.items() if name != "aws_allow_http")
    (tmp_path / "ranklake.toml").write_text(f"[storage]\n{options}")
    monkeypatch.setenv("RANKLAKE_CONFIG", str(tmp_path / "ranklake.toml"))
    local = tmp_path / "local"
    where = ["--local-dir", str(local), "--spool", f"{through.uri}/spool"]
    subprocess.run([sys.executable, "-c", KILLED, where[3], where[1]], check=False)
    often = ["--interval-s", "0.2", "--pack-s", "0", "--no-sample"]
    command = [sys.executable, "-m", "ranklake", "agent", *where, *often]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        try:
            assert re.search(r"segments? waiting for the spool \(.*Access Denied", agent.stdout.readline())
            assert run(["agent", "--once", *where]) == 0
            assert re.search("it has [1-9] segments to send, and its log says how", capfd.readouterr().out)
            keys.rotate("second")
            lines = iter(agent.stdout.readline, "")
            assert any(re.search(r"[1-9]\d* segments? uploaded", line) for line in lines)
        finally:
            agent.terminate()
