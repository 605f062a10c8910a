"""Roles: the columns, tables and rows that a query may see, and nothing that tells of the others."""

import pytest
from click.testing import CliRunner
from rollup_inputs import NOON, append

from ranklake.commands.sql import sql
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.query import NotReadOnlyError, QueryError, query
from ranklake.lake.roles import Role, RoleError, load_role
from ranklake.lake.store import Lake

ROLES = """
roles:
  researcher:
    classes: [operational]
    tables: [steps, runs]
    where: {steps: "run = 'open'"}
  auditor:
    classes: [operational, pseudonymous, personal]
"""
OPEN = Role("r", frozenset({"operational"}), frozenset({"steps", "runs"}), {"steps": "run = 'open'"})
COUNT = "SELECT count(*) AS n FROM steps"


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with an open run and a closed one, in one file: nothing but the condition parts them."""
    lake = Lake.create(str(tmp_path_factory.mktemp("lake")))
    facts = [
        {"run": run, "incarnation": number, "step": n, "ts": NOON, "step_time_s": 1.0}
        for number, run in enumerate(("open", "closed"))
        for n in range(10)
    ]
    append(lake, "steps", facts)
    append(lake, "runs", [{"ts": NOON, "job": "gpt", "user": "ada", "world_size": 1}])
    append(lake, "events", [{"ts": NOON, "event": "failure", "message": "in /home/ada"}])
    return lake


def test_rows_columns_and_tables(lake):
    """Rows are those of the condition, columns of other classes are NULL, other tables are not there."""
    assert query(lake, COUNT, role=OPEN).to_pylist() == [{"n": 10}]
    assert query(lake, f"{COUNT} WHERE run = 'closed'", role=OPEN).to_pylist() == [{"n": 0}]
    assert query(lake, 'SELECT job, "user" FROM runs', role=OPEN).to_pylist() == [{"job": "gpt", "user": None}]
    assert query(lake, "SELECT count(*) AS n FROM runs WHERE \"user\" = 'ada'", role=OPEN).to_pylist() == [{"n": 0}]
    with pytest.raises(QueryError, match="no table is called 'events'"):
        query(lake, "SELECT * FROM events", role=OPEN)
    listed = query(lake, "SHOW TABLES", role=OPEN)["table_name"].to_pylist()
    assert {"steps", "runs"} <= set(listed)
    assert not {"events", "scalars"} & set(listed)
    whole = query(lake, "SELECT * FROM steps", role=OPEN)
    assert whole.schema.equals(query(lake, "SELECT * FROM steps").schema)


@pytest.mark.parametrize("tables", [("steps",), ("steps", "runs")])
def test_conditions_of_the_query_never_meet_hidden_rows(lake, tables):
    """A query that fails on a hidden row would tell that it is there: so it must not fail."""
    trap = "1 / (CASE WHEN run = 'closed' AND step = 3 THEN 0 ELSE 1 END) = 1"
    with pytest.raises(QueryError, match=r"[Dd]ivide"):
        query(lake, f"{COUNT} WHERE {trap}")
    role = Role("r", OPEN.classes, frozenset(tables), OPEN.where)
    assert query(lake, f"{COUNT} WHERE {trap}", role=role).to_pylist() == [{"n": 10}]
    assert (
        query(lake, f"SELECT max(step) AS n FROM (SELECT * FROM steps) AS s WHERE {trap}", role=role)["n"][0].as_py()
        == 9
    )


@pytest.mark.parametrize("text", ["EXPLAIN SELECT * FROM steps", "/* */ EXPLAIN ANALYZE SELECT * FROM steps"])
def test_plans_are_not_shown(lake, text):
    """A plan names files, counts and conditions that a role does not see."""
    with pytest.raises(QueryError, match="a plan shows more than a role may see"):
        query(lake, text, role=OPEN)


@pytest.mark.parametrize("call", ["input_file_name()", '"input_file_name"()', "INPUT_FILE_NAME()"])
def test_files_have_no_names(lake, call):
    """Which file a row lies in, and so which plan wrote it, is not shown to a role."""
    assert query(lake, f"SELECT DISTINCT {call} FROM steps").num_rows == 1
    with pytest.raises(QueryError):
        query(lake, f"SELECT {call} FROM steps", role=OPEN)
    with pytest.raises(QueryError):
        query(lake, f"SELECT count(*) FROM steps WHERE {call} LIKE '%p0%'", role=OPEN)


def test_nothing_can_be_changed_or_set(lake):
    """Roles are read only as everybody is."""
    for text in ("COPY steps TO '/tmp/x.csv'", "SET datafusion.execution.batch_size = 1", "CREATE VIEW v AS SELECT 1"):
        with pytest.raises(NotReadOnlyError):
            query(lake, text, role=OPEN)


def test_roles_from_a_file(lake, tmp_path, monkeypatch):
    """`--role` takes the role from the file that the configuration names; without one there are no roles."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roles.yaml").write_text(ROLES)

    def ask(*arguments):
        return CliRunner().invoke(sql, [*arguments, "--format", "csv", "--lake", lake.uri])

    assert "no roles are defined" in str(ask(COUNT, "--role", "researcher").exception)
    (tmp_path / "ranklake.toml").write_text('[sql]\nroles = "roles.yaml"\n')
    assert ask(COUNT, "--role", "researcher").stdout.split() == ["n", "10"]
    assert ask("SELECT message FROM events", "--role", "auditor").stdout.splitlines() == ["message", "in /home/ada"]
    assert "did you mean 'researcher'" in str(ask(COUNT, "--role", "reseacher").exception)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("roles: [a]", "no mapping of roles"),
        ("{", "no roles can be read"),
        ("roles: {a: {tables: [steps]}}", "no list of classes"),
        ("roles: {a: {classes: [operatonal]}}", "did you mean 'operational'"),
        ("roles: {a: {classes: [], tabels: [steps]}}", "did you mean 'tables'"),
        ("roles: {a: {classes: [], tables: [stesp]}}", "did you mean 'steps'"),
        ("roles: {a: {classes: [], where: {steps: 1}}}", "no mapping of conditions"),
        ("roles: {a: {classes: [], where: {stesp: x}}}", "did you mean 'steps'"),
        ("roles: {a: {classes: all}}", "no list of class names"),
    ],
)
def test_a_file_that_is_not_understood_gives_no_role(tmp_path, text, message):
    """A misspelt key would show what should be hidden: any fault in the file refuses every role of it."""
    (tmp_path / "roles.yaml").write_text(text)
    with pytest.raises(RoleError, match=message):
        load_role(tmp_path / "roles.yaml", "a", load_contracts())
