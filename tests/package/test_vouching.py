"""Doctor on anchors and key ages: what is missing, old or out of reach is named; upkeep makes and notes what is due."""

import os
import re
import time
from datetime import UTC, date, datetime, timedelta

import pytest
from ssh_keys import Keys, needs_ssh_keygen

from ranklake.config import Config
from ranklake.doctor.examination import Patient
from ranklake.doctor.vouching import anchors, keys
from ranklake.lake.audit import clock
from ranklake.lake.audit.trail import record
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.keys import first_uses, note_keys
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import AuditSection, MaskingSection
from ranklake.retention.proposals.examination import anchor_if_due, last_anchor, verify_anchors
from ranklake.retention.report.placement import key_ages
from ranklake.segments.keys import read_keyring

pytestmark = [needs_ssh_keygen]


@pytest.fixture
def patient(tmp_path):
    """Return what gives a patient: a lake whose trail has a row, and its witness."""
    signers = Keys(tmp_path / "keys")
    signers.allow("ada")
    Lake.create(str(tmp_path / "lake"))

    def give(**audit):
        section = AuditSection(**{"witness": f"file:{tmp_path / 'witness'}", "anchor_every_h": 24.0, **audit})
        config = Config().replaced({"lake.uri": str(tmp_path / "lake")})
        of = signers.section()
        approvals = {f"approvals.{name}": getattr(of, name) for name in ("allowed_signers",)}
        config = config.replaced({**approvals, "approvals.key": str(signers.path("ada"))})
        for name in AuditSection.__dataclass_fields__:
            config = config.replaced({f"audit.{name}": getattr(section, name)})
        return Patient(config)

    return give


def lake_of(patient):
    return Lake.open(patient.config.lake.uri, {}, patient.config.lake_config)


def said(look, patient):
    (one,) = look(patient)
    return f"{one.state}: {one.what}"


def test_doctor_names_an_anchor_that_is_missing_old_or_out_of_reach(patient, monkeypatch, tmp_path):
    """It is silent of one that is young."""
    one = patient()
    lake = lake_of(one)
    record(lake, "ada", "hold.place", "x", "because")
    assert said(anchors, patient(witness="")).startswith("skipped: no witness")
    assert said(anchors, one) == "warning: the audit log was never anchored"
    assert anchor_if_due(lake).rows == 1
    assert said(anchors, one).startswith("ok: the last anchor is of 1 rows")
    assert anchor_if_due(lake) is None
    record(lake, "ada", "hold.place", "y", "because")
    old = datetime.now(UTC) - timedelta(days=3)
    monkeypatch.setattr(clock, "now", lambda: old)
    for path in (tmp_path / "witness" / "anchors").iterdir():
        path.unlink()
    anchor_if_due(lake)
    record(lake, "ada", "hold.place", "z", "because")
    assert said(anchors, one).startswith("warning: the last anchor is of 2 rows")
    assert "1 row came since" in said(anchors, one)
    monkeypatch.undo()
    (tmp_path / "file").write_text("no folder")
    assert said(anchors, patient(witness=f"file:{tmp_path}/file/below")).split(":")[0] in {"failed", "warning"}
    assert "not say that it is locked" in said(anchors, patient(anchor_lock_days=30, anchor_every_h=100.0))


def test_upkeep_anchors_what_is_due_and_says_what_keeps_it(patient):
    """By configuration; a witness that is away fails nothing else, and is told."""
    lake = lake_of(patient())
    record(lake, "ada", "hold.place", "x", "because")
    assert upkeep(lake, InProcess()).anchored == 1
    assert upkeep(lake, InProcess()).anchored is None
    assert last_anchor(lake).rows == 1
    assert verify_anchors(lake).faults == ()
    failing = lake_of(patient(anchor_lock_days=30, anchor_every_h=1e-9))
    done = upkeep(failing, InProcess())
    assert "only buckets that speak S3 lock objects" in done.anchor_fault
    never = lake_of(patient(anchor_every_h=0.0))
    assert (upkeep(never, InProcess()).anchored, upkeep(never, InProcess(), dry_run=True).anchor_fault) == (None, "")


def test_an_anchor_of_a_day_to_come_puts_none_off(patient, monkeypatch):
    """Of a clock that was wrong, or of whoever may write to the witness."""
    lake = lake_of(patient())
    record(lake, "ada", "hold.place", "x", "because")
    with monkeypatch.context() as patched:
        patched.setattr(clock, "now", lambda: datetime.now(UTC) + timedelta(days=900))
        anchor_if_due(lake)
    assert anchor_if_due(lake).rows == 1


def test_ages_are_counted_from_first_use(patient, tmp_path, monkeypatch):
    """Upkeep notes keys by name; a rotated key is young; a ring in a file is as old as that until then."""
    file = tmp_path / "ring"
    file.write_text("A" * 43 + "=\n")
    long_ago = time.time() - 400.5 * 86_400
    os.utime(file, (long_ago, long_ago))
    lake = lake_of(patient()).configured(masking=MaskingSection(f"file:{file}"))
    (one,) = key_ages(lake, datetime.now(UTC))
    assert (one.setting, one.age_days, one.by) == ("[masking] key", 400, "its file")
    ids = [key.id for key in read_keyring(f"file:{file}").keys]
    assert note_keys(lake.store, {"masking": ids}, date(2020, 1, 1)) == 1
    upkeep(lake, InProcess())
    assert first_uses(lake.store) == {("masking", ids[0]): date(2020, 1, 1)}
    (one,) = key_ages(lake, datetime.now(UTC))
    assert (one.age_days > 2000, one.by) == (True, "first seen in use")
    file.write_text("B" * 43 + "=\n" + "A" * 43 + "=\n")
    upkeep(lake, InProcess())
    (one,) = key_ages(lake, datetime.now(UTC))
    assert one.age_days <= 1
    monkeypatch.setenv("RING", "C" * 43 + "=")
    (one,) = key_ages(lake.configured(masking=MaskingSection("env:RING")), datetime.now(UTC))
    assert (one.age_days, one.hint) == (None, "'ranklake upkeep' notes it from now on")
    assert b"AAAA" not in b"".join(path.read_bytes() for path in (tmp_path / "lake").rglob("*") if path.is_file())


def test_doctor_warns_of_keys_past_their_days(patient, tmp_path):
    """Past what is configured; 0 asks nothing; a ring that is not here is not known."""
    file = tmp_path / "ring"
    file.write_text("A" * 43 + "=\n")
    one = patient(key_days=100)
    configured = Patient(one.config.replaced({"masking.key": f"file:{file}"}))
    lake = lake_of(configured)
    ids = [key.id for key in read_keyring(f"file:{file}").keys]
    note_keys(lake.store, {"masking": ids}, datetime.now(UTC).date() - timedelta(days=101))
    over = r"\[masking\] key is in use for 10[12] days, 100 are configured"  # 102 if midnight came since
    assert re.search(over, said(keys, configured))
    assert said(keys, Patient(configured.config.replaced({"audit.key_days": 0}))).startswith("ok:")
    away = Patient(one.config.replaced({"masking.key": "file:/nowhere"}))
    assert said(keys, away) == "skipped: not known: the age of [masking] key: it cannot be read here"
    assert said(keys, one) == "skipped: no keys are configured"
