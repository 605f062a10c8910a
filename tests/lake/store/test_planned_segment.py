"""What a plan says of a segment is what the type says: whoever carries it out reads nothing else of it."""

from bringing import bring
from segments import put_segment, step_rows

from ranklake.lake.plans.plan import read_plan
from ranklake.lake.store.planned_segment import EarlierCut, PlannedSegment


def test_plans_say_what_the_type_declares(lake, spool):
    """A plan's row has every key that must be there, and none that is not declared; mypy holds readers to them."""
    put_segment(spool, step_rows(5))
    put_segment(spool, step_rows(9))
    bring(lake, spool)
    rows = read_plan(lake.store, 1).body["segments"]
    assert rows
    for row in rows:
        assert PlannedSegment.__required_keys__ <= set(row) <= set(PlannedSegment.__annotations__)
        assert all(set(one) == EarlierCut.__required_keys__ for one in row["earlier"])
