"""Archives on Ceph's own gateway, in a bucket with versions and a life cycle, through a migration that renames."""

import pytest
from archiving import STEPS, archived, policies_in
from governed import Site
from radosgw import radosgw
from retaining import TODAY, bring_days, days_ago
from stores import Store, s3_storage

from ranklake.insight.ask import ask
from ranklake.lake.migrations.applying import apply as migrate
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.files import versions
from ranklake.lake.store.lake import Lake
from ranklake.retention.archive.register import archives, examine
from ranklake.retention.archive.rehydration import approve, rehydrate, select_archives, write_down

pytestmark = pytest.mark.radosgw
LIFE = {
    "Rules": [
        {
            "ID": "old-versions",
            "Status": "Enabled",
            "Filter": {"Prefix": "archive/"},
            "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        },
        {
            "ID": "cold",
            "Status": "Enabled",
            "Filter": {"Tag": {"Key": "keep", "Value": "cold"}},
            "Expiration": {"Days": 3650},
        },
    ]
}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Give the URL of a gateway."""
    with radosgw(tmp_path_factory.mktemp("ceph")) as found:
        yield found


@pytest.fixture
def site(url, tmp_path):
    """Give a lake beside a bucket for archives that has versions and a life cycle."""
    made, storage = Site(tmp_path), s3_storage(url)
    place = Store("s3://bucket/lake", storage)
    made.lake = Lake.create(place.uri, place.storage)
    fs, _ = place.connect()
    fs.call_s3("create_bucket", Bucket="cold")
    fs.call_s3("put_bucket_versioning", Bucket="cold", VersioningConfiguration={"Status": "Enabled"})
    fs.call_s3("put_bucket_lifecycle_configuration", Bucket="cold", LifecycleConfiguration=LIFE)
    return made, fs


def test_rows_come_back_renamed_and_are_queried(site, changed):
    """Rows are archived with a tag, verified, brought back after a column was renamed, and asked for by its name."""
    made, fs = site
    changed.earlier()
    found = policies_in(made.folder, STEPS.replace("to: TO", "to: TO, tag: keep=cold"), to="s3://cold/archive")
    bring_days(made, [0, 40, 41])
    before = ask(made.lake, "SELECT sum(tokens) AS total FROM steps").rows.to_pylist()
    archived(made, found)
    some = archives(made.lake.tables)
    assert [one.faults for one in examine(made.lake.store, some)] == [(), ()]
    (tagged, *_) = [one for one in versions(fs, "cold/archive/tables/") if one.is_current]
    told = fs.call_s3("get_object_tagging", Bucket="cold", Key=tagged.path.removeprefix("cold/"))
    assert told["TagSet"] == [{"Key": "keep", "Value": "cold"}]
    assert len(made.rows("steps")) == 10
    changed.later()

    def rename(facts):
        next(one for one in facts["columns"] if one["name"] == "tokens")["name"] = "tokens_seen"

    changed.migrate("steps", rename)
    migrate(made.lake, InProcess(), "Mia Migrator")
    back = write_down(
        made.lake, select_archives(made.lake.tables, "steps", days_ago(90).date(), TODAY), days_ago(-7).date(), "Ann"
    )
    approve(made.lake, back.name, "Ada Approver")
    assert rehydrate(made.lake, back.name, "Otto", found).rows == 20
    text = "SELECT sum(tokens_seen) AS total FROM steps"
    assert ask(made.lake, text, rehydrated=True).rows.to_pylist() == before
    assert ask(made.lake, text).rows.to_pylist() != before
    assert [one.faults for one in examine(made.lake.store, archives(made.lake.tables))] == [(), ()]
