"""The whole lake on Ceph's own object gateway: S3's protocol as a store speaks it that sites run."""

import random
import threading

import pytest
from bringing import adds_up
from lake_suite import LakeSuite, keys, spooled
from radosgw import radosgw
from segments import step_rows
from store_suite import StoreSuite
from stores import Proxy, Store, s3_storage

from ranklake.errors import RanklakeError
from ranklake.lake.ingest.run import ingest
from ranklake.lake.plans.plan import last_finished
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import UnsafeStoreError

pytestmark = pytest.mark.radosgw
SEGMENTS, DRIVERS = 12, 3


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Give the URL of a radosgw with one bucket."""
    with radosgw(tmp_path_factory.mktemp("ceph")) as found:
        yield found


class TestLake(LakeSuite):
    """A lake's contract."""


class TestSpool(StoreSuite):
    """A spool's contract."""

    @pytest.fixture
    def store(self, place):
        """Give the place."""
        return place


def test_no_lake_in_a_bucket_with_versions(url):
    """The gateway ignores conditions there, so of two writers both would win: refused, and nothing is left."""
    place = Store("s3://versioned/lake", s3_storage(url))
    fs, _ = place.connect()
    fs.call_s3("create_bucket", Bucket="versioned")
    fs.call_s3("put_bucket_versioning", Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    with pytest.raises(UnsafeStoreError, match="radosgw honours them only in buckets without versioning"):
        Lake.create(place.uri, place.storage)
    assert fs.find("versioned") == []


def test_drivers_on_a_flapping_gateway(url, tmp_path):
    """Three drivers at once, through connections that are cut and answers that are lost, store every row once."""
    with Proxy(url) as proxy:
        through = Store(f"s3://bucket/{tmp_path.name}", s3_storage(proxy.url))
        rows = [step_rows(20, segment=number) for number in range(SEGMENTS)]
        spool = spooled(through, tmp_path, *rows[: SEGMENTS // 2])
        lake = Lake.create(f"{through.uri}/lake", through.storage)
        dice = random.Random(11)
        proxy.rule = lambda _: dice.choices([None, 503, "reset", "late"], [27, 1, 1, 1])[0]

        def drive():
            for _ in range(40):
                try:
                    if not ingest(lake, spool, InProcess()).plans and last_finished(lake.tables):
                        return
                except RanklakeError:
                    continue

        for half in range(2):
            threads = [threading.Thread(target=drive) for _ in range(DRIVERS)]
            for thread in threads:
                thread.start()
            if not half:
                spooled(Store(through.uri, s3_storage(url)), tmp_path, *rows)
            for thread in threads:
                thread.join()
        proxy.rule = None
        ingest(lake, spool, InProcess())
        assert set(keys(lake).values()) == {1}
        assert adds_up(lake, spool)["steps"].stored == 20 * SEGMENTS
