"""Foreign bytes at the gate: whatever anybody puts into the spool, the others' segments come in and the books stand."""

import contextlib
import json
import os
import socket
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bringing import adds_up, bring
from packing import pack_up
from segments import put_bytes, put_segment, step_rows

from ranklake.lake.contracts.edge import reject_reasons
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import ingest_plan, task
from ranklake.lake.ingest.spool import local_folder
from ranklake.lake.ingest.spool.gate import (
    DENIED,
    IRREGULAR,
    MEMBER_LIKE,
    TOO_LARGE,
    UNPRINTABLE,
    UNSTEADY,
    UnreadError,
)
from ranklake.lake.ingest.spool.local_folder import SpoolFolder
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.plan import Plan
from ranklake.lake.store.lake_config import LakeConfig
from ranklake.lake.store.limits import DEFAULT, Limits
from ranklake.lake.tables.read import read
from ranklake.segments.segment import METADATA_KEY, NotASegmentError, SegmentFooter, SegmentName

SAID = SegmentFooter("steps", 1, "evil", 0, 0, 1, 66, 0, rows=3)
NAME = str(SegmentName("r1", 0, 0, 7, 0, 3, "0" * 64))

FOOTERS = {
    "gaps is a list": {"gaps": []},
    "gaps of text": {"gaps": {"spool full": "4"}},
    "gaps below zero": {"gaps": {"spool full": -4}},
    "gaps of a forged line": {"gaps": {"a\nsteps: all is well": 4}},
    "gaps beyond 64 bits": {"gaps": {"spool full": 2**63}},
    "final is text": {"final": "yes"},
    "final is a number": {"final": 1},
    "rows_before beyond 64 bits": {"rows_before": 2**70},
    "rows_before is true": {"rows_before": True},
    "rows_before below zero": {"rows_before": -1},
    "rows_before is a float": {"rows_before": 1.5},
    "rows_before is null": {"rows_before": None},
    "gaps_before beyond reason": {"gaps_before": 2**62},
    "contract_version is text": {"contract_version": "1"},
    "contract_version beyond 32 bits": {"contract_version": 2**40},
    "contract_version below zero": {"contract_version": -(2**40)},
    "totals is a list": {"totals": [["steps", 3, 0]]},
    "totals of numbers": {"totals": {"steps": 3}},
    "totals of one number": {"totals": {"steps": [3]}},
    "totals of text": {"totals": {"steps": ["3", "0"]}},
    "totals beyond 64 bits": {"totals": {"steps": [2**70, 0]}},
    "totals of no table": {"totals": {"steps\nx": [3, 0]}},
    "world_size is an object": {"world_size": {}},
    "clock of text": {"clock": [["now"]]},
    "anchors of text": {"anchors": "none"},
    "key_id is a list": {"key_id": []},
    "format is text": {"format": "1"},
    "a footer that is a list": [],
    "a footer that is a number": 7,
    "a footer that is null": None,
}


def wreck(said, rows=None):
    """Return the bytes of a segment whose footer has some facts replaced, or is something else altogether."""
    facts = json.loads(SAID.to_json())
    text = json.dumps(facts | said if isinstance(said, dict) else said).encode()
    rows = step_rows(3, incarnation=66, run="evil") if rows is None else rows
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata({METADATA_KEY: text}), sink)
    return sink.getvalue().to_pybytes()


def passed(spool, limits=DEFAULT):
    """Return what a look at the spool passes over, by the file's own name."""
    seen = Spool(str(spool), config=LakeConfig(ingest=limits))
    seen.listing()
    return {path.rpartition("/")[2]: why for path, why in seen.passed_over.items()}


@pytest.mark.parametrize("said", FOOTERS.values(), ids=list(FOOTERS))
def test_a_footer_of_wrong_types_is_its_segment_s_own_matter(lake, spool, said):
    """Whatever a footer says, its segment alone is set aside, with a reason that quotes nothing; the books add up."""
    put_segment(spool, step_rows(5))
    put_bytes(spool, wreck(said), SAID)
    done = bring(lake, spool)
    assert (done.rows_stored, done.unreadable) == (5, 1)
    (why,) = read(lake.tables, contract("segments"), ["unreadable"])["unreadable"].drop_null().to_pylist()
    assert why.startswith("the footer")
    assert "\n" not in why
    adds_up(lake, spool)
    assert bring(lake, spool).plans == []


@pytest.mark.parametrize(
    "name",
    [
        NAME.replace("~r00000~", "~r0~"),
        NAME.replace("~r00000~", "~r000000~"),
        NAME.replace("~r00000~", "~r\u0660\u0660\u0660\u0660\u0660~"),
        NAME.replace("~a0~", "~a00~"),
        NAME.replace("~a0~", "~a\uff10~"),
        NAME.replace("~000000~", "~0000000~"),
        NAME.replace("~3~", "~03~"),
        NAME.replace("~3~", "~\u0663~"),
        NAME.replace("0000000000000007", "ffffffffffffffff"),
        NAME.replace("0000000000000007", "8000000000000000"),
        NAME.replace("r1~", "r\u0131~"),
    ],
)
def test_a_segment_has_one_name(lake, spool, name):
    """Another spelling of a segment's name is none: it is set aside as a foreign file, and stops nobody."""
    with pytest.raises(NotASegmentError):
        SegmentName.parse(name)
    assert str(SegmentName.parse(NAME)) == NAME
    put_segment(spool, step_rows(5, segment=1))
    (spool / "segments/2026-03-01/steps" / name).write_bytes(b"x")
    done = bring(lake, spool)
    assert (done.rows_stored, done.unreadable) == (5, 1)
    adds_up(lake, spool)
    assert bring(lake, spool).plans == []


def test_an_incarnation_beyond_63_bits_in_a_pack(lake, spool):
    """A pack that names such a member has no directory that can be believed; what is sound in it is taken in."""
    put_segment(spool, step_rows(5))
    evil = put_segment(spool, step_rows(3, incarnation=9))
    packed = pack_up(spool)
    raw = packed.read_bytes().replace(b"~0000000000000009~", b"~ffffffffffffffff~")
    packed.write_bytes(raw)
    done = bring(lake, spool)
    assert (done.rows_stored, done.unreadable, evil.exists()) == (5, 1, False)
    adds_up(lake, spool)


def test_names_that_no_plan_can_hold_are_passed_over(lake, spool):
    """Names of more than printable text, and paths that read like members of packs, are told and named by no plan."""
    path = put_segment(spool, step_rows(5))
    day = path.parent.parent
    Path(os.fsdecode(os.fsencode(path.parent) + b"/\xff\xfe.parquet")).write_bytes(b"x")
    (path.parent / f"{NAME}\nsteps: all is well").write_bytes(b"x")
    lookalike = day / "packs" / f"1~3~300~{'0' * 64}.zip#0+10" / "steps" / NAME
    lookalike.parent.mkdir(parents=True)
    lookalike.write_bytes(b"x")
    done = bring(lake, spool)
    assert (done.segments, done.rows_stored) == (1, 5)
    odd = ("\\udcff\\udcfe.parquet", f"{NAME}\\nsteps: all is well")
    assert passed(spool) == {**dict.fromkeys(odd, UNPRINTABLE), NAME: MEMBER_LIKE}
    adds_up(lake, spool)


def test_what_is_no_regular_file_is_passed_over(lake, spool, tmp_path, monkeypatch):
    """Folders with segments' names, FIFOs, sockets, devices and links are not opened, nor what links lead to."""
    path = put_segment(spool, step_rows(5))
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key.parquet").write_bytes(b"top secret")
    names = [NAME.replace("~000000~", f"~00000{number}~") for number in range(1, 6)]
    here = path.parent
    os.mkfifo(here / names[0])
    (here / names[1]).symlink_to(secret / "key.parquet")
    (here / names[2]).symlink_to("/nonexistent")
    (here / names[3]).mkdir()
    monkeypatch.chdir(here)  # a socket's path may have 107 characters
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("s")
    (here.parent / "scalars").symlink_to(secret)
    (here.parent.parent / "2026-03-02").symlink_to(secret)
    done = bring(lake, spool)
    assert (done.segments, done.rows_stored) == (1, 5)
    expected = {names[0], names[1], names[2], "s", "scalars", "2026-03-02"}
    assert passed(spool) == dict.fromkeys(expected, IRREGULAR)
    assert not Path(lake.path("quarantine")).exists()
    assert adds_up(lake, spool)["steps"].in_flight == 0


def test_a_plan_that_names_what_cannot_be_read(lake, spool, tmp_path):
    """Files that became something else after they were planned are told by what they are; nothing is copied."""
    paths = [put_segment(spool, step_rows(5, segment=number), rows_before=5 * number) for number in range(6)]
    plan = ingest_plan.compose(lake, Spool(str(spool)), 1).plan
    lake.put_if_absent(plan.name, plan.to_json())
    (tmp_path / "secret").write_bytes(b"top secret")
    for path in paths[1:]:
        path.unlink()
    os.mkfifo(paths[1])
    paths[2].symlink_to(tmp_path / "secret")
    paths[3].mkdir()
    paths[4].touch()
    os.truncate(paths[4], 100 * 2**30)
    done = bring(lake, spool)
    assert done.rows_stored == 5
    told = (
        read(lake.tables, contract("segments"), ["segment", "unreadable"]).sort_by("segment")["unreadable"].to_pylist()
    )
    assert told[:5] == [None, IRREGULAR, IRREGULAR, IRREGULAR, TOO_LARGE]
    assert not Path(lake.path("quarantine")).exists()


@pytest.mark.parametrize(
    "where",
    ["/etc/passwd", "{spool}/../secret", "{spool}/segments/../../secret", "{spool}2/x", "{spool}/./x", "secret"],
)
def test_nothing_outside_the_spool_is_read_or_deleted(spool, tmp_path, where):
    """A path that leads out of the spool is not opened, whoever names it, nor is one that is spelled otherwise."""
    put_segment(spool, step_rows(5))
    (tmp_path / "secret").write_bytes(b"top secret")
    folder = SpoolFolder(str(spool), 2**20)
    for work in (folder.cat_file, folder.rm_file, folder.renew):
        with pytest.raises(UnreadError):
            work(where.format(spool=spool))
    assert (tmp_path / "secret").read_bytes() == b"top secret"


OLD = {
    "footer": lambda spool: put_bytes(spool, wreck({"gaps": []}), SAID).name,
    "incarnation": lambda spool: NAME.replace("0000000000000007", "ffffffffffffffff"),
    "not UTF-8": lambda spool: os.fsdecode(b"\xff.parquet"),
    "member": lambda spool: f"x.zip#{'9' * 5000}+10/steps/{NAME}",
    "Unicode digits": lambda spool: NAME.replace("~r00000~", "~r\u0660\u0660\u0660\u0660\u0660~"),
}


@pytest.mark.parametrize("name", OLD.values(), ids=list(OLD))
def test_a_lake_that_was_poisoned_recovers(lake, spool, name):
    """A plan of earlier software that names poison, and can never change, is carried out by the next ingest."""
    path = put_segment(spool, step_rows(5, incarnation=8))
    bad = path.parent / name(spool)
    with contextlib.suppress(ValueError, OSError):  # no file can have some of these names
        bad.parent.mkdir(parents=True, exist_ok=True)
        bad.touch()
    segment = {"others": [], "table": "steps", "bytes": 1, "rows": 3, "sha256": "0" * 64, "seen": ""}
    rows = [segment | {"path": str(bad), "seen": "0..2"}, segment | {"path": str(path), "sha256": path.name[-72:-8]}]
    body = {"spool": str(spool), "writer": "w", "versions": {"steps": -1, "rejects": -1}, "left": 0, "segments": rows}
    lake.put_if_absent(Plan(1, "ingest", 0, {}).name, Plan(1, "ingest", 1_800_000_000_000_000, body).to_json())
    done = bring(lake, spool)
    assert done.rows_stored == 5
    adds_up(lake, spool)
    bring(lake, spool)
    assert bring(lake, spool).plans == []


@pytest.mark.parametrize("where", ["decoding", "writing", "together"])
def test_whatever_a_segment_raises_is_its_own(lake, spool, monkeypatch, where):
    """An error of any class, from any part of the work, sets aside the segments to blame; others come in once."""
    for rank in range(5):
        put_segment(spool, step_rows(8, rank=rank, incarnation=rank + 1).slice(0, 5))
    put_segment(spool, step_rows(8, rank=2, incarnation=3))  # another cut of the third
    bad = 3 if where != "together" else 2

    class OddError(Exception):
        pass

    def trip(work, of):
        def tripping(*arguments, **options):
            if of(*arguments):
                raise OddError("loss=3.14")
            return work(*arguments, **options)

        return tripping

    if where == "decoding":
        monkeypatch.setattr(
            task.Piece,
            "add",
            trip(task.Piece.add, lambda _, r: bad in r.table["rank"].to_pylist()),
        )
    else:
        monkeypatch.setattr(
            task, "reject_reasons", trip(reject_reasons, lambda _, rows: bad in rows["rank"].to_pylist())
        )
    done = bring(lake, spool)
    told = read(lake.tables, contract("segments"), ["rank", "unreadable"]).to_pylist()
    assert {row["rank"] for row in told if row["unreadable"]} == {bad}
    assert {row["unreadable"] for row in told} == {None, "not readable as Parquet (OddError)"}
    keys = read(lake.tables, contract("steps"), ["incarnation", "segment", "slot"]).to_pylist()
    assert len({tuple(key.values()) for key in keys}) == len(keys) == done.rows_stored == (23 if bad == 3 else 20)
    adds_up(lake, spool)


def test_a_segment_that_is_too_large_waits(lake, spool):
    """A file beyond the limit is told, stays in flight and comes in where the limit is raised; it is not read."""
    put_segment(spool, step_rows(5))
    large = put_segment(spool, step_rows(5_000, segment=1), rows_before=5)
    limits = Limits(segment_bytes=large.stat().st_size - 1)
    done = bring(lake.configured(ingest=limits), spool)
    assert (done.rows_stored, done.held) == (5, {TOO_LARGE: 1})
    assert adds_up(lake, spool)["steps"].in_flight == 5_000
    assert bring(lake, spool).rows_stored == 5_000
    adds_up(lake, spool)


def torn(monkeypatch, times, damage=lambda raw, n: raw[: len(raw) // 2]):
    """Let the first reads of each file give other bytes than there are."""
    plain, count = SpoolFolder.cat_file, {}

    def cat_file(self, path, start=None, end=None, **options):
        raw = plain(self, path, start, end, **options)
        count[path] = count.get(path, 0) + 1
        return damage(raw, count[path]) if count[path] <= times else raw

    monkeypatch.setattr(SpoolFolder, "cat_file", cat_file)
    return count


def test_what_was_misread_once_is_not_damaged(lake, spool, monkeypatch):
    """A read that gives half the bytes is made again, and the segment is taken in; nothing is in quarantine."""
    put_segment(spool, step_rows(5))
    torn(monkeypatch, 1)
    done = bring(lake, spool)
    assert (done.rows_stored, done.unreadable) == (5, 0)
    assert not Path(lake.path("quarantine")).exists()


def test_what_reads_differently_each_time_waits(lake, spool, monkeypatch):
    """No two reads alike prove no damage: the segment is read another day, and no row of it is lost."""
    put_segment(spool, step_rows(5))
    count = torn(monkeypatch, 10**6, lambda raw, n: raw + bytes([n % 251]))
    assert bring(lake, spool).rows_stored == 0
    told = read(lake.tables, contract("segments"), ["unreadable"])["unreadable"].to_pylist()
    assert told == [UNSTEADY]
    assert bring(lake, spool).held == {UNSTEADY: 1}
    assert adds_up(lake, spool)["steps"].in_flight == 5
    count.clear()
    monkeypatch.undo()
    assert bring(lake, spool).rows_stored == 5
    adds_up(lake, spool)


def test_a_good_file_is_never_purged_for_a_torn_read(lake, spool, monkeypatch):
    """Read as damaged again and again, then sound when it is to be deleted: it stays, and is taken in."""
    path = put_segment(spool, step_rows(5))
    torn(monkeypatch, 10**6)
    assert bring(lake, spool).unreadable == 1
    monkeypatch.undo()
    assert bring(lake, spool, keep_days=-1).purged == 0
    assert path.exists()
    assert bring(lake, spool).rows_stored == 5
    assert adds_up(lake, spool)["steps"].quarantined == 0


def test_what_is_denied_waits_until_it_is_given(lake, spool, monkeypatch):
    """A file that may not be read is told, once, and comes in when it may; the others come in meanwhile."""
    paths = [put_segment(spool, step_rows(5, segment=number), rows_before=5 * number) for number in range(2)]
    plain = os.open

    def denying(name, flags, *more, **options):  # the tests' user may read everything
        if name == paths[1].name:
            raise PermissionError(13, "denied", name)
        return plain(name, flags, *more, **options)

    monkeypatch.setattr(os, "open", denying)
    done = bring(lake, spool)
    assert (done.rows_stored, done.unreadable) == (5, 1)
    for _ in range(2):
        again = bring(lake, spool)
        assert (again.plans, again.held) == ([], {DENIED: 1})
    assert adds_up(lake, spool)["steps"].in_flight == 5
    monkeypatch.undo()
    assert bring(lake, spool).rows_stored == 5
    adds_up(lake, spool)


def test_a_pack_may_not_have_its_looker_read_for_ever(lake, spool, monkeypatch):
    """A directory of a gigabyte, and a pack of a hundred without one that can be read, are told and not read."""
    put_segment(spool, step_rows(5))
    folder = spool / "segments/2026-03-01/packs"
    folder.mkdir()
    for name in (f"9999999~3~999999999~{'1' * 64}.zip", f"3~3~900~{'0' * 64}.zip"):
        (folder / name).touch()
        os.truncate(folder / name, 100 * 2**30)
    asked = []
    plain = local_folder._read
    monkeypatch.setattr(local_folder, "_read", lambda file, begin, size: asked.append(size) or plain(file, begin, size))
    done = bring(lake, spool)
    assert (done.segments, done.rows_stored, done.held) == (1, 5, {TOO_LARGE: 2})
    assert max(asked) < 2**20
    adds_up(lake, spool)
