"""Retention in a lake that takes signatures, as people run it; and what outputs say of a lake without."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from retaining import agree, bring_days, carry_out, plan
from ssh_keys import Keys, needs_ssh_keygen

from ranklake.cli import run
from ranklake.retention.proposals.approvals import UNSIGNED_NOTE

PAGE = Path(__file__).resolve().parents[2] / "docs/approvals.md"
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def place(site, tmp_path, monkeypatch):
    """Give a lake with a partition that is due, and be in a folder with a configuration for it."""
    bring_days(site, [0, 200])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RANKLAKE_LAKE", site.lake.uri)
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def said(capfd, *words, status=0):
    """Run a command, and return what it printed as JSON."""
    capfd.readouterr()
    assert run([*words, "--json"]) == status
    return json.loads(capfd.readouterr().out)


@needs_ssh_keygen
@pytest.mark.slow
def test_the_page_is_true(site, place, capfd, monkeypatch):
    """Every command of docs/approvals.md does what the page says, in its order, with real keys."""
    keys = Keys(place / "keys")
    for name, file in (("pia", "pia"), ("ada", "id_ed25519"), ("otto", "otto")):
        for suffix in ("", ".pub"):
            source = keys.path(name).with_name(name + suffix)
            (place / ".ssh" / (file + suffix)).write_bytes(source.read_bytes())
        (place / ".ssh" / file).chmod(0o600)
    keys.allow("pia", keys.line("ada", 'valid-before="20990101Z"', "compliance"), "otto")
    witness = place / "witness"
    (place / "ranklake.toml").write_text(
        f'[approvals]\nallowed_signers = "{keys.file}"\n[audit]\nwitness = "{witness}"\n'
    )
    done, plan_name = [], ""
    for line in "".join(CONSOLE.findall(PAGE.read_text())).splitlines():
        command = line.removeprefix("$ ").replace("PLAN", plan_name)
        if command.startswith("ranklake ") and ">" not in command:
            capfd.readouterr()
            assert run(shlex.split(command.replace("~", str(place)))[1:]) == 0, command
            out = capfd.readouterr().out
            plan_name = plan_name or re.search(r"plan (rp-\w+)", out)[1]
        elif command.startswith("ranklake "):
            capfd.readouterr()
            words, _, file = command.partition(" > ")
            assert run(shlex.split(words)[1:]) == 0, command
            Path(file).write_text(capfd.readouterr().out)
        else:
            subprocess.run(["bash", "-c", command], check=True, capture_output=True)
        done.append(command)
    assert len(done) > 5
    assert len(site.rows("steps")) == 10
    found = said(capfd, "audit", "verify")
    assert (found["approvals"]["mode"], found["approvals"]["signed"], found["approvals"]["faults"]) == ("signed", 3, [])


@needs_ssh_keygen
def test_without_a_key_the_message_is_the_command(place, capfd):
    """Who has no key at hand is told what to run; nothing is written."""
    keys = Keys(place / "keys")
    keys.allow("pia", "ada")
    (place / "ranklake.toml").write_text(f'[approvals]\nallowed_signers = "{keys.file}"\n')
    name = said(capfd, "retain", "plan", "--key", str(keys.path("pia")))["plan"]["retention_plan"]
    assert run(["retain", "approve", name, "--by", "Ada"]) == 2
    told = capfd.readouterr().err
    assert f"ranklake retain approve {name} --key ~/.ssh/id_ed25519" in told
    assert "ssh-keygen -Y sign -n approval@ranklake -f KEY S.json" in told
    found = said(capfd, "retain", "approve", name, "--key", str(keys.path("ada")))
    assert (found["approvals"], found["approved_now"], found["state"]) == ("signed", True, "approved")
    (place / "ranklake.toml").unlink()
    assert run(["retain", "apply", name, "--by", "Eve"]) == 2
    assert "ranklake approvals downgrade" in capfd.readouterr().err
    assert run(["audit", "verify"]) == 1
    assert "signed by the audit log, and unsigned is configured here" in capfd.readouterr().err
    assert run(["doctor"]) == 1
    assert "unsigned is configured here" in capfd.readouterr().out


@needs_ssh_keygen
def test_each_next_step_is_told_with_its_key(place, capfd):
    """A plan that nobody signed says so before anybody approves it; what is not approved yet names the key."""
    keys = Keys(place / "keys")
    keys.allow("pia", "ada", "otto")
    (place / "ranklake.toml").write_text(f'[approvals]\nallowed_signers = "{keys.file}"\n')
    assert run(["retain", "plan"]) == 0
    assert "nobody signed as its author, so it cannot be approved: ranklake retain plan --key KEY" in (
        capfd.readouterr().out
    )
    assert run(["retain", "plan", "--key", str(keys.path("pia"))]) == 0
    told = capfd.readouterr().out
    name = re.search(r"plan (rp-\w+)", told)[1]
    assert f"nobody approved it yet: ranklake retain approve {name} --key KEY" in told
    assert run(["retain", "apply", name, "--key", str(keys.path("otto"))]) == 2
    assert f"ranklake retain approve {name} --key KEY" in capfd.readouterr().err


@pytest.mark.parametrize(
    "words", [["plan"], ["approve", "PLAN", "--by", "Ada"], ["apply", "PLAN", "--by", "Otto"], ["list"]], ids=" ".join
)
def test_every_output_of_an_unsigned_lake_says_so(site, place, capfd, words):
    """In text and in JSON, of plan, approve, apply and list."""
    name = plan(site).name
    if words[0] == "apply":
        agree(site, name)
    command = ["retain", *(name if word == "PLAN" else word for word in words)]
    assert run(command) == 0
    assert UNSIGNED_NOTE in capfd.readouterr().out
    found = said(capfd, *command)
    assert (found[0] if words == ["list"] else found)["approvals"] == "unsigned"


def test_audit_verify_of_an_unsigned_lake_says_so(site, place, capfd):
    """It counts the steps that nobody checked."""
    made = plan(site)
    agree(site, made.name)
    carry_out(site, made.name)
    assert run(["audit", "verify"]) == 0
    assert f"{UNSIGNED_NOTE}; 2 steps" in capfd.readouterr().out
    assert said(capfd, "audit", "verify")["approvals"]["unsigned"] == 2


@needs_ssh_keygen
def test_a_downgrade_that_is_signed_is_a_note(place, capfd):
    """Said with a key while the keys are configured: then the lake goes on unsigned, and verification tells."""
    keys = Keys(place / "keys")
    keys.allow("pia", "ada")
    (place / "ranklake.toml").write_text(f'[approvals]\nallowed_signers = "{keys.file}"\n')
    name = said(capfd, "retain", "plan", "--key", str(keys.path("pia")))["plan"]["retention_plan"]
    lower = ["approvals", "downgrade", "--reason", "one of us is left"]
    assert said(capfd, *lower, "--key", str(keys.path("ada")))["lowered_now"] is True
    found = said(capfd, "audit", "verify")["approvals"]
    assert (found["faults"], found["said"]) == ([], "unsigned")
    assert "approvals are unsigned from then on, after they were signed" in found["notes"][0]
    (place / "ranklake.toml").unlink()
    assert run(["retain", "approve", name, "--by", "Eve"]) == 0
    assert run(["audit", "verify"]) == 0
    assert "unsigned from then on" in capfd.readouterr().err


@needs_ssh_keygen
def test_who_may_approve_is_shown(place, capfd):
    """Mode, tiers, and each key with roles and expiry; an expired one says so."""
    keys = Keys(place / "keys")
    keys.allow(keys.line("pia", 'valid-before="20200101Z"'), keys.line("ada", roles="owner"))
    tier = '[[approvals.tiers]]\nname = "logs"\nclasses = ["logs"]\napprovers = 2\nrole = "owner"\n'
    (place / "ranklake.toml").write_text(f'[approvals]\nallowed_signers = "{keys.file}"\n{tier}')
    assert run(["approvals", "show"]) == 0
    out = capfd.readouterr().out
    assert "tier logs: every kind, classes logs: 2 to approve, one of role owner" in out
    assert "pia@example.org: the key of pia@example.org expired at 2020-01-01 00:00 UTC, until 2020-01-01" in out
    assert "ada@example.org: may sign, roles owner" in out
    assert [one["roles"] for one in said(capfd, "approvals", "show")["keys"]] == [[], ["owner"]]
    found = {one["check"]: one for one in said(capfd, "doctor", status=1)["findings"]}
    assert (found["approvals"]["state"], "1 of 2 keys" in found["approvals"]["what"]) == ("warning", True)
