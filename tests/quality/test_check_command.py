"""``ranklake check`` as a user meets it."""

import json
from datetime import timedelta

import pytest
from segments import DAY, step_rows

from ranklake.cli import run
from ranklake.commands.check import _failures
from ranklake.quality.results import CheckResult

LAX = "extends: steps\nchecks:\n  - {id: loss_small, kind: between, columns: [loss], max: 3.0%s}\n"


@pytest.fixture
def command(site, monkeypatch, capfd):
    """Run the command on the lake; give exit code, output and errors."""
    monkeypatch.chdir(site.folder)
    for name in ("RANKLAKE_LAKE", "RANKLAKE_SPOOL", "RANKLAKE_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def call(*args):
        code = run(["check", "--lake", str(site.folder / "lake"), *args])
        return code, *capfd.readouterr()

    return call


def configure(site, text):
    (site.folder / "ranklake.toml").write_text(f'[contracts]\noverlay = "{site.overlay(steps=text)}"\n')


def test_all_is_well(site, command):
    """A sound partition: one line, exit 0; again: nothing changed, exit 0."""
    site.bring(step_rows(10))
    code, out, err = command()
    assert (code, err) == (0, "")
    assert out.startswith("1 partition: checks ")
    assert len(out.splitlines()) == 1
    assert command() == (0, "nothing changed since the last check; 1 partition unchanged\n", "")


@pytest.mark.slow
def test_a_failure_is_shown_and_exits_1(site, command):
    """A failed check stands in a table with its counts, now and next time."""
    configure(site, LAX % "")
    site.bring(step_rows(10))
    code, out, _ = command()
    assert code == 1
    head, line, *_ = out.splitlines()
    assert head.split()[:3] == ["table", "partition", "check"]
    assert line.split()[:5] == ["steps", "2026-03-01", "loss_small", "error", "failed"]
    code, out, _ = command("steps")
    assert code == 1
    assert "still failing since an earlier check:" in out


def test_the_worst_comes_first_and_a_mistake_once(capsys):
    """Of severities; what cannot be computed on several dates for one reason is a line, and infos are one together."""
    results = [
        CheckResult(
            check_run="c", table="steps", partition_date=(DAY + timedelta(days=day)).date(), suite="s", expectation="e",
            table_version=1, check_id=check, severity=severity, status=status, column=None, rows_checked=9,
            rows_failed=rows, failed_ratio=None, observed=None, message=message, quarantined_rows=0, files_sha256="f",
            expected=None, measured=None, duration_s=None, contract_version=1, on_fail=None, gx_version="",
            ts=DAY,
        )
        for day, check, severity, status, rows, message in (
            (0, "low", "warning", "failed", 3, "m"), (0, "note", "info", "failed", 1, "m"),
            (0, "bad", "error", "failed", 2, "m"), (0, "typo", "error", "errored", None, "no column los"),
            (1, "typo", "error", "errored", None, "no column los"), (0, "worse", "error", "failed", 5, "m"),
            (0, "worst", "critical", "failed", 1, "m"),
        )
    ]  # fmt: skip
    _failures(results)
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[:-1]] == ["worst", "typo", "worse", "bad", "low"]
    assert "no column los, as on 1 other partition" in lines[1]
    assert lines[-1] == "1 result of severity info: steps note; --json has them"


def test_moved_rows_are_said(site, command):
    """Rows in quarantine are counted; the next check passes."""
    configure(site, LAX % ", on_fail: quarantine")
    site.bring(step_rows(10))
    code, out, _ = command()
    assert code == 1
    assert "moved to the table rejects" in out
    assert command()[0] == 0


def test_json(site, command):
    """Machines get one JSON object."""
    site.bring(step_rows(10))
    code, out, _ = command("--json")
    found = json.loads(out)
    assert (code, found["passed"], found["partitions"], found["unsound"]) == (0, True, 1, [])


@pytest.mark.parametrize(
    ("name", "said"), [("stepz", "did you mean 'steps'?"), ("rejects", "name a fact or a derived table")]
)
def test_wrong_names_are_one_line(command, name, said):
    """A name that cannot be checked: one line, exit 2."""
    code, out, err = command(name)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_not_a_lake(site, command):
    """A place that is no lake: one line, exit 2, nothing made there."""
    code = run(["check", "--lake", str(site.folder / "nowhere")])
    assert code == 2
    assert not (site.folder / "nowhere").exists()


def test_incidents_are_listed(site, command):
    """What failed is listed with when it began, as a table and as JSON, and nothing is checked for it."""
    assert command("--incidents") == (0, "no incident\n", "")
    site.bring(step_rows(60, start=DAY + timedelta(hours=6)))
    site.bring(step_rows(30, rank=1, incarnation=8, start=DAY + timedelta(hours=6)))
    assert command()[0] == 0
    code, out, err = command("--incidents", "steps")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split()[:3] == ["steps", "steps_of_all_ranks", "warning"]
    (one,) = json.loads(command("--incidents", "--json")[1])
    assert (one["check_id"], one["rows_failed"], one["closed"]) == ("steps_of_all_ranks", 30, None)
    assert command("--incidents", "spans")[1] == "no incident\n"
