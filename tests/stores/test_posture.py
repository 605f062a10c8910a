"""Posture of a bucket: what the store says of encryption and region, and what it does not say."""

import pytest
from stores import moto_server, s3_storage

from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.posture import posture
from ranklake.lake.store.store import Store
from ranklake.retention.policies.policies import load_policies
from ranklake.retention.policies.read import PACKAGED
from ranklake.retention.report.placement import places, verdicts

RULE = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "key-1"}
pytestmark = [pytest.mark.moto, pytest.mark.slow]


def test_the_store_says_how_it_encrypts_and_where(tmp_path):
    """Nothing by default; then a key of the bucket, under which old objects are not; the region; no such bucket."""
    with moto_server(tmp_path) as url:
        lake = Lake.create("s3://bucket/lake", s3_storage(url))
        before = posture("lake", lake.store)
        lake.fs.call_s3(
            "put_bucket_encryption",
            Bucket="bucket",
            ServerSideEncryptionConfiguration={
                "Rules": [
                    {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "key-1"}}
                ]
            },
        )
        after = posture("lake", lake.store)
        missing = posture("lake", Store.at("s3://nowhere/lake", s3_storage(url)))
    assert (before.by_default, before.region, before.unknown) == ("none", "us-east-1", "")
    assert (after.by_default, after.by_default_key) == ("aws:kms", "key-1")
    assert after.of_object == before.of_object
    assert (missing.by_default, missing.region) == (None, None)
    assert missing.unknown.startswith("get_bucket_encryption: ")


def test_a_bucket_is_held_against_what_policies_demand(tmp_path):
    """First nothing is encrypted, then by another key, then by the right one; the region differs all along."""
    (tmp_path / "p.yaml").write_text(
        (PACKAGED / "defaults.yaml").read_text()
        + "places:\n  people: {where: {table: runs}, keys: [key-1], regions: [eu-central-1], owner: me, reason: why}\n"
    )
    contracts = load_contracts()
    demands = load_policies(contracts, tmp_path / "p.yaml").demands
    states = []
    with moto_server(tmp_path) as url:
        lake = Lake.create("s3://bucket/lake", s3_storage(url))
        for key in ("", "key-2", "key-1"):
            if key:
                rule = {"ApplyServerSideEncryptionByDefault": {**RULE, "KMSMasterKeyID": key}}
                asked = {"ServerSideEncryptionConfiguration": {"Rules": [rule]}}
                lake.fs.call_s3("put_bucket_encryption", Bucket="bucket", **asked)
            found = verdicts(demands, places(lake.tables, contracts), contracts)
            states.append({one.what: (one.state, one.found) for one in found})
        sealed = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "key-1"}
        source = {"Bucket": "bucket", "Key": "lake/ranklake.json"}
        lake.fs.call_s3("copy_object", CopySource=source, **source, **sealed, MetadataDirective="REPLACE")
        after = {one.what: one.state for one in verdicts(demands, places(lake.tables, contracts), contracts)}
    assert [one["encryption"][0] for one in states] == ["differs", "differs", "differs"]
    assert states[0]["key"] == ("differs", "none (none) for new objects")
    assert states[1]["key"] == ("differs", "key-2 for new objects")
    assert {one["region"] for one in states} == {("differs", "us-east-1")}
    assert after == {"encryption": "met", "key": "met", "region": "differs"}
