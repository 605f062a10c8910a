"""Archives on S3's protocol, as moto speaks it: storage classes, tags, and what has to be asked for."""

import pytest
from archiving import STEPS, archived, policies_in
from governed import Site
from retaining import TODAY, bring_days, days_ago
from stores import Store, moto_server, s3_storage

from ranklake.lake.store.lake import Lake
from ranklake.retention.archive.place import Availability, look, open_place
from ranklake.retention.archive.register import archives, examine
from ranklake.retention.archive.rehydration import WaitingFiles, approve, rehydrate, select_archives, write_down

pytestmark = pytest.mark.moto


@pytest.fixture
def storage(tmp_path):
    """Give options for a moto server with one bucket."""
    with moto_server(tmp_path) as url:
        yield s3_storage(url)


def test_rows_lie_in_cold_storage_and_come_back(storage, tmp_path):
    """Copies are moved to their class once they are sound, are asked for, and come back."""
    site = Site(tmp_path)
    place = Store("s3://bucket/lake", storage)
    site.lake = Lake.create(place.uri, place.storage)
    rule = STEPS.replace("to: TO", "to: TO, storage_class: GLACIER, tag: keep=cold")
    found = policies_in(tmp_path, rule, to="s3://bucket/archive")
    bring_days(site, (40,))
    archived(site, found)
    (one,) = archives(site.lake.tables)
    (looked,) = examine(site.lake.store, [one])
    assert (looked.files, looked.unread, looked.faults) == (0, 1, ())
    cold = open_place(site.lake.store, one.uri)
    (path,) = [path for path in cold.fs.find(cold.path("tables")) if path.endswith(".parquet")]
    assert look(cold, path).availability is Availability.COLD
    made = write_down(
        site.lake, select_archives(site.lake.tables, "steps", days_ago(90).date(), TODAY), days_ago(-7).date(), "Ann"
    )
    approve(site.lake, made.name, "Ada Approver")
    done = rehydrate(site.lake, made.name, "Otto", found)
    if isinstance(done, WaitingFiles):
        assert done.files == 1
        done = rehydrate(site.lake, made.name, "Otto", found)
    assert done.rows == 10
