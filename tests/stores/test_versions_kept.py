"""Buckets that keep versions, and lock them: nothing of what went is left, or it is said what is, and how long."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from governed import Site, any_rows
from radosgw import radosgw
from retaining import POLICIES, agree, bring_days, carry_out, days_ago, plan
from segments import put_segment, step_rows
from stores import Store, moto_server, s3_storage, sent

from ranklake.doctor.places import of_bucket
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.files import UNKNOWN, versions
from ranklake.lake.store.lake import Lake
from ranklake.retention.erasure.apply import apply as erase
from ranklake.retention.erasure.apply import approve as approve_erasure
from ranklake.retention.erasure.plan import make_plan as make_erasure
from ranklake.retention.erasure.search import PLACE, search
from ranklake.retention.erasure.subject import Reach, subject_of
from ranklake.retention.plans.cancel import cancel
from ranklake.retention.plans.purge import left_in_bucket
from ranklake.retention.sweep import sweep

SERVERS = [
    pytest.param(moto_server, marks=pytest.mark.moto, id="moto"),
    pytest.param(radosgw, marks=pytest.mark.radosgw, id="radosgw"),
]
ADA = "ada.lovelace@example.org"
LOCKED_DAYS = 2


@pytest.fixture(scope="module", params=SERVERS)
def url(request, tmp_path_factory):
    """Give the URL of a server."""
    with request.param(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture(scope="module")
def moto(tmp_path_factory):
    """Give the URL of moto: Ceph honours no conditional writes in a bucket with versions, so no lake can be there."""
    with moto_server(tmp_path_factory.mktemp("moto")) as found:
        yield found


def bucket(url, name, *, locks=False, locked=False):
    """Make a bucket that keeps versions, can lock them, or locks each; return a place in it, and a client."""
    place = Store(f"s3://{name}", s3_storage(url))
    fs, _ = place.connect()
    fs.call_s3("create_bucket", Bucket=name, **({"ObjectLockEnabledForBucket": True} if locks or locked else {}))
    fs.call_s3("put_bucket_versioning", Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    if locked:
        rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": LOCKED_DAYS}}
        facts = {"ObjectLockEnabled": "Enabled", "Rule": rule}
        fs.call_s3("put_object_lock_configuration", Bucket=name, ObjectLockConfiguration=facts)
    return place, fs


def lake_in(place, folder):
    """Return a site whose lake is in a place."""
    site = Site(folder)
    site.lake = Lake.create(place.below("lake").uri, place.storage)
    return site


def applied(site, **kwargs):
    """Plan, approve and apply what is due; return the plan."""
    made = plan(site, **kwargs)
    agree(site, made.name)
    return carry_out(site, made.name, **kwargs)[0]


def erased(site, spool=None):
    """Erase Ada; return the certificate."""
    reach = Reach(site.lake, spool or Spool(str(site.spool)))
    subject = subject_of(site.lake, [ADA])
    made = make_erasure(reach, subject)
    approve_erasure(site.lake, made.name, "Anna Approver")
    return erase(reach, made.name, subject, "Otto Operator").certificate


def spooled(site, place):
    """Send the site's local spool to a place, ingest it from there, and return that spool."""
    sent(place.below("spool"), site.spool)
    spool = Spool(place.below("spool").uri, place.storage)
    ingest(site.lake, spool, InProcess())
    return spool


@pytest.mark.moto
def test_what_retention_took_is_in_no_version(moto, tmp_path):
    """An applied plan deletes the versions of its files, and no others; one that is cancelled takes none."""
    place, fs = bucket(moto, "plain")
    site = lake_in(place, tmp_path)
    bring_days(site, [0, 91])
    cancel(site.lake, applied(site, policies=replace(POLICIES, grace_days=3)).name, "Carla")
    assert len(site.rows("steps")) == 20
    done = applied(site)
    day = f"steps/date={days_ago(91).date()}"
    assert [one for one in versions(fs, "plain/") if day in one.path] == []
    assert left_in_bucket(site.lake, done) == []
    assert of_bucket(fs, "plain/lake", "it").state == "ok"


@pytest.mark.moto
@pytest.mark.parametrize("lists", [True, False], ids=["may list", "may not"])
def test_what_may_not_be_asked_is_not_taken_for_no(moto, tmp_path, monkeypatch, lists):
    """Who may list and delete versions needs no right to ask for the bucket's settings; without any it is told."""
    place, fs = bucket(moto, "least" if lists else "none")
    site = lake_in(place, tmp_path)
    bring_days(site, [0, 91])
    denied = {"get_bucket_versioning"} | (set() if lists else {"list_object_versions"})
    genuine = type(fs).call_s3

    def call(self, name, *args, **kwargs):
        if name in denied:
            raise PermissionError("Access Denied")
        return genuine(self, name, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(type(fs), "call_s3", call)
        left = left_in_bucket(site.lake, applied(site))
    day = f"steps/date={days_ago(91).date()}"
    there = [one for one in versions(fs, f"{'least' if lists else 'none'}/") if day in one.path]
    assert (there == [], left) == ((True, []) if lists else (False, [UNKNOWN]))


@pytest.mark.moto
def test_a_person_is_in_no_version(moto, tmp_path):
    """An erasure looks into the versions that the bucket keeps, deletes those that hold the person, and is clean."""
    site = lake_in(bucket(moto, "people")[0], tmp_path)
    lines = [f"mail {ADA}", *["by nobody"] * 3]
    site.bring(any_rows("logs", 4, start=days_ago(3), message=lines), "logs")
    done = erased(site)
    assert (done.is_clean, done.facts["search"]["unsearched"]) == (True, [])
    assert search(site.lake, None, [ADA]).is_clean
    assert len(site.rows("logs")) == 3


@pytest.mark.moto
def test_a_lake_in_a_locked_bucket_says_what_stays(moto, tmp_path):
    """What a plan took stays until its lock ends; whoever applies it is told how much, why, and until when."""
    place, fs = bucket(moto, "locked", locks=True)
    site = lake_in(place, tmp_path)
    bring_days(site, [0, 91])
    (held,) = versions(fs, f"locked/lake/tables/steps/date={days_ago(91).date()}")
    about = {"Bucket": "locked", "Key": held.path.removeprefix("locked/"), "VersionId": held.id}
    until = datetime.now(UTC) + timedelta(days=LOCKED_DAYS)
    fs.call_s3("put_object_retention", **about, Retention={"Mode": "COMPLIANCE", "RetainUntilDate": until})
    (line,) = left_in_bucket(site.lake, applied(site))
    assert f"locked by the bucket until {until:%Y-%m-%d}" in line
    assert of_bucket(fs, "locked/lake", "it").state == "warning"


def test_a_certificate_says_what_a_lock_keeps(url, tmp_path):
    """Where the spool's bucket has locked the versions, the certificate is not clean, and says until when."""
    site = lake_in(Store("s3://bucket/certified", s3_storage(url)), tmp_path)
    place, _ = bucket(url, "held", locked=True)
    put_segment(site.spool, any_rows("logs", 2, start=days_ago(3), message=[f"mail {ADA}", "by nobody"]), "logs")
    before = datetime.now(UTC)
    done = erased(site, spooled(site, place))
    days = {f"{day + timedelta(days=LOCKED_DAYS):%Y-%m-%d}" for day in (before, datetime.now(UTC))}
    places = {one["place"] for one in done.facts["search"]["found"]}
    assert not done.is_clean
    assert all(any(f"{PLACE}, locked by the bucket until {day}" in one for day in days) for one in places), places
    assert places
    assert len(site.rows("logs")) == 1


def test_a_certificate_is_clean_where_versions_can_go(url, tmp_path):
    """Where nothing is locked, the person is in no version of the spool's bucket either."""
    site = lake_in(Store("s3://bucket/cleaned", s3_storage(url)), tmp_path)
    place, fs = bucket(url, "open")
    put_segment(site.spool, any_rows("logs", 2, start=days_ago(3), message=[f"mail {ADA}", "by nobody"]), "logs")
    spool = spooled(site, place)
    assert erased(site, spool).is_clean
    assert list(versions(fs, "open/spool/segments")) == []


def test_a_swept_spool_keeps_no_version(url, tmp_path):
    """What a sweep deletes from a spool in such a bucket is in no version."""
    site = lake_in(Store("s3://bucket/swept", s3_storage(url)), tmp_path)
    place, fs = bucket(url, "spooled")
    for segment, age in enumerate((0, 91)):
        put_segment(site.spool, step_rows(10, segment=segment, start=days_ago(age)), rows_before=10 * segment)
    spool = spooled(site, place)
    applied(site)
    assert sweep(site.lake, spool, "Otto").segments == 1
    assert [one.is_current for one in versions(fs, "spooled/spool/segments")] == [True]
