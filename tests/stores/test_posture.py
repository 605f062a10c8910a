"""Posture of a bucket: what the store says of encryption and region, and what it does not say."""

import pytest
from stores import moto_server, s3_storage

from ranklake.lake.storage.posture import posture
from ranklake.lake.storage.store import Lake

RULE = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "key-1"}
pytestmark = [pytest.mark.moto, pytest.mark.slow]


def test_the_store_says_how_it_encrypts_and_where(tmp_path):
    """Nothing by default; then a key of the bucket, under which old objects are not; the region; no such bucket."""
    with moto_server(tmp_path) as url:
        lake = Lake.create("s3://bucket/lake", s3_storage(url))
        before = posture("lake", lake)
        lake.fs.call_s3(
            "put_bucket_encryption",
            Bucket="bucket",
            ServerSideEncryptionConfiguration={
                "Rules": [
                    {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "key-1"}}
                ]
            },
        )
        after = posture("lake", lake)
        missing = posture("lake", Lake.place("s3://nowhere/lake", s3_storage(url)))
    assert (before.by_default, before.region, before.unknown) == ("none", "us-east-1", "")
    assert (after.by_default, after.by_default_key) == ("aws:kms", "key-1")
    assert after.of_object == before.of_object
    assert (missing.by_default, missing.region) == (None, None)
    assert missing.unknown.startswith("get_bucket_encryption: ")
