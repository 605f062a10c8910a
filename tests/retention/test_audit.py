"""The audit trail: one chain, whoever writes; every break shows."""

import threading
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ranklake.lake.commit import append_files, files, number_of, swap
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.tables import delta_table
from ranklake.retention.audit import GENESIS, digest, record, trail, verify

ACTOR = "Zacharias.Zebra"


def fill(site, rows=5):
    for index in range(rows):
        record(site.lake, ACTOR, "test.act", f"thing {index}", "because", {"index": index})


def rewrite(site, change):
    """Put other rows in the place of the trail's, the way somebody with keys to the bucket would."""
    handle = delta_table(site.lake, "audit")
    rows = pa.Table.from_pylist(change(trail(site.lake)), schema=arrow_schema(contract("audit")))
    number = number_of(handle)
    new = append_files(site.lake, contract("audit"), rows, number)
    from ranklake.lake import commit

    genuine, commit.number_of = commit.number_of, lambda _: -1
    try:
        assert swap(handle, number, add=new, remove=files(handle))
    finally:
        commit.number_of = genuine


def test_rows_make_a_chain(site):
    """Numbers run from 0 without holes, each row holds the digest of the one before, and the chain verifies."""
    assert verify(site.lake) is None
    fill(site)
    rows = trail(site.lake)
    assert [row["seq"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["prev_sha256"] for row in rows] == [GENESIS, *(row["sha256"] for row in rows[:-1])]
    assert rows[2]["details"] == '{"index": 2}'
    assert verify(site.lake) is None


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (lambda rows: [*rows[:2], {**rows[2], "actor": "Somebody Else"}, *rows[3:]], 2),
        (lambda rows: [*rows[:2], {**rows[2], "reason": None}, *rows[3:]], 2),
        (lambda rows: [*rows[:2], {**rows[2], "ts": rows[2]["ts"] + timedelta(microseconds=1)}, *rows[3:]], 2),
        (lambda rows: [*rows[:1], *rows[2:]], 1),
        (lambda rows: rows[1:], 0),
        (lambda rows: rows[:-1], 4),
        (lambda rows: [], 0),
        (lambda rows: [*rows[:2], rows[1], *rows[2:]], 2),
        (lambda rows: [*rows, {**rows[-1], "seq": 5, "prev_sha256": rows[-1]["sha256"]}], 5),
    ],
    ids=["actor", "reason", "time", "gap", "head", "tail", "all", "repeat", "forged"],
)
def test_every_break_shows(site, change, broken):
    """An altered, removed, repeated or added row, and a tail cut off, are found at their first row."""
    fill(site)
    rewrite(site, change)
    assert verify(site.lake) == broken


def test_a_forger_must_forge_the_rest(site):
    """A row altered with its own digest recomputed breaks the chain at the next."""
    fill(site)

    def forge(rows):
        forged = {**rows[1], "actor": "Somebody Else"}
        return [rows[0], {**forged, "sha256": digest(forged)}, *rows[2:]]

    rewrite(site, forge)
    assert verify(site.lake) == 2


def test_writers_at_the_same_time_keep_one_chain(site):
    """Four writers of five rows each leave twenty rows in one chain; what is recorded once is there once."""
    errors = []

    def write(name):
        try:
            for index in range(5):
                record(site.lake, name, "test.act", f"{name} {index}")
                record(site.lake, name, "test.once", "the same", once=True)
        except Exception as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=write, args=(f"writer {index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert verify(site.lake) is None
    actions = [row["action"] for row in trail(site.lake)]
    assert (actions.count("test.act"), actions.count("test.once")) == (20, 1)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.text(min_size=1, max_size=20),
            st.none() | st.text(max_size=20),
            st.dictionaries(st.text(), st.integers()),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_text_survives_the_chain(tmp_path_factory, rows):
    """Whatever names and reasons hold, what is read back verifies."""
    from governed import Site

    site = Site(tmp_path_factory.mktemp("any"))
    for actor, reason, details in rows:
        record(site.lake, actor, "test.act", "thing", reason, details)
    assert verify(site.lake) is None
    assert [(row["actor"], row["reason"]) for row in trail(site.lake)] == [(actor, reason) for actor, reason, _ in rows]


def test_actors_stay_in_their_column(site, caplog, capfd):
    """An actor's name, a subject and a reason are in no statistic, file name, plan or log."""
    record(site.lake, ACTOR, "test.act", "Subject.Seven", "Reason.Eight")
    for needle in (ACTOR, "Subject.Seven", "Reason.Eight"):
        assert all(path.suffix == ".parquet" and needle not in str(path) for path in site.places_of(needle))
        assert needle not in caplog.text + "".join(capfd.readouterr())
    assert site.places_of(ACTOR)
