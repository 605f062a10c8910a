"""A generated storage policy on Ceph's own gateway: a role reads its share, and nothing else; nothing is written."""

import json
import urllib.error
import urllib.request
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import duckdb
import polars as pl
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.session import get_session
from deltalake import DeltaTable
from radosgw import READER, READER_KEY, radosgw
from rollup_inputs import NOON, append
from starlette.testclient import TestClient
from stores import KEY, SECRET, s3_storage

from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.roles import Role
from ranklake.lake.store.lake import Lake
from ranklake.retention.shares.place import storage_policy
from ranklake.retention.shares.server.app import sharing_app
from ranklake.retention.shares.server.links import PROFILE, seal_token
from ranklake.retention.shares.sharing import share
from ranklake.segments.envelope import Key
from ranklake.segments.keys import Keyring

pytestmark = pytest.mark.radosgw
OPERATIONAL = frozenset({"operational"})
STEPS = [{"run": name, "step": n, "ts": NOON, "step_time_s": 1.0} for name in ("open", "closed") for n in range(5)]


@contextmanager
def client(url, key):
    """Give a plain client of S3, and close its connections."""
    patience = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
    facts = {"aws_access_key_id": key, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    made = get_session().create_client("s3", endpoint_url=url, config=patience, **facts)
    yield made
    made.close()


@pytest.fixture
def clients(shared):
    """Give the clients of the reader and of the owner."""
    with client(shared, READER_KEY) as mine, client(shared, KEY) as owner:
        yield mine, owner


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Give a gateway with a lake, two shares, and the policy that lets the reader see one of them."""
    with radosgw(tmp_path_factory.mktemp("ceph")) as url:
        lake = Lake.create("s3://bucket/lake", s3_storage(url))
        append(lake, "steps", STEPS)
        for name in ("reader", "readers"):
            role = Role(name, OPERATIONAL, frozenset({"steps", "runs"}), runs="run = 'open'")
            share(lake, role, "s3://bucket/shares", "ada", InProcess())
        policy = storage_policy("radosgw", "s3://bucket/shares", "reader", READER)
        with client(url, KEY) as owner:
            owner.put_bucket_policy(Bucket="bucket", Policy=json.dumps(policy))
        yield url


def refused(call, **arguments):
    """Say whether a call is refused for lack of a right."""
    try:
        said = call(**arguments)
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    if "Body" in said:
        said["Body"].close()  # it holds a connection
    return False


@pytest.mark.leaky("engines keep threads that have called Python")
def test_the_role_reads_its_share_in_three_engines(shared):
    """delta-rs, Polars and DuckDB read the table with the reader's own key."""
    storage = {**s3_storage(shared), "aws_access_key_id": READER_KEY}
    uri = "s3://bucket/shares/reader/tables/steps"
    handle = DeltaTable(uri, storage_options=storage)
    rows = handle.to_pyarrow_table()
    assert set(rows["run"].to_pylist()) == {"open"}
    assert rows.num_rows == 5
    assert pl.read_delta(uri, storage_options=storage).height == 5
    ours = duckdb.connect().register("given", handle.to_pyarrow_dataset())
    assert ours.sql("SELECT count(*) FROM given").fetchall() == [(5,)]


def test_every_other_object_is_refused(clients):
    """Neither the lake's objects nor another role's, nor listings of them, nor of the bucket, are the reader's."""
    mine, owner = clients
    names = [one["Key"] for one in owner.list_objects_v2(Bucket="bucket")["Contents"]]
    own = [name for name in names if name.startswith("shares/reader/")]
    assert own
    assert len(names) > len(own) + 10
    for name in names:
        allowed = not refused(mine.get_object, Bucket="bucket", Key=name)
        assert allowed == (name in own), name
    for prefix in ("", "lake/", "shares/", "shares/reader", "shares/readers/", "shares/readers"):
        assert refused(mine.list_objects_v2, Bucket="bucket", Prefix=prefix), prefix
    assert refused(mine.list_objects_v2, Bucket="bucket")
    assert not refused(mine.list_objects_v2, Bucket="bucket", Prefix="shares/reader/tables/")


def test_every_write_is_refused(clients):
    """Nothing can be put, copied, deleted, tagged or uploaded in parts, and no right be changed, not in the share."""
    mine, owner = clients
    own = owner.list_objects_v2(Bucket="bucket", Prefix="shares/reader/tables/")["Contents"][0]["Key"]
    source = {"Bucket": "bucket", "Key": own}
    tags = {"TagSet": [{"Key": "a", "Value": "b"}]}
    writes = [
        (mine.put_object, {"Key": "shares/reader/x", "Body": b"x"}),
        (mine.put_object, {"Key": own, "Body": b"x"}),
        (mine.put_object, {"Key": "lake/ranklake.json", "Body": b"{}"}),
        (mine.copy_object, {"Key": "shares/reader/copy", "CopySource": source}),
        (mine.delete_object, {"Key": own}),
        (mine.create_multipart_upload, {"Key": "shares/reader/parts"}),
        (mine.put_object_acl, {"Key": own, "ACL": "public-read"}),
        (mine.put_object_tagging, {"Key": own, "Tagging": tags}),
        (mine.put_bucket_policy, {"Policy": json.dumps(storage_policy("radosgw", "s3://bucket", "lake", READER))}),
        (mine.delete_bucket_policy, {}),
        (mine.put_bucket_acl, {"ACL": "public-read-write"}),
        (mine.delete_bucket, {}),
    ]
    for call, arguments in writes:
        assert refused(call, Bucket="bucket", **arguments), (call.__name__, arguments)
    many = {"Bucket": "bucket", "Delete": {"Objects": [{"Key": own}]}}
    assert refused(mine.delete_objects, **many) or mine.delete_objects(**many)["Errors"][0]["Code"] == "AccessDenied"
    assert owner.head_object(Bucket="bucket", Key=own)["ContentLength"] > 0


@pytest.mark.leaky("clients keep connections")
def test_a_sharing_server_gives_addresses_that_the_gateway_signs(shared):
    """Files of a share in an object store are had there, by an address that needs no key and ends."""
    keys = Keyring((Key(bytes(range(32))),))
    lake = Lake.open("s3://bucket/lake", s3_storage(shared))
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    bearer = seal_token(keys, PROFILE, {"role": "reader", "to": "eve", "until": until})
    query = "/delta-sharing/shares/reader/schemas/tables/tables/steps/query"
    with TestClient(sharing_app(lake.store, keys, lambda _role, _who: "")) as asking:
        answer = asking.post(query, json={}, headers={"Authorization": f"Bearer {bearer}"})
    (url,) = [line["file"]["url"] for line in map(json.loads, answer.text.splitlines()) if "file" in line]
    assert url.startswith(f"{shared}/bucket/shares/reader/")
    with urllib.request.urlopen(url) as given:
        assert pl.read_parquet(given.read())["run"].unique().to_list() == ["open"]
    for bad in (url.replace("shares/reader/", "shares/readers/"), url[:-3], url.partition("?")[0]):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(bad)
        caught.value.close()
        assert caught.value.code == 403
