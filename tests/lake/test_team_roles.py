"""Roles that are bound to teams: rows of theirs and of their runs, in every table, and nobody else's."""

import json
import pickle
import random
from datetime import timedelta

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from mask_oracle import bag, random_query
from rollup_inputs import NOON, told

from ranklake.cli import run
from ranklake.commands.roles import roles
from ranklake.config import load_config
from ranklake.doctor import rules
from ranklake.doctor.examination import Patient
from ranklake.lake.contracts.load import contract, load_contracts
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.role_file import load_role, load_roles
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.query.sql import QueryError, query
from ranklake.lake.store.lake import Lake
from ranklake.retention.policies.policies import load_policies
from ranklake.retention.report.compliance import markdown, record
from ranklake.retention.roles.cases import unknown_teams
from ranklake.retention.roles.views import differences, view
from ranklake.retention.shares.sharing import share

CONTRACTS = load_contracts()
SEEN = frozenset({"operational"})
TEAMS = ["vision", "speech", "it's", "runs"]
RUNS = [f"r{n}" for n in range(8)]
COLUMNS = {
    "runs": ["run", "attempt", "team", "pid"],
    "steps": ["run", "step"],
    "jobs": ["run", "job_id", "team"],
    "cost": ["run", "team", "cluster"],
    "cluster_hourly": ["team", "pool", "scope"],
    "run_summary": ["run", "status"],
}
DERIVED = {"cost", "cluster_hourly", "run_summary"}


def role(*teams, tables=COLUMNS, **said):
    """Return a role that is bound to some teams."""
    return Role("r", SEEN, frozenset(tables), teams=frozenset(teams), **said)


def some_rows(chance, table):
    """Return random rows of a table: teams that are named or not, runs that two teams name, runs that nobody knows."""
    maybe = {
        "run": lambda: chance.choice(RUNS if table != "cost" else [*RUNS, None]),
        "team": lambda: chance.choice([*TEAMS, None]),
        "attempt": lambda: chance.randrange(3),
        "step": lambda: chance.randrange(50),
        "pid": lambda: chance.choice([None, 7]),
    }
    words = lambda: chance.choice(["a", "b", "c"])  # noqa: E731 - what any other column holds
    count = chance.randrange(30)
    return [{name: maybe.get(name, words)() for name in COLUMNS[table]} for _ in range(count)]


def theirs(stored, teams, table):
    """Return the rows of a table that are of some teams, in plain Python."""
    named = {}
    for row in stored["runs"]:
        if row["team"] is not None or row["pid"] is not None:
            named.setdefault(row["run"], set()).add(row["team"])
    runs = {run for run, found in named.items() if found <= set(teams)}

    def is_theirs(row):
        by_run = row.get("run") in runs
        if row.get("team") is None:
            return by_run
        return row["team"] in teams and (table not in DERIVED or row.get("run") is None or by_run)

    return [row for row in stored[table] if is_theirs(row)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_filter_then_query(tmp_path, seed):
    """Random queries as random teams get what plain Python does with the rows of those teams."""
    chance = random.Random(seed)
    lake = Lake.create(str(tmp_path / "lake"))
    stored = {table: some_rows(chance, table) for table in COLUMNS}
    for table, given in stored.items():
        for half in (given[::2], given[1::2]):
            if half:
                told(lake, table, half)
    asked = 0
    for _ in range(4):
        mine = chance.sample(TEAMS, chance.randrange(1, 4))
        views = {table: theirs(stored, mine, table) for table in COLUMNS}
        for table, rows in views.items():
            count = query(lake, f"SELECT count(*) AS n FROM {table}", role=role(*mine))
            assert count.column("n").to_pylist() == [len(rows)], (table, mine)
        views = {table: rows for table, rows in views.items() if rows}
        planted = {(table, name): [row[name] for row in stored[table]] for table in views for name in COLUMNS[table]}
        for _ in range(6 if views else 0):
            one = random_query(chance, views, planted)
            found = query(lake, one.sql, role=role(*mine))
            rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
            assert bag(rows) == bag(one.answer(views)), (one.sql, mine)
            asked += 1
    assert asked > 12


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with a run of vision, one of speech, one that both name, and one without a team."""
    lake = Lake.create(str(tmp_path_factory.mktemp("lake")))
    runs = [("v", "vision"), ("s", "speech"), ("both", "vision"), ("both", "speech"), ("none", None), ("taken", None)]
    told(lake, "runs", [{"run": run, "team": team, "pid": 7} for run, team in [*runs, ("taken", "vision")]])
    told(lake, "runs", [{"run": "v"}])
    for table in ("steps", "host_samples"):
        told(lake, table, [{"run": run, "holder_run": "s"} if "holder_run" in contract(table) else {"run": run}
                           for run in ("v", "s", "both", "none", "taken")])  # fmt: skip
    told(lake, "pools", [{"run": "agent", "pool": "p"}])
    told(lake, "ingest_plans", [{"plan": 1}])
    return lake


def test_a_run_that_two_teams_name_is_of_neither_alone(lake):
    """Who records that another team's run is theirs, too, sees none of its steps; a role of both teams does."""
    runs = "SELECT run FROM steps ORDER BY run"
    assert query(lake, runs, role=role("vision")).column("run").to_pylist() == ["v"]
    assert query(lake, runs, role=role("vision", "speech")).column("run").to_pylist() == ["both", "s", "v"]
    assert query(lake, runs, role=role("audio")).num_rows == 0
    mine = query(lake, "SELECT run, team FROM runs ORDER BY run, team", role=role("vision")).to_pylist()
    told_of = [("both", "vision"), ("taken", "vision"), ("v", "vision"), ("v", None)]
    assert mine == [{"run": run, "team": team} for run, team in told_of]


def test_a_run_without_a_team_is_not_taken_by_a_later_word(lake):
    """Else whoever records under its name, an agent's for one, would see all of it; what imports add counts not."""
    runs = "SELECT DISTINCT run FROM host_samples ORDER BY run"
    assert query(lake, runs, role=role("vision", tables=["host_samples"])).column("run").to_pylist() == ["v"]


def test_books_of_a_run_that_two_teams_name_are_of_neither_alone(tmp_path):
    """Derived rows name one team of a run, and the last word by hand is the one: it gives no sight of the others'."""
    lake = Lake.create(str(tmp_path / "lake"))
    told(lake, "runs", [{"run": "s", "team": "speech"}, {"run": "s", "team": "vision"}])
    for table in ("attempt_facts", "cost", "goodput_daily"):
        told(lake, table, [{"run": "s", "team": "vision"}])
        count = f"SELECT count(*) AS n FROM {table}"
        for teams, rows in ((["vision"], 0), (["vision", "speech"], 1)):
            found = query(lake, count, role=role(*teams, tables=["attempt_facts", "cost", "goodput_daily"]))
            assert found.column("n").to_pylist() == [rows], (table, teams)
    told(lake, "cost", [{"run": None, "team": "vision"}])
    assert query(lake, "SELECT team FROM cost", role=role("vision")).num_rows == 1


def test_the_file_s_conditions_hold_besides(lake):
    """Rows meet the conditions of the role as well; a column that names other runs is hidden."""
    narrow = role("vision", "speech", runs="run <> 'both'")
    assert query(lake, "SELECT count(*) AS n FROM steps", role=narrow).column("n").to_pylist() == [2]
    with pytest.raises(QueryError, match="unknown column 'holder_run'"):
        query(lake, "SELECT holder_run FROM host_samples", role=role("vision", tables=["host_samples"]))


def test_tables_of_no_team_have_no_rows_unless_the_role_says_so(lake):
    """A table whose rows name neither team nor run shows those that `where` says, and else none."""
    count = "SELECT count(*) AS n FROM ingest_plans"
    for said, rows in (({}, 0), ({"where": {"ingest_plans": "true"}}, 1)):
        asker = role("vision", tables=["ingest_plans"], **said)
        assert query(lake, count, role=asker).column("n").to_pylist() == [rows]


def test_whose_a_run_was_is_told_of_a_time_alone(lake):
    """An older version of runs beside steps of today would show rows of a run that became another team's."""
    for said in ("runs=1", "1"):
        with pytest.raises(QueryError, match="told of a time"):
            query(lake, "SELECT run FROM runs", as_of=[said], role=role("vision"))
    assert query(lake, "SELECT run FROM runs", as_of=["2100-01-01"], role=role("vision")).num_rows == 4


@pytest.mark.slow
def test_a_share_has_the_rows_of_teams_and_follows_them(tmp_path):
    """Copies hold the team's rows; once another team names the run, they hold them no more."""
    lake = Lake.create(str(tmp_path / "lake"))
    told(lake, "runs", [{"run": "v", "team": "vision"}, {"run": "s", "team": "speech"}])
    told(lake, "steps", [{"run": run, "step": n} for run in ("v", "s") for n in range(3)])
    mine = role("vision", tables=["steps", "runs"])

    def copied():
        share(lake, mine, str(tmp_path / "out"), "ada", InProcess())
        return DeltaTable(f"{tmp_path}/out/r/tables/steps").to_pyarrow_dataset().to_table().column("run").to_pylist()

    assert copied() == ["v"] * 3
    told(lake, "runs", [{"run": "v", "team": "speech"}])
    assert copied() == []


@pytest.mark.slow
def test_a_share_of_teams_reads_again_what_runs_changed_hands_in(tmp_path):
    """Another team's new run costs nothing; a run that changes hands costs the files that it has rows in."""
    lake = Lake.create(str(tmp_path / "lake"))
    told(
        lake, "runs", [{"run": "v1", "team": "vision"}, {"run": "v2", "team": "vision"}, {"run": "s", "team": "speech"}]
    )
    for days, mine in enumerate((["v1", "s"], ["v2"])):
        ts = NOON - timedelta(days=days)
        told(lake, "steps", [{"run": run, "step": n, "ts": ts} for run in mine for n in range(3)])
    vision = role("vision", tables=["steps", "runs"])

    def refreshed():
        done = share(lake, vision, str(tmp_path / "out"), "ada", InProcess())
        rows = DeltaTable(f"{tmp_path}/out/r/tables/steps").to_pyarrow_dataset().to_table().column("run").to_pylist()
        assert sorted(rows) == sorted(query(lake, "SELECT run FROM steps", role=vision).column("run").to_pylist())
        return next(one.sources_read for one in done.tables if one.table == "steps"), sorted(set(rows))

    assert refreshed() == (2, ["v1", "v2"])
    told(lake, "runs", [{"run": "s2", "team": "speech"}])
    assert refreshed() == (0, ["v1", "v2"])
    told(lake, "runs", [{"run": "v3", "team": "vision"}])
    assert refreshed() == (0, ["v1", "v2"])
    told(lake, "runs", [{"run": "v2", "team": "speech"}])
    assert refreshed() == (1, ["v1"])
    told(lake, "runs", [{"run": "late", "team": None, "pid": 7}])
    told(lake, "steps", [{"run": "v4", "step": 1, "ts": NOON + timedelta(days=1)}])
    assert refreshed() == (1, ["v1"])
    told(lake, "runs", [{"run": "v4", "team": "vision"}])
    assert refreshed() == (1, ["v1", "v4"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_shares_of_teams_follow_whatever_becomes_of_runs(tmp_path, seed):
    """Runs begin, change hands and are claimed twice while files come and are merged: copies are what a query shows."""
    chance = random.Random(seed)
    lake = Lake.create(str(tmp_path / "lake"))
    vision = role("vision", "it's", tables=["steps", "runs", "cost"])
    read = 0
    for _ in range(8):
        for table in chance.sample(["steps", "runs", "cost"], chance.randrange(1, 4)):
            told(lake, table, some_rows(chance, table) or [{"run": "r0"}])
        if chance.random() < 0.3:
            merge_small(lake, InProcess(), thorough=True)
        done = share(lake, vision, str(tmp_path / "out"), "ada", InProcess())
        read += sum(one.sources_read for one in done.tables)
        for table in ("steps", "runs", "cost"):
            copies = (
                DeltaTable(f"{tmp_path}/out/r/tables/{table}").to_pyarrow_dataset().to_table(columns=COLUMNS[table])
            )
            names = ", ".join(f'"{name}"' for name in COLUMNS[table])
            asked = query(lake, f"SELECT {names} FROM {table}", role=vision)
            assert bag([tuple(row.values()) for row in copies.to_pylist()]) == bag(
                [tuple(row.values()) for row in asked.to_pylist()]
            )
    assert read


def test_a_role_travels_with_its_teams():
    """A worker holds rows to the same teams."""
    assert pickle.loads(pickle.dumps(role("vision"))).teams == {"vision"}


FILE = "roles: {{a: {{classes: [operational], tables: [{tables}], {said}}}}}"


@pytest.mark.parametrize(
    ("tables", "said", "message"),
    [
        ("steps", "teams: []", "teams must not be empty"),
        ("steps", "teams: vision", "teams must be a list"),
        ("steps", "teams: [vision, 3]", "must be text"),
        ("steps", "teams: ['']", "teams must not be empty"),
        ("steps", "team: [vision]", "did you mean 'teams'"),
        ("steps, ingest_plans", "teams: [vision]", "rows of ingest_plans name neither team nor run"),
    ],
)
def test_teams_that_are_not_understood_give_no_role(tmp_path, tables, said, message):
    """A role without teams sees those of all: none may come of a mistake."""
    (tmp_path / "roles.yaml").write_text(FILE.format(tables=tables, said=said))
    with pytest.raises(RoleError, match=message):
        load_role(tmp_path / "roles.yaml", "a", CONTRACTS)


def test_explained_and_compared(tmp_path):
    """What teams do to rows is explained table by table, and compared once for all tables."""
    steps = view(role("it's"), contract("steps"))
    assert steps.rows == (steps.by_team,)
    assert "NOT IN ('it''s')" in steps.by_team

    def roles_of(said):
        (tmp_path / "roles.yaml").write_text(FILE.format(tables="steps, runs", said=said))
        return load_roles(tmp_path / "roles.yaml", CONTRACTS)

    all_, one, two, other = map(roles_of, ("masked: []", "teams: [b]", "teams: [a, b]", "teams: [c]"))
    for old, new, line in (
        (all_, one, "- a: teams: all -> b"),
        (one, all_, "+ a: teams: b -> all"),
        (one, two, "+ a: teams: b -> a, b"),
        (two, one, "- a: teams: a, b -> b"),
        (one, other, "~ a: teams: b -> c"),
    ):
        assert [found.line for found in differences(old, new, CONTRACTS)] == [line]


def test_a_misspelt_team_is_told(lake):
    """A team that the lake has no rows of is named with the nearest; a known one is not, nor a role without teams."""
    found = unknown_teams(lake, [role("vision", "speach"), role()])
    assert [one.line for one in found] == ["role r: no run and no job is of team 'speach' yet"]
    assert found[0].hint == "did you mean 'speech'?"
    assert unknown_teams(Lake.open(lake.uri), [role()]) == []


def test_the_command_and_the_doctor_warn_of_it(lake, tmp_path, monkeypatch):
    """Both go by the configured lake; what the command prints for machines stays clean."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roles.yaml").write_text(FILE.format(tables="steps", said="teams: [visoin]"))
    (tmp_path / "ranklake.toml").write_text(f'[lake]\nuri = "{lake.uri}"\n[sql]\nroles = "roles.yaml"\n')
    done = CliRunner().invoke(roles, ["explain", "a", "steps", "--json"])
    assert "team 'visoin' yet: did you mean 'vision'?" in done.stderr
    assert len(json.loads(done.stdout)["rows"]) == 1
    told_of = [one for one in rules.roles(Patient(load_config())) if one.state == "warning"]
    assert [one.remedy for one in told_of] == ["did you mean 'vision'?"]


def test_a_broken_row_filter_is_told_before_anybody_asks(lake, tmp_path, monkeypatch, capsys):
    """The doctor, `config check` and `roles test` name role, table and what is wrong."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roles.yaml").write_text(FILE.format(tables="steps", said="where: {steps: 'rnak = 0'}"))
    (tmp_path / "ranklake.toml").write_text(f'[lake]\nuri = "{lake.uri}"\n[sql]\nroles = "roles.yaml"\n')
    (tmp_path / "tests.yaml").write_text("tests: [{role: a, table: steps, sees: [run]}]")
    (failed,) = (one for one in rules.roles(Patient(load_config())) if one.state == "failed")
    assert "role a: its condition on steps: unknown column 'rnak'" in failed.what
    assert failed.remedy == "did you mean 'rank'?"
    assert run(["config", "check"]) == 1
    assert "role a: its condition on steps: unknown column 'rnak'; did you mean 'rank'?" in capsys.readouterr().out
    done = CliRunner().invoke(roles, ["test", "tests.yaml"], standalone_mode=False)
    assert "role a: its condition on steps: unknown column 'rnak'" in str(done.exception)


def test_the_record_names_the_teams():
    """Whose data a recipient sees stands in the data-protection record."""
    made = record(CONTRACTS, load_policies(CONTRACTS), {"r": role("vision", tables=["runs"])})
    runs = next(one for one in made if one.table == "runs")
    assert runs.recipients["r"]["rows of"] == ("vision",)
    assert "role r: rows of vision; " in markdown(made, "l", "p")
