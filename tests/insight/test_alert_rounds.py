"""Rounds of alerts on a lake: what is sent once, what stays after a fault, and what a rule that fails leaves alone."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from incident_rows import incident_row
from rollup_inputs import NOON, append

from ranklake.insight.overview.alerts import firing
from ranklake.insight.runs.asking import asking
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.plan import append_own
from ranklake.lake.query.role_file import load_role
from ranklake.lake.store.lake_config import MaskingSection
from ranklake.lake.tables.read import read
from ranklake.pipeline.alerts import stored_state
from ranklake.pipeline.alerts.delivery import DeliveryResult, DeliveryRound
from ranklake.pipeline.alerts.file import load_alerts, packaged_alerts
from ranklake.pipeline.alerts.stage import run_round
from ranklake.pipeline.alerts.state import sent
from ranklake.pipeline.alerts.stored_state import load_state, save_state
from ranklake.pipeline.headlines import headline
from ranklake.pipeline.health.problems import Problem
from ranklake.retention.proposals.registers import with_time
from ranklake.retention.proposals.releases import REGISTER, Item

MINUTE = timedelta(minutes=1)
RULES = """
version: 1
rules:
  died: {source: incidents, where: {kind: [run_failed, hang]}, severity: critical, owner: o, summary: s}
  checks: {source: checks, owner: o, summary: s}
  burns: {source: slo, owner: o, summary: s}
  pipeline: {source: pipeline, owner: o, summary: s}
receivers: {a: {url: "env:A"}}
routes: [{receivers: [a]}]
"""


def file_of(text=RULES, **rules):
    """Return a file, with rules of SQL."""
    more = "".join(
        f"  {name}: {{source: sql, owner: o, summary: s, sql: {json.dumps(sql)}}}\n" for name, sql in rules.items()
    )
    return load_alerts(Path("alerts.yaml"), text.replace("receivers: {a", f"{more}receivers: {{a"))


class Receivers:
    """Receivers that keep what they got: per message firing keys and resolved keys; or that do not answer."""

    def __init__(self):
        self.messages, self.ids, self.alerts, self.fault = [], [], [], ""

    def __call__(self, evaluation, file, now, facts):
        """Take all that is due, or nothing."""
        state, results = evaluation.state, []
        for each in evaluation.notifications:
            self.ids.append(each.id)
            self.alerts += each.firing
            if not self.fault:
                self.messages.append(([alert.key for alert in each.firing], [alert.key for alert in each.resolved]))
                state = sent(state, each, now)
            results.append(
                DeliveryResult(receiver=each.receiver, notification=each.id, is_delivered=not self.fault,
                               error=self.fault, attempts=1, duration_s=0.0)
            )  # fmt: skip
        return DeliveryRound(state, tuple(results))

    @property
    def texts(self):
        """Return the messages of alerts that were sent."""
        return [alert.message for alert in self.alerts]


def hang(minutes=0, lasts=None, **more):
    return incident_row(f"h{minutes}", kind="hang", minutes=minutes, lasts=lasts, **more)


def replace_incidents(lake, rows):
    """Put incidents in the place of those that there are, as their rollup does."""
    path = f"{lake.uri}/tables/incidents"
    if DeltaTable.is_deltatable(path):
        DeltaTable(path).delete()
    append(lake, "incidents", rows)


def history(lake):
    rows = sorted(read(lake.tables, contract("alerts")).to_pylist(), key=lambda row: row["ts"])
    return [(row["state"], row["messages"], row["failures"], row["receivers"], row["muted"]) for row in rows]


def test_an_incident_is_told_once_and_so_is_its_end(lake):
    """Open: one message. The next round: none. Closed and over for half an hour: one end. Then nothing."""
    send, key = Receivers(), "died/" + hang()["incident_id"]
    append(lake, "incidents", [hang()])
    file = file_of()
    for minutes in (1, 2, 3):
        run_round(lake, file, NOON + minutes * MINUTE, send)
    assert send.messages == [([key], [])]
    replace_incidents(lake, [hang(lasts=10)])
    for minutes in (20, 39):  # a next finding would be part of it
        run_round(lake, file, NOON + minutes * MINUTE, send)
    assert len(send.messages) == 1
    for minutes in (41, 42, 300):
        run_round(lake, file, NOON + minutes * MINUTE, send)
    assert send.messages == [([key], []), ([], [key])]
    assert history(lake) == [("firing", 1, 0, "a", None), ("resolved", 2, 0, "a", None)]


def test_a_run_that_ends_is_told_though_it_is_over_at_once(lake):
    """It lasts for half an hour from when it was detected; one of last week is told nobody."""
    send = Receivers()
    ended = incident_row("end", kind="run_failed", lasts=0, detected_ts=NOON + 60 * MINUTE)
    old = incident_row("old", kind="run_failed", run="r0", minutes=-3000, lasts=0, detected_ts=NOON + 60 * MINUTE)
    append(lake, "incidents", [ended, old])
    for minutes in (61, 62, 91):
        run_round(lake, file_of(), NOON + minutes * MINUTE, send)
    key = f"died/{ended['incident_id']}"
    assert send.messages == [([key], []), ([], [key])]


def test_a_clean_lake_tells_nothing(lake):
    """Nothing is sent, and nothing is written, by the packaged rules."""
    send = Receivers()
    for minutes in (0, 1):
        result = run_round(lake, packaged_alerts(), NOON + minutes * MINUTE, send)
    assert (result.firing, result.pending, result.unknown, send.ids) == (0, 0, (), [])
    assert load_state(lake.store).number == 0
    assert not DeltaTable.is_deltatable(f"{lake.uri}/tables/alerts")


def test_a_lost_receiver_is_tried_each_round_and_counted(lake):
    """Its failures are counted; once it is back it gets the message; rows are written for changes alone."""
    send = Receivers()
    append(lake, "incidents", [hang()])
    send.fault = "no answer"
    for minutes in (1, 2, 3):
        result = run_round(lake, file_of(), NOON + minutes * MINUTE, send)
    assert (result.messages, result.lost) == (0, {"a": "no answer"})
    assert len(set(send.ids)) == 1
    send.fault = ""
    run_round(lake, file_of(), NOON + 4 * MINUTE, send)
    assert send.messages == [(["died/" + hang()["incident_id"]], [])]
    assert history(lake) == [("firing", 0, 1, None, None), ("firing", 1, 3, "a", None)]


def test_rules_that_fail_never_end_or_give_too_much_leave_others_alone(lake):
    """Each is told as a rule that could not be evaluated; the alerts of the others are sent."""
    send = Receivers()
    append(lake, "incidents", [hang()])
    file = file_of(
        endless="SELECT count(*) AS subject FROM generate_series(1, 1000000000) AS a(x), "
        "generate_series(1, 1000000000) AS b(y) WHERE x + y < 0",
        broken="SELECT nothing FROM nowhere",
        wide="SELECT value AS subject FROM generate_series(1, 10001)",
        many="SELECT value AS subject FROM generate_series(1, 10000)",
        nameless="SELECT 1 AS run",
        sound="SELECT 'disk' AS subject, 'warning' AS severity, 7 AS left_bytes",
    )
    result = run_round(lake, file, NOON + MINUTE, send, query_timeout_s=10)
    assert result.unknown == ("broken", "endless", "nameless", "wide")
    assert result.firing == 1 + 1 + 5 + 100
    (texts,) = ({text for text in send.texts if text.startswith("Rule")},)
    assert any("Rule endless could not be evaluated: its query takes longer than 10 s" in text for text in texts)
    assert any("Rule broken could not be evaluated" in text and "nowhere" in text for text in texts)
    assert any("more than 10,000 rows" in text for text in texts)
    assert any("Rule many has 100 alerts and 9,900 more" in text for text in texts)
    assert any("no subject" in text for text in texts)
    keys = {key for firing, _ in send.messages for key in firing}
    assert {"sound/disk", "died/" + hang()["incident_id"], "many/1"} <= keys


def test_a_rule_that_cannot_be_evaluated_resolves_nothing(lake):
    """What fired stays while its query fails, and is told to have ended once that says so."""
    send = Receivers()
    fires, fails, gone = (
        "SELECT 'x' AS subject",
        "SELECT 'x' AS subject FROM nowhere",
        "SELECT 'x' AS subject WHERE FALSE",
    )
    for minutes, sql in enumerate((fires, fails, gone)):
        run_round(lake, file_of(rule=sql), NOON + minutes * MINUTE, send)
    own = "alerts-incomplete/rule"
    assert send.messages == [(["rule/x"], []), ([own, "rule/x"], []), ([], [own, "rule/x"])]


def test_two_at_once_send_once(lake):
    """While one sends, another does nothing; what a dead one had claimed is sent after the claim's end, with its id."""
    append(lake, "incidents", [hang()])
    first, second = Receivers(), Receivers()

    def sends(*given):
        assert run_round(lake, file_of(), NOON + MINUTE, second).is_left_to_another
        return first(*given)

    run_round(lake, file_of(), NOON + MINUTE, sends)
    assert (len(first.messages), second.messages) == (1, [])


def test_of_two_that_have_evaluated_the_same_one_sends(lake, monkeypatch):
    """Both have read the same state before either claims it."""
    append(lake, "incidents", [hang()])
    first, second = Receivers(), Receivers()
    claims = []

    def save(store, stored):
        if not claims:
            claims.append(stored)
            run_round(lake, file_of(), NOON + MINUTE, second)
        return save_state(store, stored)

    monkeypatch.setattr("ranklake.pipeline.alerts.stage.save_state", save)
    assert run_round(lake, file_of(), NOON + MINUTE, first).is_left_to_another
    assert (first.messages, len(second.messages)) == ([], 1)


def test_a_sender_that_fails_gives_its_claim_up(lake):
    """The next round sends, a minute later."""
    append(lake, "incidents", [hang()])

    def fails(*_):
        raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        run_round(lake, file_of(), NOON + MINUTE, fails)
    send = Receivers()
    run_round(lake, file_of(), NOON + 2 * MINUTE, send)
    assert len(send.messages) == 1


def test_a_damaged_state_is_no_reason_for_silence(lake):
    """What lasts is sent again, beside one message on the damage."""
    append(lake, "incidents", [hang()])
    send, key = Receivers(), "died/" + hang()["incident_id"]
    run_round(lake, file_of(), NOON + MINUTE, send)
    number = load_state(lake.store).number
    Path(lake.uri, f"alerts/{number:010d}.json").write_text("{")
    run_round(lake, file_of(), NOON + 2 * MINUTE, send)
    damaged = "pipeline/records of sent alerts cannot be read"
    assert sorted(send.messages) == sorted([([key], []), ([damaged], []), ([key], [])])
    assert load_state(lake.store).number > number


def claim_for(lake, length):
    """Write what a process leaves that claims a round at noon by a clock of its own, and dies."""
    stored = load_state(lake.store)
    assert save_state(lake.store, stored.following(claimed_until=NOON + length))


def test_a_claim_of_a_clock_that_is_wrong_silences_nobody(lake):
    """One of five minutes holds; one of ten years is no claim. Who is held up says how many alerts the state has."""
    append(lake, "incidents", [hang()])
    send, key = Receivers(), "died/" + hang()["incident_id"]
    claim_for(lake, timedelta(days=3650))
    assert run_round(lake, file_of(), NOON + MINUTE, send).messages == 1
    claim_for(lake, 6 * MINUTE)
    held = run_round(lake, file_of(), NOON + 2 * MINUTE, send)
    assert (held.is_left_to_another, held.firing, send.messages) == (True, 1, [([key], [])])
    told = {**held.plain(), "fault": ""}
    assert headline("alerts", told) == ["left to another round, which has claimed it"]
    lost = {**told, "is_left_to_another": False, "lost": {"a": "why"}, "unknown": ["x"]}
    assert headline("alerts", lost)[2:] == ["1 receiver lost", "1 rule unknown"]


DAMAGES = {
    "cut": lambda text: text[:-9],
    "empty": lambda _: "",
    "null": lambda _: "null",
    "other types": lambda _: '{"alerts":[],"messages":5}',
    "no time zone": lambda text: re.sub(r'"since":"([^"]*)Z"', r'"since":"\1"', text),
    "an alert that is none": lambda text: re.sub(r'"severity":"[a-z]*"', '"severity":5', text),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_is_told_and_the_one_before_it_goes_on(lake, damage):
    """What lasts is sent again as the same alert; what is over ends in the history; the damage is a signal, once."""
    append(lake, "incidents", [hang()])
    send, key = Receivers(), "died/" + hang()["incident_id"]
    run_round(lake, file_of(), NOON + MINUTE, send)
    append(lake, "incidents", [hang(3)])
    run_round(lake, file_of(), NOON + 4 * MINUTE, send)
    for each in Path(lake.uri, "alerts").iterdir():  # the last of the first round stays
        if int(each.stem) > 2:
            each.write_text(damage(each.read_text()))
    replace_incidents(lake, [hang()])
    del send.messages[:]
    run_round(lake, file_of(), NOON + 5 * MINUTE, send)
    own = "pipeline/records of sent alerts cannot be read"
    assert [own in firing for firing, _ in send.messages].count(True) == 1
    assert all(name in "".join(send.texts) for name in ("alerts/0000000003.json", "alerts/0000000004.json"))
    run_round(lake, file_of(), NOON + 6 * MINUTE, send)
    assert ([], [own]) in [(firing, ended) for firing, ended in send.messages if own in ended]
    assert [alert["subject"] for alert in open_alerts(lake)] == [key.removeprefix("died/")]
    assert not load_state(lake.store).damaged


def open_alerts(lake):
    return [dict(row) for row in firing(asking(lake)).rows]


def test_alerts_of_which_no_state_is_left_go_on_in_the_history(lake):
    """Each has one row that is open: the same alert, since when it was, with who was told."""
    append(lake, "incidents", [hang(), hang(1)])
    send = Receivers()
    run_round(lake, file_of(), NOON + 2 * MINUTE, send)
    before = open_alerts(lake)
    for each in Path(lake.uri, "alerts").iterdir():
        each.write_text("")
    run_round(lake, file_of(), NOON + 3 * MINUTE, send)
    told = [row for row in open_alerts(lake) if row["rule"] == "died"]
    assert [(row["alert_id"], row["since_ts"], row["messages"]) for row in told] == [
        (row["alert_id"], row["since_ts"], row["messages"] + 1) for row in before
    ]
    replace_incidents(lake, [])
    for each in Path(lake.uri, "alerts").iterdir():
        each.write_text("")
    run_round(lake, file_of(), NOON + 4 * MINUTE, send)
    run_round(lake, file_of(), NOON + 5 * MINUTE, send)
    assert open_alerts(lake) == []


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_file_of_the_highest_number_ends_nothing(lake, is_sound):
    """What follows has eleven digits, or goes on where it was; rounds send what begins after it, once."""
    append(lake, "incidents", [hang()])
    send = Receivers()
    run_round(lake, file_of(), NOON + MINUTE, send)
    folder = Path(lake.uri, "alerts")
    text = (folder / "0000000002.json").read_text() if is_sound else '{"alerts":{}}'
    (folder / "9999999999.json").write_text(text)
    append(lake, "incidents", [hang(3)])
    for minutes in (4, 5, 6):
        assert not run_round(lake, file_of(), NOON + minutes * MINUTE, send).is_left_to_another
    keys = [key for firing, _ in send.messages for key in firing if key.startswith("died/")]
    assert sorted(set(keys)) == sorted("died/" + each["incident_id"] for each in (hang(), hang(3)))
    assert len(keys) == 3  # the second message of the run names both
    assert bool(load_state(lake.store).damaged) != is_sound


def test_checks_objectives_and_segments_are_signals(lake):
    """Each with its severity and labels; a later result that passes takes the signal back."""
    result = {"check_run": "1", "table": "steps", "partition_date": NOON.date(), "suite": "s", "expectation": "e",
              "check_id": "loss_range", "severity": "critical", "status": "failed", "rows_failed": 3, "ts": NOON,
              "gx_version": "", "files_sha256": "", "quarantined_rows": 0, "date": NOON.date()}  # fmt: skip
    objective = {"slo": "saves", "subject": "", "window_end_ts": NOON, "window_s": 1.0, "objective_ratio": 0.9,
                 "good_count": 1.0, "total_count": 2.0, "attained_ratio": 0.5, "budget_used_ratio": 5.0,
                 "burn_rate": 15.0, "status": "missed", "alert": "page", "owner": "o", "date": NOON.date()}  # fmt: skip
    segment = {"table": "steps", "uri_name": "x", "unreadable": "cut off", "rows": 80, "ts": NOON,
               "sha256": "0" * 64, "rows_stored": 0, "rows_rejected": 0, "rows_duplicate": 0, "plan": 1, "bytes": 1,
               "date": NOON.date()}  # fmt: skip
    append(lake, "steps", [step()])
    append(lake, "quality_results", [result])
    append(lake, "slo", [objective])
    append(lake, "segments", [segment])
    send = Receivers()
    wrong = [Problem("disk", "the disk of the lake is nearly full: 1.0% is free")]
    run_round(lake, file_of(), NOON + MINUTE, send, problems=lambda: wrong)
    day = NOON.date()
    keys = {f"checks/steps/loss_range/{day}", "burns/saves", "pipeline/unreadable steps r1",
            "pipeline/the disk of the lake is nearly full"}  # fmt: skip
    assert {key for firing, _ in send.messages for key in firing} == keys
    assert f"Check loss_range of steps failed on {day}, 3 rows" in send.texts
    append(lake, "quality_results", [{**result, "check_run": "2", "status": "passed", "ts": NOON + MINUTE}])
    append(lake, "slo", [{**objective, "window_end_ts": NOON + MINUTE, "alert": None}])
    run_round(lake, file_of(), NOON + 2 * MINUTE, send)
    assert {key for _, ended in send.messages for key in ended} == keys - {"pipeline/unreadable steps r1"}


def step(minutes=0):
    """Return a row that a check may fail."""
    return {"step": minutes, "step_time_s": 0.1, "ts": NOON + minutes * MINUTE}


def failure(number=1, minutes=0, **more):
    """Return the result of a check that fails on the partition of today."""
    return {"check_run": str(number), "table": "steps", "partition_date": NOON.date(), "suite": "s", "expectation": "e",
            "check_id": "loss_range", "severity": "critical", "status": "failed", "rows_failed": 3, "rows_checked": 5,
            "ts": NOON + minutes * MINUTE, "gx_version": "", "files_sha256": "a" * 64, "quarantined_rows": 0,
            "date": NOON.date(), "on_fail": "hold", **more}  # fmt: skip


def release(lake):
    """Let the partition go on, as an applied release says."""
    proposal = REGISTER.add(lake.tables, [Item("partition", "steps", NOON.date(), "loss_range", 1, "a" * 64)], "ada")
    application = REGISTER.head_row(proposal, "application", "otto", 0)
    append_own(lake.tables, "quality_releases", lambda _: with_time([application]))


def all_gone(lake):
    """Remove all rows of a table, as retention and a replay do."""
    DeltaTable(str(Path(lake.uri, "tables", "steps"))).delete()


PUT_RIGHT = {
    "passes": lambda lake: append(lake, "quality_results", [failure(2, 1, status="passed")]),
    "not in its suite": lambda lake: append(
        lake, "quality_results", [failure(2, 1, status="passed", check_id="other")]
    ),
    "gone": all_gone,
    "released": release,
}


@pytest.mark.parametrize("how", PUT_RIGHT)
def test_a_failing_check_is_over_with_the_next_round_once_it_is_put_right(lake, how):
    """It lasts, however old, until its partition passes or is released, its suite lacks it, or its rows are gone."""
    append(lake, "steps", [step()])
    append(lake, "quality_results", [failure()])
    send, key = Receivers(), f"checks/steps/loss_range/{NOON.date()}"
    run_round(lake, file_of(), NOON + MINUTE, send)
    run_round(lake, file_of(), NOON + timedelta(days=40), send)
    assert send.messages == [([key], [])] * len(send.messages)
    PUT_RIGHT[how](lake)
    count = len(send.messages)
    run_round(lake, file_of(), NOON + timedelta(days=40, minutes=1), send)
    run_round(lake, file_of(), NOON + timedelta(days=40, minutes=2), send)
    assert send.messages[count:] == [([], [key])]


def test_rows_that_a_check_moved_to_rejects_are_news_for_a_day(lake):
    append(lake, "steps", [step()])
    append(lake, "quality_results", [failure(quarantined_rows=3)])
    send, key = Receivers(), f"checks/steps/loss_range/{NOON.date()}"
    for hours in (1, 2, 25, 26):
        run_round(lake, file_of(), NOON + timedelta(hours=hours), send)
    assert [send.messages[0], send.messages[-1]] == [([key], []), ([], [key])]


TORN = {"table": "steps", "run": "r1", "attempt": 0, "rank": 0, "incarnation": 7, "segment": 2, "uri_name": "x",
        "rows": 80, "unreadable": "cut off", "ts": NOON, "sha256": "0" * 64, "rows_stored": 0, "rows_rejected": 0,
        "rows_duplicate": 0, "plan": 1, "bytes": 1, "date": NOON.date()}  # fmt: skip
SOUND = {**TORN, "uri_name": "y", "unreadable": None, "sha256": "1" * 64, "rows_stored": 80, "plan": 2}
CLAIM = {"plan": 2, "table": "steps", "run": "r1", "attempt": 0, "rank": 0, "incarnation": 7, "segment": 2, "rows": 0,
         "actor": "ada", "reason": "lost", "ts": NOON, "date": NOON.date()}  # fmt: skip


@pytest.mark.parametrize(
    ("table", "row", "is_over"),
    [
        ("segments", SOUND, True),
        ("segments", {**SOUND, "rows": 79}, False),
        ("segments", {**SOUND, "segment": 3}, False),
        ("disowned", CLAIM, True),
        ("disowned", {**CLAIM, "segment": None}, True),
        ("disowned", {**CLAIM, "rank": 1}, False),
    ],
)
def test_an_unreadable_segment_is_over_with_the_next_round_once_it_is_put_right(lake, table, row, is_over):
    """It lasts, however old, until a sound copy of its slot file came, with all its rows, or it was disowned."""
    append(lake, "segments", [TORN])
    send, key = Receivers(), "pipeline/unreadable steps r1"
    run_round(lake, file_of(), NOON + MINUTE, send)
    run_round(lake, file_of(), NOON + timedelta(days=4), send)
    assert send.messages == [([key], [])] * len(send.messages)
    append(lake, table, [row])
    count = len(send.messages)
    for minutes in (1, 2):
        run_round(lake, file_of(), NOON + timedelta(days=4, minutes=minutes), send)
    assert send.messages[count:] == ([([], [key])] if is_over else [])


def test_an_unreadable_segment_of_last_week_wakes_nobody(lake):
    append(lake, "segments", [TORN])
    send = Receivers()
    run_round(lake, file_of(), NOON + timedelta(days=4), send)
    assert send.messages == []


ROLES = """
roles:
  teller:
    classes: [operational]
    masked: [pseudonymous]
    masks: {incidents.run: hash, runs.run: hash}
    tables: [incidents, annotations, runs]
    runs: "run LIKE 'open-%'"
"""


def test_masks_and_rows_of_a_role_hold_in_messages(lake, tmp_path):
    """What it does not see is told nobody; names are masked in labels and in what findings say; the rest is unknown."""
    keys = tmp_path / "keys"
    keys.write_text("00" * 32)
    keyed = lake.configured(masking=MaskingSection(f"file:{keys}"))
    (tmp_path / "roles.yaml").write_text(ROLES)
    role = load_role(tmp_path / "roles.yaml", "teller", keyed.contracts())
    append(lake, "incidents", [
        hang(run="open-7", title="open-7 hangs on node-of-ada", host="node-of-ada"),
        hang(1, run="secret-1", title="secret-1 hangs"),
    ])  # fmt: skip
    append(lake, "runs", [{"run": "open-7", "ts": NOON, "team": "vision", "labels": '{"region": "eu"}'}])
    send = Receivers()
    result = run_round(keyed, file_of(), NOON + 2 * MINUTE, send, role=role)
    alerts = send.alerts
    assert result.unknown == ("burns", "checks", "pipeline")
    (hangs,) = (alert for alert in alerts if alert.rule == "died")
    assert (hangs.labels["team"], hangs.labels["region"]) == ("vision", "eu")
    everything = json.dumps([[alert.message, dict(alert.labels)] for alert in alerts])
    stored = "".join(path.read_text() for path in Path(lake.uri, "alerts").iterdir())
    for text in (everything, stored, str(read(lake.tables, contract("alerts")).to_pylist())):
        assert not any(name in text for name in ("open-7", "node-of-ada", "secret"))
    assert hangs.message == f"{hangs.labels['run']} hangs on {hangs.labels['host']}"


def test_a_bug_in_a_source_costs_its_rules_alone(lake):
    """It is told as a rule that could not be evaluated; the other alerts go out."""
    append(lake, "incidents", [hang()])
    send = Receivers()

    def problems():
        raise KeyError("disk")

    assert run_round(lake, file_of(), NOON + MINUTE, send, problems=problems).unknown == ("pipeline",)
    assert {key for firing, _ in send.messages for key in firing} == {
        "died/" + hang()["incident_id"],
        "alerts-incomplete/pipeline",
    }


def overtake(store, files=20):
    """Write some states after the newest, as other processes do, so that all older files are deleted."""
    for _ in range(files):
        assert save_state(store, load_state(store).following())


def test_a_claim_that_others_overtook_is_no_claim(lake):
    """Others write and delete so much after a process has looked that the number it claims is free once more."""
    stored = load_state(lake.store)
    assert save_state(lake.store, stored.following())
    stored = load_state(lake.store)
    overtake(lake.store)
    newest, files = load_state(lake.store), lake.store.fs.ls(lake.store.path("alerts"), detail=False)
    assert not save_state(lake.store, stored.following(claimed_until=NOON))
    assert load_state(lake.store) == newest
    assert lake.store.fs.ls(lake.store.path("alerts"), detail=False) == files, "nothing of it is left"


def test_a_look_whose_files_go_meanwhile_finds_the_newest(lake, monkeypatch):
    """Others write and delete between the listing and the reading: no file of them is taken for damaged."""
    overtake(lake.store, files=2)
    listing, looks = stored_state.file_numbers, []

    def listed_before(*given):
        numbers = listing(*given)
        looks.append(numbers)
        if len(looks) == 1:
            overtake(lake.store)
        return numbers

    monkeypatch.setattr(stored_state, "file_numbers", listed_before)
    found = load_state(lake.store)
    assert (found.number, found.damaged, found.is_behind) == (22, (), False)
