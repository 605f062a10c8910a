"""Anchors in a bucket that keeps them locked: nobody takes one away, and where there is no lock that is said."""

from datetime import UTC, datetime

import pytest
from ssh_keys import Keys, needs_ssh_keygen
from stores import moto_server, s3_storage

from ranklake.lake.audit.trail import record
from ranklake.lake.store.files import ObjectLockError, put_locked
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import AuditSection
from ranklake.lake.store.store import Store
from ranklake.retention.proposals.examination import anchor, last_anchor

pytestmark = [pytest.mark.moto, needs_ssh_keygen]


@pytest.fixture
def storage(tmp_path):
    """Give options for a store with a plain bucket, and one with Object Lock, ``locked``."""
    with moto_server(tmp_path) as url:
        options = s3_storage(url)
        place = Store.at("s3://bucket/x", options)
        place.fs.call_s3("create_bucket", Bucket="locked", ObjectLockEnabledForBucket=True)
        yield options


def signed(storage, tmp_path, bucket):
    """Return a lake whose anchors go to a bucket, and a key that signs."""
    keys = Keys(tmp_path / "keys")
    keys.allow("ada")
    section = AuditSection(witness=f"s3://{bucket}/witness", anchor_lock_days=30)
    lake = Lake.create("s3://bucket/lake", storage).configured(audit=section, approvals=keys.section())
    record(lake, "ada", "hold.place", "x", "because")
    return lake, str(keys.path("ada"))


def test_an_anchor_is_locked_for_as_long_as_was_asked(storage, tmp_path):
    """The store refuses to delete it before; it is told until when."""
    lake, key = signed(storage, tmp_path, "locked")
    anchor(lake, None, key)
    last = last_anchor(lake)
    assert last.rows == 1
    assert 29 <= (last.locked_until - last.signed).days <= 30
    fs = Store.at("s3://locked/witness", storage).fs
    (there,) = fs.call_s3("list_object_versions", Bucket="locked", Prefix="witness/anchors/")["Versions"]
    with pytest.raises(Exception, match=r"AccessDenied|Access Denied"):
        fs.call_s3("delete_object", Bucket="locked", Key=there["Key"], VersionId=there["VersionId"])
    place = Store.at("s3://locked/witness", storage)
    name = there["Key"].removeprefix("witness/")
    assert not put_locked(place, name, b"another", last.locked_until)
    assert b"statement" in place.fs.cat_file(place.path(name))


def test_a_bucket_without_a_lock_says_so(storage, tmp_path):
    """One line says what the store answered and what to do; no anchor is left that is not locked."""
    lake, key = signed(storage, tmp_path, "bucket")
    with pytest.raises(ObjectLockError) as refused:
        anchor(lake, None, key)
    assert "keeps no object locked (InvalidRequest)" in str(refused.value)
    assert "Object Lock" in refused.value.hint
    assert last_anchor(lake) is None


def test_a_folder_locks_nothing(tmp_path):
    """So a configuration that asks for locks is refused there."""
    with pytest.raises(ObjectLockError, match="only buckets that speak S3"):
        put_locked(Store.at(f"file:{tmp_path}"), "a", b"a", datetime.now(UTC))
