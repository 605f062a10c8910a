"""Messages of alerts: complete, bounded, without credentials, and nothing in them is taken for markup."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ranklake.pipeline.alerts.file import load_alerts
from ranklake.pipeline.alerts.message import AlertFacts, harmless, message
from ranklake.pipeline.alerts.state import Alert, Notification

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
FILE = load_alerts(
    Path("alerts.yaml"),
    "version: 1\nrules: {died: {source: incidents, owner: o, summary: A run ended.}}\n"
    "receivers: {a: {url: 'env:A'}}\nroutes: [{receivers: [a]}]\n",
)
KEY = "AKIA" + "ABCDEFGH12345678"


def alert(subject="i1", **more):
    known = {"rule": "died", "subject": subject, "severity": "error", "message": "m", "labels": {"run": "r1"}}
    return Alert(**{**known, "since": NOON, "fired": NOON, **more})


def text_of(*firing, new=None, resolved=(), facts=None, **more):
    keys = frozenset(each.key for each in (firing if new is None else new))
    return message(Notification("n", "a", "page", "g", firing, keys, tuple(resolved)), FILE, facts, **more)


def test_new_lasting_and_resolved_alerts_are_apart_and_counted():
    new, lasting, ended = alert("i1"), alert("i2"), alert("i3", since=NOON - timedelta(hours=1))
    sent = text_of(new, lasting, new=[new], resolved=[ended], lake="s3://user:pa55w0rd@bucket/lake", note="why")
    assert sent.title == "[PAGE] 1 firing, 1 still firing, 1 resolved: died · r1"
    assert [line for line in sent.text.splitlines() if line.isupper() or "(" in line] == [
        "FIRING died (i1)",
        "STILL FIRING died (i2)",
        "RESOLVED died (i3)",
    ]
    assert sent.text.startswith("why\nlake: s3://bucket/lake\n")
    assert sent.text.endswith("since: 2026-01-05 11:00:00 UTC")
    assert text_of(resolved=[ended]).title == "[Resolved] 1 resolved: died · r1"


def test_an_alert_of_a_rule_that_is_gone_can_end():
    assert "RESOLVED old (i1)" in text_of(resolved=[alert(rule="old")]).text
    assert "FIRING old (i1)" in text_of(alert(rule="old")).text


def test_ten_thousand_alerts_are_the_first_ten_and_a_number():
    many = [alert(f"i{number}", message="m" * 5000, labels={"run": f"r{number}" * 99}) for number in range(10_000)]
    facts = {each.key: AlertFacts(sql="SELECT 1\n" * 999, evidence="e" * 5000) for each in many}
    sent = text_of(*many, resolved=many, facts=facts)
    assert len(sent.title) <= 150
    assert len(sent.text) <= 12_000
    assert "\nand 9,990 more firing\n" in text_of(*(replace(each, message="m") for each in many)).text + "\n"
    assert sent.text.count("SELECT 1") < 100  # the same SQL stands there once


def test_credentials_in_what_a_run_says_are_left_out():
    facts = {"died/i1": AlertFacts(evidence=f"key {KEY}", sql=f"SELECT '{KEY}'", page=f"https://u:{KEY}@h/p")}
    sent = text_of(
        alert(message=f"token={KEY}", labels={"run": "r", "note": KEY, "password": "hunter2hunter2"}), facts=facts
    )
    assert KEY not in sent.text + sent.title
    assert "hunter2" not in sent.text


def test_characters_that_nobody_sees_are_shown_and_make_no_call():
    assert harmless("@\u200bhere") == "@\\u200bhere"
    assert harmless("@\u200dhere") == "@ \u200dhere"
    assert harmless("a\ufeffb\u00ad\U000e0041") == "a\\ufeffb\\xad\\U000e0041"


HOSTILE = st.text(st.sampled_from("<>@!#/[]()*_`\\ \n\r\t\x1b\u202e\u200b\u200d\u2060habt&|"), min_size=1, max_size=60)
MARKUP = re.compile(r"<[!@#/A-Za-z]|(?<!\w)@\u200d*\w|\]\(|\]\[|[\x00-\x1f\u202e\u200b\u2060]")


def hostile_message(first, second, third):
    hostile = alert(first, message=second, labels={"run": third, "note": first})
    return text_of(
        hostile, resolved=[replace(hostile, subject=second)], facts={hostile.key: AlertFacts(evidence=third)}
    )


@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_text_from_elsewhere_is_markup_a_call_or_a_further_line(first, second, third):
    sent = hostile_message(first, second, third)
    for line in (sent.title, *sent.text.split("\n"), harmless(first)):
        assert not MARKUP.search(line), line
    assert sent.text.count("\n") == hostile_message("a", "b", "c").text.count("\n")
