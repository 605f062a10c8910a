"""Writers and lakes of different releases: whatever was recorded is stored once, with all its columns, in the end."""

from pathlib import Path

import pyarrow as pa
import pytest
from bringing import adds_up, bring
from changed_contracts import ChangedContracts
from packing import pack_up
from segments import put_segment, step_rows

from ranklake.lake.contracts.load import contract, load_contracts
from ranklake.lake.ingest.segment_columns import NEWER_FORMAT, known_here
from ranklake.lake.plans.plan import last_finished
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Return contracts of a later release, with a column more in ``steps``; they hold until a test goes back."""
    contracts = ChangedContracts(tmp_path / "contracts", monkeypatch)
    contracts.add("steps", id=900, name="samples_skipped", type="int64", unit="{sample}")
    yield contracts
    contracts.earlier()


def newer_rows(count, **facts):
    """Return rows of ``steps`` with the later column: 100 and the slot."""
    rows = step_rows(count, **facts)
    values = pa.array([100 + slot for slot in rows["slot"].to_pylist()], pa.int64())
    place = rows.schema.get_field_index("samples_skipped")
    if place < 0:
        return rows.append_column("samples_skipped", values)
    return rows.set_column(place, rows.schema.field(place), values)


def stored(lake):
    """Return segment, slot and the later column of all rows of ``steps``, in order."""
    names = [name for name in ("segment", "slot", "samples_skipped") if name in contract("steps")]
    return [tuple(row.values()) for row in sorted(read(lake.tables, contract("steps"), names).to_pylist(), key=str)]


WRITERS = {"older": None, "newer": 100}


@pytest.mark.slow
@pytest.mark.parametrize("first", WRITERS)
@pytest.mark.parametrize("second", WRITERS)
def test_any_writers_and_any_lake_end_alike(lake, spool, changed, first, second):
    """Two writers, before and after the lake is upgraded: each of their rows is stored once, with its values."""

    def write(writer, segment, rows_before):
        (changed.later if writer == "newer" else changed.earlier)()
        rows = (newer_rows if writer == "newer" else step_rows)(3, segment=segment)
        put_segment(spool, rows, rows_before=rows_before)

    def value(writer, slot):
        return None if WRITERS[writer] is None else WRITERS[writer] + slot

    write(first, 0, 0)
    changed.earlier()
    done = bring(lake, spool)
    assert (done.rows_stored, done.unreadable, done.rows_rejected) == (3 if first == "older" else 0, 0, 0)
    write(second, 1, 3)
    changed.earlier()
    bring(lake, spool)
    waiting = sum(3 for writer in (first, second) if writer == "newer")
    assert len(stored(lake)) == 6 - waiting
    assert adds_up(lake, spool)["steps"].in_flight == waiting
    plans = last_finished(lake.tables)
    again = bring(lake, spool, keep_days=-1)  # what waits costs no plan, and does not go from the spool
    assert again.plans == []
    assert list(again.held) == ([known_here("steps", load_contracts())] if waiting else [])
    changed.later()
    assert (bring(lake, spool).rows_stored, bring(lake, spool).plans) == (waiting, [])
    assert stored(lake) == [(at, slot, value(who, slot)) for at, who in enumerate((first, second)) for slot in range(3)]
    assert last_finished(lake.tables) == plans + bool(waiting)
    assert adds_up(lake, spool)["steps"].in_flight == 0
    assert not Path(lake.path("quarantine")).exists()


@pytest.mark.slow
def test_an_upgrade_that_is_not_far_enough_waits_again(lake, spool, changed):
    """A segment of version 3 is looked at once by versions 1 and 2 each, and stored by 3."""
    changed.add("steps", id=901, name="later_still", type="string")
    put_segment(spool, newer_rows(3))
    changed.earlier()
    held = [*bring(lake, spool).held]
    taken = []
    changed.edit("steps", lambda facts: (taken.append(facts["columns"].pop()), facts.update(version=2)))
    changed.later()
    held += [*bring(lake, spool).held, *bring(lake, spool).held]
    assert [why.partition(" (")[0][-9:] for why in held] == ["version 1", "version 2", "version 2"]
    assert last_finished(lake.tables) == 2
    changed.edit("steps", lambda facts: (facts["columns"].append(taken.pop()), facts.update(version=3)))
    assert bring(lake, spool).rows_stored == 3
    adds_up(lake, spool)


def test_columns_tables_and_formats_that_are_not_known_wait(lake, spool, changed):
    """An unknown column of the same version (an overlay's), an unknown table, a later footer: none is quarantined."""
    changed.new("rewards", "steps")
    put_segment(spool, newer_rows(2, incarnation=1), table="rewards")
    changed.earlier()
    put_segment(spool, newer_rows(3, incarnation=2))
    put_segment(spool, step_rows(4, incarnation=3), format=2)
    put_segment(spool, step_rows(5, incarnation=4))
    done = bring(lake, spool)
    assert (done.rows_stored, done.unreadable, done.rows_rejected) == (5, 0, 0)
    known = (known_here(name, load_contracts()) for name in ("steps", "rewards"))
    assert set(done.held) == {*known, NEWER_FORMAT}
    assert done.held == bring(lake, spool).held
    changed.later()
    changed.edit("steps", lambda facts: facts.update(version=1))
    assert bring(lake, spool).rows_stored == 5
    assert (delta_table(lake.store, "rewards") is not None, len(stored(lake))) == (True, 8)


def test_a_pack_of_old_and_new_segments_is_taken_in_twice_and_stored_once(lake, spool, changed):
    """The older members of a pack are stored now, the newer ones after the upgrade; until then the pack stays."""
    put_segment(spool, newer_rows(3, incarnation=2))
    changed.earlier()
    put_segment(spool, step_rows(4, incarnation=1))
    pack_up(spool)
    assert bring(lake, spool, keep_days=-1).rows_stored == 4
    assert bring(lake, spool, keep_days=-1).purged == 0
    changed.later()
    assert bring(lake, spool).rows_stored == 3
    assert len(stored(lake)) == 7
    assert bring(lake, spool, keep_days=-1).purged == 1


def test_what_is_not_a_newer_segment_is_still_set_aside(lake, spool, changed):
    """A table that ranks do not record, wrong bytes under an unknown table's folder: into quarantine, as ever."""
    changed.earlier()
    put_segment(spool, step_rows(3, incarnation=1), table="audit")
    path = put_segment(spool, step_rows(3, incarnation=2), table="steps")
    stray = path.parent.parent / "no_such_table" / path.name
    stray.parent.mkdir()
    path.rename(stray)
    done = bring(lake, spool)
    assert (done.unreadable, done.held) == (2, {})


def test_metrics_that_nobody_registered_are_stored(lake, spool):
    """The registry describes metrics; a name that it does not have is no reason to refuse a value."""
    rows = step_rows(3).select(["run", "attempt", "rank", "incarnation", "segment", "slot", "ts", "step"])
    rows = rows.append_column("metric", pa.array(["of.a.later.release"] * 3)).append_column(
        "value", pa.array([1.0, 2, 3])
    )
    put_segment(spool, rows, table="scalars")
    assert bring(lake, spool).rows_stored == 3
