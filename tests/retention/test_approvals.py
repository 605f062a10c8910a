"""Approvals by signatures: what does not hold is refused at approve and at apply, and found by ``audit verify``.

The keys are real ones, and ``ssh-keygen`` signs and verifies.
"""

import json
import subprocess
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from desk import Desk
from governed import Site
from ssh_keys import Keys, needs_ssh_keygen

from ranklake.errors import RanklakeError
from ranklake.lake.audit import clock
from ranklake.lake.audit.proof import verify
from ranklake.lake.audit.trail import record, trail
from ranklake.lake.plans.plan import last_finished
from ranklake.lake.store.lake_config import ApprovalsSection, Tier
from ranklake.lake.store.ssh_signatures import SignatureError, SigningToolError, load_signers, sign
from ranklake.lake.store.ssh_signatures import verify as verified
from ranklake.retention.proposals.approvals import ClockError, DowngradeError, NoEvidenceError, require
from ranklake.retention.proposals.examination import examine
from ranklake.retention.proposals.identities import NobodyError, Signing, StatementError, name_of
from ranklake.retention.proposals.lifecycle import standing, statement
from ranklake.retention.proposals.proposals import NotApprovedError, SameOperatorError

pytestmark = needs_ssh_keygen
PEOPLE = ("pia", "ada", "otto", "eve")


@pytest.fixture(scope="module")
def made_keys(tmp_path_factory):
    """Make everybody's key once."""
    keys = Keys(tmp_path_factory.mktemp("people"))
    for name in PEOPLE:
        keys.path(name)
    return keys.folder


@pytest.fixture
def keys(made_keys, tmp_path):
    """Give keys, and a file that lets all of them sign."""
    (tmp_path / "keys").mkdir()
    for path in made_keys.iterdir():
        (tmp_path / "keys" / path.name).write_bytes(path.read_bytes())
        (tmp_path / "keys" / path.name).chmod(0o600)
    found = Keys(tmp_path / "keys")
    found.allow(*PEOPLE)
    return found


@pytest.fixture
def desk(tmp_path, keys):
    """Give an empty lake that takes signatures, and proposals in it."""
    site = Site(tmp_path)
    site.lake = site.lake.configured(approvals=keys.section())
    return Desk(site)


def configure(desk, section):
    """Give the lake another configuration of approvals."""
    desk.site.lake = desk.site.lake.configured(approvals=section)


def proposed(desk, keys, *items, **facts):
    """Return the name of a proposal whose author signed it."""
    name = desk.propose(*(items or "ab"), **facts)
    desk.sign_as_author(name, **keys.by("pia"))
    return name


def approved(desk, keys):
    """Return the name of a proposal that was approved."""
    name = proposed(desk, keys)
    desk.approve(name, **keys.by("ada"))
    return name


def steps(desk, action):
    """Return rows of the audit log of an action, with their details."""
    return [
        row | {"details": json.loads(row["details"])} for row in trail(desk.site.lake.tables) if row["action"] == action
    ]


def forge(desk, row, **changes):
    """Append a row to the audit log like another but for some changes, the way whoever writes the bucket can."""
    row = {**row, **changes}
    record(desk.site.lake, row["actor"], row["action"], row["subject"], row["reason"], row["details"])


def refused_everywhere(desk, name, keys, why):
    """Look whether nothing is applied, and the audit log is found wanting; both say why."""
    with pytest.raises(NoEvidenceError, match=why):
        desk.apply(name, **keys.by("otto"))
    assert last_finished(desk.site.lake.tables) == 0
    assert any(why in fault for fault in examine(desk.site.lake).faults), examine(desk.site.lake).faults


def test_three_people_sign(desk, keys):
    """Author, approver and whoever applies sign; the audit log holds each signature, says the mode, and verifies."""
    name = approved(desk, keys)
    done, fresh = desk.apply(name, **keys.by("otto"))
    assert (done.state, fresh) == ("applied", True)
    assert [action for action, _ in desk.actions()] == [
        "approvals.mode", "release.propose", "release.approve", "release.apply", "release.applied"
    ]  # fmt: skip
    (approval,) = steps(desk, "release.approve")
    assert approval["details"]["mode"] == "signed"
    assert approval["details"]["signature"].startswith("-----BEGIN SSH SIGNATURE-----")
    assert "example.org" not in json.dumps(approval["details"])
    found = examine(desk.site.lake)
    assert (found.faults, found.notes, found.signed, found.unsigned, found.verified) == ((), (), 3, 0, True)
    assert verify(desk.site.lake) is None


def test_what_is_verified_lies_in_no_folder(keys, tmp_path, monkeypatch):
    """Whoever is killed while ssh-keygen looks at names and signatures leaves none of them on a disk."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    keys.allow("ada")
    signature = sign("a text", str(keys.path("ada")))
    there, genuine = [], subprocess.run

    def noted(words, **more):
        there.append(list((tmp_path / "temporary").iterdir()))
        return genuine(words, **more)

    monkeypatch.setattr(subprocess, "run", noted)
    signers = load_signers(str(keys.file))
    assert verified("a text", signature, signers, "ada@example.org", datetime.now(UTC)).name == "ada@example.org"
    with pytest.raises(SignatureError, match="does not hold"):
        verified("another", signature, signers, "ada@example.org", datetime.now(UTC))
    assert there == [[], []]
    for name in ("eve", "ada@example.org\0", "-n"):  # of a forged row
        with pytest.raises(SignatureError, match=r"the key of ada@example\.org, not of"):
            verified("a text", signature, signers, name, datetime.now(UTC))


def test_the_author_may_not_approve(desk, keys):
    """Refused at approve; written into the audit log all the same, refused at apply and found."""
    name = proposed(desk, keys)
    with pytest.raises(SameOperatorError, match="whoever proposed this plan may not approve it"):
        desk.approve(name, **keys.by("pia"))
    with pytest.raises(RanklakeError, match="--single-operator is for lakes of one person"):
        desk.approve(name, single_operator=True, **keys.by("pia"))
    (row,) = steps(desk, "release.propose")
    configure(desk, keys.section())
    text = statement(desk.site.lake, desk.kind, name, "approve", row["actor"])
    facts = json.loads(text)
    signature = sign(text, str(keys.path("pia")))
    details = row["details"] | {"at": facts["at"], "expires": facts["expires"], "signature": signature}
    forge(desk, row, action="release.approve", details=details)
    desk.add(desk.site.lake.tables, desk.rows[name], row["actor"])
    refused_everywhere(desk, name, keys, "its author gave it")


def test_who_approved_may_not_apply(desk, keys):
    """By key, whatever name is given; written into the audit log all the same, it is found."""
    name = approved(desk, keys)
    with pytest.raises(SameOperatorError, match="may not apply it"):
        desk.apply(name, **keys.by("ada"))
    with pytest.raises(SignatureError, match=r"the key of ada@example\.org, not of otto"):
        desk.apply(name, by="otto@example.org", signing=keys.by("ada")["signing"])
    assert last_finished(desk.site.lake.tables) == 0


def test_a_name_in_other_letters_is_the_same_person(desk, keys):
    """Nor does a second key under the name in another form of Unicode, or with marks that nobody sees."""
    for other in ("zoe\u0308", "ZO\xcb", "zo\xeb\u200b"):
        keys.allow("ada", "zo\xeb", other)
        name = desk.propose(other)
        desk.sign_as_author(name, **keys.by("zo\xeb"))
        with pytest.raises(SameOperatorError, match="whoever proposed this plan may not approve it"):
            desk.approve(name, **keys.by(other))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (None, "a key that is not in"),
        ('valid-before="20200101Z"', "expired at 2020-01-01"),
        ('valid-after="20990101Z"', "is not valid before 2099-01-01"),
    ],
    ids=["removed", "expired", "not yet"],
)
def test_a_key_that_may_not_sign(desk, keys, line, why):
    """A removed key, an expired one and one of the future: refused at approve, at apply, and found in the audit log."""
    name = proposed(desk, keys)
    others = [other for other in PEOPLE if other != "ada"]
    without = [*others, keys.line("ada", line)] if line else others
    keys.allow(*without)
    with pytest.raises(SignatureError, match=why):
        desk.approve(name, **keys.by("ada"))
    assert not steps(desk, "release.approve")
    keys.allow(*PEOPLE)
    desk.approve(name, **keys.by("ada"))
    keys.allow(*without)
    refused_everywhere(desk, name, keys, why)


def test_a_key_that_expires_later_leaves_the_past_alone(desk, keys, monkeypatch):
    """What was signed in time holds when the key has expired since; what it signs then does not."""
    soon = datetime.now(UTC) + timedelta(days=1)
    keys.allow("pia", "otto", keys.line("ada", f'valid-before="{soon:%Y%m%d%H%M%S}Z"'))
    name = approved(desk, keys)
    desk.apply(name, **keys.by("otto"))
    monkeypatch.setattr(clock, "now", lambda: datetime.now(UTC) + timedelta(days=2))
    assert examine(desk.site.lake).faults == ()
    other = proposed(desk, keys, "c")
    with pytest.raises(SignatureError, match="expired"):
        desk.approve(other, **keys.by("ada"))


def test_a_signature_over_another_digest(desk, keys, tmp_path):
    """A signature that was given for other items is none: at approve, at apply, and in the audit log."""
    name, other = proposed(desk, keys), proposed(desk, keys, "c")
    text = statement(desk.site.lake, desk.kind, other, "approve", "ada@example.org")
    (tmp_path / "s.json").write_text(text)
    (tmp_path / "s.json.sig").write_text(sign(text, str(keys.path("ada"))))
    with pytest.raises(StatementError, match="the signed statement is of another proposal"):
        desk.approve(name, by="ada@example.org", signing=Signing(signed=str(tmp_path / "s.json")))
    (tmp_path / "s.json").write_text(statement(desk.site.lake, desk.kind, name, "approve", "ada@example.org"))
    with pytest.raises(SignatureError, match="the signature does not hold"):
        desk.approve(name, by="ada@example.org", signing=Signing(signed=str(tmp_path / "s.json")))
    desk.approve(other, **keys.by("ada"))
    (row,) = steps(desk, "release.approve")
    digest = desk.rows[name].items_sha256
    forge(desk, row, subject=name, details={**row["details"], "items_sha256": digest, "x": "other signature"})
    desk.add(desk.site.lake.tables, desk.rows[name], "ada@example.org")
    with pytest.raises(NoEvidenceError, match="the signature does not hold"):
        desk.apply(name, **keys.by("otto"))
    assert any("repeats the signature" in fault for fault in examine(desk.site.lake).faults)


FORGERIES = {
    "another reason": ({"reason": "nothing to see"}, {}, "the signature does not hold"),
    "another approver": ({"actor": "eve@example.org"}, {}, "the key of ada@example.org, not of eve@example.org"),
    "a longer life": ({}, {"expires": "2099-01-01T00:00:00+00:00"}, "the signature does not hold"),
    "a role": ({}, {"roles": ["compliance"]}, "does not have the role compliance"),
    "another lake": ({}, {"lake": "0" * 32}, "signed for another lake"),
    "no signature": ({}, {"signature": None}, "it is not signed"),
    "no statement": ({}, {"at": "yesterday"}, "does not say what was signed"),
    "rubbish": ({}, {"signature": "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"}, "is no SSH"),
}
"""How a row of an approval is altered by somebody who makes the chain whole again, and what is said of it."""


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_approval_does_not_count(desk, keys, what):
    """Appended to the audit log in the place of a genuine one: refused at apply, and found."""
    columns, details, why = FORGERIES[what]
    elsewhere = Desk(desk.site)
    name = approved(elsewhere, keys)
    (row,) = steps(desk, "release.approve")
    site = Site(desk.site.folder / "fresh")
    marker = desk.site.folder / "lake/ranklake.json"
    (site.folder / "lake/ranklake.json").write_bytes(marker.read_bytes())
    site.lake = site.lake.configured(approvals=keys.section())
    fresh = Desk(site)
    assert proposed(fresh, keys) == name
    forge(fresh, row, details=row["details"] | details, **columns)
    fresh.add(site.lake.tables, fresh.rows[name], "ada@example.org")
    refused_everywhere(fresh, name, keys, why)


def test_a_replayed_signature_is_no_second_approver(desk, keys):
    """A row that is there again counts once, and is found."""
    configure(desk, keys.section(tiers=(Tier("two", approvers=2),)))
    name = approved(desk, keys)
    assert desk.rows[name].approved is None
    (row,) = steps(desk, "release.approve")
    forge(desk, row)
    desk.add(desk.site.lake.tables, desk.rows[name], "ada@example.org")
    with pytest.raises(NoEvidenceError, match="it has 1 of 2 approvals"):
        desk.apply(name, **keys.by("otto"))
    assert any("repeats the signature of row 2" in fault for fault in examine(desk.site.lake).faults)


def test_a_signature_for_another_lake_is_none(desk, keys, tmp_path):
    """The same proposal in two lakes takes two signatures."""
    name = proposed(desk, keys)
    there = Site(tmp_path / "there")
    there.lake = there.lake.configured(approvals=keys.section())
    other = Desk(there)
    assert proposed(other, keys) == name
    text = statement(there.lake, other.kind, name, "approve", "ada@example.org")
    (tmp_path / "s.json").write_text(text)
    (tmp_path / "s.json.sig").write_text(sign(text, str(keys.path("ada"))))
    signing = Signing(signed=str(tmp_path / "s.json"))
    with pytest.raises(StatementError, match="of another lake"):
        desk.approve(name, by="ada@example.org", signing=signing)
    assert other.approve(name, by="ada@example.org", signing=signing)[1] is True


def test_an_approval_expires(desk, keys, monkeypatch):
    """After its time it is refused at apply; approved again by the same person, it is applied."""
    configure(desk, keys.section(expires_h=2))
    name = approved(desk, keys)
    monkeypatch.setattr(clock, "now", lambda: datetime.now(UTC) + timedelta(hours=3))
    with pytest.raises(NoEvidenceError, match="row 2 of the audit log does not count: it expired"):
        desk.apply(name, **keys.by("otto"))
    assert desk.approve(name, **keys.by("ada"))[1] is True
    assert desk.apply(name, **keys.by("otto"))[1] is True
    assert examine(desk.site.lake).faults == ()


def test_a_clock_that_is_set_back_revives_nothing(desk, keys, monkeypatch):
    """An expired approval looks fresh to a clock that went back; the audit log's end tells, at approve and at apply."""
    configure(desk, keys.section(expires_h=2))
    name = approved(desk, keys)
    monkeypatch.setattr(clock, "now", lambda: datetime.now(UTC) + timedelta(hours=3))
    record(desk.site.lake, "somebody", "test.act", "later")
    monkeypatch.setattr(clock, "now", lambda: datetime.now(UTC))
    for act in (lambda: desk.apply(name, **keys.by("otto")), lambda: desk.approve(name, **keys.by("eve"))):
        with pytest.raises(ClockError, match="set the clock"):
            act()
    record(desk.site.lake, "somebody", "test.act", "with the clock still back")
    assert any("is dated before the row before it" in note for note in examine(desk.site.lake).notes)


def test_what_was_signed_by_a_clock_ahead_does_not_count(desk, keys, monkeypatch):
    """An approval from the future would last too long: refused at apply, when the clock is right."""
    name = proposed(desk, keys)
    monkeypatch.setattr(clock, "now", lambda: datetime.now(UTC) + timedelta(days=30))
    desk.approve(name, **keys.by("ada"))
    monkeypatch.setattr(clock, "now", lambda: datetime.now(UTC))
    with pytest.raises(ClockError):
        desk.apply(name, **keys.by("otto"))
    record(desk.site.lake, "somebody", "test.act", "with the clock right")
    with pytest.raises(NoEvidenceError, match="it is dated in the future"):
        desk.apply(name, **keys.by("otto"))


def test_nobody_s_plan_cannot_be_approved_enough(desk, keys):
    """A plan that nobody signed as its author might be the approver's own."""
    name = desk.propose("a")
    assert desk.approve(name, **keys.by("ada"))[0].approved is None
    with pytest.raises(NotApprovedError, match="nobody signed as its author: ranklake quality plan --key"):
        desk.apply(name, **keys.by("otto"))
    desk.sign_as_author(name, **keys.by("pia"))
    assert desk.approve(name, **keys.by("ada"))[0].approved is not None


def test_an_edited_plan_is_not_what_was_approved(desk, keys):
    """Other items under the same name: altered; another digest of the items: nobody approved that."""
    name = approved(desk, keys)
    desk.rows[name] = replace(desk.rows[name], items=("a", "c"))
    with pytest.raises(RanklakeError, match="were altered"):
        desk.apply(name, **keys.by("otto"))


def test_two_applies_are_one(desk, keys):
    """The second finds it applied, and writes nothing."""
    name = approved(desk, keys)
    desk.apply(name, **keys.by("otto"))
    before = len(trail(desk.site.lake.tables))
    done, fresh = desk.apply(name, **keys.by("eve"))
    assert (done.state, fresh, len(trail(desk.site.lake.tables))) == ("applied", False, before)


def test_who_begins_signs(desk, keys):
    """A plan is found with a row that began it, and that nobody signed, or that the approver did: refused."""
    name = approved(desk, keys)
    (row,) = steps(desk, "release.approve")
    details = {key: value for key, value in row["details"].items() if key != "signature"}
    forge(desk, row, action="release.apply", actor="otto@example.org", details=details)
    with pytest.raises(NoEvidenceError, match="which began it: it is not signed"):
        require(desk.site.lake, desk.kind, desk.rows[name], begun=True)
    assert any("(release.apply of " in fault and "is not signed" in fault for fault in examine(desk.site.lake).faults)


TIERS = (
    Tier("any"),
    Tier("large", over_bytes=1000, irreversible=True, approvers=2),
    Tier("logs", classes=("logs",), role="compliance"),
    Tier("others", kinds=("retention",), approvers=3),
)


@pytest.mark.parametrize(
    ("items", "size", "people", "lacking"),
    [
        (("a",), 10, ["ada"], ""),
        (("a",), 1000, ["ada"], "it has 1 of 2 approvals"),
        (("a",), 1000, ["ada", "eve"], ""),
        (("logs",), 10, ["ada"], "nobody of role compliance approved it"),
        (("logs",), 10, ["eve"], ""),
        (("logs",), 1000, ["eve"], "it has 1 of 2 approvals"),
    ],
)
def test_risk_says_who_must_approve(desk, keys, items, size, people, lacking):
    """By bytes and classes; tiers hold together; roles are those of the key's line."""
    keys.allow("pia", "ada", "otto", keys.line("eve", roles="owner,compliance"))
    configure(desk, keys.section(tiers=TIERS))
    name = proposed(desk, keys, *items, bytes=size)
    for person in people:
        desk.approve(name, **keys.by(person))
    found = desk.rows[name]
    assert standing(desk.site.lake, desk.kind, found).lacking == lacking
    assert (found.approved is not None) is (not lacking)
    if lacking:
        with pytest.raises(NotApprovedError, match=lacking):
            desk.apply(name, **keys.by("otto"))
    else:
        desk.apply(name, **keys.by("otto"))
        assert examine(desk.site.lake).faults == ()


def test_what_was_begun_with_too_few_is_found(desk, keys):
    """The audit log says what was needed when it was begun; an approval that is taken out of the file is one less."""
    configure(desk, keys.section(tiers=(Tier("two", approvers=2),)))
    name = approved(desk, keys)
    desk.approve(name, **keys.by("eve"))
    desk.apply(name, **keys.by("otto"))
    assert examine(desk.site.lake).faults == ()
    keys.allow("pia", "ada", "otto")
    faults = examine(desk.site.lake).faults
    assert any("is not in" in fault for fault in faults)
    assert any("it was begun, and then it has 1 of 2 approvals" in fault for fault in faults)


def test_a_lake_does_not_fall_back_in_silence(desk, keys):
    """Without the configuration nothing is approved or applied, and examination says so; a word of somebody ends it."""
    name, other = approved(desk, keys), proposed(desk, keys, "c")
    configure(desk, ApprovalsSection())
    for act in (lambda: desk.approve(other, "Eve"), lambda: desk.apply(name, "Eve")):
        with pytest.raises(DowngradeError, match=r"signed since row 0 .* and unsigned is configured here"):
            act()
    found = examine(desk.site.lake)
    assert any("signed by the audit log, and unsigned is configured here" in fault for fault in found.faults)
    assert any("signatures were not verified" in note for note in found.notes)


def test_an_unsigned_approval_in_a_lake_with_signatures_is_found(desk, keys):
    """Somebody takes the configuration out, lowers the mode unsigned, approves alone and puts it back."""
    name = proposed(desk, keys)
    record(desk.site.lake, "eve", "approvals.mode", "approvals", None, {"mode": "unsigned"})
    configure(desk, ApprovalsSection())
    desk.approve(name, "Eve")
    desk.apply(name, "Otto")
    configure(desk, keys.section())
    assert any(
        "unsigned from then on, after they were signed: it is not signed" in one
        for one in examine(desk.site.lake).faults
    )


def test_unsigned_is_for_one_person(tmp_path):
    """As before: names are text, one approver is enough, and every row says that it is unsigned."""
    desk = Desk(Site(tmp_path))
    name = desk.propose("a", bytes=2**50)
    desk.approve(name, "Ada")
    desk.apply(name, "Otto")
    found = examine(desk.site.lake)
    assert (found.mode, found.unsigned, found.signed, found.faults) == ("unsigned", 2, 0, ())
    assert steps(desk, "release.approve")[0]["details"]["mode"] == "unsigned"
    with pytest.raises(NobodyError, match="no allowed-signers file is configured"):
        name_of(desk.site.lake, "ranklake retain approve", "Ada", Signing(key="/x"))


def test_a_helper_says_who_it_is(tmp_path):
    """With a helper, names and roles are its; tiers hold, and nobody else's name is taken."""
    helper = tmp_path / "whoami"
    desk = Desk(Site(tmp_path))
    configure(desk, ApprovalsSection(identity=f"command:{helper}", tiers=(Tier("any", role="owner"),)))

    def become(text):
        helper.write_text(f"#!/bin/sh\necho {text}\n")
        helper.chmod(0o755)
        return name_of(desk.site.lake, "ranklake retain approve", "Somebody Else")

    assert become("pia@example.org owner") == "pia@example.org"
    name = desk.propose("a")
    desk.sign_as_author(name, "pia@example.org")
    with pytest.raises(SameOperatorError):
        desk.approve(name, "pia@example.org")
    with pytest.raises(NobodyError, match="says another name"):
        desk.approve(name, "Ada")
    desk.approve(name, become("ada@example.org"))
    assert desk.rows[name].approved is None
    desk.approve(name, become("eve@example.org owner,auditor"))
    assert desk.apply(name, become("otto@example.org"))[1] is True
    assert examine(desk.site.lake).mode == "command"


def test_a_key_of_the_agent_signs(desk, keys, tmp_path, monkeypatch):
    """A public key is enough where the agent has the private one."""
    agent = subprocess.run(
        ["ssh-agent", "-s", "-a", str(tmp_path / "agent")], capture_output=True, text=True, check=True
    )
    pid = agent.stdout.partition("SSH_AGENT_PID=")[2].partition(";")[0]
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    monkeypatch.setenv("SSH_AGENT_PID", pid)
    try:
        subprocess.run(["ssh-add", "-q", str(keys.path("ada"))], check=True)
        keys.path("ada").unlink()
        name = proposed(desk, keys)
        signing = Signing(key=str(keys.folder / "ada.pub"))
        assert desk.approve(name, by="ada@example.org", signing=signing)[1] is True
    finally:
        subprocess.run(["ssh-agent", "-k"], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names nobody who may approve"),
        ("ada@example.org", "1: is no line of an allowed-signers file"),
        ("*@example.org ssh-ed25519 AAAA", r"1: \*@example.org is not one name"),
        ("ada,eve ssh-ed25519 AAAA", "1: ada,eve is not one name"),
        ("ada cert-authority ssh-ed25519 AAAA", "1: an authority would let"),
        ('ada valid-before="soon" ssh-ed25519 AAAA', "1: soon is no time"),
        ("ada forever ssh-ed25519 AAAA", "1: the options forever are not understood"),
        ("ada ssh-ed25519 AAAA\neve ssh-ed25519 AAAA", "2: the key of ada stands there under another name: eve"),
        ('ada namespaces="git" ssh-ed25519 AAAA', "names nobody who may approve"),
        ('ada namespaces="!approval@ranklake,*" ssh-ed25519 AAAA', "names nobody who may approve"),
        ('ada namespaces="*,!approval@*" ssh-ed25519 AAAA', "names nobody who may approve"),
        ('ada namespaces="[a]pproval@ranklake" ssh-ed25519 AAAA', "names nobody who may approve"),
        ('ada valid-before="20200101Z",valid-before="20990101Z" ssh-ed25519 AAAA', "are not understood"),
        ("# an aside\u2028ada ssh-ed25519 AAAA", "names nobody who may approve"),
    ],
)
def test_a_file_that_would_let_one_be_two_is_refused(desk, keys, text, why):
    """Each line is one name and one key; what is not understood is no key, and nothing goes by it."""
    keys.file.write_text(text + "\n")
    with pytest.raises(RanklakeError, match=why):
        name_of(desk.site.lake, "ranklake retain approve", None, keys.by("ada")["signing"])


def test_what_is_missing_is_named_with_its_remedy(desk, keys, monkeypatch):
    """No key, an unknown key, no such file, no ssh-keygen: each a line that says what to do."""
    what = "ranklake retain approve rp-1"
    with pytest.raises(NobodyError, match=r"rp-1 --key .* ssh-keygen -Y sign -n approval@ranklake -f KEY S.json"):
        name_of(desk.site.lake, what, None)
    keys.allow("pia")
    with pytest.raises(SignatureError, match=r"not in .* adds a line: a name, and after it what .*ada\.pub holds"):
        name_of(desk.site.lake, what, None, keys.by("ada")["signing"])
    with pytest.raises(SignatureError, match="no such key file"):
        name_of(desk.site.lake, what, None, Signing(key="/nowhere"))
    name = proposed(desk, keys)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SigningToolError, match="ssh-keygen is not installed; apt-get install openssh-client"):
        desk.sign_as_author(name, by="ada@example.org", signing=keys.by("ada")["signing"])
