"""How many modules a call enters: who reads one thing that ranklake does, has so many files to open.

Counted while it runs, in every thread: the modules of ranklake of which a function is called. What runs when a module
is imported does not count.
"""

import sys
import threading
from contextlib import contextmanager

from bringing import bring
from erased import logs, reach
from governed import Site
from lake_fixtures import lake, spool
from retaining import bring_days
from retaining import plan as plan_retention
from segments import put_segment, step_rows
from subjects import EMAIL, VALUES

from ranklake.lake.ingest import execution
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.subject import subject_of

__all__ = ["lake", "spool"]  # fixtures


@contextmanager
def entered():
    """Yield the set of names of modules that are entered."""
    names = set()

    def note(frame, event, _):
        name = frame.f_globals.get("__name__", "")
        if event == "call" and frame.f_code.co_name != "<module>" and name.startswith("ranklake."):
            names.add(name)

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield names
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def most(number, names):
    """Hold a count to a number, and say which modules it is made of."""
    assert 0 < len(names) <= number, f"{len(names)} modules:\n" + "\n".join(sorted(names))


def test_a_group_of_segments_in_a_worker(lake, spool, monkeypatch):
    """One task of an ingest: segments are read, checked, deduplicated, sorted and written, of slots known and new."""
    for rank in range(4):
        put_segment(spool, step_rows(50, rank=rank, incarnation=rank + 1))
    bring(lake, spool)
    for rank in range(4):
        put_segment(spool, step_rows(50, rank=rank, segment=1, incarnation=rank + 1), rows_before=50)
    genuine, groups = execution.compact, []

    def counted(group):
        with entered() as names:
            result = genuine(group)
        groups.append((names, sum(outcome["rows_stored"] for outcome in result.outcomes)))
        return result

    monkeypatch.setattr(execution, "compact", counted)
    bring(lake, spool)
    ((names, rows),) = groups
    assert rows == 200
    most(25, names)


def test_a_retention_plan(tmp_path):
    """A plan over one date that is due and one that is not, with the packaged policies."""
    site = Site(tmp_path)
    bring_days(site, [200, 1])
    with entered() as names:
        made = plan_retention(site)
    assert made.items
    most(35, names)


def test_an_erasure(tmp_path):
    """Of a person in a log: planned and proposed, then applied with its certificate."""
    site = Site(tmp_path)
    logs(site, f"hello {EMAIL}", "hello")
    subject = subject_of(site.lake, VALUES)
    with entered() as names:
        made = make_plan(reach(site), subject)
        propose(site.lake, made, "Petra Proposer")
    most(60, names)
    approve(site.lake, made.name, "Ada Approver", "as asked")
    with entered() as names:
        assert apply(reach(site), made.name, subject, "Otto Operator").certificate.is_clean
    most(60, names)
