"""Delta Sharing: the official client and engines read a role's tables; whoever has no good profile reads nothing."""

import base64
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import duckdb
import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyarrow.fs import FSSpecHandler, PyFileSystem
from rollup_inputs import NOON, append, rows
from starlette.testclient import TestClient
from stores import free_port, serving

from ranklake.cli import run
from ranklake.commands.share import refusal_of as sharing_refusal
from ranklake.config import Config
from ranklake.context import Context
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.roles import Role
from ranklake.lake.store.lake import Lake
from ranklake.retention.shares.server.app import sharing_app
from ranklake.retention.shares.server.links import FILE, PROFILE, seal_token
from ranklake.retention.shares.sharing import share
from ranklake.segments.envelope import Key
from ranklake.segments.keys import Keyring

pytestmark = [
    pytest.mark.slow,
    pytest.mark.leaky("engines and clients keep threads and connections"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
KEY = Key(bytes(range(32)))
READERS = 100
MANY = 400_000
"""Rows of a table whose bytes fill no socket's buffers."""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Serve shares of two roles by a process of their own; give the folder, and the server's address."""
    folder = tmp_path_factory.mktemp("sharing")
    lake = Lake.create(str(folder / "lake"))
    facts = [{"run": name, "step": n, "ts": NOON, "step_time_s": 1.0} for name in ("open", "closed") for n in range(50)]
    append(lake, "steps", facts)
    one = rows("scalars", [{"run": "open", "step": 0, "ts": NOON, "metric": "train/loss", "value": 0.0}])
    many = one.take(pa.array(np.zeros(MANY, np.int64)))
    values = {"slot": np.arange(MANY), "step": np.arange(MANY), "value": np.random.default_rng(7).random(MANY)}
    for name, column in values.items():
        place = many.schema.get_field_index(name)
        many = many.set_column(place, many.schema.field(name), pa.array(column).cast(many.schema.field(name).type))
    append(lake, "scalars", many)
    for name, where, tables in (
        ("reader", "run = 'open'", {"steps", "runs"}),
        ("other", "true", {"steps", "runs"}),
        ("many", "true", {"scalars"}),
    ):
        role = Role(name, frozenset({"operational"}), frozenset(tables), runs=where)
        share(lake, role, str(folder / "out"), "ada", InProcess())
    (folder / "keys").write_text(base64.b64encode(KEY.secret).decode())
    said = f'[lake]\nuri = "{lake.uri}"\n[shares]\nkey = "file:{folder / "keys"}"\n'
    (folder / "ranklake.toml").write_text(said)
    port = free_port()
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    command = ["taskset", "-c", cores, sys.executable, "-m", "ranklake", "sharing", "serve", "--port", str(port)]
    environment = {"RANKLAKE_CONFIG": str(folder / "ranklake.toml"), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    with serving(command, port, folder / "server.out", environment):
        yield folder, f"http://127.0.0.1:{port}/delta-sharing"


def token(role="reader", hours=1, key=KEY, purpose=PROFILE, **more):
    """Return a token as the command makes it."""
    until = datetime.now(UTC) + timedelta(hours=hours)
    return seal_token(Keyring((key,)), purpose, {"role": role, "to": "eve", "until": until.isoformat(), **more})


@pytest.fixture
def profile(served, tmp_path, monkeypatch, capsys):
    """Give a file with a profile, as the command makes it."""
    folder, url = served
    monkeypatch.setenv("RANKLAKE_CONFIG", str(folder / "ranklake.toml"))
    assert run(["sharing", "profile", "reader", "--to", "eve", "--until", "1h", "--endpoint", url]) == 0
    path = tmp_path / "eve.share"
    path.write_text(capsys.readouterr().out)
    return path


def asked(url, bearer, body=None):
    """Return (status, headers, text) of a request."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def files_of(url, bearer, table="steps", **body):
    """Return the files of a table, as the protocol tells them."""
    status, _, text = asked(f"{url}/shares/reader/schemas/tables/tables/{table}/query", bearer, body)
    assert status == 200, text
    return [line["file"] for line in map(json.loads, text.splitlines()) if "file" in line]


@pytest.mark.filterwarnings("ignore")  # what the client does with pandas
def test_the_official_client_reads_what_the_role_sees(profile):
    """It lists the role's share and tables, reads the rows of the role, and no others."""
    delta_sharing = pytest.importorskip("delta_sharing")
    client = delta_sharing.SharingClient(str(profile))
    assert [one.name for one in client.list_shares()] == ["reader"]
    assert {(one.share, one.schema, one.name) for one in client.list_all_tables()} == {
        ("reader", "tables", "runs"),
        ("reader", "tables", "steps"),
    }
    rows = delta_sharing.load_as_pandas(f"{profile}#reader.tables.steps")
    assert set(rows["run"]) == {"open"}
    assert len(rows) == 50
    assert len(delta_sharing.load_as_pandas(f"{profile}#reader.tables.steps", limit=7)) == 7
    assert len(delta_sharing.load_as_pandas(f"{profile}#reader.tables.runs")) == 0
    assert delta_sharing.get_table_version(f"{profile}#reader.tables.steps") >= 0


def test_two_engines_read_the_files(served):
    """Polars and DuckDB read the addresses that the server gives, in ranges, as Parquet over HTTP."""
    urls = [one["url"] for one in files_of(served[1], token())]
    assert sum(pl.read_parquet(url).height for url in urls) == 50
    engine = duckdb.connect()
    engine.register("given", ds.dataset(urls, filesystem=PyFileSystem(FSSpecHandler(fsspec.filesystem("http")))))
    assert engine.sql("SELECT count(*), count(DISTINCT run) FROM given").fetchall() == [(50, 1)]


@pytest.mark.parametrize(
    "bearer",
    [
        "",
        "x",
        token(hours=-1),
        token(key=Key(bytes(32))),
        token(purpose=FILE),
        token()[:-2],
        token().replace(".", ".A"),
        ".".join([token("other").split(".")[0], token().split(".")[1]]),
        "ü.x",
    ],
    ids=["none", "noise", "expired", "another key", "of a file", "cut", "longer seal", "swapped body", "no ascii"],
)
def test_a_bad_token_reads_nothing(served, bearer):
    """Expired, forged, cut and foreign tokens are 401 for all that there is."""
    table = "/shares/reader/schemas/tables/tables/steps"
    if not bearer.isascii():
        bearer = bearer.encode().decode("latin-1")
    for path in ("/shares", "/shares/reader/all-tables", f"{table}/metadata", f"{table}/version"):
        status, _, text = asked(served[1] + path, bearer)
        assert (status, json.loads(text)["errorCode"]) == (401, "UNAUTHENTICATED")
    assert asked(f"{served[1]}{table}/query", bearer, {})[0] == 401


@pytest.mark.parametrize(("said", "why"), [("{day}", ""), ("{past}", "ended with"), (None, "is gone")])
def test_a_role_that_ended_is_not_served(served, tmp_path, said, why):
    """A role's last day holds for who reads its share by a profile, too, until upkeep drops the share."""
    today = datetime.now(UTC).date()
    until = None if said is None else said.format(day=today, past=today - timedelta(days=1))
    name = "reader" if until else "another"
    roles = tmp_path / "roles.yaml"
    roles.write_text(f"roles: {{{name}: {{classes: [operational], tables: [steps], until: {until or today}}}}}\n")
    lake = Lake.open(str(served[0] / "lake"))
    refusal = sharing_refusal(Context.of(Config().replaced({"sql.roles": str(roles)})), lake)
    found = refusal("reader", "eve")
    assert why in found
    assert bool(found) is bool(why)


def test_another_roles_share_is_not_there(served):
    """A profile of one role gets 404 for another's share, for schemas and tables that are none, and for ways out."""
    for path in (
        "/shares/other/all-tables",
        "/shares/other/schemas/tables/tables/steps/metadata",
        "/shares/reader/schemas/default/tables/steps/metadata",
        "/shares/reader/schemas/tables/tables/logs/metadata",
        "/shares/reader/schemas/tables/tables/..%2f..%2fother%2ftables%2fsteps/metadata",
        "/shares/reader/schemas/tables/tables/%2e%2e/metadata",
    ):
        assert asked(served[1] + path, token())[0] == 404, path
    assert asked(f"{served[1]}/shares/reader/schemas/tables/tables/steps/query", token(), {"version": 0})[0] == 400
    assert asked(f"{served[1]}/shares/reader/schemas/tables/tables/steps/query", token(), [1])[0] == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("version?startingTimestamp=2020-01-01T00:00:00Z", None),
        ("metadata?version=0", None),
        ("metadata?timestamp=2020-01-01T00:00:00Z", None),
        *(("query", {name: 0}) for name in ("version", "timestamp", "startingVersion", "endingVersion")),
        *(("query", {"limitHint": most}) for most in (True, -1, 1.5, "5", [])),
    ],
)
def test_what_a_share_cannot_answer_is_refused(served, path, body):
    """Who asks for another moment would take today's rows for those of then; what is no number of rows is none."""
    status, _, text = asked(f"{served[1]}/shares/reader/schemas/tables/tables/steps/{path}", token(), body)
    assert (status, json.loads(text)["errorCode"]) == (400, "INVALID_PARAMETER_VALUE")


def test_any_number_of_rows_will_do(served):
    """None of them costs more than all."""
    assert files_of(served[1], token(), limitHint=0) == []
    assert len(files_of(served[1], token(), limitHint=10**30)) == 1


@pytest.mark.parametrize("until", ["2126-01-01", "2126-01-01T00:00:00", "soon", 5, None])
def test_a_token_without_a_time_is_none(served, until):
    """Whoever has the key made it, and forgot the zone: refused, with no traceback."""
    bearer = seal_token(Keyring((KEY,)), PROFILE, {"role": "reader", "to": "eve", "until": until})
    assert asked(f"{served[1]}/shares", bearer)[0] == 401


@pytest.mark.parametrize("record", [b"{", b"[]", b'{"name": "x"}', b'{"name":1,"role":2,"uri":3,"since":4}', b"\xff"])
def test_a_damaged_record_of_a_share_is_told(tmp_path, capsys, record):
    """The server says that it cannot answer now, a command what is to be done: each in one line."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "steps", [{"run": "a", "step": 1, "ts": NOON, "step_time_s": 1.0}])
    role = Role("reader", frozenset({"operational"}), frozenset({"steps"}))
    share(lake, role, str(tmp_path / "out"), "ada", InProcess())
    (path,) = (tmp_path / "lake/shares").rglob("share.json")
    path.write_bytes(record)
    with TestClient(sharing_app(lake.store, Keyring((KEY,)), lambda *_: "")) as client:
        answer = client.get("/delta-sharing/shares/reader/all-tables", headers={"Authorization": f"Bearer {token()}"})
    assert answer.status_code == 503
    assert run(["share", "--lake", lake.uri]) == 2
    err = capsys.readouterr().err
    assert (err.count("\n"), "the record of a share is damaged" in err) == (1, True)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--to", "", "nobody gets it"),
        ("--to", "x\x1b[2J", "nobody gets it"),
        ("--until", "0001-01-01T00:00+14:00", "is no time"),
        ("--endpoint", "javascript:alert(1)", "is no address of a server"),
        ("--endpoint", "http://[::1", "is no address of a server"),
    ],
)
def test_a_profile_for_nobody_or_nowhere_is_one_line(served, capsys, monkeypatch, option, value, said):
    """Nothing is printed that somebody could use, and the audit log has no row of it."""
    monkeypatch.setenv("RANKLAKE_CONFIG", str(served[0] / "ranklake.toml"))
    words = {"--to": "eve", "--until": "1h", option: value}
    assert run(["sharing", "profile", "reader", *(word for pair in words.items() for word in pair)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), said in err) == ("", 1, True)


def test_an_address_is_good_for_its_file_and_its_time(served):
    """A file's address that was altered, made by another key, or is past its hour gives nothing."""
    folder, url = served
    (one,) = files_of(url, token())
    with urllib.request.urlopen(one["url"]) as answer:
        assert answer.status == 200
    path = {"table": "steps", "path": one["id"]}
    bad = [
        f"{one['url']}A",
        f"{url}/files/{token(purpose=FILE, hours=-1, **path)}",
        f"{url}/files/{token(purpose=PROFILE, **path)}",
        f"{url}/files/{token(purpose=FILE, key=Key(bytes(32)), **path)}",
    ]
    for address in bad:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(address)
        assert caught.value.code == 401
    said = (folder / "server.out").read_text()
    assert one["url"].rpartition("/")[2] not in said


def test_a_client_that_goes_away_leaves_no_traceback(served):
    """It said that a body would come, and hung up."""
    folder, url = served
    host, port = url.split("/")[2].split(":")
    before = (folder / "server.out").read_text()
    head = f"POST /delta-sharing/shares HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\n\r\n".encode()
    path = "/delta-sharing/shares/reader/schemas/tables/tables/steps/query"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head.replace(b"/delta-sharing/shares", path.encode()) + b"{")
    assert asked(f"{url}/shares", token())[0] == 200
    assert "Traceback" not in (folder / "server.out").read_text()[len(before) :]


def test_a_hundred_readers_at_once(served):
    """A hundred clients that list, ask and read at the same time all get all rows."""
    url, found = served[1], []

    def read():
        rows = 0
        for one in files_of(url, token()):
            with urllib.request.urlopen(one["url"]) as answer:
                rows += pl.read_parquet(answer.read()).height
        found.append(rows)

    threads = [threading.Thread(target=read) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [50] * READERS


def hung_up(address, begun=1):
    """Ask for a file, read a few bytes of it, and go away without a word."""
    host, port = address.split("/")[2].split(":")
    with socket.create_connection((host, int(port))) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(f"GET /{address.split('/', 3)[3]} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        client.recv(begun)


@pytest.mark.filterwarnings("ignore")  # what the client does with pandas
def test_a_hundred_of_the_official_clients_on_two_cores(served, profile, monkeypatch):
    """Each lists, asks and reads the rows, with no second try, while others hang up in the middle of a file."""
    delta_sharing = pytest.importorskip("delta_sharing")
    from delta_sharing.rest_client import DataSharingRestClient

    monkeypatch.setattr(DataSharingRestClient.__init__, "__defaults__", (0,))
    folder, url = served
    facts = json.loads(profile.read_text())
    many = profile.with_name("many.share")
    many.write_text(json.dumps(facts | {"bearerToken": token("many")}))
    before = (folder / "server.out").read_text()
    status, _, text = asked(f"{url}/shares/many/schemas/tables/tables/scalars/query", token("many"), {})
    assert status == 200
    (one,) = [line["file"] for line in map(json.loads, text.splitlines()) if "file" in line]
    assert one["size"] > 2**21
    together = threading.Barrier(READERS)

    def read(number):
        together.wait(60)
        client = delta_sharing.SharingClient(str(profile))
        tables = [one.name for one in client.list_all_tables()]
        return tables, len(delta_sharing.load_as_pandas(f"{profile}#reader.tables.steps"))

    with ThreadPoolExecutor(READERS + 20) as pool:
        readers = [pool.submit(read, number) for number in range(READERS)]
        leaving = [pool.submit(hung_up, one["url"], begun) for begun in [1, 1024, 2**16] * 10]
        assert [sorted(one.result()[0]) for one in readers] == [["runs", "steps"]] * READERS
        assert {one.result()[1] for one in readers} == {50}
        for one in leaving:
            one.result()
    assert len(delta_sharing.load_as_pandas(f"{many}#many.tables.scalars")) == MANY
    assert "Traceback" not in (folder / "server.out").read_text()[len(before) :]


def test_only_loopback_without_tls(served, capsys, monkeypatch):
    """Another address is refused without a certificate; a role that is not shared has no profile, nor without a key."""
    monkeypatch.setenv("RANKLAKE_CONFIG", str(served[0] / "ranklake.toml"))
    assert run(["sharing", "serve", "--host", "0.0.0.0"]) == 2
    assert "tokens would pass in clear" in capsys.readouterr().err
    assert run(["sharing", "serve", "--tls-cert", "cert.pem"]) == 2
    assert "--tls-cert and --tls-key go together" in capsys.readouterr().err
    assert run(["sharing", "profile", "raeder", "--to", "eve", "--until", "1h"]) == 2
    assert "did you mean 'reader'" in capsys.readouterr().err
    assert run(["sharing", "profile", "reader", "--to", "eve", "--until", "2020-01-01"]) == 2
    assert "2020-01-01 00:00 UTC is past" in capsys.readouterr().err
    monkeypatch.setenv("RANKLAKE_CONFIG", "/dev/null")
    done = subprocess.run(
        [sys.executable, "-m", "ranklake", "sharing", "serve", "--lake", str(served[0] / "lake")],
        capture_output=True,
        text=True,
        cwd=served[0] / "lake",
        env={"PATH": "/usr/bin:/bin"},
        check=False,
        timeout=60,
    )
    assert (done.returncode, "no key to make profiles with" in done.stderr) == (2, True)
