"""Roles: the columns, tables and rows that a query may see, and nothing that tells of the others."""

import shutil

import pytest
from click.testing import CliRunner
from rollup_inputs import NOON, append

from ranklake.commands.sql import sql
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.query.role_file import load_role
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.query.sql import NotReadOnlyError, QueryError, query
from ranklake.lake.store.lake import Lake
from ranklake.retention.roles.cases import broken_conditions

ROLES = """
roles:
  researcher:
    classes: [operational]
    tables: [steps, runs]
    runs: "run = 'open'"
  auditor:
    classes: [operational, pseudonymous, personal]
    tables: [events]
"""
OPERATIONAL = frozenset({"operational"})
OPEN = Role("r", OPERATIONAL, frozenset({"steps", "runs"}), {"steps": "run = 'open'"})
WIDE = Role("w", OPERATIONAL, frozenset(load_contracts()), runs="run = 'open'")
NOT_EVES = """run NOT IN (SELECT run FROM runs WHERE "user" = 'mallory') -- hers are hidden"""
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
    runs = [("open", "ada"), ("closed", "mallory")]
    append(lake, "runs", [{"ts": NOON, "run": run, "job": "gpt", "user": user, "world_size": 1} for run, user in runs])
    append(lake, "events", [{"ts": NOON, "run": "closed", "event": "failure", "message": "in /home/ada"}])
    hour = {
        "ts": NOON,
        "hour": NOON,
        "end_ts": NOON,
        "scope": "cluster",
        "scope_name": "c",
        "gpu_utilization_counts": [1, 2],
    }
    append(lake, "cluster_hourly", [hour])
    append(lake, "host_samples", [{"ts": NOON, "run": "open", "subject": "host", "holder_run": "closed"}])
    return lake


def test_rows_columns_and_tables(lake):
    """Rows are those of the condition; columns of other classes and other tables are not there."""
    assert query(lake, COUNT, role=OPEN).to_pylist() == [{"n": 10}]
    assert query(lake, f"{COUNT} WHERE run = 'closed'", role=OPEN).to_pylist() == [{"n": 0}]
    for text in ('SELECT "user" FROM runs', "SELECT job FROM runs WHERE \"user\" = 'ada'"):
        with pytest.raises(QueryError, match="unknown column 'user'"):
            query(lake, text, role=OPEN)
    assert "user" not in query(lake, "SELECT * FROM runs", role=OPEN).column_names
    with pytest.raises(QueryError, match=r"unknown table 'events'; .*; what role .* sees: ranklake roles explain"):
        query(lake, "SELECT * FROM events", role=OPEN)
    listed = query(lake, "SHOW TABLES", role=OPEN)["table_name"].to_pylist()
    assert {"steps", "runs"} <= set(listed)
    assert not {"events", "scalars"} & set(listed)
    whole = query(lake, "SELECT * FROM steps", role=OPEN)
    assert whole.schema.equals(query(lake, "SELECT * FROM steps").schema)


def test_what_a_role_does_not_name_is_not_there(lake):
    """A role without tables has none: nothing is seen because somebody forgot to hide it."""
    with pytest.raises(QueryError, match="unknown table 'steps'"):
        query(lake, COUNT, role=Role("r", OPERATIONAL))


@pytest.mark.parametrize("text", [COUNT, f"{COUNT} -- runs", f"{COUNT} WHERE step IN (SELECT step FROM steps, runs)"])
def test_a_condition_is_evaluated_on_the_tables_as_they_are(lake, text):
    """A condition asks other tables unmasked, whatever the query names: a word in a comment lifts no restriction."""
    for tables in ({"steps"}, {"steps", "runs"}):
        role = Role("r", OPERATIONAL, frozenset(tables), {"steps": NOT_EVES, "runs": "true"})
        if "FROM steps, runs" in text and "runs" not in tables:
            with pytest.raises(QueryError, match="unknown table 'runs'"):
                query(lake, text, role=role)
        else:
            assert query(lake, text, role=role).to_pylist() == [{"n": 10}]


def test_one_condition_hides_runs_in_every_table(lake):
    """`runs` holds for every table that has `run`, and columns that name other runs are not there."""
    assert query(lake, "SELECT count(*) n FROM events", role=WIDE)["n"].to_pylist() == [0]
    assert query(lake, "SELECT DISTINCT run FROM runs", role=WIDE)["run"].to_pylist() == ["open"]
    with pytest.raises(QueryError, match="unknown column 'holder_run'"):
        query(lake, "SELECT holder_run FROM host_samples", role=WIDE)


def test_columns_of_lists(lake):
    """A table with a column of lists is seen as others are."""
    found = query(lake, "SELECT gpu_utilization_counts FROM cluster_hourly", role=WIDE)
    assert found.to_pylist() == [{"gpu_utilization_counts": [1, 2]}]


def test_errors_hold_no_values(lake):
    """What fails on a row that is hidden, as an operator's condition may, is told without the row's values."""
    role = Role("r", OPERATIONAL, frozenset({"steps"}), {"steps": "CAST(replace(run, 'open', '1') AS INT) = 1"})
    with pytest.raises(QueryError, match="Cannot cast") as caught:
        query(lake, COUNT, role=role)
    assert "closed" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_what_tells_of_tables_tells_of_views(lake):
    """Neither the information schema nor a description shows conditions, hidden columns or hidden tables."""
    role = Role("r", OPERATIONAL, frozenset({"steps", "runs"}), {"steps": NOT_EVES, "runs": "run = 'open'"})
    for what in ("tables", "views", "columns", "schemata", "routines", "parameters"):
        said = str(query(lake, f"SELECT * FROM information_schema.{what}", role=role).to_pylist())
        assert not [word for word in ("mallory", "'open'", "events", "'user'", "hostname") if word in said]
    assert "user" not in query(lake, "DESCRIBE runs", role=role)["column_name"].to_pylist()


def test_a_missing_file_is_not_named(lake, tmp_path):
    """That a file is damaged or gone is told to a role without its path."""
    copy = Lake.open(str(shutil.copytree(lake.uri, tmp_path / "copy")))
    (path,) = (tmp_path / "copy" / "tables" / "steps").glob("date=*/*.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(QueryError, match="a data file cannot be read") as caught:
        query(copy, COUNT, role=OPEN)
    assert path.name not in str(caught.value)


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
    with pytest.raises(QueryError, match=r"more than a role may see.*leave EXPLAIN out.*roles explain r TABLE"):
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
        ("roles: [a]", "roles must be a mapping"),
        ("{", "not usable YAML"),
        ("roles: {a: {tables: [steps]}}", "lacks the key 'classes'"),
        ("roles: {a: {classes: [operatonal]}}", "did you mean 'operational'"),
        ("roles: {a: {classes: [], tables: [], wher: {}}}", "did you mean 'where'"),
        ("roles: {a: {classes: [], tables: [stesp]}}", "did you mean 'steps'"),
        ("roles: {a: {classes: []}}", "lacks the key 'tables'"),
        ("roles: {a: {classes: [], tables: [], where: {steps: 1}}}", "where.steps must be text"),
        ("roles: {a: {classes: [], tables: [], where: {stesp: x}}}", "did you mean 'steps'"),
        ("roles: {a: {classes: [], tables: [], runs: [x]}}", "runs must be text"),
        (
            "roles: {a: {classes: [], tables: [steps, segments], where: {steps: run > 'a'}}}",
            "segments tells of all runs",
        ),
        ("roles: {a: {classes: [], tables: [], runs: ''}}", "runs must not be empty"),
        ("roles: {a: {classes: [], tables: [], where: {steps: ''}}}", "where.steps must not be empty"),
        ("roles: {a: {classes: [], tables: []}, a: {classes: [secret], tables: []}}", "appears twice"),
        ("roles: {a: {classes: all}}", "classes must be a list"),
    ],
)
def test_a_file_that_is_not_understood_gives_no_role(tmp_path, text, message):
    """A misspelt key would show what should be hidden: any fault in the file refuses every role of it."""
    (tmp_path / "roles.yaml").write_text(text)
    with pytest.raises(RoleError, match=message):
        load_role(tmp_path / "roles.yaml", "a", load_contracts())


def test_all_faults_of_a_file_of_roles_come_at_once(tmp_path):
    """Each has its line, whichever role it is of."""
    path = tmp_path / "roles.yaml"
    path.write_text("""roles:
  a:
    classes: [operational]
    tables: [stesp, runs]
    masks: {runs.usr: hash}
  b:
    classes: [operational]
    tables: [runs]
    groups: {runs: {by: [taem], least: 3, of: usr}}
""")
    with pytest.raises(RoleError) as caught:
        load_role(path, "a", load_contracts())
    assert [str(error).removeprefix(f"{path}:") for error in (caught.value, *caught.value.others)] == [
        "4: unknown table 'stesp'; did you mean 'steps'?",
        "5: unknown column 'usr'; did you mean 'user'?",
        "9: unknown column 'taem'; did you mean 'team'?",
        "9: unknown column 'usr'; did you mean 'user'?",
    ]


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("secret_word = 1", "unknown column 'secret_word'"),
        ("run IN (SELECT run FROM nowhere)", "unknown table 'nowhere'"),
        ("run = (SELECT", "syntax error"),
        ("DROP TABLE runs", "syntax error"),
        ("true; SELECT 1", "syntax error"),
        ("true) OR (true", ""),
        ("count(*) > 1", "Aggregate functions are not allowed"),
        ("'mallory'", "non-boolean"),
        ("row_number() OVER () = 1", "WindowFunction"),
    ],
)
def test_a_row_filter_that_fails_shows_nothing(lake, tmp_path, condition, why):
    """A query as the role is one line, without the filter's words; whoever keeps the roles is told what is wrong."""
    role = Role("r", OPERATIONAL, frozenset({"steps", "runs"}), {"steps": condition})
    faults = [one.line for one in broken_conditions(role, load_contracts())]
    if not why:  # it is true of every row, and the operator's
        assert faults == []
        return
    assert [why in one for one in faults] == [True]
    with pytest.raises(QueryError) as caught:
        query(lake, COUNT, role=role)
    assert "\n" not in str(caught.value)
    if why != "WindowFunction":  # planned, and refused as it begins
        assert str(caught.value).startswith("role r: a condition of role r on steps cannot be understood")
    assert "mallory" not in str(caught.value)
    assert query(lake, "SELECT count(*) AS n FROM runs", role=role).num_rows == 1


def test_row_filters_that_read_other_tables_in_a_circle(lake):
    """Each is evaluated on the tables as they are, so there is no circle; nor in what the file of roles refers to."""
    asks = {"steps": "run IN (SELECT run FROM runs)", "runs": "run IN (SELECT run FROM steps WHERE run = 'open')"}
    role = Role("r", OPERATIONAL, frozenset({"steps", "runs"}), asks)
    assert list(broken_conditions(role, load_contracts())) == []
    assert query(lake, COUNT, role=role)["n"].to_pylist() == [20]
    assert query(lake, "SELECT run FROM runs", role=role)["run"].to_pylist() == ["open"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("roles: &all {a: *all}", "holds itself"),
        ("roles: {a: {classes: &all [*all], tables: []}}", "holds itself"),
        ("roles: {a: {classes: [], tables: &all [*all]}}", "holds itself"),
        ("roles: {a: {classes: [], tables: [], extends: b}, b: {classes: [], tables: [], extends: a}}", "unknown key"),
    ],
)
def test_circular_roles_give_no_role(tmp_path, text, message):
    """YAML can refer to itself, and roles do not build on each other."""
    (tmp_path / "roles.yaml").write_text(text)
    with pytest.raises(RoleError, match=message) as caught:
        load_role(tmp_path / "roles.yaml", "a", load_contracts())
    assert "\n" not in str(caught.value)
