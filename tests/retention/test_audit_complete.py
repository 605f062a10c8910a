"""The audit log is complete: each plan has one row, and so have deletions, newer contracts and changed settings."""

import json
from concurrent.futures import ThreadPoolExecutor

from bringing import bring
from retaining import days_ago
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import trail
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.disowned import Claim
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read
from ranklake.pipeline.auditing import audit_ingest, note_plans, note_settings
from ranklake.retention.corrections import disown


def rows_of(lake):
    """Return the audit log's rows, their details as values."""
    return [{**row, "details": json.loads(row["details"] or "{}")} for row in trail(lake.tables)]


def test_each_plan_has_one_row_with_its_counts(lake, spool):
    """Ingest by what it brought, merges by files before and after; told again, nothing is written."""
    for segment in range(3):
        put_segment(spool, step_rows(10, segment=segment), rows_before=10 * segment)
        bring(lake, spool, merge=False)
    merge_small(lake, InProcess(), {"steps"}, thorough=True)
    note_plans(lake, "ada")
    rows = rows_of(lake)
    assert [(row["actor"], row["action"], row["subject"]) for row in rows] == [
        *(("ada", "plan.ingest", f"plan {number}") for number in (1, 2, 3)),
        ("ada", "plan.compaction", "plan 4"),
    ]
    assert rows[0]["details"]["change_of_rows"] == {"steps": 10}
    assert (rows[0]["details"]["segments"], rows[0]["details"]["rows_stored"]) == (1, 10)
    merged = rows[3]["details"]
    assert (merged["before"]["steps"], merged["after"]["steps"]) == ({"files": 3, "rows": 30}, {"files": 1, "rows": 30})
    assert note_plans(lake, "ada") == []
    assert len(rows_of(lake)) == 4


def test_two_who_write_at_once_write_one_row(lake, spool):
    """Each thread looks for itself; the audit log's compare-and-swap keeps one row a plan, and the chain is whole."""
    for segment in range(4):
        put_segment(spool, step_rows(5, segment=segment), rows_before=5 * segment)
        bring(lake, spool, merge=False)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda name: note_plans(Lake.open(lake.uri), name), ("ada", "eve", "mae")))
    subjects = [row["subject"] for row in rows_of(lake)]
    assert subjects == [f"plan {number}" for number in (1, 2, 3, 4)]
    assert prove(lake).whole


def test_what_has_a_row_of_its_own_gets_none(lake, spool):
    """A segment that somebody disowned is told by who did it."""
    put_segment(spool, step_rows(5))
    bring(lake, spool)
    note_plans(lake, "ada")
    disown(lake, Claim.parse(f"steps/r1~a0~r00000~{7:016x}~000000"), "eve", "broken")
    note_plans(lake, "ada")
    assert [row["action"] for row in rows_of(lake)] == ["plan.ingest", "disown", "disowned"]


def test_changed_settings_have_a_row_with_before_and_after(lake):
    """The first row has all, later ones what changed; nothing changed, nothing is written."""
    first = {"roles": {"reader": "aa", "writer": "bb"}, "policies": {"steps": "cc"}}
    assert note_settings(lake, "ada", first) == ["roles", "policies"]
    assert note_settings(lake, "ada", first) == []
    later = {"roles": {"reader": "dd"}, "policies": {"steps": "cc"}}
    assert note_settings(lake, "eve", later) == ["roles"]
    row = rows_of(lake)[-1]
    assert (row["actor"], row["action"], row["subject"]) == ("eve", "settings.changed", "roles")
    assert row["details"] == {
        "before": {"reader": "aa", "writer": "bb"},
        "after": {"reader": "dd", "writer": None},
    }
    assert note_settings(lake, "eve", later) == []
    assert note_settings(lake, "eve", first) == ["roles"]


def test_commands_write_them(tmp_path, monkeypatch, capsys):
    """Ingest and upkeep, contracts, policies, roles and configuration; no secret is in the audit log."""
    monkeypatch.chdir(tmp_path)
    options = ["--lake", str(tmp_path / "lake"), "--spool", str(tmp_path / "spool")]
    put_segment(tmp_path / "spool", step_rows(5, start=days_ago(3)))
    assert run(["ingest", *options]) == 0
    lake = Lake.open(str(tmp_path / "lake"))
    assert [row["action"] for row in rows_of(lake)] == ["plan.ingest"]
    assert run(["ingest", *options]) == 0
    assert len(rows_of(lake)) == 1
    assert run(["upkeep", "--lake", options[1]]) == 0
    kinds = {row["subject"] for row in rows_of(lake) if row["action"] == "settings.changed"}
    assert kinds == {"contracts", "policies", "configuration"}
    (tmp_path / "roles.yaml").write_text("roles:\n  reader: {classes: [operational], tables: [steps]}\n")
    secret = "AKIA" + "QWERTYUIOPASDFGH"
    (tmp_path / "ranklake.toml").write_text(
        f'[sql]\nroles = "roles.yaml"\n[query]\nkeep_days = 30\n[storage]\naws_secret_access_key = "env:{secret}"\n'
    )
    before = len(rows_of(lake))
    assert run(["upkeep", "--lake", options[1]]) == 0
    new = {row["subject"]: row["details"] for row in rows_of(lake)[before:]}
    assert set(new) == {"roles", "configuration"}
    assert new["configuration"]["after"]["query.keep_days"] == "30"
    assert new["configuration"]["before"]["query.keep_days"] is None
    assert list(new["roles"]["after"]) == ["reader"]
    assert secret not in str(rows_of(lake))
    capsys.readouterr()
    assert run(["audit", "verify", "--lake", options[1]]) == 0


def test_deletions_from_the_spool_are_told(lake):
    """How many segments went, and after how many days; a round that deleted none writes nothing."""
    audit_ingest(lake, 0, 7)
    assert rows_of(lake) == []
    audit_ingest(lake, 3, 7)
    (row,) = rows_of(lake)
    assert (row["action"], row["subject"], row["details"]) == ("spool.purge", "spool", {"keep_days": 7, "segments": 3})


def test_a_broken_trail_holds_up_no_ingest(tmp_path, capsys):
    """Rows are stored, the fault is told; once the audit log goes on, the missing rows are written."""
    options = ["--lake", str(tmp_path / "lake"), "--spool", str(tmp_path / "spool")]
    put_segment(tmp_path / "spool", step_rows(5))
    assert run(["ingest", *options]) == 0
    heads = list((tmp_path / "lake/audit/heads").rglob("*.json"))
    newest = max(heads, key=lambda path: path.name)
    newest.rename(newest.with_name(newest.name.replace("1.json", "9.json")))
    put_segment(tmp_path / "spool", step_rows(5, segment=1), rows_before=5)
    assert run(["ingest", *options]) == 0
    assert "the audit log could not be written" in capsys.readouterr().err
    assert read(Lake.open(options[1]).tables, contract("steps")).num_rows == 10
