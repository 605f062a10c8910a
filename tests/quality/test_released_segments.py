"""Refused segments that would be taken in today come before an ingest again, once, when somebody answers for it."""

import re
from collections import Counter
from datetime import UTC, datetime

import pytest
from bringing import under
from packing import pack_up
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.listing_cache import ListedDay, ListingCache
from ranklake.lake.ingest.spool.local_folder import SpoolFolder
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.writers import Prefix, Writers
from ranklake.quality import release
from ranklake.quality.release import NoSpoolError, NothingToReleaseError, apply, approve, plan_release
from ranklake.retention.proposals.proposals import VoidProposalError

pytestmark = pytest.mark.slow


def spool_of(site, *runs):
    """Return the spool under rules by which these runs may come."""
    writers = Writers((Prefix("", runs=runs),)) if runs else Writers()
    return Spool(str(site.spool), None, under(writers))


def taken_in(site, spool):
    return ingest(site.lake, spool, InProcess())


def freed(lake, spool):
    name = plan_release(lake, "Pia", "the pattern was wrong", spool=spool).name
    approve(lake, name, "Ada")
    return apply(lake, name, "Otto", spool=spool)[0]


def adds_up(site, spool):
    found = balance(site.lake, spool.listing())
    assert [fault for one in found for fault in one.faults] == []


def keys(site):
    return Counter(site.keys())


@pytest.fixture
def refused(site):
    """Give a lake that refused two segments of a run, since the operator's pattern had a slip of the pen."""
    for number in range(2):
        put_segment(site.spool, step_rows(10, segment=number))
    put_segment(site.spool, step_rows(10, run="x1", incarnation=8))
    wrong = spool_of(site, "x*", "s*")
    assert taken_in(site, wrong).refused == {"a run that may not come by this prefix": 2}
    return site, wrong, spool_of(site, "x*", "r*")


@pytest.mark.parametrize("gone", [False, True])
def test_they_come_in_once(refused, gone):
    """Not before somebody applied the release; then all rows, also from quarantine where the spool has them no more."""
    site, wrong, mended = refused
    if gone:
        for path in (site.spool / "segments").rglob("r1~*"):
            path.unlink()
    with pytest.raises(NothingToReleaseError):
        plan_release(site.lake, "Pia", "nothing was mended", spool=wrong)
    assert taken_in(site, mended).plans == []
    done = freed(site.lake, mended)
    assert done.facts == {"partitions": 0, "rows": 0, "segments": 2}
    assert len(site.rows("steps")) == 10
    assert taken_in(site, mended).rows_stored == 20
    assert set(keys(site).values()) == {1}
    assert len(keys(site)) == 30
    assert taken_in(site, mended).plans == []
    with pytest.raises(NothingToReleaseError):
        plan_release(site.lake, "Pia", "again", spool=mended)
    apply(site.lake, done.name, "Otto", spool=mended)
    assert taken_in(site, mended).plans == []
    adds_up(site, mended)


def test_members_of_a_pack_come_in(site):
    """Bytes that lie in a pack are put beside it."""
    pack_up(site.spool, [put_segment(site.spool, step_rows(10, segment=number)) for number in range(2)])
    wrong, mended = spool_of(site, "s*"), spool_of(site, "r*")
    assert taken_in(site, wrong).unreadable == 2
    freed(site.lake, mended)
    assert taken_in(site, mended).rows_stored == 20
    adds_up(site, mended)


def test_rules_that_changed_again_make_it_void(refused):
    """What is against them at the moment of the application counts; nothing was changed then."""
    site, wrong, mended = refused
    name = plan_release(site.lake, "Pia", "the pattern was wrong", spool=mended).name
    approve(site.lake, name, "Ada")
    with pytest.raises(VoidProposalError):
        apply(site.lake, name, "Otto", spool=wrong)
    with pytest.raises(NoSpoolError):
        apply(site.lake, name, "Otto")
    assert taken_in(site, mended).plans == []


def test_a_death_between_plan_and_spool_converges(refused, monkeypatch):
    """The release is applied then, and applying it again puts the segments before ingest."""
    site, _, mended = refused
    name = plan_release(site.lake, "Pia", "the pattern was wrong", spool=mended).name
    approve(site.lake, name, "Ada")

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(release, "renew", dies)
        with pytest.raises(KeyboardInterrupt):
            apply(site.lake, name, "Otto", spool=mended)
    assert taken_in(site, mended).plans == []
    done, fresh = apply(site.lake, name, "Otto", spool=mended)
    assert (done.state, fresh) == ("applied", False)
    assert taken_in(site, mended).rows_stored == 20
    adds_up(site, mended)


def test_what_another_took_the_place_of_stays_out(refused):
    """Rows that came meanwhile under the same number are not contradicted: the other segment of it is refused again."""
    site, _, mended = refused
    name = plan_release(site.lake, "Pia", "the pattern was wrong", spool=mended).name
    approve(site.lake, name, "Ada")
    put_segment(site.spool, step_rows(10, segment=0, seed=5))
    assert taken_in(site, mended).rows_stored == 10
    apply(site.lake, name, "Otto", spool=mended)
    done = taken_in(site, mended)
    assert (done.rows_stored, done.refused) == (10, {"other rows for slots that came before": 1})
    adds_up(site, mended)


def test_old_folders_are_looked_into_again(refused):
    """A day folder that had nothing new for long is listed by the ingest that follows a release."""
    site, _, mended = refused
    rounds = ListingCache.load(site.lake.store, mended.address)
    quiet = int(datetime.now(UTC).timestamp())
    rounds.days = dict.fromkeys(rounds.days, ListedDay(quiet, 0))
    assert rounds.days
    rounds.save(site.lake.store)
    freed(site.lake, mended)
    assert taken_in(site, mended).rows_stored == 20


def test_the_command(refused, monkeypatch, capsys):
    """It proposes segments by reason, applies them with the spool at hand, and says what comes next."""
    site, _, _ = refused
    lines = ["[[spool.prefixes]]", 'prefix = ""', 'runs = ["x*", "r*"]', ""]
    (site.folder / "ranklake.toml").write_text("\n".join(lines))
    monkeypatch.chdir(site.folder)
    where = ("--lake", site.lake.uri)
    only = ("quality", "release", "plan", "--only", "segment", "--reason", "a slip", "--by", "Pia", *where)
    assert run([*only]) != 0
    assert "no spool is configured" in capsys.readouterr().err
    assert run([*only, "--spool", str(site.spool)]) == 0
    told = capsys.readouterr().out
    assert "2 segments refused: a run that may not come by this prefix" in told
    name = re.search(r"qr-[0-9a-f]{16}", told)[0]
    assert run(["quality", "release", "approve", name, "--by", "Ada", *where]) == 0
    assert run(["quality", "release", "apply", name, "--by", "Otto", *where, "--spool", str(site.spool)]) == 0
    assert "0 rows, 2 segments released by plan" in capsys.readouterr().out
    assert run(["ingest", *where, "--spool", str(site.spool)]) == 0
    assert len(site.rows("steps")) == 30


def test_a_file_is_put_below_the_spool_alone(tmp_path):
    """A link in the way is no way out."""
    (tmp_path / "spool").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "spool" / "segments").symlink_to(tmp_path / "outside")
    folder = SpoolFolder(str(tmp_path / "spool"), 1000)
    with pytest.raises(Exception, match="not a regular file"):
        folder.put(f"{tmp_path}/spool/segments/2026-03-01/steps/x", b"x")
    assert list((tmp_path / "outside").iterdir()) == []
    folder.put(f"{tmp_path}/spool/other/steps/x", b"abc")
    assert (tmp_path / "spool/other/steps/x").read_bytes() == b"abc"
    assert [path.name for path in (tmp_path / "spool/other/steps").iterdir()] == ["x"]
