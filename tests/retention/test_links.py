"""Links to artifacts: a role's artifact, for one person, until a time, and never a file that is somebody else's."""

import hashlib
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from rollup_inputs import NOON, append
from starlette.testclient import TestClient

from ranklake.allowed import AllowedPlaces
from ranklake.capture.assets.merkle_digest import merkle_digest
from ranklake.cli import run
from ranklake.lake.audit import clock
from ranklake.lake.audit.trail import trail
from ranklake.lake.query.roles import Role
from ranklake.lake.store.lake import Lake
from ranklake.retention.shares.server.app import sharing_app
from ranklake.retention.shares.server.links import FILE, LINK, Links, seal_token
from ranklake.segments.envelope import Key
from ranklake.segments.keys import Keyring

ROLES = """
roles:
  reader: {classes: [operational], masked: [pseudonymous], tables: [artifacts, runs], runs: "run = 'mine'"}
  blind: {classes: [operational], tables: [runs]}
"""
KEY = Key(bytes(range(32)))


def artifact(name, uri, body, **more):
    """Return a row that tells of an artifact of one file."""
    facts = {"kind": "checkpoint", "action": "created", "bytes": len(body), "file_count": 1, "run": "mine", "ts": NOON}
    return {"name": name, "uri": str(uri), "sha256": hashlib.sha256(body).hexdigest(), **facts, **more}


@pytest.fixture
def place(tmp_path, monkeypatch, capsys):
    """Give a lake that knows artifacts of two runs, and what runs a command and asks the server beside it."""
    lake = Lake.create(str(tmp_path / "lake"))
    store = tmp_path / "store"
    (store / "folder").mkdir(parents=True)
    for name in ("a.pt", "swapped.pt", "theirs.pt", "folder/0.pt", "folder/1.pt"):
        (store / name).write_bytes(f"bytes of {name}".encode())
    (tmp_path / "secret").write_bytes(b"a key")
    row = next((tmp_path / "lake").rglob("*.json"))
    append(lake, "artifacts", [
        artifact("a.pt", store / "a.pt", b"bytes of a.pt"),
        artifact("swapped.pt", store / "swapped.pt", b"what it was"),
        artifact("theirs.pt", store / "theirs.pt", b"bytes of theirs.pt", run="theirs"),
        artifact("taken", store / "theirs.pt", b"a guess"),
        artifact("outside", tmp_path / "secret", b"a key"),
        artifact("row", row, row.read_bytes()),
        artifact("around", tmp_path, b""),
        artifact("gone", store / "gone.pt", b"x"),
    ])  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roles.yaml").write_text(ROLES)
    (tmp_path / "keys").write_text("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
    said = f'[lake]\nuri = "{lake.uri}"\n[sql]\nroles = "roles.yaml"\n[shares]\nkey = "file:keys"\n'
    config = f'{said}[masking]\nkey = "file:keys"\n[artifacts]\nallow = ["{store}", "{tmp_path}/lake"]\n'
    (tmp_path / "ranklake.toml").write_text(config)

    def call(*arguments):
        code = run(["sharing", "link", *arguments])
        return code, *capsys.readouterr()

    return SimpleNamespace(lake=lake, store=store, call=call, folder=tmp_path)


TO = ("--to", "eve", "--until", "1h")


def server(place, refusal=lambda *_: "", roles=None):
    """Return a client of the server."""
    masked = place.lake.configured(masking=SimpleNamespace(key="file:keys"))
    known = roles or {
        "reader": Role("reader", frozenset({"operational"}), frozenset({"artifacts"}), runs="run = 'mine'")
    }
    links = Links(masked, lambda: known, (str(place.store),))
    return TestClient(sharing_app(masked.store, Keyring((KEY,)), refusal, links))


def test_a_link_gives_the_bytes_until_its_end(place, monkeypatch):
    """The address holds no word of where they are; the audit log says who got it; after its end it gives nothing."""
    code, out, err = place.call("reader", "a.pt", *TO)
    assert (code, out.count("\n")) == (0, 1)
    assert err == f"a.pt of run mine, 13 bytes at {place.store}/a.pt\n"  # what whoever makes it should look at
    assert str(place.store) not in out
    path = out.strip().removeprefix("http://127.0.0.1:8411")
    with server(place) as client:
        answer = client.get(path)
        assert (answer.status_code, answer.content) == (200, b"bytes of a.pt")
        assert answer.headers["content-disposition"] == "attachment"
        assert client.get(path, headers={"Range": "bytes=0-4"}).content == b"bytes"
        assert client.get(path[:-2]).status_code == 401
        later = datetime.now(UTC) + timedelta(hours=2)
        monkeypatch.setattr(clock, "now", lambda: later)
        assert client.get(path).status_code == 401
    row = trail(place.lake.tables)[-1]
    assert (row["action"], row["subject"]) == ("share.link", "eve")
    told = json.loads(row["details"])
    assert (told["role"], told["name"], told["by"], told["files"]) == ("reader", "a.pt", "server", 1)
    assert str(place.store) not in row["details"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reader", "theirs.pt", *TO), "role reader sees no such artifact"),
        (("blind", "a.pt", *TO), "role blind does not see artifacts"),
        (("raeder", "a.pt", *TO), "did you mean 'reader'"),
        (("reader", "b.pt", *TO), "did you mean 'a.pt'"),
        (("reader", "taken", *TO), "bytes in place of"),
        (("reader", "swapped.pt", *TO), "bytes in place of"),
        (("reader", "outside", *TO), "not allowed to open"),
        (("reader", "row", *TO), "that place holds rows"),
        (("reader", "around", *TO), "that place holds rows"),
        (("reader", "gone", *TO), "it is gone"),
        (("reader", "a.pt", "--to", "eve", "--until", "8d"), "7 days at most"),
        (("reader", "a.pt", "--to", "eve", "--until", "2020-01-01"), "is past"),
    ],
)
def test_no_link_to_what_is_not_the_role_s(place, arguments, message):
    """One line, nothing printed, nothing in the audit log: also where a run claims another's file, or the lake's."""
    code, out, err = place.call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert trail(place.lake.tables) == []


def test_a_folder_has_a_link_for_each_file(place):
    """A link of one leads to that one; a file that became a link to elsewhere is not given."""
    digest = merkle_digest(str(place.store / "folder"))
    row = artifact("folder", place.store / "folder", b"") | {"bytes": digest.size_bytes, "file_count": 2}
    append(place.lake, "artifacts", [{**row, "sha256": digest.sha256, "incarnation": 9}])
    code, out, _ = place.call("reader", "folder", *TO, "--json")
    links = json.loads(out.splitlines()[-1])["links"]
    assert (code, [one["file"] for one in links]) == (0, ["0.pt", "1.pt"])
    with server(place) as client:
        paths = [one["url"].removeprefix("http://127.0.0.1:8411") for one in links]
        assert [client.get(path).content for path in paths] == [b"bytes of folder/0.pt", b"bytes of folder/1.pt"]
        (place.store / "folder/1.pt").unlink()
        assert client.get(paths[1]).status_code == 404
        (place.store / "folder/1.pt").symlink_to(place.folder / "secret")
        assert client.get(paths[1]).status_code == 404


def test_what_takes_the_place_of_a_file_meanwhile_is_not_given(place, monkeypatch):
    """Who may write the folder swaps the file after the look at where it leads."""
    _, out, _ = place.call("reader", "a.pt", *TO)
    path, genuine, swap = out.strip().removeprefix("http://127.0.0.1:8411"), AllowedPlaces.check, place.store / "swap"
    swap.symlink_to(place.folder / "secret")

    def looked_at(self, uri):
        genuine(self, uri)
        if swap.is_symlink():
            swap.replace(place.store / "a.pt")

    monkeypatch.setattr(AllowedPlaces, "check", looked_at)
    with server(place) as client:
        assert client.get(path).status_code == 404


def test_a_link_ends_with_the_right_to_it(place):
    """A grant that was revoked, a role that sees the run no more, another purpose, another's file: nothing is given."""
    _, out, _ = place.call("reader", "a.pt", *TO)
    path = out.strip().removeprefix("http://127.0.0.1:8411")
    with server(place, refusal=lambda *_: "revoked") as client:
        assert client.get(path).status_code == 401
    other = {"reader": Role("reader", frozenset({"operational"}), frozenset({"artifacts"}), runs="run = 'theirs'")}
    with server(place, roles=other) as client:
        assert client.get(path).status_code == 404
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    facts = {"role": "reader", "to": "eve", "until": until, "incarnation": 7, "segment": 0, "slot": 0, "file": ""}
    known = hashlib.sha256(b"bytes of a.pt").hexdigest()
    with server(place) as client:
        for purpose, more, status in (
            (FILE, {"sha256": known}, 401),
            (LINK, {"sha256": known}, 200),
            (LINK, {"sha256": "0" * 64}, 404),
            (LINK, {"sha256": known, "slot": 2}, 404),
            (LINK, {"sha256": known, "slot": "2; --"}, 404),
            (LINK, {"sha256": known, "file": "../theirs.pt"}, 404),
        ):
            token = seal_token(Keyring((KEY,)), purpose, facts | more)
            assert client.get(f"/delta-sharing/artifacts/{token}").status_code == status, more
    assert TestClient(sharing_app(place.lake.store, Keyring((KEY,)), lambda *_: "")).get(path).status_code == 404
