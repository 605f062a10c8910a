"""Several segments for one slot file: a repeat is a repeat, and what contradicts it is kept apart and told."""

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from bringing import under
from ciphered import ONE, TWO, encrypt_segment, source_of
from packing import pack_up
from segments import DAY, put_segment, step_rows
from signed import sign_segment

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.deduplication import SlotClaim, disagree, without_earlier
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import LakeConfig
from ranklake.lake.store.writers import CONFLICT, NOT_SIGNED, Prefix, Writers
from ranklake.lake.tables.read import read

EVERYBODY = Writers()


def bring(lake, spool, writers=EVERYBODY):
    return ingest(lake, Spool(str(spool), None, under(writers)), InProcess())


def losses(lake):
    rows = read(lake.tables, contract("steps"), ["segment", "slot", "loss"]).to_pylist()
    return {(row["segment"], row["slot"]): row["loss"] for row in rows}


def meant(rows):
    return {(row["segment"], row["slot"]): row["loss"] for row in rows.to_pylist()}


def reasons(lake):
    return Counter(read(lake.tables, contract("segments"), ["unreadable"])["unreadable"].drop_null().to_pylist())


def adds_up(lake, spool, writers=EVERYBODY):
    listing = Spool(str(spool), None, under(writers)).listing()
    assert [fault for item in balance(lake, listing) for fault in item.faults] == []


@pytest.mark.parametrize("packed", [False, True])
def test_what_contradicts_what_is_stored_is_set_aside(lake, spool, packed):
    """First stays stored; the other's bytes are in quarantine, its rows in the books, and no repeat is claimed."""
    paths = [put_segment(spool, step_rows(10)), put_segment(spool, step_rows(10, segment=1))]
    if packed:
        pack_up(spool, paths)
    bring(lake, spool)
    other = put_segment(spool, step_rows(10, seed=9))
    raw = other.read_bytes()
    done = bring(lake, spool)
    assert (done.rows_stored, done.rows_duplicate, done.rows_rejected) == (0, 0, 10)
    assert done.refused == {CONFLICT.removeprefix("refused: "): 1}
    assert losses(lake) == meant(step_rows(10)) | meant(step_rows(10, segment=1))
    assert [path.read_bytes() for path in Path(lake.path("quarantine")).iterdir()] == [raw]
    adds_up(lake, spool)
    assert bring(lake, spool).plans == []


def test_two_that_come_together_and_disagree(lake, spool):
    """One is stored whole, the other is set aside whole: rows of both are never mixed."""
    one, other = step_rows(10), step_rows(14, seed=3)
    put_segment(spool, one)
    put_segment(spool, other)
    put_segment(spool, step_rows(10, segment=1))
    bring(lake, spool)
    assert losses(lake) in ({**meant(one), **meant(step_rows(10, segment=1))},
                            {**meant(other), **meant(step_rows(10, segment=1))})  # fmt: skip
    assert reasons(lake) == {CONFLICT: 1}
    adds_up(lake, spool)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_slot_file_sealed_again_is_a_repeat(lake, spool, at_once):
    """Whoever seals it, with more rows, by another writer, with times told by other anchors: nothing contradicts."""
    put_segment(spool, step_rows(10))
    if not at_once:
        bring(lake, spool)
    put_segment(spool, step_rows(15), writer="another version")
    put_segment(spool, step_rows(12, start=DAY + timedelta(microseconds=40)))
    put_segment(spool, step_rows(5, first_slot=12))
    bring(lake, spool)
    assert losses(lake) == meant(step_rows(17))
    assert reasons(lake) == {}
    adds_up(lake, spool)


def test_once_the_first_has_left_the_spool_a_repeat_is_taken_for_one(lake, spool):
    """There is nothing to hold it against any more: its slots came, so its rows do not come again."""
    path = put_segment(spool, step_rows(10))
    bring(lake, spool)
    path.unlink()
    put_segment(spool, step_rows(10, seed=9))
    assert bring(lake, spool).rows_duplicate == 10
    assert losses(lake) == meant(step_rows(10))


@pytest.mark.parametrize("how", ["signed", "encrypted"])
def test_of_two_that_come_together_the_vouched_for_is_heard_first(spool, tmp_path, how):
    """Whatever their names' order, a signed or encrypted segment beats the clear one of its stream."""
    writers = Writers((Prefix(keys=source_of(tmp_path / "sign", ONE)),))
    lake = Lake.create(str(tmp_path / "lake"), config=LakeConfig(encryption_key=source_of(tmp_path / "keys", TWO)))
    genuine = step_rows(10)
    path = put_segment(spool, genuine)
    if how == "signed":
        sign_segment(path, ONE)
    else:
        encrypt_segment(path, TWO)
    for seed in range(1, 4):
        put_segment(spool, step_rows(12, seed=seed))
    bring(lake, spool, writers)
    assert losses(lake) == meant(genuine)
    assert sum(reasons(lake).values()) == 3
    adds_up(lake, spool, writers)
    put_segment(spool, step_rows(12, seed=7))
    bring(lake, spool, writers)
    assert losses(lake) == meant(genuine)
    assert how == "encrypted" or reasons(lake)[NOT_SIGNED] == 1


def test_what_a_team_signs_twice_is_its_own_affair(lake, spool, tmp_path):
    """Of two signed segments with other values the first stays, and the second's slots are repeats."""
    writers = Writers((Prefix(require_signed=True, keys=source_of(tmp_path / "sign", ONE, TWO)),))
    sign_segment(put_segment(spool, step_rows(10)), ONE)
    bring(lake, spool, writers)
    sign_segment(put_segment(spool, step_rows(12, seed=4)), TWO)
    done = bring(lake, spool, writers)
    assert (done.rows_stored, done.rows_duplicate, done.refused) == (2, 10, {})
    adds_up(lake, spool, writers)


def test_a_longer_cut_that_contradicts_leaves_no_hole_in_the_books(lake, spool):
    """Rows that only the set aside segment has are quarantined, not missing."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    put_segment(spool, step_rows(15, seed=5))
    put_segment(spool, step_rows(10, segment=1), rows_before=15)
    bring(lake, spool)
    assert reasons(lake) == {CONFLICT: 1}
    adds_up(lake, spool)


def said(*, signed=False, **columns):
    return SlotClaim(pa.table(columns), signed)


def test_what_counts_as_disagreeing():
    """Other values for a slot that both have; not other times, nor other slots, nor text stored in another way."""
    one = said(slot=[0, 1, None], loss=[0.5, float("nan"), 7.0], ts=[1, 2, 3], name=["a", "b", "c"])
    assert not disagree(one, one)
    assert not disagree(one, said(slot=[5, None], loss=[9.0, 9.0], ts=[1, 2], name=["z", "z"]))
    words = pa.array(["b", "a"]).dictionary_encode()
    again = said(slot=[1, 0], loss=[float("nan"), 0.5], ts=[8, 9], name=words)
    assert not disagree(one, again)
    assert disagree(one, said(slot=[1], loss=[0.5], ts=[2], name=["b"]))
    assert disagree(one, said(slot=[0], loss=[0.5], ts=[1], name=["b"]))
    assert disagree(one, said(slot=[0], loss=[0.5], ts=[1]))
    assert disagree(one, said(slot=[0], loss=[0.5], ts=[1], name=["a"], extra=[1]))
    assert not disagree(said(signed=True, slot=[0], loss=[1.0]), said(signed=True, slot=[0], loss=[2.0]))
    assert disagree(said(signed=True, slot=[0], loss=[1.0]), said(slot=[0], loss=[2.0]))
    assert without_earlier(said(slot=[0, 1, 2]), [said(slot=[1])]).rows["slot"].to_pylist() == [0, 2]
