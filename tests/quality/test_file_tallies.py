"""Tallies of data files that are kept: a check that reads only new files says what one that reads all says."""

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from governed import Site, any_rows, under
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from segments import DAY, step_rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import replace_partitions
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.quality import scan, tally
from ranklake.quality.check import run_checks
from ranklake.quality.keys import near_files

LOSSES = """
extends: steps
checks:
  - {{id: loss_small, kind: between, columns: [loss], max: {most}, on_fail: {on_fail}}}
  - {{id: loss_seldom_repeats, kind: duplicates, columns: [loss], max: 0.2, severity: warning}}
"""


@pytest.fixture(autouse=True)
def _kept_of_few_rows(monkeypatch):
    monkeypatch.setattr(tally, "LEAST_ROWS", 0)


def plain(report):
    """Results by table, date and check, without when, by which run, and the names of files that it left."""
    facts = [replace(one, check_run="", ts=DAY, duration_s=None, files_sha256="") for one in report.results]
    return {(one.table, one.partition_date, one.check_id): one for one in facts}


def checked_both_ways(lake):
    """Check, and check a copy of the lake that has no record; compare all of what the first said."""
    copy = Path(lake.uri).with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(lake.uri, copy)
    shutil.rmtree(copy / "tallies", ignore_errors=True)
    whole = plain(run_checks(Lake.open(str(copy), config=lake.config), again=True))
    found = plain(run_checks(lake))
    assert found == {key: whole[key] for key in found}
    return found


def bring_others(site):
    """Bring a row of another table: what was written to steps outside of plans took the next plan's number there."""
    plan = delta_table(site.lake.store, "ingest_plans").version()
    site.bring(any_rows("runs", 1, segment=plan, start=DAY), "runs")


class Life:
    """A lake to which random things happen."""

    def __init__(self, folder):
        self.site = Site(folder)
        self.lake, self.number, self.rows = self.site.lake, 0, 0

    def append(self, ranks, count, gap_s, *, repeats):
        """Bring rows of some ranks, later than all before; perhaps of steps that were there."""
        self.number += 1
        segment = 1 if repeats else self.number
        for rank in range(ranks):
            start = DAY + timedelta(seconds=self.rows + gap_s)
            rows = step_rows(count, segment=segment, rank=rank, incarnation=100 * self.number + rank, start=start)
            flat = pa.array(np.full(count, 2.5, np.float32))
            rows = rows if self.number % 3 else rows.set_column(rows.schema.get_field_index("loss"), "loss", flat)
            self.site.bring(rows)
        self.rows += gap_s + count

    def compact(self):
        """Merge small files."""
        merge_small(self.lake, InProcess(), ["steps"], thorough=True)

    def recut(self, share):
        """Replace all files by one with a part of the rows."""
        steps = contract("steps")
        rows = read(self.lake.tables, steps)
        replace_partitions(self.lake.tables, steps, rows.slice(0, max(1, int(share * len(rows)))), [DAY.date()])
        bring_others(self.site)

    def change(self, most, on_fail):
        """Change the contract; failing rows are taken out where it says so."""
        self.lake = under(self.site.lake, self.site.overlay(steps=LOSSES.format(most=most, on_fail=on_fail)))

    def forget(self):
        """Lose the record."""
        shutil.rmtree(Path(self.lake.uri) / "tallies", ignore_errors=True)


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3), st.integers(1, 60), st.sampled_from([0, 0, 30]), st.booleans()),
    st.tuples(st.just("compact")),
    st.tuples(st.just("recut"), st.floats(0.1, 0.9)),
    st.tuples(st.just("change"), st.sampled_from([2.9, 3.1, 9.0]), st.sampled_from(["record", "quarantine"])),
    st.tuples(st.just("forget")),
)


@pytest.mark.slow
@settings(
    max_examples=10,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a story takes seconds: shrinking it would take minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(story=st.lists(STEPS, min_size=3, max_size=8))
def test_what_was_read_before_changes_no_digit(tmp_path_factory, story):
    """After each of appends, merges, lost rows, changed contracts and quarantines both checks say the same."""
    life = Life(tmp_path_factory.mktemp("life"))
    life.append(2, 40, 0, repeats=False)
    checked_both_ways(life.lake)
    for name, *values in story:
        given_by_name = {"repeats": values.pop()} if name == "append" else {}
        getattr(life, name)(*values, **given_by_name)
        checked_both_ways(life.lake)


def tallied(monkeypatch):
    """Paths of the files whose rows are read for their tallies, from now on."""
    paths = []
    read_file = scan._Reader._tally

    def watched(self, file):
        paths.extend(file["path"].to_pylist())
        return read_file(self, file)

    monkeypatch.setattr(scan._Reader, "_tally", watched)
    return paths


def test_only_files_that_came_since_are_read(site, monkeypatch):
    """Of a date that grew only the new file is read, and all of them once the contract changed or the record is bad."""
    site.bring(step_rows(50))
    run_checks(site.lake)
    site.bring(step_rows(50, segment=1, start=DAY + timedelta(seconds=50)))
    seen = tallied(monkeypatch)
    found = plain(run_checks(site.lake))
    assert len(seen) == 1
    unique = found["steps", DAY.date(), "steps_unique"]
    assert (unique.status, unique.rows_checked) == ("passed", 100)
    (record,) = Path(site.lake.path("tallies", "steps")).iterdir()
    sound = record.read_bytes()
    for damaged in (sound[:-1], sound[:40], b"", sound[:32] + b"\xc1", b"x" * 500):
        record.write_bytes(damaged)
        seen.clear()
        site.lake = Lake.open(site.lake.uri)
        assert plain(run_checks(site.lake, again=True)) == found
        assert len(seen) == 2
        assert record.read_bytes() == sound
    seen.clear()
    other = under(site.lake, site.overlay(steps=LOSSES.format(most=9, on_fail="record")))
    run_checks(other)
    assert len(seen) == 2


def test_workers_are_started_for_new_rows_only(site, monkeypatch):
    """The expected work of a check counts the rows of files that no earlier check has read."""
    monkeypatch.setattr(tally, "LARGE_ROWS", 0)
    expected = []

    class Counting(InProcess):
        def fitting(self, cpu_s):
            expected.append(cpu_s)
            return self

    site.bring(step_rows(500))
    run_checks(site.lake, workers=Counting())
    assert expected[0] == pytest.approx(scan.PARTITION_CPU_S + 500 * scan.ROW_CPU_S)
    site.bring(step_rows(20, segment=1, start=DAY + timedelta(seconds=500)))
    expected.clear()
    run_checks(site.lake, ["steps"], workers=Counting())
    assert expected[0] == pytest.approx(scan.PARTITION_CPU_S + 20 * scan.ROW_CPU_S)


def test_a_stale_tally_is_seen(site):
    """The comparison would find a tally that is not of its file's rows."""
    site.bring(step_rows(50))
    run_checks(site.lake)
    (record,) = Path(site.lake.path("tallies", "steps")).iterdir()
    body = tally._unpack(record.read_bytes()[32:])
    (path,) = body[2]
    tallies = [list(one) for one in body[2][path]]
    tallies[0][0] -= 1
    raw = tally.msgpack.packb([*body[:2], {path: tallies}, body[3]], default=tally._pack_array)
    record.write_bytes(tally.hashlib.sha256(raw).digest() + raw)
    site.bring(step_rows(50, segment=1, start=DAY + timedelta(seconds=50)))
    with pytest.raises(AssertionError):
        checked_both_ways(site.lake)


def test_keys_that_repeat_in_files_read_before_are_found(site):
    """A new file whose keys an old one has fails, though the old one is not read again but for its keys."""
    site.bring(step_rows(50))
    site.bring(step_rows(50, segment=1, start=DAY + timedelta(seconds=50)))
    run_checks(site.lake)
    site.bring(step_rows(7, incarnation=8))
    unique = plain(run_checks(site.lake))["steps", DAY.date(), "steps_unique"]
    assert (unique.status, unique.rows_checked, unique.rows_failed) == ("failed", 107, 7)
    site.bring(step_rows(5, segment=2, incarnation=9))
    unique = plain(run_checks(site.lake))["steps", DAY.date(), "steps_unique"]
    assert (unique.status, unique.rows_checked, unique.rows_failed) == ("failed", 112, 7)


RANGES = st.lists(
    st.tuples(
        st.none() | st.tuples(st.integers(-3, 9), st.integers(0, 3)),
        st.none() | st.tuples(st.integers(0, 9), st.integers(0, 2)),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@given(ranges=RANGES)
def test_files_are_apart_only_where_ranges_are(ranges):
    """A known file is left out if, against each of the others, the log gives a column ranges that do not overlap."""

    def ends(at, side):
        spans = [one[at] for one in ranges]
        return pa.array([None if span is None else span[0] + span[1] * side for span in spans], pa.int64())

    names = [str(number) for number in range(len(ranges))]
    columns = {"path": names, "num_records": [1] * len(names)}
    columns |= {
        f"{side}.{name}": ends(at, way) for at, name in enumerate("ab") for way, side in ((0, "min"), (1, "max"))
    }
    known = frozenset(name for name, one in zip(names, ranges, strict=True) if one[2])
    chosen = set(near_files(pa.table(columns), ["a", "b", "c"], known)["path"].to_pylist())

    def may_share(one, other):
        return all(
            x is None or y is None or (x[0] <= y[0] + y[1] and y[0] <= x[0] + x[1])
            for x, y in zip(one[:2], other[:2], strict=True)
        )

    others = [one for one in ranges if not one[2]]
    for name, one in zip(names, ranges, strict=True):
        assert (name in chosen) == (not one[2] or any(may_share(one, other) for other in others))


def test_records_of_dates_that_are_gone_go(site):
    """A date without rows keeps no record once its table is checked again; other dates keep theirs."""
    later = DAY + timedelta(days=1)
    site.bring(step_rows(10))
    site.bring(step_rows(10, segment=1, start=later))
    run_checks(site.lake)
    folder = Path(site.lake.path("tallies", "steps"))
    assert len(list(folder.iterdir())) == 2
    steps = contract("steps")
    replace_partitions(site.lake.tables, steps, read(site.lake.tables, steps).slice(0, 0), [DAY.date()])
    bring_others(site)
    site.bring(step_rows(10, segment=2, start=later))
    run_checks(site.lake)
    assert [path.name for path in folder.iterdir()] == [f"{later.date()}.msgpack"]
