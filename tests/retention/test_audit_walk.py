"""Every command that changes what a lake holds, one after the other: each leaves who did what, and facts of it."""

import json

import pytest
from governed import any_rows
from retaining import days_ago
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import trail
from ranklake.lake.store.lake import Lake

EMAIL = "ada@analytical.example"
CONFIG = """
[lake]
uri = "{0}/lake"
[spool]
uri = "{0}/spool"
[sql]
roles = "roles.yaml"
grants = true
"""
MORE = """
[retention]
policies = "policies"
[shares]
to = "{0}/out"
roles = ["reader"]
"""
SEGMENT = f"steps/r1~a0~r00000~{7:016x}~000000"


@pytest.fixture
def audited(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command and gives its new audit rows by action, and what it printed.

    The folder has a configuration, a role, and a spool with 20 steps and 5 log lines of `EMAIL`.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranklake.toml").write_text(CONFIG.format(tmp_path))
    (tmp_path / "roles.yaml").write_text("roles:\n  reader: {classes: [operational], tables: [steps]}\n")
    put_segment(tmp_path / "spool", step_rows(20, start=days_ago(3)))
    rows = any_rows("logs", 5, run="shared", incarnation=9, message=[f"by {EMAIL}"] * 5)
    put_segment(tmp_path / "spool", rows, "logs", day=days_ago(0).date().isoformat())

    def call(*arguments, status=0, lake="lake"):
        before = len(trail(Lake.open(str(tmp_path / lake)).tables)) if (tmp_path / lake).exists() else 0
        capsys.readouterr()
        assert run(list(arguments)) == status, (arguments, capsys.readouterr())
        new = trail(Lake.open(str(tmp_path / lake)).tables)[before:]
        assert all(row["actor"] and row["subject"] for row in new), new
        rows = {row["action"]: (row["actor"], json.loads(row["details"] or "{}")) for row in new}
        return rows, capsys.readouterr().out

    return call


@pytest.mark.slow
def test_each_command_that_changes_a_lake_has_its_rows(audited, tmp_path):
    """Ingest, upkeep, hold, replay, grant, stop, erasure, disowned segment, restore; commands that read leave none."""
    day = days_ago(3).date().isoformat()
    done, _ = audited("ingest")
    assert set(done) == {"plan.ingest"}
    assert done["plan.ingest"][1]["rows_stored"] == 25
    for reading in (["status"], ["sql", "SELECT 1"], ["lineage", "steps", "--run", "r1"], ["catalog"]):
        assert audited(*reading)[0] == {}, reading
    done, _ = audited("upkeep")
    assert set(done) == {"settings.changed"}
    done, _ = audited(
        *("retain", "hold", "--where", "run=r1", "--reason", "x", "--until", "2099-01-01", "--by", "Ann"),
    )
    assert done["retention.hold"][0] == "Ann"
    done, _ = audited("replay", "--table", "steps", "--from", day, "--to", day)
    facts = done["plan.replay"][1]
    assert facts["before"]["steps"]["rows"] == facts["after"]["steps"]["rows"] == 20
    done, _ = audited("grant", "reader", "--to", "eve", "--until", "30d", "--reason", "y", "--by", "Petra")
    assert set(done) == {"grant.request", "grant.propose"}
    assert set(audited("playbooks", "stop", "--why", "z")[0]) == {"playbook.stop"}
    assert set(audited("playbooks", "resume", "--why", "z")[0]) == {"playbook.resume"}
    done, printed = audited("erase", "plan", EMAIL, "--by", "Petra", "--json")
    name = json.loads(printed)["erasure"]
    assert done["erasure.propose"][0] == "Petra"
    assert audited("erase", "approve", name, "--by", "Anna")[0]["erasure.approve"][0] == "Anna"
    done, _ = audited("erase", "apply", name, EMAIL, "--by", "Otto")
    assert set(done) >= {"erasure.apply", "erasure.applied", "erasure.certified"}
    assert {actor for actor, _ in done.values()} == {"Otto"}
    done, _ = audited("disown", SEGMENT, "--reason", "broken", "--by", "Eve")
    assert {action: actor for action, (actor, _) in done.items()} == {"disown": "Eve", "disowned": "Eve"}
    assert audited("backup", str(tmp_path / "backups"))[0] == {}
    done, _ = audited("restore", str(tmp_path / "backups"), "--to", str(tmp_path / "second"), lake="second")
    assert "backup.restore" in done
    lake = Lake.open(str(tmp_path / "lake"))
    assert prove(lake).whole
    assert EMAIL not in str(trail(lake.tables))


@pytest.mark.slow
def test_commands_of_governance_have_their_rows(audited, tmp_path):
    """Retention, metrics, grants, shares, repair, renumbering: who did it, and how much it changed."""
    assert run(["retain", "new", "policies"]) == 0
    rules = tmp_path / "policies/defaults.yaml"
    rules.write_text(rules.read_text().replace("version: 1", "version: 1\ngrace_days: 5", 1))
    put_segment(tmp_path / "spool", step_rows(20, run="old", incarnation=5, start=days_ago(200)))
    with (tmp_path / "ranklake.toml").open("a") as file:
        file.write(MORE.format(tmp_path))
    audited("ingest")
    done, printed = audited("retain", "plan", "--by", "Petra", "--json")
    name = json.loads(printed)["plan"]["retention_plan"]
    assert done["retention.propose"][0] == "Petra"
    assert audited("retain", "approve", name, "--by", "Anna")[0]["retention.approve"][0] == "Anna"
    done, _ = audited("retain", "apply", name, "--by", "Otto")
    assert (done["retention.apply"][0], done["retention.applied"]) == ("Otto", ("Otto", {"plan": 2, "rows": 25}))
    done, _ = audited("retain", "cancel", name, "--by", "Otto", "--reason", "x")
    assert done["cancellation.applied"] == ("Otto", {"applied_by": 2, "plan": 3, "rows": 25})
    done, _ = audited(
        *("metric", "deprecate", "eval/loss", "--until", "2099-01-01", "--by", "Ann", "--reason", "x"),
    )
    assert done["metric.deprecated"] == ("Ann", {"unit": "1", "until": "2099-01-01"})
    grant = ("grant", "reader", "--to", "eve", "--until", "30d", "--reason", "y", "--by", "Petra", "--json")
    name = json.loads(audited(*grant)[1])["grant"]
    done, _ = audited("grants", "approve", name, "--by", "Anna")
    assert {action: actor for action, (actor, _) in done.items()} == {"grant.approve": "Anna", "grant.granted": "Anna"}
    done, _ = audited("share", "reader", "--by", "Anna")
    assert set(done) == {"share.create", "share.refresh"}
    assert (done["share.refresh"][0], done["share.refresh"][1]["rows_added"]) == ("Anna", 40)
    assert audited("share", "reader", "--by", "Anna")[0] == {}, "nothing had changed"
    assert audited("revoke", name, "--reason", "over", "--by", "Carl")[0]["grant.revoke"][0] == "Carl"
    done, _ = audited("share", "--all", "--by", "Anna")
    assert set(done) == {"share.drop", "share.dropped"}
    assert done["share.dropped"][1]["files"] > 0
    audited("backup", str(tmp_path / "backups"))
    for path in list((tmp_path / "lake/tables/steps").rglob("*.parquet")):
        path.unlink()
    actor, facts = audited("repair", "steps", str(tmp_path / "backups"), "--by", "Rea")[0]["backup.repair"]
    assert (actor, facts["rows"], facts["data_files"]) == ("Rea", 40, 2)
    put_segment(tmp_path / "spool", step_rows(20, start=days_ago(2), incarnation=77))
    audited("ingest")
    done, _ = audited("renumber", "r1", "--by", "Rea")
    assert set(done) == {"renumber", "renumbered"}
    assert (done["renumbered"][0], done["renumbered"][1]["rows"]) == ("Rea", 20)
    assert prove(Lake.open(str(tmp_path / "lake"))).whole
