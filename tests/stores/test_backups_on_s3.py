"""Backups in a bucket: a lost lake comes back, and of an erased person no version of an object stays."""

import pytest
from governed import Site, any_rows
from segments import step_rows
from stores import Store as Place
from stores import moto_server, s3_storage

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.store.files import versions
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import LakeConfig
from ranklake.lake.store.store import Store
from ranklake.lake.tables.read import read
from ranklake.retention.backup.backup import backup
from ranklake.retention.backup.history import drill
from ranklake.retention.backup.place import numbers_of
from ranklake.retention.backup.restore import choose, restore
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.subject import Reach, subject_of

EMAIL = "ada@analytical.example"


pytestmark = pytest.mark.moto


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Give the URL of moto, which keeps versions."""
    with moto_server(tmp_path_factory.mktemp("moto")) as found:
        yield found


def test_a_lake_in_a_bucket_comes_back_without_whom_it_forgot(url, tmp_path):
    """The backup lies in a bucket with versions: those of objects that a removal made out of date go, too."""
    storage = s3_storage(url)
    fs, _ = Place("s3://copies", storage).connect()
    fs.call_s3("create_bucket", Bucket="copies")
    fs.call_s3("put_bucket_versioning", Bucket="copies", VersioningConfiguration={"Status": "Enabled"})
    site = Site(tmp_path)
    site.lake = Lake.create("s3://bucket/lake", storage)
    site.bring(step_rows(20))
    site.bring(any_rows("logs", 5, run="shared", incarnation=9, message=[f"by {EMAIL}"] * 5), "logs")
    first = backup(site.lake, "s3://copies/lake").backup
    held = {file.sha256 for file in first.files if file.path.startswith("tables/logs/date=")}
    assert held <= {version.path.rpartition("/")[2] for version in versions(fs, "copies/lake/objects")}
    reach, subject = Reach(site.lake, Spool(str(site.spool))), subject_of(site.lake, [EMAIL])
    made = make_plan(reach, subject)
    propose(site.lake, made, "Petra")
    approve(site.lake, made.name, "Anna")
    apply(reach, made.name, subject, "Otto")
    assert backup(site.lake, "s3://copies/lake").expired == (1,)
    place = Store.at("s3://copies/lake", storage)
    assert numbers_of(place) == [2]
    assert not held & {version.path.rpartition("/")[2] for version in versions(fs, "copies/lake/objects")}
    assert backup(site.lake, "s3://copies/lake").copied_bytes == 0
    assert drill(place, LakeConfig()).faults == ()
    restore(place, choose(place), Store.at("s3://bucket/restored", storage))
    lake = Lake.open("s3://bucket/restored", storage)
    assert len(read(lake.tables, contract("steps"))) == 20
    assert [item.faults for item in balance(lake) if item.faults] == []
