"""Packs: segments in one object are taken in as they would be alone, exactly once, whatever became of the pack."""

import hashlib
import zipfile
from datetime import UTC, datetime

import pytest
from bringing import adds_up, bring
from ciphered import ONE, encrypt_segment, source_of
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st
from packing import pack_up
from segments import put_segment, step_rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import ingest_plan
from ranklake.lake.ingest.index_summary import IngestionIndex
from ranklake.lake.ingest.run import ingest, purge
from ranklake.lake.ingest.spool import packs
from ranklake.lake.ingest.spool import spool as spool_module
from ranklake.lake.ingest.spool.packs import Reader
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import LakeConfig
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.segments.pack import NotAPackError, PackName, pack, read_directory, salvage


def stored_slots(lake):
    """Return (incarnation, segment, slot) of all stored steps, sorted."""
    rows = read(lake.tables, contract("steps"), ["incarnation", "segment", "slot"])
    return sorted(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))


def three(spool):
    """Put three segments of ten steps each into a spool, of three ranks; return their paths."""
    return [put_segment(spool, step_rows(10, rank=rank, incarnation=rank + 1)) for rank in range(3)]


CONTENTS = st.dictionaries(
    st.tuples(st.sampled_from(["steps", "scalars"]), st.integers(0, 99)), st.binary(max_size=300), min_size=1
)


def named(contents):
    """Return bytes by path below a spool, as `pack` takes them."""
    return {
        f"segments/2026-01-02/{table}/run~a0~r{number:05d}~{number + 1:016x}~000000~7~"
        f"{hashlib.sha256(raw).hexdigest()}.parquet": raw
        for (table, number), raw in contents.items()
    }


@given(CONTENTS)
def test_a_pack_gives_back_what_went_in(contents):
    """The directory names every member, those of a table side by side, and says where its bytes are, to the byte."""
    segments = named(contents)
    path, raw = pack(segments)
    assert pack(dict(reversed(segments.items()))) == (path, raw)
    name = PackName.parse(path.rpartition("/")[2])
    assert name.sha256 == hashlib.sha256(raw).hexdigest()
    assert name.rows == 7 * len(segments)
    members = read_directory(name, raw[-name.directory_bytes :], len(raw))
    found = {
        f"segments/{item.date}/{item.table}/{item.name}": raw[item.offset : item.offset + item.size] for item in members
    }
    assert found == segments
    assert [item.table for item in members] == sorted(item.table for item in members)
    assert salvage(raw) == members


@given(CONTENTS, st.data())
def test_a_damaged_pack_never_gives_other_bytes_under_a_name(contents, data):
    """Bytes flipped or cut off: the directory is refused or right, and what is salvaged is found out by its digest."""
    path, raw = pack(named(contents))
    name = PackName.parse(path.rpartition("/")[2])
    hurt = bytearray(raw)
    hurt[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    hurt = bytes(hurt[: data.draw(st.integers(1, len(raw)))])
    try:
        members = read_directory(name, hurt[-name.directory_bytes :], len(hurt))
    except NotAPackError:
        members = salvage(hurt)
    for item in members:
        assert 0 <= item.offset <= item.offset + item.size <= len(hurt)


def test_unzipping_gives_the_spool_that_a_pack_stands_for(spool, tmp_path):
    """Any unzip tool puts the segments back where they would lie without an agent."""
    segments = {path.relative_to(spool / "segments"): path.read_bytes() for path in three(spool)}
    with zipfile.ZipFile(pack_up(spool)) as archive:
        assert archive.testzip() is None
        archive.extractall(tmp_path / "out")
    found = {path.relative_to(tmp_path / "out"): path.read_bytes() for path in (tmp_path / "out").rglob("*.parquet")}
    assert found == segments


def test_members_are_taken_in_as_segments(lake, spool):
    """Each member is a row of ``segments`` with a path of its own, in flight before and stored after, once."""
    three(spool)
    packed = pack_up(spool)
    assert adds_up(lake, spool)["steps"].in_flight == 30
    done = bring(lake, spool)
    assert (done.segments, done.rows_stored, done.rows_duplicate, done.unreadable) == (3, 30, 0, 0)
    assert (adds_up(lake, spool)["steps"].stored, adds_up(lake, spool)["steps"].in_flight) == (30, 0)
    names = read(lake.tables, contract("segments"), ["uri_name"])["uri_name"].to_pylist()
    assert len(set(names)) == 3
    assert all(name.startswith(f"{packed}#") for name in names)
    assert bring(lake, spool).plans == []


def test_a_pack_that_was_read_is_not_opened_again(lake, spool):
    """Once all members are known, a listing leaves the pack alone."""
    three(spool)
    packed = pack_up(spool)
    bring(lake, spool)
    packed.write_bytes(b"\0" * packed.stat().st_size)
    assert (
        Spool(str(spool)).listing(IngestionIndex(lake.store, delta_table(lake.store, "segments")).recent_member_count)
        == []
    )
    assert bring(lake, spool).plans == []


@pytest.mark.parametrize("held", [False, True])
def test_a_backlog_is_opened_as_plans_take_it(lake, spool, tmp_path, monkeypatch, held):
    """Of many packs a plan opens no more than it takes; the next goes on, whatever waits for its key in between."""
    monkeypatch.setattr(ingest_plan, "PLAN_SEGMENTS", 4)
    opened, look = [], packs.read_contents
    monkeypatch.setattr(
        spool_module, "read_contents", lambda fs, some, *more: opened.append(len(some)) or look(fs, some, *more)
    )
    for number in range(12):
        paths = [put_segment(spool, step_rows(10, rank=rank, incarnation=100 * number + rank + 1)) for rank in range(2)]
        if held and number % 4:
            paths = [encrypt_segment(path, ONE) for path in paths]
        pack_up(spool, paths)
    plan = ingest_plan.compose(lake, Spool(str(spool)), 1).plan
    assert len(plan.body["segments"]) == 4
    assert held or (opened == [0, 2] or sum(opened) == 2)
    done = bring(lake, spool)
    few = 6 if held else 24
    assert (done.segments, done.rows_stored, sum(done.waiting.values())) == (few, 10 * few, 24 - few)
    assert sum(opened) < 12 * 3
    assert bring(lake, spool).plans == []
    assert adds_up(lake, spool)["steps"].stored == 10 * few
    keyed = Lake.open(lake.uri, config=LakeConfig(encryption_key=source_of(tmp_path / "keys", ONE)))
    assert bring(keyed, spool).rows_stored == 240 - 10 * few
    assert len(set(stored_slots(lake))) == 240


@pytest.mark.parametrize("first", ["alone", "packed"])
def test_what_is_sent_alone_and_packed_is_stored_once(lake, spool, first):
    """A sender that died between sending and noting it sends again, in another form: the books stay as they were."""
    paths = three(spool)
    raw = {path: path.read_bytes() for path in paths}
    pack_up(spool, paths[:2])
    if first == "alone":
        paths[1].write_bytes(raw[paths[1]])
        assert bring(lake, spool).segments == 3
        for path in paths[1:]:
            path.write_bytes(raw[path])
        pack_up(spool, paths[1:])
    else:
        assert bring(lake, spool).segments == 3
        paths[1].write_bytes(raw[paths[1]])
    assert bring(lake, spool).plans == []
    assert adds_up(lake, spool)["steps"].stored == 30
    assert len(stored_slots(lake)) == len(set(stored_slots(lake))) == 30


def test_one_damaged_member_blocks_no_other(lake, spool):
    """A member whose bytes have decayed is put into quarantine, counted by its name; the others are stored."""
    hurt = three(spool)[1]
    raw = bytearray(hurt.read_bytes())
    raw[100] ^= 1
    hurt.write_bytes(raw)
    pack_up(spool)
    done = bring(lake, spool)
    assert (done.segments, done.unreadable, done.rows_stored, done.rows_rejected) == (3, 1, 20, 10)
    assert (spool.parent / "lake" / "quarantine" / hashlib.sha256(raw).hexdigest()).read_bytes() == raw
    assert adds_up(lake, spool)["steps"].quarantined == 10
    assert bring(lake, spool).plans == []


def test_a_pack_without_its_directory_gives_what_is_whole(lake, spool):
    """A pack that was cut off is put into quarantine, and its whole members are stored all the same."""
    three(spool)
    packed = pack_up(spool)
    raw = packed.read_bytes()
    packed.write_bytes(raw[: len(raw) * 3 // 4])
    done = bring(lake, spool)
    assert (done.segments, done.rows_stored) == (4, 20)
    assert done.unreadable == 2  # the third member and the pack
    found = adds_up(lake, spool)
    assert (found["steps"].stored, found["steps"].quarantined) == (20, 10)
    assert bring(lake, spool).plans == []
    assert bring(lake, spool, keep_days=-1).purged == 1


def test_a_pack_goes_when_all_its_members_may(lake, spool):
    """A pack stays as long as one of its members is new, and goes as one file."""
    paths = three(spool)
    raw = [path.read_bytes() for path in paths]
    bring(lake, spool)
    new = put_segment(spool, step_rows(10, rank=7, incarnation=7))
    paths[0].write_bytes(raw[0])
    packed = pack_up(spool, [paths[0], new])
    listed = Spool(str(spool))
    told = IngestionIndex(lake.store, delta_table(lake.store, "segments"))
    assert purge(listed, told.recent_member_count, told.rows_about, datetime.now(UTC).date(), -1) == 2
    assert packed.exists()
    bring(lake, spool)
    assert bring(lake, spool, keep_days=-1).purged == 1
    assert not packed.exists()
    assert len(stored_slots(lake)) == 40


def test_a_pack_that_vanishes_while_it_is_listed_is_passed_by(lake, spool, monkeypatch):
    """Another driver removed it meanwhile: nothing is raised, nothing is in flight."""
    three(spool)
    packed = pack_up(spool)
    listed = Spool(str(spool))
    files = listed.files()
    packed.unlink()
    assert listed.open(files) == []


def test_packs_are_read_from_object_stores(lake, spool):
    """What is listed, opened and read by ranges of a store that is no folder is the same."""
    store = MemoryFileSystem()
    for path in [*three(spool), pack_up(spool)]:
        if path.exists():
            store.pipe_file(f"/packs-test/{path.relative_to(spool)}", path.read_bytes())
    try:
        done = ingest(lake, Spool("memory://packs-test"), InProcess())
        assert (done.segments, done.rows_stored, done.unreadable) == (3, 30, 0)
        assert ingest(lake, Spool("memory://packs-test"), InProcess(), keep_days=-1).purged == 1
        assert store.find("/packs-test/segments") == []
    finally:
        store.store.clear()


def test_members_that_lie_side_by_side_are_read_at_one_go(spool):
    """A task's share of a pack is one read of the store, not one for each member."""
    three(spool)
    pack_up(spool)
    asked = []

    class Counting(LocalFileSystem):
        def cat_file(self, path, start=None, end=None, **options):
            asked.append((start, end))
            return super().cat_file(path, start, end, **options)

    paths = [item.path for item in Spool(str(spool)).listing()]
    reader = Reader(Counting(), paths)
    got = [hashlib.sha256(reader.read(path)).hexdigest() for path in paths]
    assert [digest in path for digest, path in zip(got, paths, strict=True)] == [True] * 3
    assert len(asked) == 1
    assert reader._held == {}
