"""`ranklake roles`: what a role sees and why, tests of roles as data, and what another file would change."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ranklake.commands.roles import PACKAGED, roles
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.query.role_file import load_roles
from ranklake.retention.roles.cases import run_cases
from ranklake.retention.roles.views import differences, view

CONTRACTS = load_contracts()
OLD = """
roles:
  reader:
    classes: [operational]
    masked: [pseudonymous]
    tables: [runs, steps]
  gone: {classes: [], tables: []}
"""
NEW = """
roles:
  reader:
    classes: [operational, personal]
    masks: {pseudonymous: nullify, runs.world_size: "bucket:8"}
    tables: [runs, scalars]
    runs: "run LIKE 'open-%'"
"""
TESTS = """
tests:
  - role: reader
    table: runs
    sees: [job]
    masked: {user: hash, host: hash}
    hidden: [git_patch]
    refused: [logs]
  - name: people are not named
    role: reader
    given:
      runs:
        - {run: open-1, user: ada, host: node-1, world_size: 8, ts: "2026-03-01T12:00:00Z", date: "2026-03-01"}
        - {run: open-2, user: ada, world_size: 16}
    ask: SELECT run, world_size, count(*) OVER (PARTITION BY "user") AS runs_of_the_same FROM runs
    gives:
      - {run: open-2, world_size: 16, runs_of_the_same: 2}
      - {run: open-1, world_size: 8, runs_of_the_same: 2}
    never: [ada, node-1]
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Go to a folder with two files of roles and one of tests, the first of them configured."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("old.yaml", OLD), ("new.yaml", NEW), ("tests.yaml", TESTS)):
        (tmp_path / name).write_text(text)
    (tmp_path / "ranklake.toml").write_text('[sql]\nroles = "old.yaml"\n')
    return tmp_path


def ask(*arguments):
    """Run ``ranklake roles``; return exit code, what it printed and what it raised."""
    done = CliRunner().invoke(roles, arguments, standalone_mode=False)
    return done.exit_code or done.return_value, done.output, str(done.exception or "")


@pytest.mark.usefixtures("files")
def test_explain_says_how_each_column_is_seen_and_why():
    """Every column has a line: seen, its mask, or hidden; and which word of the file says so."""
    _, said, _ = ask("explain", "reader", "runs")
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in said.splitlines()}
    assert lines["user"] == "pseudonymous hash pseudonymous: in masked, by its contract"
    assert lines["git_patch"].startswith("personal hidden personal: not in classes")
    assert lines["job"].startswith("operational seen")
    found = json.loads(ask("explain", "reader", "runs", "--roles", "new.yaml", "--json")[1])
    assert found["rows"] == ["run LIKE 'open-%'"]
    seen = {one["column"]: one["seen"] for one in found["columns"]}
    assert (seen["user"], seen["world_size"], seen["git_patch"]) == ("nullify", "bucket:8", "seen")
    assert "does not see logs" in ask("explain", "reader", "logs")[1]
    assert "did you mean 'reader'" in ask("explain", "raeder", "runs")[2]
    assert "did you mean 'runs'" in ask("explain", "reader", "rnus")[2]


@pytest.mark.usefixtures("files")
def test_diff_says_who_sees_more_and_who_less():
    """Tables, rows and columns, with the direction; nothing where nothing differs."""
    _, said, _ = ask("diff", "old.yaml", "new.yaml")
    lines = said.splitlines()
    for line in (
        "- gone: a role -> none",
        "- reader: rows of runs: all -> run LIKE 'open-%'",
        "~ reader: runs.user: hash -> nullify",
        "- reader: runs.world_size: seen -> bucket:8",
        "+ reader: runs.git_patch: hidden -> seen",
        "+ reader: scalars: hidden -> seen",
        "- reader: steps: seen -> hidden",
    ):
        assert line in lines
    assert "by which a role sees more" in lines[-1]
    assert {one["sees"] for one in json.loads(ask("diff", "old.yaml", "new.yaml", "--json")[1])} == {
        "more",
        "less",
        "other",
    }
    assert ask("diff", "old.yaml", "old.yaml")[1] == "0 differences, 0 by which a role sees more\n"


def test_diff_tells_of_the_last_day(tmp_path):
    """A role that may be used for longer sees more than before; one that ends sooner, less."""

    def roles_of(said):
        (tmp_path / "one.yaml").write_text(f"roles: {{a: {{classes: [operational], tables: [steps], {said}}}}}")
        return load_roles(tmp_path / "one.yaml", CONTRACTS)

    assert view(roles_of("until: 2027-01-01")["a"], CONTRACTS["steps"]).plain()["until"] == "2027-01-01"
    never, soon, late = map(roles_of, ("masked: []", "until: 2027-01-01", "until: 2027-06-30"))
    for old, new, line in (
        (soon, late, "+ a: until: 2027-01-01 -> 2027-06-30"),
        (soon, never, "+ a: until: 2027-01-01 -> no end"),
        (never, soon, "- a: until: no end -> 2027-01-01"),
        (late, late, None),
    ):
        assert [found.line for found in differences(old, new, CONTRACTS)] == ([line] if line else [])


def test_tests_of_roles_pass_and_fail(files):
    """Tests hold for the roles that they were written for, and each fault of others is named with its line."""
    assert ask("test", "tests.yaml") == (0, "2 tests of roles, 0 failed\n", "")
    code, said, _ = ask("test", "tests.yaml", "--roles", "new.yaml")
    assert code == 1
    assert "tests.yaml:3: reader asks runs: user must be hash, and is nullify; host must be hash" in said
    assert "git_patch must be hidden, and is seen" in said
    leaky = OLD.replace("masked: [pseudonymous]", "").replace("[operational]", "[operational, pseudonymous]")
    (files / "old.yaml").write_text(leaky)
    (files / "tests.yaml").write_text(TESTS.replace("run, world_size", '"user", host, run, world_size'))
    code, said, _ = ask("test", "tests.yaml", "--json")
    second = json.loads(said)[1]
    assert code == 1
    assert second["faults"][-2:] == [f"never: text {n} of 2 is in the answer" for n in (1, 2)]
    assert "ada" not in second["faults"][0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tests: {}", "tests must be a list"),
        ("tests: [{table: runs}]", "tests.yaml:1: tests[0] lacks the key 'role'"),
        ("tests: [{role: raeder, refused: [logs]}]", "did you mean 'reader'"),
        ("tests: [{role: reader}]", "expects nothing"),
        ("tests: [{role: reader, see: []}]", "did you mean 'sees'"),
        ("tests: [{role: reader, table: runs, sees: [usr]}]", "did you mean 'user'"),
        ("tests: [{role: reader, sees: [user]}]", "names no table"),
        ("tests: [{role: reader, table: runs, sees: user}]", "tests[0].sees must be a list"),
        ("tests: [{role: reader, gives: []}]", "asks nothing"),
        ("tests: [{role: reader, ask: SELECT 1, gives: [], given: {runs: [{usr: a}]}}]", "did you mean 'user'"),
        ("tests: [{role: reader, refused: [lgs]}]", "did you mean 'logs'"),
    ],
)
def test_what_is_no_test_is_one_line(files, text, message):
    """A misspelt test would test nothing."""
    (files / "tests.yaml").write_text(text)
    said = ask("test", "tests.yaml")[2]
    assert message in said
    assert "\n" not in said


@pytest.mark.usefixtures("files")
def test_a_query_that_fails_fails_the_test():
    """An unknown column is a fault of the test, told in a line."""
    broken = "tests: [{role: reader, ask: SELECT git_patch FROM runs, gives: []}]"
    with open("tests.yaml", "w") as file:  # noqa: PTH123 - in the folder that we are in
        file.write(broken)
    code, said, _ = ask("test", "tests.yaml")
    assert code == 1
    assert "the query fails: SQL: unknown column 'git_patch'" in said


def test_example_roles_are_understood_and_keep_people_apart(tmp_path):
    """The packaged roles load; of those that see people, only who must see names does."""
    copied = tmp_path / "roles.yaml"
    assert "under [sql]" in ask("new", str(copied))[1]
    assert copied.read_text() == PACKAGED.read_text()
    assert "is there already" in ask("new", str(copied))[2]
    contracts = load_contracts()
    found = load_roles(copied, contracts)
    assert list(found) == ["data-scientist", "platform-engineer", "compliance-officer", "executive", "auditor"]
    plain = {
        name
        for name, role in found.items()
        for table in role.tables
        for one in role.sights(contracts[table])
        if one.column.class_ != "operational"
        and one.column.name in {"user", "actor", "message"}
        and one.visibility == "seen"
    }
    assert plain == {"auditor"}


def test_the_guide_s_role_and_its_tests_hold(tmp_path):
    """The role of the guide is one that can be used, and its tests pass."""
    text = (Path(__file__).parents[2] / "docs/roles.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"```yaml\n((?:roles|tests):)\n(.*?)```", text, re.DOTALL))
    for key, body in blocks.items():
        (tmp_path / f"{key[:-1]}.yaml").write_text(f"{key}\n{body}")
    known = load_roles(tmp_path / "roles.yaml", CONTRACTS)
    assert list(known) == ["researcher"]
    found = run_cases([tmp_path / "tests.yaml"], known, CONTRACTS)
    assert [one.line for one in found if not one.passed] == []
    assert len(found) == 3
