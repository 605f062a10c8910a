"""Alerts: files with all mistakes named at once, and messages that go out once, whatever happens between rounds."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranklake.cli import run as command
from ranklake.commands.alerts import run_cases
from ranklake.pipeline.alerts.file import AlertFileError, load_alerts, packaged_alerts
from ranklake.pipeline.alerts.state import AlertState, Signal, evaluate, sent

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
FILE = """
version: 1
rules:
  died: {source: incidents, where: {kind: run_failed}, severity: critical, owner: o, summary: s}
  slow: {source: incidents, where: {kind: low_sm}, for_s: 60, owner: o, summary: s,
         inhibited_by: {rules: [died], equal: [run]}}
receivers: {a: {url: "env:A"}, b: {url: "env:B"}}
routes:
  - {where: {severity: critical}, receivers: [a], kind: page, escalate: {after_s: 300, receivers: [b]}}
  - {receivers: [b], repeat_s: 600, quiet: {start: "22:00", end: "07:00"}}
"""


def file_of(text=FILE):
    return load_alerts(Path("alerts.yaml"), text)


def incident(kind, run="r1"):
    return Signal(source="incidents", subject=f"{kind}-{run}", labels={"kind": kind, "run": run})


def rounds(file, *moments, state=None):
    """Evaluate rounds, deliver everything, and return what went out in each: receiver, new keys, resolved keys."""
    state, result = state or AlertState(), []
    for at_s, signals in moments:
        now = NOON + timedelta(seconds=at_s)
        evaluation = evaluate(file, state, signals, now)
        state = evaluation.state
        for each in evaluation.notifications:
            state = sent(state, each, now)
        result.append(
            [(each.receiver, sorted(each.new), [alert.key for alert in each.resolved])
             for each in evaluation.notifications]
        )  # fmt: skip
    return result


def test_packaged_rules_and_the_page_keep_their_own_tests():
    page = (Path(__file__).parents[2] / "docs/alerts.md").read_text(encoding="utf-8")
    example = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1]
    for file in (packaged_alerts(), file_of(example)):
        results = run_cases(file)
        assert len(results) > 3
        assert [result.line for result in results if not result.passed] == []


def test_the_command_exits_1_for_a_test_that_fails(tmp_path, capsys):
    path = tmp_path / "alerts.yaml"
    case = "{at_s: 0, signals: [{source: incidents, subject: i, labels: {kind: run_failed}}], expect: []}"
    path.write_text(f"{FILE}tests: [{{name: silent, start: 2026-01-05T12:00:00Z, rounds: [{case}]}}]\n")
    assert command(["alerts", "test", "--rules", str(path)]) == 1
    assert "silent, at 0 s: expected nothing, and it sends a: firing died/i" in capsys.readouterr().out
    assert command(["alerts", "test", "--rules", str(path), "--json"]) == 1
    assert [row["passed"] for row in json.loads(capsys.readouterr().out)] == [False]


def test_an_alert_is_sent_once_then_repeated_then_resolved_once():
    slow = [incident("low_sm")]
    key = "slow/low_sm-r1"
    out = rounds(file_of(), (0, slow), (60, slow), (120, slow), (660, slow), (720, []), (780, []))
    assert out == [[], [("b", [key], [])], [], [("b", [], [])], [("b", [], [key])], []]


def test_a_pending_alert_that_ends_is_never_sent():
    assert rounds(file_of(), (0, [incident("low_sm")]), (30, []), (60, [incident("low_sm")]), (90, [])) == [[]] * 4


def test_inhibition_holds_for_the_same_run_alone():
    both = [incident("run_failed"), incident("low_sm"), incident("low_sm", "r2")]
    assert rounds(file_of(), (0, both), (60, both))[1] == [("b", ["slow/low_sm-r2"], [])]


def test_an_alert_is_escalated_once_it_has_fired_for_so_long():
    died, key = [incident("run_failed")], "died/run_failed-r1"
    assert rounds(file_of(), (0, died), (299, died), (300, died), (301, died), (302, [])) == [
        *([("a", [key], [])], [], [("b", [key], [])], []),
        [("a", [], [key]), ("b", [], [key])],
    ]


def test_quiet_hours_hold_a_message_up_until_they_end():
    slow, h = [incident("low_sm")], 3600
    assert rounds(file_of(), (10 * h, slow), (11 * h, slow), (18 * h, slow), (19 * h, slow))[2:] == [
        [],
        [("b", ["slow/low_sm-r1"], [])],
    ]


def test_a_silence_ends_when_it_expires():
    silence = "silences: [{where: {run: 'r*'}, reason: r, owner: o, until: 2026-01-05T12:05:00Z}]\n"
    died = [incident("run_failed")]
    out = rounds(file_of(FILE + silence), (0, died), (299, died), (300, died))
    assert out[:2] == [[], []]
    assert ("a", ["died/run_failed-r1"], []) in out[2]


def test_a_rule_that_cannot_be_evaluated_resolves_nothing():
    file, died = file_of(), [incident("run_failed")]
    first = evaluate(file, AlertState(), died, NOON)
    state = sent(first.state, first.notifications[0], NOON)
    assert evaluate(file, state, [], NOON, unknown={"died"}).notifications == ()
    assert len(evaluate(file, state, [], NOON).notifications) == 1


def test_the_worst_of_several_signals_of_a_subject_counts():
    file = file_of(FILE.replace("severity: critical, owner", "owner"))
    signals = [Signal(source="incidents", subject="i", severity=each, labels={"kind": "run_failed"})
               for each in ("info", "critical", "warning")]  # fmt: skip
    assert [alert.severity for alert in evaluate(file, AlertState(), signals, NOON).state.alerts.values()] == [
        "critical"
    ]


STEPS = st.lists(
    st.tuples(
        st.integers(-4000, 4000),  # seconds: clocks jump both ways
        st.sets(st.sampled_from([(kind, run) for kind in ("run_failed", "low_sm") for run in ("r1", "r2")])),
        st.sets(st.sampled_from(["a", "b"])),  # receivers that are lost
        st.booleans(),  # killed after sending, before the state is stored
    ),
    max_size=12,
)


@given(STEPS)
def test_each_firing_goes_out_once_and_ends_once(steps):
    """Per receiver and alert, by message ids: new and resolved alternate; at the end all that fired is resolved."""
    file, state, now = file_of(), AlertState(), NOON
    log, ids = {}, set()
    end = [(86_400, set(), set(), False)] + [(6 * 3600, set(), set(), False)] * 4
    for seconds, kinds, lost, is_killed in [*steps, *end]:
        now += timedelta(seconds=seconds)
        signals = [incident(kind, run) for kind, run in kinds]
        for is_last in (False, True) if is_killed else (True,):
            evaluation = evaluate(file, state, signals, now)
            after = evaluation.state
            for each in evaluation.notifications:
                if each.receiver in lost:
                    continue
                after = sent(after, each, now)
                if each.id not in ids:
                    for key in each.new:
                        log.setdefault((each.receiver, key), []).append("firing")
                    for alert in each.resolved:
                        log.setdefault((each.receiver, alert.key), []).append("resolved")
                ids.add(each.id)
            if is_last:
                state = after
    for events in log.values():
        assert events == ["firing", "resolved"] * (len(events) // 2)


MISTAKES = {
    "kind: run_failed": (
        "kind: run_faild",
        "alerts.yaml:4: there is no detector 'run_faild'; did you mean 'run_failed'?",
    ),
    "rules: [died]": ("rules: [slow]", "alerts.yaml:6: the rule 'slow' suppresses itself"),
    "summary: s}\n  slow": (
        "summary: s, inhibited_by: {rules: [slow]}}\n  slow",
        "alerts.yaml:4: the rule 'died' suppresses itself, directly or through other rules",
    ),
    "receivers: [a]": ("receivers: [c]", "alerts.yaml:9: there is no receiver 'c'"),
    'url: "env:A"': ('url: "https://hooks.example/T0"', "alerts.yaml:7: receivers.a.url must say where the URL is"),
    'b: {url: "env:B"}': ('b: {url: "env:B", fallback: [b]}', "alerts.yaml:7: there is no receiver 'b'; known: a"),
    'receivers: {a: {url: "env:A"},': (
        'receivers: {heartbeat: {url: "env:H"}, a: {url: "env:A"},',
        "alerts.yaml:7: the name 'heartbeat' is taken by the heartbeat; take another",
    ),
    "{receivers: [b], repeat_s": ("{where: {run: x}, receivers: [b], repeat_s", "alerts.yaml:10: some alerts have no"),
    "where: {severity: critical}, ": ("", "alerts.yaml:9: this route takes all alerts, and others follow; put it last"),
    "for_s: 60": ("for_ss: 60", "alerts.yaml:5: unknown key 'for_ss' in rules.slow"),
    "severity: critical, owner": ("severity: fatal, owner", "alerts.yaml:4: rules.died.severity cannot be 'fatal'"),
    "source: incidents, where: {kind: run": ("source: sql, where: {kind: run", "sql is for rules with source: sql"),
    'quiet: {start: "22:00"': ('quiet: {timezone: Mars, start: "22:00"', "quiet.timezone 'Mars' is unknown"),
    'end: "07:00"': ('end: "22:00"', "start and end must differ"),
    "repeat_s: 600": ("repeat_s: 1", "repeat_s must be at least 60"),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_named_with_their_line(text):
    replacement, message = MISTAKES[text]
    assert text in FILE
    with pytest.raises(AlertFileError) as caught:
        file_of(FILE.replace(text, replacement, 1))
    assert message in "\n".join(map(str, (caught.value, *caught.value.others)))
    assert "hooks.example" not in str(caught.value)


def test_where_a_url_stands_is_told_though_it_is_a_secret(tmp_path, capsys):
    path = tmp_path / "alerts.yaml"
    path.write_text(FILE.replace('url: "env:A"', 'url: "https://hooks.example/T0"'))
    assert command(["alerts", "test", "--rules", str(path)]) == 2
    told = capsys.readouterr().err
    assert "receivers.a.url must say where the URL is, by env:NAME or file:/path, since it is a secret" in told


def test_sql_that_cannot_be_parsed_is_a_mistake_for_the_command_alone(tmp_path, capsys):
    """Beside the others, with its line; unknown tables are none. A round goes on with the other rules."""
    path = tmp_path / "alerts.yaml"
    more = "rules:\n  x: {source: sql, owner: o, summary: s, sql: SELEC 1}\n"
    path.write_text(FILE.replace("rules:\n", more + more.replace("x:", "y:").replace("SELEC 1", "SELECT a FROM b")[7:]))
    assert set(load_alerts(path).rules) == {"x", "y", "died", "slow"}
    path.write_text(path.read_text().replace("fallback", "").replace("receivers: [a]", "receivers: [c]"))
    assert command(["alerts", "test", "--rules", str(path)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert f"{path}:4: the SQL of rule 'x' cannot be parsed: SQL:1:1: syntax error" in first
    assert "there is no receiver 'c'" in second


def test_a_second_firing_has_an_id_of_its_own_and_a_repeated_round_the_same():
    file, died, state, ids = file_of(), [incident("run_failed")], AlertState(), []
    for at_s, signals in ((0, died), (60, []), (120, died)):
        now = NOON + timedelta(seconds=at_s)
        evaluation = evaluate(file, state, signals, now)
        again = evaluate(file, state, signals, now + timedelta(seconds=5))
        assert [each.id for each in again.notifications] == [each.id for each in evaluation.notifications]
        state = sent(evaluation.state, evaluation.notifications[0], now)
        ids.append(evaluation.notifications[0].id)
    assert len(set(ids)) == 3


def test_a_clock_that_is_set_back_holds_up_neither_firing_nor_repetition():
    slow, key = [incident("low_sm")], "slow/low_sm-r1"
    year = -365 * 86_400
    assert rounds(file_of(), (0, slow), (year, slow), (year + 60, slow)) == [[], [], [("b", [key], [])]]
    out = rounds(file_of(), (0, slow), (60, slow), (year, slow), (year + 600, slow))
    assert out[1:] == [[("b", [key], [])], [], [("b", [], [])]]
