"""``ranklake retain`` and ``ranklake audit`` as a user meets them."""

import getpass
import json
import re
import shlex
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archiving import STEPS, policies_in
from governed import any_rows
from retaining import APPROVER, TODAY, bring_days, days_ago
from segments import step_rows

from ranklake.cli import run
from ranklake.lake.audit.trail import record
from ranklake.retention.proposals.approvals import UNSIGNED_NOTE
from ranklake.retention.proposals.retention_plans import register

OWN = "version: 1\nrules:\n"


@pytest.fixture
def command(site, monkeypatch, capfd):
    """Run a command on the lake; give exit code, output and errors."""
    monkeypatch.chdir(site.folder)
    for name in ("RANKLAKE_LAKE", "RANKLAKE_SPOOL", "RANKLAKE_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def call(*args):
        code = run([*args, "--lake", str(site.folder / "lake")])
        return code, *capfd.readouterr()

    return call


def test_the_guide_goes_from_a_plan_to_its_proof(site, command):
    """Each command of the guide behind the plan does what it says, in its order."""
    bring_days(site, [0, 200])
    assert command("retain", "plan")[0] == 0
    (name,) = register(site.lake.tables)
    page = (Path(__file__).parents[2] / "docs/governance.md").read_text(encoding="utf-8")
    part = page.partition("## 9. ")[2].partition("\n### ")[0]
    commands = re.findall(r"^    ranklake (.*)$", part, re.MULTILINE)
    assert len(commands) == 4
    said = ""
    for one in commands:
        code, out, _ = command(*shlex.split(one.replace("rp-…", name)))
        assert code == 0, one
        said += out
    assert "removed 1 partition, 10 rows" in said
    assert "the audit log is whole" in said


def test_from_plan_to_application(site, command):
    """What would go is shown and why; unapproved it is refused; approved it goes; again it is said to be gone."""
    bring_days(site, [0, 200])
    code, out, _ = command("retain", "plan")
    assert code == 0
    assert out.splitlines()[1].split()[:4] == ["steps", str(TODAY - timedelta(days=200)), "raw", "90"]
    assert "raw: Rows of single steps" in out
    name = json.loads(command("retain", "plan", "--json")[1])["plan"]["retention_plan"]
    assert f"ranklake retain approve {name} --by NAME" in out

    code, out, err = command("retain", "apply", name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "this plan is not approved" in err
    assert command("retain", "approve", name, "--by", APPROVER, "--reason", "agreed")[0] == 0
    assert "already" in command("retain", "approve", name, "--by", APPROVER)[1]
    code, out, _ = command("retain", "apply", name, "--by", "Otto")
    assert code == 0
    assert "removed 1 partition, 10 rows" in out
    code, out, _ = command("retain", "apply", name)
    assert (code, "applied already" in out) == (0, True)
    code, out, _ = command("retain", "list")
    assert out.split()[:2] == [name, "applied"]
    assert json.loads(command("retain", "list", "--json")[1])[0]["rows"] == 10
    assert command("status")[0] == 0
    code, out, _ = command("audit", "verify")
    assert (code, out) == (0, f"the audit log is whole: 4 rows\n{UNSIGNED_NOTE}; 2 steps\n")
    code, out, _ = command("audit", "show")
    assert [line.split()[0] for line in out.splitlines()] == ["0", "1", "2", "3"]
    assert getpass.getuser() in out.splitlines()[0]
    assert "retention.plan" in out.splitlines()[0]
    assert APPROVER in out.splitlines()[1]
    assert [row["seq"] for row in json.loads(command("audit", "show", "--json")[1])] == [0, 1, 2, 3]


def test_nothing_due(site, command):
    """It is said, and nothing is planned; a day to come can be asked for."""
    bring_days(site, [10])
    assert command("retain", "plan", "--as-of", str(TODAY)) == (0, f"nothing is due on {TODAY}\n{UNSIGNED_NOTE}\n", "")
    assert command("retain", "plan")[1].startswith("nothing is due on ")
    assert command("retain", "list")[1] == f"no retention plans\n{UNSIGNED_NOTE}\n"
    assert command("audit", "verify") == (0, f"the audit log is empty\n{UNSIGNED_NOTE}; 0 steps\n", "")
    assert "plan rp-" in command("retain", "plan", "--as-of", str(TODAY + timedelta(days=100)))[1]


def test_mistakes_are_one_line(site, command):
    """A wrong plan, date, name or policy file: one line, exit 2."""
    bring_days(site, [200])
    name = json.loads(command("retain", "plan", "--json")[1])["plan"]["retention_plan"]
    (site.folder / "mine.yaml").write_text(OWN)
    for args, said in (
        (("retain", "apply", name[:-1]), f"did you mean '{name}'?"),
        (("retain", "plan", "--as-of", "yesterday"), "is not a date"),
        (("retain", "approve", name, "--by", " "), "the name is empty"),
        (("retain", "approve", name), "--by"),
        (("retain", "aprove", name), "aprove"),
    ):
        code, out, err = command(*args)
        assert (code, out, err.count("\n")) == (2, "", 1), args
        assert said in err
    (site.folder / "ranklake.toml").write_text('[retention]\npolicies = "mine.yaml"\n')
    code, _, err = command("retain", "plan")
    assert (code, err.count("\n")) == (2, 1)
    assert "mine.yaml:2: rules must be a mapping, not empty" in err


def test_a_void_plan_is_one_line(site, command):
    """A partition that changed since: exit 2, and what to do."""
    bring_days(site, [200])
    name = json.loads(command("retain", "plan", "--json")[1])["plan"]["retention_plan"]
    command("retain", "approve", name, "--by", APPROVER)
    site.bring(step_rows(5, incarnation=9, start=days_ago(200)))
    code, _, err = command("retain", "apply", name)
    assert (code, err.count("\n")) == (2, 1)
    assert "has other files than planned; plan again with 'ranklake retain plan'" in err


def test_a_broken_trail_exits_1(site, command):
    """The first broken row is named."""
    for _ in range(3):
        record(site.lake, "a", "b", "c")
    for path in (site.folder / "lake/tables/audit").rglob("*.parquet"):
        rows = pq.read_table(path, partitioning=None)
        if rows["seq"][0].as_py() == 1:
            actor = rows.schema.get_field_index("actor")
            pq.write_table(rows.set_column(actor, rows.schema.field(actor), pa.array(["somebody else"])), path)
    code, out, err = command("audit", "verify")
    assert (code, out) == (1, "")
    assert err == "the audit log is broken: row 1 is missing, repeated or altered\n"


def test_a_damaged_log_is_one_line(site, command):
    """A table whose log lost a commit cannot be opened: exit 2, and what to do."""
    for _ in range(3):
        record(site.lake, "a", "b", "c")
    (site.folder / "lake/tables/audit/_delta_log/00000000000000000002.json").unlink()
    code, out, err = command("audit", "verify")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "table audit cannot be opened" in err


RULES = """version: 1
owner: Olga
basis: law
review: 2020-02-02
rules:
  all: {where: {}, delete_after_days: 90, everything: true, tier: 2, reason: enough}
  books: {where: {class: [system, audit]}, delete_after_days: null, reason: the books}
  prod: {where: {tag: tier=prod}, delete_after_days: 365, reason: audits}
"""


@pytest.fixture
def ours(site, monkeypatch):
    """Have the configuration name policies of our own."""
    place = site.folder / "policies"
    (place / "tests").mkdir(parents=True)
    (place / "rules.yaml").write_text(RULES)
    (site.folder / "ranklake.toml").write_text('[retention]\npolicies = "policies"\n')
    monkeypatch.chdir(site.folder)
    return place


def test_explain(site, command, ours):
    """The rule that decides is told, with the rules that lose to it, as text and as JSON, with a run and without."""
    labels = {"labels": [json.dumps({"tier": "prod"})]}
    site.bring(any_rows("runs", 1, run="r9", start=days_ago(100), **labels), "runs")
    day = str(days_ago(100).date())
    code, out, _ = command("retain", "explain", "steps", day)
    assert code == 0
    assert "kept 90 days" in out
    assert "other rules for some rows of steps: prod" in out
    told = json.loads(command("retain", "explain", "steps", day, "--run", "r9", "--json")[1])
    assert (told["rule"], told["period_days"], told["is_due"]) == ("prod", 365, False)
    assert [one["why"] for one in told["rules"]] == ["", "prod is more specific"]
    assert told["at"].endswith("rules.yaml:8")
    code, out, _ = command("retain", "explain", "steps", day, "--run", "r8")
    assert "no row of 'runs' is of 'r8'" in out
    assert command("retain", "explain", "stpes", day)[2].count("did you mean 'steps'?") == 1
    assert "not told apart by severity" in command("retain", "explain", "steps", day, "--severity", "debug")[2]
    assert command("retain", "explain", "audit", day)[1].splitlines()[1] == "never deleted by time: the books are kept"


def test_lint_and_tests_of_policies(site, command, ours):
    """Warnings leave the exit code 0, --strict and errors make it 1; a test that fails is told with file and line."""
    bring_days(site, [0])
    code, out, _ = command("retain", "lint")
    assert (code, out.count("RP018 warning"), out.splitlines()[-1]) == (0, 3, "3 rules in 1 file: 0 errors, 4 warnings")
    assert "RP021 warning: rule 'prod' goes by tag, which is known for as long as rows of 'runs' are kept" in out
    assert command("retain", "lint", "--strict")[0] == 1
    case = "{given: {table: steps, age_days: 100, tags: {tier: prod}}, expect: %s}"
    (ours / "tests/one.yaml").write_text("version: 1\ntests:\n  - " + case % "kept" + "\n")
    assert command("retain", "test")[:2] == (0, "1 policy test, 0 failed\n")
    (ours / "tests/two.yaml").write_text("version: 1\ntests:\n  - " + case % "deleted" + "\n")
    code, out, _ = command("retain", "test")
    assert code == 1
    assert "two.yaml:3: steps (tags {'tier': 'prod'}), 100 days old: deleted: expected deleted" in out
    (ours / "tests/two.yaml").write_text("version: 1\ntests:\n  - {given: {table: stepz, age_days: 1}, expect: kept}\n")
    code, _, err = command("retain", "test")
    assert (code, "two.yaml:3: there is no table 'stepz'; did you mean 'steps'?" in err) == (2, True)
    (ours / "more.yaml").write_text("version: 1\nrules: {a: {where: {table: logz}, reason: x}}\n")
    found = json.loads(command("retain", "lint", "--json")[1])
    assert {one["code"] for one in found if one["level"] == "error"} == {"RP003", "RP005", "RP006", "RP016"}
    assert command("retain", "plan")[0] == 2


def test_overdue_reviews_show(site, command, ours):
    """In the output of a plan, in its JSON, and once for each rule in the audit log."""
    bring_days(site, [0])
    code, _, err = command("retain", "plan")
    assert (code, err.count("was due on 2020-02-02 (Olga)")) == (0, 3)
    assert len(json.loads(command("retain", "plan", "--json")[1])["reviews_overdue"]) == 3
    rows = command("audit", "list")[1].splitlines()
    assert sum("retention.review_overdue" in row for row in rows) == 3
    assert command("audit", "verify")[0] == 0


def test_new_policies(site, command, capfd):
    """The packaged rules and their tests are copied, pass, and are not written over others."""
    code, out, _ = (run(["retain", "new", "own"]), *capfd.readouterr())
    assert (code, "own/tests/defaults.yaml" in out) == (0, True)
    bring_days(site, [0])
    assert command("retain", "lint", "--policies", "own", "--strict")[0] == 0
    assert command("retain", "test", "--policies", "own")[0] == 0
    assert run(["retain", "new", "own"]) == 2


def test_from_archive_to_rows_that_are_back(site, command, tmp_path):
    """Archived by a plan, listed, verified, explained; proposed, approved, back, asked for, and gone again."""
    policies_in(tmp_path, STEPS)
    (tmp_path / "ranklake.toml").write_text('[retention]\npolicies = "policies"\n')
    bring_days(site, [40, 10])
    name = json.loads(command("retain", "plan", "--json")[1])["plan"]["retention_plan"]
    assert f"cold (to {tmp_path}/archive)" in command("retain", "plan")[1]
    assert command("retain", "approve", name, "--by", APPROVER)[0] == 0
    assert command("retain", "apply", name, "--by", "Otto")[0] == 0
    assert "1 archive, 10 rows" in command("retain", "archives", "list")[1]
    assert command("retain", "archives", "verify")[:2] == (0, "1 archive: 1 file sound, 0 damaged\n")
    day = str(days_ago(40).date())
    assert f"10 rows archived in {tmp_path}/archive" in command("retain", "explain", "steps", day)[1]
    assert f"archived: 10 rows of {day}" in command("catalog", "steps")[1]

    until = str(days_ago(-5).date())
    range_of = ("--from", day, "--to", day, "--until", until)
    code, out, _ = command("retain", "rehydrate", "plan", "steps", *range_of, "--by", "Petra")
    assert (code, "needs" in out, "ranklake retain rehydrate approve rh-" in out) == (0, False, True)
    back = out.split(":")[0]
    assert command("retain", "rehydrate", "apply", back)[0] == 2
    assert command("retain", "rehydrate", "approve", back, "--by", "Petra")[0] == 2
    assert command("retain", "rehydrate", "approve", back, "--by", APPROVER)[0] == 0
    assert f"10 rows back until {until}" in command("retain", "rehydrate", "apply", back)[1]
    count = "SELECT count(*) AS n FROM steps"
    assert json.loads(command("sql", count, "--rehydrated", "--json")[1]) == [{"n": 20}]
    assert json.loads(command("sql", count, "--json")[1]) == [{"n": 10}]
    assert json.loads(command("retain", "rehydrate", "list", "--json")[1])[0]["rows_back"] == 10
    assert "2 files deleted" in command("retain", "rehydrate", "end", back)[1]
    assert command("status")[0] == 0
    (file,) = (tmp_path / "archive").rglob("*.parquet")
    file.write_bytes(b"x")
    code, out, _ = command("retain", "archives", "verify")
    assert (code, str(file) in out, "1 damaged" in out) == (1, True, True)
