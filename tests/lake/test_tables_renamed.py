"""A table gets another name: queries, roles and rollups go on by both until a day; nothing that is stored changes."""

from datetime import timedelta

import pytest
import yaml
from bringing import adds_up, bring
from click.testing import CliRunner
from segments import put_segment, step_rows
from today import TODAY

from ranklake.cli import run
from ranklake.commands.sql import sql
from ranklake.insight.ask import ask, used_former_names
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.load import contract, load_contracts
from ranklake.lake.migrations import applying, registry
from ranklake.lake.migrations.dependents import dependents, named_columns
from ranklake.lake.migrations.due import due
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.errors import QueryError
from ranklake.lake.query.role_file import load_role
from ranklake.lake.query.sql import session
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table

TOMORROW = TODAY + timedelta(days=1)


def until(path, day):
    """Let the former names of a migration answer until a day."""
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    for step in facts["steps"]:
        step["until"] = day
    path.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture
def called(lake, spool, changed):
    """Return a lake whose table ``steps`` is called ``train_steps``, and one of its columns ``tokens_seen``."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    before = files(delta_table(lake.store, "steps"))["path"].to_pylist()
    until(changed.migrate("steps", lambda facts: facts.update(called="train_steps")), TOMORROW)
    (done,) = applying.apply(lake, InProcess(), "Ada")
    assert (done.table, done.rows, files(delta_table(lake.store, "steps"))["path"].to_pylist()) == ("steps", 0, before)
    return lake


ASKED = [
    "SELECT count(*) AS n, sum(tokens) AS t FROM {0}",
    "SELECT {0}.step FROM {0} JOIN {0} AS o USING (incarnation, segment, slot) WHERE o.step_time_s > 0.9 ORDER BY 1",
    "WITH x AS (SELECT * FROM {0}) SELECT max(step) AS m FROM x WHERE step IN (SELECT step FROM {0} WHERE rank = 0)",
    'SELECT avg("{0}".loss) AS l FROM "{0}"',
]


@pytest.mark.parametrize("text", ASKED)
def test_both_names_answer_alike_and_the_former_is_told(called, text):
    """A query by the former name gives what it gave, and is told of; one by the new name is not."""
    new, old = ask(called, text.format("train_steps")), ask(called, text.format("steps"))
    assert old.rows.equals(new.rows)
    assert list(used_former_names(new)) == []
    (told,) = used_former_names(old)
    assert told.message.startswith(
        f"the query names steps, which answers until {TOMORROW}: table steps is called train_steps"
    )
    assert {*old.sketch.columns} == {"steps"}, "the log of queries knows the table by its folder"


def test_words_that_are_no_table_are_let_alone(called):
    """An alias, a CTE, a text and a column of the former name are none of the table."""
    assert list(used_former_names(ask(called, "SELECT count(*) AS steps FROM train_steps"))) == []
    assert list(used_former_names(ask(called, "WITH steps AS (SELECT 1 AS a) SELECT a FROM steps"))) == []
    assert list(used_former_names(ask(called, "SELECT 'steps' AS a FROM train_steps steps WHERE steps.rank = 0"))) == []
    names = ask(called, "SELECT table_name AS t FROM information_schema.tables").rows["t"].to_pylist()
    assert "train_steps" in names
    assert "steps" not in names


def test_after_its_day_the_error_says_what_to_write(lake, spool, changed):
    """The name, since when, and until when it answered; a slip of either name is shown the new one."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    until(changed.migrate("steps", lambda facts: facts.update(called="train_steps")), TODAY - timedelta(days=1))
    with pytest.raises(
        QueryError, match=r"table steps is called train_steps since .* answered until .*; write train_steps"
    ):
        ask(lake, "SELECT count(*) FROM steps")
    with pytest.raises(QueryError, match=r"unknown table 'train_stepz'.*train_steps"):
        ask(lake, "SELECT count(*) FROM train_stepz")
    assert ask(lake, "SELECT count(*) AS n FROM train_steps").rows["n"].to_pylist() == [20]


def test_a_role_sees_by_either_name_what_it_saw(called, tmp_path):
    """Roles and their conditions may use both names, and no name shows a row or column that the role does not see."""
    path = tmp_path / "roles.yaml"
    path.write_text("""
roles:
  new:
    classes: [operational]
    tables: [train_steps]
    where: {train_steps: "step IN (SELECT step FROM train_steps WHERE slot < 5)"}
  old: {classes: [operational], tables: [steps], where: {steps: "slot < 5"}}
  none: {classes: [operational], tables: [runs]}
""")
    contracts = called.contracts()
    for role in ("new", "old"):
        found = load_role(path, role, contracts)
        for name in ("steps", "train_steps"):
            assert ask(called, f"SELECT count(*) AS n FROM {name}", role=found).rows["n"].to_pylist() == [5], (
                role,
                name,
            )
    for name in ("steps", "train_steps"):
        with pytest.raises(QueryError, match="unknown table"):
            ask(called, f"SELECT count(*) AS n FROM {name}", role=load_role(path, "none", contracts))


def test_the_plan_says_who_asks_by_the_name(lake, spool, changed):
    """Consumers of the table are listed with the day until which they are answered; the rest goes on."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    sql_of(lake, "SELECT max(step) FROM steps", "--consumer", "board")
    until(changed.migrate("steps", lambda facts: facts.update(called="train_steps")), TOMORROW)
    (one,) = due(lake)
    (found,) = [other for other in dependents(lake, one.migration) if other.kind == "consumer"]
    assert (found.name, found.fate, found.queries) == ("board", f"answers until {TOMORROW}", 1)
    said = sql_of(lake, "SELECT max(step) FROM steps", "--consumer", "board")
    assert "is called train_steps" in said


def sql_of(lake, *words):
    """Run ``ranklake sql``; return what it printed."""
    done = CliRunner().invoke(sql, [*words, "--lake", lake.uri])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_lake_goes_on(called, spool, changed, capfd):
    """Older segments are stored, books add up, options take either name, and undo gives the former name back."""
    put_segment(spool, step_rows(10, segment=1), rows_before=20)
    assert bring(called, spool).rows_stored == 10
    adds_up(called, spool)
    assert contract("train_steps").table == "steps"
    assert session(called, ["steps"]).sql("SELECT count(*) AS n FROM train_steps").to_pydict() == {"n": [30]}
    assert run(["migrate", "verify", "train_steps", "--lake", called.uri]) == 0
    capfd.readouterr()
    applying.undo(called, InProcess(), "Ada", "steps")
    changed.earlier()
    assert ask(called, "SELECT count(*) AS n FROM steps").rows["n"].to_pylist() == [30]


def test_names_that_two_tables_would_have_are_refused(changed):
    """Another table's name, or folder, is taken; so a cycle of renames is none; and steps must lead to the contract."""
    changed.edit("steps", lambda facts: facts.update(called="runs"))
    with pytest.raises(ContractError, match="table 'steps' is called 'runs', and so is table 'runs'"):
        load_contracts()
    changed.edit("steps", lambda facts: facts.pop("called"))
    changed.migrate(
        "steps", lambda facts: facts.update(called="train_steps"), [{"rename_table": "stepz", "to": "train_steps"}]
    )
    assert any("it is called steps" in one for one in registry.problems({"steps": contract("steps")}))
    changed.edit("steps", lambda facts: facts.update(called="other"))
    assert any(
        "leave the table called" in one or "it is called" in one
        for one in registry.problems({"steps": contract("steps")})
    )
    with pytest.raises(MigrationError):
        list(registry.chain("steps", 1, 9))


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT s.loss FROM steps s -- not grad_norm\nWHERE 1", ["loss"]),
        ("SELECT 1 /* don't /* nest */ grad_norm */ FROM steps WHERE loss > 0", ["loss"]),
        ("SELECT 'the grad_norm' FROM steps", []),
        ("SELECT 'it''s --' , grad_norm FROM steps", ["grad_norm"]),
        ('SELECT "grad_norm", "a--b" FROM steps', ["grad_norm"]),
        ("SELECT 1 /* of steps */", []),
        ("SELECT grad_norm FROM steps /* loss", ["grad_norm"]),
    ],
)
def test_words_in_comments_name_no_column(sql, names):
    """What a migration touches is looked for in SQL itself, not in comments and texts."""
    assert named_columns(sql, "steps", ["grad_norm", "loss"]) == names
