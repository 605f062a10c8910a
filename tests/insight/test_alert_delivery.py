"""Delivery of alerts to receivers that run here: what they get, and what becomes of it when they behave badly."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from receivers import answer, answers, drip, hang, serve

from ranklake.pipeline.alerts.delivery import deliver, deliver_round
from ranklake.pipeline.alerts.file import load_alerts
from ranklake.pipeline.alerts.message import AlertFacts, message
from ranklake.pipeline.alerts.state import Alert, AlertState, Notification, Signal, evaluate

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
TOKEN = "tok3n-that-nobody-sees"
PATIENT_S = 120.0
"""For receivers that answer: far more than they take on any machine."""


def file_of(**urls):
    """Return a file of a rule, a route to all, and receivers, each of whose URL stands in a variable of its name."""
    receivers = {name: {"url": f"env:{name.upper()}", **more} for name, more in urls.items()}
    text = {
        "version": 1,
        "rules": {
            "died": {
                "source": "incidents", "where": {"kind": "run_failed"}, "severity": "critical",
                "owner": "platform", "summary": "A run ended with an error.", "runbook": "https://wiki/died",
            }
        },
        "receivers": receivers,
        "routes": [{"receivers": list(receivers), "kind": "page", "repeat_s": 600}],
    }  # fmt: skip
    return load_alerts(Path("alerts.yaml"), json.dumps(text))


def alert(number=1, **more):
    labels = {"run": f"llm-{number}", "host": "n1", "rule": "died", "subject": f"i{number}"}
    given = {"rule": "died", "subject": f"i{number}", "severity": "critical", "message": "Exit code 137."}
    return Alert(**{**given, "labels": labels, "since": NOON, "fired": NOON, **more})


def notification(receiver, *alerts, resolved=(), kind="page", identity="n1"):
    alerts = alerts or (() if resolved else (alert(),))
    return Notification(identity, receiver, kind, '["llm-1"]', alerts, frozenset(a.key for a in alerts), resolved)


def send(file, *notifications, timeout_s=PATIENT_S, facts=None):
    return deliver([message(each, file, facts) for each in notifications], file, timeout_s=timeout_s)


@pytest.fixture
def url(monkeypatch):
    """Set the URL of a receiver."""
    return lambda name, text: monkeypatch.setenv(name.upper(), text)


def webhook(server):
    return f"json://{TOKEN}:pa55w0rd@127.0.0.1:{server.port}/{TOKEN}"


def test_a_webhook_gets_what_where_since_when_evidence_runbook_page_and_sql(url):
    facts = {alert().key: AlertFacts(evidence="rank 3: exit 137", sql="SELECT 1", page="https://lake/runs/llm-1")}
    with serve() as server:
        url("hook", webhook(server))
        results = send(file_of(hook={}), notification("hook"), facts=facts)
    assert [(each.receiver, each.notification, each.is_delivered, each.error, each.attempts) for each in results] == [
        ("hook", "n1", True, "", 1)
    ]
    body = server.requests[0].json
    assert body["title"] == "[PAGE] 1 firing: died · llm-1"
    assert body["type"] == "failure"
    assert body["message"].splitlines() == [
        "",
        "FIRING died (i1)",
        "A run ended with an error.",
        "Exit code 137.",
        "where: run llm-1, host n1",
        "since: 2026-01-05 12:00:00 UTC",
        "severity: critical, owner: platform",
        "evidence: rank 3: exit 137",
        "runbook: https://wiki/died",
        "page: https://lake/runs/llm-1",
        "SQL: SELECT 1",
    ]


@pytest.mark.slow
def test_receivers_that_hang_or_drip_cost_their_time_and_stop_no_other(url):
    """Each would keep a thread for ever; a drip never reaches a limit between two bytes."""
    file = file_of(hung={}, dripping={}, manager={"kind": "alertmanager"}, good={})
    with serve(hang) as hung, serve(drip) as dripping, serve(drip) as manager, serve() as good:
        for name, server in (("hung", hung), ("dripping", dripping), ("good", good)):
            url(name, webhook(server))
        url("manager", manager.url)
        due = [notification(name) for name in file.receivers]
        results = send(file, *due, notification("hung", identity="n2"), timeout_s=15)
        assert len(dripping.requests) == 1
    assert [(each.is_delivered, each.attempts, each.error) for each in results] == [
        (False, 1, "no answer within 15 s"),
        (False, 1, "no answer within 15 s"),
        (False, 1, "no answer within 15 s"),
        (True, 1, ""),
        (False, 0, "not tried: no answer within 15 s"),
    ]


def incident(number=1):
    return Signal(source="incidents", subject=f"i{number}", labels={"kind": "run_failed", "run": "llm-1"})


def test_a_fallback_gets_each_alert_once_while_the_receiver_is_tried_again(url):
    """Both get the end of what they were told: the state says what each knows."""
    file = file_of(first={"fallback": ["second"]}, second={})
    route = replace(file.routes[0], receivers=("first",))
    file, state, bodies = replace(file, routes=(route,)), AlertState(), []
    with serve(answers(answer(404), answer(404), answer())) as first, serve() as second:
        url("first", webhook(first))
        url("second", webhook(second))
        for signals in ([incident()], [incident()], [incident()], []):
            due = evaluate(file, state, signals, NOON)
            turn = deliver_round(due, file, NOON, timeout_s=PATIENT_S)
            state = turn.state
            bodies.append([(each.receiver, each.is_delivered, each.fallback_of) for each in turn.results])
    assert bodies == [
        [("first", False, ""), ("second", True, "first")],
        [("first", False, "")],
        [("first", True, "")],
        [("first", True, ""), ("second", True, "")],
    ]
    assert [each.json["title"] for each in second.requests] == [
        "[PAGE] 1 firing: died · llm-1",
        "[Resolved] 1 resolved: died · llm-1",
    ]
    assert second.requests[0].json["message"].startswith("first was to get this and is not reached: status 404\n")
