"""Faults that are planted in sound tables: each is found where it is, and nothing else is."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from planted import FAULTS, SOUND, dates_of, sound

from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import replace_partitions
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table
from ranklake.quality import scan, tally
from ranklake.quality.check import run_checks
from ranklake.quality.suite import as_stored, compile_suite
from ranklake.quality.tally import Partition

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Check a lake of all tables with all faults; give it and the report. Tallies of few rows are kept, too."""
    lake = Lake.create(str(tmp_path_factory.mktemp("planted") / "lake"))
    # runs of all dates that any table has, so that only rows of no run are of none
    longest = max(day for table in SOUND for day in (*dates_of(table)[0].values(), *dates_of(table)[1]))
    for table in SOUND:
        at, quiet = dates_of(table)
        faulty = {day: FAULTS[name] for name, day in at.items()}
        days = sorted([*quiet, *faulty])
        while table == "runs" and days[-1] < longest:
            days.append(days[-1] + (days[1] - days[0]))
        parts = [faulty[day].make(sound(table, day)) if day in faulty else sound(table, day) for day in days]
        replace_partitions(lake.tables, contract(table), pa.concat_tables(parts), days)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tally, "LEAST_ROWS", 0)
        return lake, run_checks(lake)


@pytest.fixture(scope="module")
def unsound(checked):
    """Give what failed or errored, by table and date."""
    by_place = {}
    _, report = checked
    for result in report.unsound:
        by_place.setdefault((result.table, result.partition_date), []).append(result)
    return by_place


def test_there_are_sixty_kinds_of_faults_over_eight_tables():
    """The table of faults is as wide as it should be."""
    assert len(FAULTS) >= 60
    assert {fault.table for fault in FAULTS.values()} == set(SOUND)
    assert len(SOUND) >= 8


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(unsound, name):
    """It is told at its table, date and column, by the check and with the severity that are due."""
    fault = FAULTS[name]
    results = unsound.get((fault.table, dates_of(fault.table)[0][name]), [])
    told = {(one.check_id, one.column, one.severity, one.status) for one in results}
    assert (fault.check, fault.column, fault.severity, "failed") in told
    assert "errored" not in {one.status for one in results}
    (result,) = (one for one in results if one.check_id == fault.check)
    assert 0 < result.rows_failed <= result.rows_checked
    assert result.expected


@pytest.mark.parametrize("table", SOUND)
def test_sound_dates_give_nothing_above_info(unsound, table):
    """On dates without a fault nothing is told that is worse than info."""
    _, quiet = dates_of(table)
    told = [
        (one.partition_date, one.check_id, one.severity, one.status, one.observed)
        for day in quiet
        for one in unsound.get((table, day), [])
        if one.severity != "info" or one.status == "errored"
    ]
    assert told == []


@pytest.mark.parametrize("table", SOUND)
def test_tallies_of_all_files_are_kept(checked, table, monkeypatch):
    """What any packaged check sums up of a file can be written down and read again, so that none is read for ever."""
    monkeypatch.setattr(tally, "LEAST_ROWS", 0)
    lake, _ = checked
    stored = as_stored(lake.tables, contract(table))
    suite, live = compile_suite(stored, lake.catalog.metrics()), files(delta_table(lake.store, table))
    for day in set(live["date"].to_pylist()):
        part = Partition(day, 0, live.filter(pc.equal(live["date"], pa.scalar(day))))
        assert tally.is_storable(stored, suite, part)
        known = tally.load(lake.store, stored, suite, part, scan.BATCH_ROWS)
        assert known.files.keys() == set(part.files["path"].to_pylist())
