"""Rollups on workers: what another process computes and writes is what this one would have."""

import os
import pickle
import signal
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

import pytest
from lake_fixtures import copied
from rollup_inputs import NOON, append, bring, run_of, state

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.dask_workers import workers
from ranklake.lake.plans.workers import DaskSection, Later, OneByOne, Room
from ranklake.lake.rollups import inputs, work
from ranklake.lake.rollups.lineage import Lineage
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.rollups.work import Work
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import CostSection
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.lake.tables.commit import LostRaceError
from ranklake.lake.tables.read import read

pytestmark = pytest.mark.slow

POOL = {"cluster": "c", "pool": "p", "interval_ns": 60 * 10**9, "gpu_total": 16.0, "gpu_allocated": 8.0}


class Elsewhere(OneByOne):
    """Carries out tasks as another process would get them: as bytes, and without this process's open lake."""

    def __init__(self, there=nullcontext):
        self.sent, self._there = [], there

    def room(self):
        """Return room for two."""
        return Room(2, 2**31)

    def carry_out(self, work, task):
        """Carry out one task."""
        self.sent.append(task.rollup.name)
        sent = pickle.dumps((work, task))
        with self._there():
            work, task = pickle.loads(sent)
            return work(task)


@pytest.fixture(scope="module")
def two_days(tmp_path_factory):
    """Give a lake with a run on each of two days, and all rows that rolling it up in this process gives."""
    lake = Lake.create(str(tmp_path_factory.mktemp("two") / "lake"))
    bring(lake, run_of("a"), run_of("b", start=NOON + timedelta(days=1), seed=1))
    append(lake, "pools", [{"ts": NOON, **POOL, "gpu_idle": 8.0, "job_pending": 2}])
    here = copied(lake, tmp_path_factory.mktemp("here"))
    run_rollups(here)
    return lake, state(here, ROLLUPS)


def commits(monkeypatch):
    """Return a list to which each rollup's name comes as it is committed."""
    commit, names = Work._commit, []

    def noted(work, found):
        commit(work, found)
        names.append(work.rollup.name)

    monkeypatch.setattr(Work, "_commit", noted)
    return names


def come_after_what_they_read(names):
    """Say whether each rollup comes after all that it reads, by the first time that each is there."""
    at = {name: number for number, name in reversed(list(enumerate(names)))}
    return all(at[read] < at[one.name] for one in ROLLUPS if one.name in at for read in one.tables if read in at)


@pytest.mark.leaky("distributed keeps threads of its own for a while")
def test_a_cluster_computes_what_one_process_does(two_days, tmp_path, monkeypatch):
    """Each date and each rollup's runs are a task; a second round computes nothing."""
    lake, alone = copied(two_days[0], tmp_path), two_days[1]
    committed = commits(monkeypatch)
    with workers(DaskSection(workers=2)) as crew:
        results = run_rollups(lake, workers=crew)
        again = run_rollups(lake, workers=crew)
    assert state(lake, ROLLUPS) == alone
    assert {one.name: len(one.partitions) for one in results}["step_rollup"] == 2
    assert [one.name for one in results] == [rollup.name for rollup in ROLLUPS]
    assert not any(one.partitions or one.computed for one in again)
    told = read(lake.tables, contract("lineage"), ["input_table", "input_version"]).to_pylist()
    now = {one.name: one.version for one in results}
    assert all(one["input_version"] == now[one["input_table"]] for one in told if one["input_table"] in now)
    assert come_after_what_they_read(committed)


@pytest.mark.leaky("distributed keeps threads of its own for a while")
def test_a_worker_that_is_killed_takes_no_row_with_it(two_days, tmp_path, monkeypatch):
    """What it had is computed again, into other files than were committed: rows are the same, and later rounds rest."""
    lake, alone = copied(two_days[0], tmp_path), two_days[1]
    commit, killed = Work._commit, []

    def killing(work, found):
        commit(work, found)
        if not killed:
            killed.extend(crew.client.run(os.getpid).values())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(Work, "_commit", killing)
    with workers(DaskSection(workers=2)) as crew:
        run_rollups(lake, workers=crew)
        assert state(lake, ROLLUPS) == alone
        run_rollups(lake, workers=crew)
        rests = run_rollups(lake, workers=crew)
    assert state(lake, ROLLUPS) == alone
    assert len(killed) == 2
    assert not any(one.partitions or one.computed for one in rests)


@pytest.mark.leaky("distributed keeps threads of its own for a while")
def test_a_race_that_is_lost_after_a_commit_undoes_no_commit(two_days, tmp_path, monkeypatch):
    """Lineage is written now and then while a round goes on: if that is lost, what was committed stays whole."""
    lake = copied(two_days[0], tmp_path)

    def lost(*_):
        raise LostRaceError("lineage moved on")

    with workers(DaskSection(workers=2)) as crew, monkeypatch.context() as patch:
        patch.setattr(Lineage, "note", lost)
        with pytest.raises(LostRaceError, match="lineage moved on"):
            run_rollups(lake, workers=crew)
    run_rollups(lake)
    assert state(lake, ROLLUPS) == two_days[1]


def test_rollups_are_computed_after_what_they_read(two_days, tmp_path):
    """Whatever can be computed is sent at once, what others wait for first; nothing before what it reads."""
    crew = Elsewhere()
    lake = copied(two_days[0], tmp_path)
    run_rollups(lake, workers=crew)
    assert state(lake, ROLLUPS) == two_days[1]
    assert crew.sent[0] == "step_rollup"
    assert come_after_what_they_read(crew.sent)


def test_a_pseudonyms_key_is_sent_nowhere(two_days, tmp_path, monkeypatch):
    """With a key for pseudonyms, what needs it is computed by the driver; without one it is sent like all others."""
    monkeypatch.setenv("OUR_KEY", "00" * 32)
    for number, source in enumerate(("", "env:OUR_KEY")):
        monkeypatch.setenv("RANKLAKE_PSEUDONYM_KEY", source)
        crew = Elsewhere()
        (tmp_path / str(number)).mkdir()
        results = run_rollups(copied(two_days[0], tmp_path / str(number)), workers=crew)
        assert [one.partitions for one in results if one.name == "cluster_hourly"] == [("2026-03-01",)]
        assert ("cluster_hourly" in crew.sent) is not bool(source)


def test_what_the_operator_said_goes_along(two_days, tmp_path):
    """Prices come with the task: a worker needs no file of the operator's."""
    prices, away = tmp_path / "prices.csv", tmp_path / "away.csv"
    prices.write_text("device_name,pool,price_per_device_hour,currency,valid_from,valid_to\n,,2,USD,2026-01-01,\n")
    (cost,) = (one for one in ROLLUPS if one.name == "cost")

    @contextmanager
    def there():
        prices.rename(away)
        yield
        away.rename(prices)

    def told(name, crew):
        (tmp_path / name).mkdir()
        lake = copied(two_days[0], tmp_path / name).configured(cost=CostSection(prices=str(prices)))
        run_rollups(lake, [cost.name], workers=crew)
        return state(lake, [cost])["cost"]

    crew = Elsewhere(there)
    here = told("here", None)
    assert told("there", crew) == here
    assert cost.name in crew.sent
    assert here["currency"].null_count < here.num_rows


class Backwards(Elsewhere):
    """Has of all tasks that are under way the least urgent end first, and knows which were asked for too early."""

    def __init__(self):
        super().__init__()
        self.early, self.begun, self.waited = [], [], False

    def begin(self, work, tasks, urgency=0):
        """Begin tasks that end in `wait` alone."""
        self.begun += [task.rollup.name for task in tasks]
        return UnderWay(self, super().begin(work, tasks), [task.rollup.name for task in tasks], urgency)

    def wait(self, pending):
        """Let the least urgent end."""
        self.waited = True
        min(pending, key=lambda one: one.urgency).is_done = True


@dataclass
class UnderWay:
    """Tasks that somebody else carries out."""

    crew: Backwards
    later: Later
    names: list[str]
    urgency: int
    is_done: bool = False
    is_deferred: bool = False

    def results(self):
        """Return what came of them, and note whether that had to be waited for."""
        if not self.is_done:
            self.crew.early += self.names
        return self.later.results()

    def cancel(self):
        """Do nothing."""


def test_who_ended_waits_for_nobody(two_days, tmp_path):
    """What ended is committed, and what reads it begins, while the more urgent is still being computed."""
    crew = Backwards()
    lake = copied(two_days[0], tmp_path)
    run_rollups(lake, workers=crew)
    assert crew.early == []
    assert crew.sent[-1] == "run_findings"
    assert crew.begun[0] == "step_rollup"  # of what can begin, what most others wait for
    then = crew.begun[crew.begun.index("attempt_facts") + 1 :][:2]
    assert then == ["goodput_daily", "rank_facts"]
    assert state(lake, ROLLUPS) == two_days[1]


def test_what_reads_dates_that_are_committed_in_parts_has_all_of_them(two_days, tmp_path, monkeypatch):
    """A rollup begins when the last commit of what it reads is made."""
    monkeypatch.setattr(work, "BATCH_ROWS", 1)
    lake = copied(two_days[0], tmp_path)
    results = run_rollups(lake, workers=Backwards())
    assert {one.name: len(one.partitions) for one in results}["step_rollup"] == 2
    assert state(lake, ROLLUPS) == two_days[1]


def test_a_log_that_cannot_be_read_stops_nobody_before_its_turn(two_days, tmp_path, monkeypatch):
    """What does not read it is committed, as in one process."""
    lake, look, committed = copied(two_days[0], tmp_path), inputs.snapshot, commits(monkeypatch)

    def failing(lake, table, **options):
        if table == "run_goodput":
            raise LakeUnreachableError("not now", where=table)
        return look(lake, table, **options)

    monkeypatch.setattr(inputs, "snapshot", failing)
    with pytest.raises(LakeUnreachableError, match="not now"):
        run_rollups(lake, workers=Backwards())
    assert {"step_rollup", "attempt_facts", "goodput_daily", "goodput"} <= set(committed)
