"""An erasure beside others that are at work: a rollup that read before it does not bring the person back after it."""

import json
import os
import time
from collections import Counter

import pytest
from governed import Site, any_rows
from segments import step_rows
from subjects import ADA, EMAIL, VALUES

from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.dask_workers import workers
from ranklake.lake.plans.workers import DaskSection
from ranklake.lake.rollups import tasks, work
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.tables.commit import LostRaceError
from ranklake.retention.erasure import apply as erasure_apply
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.search import search
from ranklake.retention.erasure.subject import Reach, subject_of

NAMES = ("attempt_facts", "run_summary")


@pytest.fixture
def site(tmp_path):
    """Return a lake with two users' runs, of which nothing was computed yet."""
    site = Site(tmp_path)
    for seed, who in ((100, ADA), (200, "grace.hopper")):
        site.bring(any_rows("runs", 1, run=f"exp-{seed}", incarnation=seed, user=[who]), "runs")
        moments = any_rows("events", 2, run=f"exp-{seed}", incarnation=seed + 1, event=["run.start", "run.end"])
        site.bring(moments, "events")
    return site


def agreed(site, *, computed_before):
    """Have one of the two erased by two people, with or without rollups before; return what applies that."""
    if computed_before:
        run_rollups(site.lake, NAMES)

    def reach():
        return Reach(site.lake, Spool(str(site.spool)))

    subject = subject_of(site.lake, VALUES)
    made = make_plan(reach(), subject)
    propose(site.lake, made, "Petra")
    approve(site.lake, made.name, "Anna")
    if computed_before:  # something is due
        site.bring(any_rows("runs", 1, run="exp-300", incarnation=300, user=["hedy.lamarr"]), "runs")
    return lambda: apply(reach(), made.name, subject, "Otto")


def derived(site):
    """Return all rows of derived tables as text."""
    names = [one.table for one in site.lake.contracts().values() if one.kind == "derived"]
    return json.dumps([site.rows(name) for name in names], default=str)


def before_commits(monkeypatch, act):
    """Do something once between what rollups computed and their first commit."""
    genuine, done = work.replace_files, []

    def late(*args, **kwargs):
        if not done:
            done.append(True)
            act()
        return genuine(*args, **kwargs)

    monkeypatch.setattr(work, "replace_files", late)


def nothing_is_left(site):
    """Say whether the person is in no row of derived tables, and no file at all."""
    assert EMAIL not in derived(site)
    assert f'"{ADA}"' not in derived(site)
    return not search(site.lake, Spool(str(site.spool)), VALUES).traces


@pytest.mark.slow
@pytest.mark.parametrize("computed_before", [False, True], ids=["first round", "later round"])
def test_a_rollup_that_read_before_an_erasure_does_not_commit_after_it(site, monkeypatch, computed_before):
    """Whether its table was there before or not, it begins anew; what it wrote for nothing is gone."""
    erase = agreed(site, computed_before=computed_before)
    certificates = []
    with monkeypatch.context() as patch:
        before_commits(patch, lambda: certificates.append(erase().certificate))
        with pytest.raises(LostRaceError):
            run_rollups(site.lake, NAMES)
    assert certificates[0].is_clean
    assert nothing_is_left(site)
    run_rollups(site.lake, NAMES)
    assert "grace.hopper" in derived(site)
    assert nothing_is_left(site)


def holding_back(table, gate):
    """Have this process write files of a table only when a gate is gone: it has computed them from what it read."""
    genuine = tasks.append_files

    def late(store, known, *args):
        while known.table == table and os.path.exists(gate):  # noqa: PTH110 - what a worker gets
            time.sleep(0.01)
        return genuine(store, known, *args)

    tasks.append_files = late


@pytest.mark.slow
@pytest.mark.leaky("distributed keeps threads of its own for a while")
def test_what_workers_compute_beside_what_lost_to_an_erasure_is_gone(site, tmp_path, monkeypatch):
    """Rollups that began with what was never committed, or beside it, had ended or write later: no file stays."""
    for seed in (100, 200):  # which has the attempts' facts wait for something that is committed before them
        site.bring(step_rows(2, run=f"exp-{seed}", incarnation=seed + 2))
    erase = agreed(site, computed_before=False)
    gate = tmp_path / "gate"
    gate.touch()

    def erased():
        while list(scheduler.tasks.values()) and not _is_at_work(scheduler, on=1):
            time.sleep(0.01)
        assert erase().certificate.is_clean
        gate.unlink()

    with workers(DaskSection(workers=2)) as crew, monkeypatch.context() as patch:
        scheduler = crew.client.cluster.scheduler
        crew.client.run(holding_back, "attempt_facts", str(gate))
        before_commits(patch, erased)
        with pytest.raises(LostRaceError):
            run_rollups(site.lake, NAMES, workers=crew)
        while any(crew.client.run(lambda dask_worker: bool(dask_worker.state.executing)).values()):
            time.sleep(0.01)
    assert not gate.exists()
    assert nothing_is_left(site)
    run_rollups(site.lake, NAMES)
    assert "grace.hopper" in derived(site)


def _is_at_work(scheduler, on):
    """Say whether so many tasks are being computed, and none waits that could be."""
    states = Counter(task.state for task in list(scheduler.tasks.values()))
    return states["processing"] == on and not states["queued"]


@pytest.mark.slow
@pytest.mark.parametrize("computed_before", [False, True], ids=["first round", "later round"])
def test_what_a_rollup_commits_while_an_erasure_is_composed_goes_with_it(site, monkeypatch, computed_before):
    """It was looked where the person is, then a rollup brings rows, or replaces files that the plan takes: all go."""
    erase = agreed(site, computed_before=computed_before)
    register = type(erasure_apply.REGISTER)
    genuine = register.head_row

    def late(*args, **kwargs):
        run_rollups(site.lake, NAMES)
        return genuine(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(register, "head_row", late)
        done = erase()
    assert done.certificate.is_clean
    assert nothing_is_left(site)
    run_rollups(site.lake, NAMES)
    assert nothing_is_left(site)
    for one in site.lake.contracts().values():
        if one.kind == "derived" and one.grain:
            keys = [tuple(row[name] for name in one.grain) for row in site.rows(one.table)]
            assert len(set(keys)) == len(keys), one.table


@pytest.mark.slow
def test_a_rollup_between_begins_of_an_erasure_is_not_lost(site):
    """Rollups before and after run as ever; the fence holds up nobody who reads behind it."""
    agreed(site, computed_before=True)()
    assert run_rollups(site.lake, NAMES)
    assert not any(one.partitions for one in run_rollups(site.lake, NAMES))
