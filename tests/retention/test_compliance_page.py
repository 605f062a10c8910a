"""The compliance page and the data-protection record: as roles, policies and contracts say, and without names."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from page_read import compared
from retaining import CONTRACTS, POLICIES

from ranklake.cli import run
from ranklake.lake.audit import clock
from ranklake.lake.query.role_file import load_roles
from ranklake.lake.store.lake_config import MaskingSection
from ranklake.lake.store.posture import posture
from ranklake.retention.grants.use import approve, ask
from ranklake.retention.report.compliance import CLASSIFIED, compliance
from ranklake.views.html import site as publishing
from ranklake.views.html.governance_pages import compliance_section as section
from ranklake.views.html.shell import render

ROLES_FILE = Path(__file__).parents[2] / "retention" / "roles.yaml"
ROLES = load_roles(ROLES_FILE, CONTRACTS)


@pytest.fixture
def lake(site):
    """Give a lake with a grant that Eve has."""
    made = ask(site.lake, "executive", "eve@example.org", clock.now() + timedelta(days=9), "for Eve", "Ada Asker")
    approve(site.lake, made.name, "Anna Approver")
    return site.lake


def test_each_classified_column_is_told_as_each_role_sees_it(lake):
    """The matrix is what the roles' own views say, and what is seen as it is is counted."""
    found = compliance(lake, POLICIES, ROLES, "", {})
    rows = {row["about"]: row for row in found.columns}
    seen = 0
    for contract in CONTRACTS.values():
        for column in contract.columns:
            assert (f"{contract.table}.{column.name}" in rows) == (column.class_ in CLASSIFIED)
        for role in ROLES.values():
            for sight in role.sights(contract) if role.sees(contract.table) else ():
                if sight.column.class_ in CLASSIFIED:
                    assert rows[f"{contract.table}.{sight.column.name}"][role.name] == sight.visibility
                    seen += sight.visibility == "seen"
    assert found.unmasked == seen > 0


def test_the_page_names_nobody_and_no_place_of_a_key(lake, tmp_path):
    """Grants are counted by role; keys by kind and age; the audit log equals its SQL; anchors cover all rows."""
    key = tmp_path / "secret-place.key"
    key.write_text("A" * 43 + "=\n")
    found = compliance(
        lake.configured(masking=MaskingSection(f"file:{key}")),
        POLICIES,
        ROLES,
        "",
        {"[masking] key": f"file:{key}", "[plans] key": "", "x": "env:HIDDEN"},
    )
    assert {row["role"]: row["grants"] for row in found.grants}["executive"] == 1
    assert [(row["kind"], row["age_days"]) for row in found.keys] == [
        ("file", 0),
        ("not configured", None),
        ("env", None),
    ]
    assert found.anchors == ({"place": "beside the table", "rows": found.trail.first_row["rows"]},)
    text = render(section(found).pages[0]).decode()
    assert compared(lake, text) == 1
    assert len(text) < 2_000_000
    assert not [one for one in ("eve@", "Eve", "Ada", "Anna", "secret-place", "HIDDEN") if one in text]


def test_the_record_says_what_is_held_why_how_long_and_for_whom(lake, tmp_path, monkeypatch, capsys):
    """As JSON and as Markdown, of contracts, policies and roles; without roles it says so."""
    monkeypatch.setattr(publishing, "library", lambda: b"")
    monkeypatch.chdir(tmp_path)
    Path("ranklake.toml").write_text(f'[sql]\nroles = "{ROLES_FILE}"\n')
    assert run(["report", "record", "--json", "--lake", lake.uri]) == 0
    found = {one["table"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["audit"]["purpose"] == POLICIES.rule("audit").reason
    runs = found["runs"]
    assert (runs["rule"], runs["period_days"], runs["owner"]) == ("provenance", 1825, CONTRACTS["runs"].owner)
    assert "user" in [name for columns in runs["classes"].values() for name in columns]
    assert set(runs["recipients"]) == {name for name, role in ROLES.items() if role.sees("runs")}
    assert run(["report", "record", "--lake", lake.uri]) == 0
    told = capsys.readouterr().out
    assert "## runs" in told
    assert "- Kept: 1,825 days (rule provenance)" in told
    Path("ranklake.toml").unlink()
    assert run(["report", "compliance", "--out", "out", "--lake", lake.uri]) == 0
    assert "No roles are defined" in capsys.readouterr().out


def test_a_local_disk_says_nothing_of_encryption_and_the_reason(lake):
    """Unknown, with the reason."""
    found = posture("lake", lake.store)
    assert (found.store, found.by_default, found.region) == ("file", None, None)
    assert "local disk" in found.unknown
