"""Storage policies as they are written for each store; what Ceph's gateway makes of one is tested against it."""

import json

import pytest

from ranklake.cli import run
from ranklake.retention.shares.place import STORES, ShareError, storage_policy

PLACES = {"s3": "s3://b/roles", "minio": "s3://b", "radosgw": "s3://b", "gcs": "gs://b/roles", "azure": "az://c/roles"}
WHO = "somebody"


@pytest.mark.parametrize("store", STORES)
def test_each_store_names_the_prefix_and_ends_it(store):
    """The prefix ends in a slash wherever names are matched: a role whose name begins alike is another."""
    said = json.dumps(storage_policy(store, PLACES[store], "reader", WHO))
    prefix = f"{'roles/' if 'roles' in PLACES[store] else ''}reader"
    assert said.count(f"{prefix}/") >= 2
    assert all(after in '/"' for after in (rest[0] for rest in said.split(prefix)[1:]))
    assert not [word for word in ("Put", "Delete", "Write", "write", "objectAdmin", "s3:*") if word in said]


def test_s3_allows_reading_and_listing_below_the_prefix_alone():
    """Two statements: list names below the prefix, get objects there."""
    listing, reading = storage_policy("s3", "s3://b", "reader", "")["Statement"]
    assert listing["Action"] == ["s3:ListBucket"]
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["reader/*"]}}
    assert (reading["Action"], reading["Resource"]) == (["s3:GetObject"], ["arn:aws:s3:::b/reader/*"])


@pytest.mark.parametrize(
    ("store", "to", "principal", "message"),
    [
        ("radosgv", "s3://b", WHO, "did you mean 'radosgw'"),
        ("s3", "/srv/shares", WHO, "write s3://bucket/prefix"),
        ("gcs", "s3://b", WHO, "write gs://bucket/prefix"),
        ("radosgw", "s3://b", "*", "that is everybody"),
        ("radosgw", "s3://b", "arn:aws:iam:::user/*", "that is everybody"),
        ("gcs", "gs://b", "allUsers", "that is everybody"),
        ("radosgw", "s3://b", "", "wants to know who reads"),
        ("s3", "s3://b/a*", WHO, "means something in policies"),
        ("azure", "az://c/it's", WHO, "means something in policies"),
        ("gcs", 'gs://b/a"b', WHO, "means something in policies"),
        ("s3", "s3://key:secret@b", WHO, "credential"),
    ],
)
def test_what_has_no_policy_is_one_line(store, to, principal, message):
    """A store, a place or a name that a policy cannot be written for is refused, with what to write."""
    with pytest.raises(ShareError, match=message) as caught:
        storage_policy(store, to, "reader", principal)
    assert "\n" not in str(caught.value)


def test_the_command_prints_json(capsys, monkeypatch, tmp_path):
    """`ranklake roles policy` prints what the store takes."""
    monkeypatch.chdir(tmp_path)
    assert run(["roles", "policy", "reader", "--store", "s3", "--to", "s3://b"]) == 0
    assert json.loads(capsys.readouterr().out)["Version"] == "2012-10-17"
    (tmp_path / "roles.yaml").write_text("roles: {readers: {classes: [operational], tables: [steps]}}\n")
    (tmp_path / "ranklake.toml").write_text('[sql]\nroles = "roles.yaml"\n')
    assert run(["roles", "policy", "reader", "--store", "s3", "--to", "s3://b"]) == 2
    assert "unknown role 'reader'; did you mean 'readers'?" in capsys.readouterr().err
    assert run(["roles", "policy", "readers", "--store", "s3", "--to", "s3://b"]) == 0
    (tmp_path / "ranklake.toml").unlink()
    capsys.readouterr()
    assert run(["roles", "policy", "reader", "--store", "s3"]) == 2
    assert "nobody says where" in capsys.readouterr().err
