"""Many questions of tables that are opened once: the answers that each would get alone, all of one state."""

from datetime import timedelta

import pytest
from rollup_inputs import NOON, append

from ranklake.insight.runs.asking import asking
from ranklake.lake.query import scan as opening
from ranklake.lake.query import sql
from ranklake.lake.query.errors import QueryError
from ranklake.lake.query.scan import Opened
from ranklake.lake.query.sql import answer, answer_next
from ranklake.lake.store.lake import Lake

ODD = ((-0.0, -0.0), (0.0, 5.0), (3.0, 7.0), (-0.0, 0.0), (None, 1.0), (float("nan"), 2.0))
ROWS = sum(map(len, ODD))
QUESTIONS = (
    "SELECT step FROM steps WHERE loss IN (0, 5, 7, 8) ORDER BY step",  # of four and more, zeros are held apart
    "SELECT step FROM steps WHERE loss NOT IN (0, 5, 7, 8) ORDER BY step",
    "SELECT step FROM steps WHERE loss > 'NaN' OR loss = 2 ORDER BY step",
    "SELECT count(*) AS n FROM steps WHERE run IN ('a', 'b') AND loss > 1",
    "SELECT table_name FROM information_schema.tables WHERE table_name = 'steps'",
    "SELECT count(*) AS n FROM gpu_samples",
    "EXPLAIN SELECT 1",
)


@pytest.fixture
def lake(tmp_path):
    """Give a lake of one run whose losses are odd."""
    made = Lake.create(str(tmp_path / "lake"))
    for number, losses in enumerate(ODD):
        facts = {"run": "a", "ts": NOON, "step_time_s": 1.0}
        append(made, "steps", [{"step": 10 * number + n, "loss": loss, **facts} for n, loss in enumerate(losses)])
    return made


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("most", [0, 64])
def test_answers_are_those_that_each_question_gets_alone(lake, monkeypatch, question, most):
    """Whether tables are taken whole or planned for, and for lists of floats, which no look at extremes may answer."""
    monkeypatch.setattr(opening, "_MOST_FILES", most)
    alone, opened = answer(lake, question), Opened(lake)
    for _ in range(2):
        found = answer_next(lake, opened, question)
        assert found.rows.column_names == alone.rows.column_names
        if not question.startswith("EXPLAIN"):
            assert repr(found.rows.to_pylist()) == repr(alone.rows.to_pylist())
            assert found.versions.items() >= {name: at for name, at in alone.versions.items() if at is not None}.items()


def test_answers_are_of_one_state(lake):
    """Rows that come meanwhile are in no answer of these, and in those of who asks anew."""
    ask, count = asking(lake), "SELECT count(*) AS n FROM steps"
    before = ask(count)
    append(lake, "steps", [{"run": "b", "ts": NOON + timedelta(days=1), "step": 0, "step_time_s": 1.0}])
    assert ask(count) == before
    assert ask(count).versions == before.versions
    assert asking(lake)(count).first_row["n"] == before.first_row["n"] + 1


def test_small_tables_are_planned_for_once(lake, monkeypatch):
    """The way that plans twice is not gone."""
    monkeypatch.setattr(sql, "needed_files", lambda *_: pytest.fail("planned twice"))
    assert asking(lake)("SELECT count(*) AS n FROM steps WHERE run = 'a'").first_row["n"] == ROWS


def test_errors_are_those_of_a_query(lake):
    """An unknown column, with the nearest; what changes something."""
    opened = Opened(lake)
    with pytest.raises(QueryError, match="loss"):
        answer_next(lake, opened, "SELECT los FROM steps")
    with pytest.raises(QueryError):
        answer_next(lake, opened, "DROP TABLE steps")
