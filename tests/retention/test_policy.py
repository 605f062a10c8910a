"""Policy files: what they must say, and how they say what is wrong."""

from datetime import date

import pytest
from retaining import CLASSES, CONTRACTS, POLICIES

from ranklake.retention.policies.cases import case_files, run_cases
from ranklake.retention.policies.model import KEPT
from ranklake.retention.policies.order import cutoff
from ranklake.retention.policies.policies import PolicyError, load_policies
from ranklake.retention.policies.read import PACKAGED

ONE = "version: 1\nrules:\n  raw: {where: {class: raw}, delete_after_days: 30, owner: me, reason: why, basis: law}\n"


def of(*classes):
    """Return the contracts of some classes."""
    return {name: one for name, one in CONTRACTS.items() if one.retention in classes}


def write(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def test_the_packaged_file_has_a_policy_for_every_class():
    """Each class that a contract uses has one, with a reason, an owner and a basis; the books are kept for ever."""
    assert {rule.where["class"] for rule in POLICIES.rules} == {(name,) for name in CLASSES}
    assert {rule.name for rule in POLICIES.rules if rule.delete_after_days is None} == set(KEPT)
    assert len(POLICIES.sha256) == 64


def test_a_file_of_ones_own_replaces_it_whole(tmp_path):
    """What it says holds, and nothing is taken from the packaged one."""
    found = load_policies(of("raw"), write(tmp_path, ONE))
    assert found.rule("raw").delete_after_days == 30
    with pytest.raises(PolicyError, match=r"no policy for the retention class 'logs' .*; add logs"):
        load_policies(of("raw", "logs"), write(tmp_path, ONE))


def test_the_cutoff_leaves_the_last_row_its_whole_period():
    """With 30 days, rows of the last second of 1 March may go on 1 April and not on 31 March."""
    assert date(2026, 3, 1) < cutoff(30, date(2026, 4, 1))
    assert not date(2026, 3, 1) < cutoff(30, date(2026, 3, 31))
    assert cutoff(30, date.min) == date.min, "before the first day there is nothing"
    assert cutoff(None, date(2026, 4, 1)) is None


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (ONE.replace("class: raw", "class: raww"), 3, "did you mean 'raw'?"),
        (ONE.replace("after_days: 30", "after_days: soon"), 3, "delete_after_days must be a whole number, not text"),
        (ONE.replace("after_days: 30", "after_days: 0"), 3, "at least 1"),
        (ONE.replace("after_days: 30", "after_days: true"), 3, "must be a whole number"),
        (ONE.replace("owner: me", "ovner: me"), 3, "did you mean 'owner'?"),
        (ONE.replace(", basis: law", ""), 3, "rule 'raw' has no basis"),
        (ONE.replace("reason: why", 'reason: ""'), 3, "must not be empty"),
        (ONE + "  raw: {where: {class: raw}, delete_after_days: 3, owner: me, reason: why, basis: law}\n", 4, "twice"),
        (ONE.replace("version: 1", "version: 2"), 1, "cannot be 2"),
        (ONE.replace("rules:", "ruls:"), 1, "lacks the key 'rules'"),
        (ONE.replace("  raw: {", "  raw: {{"), 4, "YAML"),
        (ONE.replace("class: raw", "class: audit"), 3, "cannot have a period: its chain of hashes would break"),
        ("", 1, "must be a mapping"),
    ],
)
def test_a_mistake_is_shown_with_its_line(tmp_path, text, line, said):
    """What is wrong comes as one line: file, line, what, mend."""
    path = write(tmp_path, text)
    with pytest.raises(PolicyError) as caught:
        load_policies(of("raw", "audit") if "audit" in text else of("raw"), path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_mistakes_come_at_once(tmp_path):
    """What breaks the form, and what says nothing that is there, in the order of lines."""
    rest = "owner: me, reason: why, basis: law"
    text = f"""{ONE.replace("30", "soon")}
  b: {{where: {{table: lgos}}, minimum_days: 3, {rest}}}
  c: {{where: {{class: raw}}, archive: {{after_days: 0}}, {rest}}}
"""
    with pytest.raises(PolicyError) as caught:
        load_policies(of("raw"), write(tmp_path, text))
    lines = [str(error).partition("mine.yaml:")[2].partition(";")[0] for error in (caught.value, *caught.value.others)]
    assert lines == [
        "3: rules.raw.delete_after_days must be a whole number, not text",
        "5: there is no table 'lgos'",
        "5: rule 'b' is about nothing: no table has all of table",
        "6: rules.c.archive.after_days must be at least 1",
        "6: rules.c.archive lacks the key 'to'",
    ]


def test_a_file_that_is_not_there(tmp_path):
    """It is named, with what to do."""
    with pytest.raises(PolicyError, match=r"nowhere\.yaml"):
        load_policies(of("raw"), tmp_path / "nowhere.yaml")


def test_the_packaged_policy_tests_pass():
    """What the defaults promise as data, they do."""
    results = run_cases(case_files(PACKAGED), POLICIES, CONTRACTS)
    assert len(results) >= len(CLASSES)
    assert [one.line for one in results if not one.passed] == []
