"""Lies in the books: each is named with its stream, and can be set aside so that reconciliation holds again."""

import pyarrow as pa
import pytest
from segments import DAY, put_segment, step_rows

from ranklake import cli
from ranklake.lake.audit.proof import verify
from ranklake.lake.audit.trail import trail
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.disowned import Claim, NotAClaimError
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import MOST_LISTED, balance
from ranklake.lake.plans.workers import InProcess
from ranklake.retention.corrections import disown

LIAR = "steps/liar~a0~r00000~0000000000000063"


def liar(count=10, **facts):
    """Return rows of the stream that lies."""
    return step_rows(count, run="liar", incarnation=0x63, **facts)


def faults(site):
    """Return what does not add up."""
    return [fault for item in balance(site.lake, Spool(str(site.spool)).listing()) for fault in item.faults]


@pytest.mark.parametrize(
    ("footer", "why"),
    [
        ({"rows_before": 10**15}, "1000000000000000 rows are missing"),
        ({"gaps": {"spool full": 10**15}}, "1000000000000000 rows are said to be lost"),
    ],
)
def test_a_lie_is_named_and_can_be_set_aside(site, footer, why):
    """A count that cannot be is named with the segment whose word it is; disowned, it counts no more, and others do."""
    site.bring(step_rows(20))
    site.bring(liar(), **footer)
    (fault,) = faults(site)
    assert why in fault
    assert f"{LIAR}~000000" in fault
    done = disown(site.lake, Claim.parse(f"{LIAR}~000000"), "ann", "cannot be")
    assert (done.rows, done.fresh) == (10, True)
    steps = site.balances()["steps"]
    assert (steps.stored, steps.quarantined) == (20, 10)
    assert {row["reason"] for row in site.rows("rejects")} == {"disowned: set aside by hand"}
    again = disown(site.lake, Claim.parse(f"{LIAR}~000000"), "ann", "cannot be")
    assert (again.plan, again.fresh) == (done.plan, False)
    assert [row["action"] for row in trail(site.lake.tables)] == ["disown", "disowned"]
    assert verify(site.lake) is None


def closing(totals, incarnation=0x63, run="liar"):
    """Return rows of events, one, and the footer that tells of totals."""
    schema = arrow_schema(contract("events"), segment=True)
    row = dict.fromkeys(schema.names) | {"run": run, "attempt": 0, "rank": 0, "incarnation": incarnation}
    row |= {"segment": 0, "slot": 0, "ts": DAY, "event": "rank_end"}
    return pa.Table.from_pylist([row], schema=schema), {"totals": totals, "final": True}


def test_totals_that_contradict_are_named_and_set_aside(site):
    """What a recorder says at its close counts no more once its segment of events is disowned; its rows stay."""
    site.bring(step_rows(20))
    site.bring(liar())
    rows, footer = closing({"steps": [15, 0], "events": [1, 0], "spans": [7, 10**15]})
    site.bring(rows, "events", **footer)
    found = faults(site)
    assert ["7 rows are missing" in found[0], "5 rows are missing" in found[1]] == [True, True]
    assert all("liar~a0~r00000~0000000000000063 says" in fault for fault in found)
    done = disown(site.lake, Claim.parse("events/liar~a0~r00000~0000000000000063~000000"), "ann", "contradicts")
    assert done.rows == 1
    assert site.balances()["steps"].stored == 30


def test_slots_that_repeat_are_named_and_set_aside(site):
    """A segment that brings a slot twice says more rows than there can be keys: named; disowned, all is well."""
    rows = liar()
    slots = pa.array([0, 1, 1, 1, 4, 5, 6, 7, 8, 9], pa.int32())
    site.bring(rows.set_column(rows.schema.get_field_index("slot"), rows.schema.field("slot"), slots))
    assert "2 rows are missing" in faults(site)[0]
    disown(site.lake, Claim.parse(LIAR), "ann", "repeats")
    assert site.balances()["steps"].stored == 0


def test_a_stream_is_set_aside_with_what_comes_later(site):
    """Of a stream that is disowned no later segment's word counts, and asking again moves the rows that came since."""
    site.bring(liar(), rows_before=50)
    whole = Claim.parse(LIAR.partition("/")[2])
    assert (whole.table, whole.segment) == (None, None)
    first = disown(site.lake, whole, "ann", "not ours")
    site.bring(liar(segment=1), rows_before=500)
    assert site.balances()["steps"].stored == 10
    second = disown(site.lake, whole, "ann", "not ours")
    assert (first.rows, second.rows, second.plan > first.plan) == (10, 10, True)
    assert site.balances()["steps"].stored == 0
    assert verify(site.lake) is None


def test_who_dies_on_the_way_is_finished_by_the_next(site, monkeypatch):
    """Killed after the plan was written, the next command carries it out, and the same call ends the audit log."""
    site.bring(liar(), rows_before=50)
    with monkeypatch.context() as patched:
        patched.setattr("ranklake.lake.plans.action_plan.execute", _die)
        with pytest.raises(KeyboardInterrupt):
            disown(site.lake, Claim.parse(LIAR), "ann", "not ours")
    assert [row["action"] for row in trail(site.lake.tables)] == ["disown"]
    site.bring(step_rows(5))
    assert site.balances()["steps"].stored == 5
    assert disown(site.lake, Claim.parse(LIAR), "ann", "not ours").rows == 10
    assert [row["action"] for row in trail(site.lake.tables)] == ["disown", "disowned"]


def _die(*_):
    raise KeyboardInterrupt


def test_streams_without_end_are_counted(site):
    """Of many streams that lie some are named and the rest counted: a status stays readable."""
    for number in range(MOST_LISTED + 5):
        put_segment(site.spool, step_rows(1, run=f"liar{number}", incarnation=1000 + number), rows_before=7)
    ingest(site.lake, Spool(str(site.spool)), InProcess())
    found = faults(site)
    assert len(found) == MOST_LISTED + 1
    assert found[-1] == "5 more streams do not add up"


@pytest.mark.parametrize("text", ["", "steps", "liar~a0~r0", "../../x", "liar~a0~r0~ffffffffffffffff"])
def test_what_names_nothing_is_refused(text):
    """A text that is no segment's or stream's is refused with the way to name one."""
    with pytest.raises(NotAClaimError, match="name it like"):
        Claim.parse(text)


def test_the_command(site, capsys):
    """It takes a file's own name, needs a reason, says what it moved, and finds fault with what was never taken in."""
    site.bring(liar(), rows_before=50)
    (path,) = site.spool.glob("segments/*/steps/*")
    lake = ["--lake", site.lake.uri]
    assert cli.run(["disown", str(path), *lake]) == 2
    assert cli.run(["disown", str(path), *lake, "--reason", "cannot be"]) == 0
    assert f"{LIAR}~000000 is set aside, 10 rows moved" in capsys.readouterr().out
    assert cli.run(["disown", "other~a0~r0~0000000000000001", *lake, "--reason", "x"]) == 2
    assert "nothing of this was ever ingested" in capsys.readouterr().err
