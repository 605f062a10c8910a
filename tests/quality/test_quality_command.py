"""``ranklake quality``: what is held back, released, and what rows rest on, on the terminal and as JSON."""

import json

import pytest
from segments import step_rows
from ssh_keys import Keys, needs_ssh_keygen

from ranklake.cli import run

pytestmark = pytest.mark.slow

HOLDING = """
extends: steps
checks:
  - {id: loss_small, kind: between, columns: [loss], max: 3.0, severity: warning, on_fail: hold}
"""


@pytest.fixture
def ask(site, monkeypatch, capsys):
    """Give a way to ask of a lake with a date that is held back; it returns the exit code and what was printed."""
    site.bring(step_rows(60))
    site.overlay(steps=HOLDING)
    (site.folder / "ranklake.toml").write_text(f'[contracts]\noverlay = "{site.folder / "overlay"}"\n')
    monkeypatch.chdir(site.folder)

    def asked(*words):
        code = run([*words, "--lake", site.lake.uri])
        return code, capsys.readouterr().out

    assert asked("check")[0] == 0  # a warning fails nothing, and holds all the same
    return asked


def test_a_hold_from_its_finding_to_its_release(ask):
    """It is listed, named by the rollup, proposed, approved and applied, and gone; each step says what comes next."""
    code, out = ask("quality", "held")
    assert (code, "2026-03-01" in out, "loss_small" in out) == (0, True, True)
    code, out = ask("rollup", "step_rollup")
    assert (code, "steps 2026-03-01 is held back by a check" in out) == (0, True)
    code, out = ask("quality", "release", "plan", "--reason", "the bound was wrong", "--by", "Pia", "--json")
    name = json.loads(out)["release"]
    assert "nobody approved it yet" in ask("quality", "release", "plan", "--reason", "again", "--by", "Pia")[1]
    assert "apply it with" in ask("quality", "release", "approve", name, "--by", "Ada")[1]
    assert "1 partition, 0 rows released by plan" in ask("quality", "release", "apply", name, "--by", "Otto")[1]
    assert f"{name}  applied" in ask("quality", "release", "list")[1]
    assert "nothing is held back" in ask("quality", "held")[1]
    assert "held back" not in ask("rollup", "step_rollup")[1]
    code, out = ask("quality", "inputs", "step_rollup", "--date", "2026-03-01")
    assert (code, "warning, released" in out, "loss_small" in out) == (0, True, True)
    found = json.loads(ask("quality", "inputs", "step_rollup", "--json")[1])
    assert {(one["table"], one["state"], one["is_released"]) for one in found} == {("steps", "warning", True)}


def test_what_cannot_be_released_is_said(ask, capsys):
    """No reason, a table that nobody knows, a date on which nothing is held, a release that nobody proposed."""
    assert ask("quality", "release", "plan")[0] == 2
    words = ("quality", "release", "plan", "--reason", "x")
    assert ask(*words, "stepz")[0] == 2
    assert ask(*words, "--date", "2026-04-01")[0] == 2
    assert ask(*words, "--only", "rows")[0] == 2
    assert ask("quality", "release", "approve", "qr-0", "--by", "Ada")[0] == 2
    assert ask("quality", "inputs", "steps")[0] == 2
    assert "loss_small" in ask("quality", "held", "--json")[1]


@needs_ssh_keygen
def test_a_release_is_signed_where_approvals_are(site, ask, tmp_path):
    """Three keys: the author's approves nothing, the approver's applies nothing, and no name does without a key."""
    keys = Keys(tmp_path / "keys")
    keys.allow("pia", "ada", "otto")
    config = site.folder / "ranklake.toml"
    config.write_text(config.read_text() + f'[approvals]\nallowed_signers = "{keys.file}"\n')
    key = {name: ("--key", str(keys.path(name))) for name in ("pia", "ada", "otto")}
    plan = ("quality", "release", "plan", "--reason", "the bound was wrong")
    assert ask(*plan, "--by", "pia")[0] == 2
    name = json.loads(ask(*plan, *key["pia"], "--json")[1])["release"]
    assert ask("quality", "release", "approve", name, "--by", "ada")[0] == 2
    assert ask("quality", "release", "approve", name, *key["pia"])[0] == 2
    assert "apply it with" in ask("quality", "release", "approve", name, *key["ada"])[1]
    assert ask("quality", "release", "apply", name, *key["ada"])[0] == 2
    assert "loss_small" in ask("quality", "held")[1]
    assert "released by plan" in ask("quality", "release", "apply", name, *key["otto"])[1]
    assert "nothing is held back" in ask("quality", "held")[1]
    assert ask("audit", "verify")[0] == 0
