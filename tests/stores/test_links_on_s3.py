"""Links to artifacts on S3's protocol, as moto speaks it."""

import hashlib
import urllib.parse
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest
from rollup_inputs import NOON, append
from starlette.testclient import TestClient
from stores import moto_server, s3_storage

from ranklake.lake.query.roles import Role
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.retention.shares.server.app import sharing_app
from ranklake.retention.shares.server.links import Links
from ranklake.segments.envelope import Key
from ranklake.segments.keys import Keyring

pytestmark = pytest.mark.moto
KEYS = Keyring((Key(bytes(range(32))),))
BODY = b"bytes of b"


def test_the_store_signs_where_the_role_sees_the_place(tmp_path):
    """There the address ends with the link; where the place is masked the server gives the bytes, and names none."""
    with moto_server(tmp_path) as url:
        lake = Lake.create(str(tmp_path / "lake"), s3_storage(url))
        Store.at("s3://bucket/models", lake.store.storage).fs.pipe_file("bucket/models/b.pt", BODY)
        made_by = {"action": "created", "kind": "model", "bytes": len(BODY), "file_count": 1, "ts": NOON}
        facts = {"name": "b.pt", "uri": "s3://bucket/models/b.pt", "sha256": hashlib.sha256(BODY).hexdigest()}
        append(lake, "artifacts", [{**made_by, **facts}])
        until = datetime.now(UTC) + timedelta(minutes=5)
        roles = {
            "seeing": Role("seeing", frozenset({"operational", "pseudonymous"}), frozenset({"artifacts"})),
            "hiding": Role("hiding", frozenset({"operational"}), frozenset({"artifacts"})),
        }
        links = Links(lake, lambda: roles, ("s3://bucket/models",))
        _, (one,) = links.make(lambda: KEYS, "seeing", "b.pt", "", "eve", until, "http://x/delta-sharing")
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(one.url).query)
        assert (one.by, asked["X-Amz-Algorithm"]) == ("store", ["AWS4-HMAC-SHA256"])
        assert 0 < int(asked["X-Amz-Expires"][0]) <= 300
        with urllib.request.urlopen(one.url) as answer:
            assert answer.read() == BODY
        _, (one,) = links.make(lambda: KEYS, "hiding", "b.pt", "", "eve", until, "http://x/delta-sharing")
        assert one.by == "server"
        assert "bucket" not in one.url
        with TestClient(sharing_app(lake.store, KEYS, lambda *_: "", links)) as client:
            assert client.get(one.url.removeprefix("http://x")).content == BODY
