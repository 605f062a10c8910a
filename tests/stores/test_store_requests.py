"""Requests to a store are counted as the store sees them: by kind, with failures, repetitions and bytes."""

from datetime import UTC, datetime
from multiprocessing import resource_tracker

import pytest
from segments import put_segment, step_rows
from stores import Store, moto_server, s3_storage, sent

from ranklake.config import Config
from ranklake.context import Context
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.store import Store as Place
from ranklake.lake.store.store_requests import COLUMNS, COUNTS
from ranklake.lake.tables.read import read
from ranklake.pipeline.calls import ingest_once
from ranklake.pipeline.health.collection import pipeline_health
from ranklake.pipeline.stages import INGEST, carry_out

pytestmark = pytest.mark.moto


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Give the URL of moto."""
    resource_tracker.ensure_running()  # of this process, from the first cluster on
    with moto_server(tmp_path_factory.mktemp("moto")) as found:
        yield found


def kind_of(seen):
    """Return what a request is billed as."""
    if seen.method == "DELETE" or (seen.method == "POST" and "delete" in seen.path.partition("?")[2]):
        return "store_deletes"
    if seen.method == "GET" and "list-type" in seen.path:
        return "store_lists"
    return "store_gets" if seen.method in {"GET", "HEAD"} else "store_puts"


def counted(work):
    """Return the change of each count while something is done."""
    before = dict(COUNTS)
    work()
    return {name: COUNTS[name] - before.get(name, 0) for name in COLUMNS}


def test_each_request_is_counted_by_kind_with_its_bytes_and_its_repetitions(proxy, tmp_path):
    """Plain ones, a missing object, and one that the store was too busy for twice."""
    place = Place.at(f"s3://bucket/{tmp_path.name}", s3_storage(proxy.url))
    fs = place.fs
    fs.exists(place.path("warm"))
    seen = len(proxy.seen)

    def work():
        proxy.faults = [503, 503]
        fs.pipe_file(place.path("a"), b"x" * 1000)
        assert fs.cat_file(place.path("a")) == b"x" * 1000
        assert list(fs.find(place.root)) == [place.path("a")]
        with pytest.raises(FileNotFoundError):
            fs.cat_file(place.path("none"))
        fs.rm_file(place.path("a"))

    counts = counted(work)
    kinds = [kind_of(one) for one in proxy.seen[seen:]]
    assert {name: counts[name] for name in COLUMNS[:4]} == {name: kinds.count(name) for name in COLUMNS[:4]}
    assert (counts["store_puts"], counts["store_errors"], counts["store_retries"]) == (3, 2, 2)
    assert counts["store_written_bytes"] == 3000
    assert 1000 <= counts["store_read_bytes"] <= 4000


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stage_keeps_what_it_asked_of_the_store_its_workers_too(proxy, tmp_path, workers):
    """The row of `stage_runs` has all requests of botocore that the store saw meanwhile; metrics have their sum."""
    put_segment(tmp_path / "spool", step_rows(10, start=datetime.now(UTC)), day=datetime.now(UTC).date().isoformat())
    place = Store(f"s3://bucket/{tmp_path.name}", s3_storage(proxy.url))
    sent(place.below("spool"), tmp_path / "spool")
    given = {"lake.uri": place.below("lake").uri, "spool.uri": place.below("spool").uri, "dask.workers": workers}
    context = Context.of(Config(storage=place.storage), given)
    context.create_lake()
    seen = []

    def work():
        seen.append(len(proxy.seen))
        try:
            return ingest_once(context)
        finally:
            seen.append(len(proxy.seen))

    carry_out(INGEST, context, work)
    (row,) = read(context.open_lake().tables, contract("stage_runs")).to_pylist()
    ours = [one for one in proxy.seen[slice(*seen)] if "botocore" in one.headers.get("user-agent", "").lower()]
    kinds = [kind_of(one) for one in ours]
    assert {name: row[name] for name in COLUMNS[:4]} == {name: kinds.count(name) for name in COLUMNS[:4]}
    assert (row["store_errors"], row["store_retries"]) == (0, 0)
    assert row["store_gets"] > 0
    assert row["store_read_bytes"] > 0
    samples = pipeline_health(context).values("stage_store_requests_total")
    assert {one.labels["kind"]: one.value for one in samples} == {
        name.removeprefix("store_"): row[name] for name in COLUMNS[:4]
    }
    print(f"{len(ours)} of {seen[1] - seen[0]} requests are counted")
