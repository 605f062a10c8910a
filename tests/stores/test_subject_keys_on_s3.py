"""Keys of subjects in a bucket: made once, forgotten in every version, told of where they are damaged or locked."""

import os

import pytest
from governed import Site, any_rows
from stores import Store, moto_server, s3_storage

from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.query.sql import query
from ranklake.lake.store.files import versions
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import SubjectsSection
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.plan import make_plan
from ranklake.retention.erasure.subject import Reach, subject_of
from ranklake.retention.subjects.keys import SubjectKeysError
from ranklake.retention.subjects.store import KeyStore, key_state

ADA, GRACE = "ada.lovelace", "grace.hopper"
CLEAR = 'SELECT unsealed("user") AS who FROM runs ORDER BY run'


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Give the URL of moto, which keeps versions and locks."""
    with moto_server(tmp_path_factory.mktemp("moto")) as found:
        yield found


def keyed(url, folder, name, *, locked=False):
    """Return a site whose lake and keys are in buckets, the keys' with versions, and a client."""
    place = Store(f"s3://{name}", s3_storage(url))
    fs, _ = place.connect()
    fs.call_s3("create_bucket", Bucket=name, **({"ObjectLockEnabledForBucket": True} if locked else {}))
    fs.call_s3("put_bucket_versioning", Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    if locked:
        rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 2}}
        facts = {"ObjectLockEnabled": "Enabled", "Rule": rule}
        fs.call_s3("put_object_lock_configuration", Bucket=name, ObjectLockConfiguration=facts)
    site = Site(folder)
    site.lake = Lake.create(f"s3://bucket/{name}", place.storage)
    (folder / "wrap.keys").write_text(os.urandom(32).hex())
    wrap = f"file:{folder / 'wrap.keys'}"
    places = f"s3://{name}/keys", (f"s3://{name}/copy",)
    site.lake = site.lake.configured(subjects=SubjectsSection(*places, wrap, ("runs.user",)))
    return site, fs


def users(site, *who, first=1):
    """Ingest a run of each of some people."""
    for number, name in enumerate(who, first):
        site.bring(any_rows("runs", 1, run=f"exp-{number}", incarnation=number, user=[name]), "runs")


def erased(site):
    """Erase Ada; return the certificate."""
    reach, subject = Reach(site.lake, Spool(str(site.spool))), subject_of(site.lake, [ADA])
    made = make_plan(reach, subject)
    approve(site.lake, made.name, "Anna Approver")
    return apply(reach, made.name, subject, "Otto Operator").certificate


@pytest.mark.moto
def test_a_key_is_forgotten_in_every_version(url, tmp_path):
    """Also one that was written over; restored from elsewhere it is no key, and whoever comes back gets another."""
    site, fs = keyed(url, tmp_path, "people")
    users(site, ADA, GRACE)
    name = f"{KeyStore(site.lake).lookup(ADA)}.key"
    raw = fs.cat_file(f"people/keys/{name}")
    fs.pipe_file(f"people/keys/{name}", raw[:-9])
    assert KeyStore(site.lake).find(ADA) is not None, "the copy puts it back"
    assert fs.cat_file(f"people/keys/{name}") != raw[:-9]
    assert erased(site).is_clean
    assert [one for one in versions(fs, "people/") if one.path.endswith(name)] == []
    assert query(site.lake, CLEAR)["who"].to_pylist() == [None, GRACE]
    fs.pipe_file(f"people/copy/{name}", raw)
    assert KeyStore(site.lake).find(ADA) is None
    users(site, ADA, first=11)
    assert query(site.lake, CLEAR)["who"].to_pylist() == [None, ADA, GRACE]


@pytest.mark.moto
def test_a_key_that_the_bucket_locks_is_told(url, tmp_path):
    """The certificate is not clean as long as a version is there, and names the place."""
    site, _ = keyed(url, tmp_path, "locked", locked=True)
    users(site, ADA)
    certificate = erased(site)
    assert not certificate.is_clean
    assert "s3://locked/keys" in certificate.raw.decode()


@pytest.mark.moto
def test_keys_that_are_damaged_or_lost_are_told(url, tmp_path):
    """Damaged in every place: nothing of the person is stored. Lost: their rows are counted."""
    site, fs = keyed(url, tmp_path, "harmed")
    users(site, ADA, GRACE)
    store = KeyStore(site.lake)
    for place in ("keys", "copy"):
        fs.pipe_file(f"harmed/{place}/{store.lookup(ADA)}.key", b"")
        fs.rm_file(f"harmed/{place}/{store.lookup(GRACE)}.key")
    with pytest.raises(SubjectKeysError, match="is damaged"):
        users(site, ADA, first=11)
    state = key_state(site.lake)
    assert {(what, hint[:7]) for _, what, hint in state.faults} == {("is damaged", "restore")}
    assert state.lost == (("runs.user", 2),)
