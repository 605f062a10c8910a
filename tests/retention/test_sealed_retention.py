"""Retention of columns under keys of people: masked, downsampled, archived, brought back, held, and forgotten."""

from datetime import timedelta

import pytest
from archiving import archived, policies_in
from governed import any_rows
from keyed import COLUMNS, erased, sealed_of, section
from people import OLD, with_keys
from retaining import CONTRACTS, TODAY, agree, carry_out, days_ago, keeping, plan
from segments import put_segment
from subjects import ADA, GRACE, VALUES

from ranklake.insight.ask import ask
from ranklake.lake.contracts.capture_masks import CaptureMasks
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake_config import SubjectsSection
from ranklake.masking.masks import Mask, Pseudonyms
from ranklake.retention.archive.rehydration import approve, end, propose, rehydrate, select_archives, write_down
from ranklake.retention.erasure.archived import HeldError
from ranklake.retention.holds.holds import set_hold
from ranklake.retention.plans.cancel import cancel
from ranklake.retention.plans.explain import RowSelection, explain
from ranklake.retention.plans.mask_proof import prove
from ranklake.retention.policies.policies import load_policies
from ranklake.retention.subjects.keys import SubjectKeysError
from ranklake.retention.subjects.store import KeyStore, key_state

CLEAR = 'SELECT run, unsealed("user") AS who, unsealed(command_line) AS line FROM runs ORDER BY run'
LINE = "train --out /home/{}/out --mail {}@x.example"
PEOPLE = "people: {where: {table: runs, column: [user, command_line]}, mask_after_days: 30, reason: enough}"
WORDS = "words: {where: {table: runs, column: command_line}, mask_after_days: 30, reason: enough}"
COLD = "cold: {where: {table: runs}, archive: {after_days: 20, to: TO}, reason: rarely read}"


def bring(site, *who, age=40, first=1):
    """Ingest a run of each of some people."""
    for number, name in enumerate(who, first):
        told = {"user": [name], "command_line": [LINE.format(name, name)]}
        rows = any_rows("runs", 1, run=f"exp-{number}", incarnation=number, start=days_ago(age), **told)
        put_segment(site.spool, rows, "runs")
    ingest(site.lake, Spool(str(site.spool)), InProcess())


def applied(site, found, today=TODAY):
    """Plan, approve and apply what is due; return the name of the plan."""
    made = plan(site, today, found)
    if made is None:
        return None
    agree(site, made.name)
    carry_out(site, made.name, today, found)
    return made.name


def seen(site, *, back=False, text=CLEAR):
    """Return what a query shows to whoever has the keys."""
    return ask(site.lake, text, rehydrated=back).rows.to_pylist()


def bytes_with(site, who, *folders):
    """Return files that name somebody in any byte: of the lake, and of folders beside it."""
    every = [path for name in ("lake", *folders) for path in (site.folder / name).rglob("*") if path.is_file()]
    return [path for path in every if who.encode() in path.read_bytes()]


@pytest.fixture
def site(sealing, tmp_path):
    """Return a lake whose users are under keys, and which has a key for pseudonyms."""
    own = tmp_path / "own"
    own.mkdir()
    return with_keys(sealing, own, OLD)


@pytest.mark.slow
def test_masks_at_rest_are_of_what_is_sealed(site, tmp_path):
    """A user is a pseudonym of the sealed name; a command line loses homes, under its key, for whoever opens it."""
    found = policies_in(tmp_path, PEOPLE)
    bring(site, ADA, GRACE, ADA)
    bring(site, GRACE, age=10, first=4)
    hers = sealed_of(site, ADA)
    assert applied(site, found)
    rows = seen(site)
    assert [row["line"] for row in rows[:3]] == ["train --out /home/[redacted]/out --mail [redacted]"] * 3
    assert rows[3] == {"run": "exp-4", "who": GRACE, "line": LINE.format(GRACE, GRACE)}
    stored = {row["run"]: row for row in site.rows("runs")}
    assert stored["exp-1"]["user"] == stored["exp-3"]["user"] != stored["exp-2"]["user"]
    assert all(stored[f"exp-{n}"]["user"].startswith("p-") for n in (1, 2, 3))
    assert all(row["command_line"].startswith("s-") for row in stored.values())
    assert stored["exp-1"]["command_line"][:18] == hers[:18], "under her key, as before"
    assert plan(site, TODAY, found) is None, "no date is due again"
    assert {one.status for one in prove(site.lake, CONTRACTS, found, {}, as_of=TODAY)} == {"masked"}
    before = {row["run"]: row for row in site.rows("runs")}
    assert erased(site, *VALUES).certificate.is_clean
    assert {row["run"]: row for row in site.rows("runs")} == before, "rows stay"
    assert [row["line"] for row in seen(site)] == [None, rows[1]["line"], None, rows[3]["line"]]
    assert plan(site, TODAY, found) is None, "what nobody can read is not due"
    assert bytes_with(site, ADA) == []
    assert bytes_with(site, GRACE) == []
    site.balances()


@pytest.mark.slow
def test_masks_need_the_keys_of_what_they_open(site, tmp_path):
    """Whoever plans without them is told; nothing counts as masked that was not looked into."""
    found = policies_in(tmp_path, WORDS)
    bring(site, ADA)
    whole = site.lake
    site.lake = whole.configured(subjects=SubjectsSection())
    with pytest.raises(SubjectKeysError, match="no keys are configured"):
        plan(site, TODAY, found)
    (one,) = prove(site.lake, CONTRACTS, found, {}, as_of=TODAY)
    assert (one.column, one.status, one.values) == ("command_line", "unseen", 0)
    site.lake = whole
    (one,) = prove(site.lake, CONTRACTS, found, {}, as_of=TODAY)
    assert (one.column, one.status, one.values) == ("command_line", "unmasked", 1)
    assert applied(site, found)


@pytest.mark.slow
def test_a_key_that_is_found_again_makes_its_values_due(site, tmp_path):
    """What nobody can read is left as it is; whoever restores the key has it masked by the next plan."""
    found = policies_in(tmp_path, WORDS)
    bring(site, ADA, GRACE)
    place = site.folder / "keys" / f"{KeyStore(site.lake).lookup(ADA)}.key"
    raw = place.read_bytes()
    place.unlink()
    assert applied(site, found)
    assert [row["line"] is None for row in seen(site)] == [True, False]
    place.write_bytes(raw)
    assert seen(site)[0]["line"] == LINE.format(ADA, ADA)
    made = plan(site, TODAY, found)
    assert made is not None
    assert applied(site, found)
    assert "[redacted]" in seen(site)[0]["line"]


@pytest.mark.slow
def test_masked_values_come_back_in_their_grace_and_are_forgotten(site, tmp_path):
    """Cancelled, a mask gives back what was sealed; forgotten meanwhile, it gives back what says nothing."""
    found = keeping(policies_in(tmp_path, PEOPLE))
    bring(site, ADA, GRACE)
    name = applied(site, found)
    assert erased(site, *VALUES).certificate.is_clean
    cancel(site.lake, name, "Carla")
    assert seen(site) == [
        {"run": "exp-1", "who": None, "line": None},
        {"run": "exp-2", "who": GRACE, "line": LINE.format(GRACE, GRACE)},
    ]
    assert bytes_with(site, ADA) == []
    site.balances()


@pytest.mark.parametrize("when", ["before it came back", "while it is back"])
@pytest.mark.slow
def test_archived_rows_of_the_forgotten_come_back_and_say_nothing(site, tmp_path, when):
    """Whatever comes first: the rows are there, hers unread, others' as they were, masked where that came due."""
    found = policies_in(tmp_path, COLD)
    bring(site, ADA, GRACE, age=25)
    archived(site, found)
    assert seen(site) == []

    def forget():
        assert erased(site, *VALUES).certificate.is_clean

    if when == "before it came back":
        forget()
    some = select_archives(site.lake.tables, "runs", days_ago(90).date(), TODAY)
    made = write_down(site.lake, some, TODAY + timedelta(days=30), "Ann", "an incident")
    propose(site.lake, made, "Ann")
    approve(site.lake, made.name, "Ada Approver")
    rehydrate(site.lake, made.name, "Otto", found)
    if when != "before it came back":
        forget()
    rows = seen(site, back=True)
    assert rows == [
        {"run": "exp-1", "who": None, "line": None},
        {"run": "exp-2", "who": GRACE, "line": LINE.format(GRACE, GRACE)},
    ]
    later = policies_in(tmp_path, COLD, PEOPLE)
    end(site.lake, made.name, "Otto")
    rehydrate(site.lake, made.name, "Otto", later, today=TODAY + timedelta(days=10))
    rows = seen(site, back=True)
    assert [row["line"] for row in rows] == [None, "train --out /home/[redacted]/out --mail [redacted]"]
    assert len(rows) == 2
    for who in (ADA, GRACE):
        assert bytes_with(site, who, "archive") == []
    assert key_state(site.lake).is_sound


@pytest.mark.slow
def test_a_person_in_the_archived_words_of_another_goes(site, tmp_path):
    """A command line that names her, under another's key, in an archive and back from it: its row goes, others stay."""
    found = policies_in(tmp_path, COLD)
    told = {"user": [GRACE, GRACE], "command_line": [f"train --as {ADA}", "train"]}
    rows = any_rows("runs", 2, run="exp-9", incarnation=9, start=days_ago(25), **told)
    site.bring(rows, "runs")
    for path in site.spool.rglob("*.parquet"):
        path.unlink()
    archived(site, found)
    some = select_archives(site.lake.tables, "runs", days_ago(90).date(), TODAY)
    made = write_down(site.lake, some, TODAY + timedelta(days=30), "Ann", "an incident")
    propose(site.lake, made, "Ann")
    approve(site.lake, made.name, "Ada Approver")
    rehydrate(site.lake, made.name, "Otto", found)
    assert len(seen(site, back=True)) == 2
    assert erased(site, *VALUES).certificate.is_clean
    rehydrate(site.lake, made.name, "Otto", found)
    assert [row["line"] for row in seen(site, back=True)] == ["train"]


@pytest.mark.slow
def test_downsampled_tables_keep_nobody(site, tmp_path):
    """Rows with a sealed host become sums; in their grace they can come back, and say nothing once forgotten."""
    own = section(tmp_path, columns=(*COLUMNS, "host_samples.host"))
    site.lake = site.lake.configured(subjects=own)
    told = {"host": [ADA, GRACE], "subject": ["cpu"] * 2, "cpu_busy": [0.5, 0.25]}
    known = {one.name for one in CONTRACTS["host_samples"].columns}
    told = {name: values for name, values in told.items() if name in known}
    site.bring(any_rows("host_samples", 2, start=days_ago(40), **told), "host_samples")
    rule = "curves: {where: {table: host_samples}, downsample: {after_days: 30, interval: 1m}, reason: curves stay}"
    found = keeping(policies_in(tmp_path, rule))
    hers, his = sealed_of(site, ADA), sealed_of(site, GRACE)
    assert {row["host"] for row in site.rows("host_samples")} == {hers, his}
    name = applied(site, found)
    assert site.rows("host_samples") == []
    assert site.rows("downsampled")
    assert erased(site, *VALUES).certificate.is_clean
    cancel(site.lake, name, "Carla")
    text = "SELECT unsealed(host) AS who FROM host_samples ORDER BY slot"
    assert [row["who"] for row in seen(site, text=text)] == [None, GRACE]
    for who in (ADA, GRACE, hers.encode().hex()):
        assert bytes_with(site, who) == []
    site.balances()


@pytest.mark.slow
def test_holds_keep_what_is_sealed_from_masks_and_from_being_forgotten(site, tmp_path):
    """A held run keeps its words and its key; others of the date are masked. Released by its day, all goes on."""
    found = policies_in(tmp_path, PEOPLE)
    bring(site, ADA, GRACE)
    until = TODAY + timedelta(days=5)
    set_hold(site.lake, ["run=exp-1"], "a claim", until, "Lee Legal")
    assert applied(site, found)
    rows = seen(site)
    assert rows[0] == {"run": "exp-1", "who": ADA, "line": LINE.format(ADA, ADA)}
    assert rows[1]["who"].startswith("p-")
    for path in site.spool.rglob("*.parquet"):
        path.unlink()
    with pytest.raises(HeldError):
        erased(site, *VALUES)
    assert KeyStore(site.lake).find(ADA) is not None
    assert merge_small(site.lake, InProcess(), thorough=True) is not None
    assert applied(site, found, until)
    assert [row["who"][:2] for row in seen(site)] == ["p-", "p-"]


@pytest.mark.slow
def test_explain_says_which_rule_masks_what_is_sealed(site, tmp_path):
    """As of a column that is in clear."""
    found = policies_in(tmp_path, PEOPLE)
    bring(site, ADA)
    day = days_ago(40).date()
    said = explain(site.lake, CONTRACTS, found, RowSelection("runs", day))
    assert {(one.column, one.rule.name) for one in said.masks} == {("user", "people"), ("command_line", "people")}


@pytest.mark.slow
def test_what_was_masked_at_capture_and_sealed_then_is_proved(site):
    """The proof opens it: of a pseudonym it says masked, of a name unmasked, without keys nothing."""
    ring = Pseudonyms.of(site.lake.config.masking.key)
    bring(site, ring(ADA))
    capture = CaptureMasks({"runs": {"user": Mask("hash")}})
    policies = load_policies(CONTRACTS)

    def proof():
        found = prove(site.lake, CONTRACTS, policies, {}, capture=capture, pseudonyms=ring, as_of=TODAY)
        return next((one.status, one.values, one.unmasked) for one in found if one.place == "at capture")

    assert proof() == ("masked", 1, 0)
    bring(site, GRACE, first=2)
    assert proof() == ("unmasked", 2, 1)
    site.lake = site.lake.configured(subjects=SubjectsSection())
    assert proof() == ("unseen", 0, 0)
