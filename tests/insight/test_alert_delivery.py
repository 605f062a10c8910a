"""Delivery of alerts to receivers that run here: what they get, and what becomes of it when they behave badly."""

import base64
import contextlib
import email
import email.policy
import json
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from receivers import answer, answers, certificate, close, drip, hang, serve
from stores import free_port

from ranklake.cli import run as command
from ranklake.pipeline.alerts.delivery import MOST_MESSAGES, deliver, deliver_round
from ranklake.pipeline.alerts.file import Heartbeat, load_alerts
from ranklake.pipeline.alerts.message import AlertFacts, message
from ranklake.pipeline.alerts.state import Alert, AlertState, Evaluation, Notification, Signal, evaluate

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
TOKEN = "tok3n-that-nobody-sees"
PATIENT_S = 120.0
"""For receivers that answer: far more than they take on any machine."""


def file_of(**urls):
    """Return a file of a rule, a route to all, and receivers, each of whose URL stands in a variable of its name."""
    receivers = {name: {"url": f"env:{name.upper()}"} | more for name, more in urls.items()}
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
        "FIRING died (i1)",
        "A run ended with an error.",
        "Exit code 137.",
        "where: run llm-1, host n1",
        "since: 2026-01-05 12:00:00 UTC",
        "severity: critical, owner: platform",
        "runbook: https://wiki/died",
        "page: https://lake/runs/llm-1",
        "evidence: rank 3: exit 137",
        "SQL: SELECT 1",
    ]


@pytest.mark.slow
def test_receivers_that_hang_or_drip_cost_their_time_and_stop_no_other(url):
    """Each would keep a thread for ever; a drip never reaches a limit between two bytes."""
    file = file_of(hung={}, dripping={}, manager={"kind": "alertmanager"}, mail={}, good={})
    with (
        serve(hang) as hung, serve(drip) as dripping, serve(drip) as manager, serve() as good,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):  # fmt: skip
        url("mail", f"mailto://127.0.0.1:{silent.getsockname()[1]}/?from=a@example.org&to=b@example.org")
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


SLACK = "T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7f"


@pytest.fixture
def proxy(tmp_path, monkeypatch):
    """Run in the place of hosts that services have fixed: a proxy with a certificate for them."""
    path = certificate(tmp_path, "hooks.slack.com", "events.pagerduty.com", "prod-1.westus.logic.azure.com")
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with serve(answer(202, b"ok"), tls=path) as server:
        monkeypatch.setenv("HTTPS_PROXY", server.url)
        yield server


def test_slack_gets_a_message_for_people_with_nothing_that_calls_the_channel(url, proxy):
    url("chat", f"slack://{SLACK}")
    proxy.respond = answer(200, b"ok")
    calling = alert(message="<!channel> see <https://x|here> @here")
    results = send(file_of(chat={}), notification("chat", calling, kind="ticket"))
    assert [each.error for each in results] == [""]
    request = proxy.requests[0]
    assert (request.host, request.path) == ("hooks.slack.com", f"/services/{SLACK}")
    shown = request.json["attachments"][0]
    assert shown["title"] == "[TICKET] 1 firing: died · llm-1"
    assert "< !channel> see < https://x|here> @ here" in shown["text"]


def test_teams_gets_an_adaptive_card(url, proxy):
    url("teams", "workflows://prod-1.westus.logic.azure.com/abcdef0123456789/s1gnatur3")
    results = send(file_of(teams={}), notification("teams"))
    assert [each.error for each in results] == [""]
    card = proxy.requests[0].json["attachments"][0]
    assert card["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert "[PAGE] 1 firing: died · llm-1" in json.dumps(card, ensure_ascii=False)


def test_pagerduty_opens_an_incident_of_a_group_and_resolves_the_same(url, proxy):
    """Its Events API v2: two messages of a group have one key; two lakes have two."""
    url("pager", "https://R0UTINGK3Y@events.pagerduty.com/v2/enqueue")
    file = file_of(pager={"kind": "pagerduty"})
    facts = {alert().key: AlertFacts(page="https://lake/runs/llm-1")}
    due = [notification("pager"), notification("pager", resolved=(alert(),), identity="n2")]
    messages = [message(each, file, facts, lake="prod") for each in due]
    results = deliver([*messages, message(due[0], file, lake="other")], file, timeout_s=PATIENT_S)
    assert [each.error for each in results] == ["", "", ""]
    first, second, third = (request.json for request in proxy.requests)
    assert (first["event_action"], second["event_action"]) == ("trigger", "resolve")
    assert first["dedup_key"] == second["dedup_key"] != third["dedup_key"]
    assert first["routing_key"] == "R0UTINGK3Y"
    assert (first["payload"]["severity"], first["payload"]["source"]) == ("critical", "prod")
    assert first["payload"]["summary"] == "[PAGE] 1 firing: died · llm-1"
    assert first["links"] == [{"href": "https://lake/runs/llm-1", "text": "Page"}]
    assert "Authorization" not in proxy.requests[0].headers


def test_pagerduty_by_apprise_is_refused_since_it_would_resolve_nothing(url):
    url("pager", "pagerduty://key@key/source/component")
    (result,) = send(file_of(pager={}), notification("pager"))
    assert result.error == "PagerDuty needs a receiver of 'kind: pagerduty', which can resolve, too"


def test_ntfy_gets_a_page_with_a_high_priority_and_a_ticket_without(url):
    with serve() as server:
        url("phone", f"ntfy://:{TOKEN}@127.0.0.1:{server.port}/training")
        send(file_of(phone={}), notification("phone"), notification("phone", kind="ticket", identity="n2"))
    page, ticket = server.requests
    assert page.headers.get("X-Priority") == "high"
    assert "X-Priority" not in ticket.headers
    assert page.json["topic"] == "training"


def test_a_text_that_is_too_long_for_a_service_is_cut_at_its_end(url):
    """Else ntfy would make a file of it, and others refuse it each round."""
    many = [alert(number) for number in range(10)]
    facts = {each.key: AlertFacts(evidence="e" * 900, sql=f"SELECT {each.subject}, {'x' * 900}") for each in many}
    with serve() as server:
        url("phone", f"ntfy://127.0.0.1:{server.port}/training")
        (result,) = send(file_of(phone={}), notification("phone", *many), facts=facts)
    assert result.is_delivered
    text = server.requests[0].json["message"]
    assert 6_000 < len(text) <= 7_800
    assert text.startswith("FIRING died (i0)")
    assert text.endswith("…")


def test_one_that_hangs_is_left_when_its_time_is_over(url):
    """However busy the machine is: nothing here has to be done within that time."""
    with serve(hang) as server:
        url("hook", webhook(server))
        (result,) = send(file_of(hook={}), notification("hook"), timeout_s=1)
    assert (result.is_delivered, result.error) == (False, "no answer within 1 s")


def test_one_fallback_of_two_lost_receivers_gets_an_alert_once(url):
    file = file_of(first={"fallback": ["last"]}, second={"fallback": ["last"]}, last={})
    file = replace(file, routes=(replace(file.routes[0], receivers=("first", "second")),))
    with serve(answer(404)) as lost, serve() as last:
        url("first", webhook(lost))
        url("second", webhook(lost))
        url("last", webhook(last))
        turn = deliver_round(evaluate(file, AlertState(), [incident()], NOON), file, NOON, timeout_s=PATIENT_S)
    assert [(each.receiver, each.is_delivered) for each in turn.results] == [
        *(("first", False), ("second", False), ("last", True))
    ]
    assert len(last.requests) == 1


class Mailbox:
    """A mail server's handler that keeps what came."""

    def __init__(self):
        self.envelopes = []

    async def handle_DATA(self, server, session, envelope):  # noqa: N802 - aiosmtpd's
        """Take a message."""
        self.envelopes.append(envelope)
        return "250 taken"


@contextlib.contextmanager
def mail_server(**options):
    box = Mailbox()
    controller = Controller(box, hostname="127.0.0.1", port=free_port(), **options)
    controller.start()
    try:
        yield controller.port, box
    finally:
        controller.stop()


def test_mail_is_taken_by_a_mail_server_and_markup_stays_text(url):
    with mail_server() as (port, box):
        url("mail", f"mailto://127.0.0.1:{port}/?from=lake@example.org&to=oncall@example.org")
        results = send(file_of(mail={}), notification("mail", alert(message="<script>alert(1)</script> loss < 3")))
    assert [(each.is_delivered, each.error) for each in results] == [(True, "")]
    (envelope,) = box.envelopes
    assert envelope.rcpt_tos == ["oncall@example.org"]
    mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
    assert mail["Subject"] == "[PAGE] 1 firing: died · llm-1"
    text = mail.get_body(("html", "plain")).get_content()
    assert "<script>" not in text
    assert "run llm-1, host n1" in text.replace("&nbsp;", " ")


def test_a_wrong_password_of_a_mail_server_is_named_without_it(url):
    refusal = AuthResult(success=False, handled=False, message="535 pa55w0rd is not the password of lake")
    options = {"authenticator": lambda *_: refusal, "auth_require_tls": False}
    with mail_server(**options) as (port, _):
        url("mail", f"mailto://lake:pa55w0rd@127.0.0.1:{port}/?from=lake@example.org&to=oncall@example.org")
        (result,) = send(file_of(mail={}), notification("mail"))
    assert not result.is_delivered
    assert (result.error.partition(":")[0], result.attempts) == ("SMTP 535", 1)  # a few of them lock an account
    assert "pa55w0rd" not in result.error


LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
POSTABLE = {  # definitions postableAlerts, postableAlert, alert and labelSet of Alertmanager's openapi.yaml, version 2
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "labels": LABELS, "annotations": LABELS, "generatorURL": {"type": "string", "format": "uri"},
            "startsAt": {"type": "string", "format": "date-time"}, "endsAt": {"type": "string", "format": "date-time"},
        },
        "required": ["labels"],
        "additionalProperties": False,
    },
}  # fmt: skip


def test_alertmanager_gets_every_alert_with_its_end_by_its_schema(url):
    """What fires lasts until it was to be repeated twice; what ended, until now. Labels are the same in both."""
    with serve() as server:
        url("manager", f"http://lake:pa55w0rd@127.0.0.1:{server.port}/am/")
        file = file_of(manager={"kind": "alertmanager"})
        many = [alert(number, labels={"run": f"r{number}", "gpu.model": "H100", "0": "x"}) for number in range(25)]
        facts = {many[0].key: AlertFacts(page="https://lake/runs/r0", sql="SELECT 1")}
        now = datetime.now(UTC)
        due = (notification("manager", *many), notification("manager", resolved=(many[0],), identity="n2"))
        results = send(file, *due, facts=facts)
    assert [each.error for each in results] == ["", ""]
    firing, resolved = server.requests
    assert firing.path == "/am/api/v2/alerts"
    assert firing.headers["Authorization"] == f"Basic {base64.b64encode(b'lake:pa55w0rd').decode()}"
    for request in (firing, resolved):
        jsonschema.validate(request.json, POSTABLE, format_checker=jsonschema.FormatChecker())
    assert len(firing.json) == 25
    first, last = firing.json[0], resolved.json[0]
    assert first["labels"] == last["labels"] == {
        "alertname": "died", "severity": "critical", "job": "ranklake", "run": "r0", "gpu_model": "H100", "_0": "x",
    }  # fmt: skip
    assert first["generatorURL"] == "https://lake/runs/r0"
    assert first["annotations"]["runbook_url"] == "https://wiki/died"
    assert first["startsAt"] == "2026-01-05T12:00:00.000Z"
    assert 1200 <= (datetime.fromisoformat(first["endsAt"]) - now).total_seconds() <= 1200 + PATIENT_S
    assert (datetime.fromisoformat(last["endsAt"]) - now).total_seconds() <= PATIENT_S


def garbled(handler, server):
    """Answer with what is not HTTP."""
    del server
    handler.wfile.write(b"\xff\x16\x03 nothing\r\n\r\n")


def drip_body(handler, server):
    """Take the message, and then send a body that never ends, a byte at a time."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not server.released.wait(0.2):
        handler.wfile.write(b"x")
        handler.wfile.flush()


def endless(handler, server):
    """Take the message, and then send as much as somebody reads."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not server.released.is_set():
        handler.wfile.write(b"x" * 100_000)


@pytest.mark.parametrize(
    ("respond", "error", "attempts"),
    [
        (close, "the connection was closed without an answer", 3),
        (garbled, "the answer is not HTTP", 3),
        (drip_body, "", 1),
        (endless, "", 1),
        (answer(200, b"{}", [("Content-Encoding", "gzip")]), "", 1),
        (answer(429, headers=[("Retry-After", "Fri, 31 Dec 2060 23:59:59 GMT")]), None, 1),
        (answer(500), "status 500", 3),
        (answer(401), "status 401", 1),
        (answer(429, headers=[("Retry-After", "3600")]), "status 429, to be tried again in 3600 s", 1),
        (answers(answer(503), answer(429, headers=[("Retry-After", "1")]), answer(200, b"x" * 10_000_000)), "", 3),
        (answer(302, headers=[("Location", "file:///etc/passwd")]), "status 302: redirects are not followed", 1),
        (answer(307, headers=[("Location", "http://localhost:1/")]), "status 307: redirects are not followed", 1),
    ],
    ids=[
        "closes",
        "garbled",
        "drips its body",
        "endless",
        "no gzip",
        "429 until a date",
        "500",
        "401",
        "429 for long",
        "recovers, 10 MB",
        "to a file",
        "to another host",
    ],
)
@pytest.mark.parametrize("kind", ["apprise", "alertmanager"])
def test_a_receiver_that_behaves_badly_is_named_without_its_url(url, kind, respond, error, attempts):
    with serve(respond) as server:
        address = webhook(server) if kind == "apprise" else f"http://{TOKEN}:pa55w0rd@127.0.0.1:{server.port}/{TOKEN}"
        url("hook", address)
        (result,) = send(file_of(hook={"kind": kind}), notification("hook"))
    assert result.attempts == attempts == len(server.requests)
    assert result.is_delivered == (error == "")
    assert result.duration_s < PATIENT_S / 2
    assert error is None or result.error == error
    assert result.is_delivered or result.error
    for secret in (TOKEN, "pa55w0rd", str(server.port), "127.0.0.1"):
        assert secret not in repr(result)


@pytest.mark.parametrize("status", [302, 307])
def test_a_redirect_takes_no_credential_to_another_host(url, status):
    with serve() as other, serve(answer(status, headers=[("Location", other.url)])) as server:
        url("hook", f"{webhook(server)}?+X-Secret=s3cret-header")
        url("manager", f"http://lake:pa55w0rd@127.0.0.1:{server.port}")
        file = file_of(hook={}, manager={"kind": "alertmanager"})
        results = send(file, notification("hook"), notification("manager"))
    assert [each.is_delivered for each in results] == [False, False]
    assert len(server.requests) == 2
    assert other.requests == []


NO_SERVICE = "the URL must begin with a service of apprise, such as mailto://"
WEBHOOK = (
    "no service of apprise has such an address: write any webhook as jsons://, and an Alertmanager and PagerDuty have "
    "kinds of their own"
)


@pytest.mark.parametrize(
    ("reference", "text", "error"),
    [
        ("env:HOOK", None, "$HOOK: the variable that should hold the URL is not set"),
        ("env:HOOK", " ", "$HOOK: the URL is empty"),
        ("file:{folder}/none", None, "{folder}/none: the URL cannot be read (No such file or directory)"),
        ("env:HOOK", "slakc://a/b/c", f"{NO_SERVICE}; did you mean 'slack'?"),
        ("env:HOOK", "s3cret-t0ken-alone", NO_SERVICE),
        ("env:HOOK", "https://example.org/s3cret-t0ken", WEBHOOK),
        ("env:HOOK", "slack://", "the URL of the service 'slack' lacks a part, or has a wrong one"),
        ("env:HOOK", "file:///etc/passwd", None),
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_used_is_one_line(tmp_path, monkeypatch, reference, text, error):
    if text is not None:
        monkeypatch.setenv("HOOK", text)
    file = file_of(hook={"url": reference.format(folder=tmp_path)})
    (result,) = send(file, notification("hook"))
    assert not result.is_delivered
    assert "\n" not in result.error
    assert error is None or result.error == error.format(folder=tmp_path)
    assert "t0ken" not in result.error


@pytest.mark.parametrize("text", ["ftp://127.0.0.1/", "no-url", "http://[", "http://127.0.0.1:99999/", "file:///etc/x"])
def test_what_is_no_address_of_an_alertmanager_is_one_line(url, text):
    url("manager", text)
    (result,) = send(file_of(manager={"kind": "alertmanager"}), notification("manager"))
    assert not result.is_delivered
    assert result.error


def test_a_certificate_that_nobody_signed_is_a_reason_and_not_tried_again(url, proxy, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    url("chat", f"slack://{SLACK}")
    url("pager", "https://R0UTINGK3Y@events.pagerduty.com/v2/enqueue")
    results = send(file_of(chat={}, pager={"kind": "pagerduty"}), notification("chat"), notification("pager"))
    assert {(each.error, each.attempts) for each in results} == {("TLS: self-signed certificate", 1)}


def test_the_heartbeat_goes_out_each_round_and_its_loss_is_a_result(url, monkeypatch):
    with serve(answers(answer(), answer(404))) as server:
        monkeypatch.setenv("BEAT", server.url + "/ping/uu1d")
        file = replace(file_of(hook={}), heartbeat=Heartbeat(url="env:BEAT"))
        rounds = [deliver_round(Evaluation(AlertState(), ()), file, NOON, timeout_s=PATIENT_S) for _ in range(2)]
    assert [(each.results[0].receiver, each.results[0].error) for each in rounds] == [
        ("heartbeat", ""),
        ("heartbeat", "status 404"),
    ]
    assert [request.path for request in server.requests] == ["/ping/uu1d"] * 2


def test_the_heartbeat_of_an_alertmanager_is_an_alert_that_always_fires(monkeypatch):
    with serve() as server:
        monkeypatch.setenv("BEAT", server.url)
        file = replace(file_of(hook={}), heartbeat=Heartbeat(url="env:BEAT", kind="alertmanager"))
        deliver((), file, timeout_s=PATIENT_S, has_heartbeat=True)
    (request,) = server.requests
    assert request.path == "/api/v2/alerts"
    jsonschema.validate(request.json, POSTABLE, format_checker=jsonschema.FormatChecker())
    assert request.json[0]["labels"]["alertname"] == "Watchdog"


def test_more_messages_than_a_round_has_are_left_for_the_next(url):
    with serve() as server:
        url("hook", webhook(server))
        url("manager", server.url)
        file = file_of(hook={}, manager={"kind": "alertmanager"})
        due = [notification("manager", identity=str(number)) for number in range(MOST_MESSAGES + 2)]
        results = send(file, *due)
    assert [each.is_delivered for each in results] == [True] * MOST_MESSAGES + [False] * 2
    assert {each.error for each in results[MOST_MESSAGES:]} == {"more than 50 messages in a round"}
    assert len(server.requests) == MOST_MESSAGES


def test_the_command_sends_a_test_message_and_exits_1_if_it_is_lost(url, tmp_path, capsys, monkeypatch):
    path = tmp_path / "alerts.yaml"
    path.write_text(
        "version: 1\nrules: {died: {source: incidents, owner: o, summary: s}}\nreceivers: {hook: {url: 'env:HOOK'}}\n"
        "routes: [{receivers: [hook]}]\n"
    )
    with serve(answers(answer(), answer(403))) as server:
        url("hook", webhook(server))
        assert command(["alerts", "send", "hook", "--rules", str(path)]) == 0
        assert "hook: delivered (1 attempt" in capsys.readouterr().out
        assert command(["alerts", "send", "hook", "--rules", str(path), "--json"]) == 1
        assert json.loads(capsys.readouterr().out)[0]["error"] == "status 403"
    assert "This is a test" in server.requests[0].json["message"]
    assert command(["alerts", "send", "hok", "--rules", str(path)]) == 2
    assert "did you mean 'hook'?" in capsys.readouterr().err
