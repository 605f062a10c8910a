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
SEGMENT = f"steps/r1~a0~r00000~{7:016x}~000000"


@pytest.mark.slow
def test_each_command_that_changes_a_lake_has_its_rows(tmp_path, monkeypatch, capsys):
    """Ingest, upkeep, hold, replay, grant, stop, erasure, disowned segment, restore; commands that read leave none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranklake.toml").write_text(CONFIG.format(tmp_path))
    (tmp_path / "roles.yaml").write_text("roles:\n  reader: {classes: [operational], tables: [steps]}\n")
    put_segment(tmp_path / "spool", step_rows(20, start=days_ago(3)))
    rows = any_rows("logs", 5, run="shared", incarnation=9, message=[f"by {EMAIL}"] * 5)
    put_segment(tmp_path / "spool", rows, "logs", day=days_ago(0).date().isoformat())
    day = days_ago(3).date().isoformat()

    def audited(*arguments, status=0, lake="lake"):
        """Run a command; return its new rows by action, and what it printed."""
        before = len(trail(Lake.open(str(tmp_path / lake)).tables)) if (tmp_path / lake).exists() else 0
        capsys.readouterr()
        assert run(list(arguments)) == status, arguments
        new = trail(Lake.open(str(tmp_path / lake)).tables)[before:]
        assert all(row["actor"] and row["subject"] for row in new), new
        return {
            row["action"]: (row["actor"], json.loads(row["details"] or "{}")) for row in new
        }, capsys.readouterr().out

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
