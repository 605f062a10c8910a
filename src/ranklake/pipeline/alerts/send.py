"""Program that sends messages to one receiver; a separate process, so that it can always be killed.

A server that sends a byte a minute, or a name server that never answers, outlasts the time limits of every library,
which count from the last byte; so a process with a deadline does it. Standard input is JSON:

    {"url": …, "timeout_s": …, "messages": [{"title": …, "text": …, "level": …}, {"body": …}, …]}

A message with a body is posted unchanged; others go through apprise. Each attempt is a line: ``2: delivered in 0.1 s``,
``2: lost in 3.1 s: status 500``, whose number is that of the message. No line contains a part of the URL; apprise's log
lines, which do, are suppressed.
"""

import base64
import contextlib
import http.client
import json
import logging
import os
import re
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from ranklake.errors import did_you_mean
from ranklake.pipeline.playbooks.post import NoRedirect

ATTEMPTS: Final = 3
"""Attempts per round for transient errors: no connection, 429, 5xx. The next round tries again."""
_WAIT_S: Final = 1.0
"""Seconds between the first two attempts; doubled afterwards."""
_LONGEST_WAIT_S: Final = 10.0
"""If Retry-After asks for more, the message is tried in the next round."""
_PASSING: Final = (408, 425, 429)
_BODY_BYTES: Final = 1 << 20
_BODY_S: Final = 3.0
"""Limits for reading the body of an answer; the status alone tells whether a message was accepted."""
_SMTP: Final = re.compile(r"\((\d{3}), b?(['\"])(.*?)\2\)")
_REASONS: Final[Mapping[str, str]] = {
    "RemoteDisconnected": "the connection was closed without an answer",
    "BadStatusLine": "the answer is not HTTP",
    "LineTooLong": "the answer is not HTTP",
    "HTTPException": "the answer is not HTTP",
    "WRONG_VERSION_NUMBER": "the server speaks no TLS there",
}
"""Reasons in plain words, by the name of an error."""


class Outcome(NamedTuple):
    """Result of an attempt: None, or the error; whether it is transient, and the delay before a retry."""

    error: str | None = None
    is_transient: bool = False
    wait_s: float = 0.0


def send_all(job: dict[str, Any]) -> Iterator[str]:
    """Send the messages of a job, each until it is delivered or lost; yield a line for each attempt."""
    by_apprise = None
    most = ATTEMPTS
    for number, message in enumerate(job["messages"]):
        if "body" in message:
            send: Callable[[dict[str, Any]], Outcome] = lambda each: post(job["url"], each["body"])  # noqa: E731
        else:
            by_apprise = by_apprise or AppriseSender(job["url"], job["timeout_s"])
            send = by_apprise.send
        for attempt in range(1, most + 1):
            began = time.monotonic()
            outcome = send(message)
            duration = f"{time.monotonic() - began:.3f}"
            if outcome.error is None:
                yield f"{number}: delivered in {duration} s"
                break
            yield f"{number}: lost in {duration} s: {outcome.error}"
            if not outcome.is_transient or outcome.wait_s > _LONGEST_WAIT_S:
                break
            if attempt < most:
                time.sleep(outcome.wait_s or _WAIT_S * 2 ** (attempt - 1))
        else:
            most = 1  # an unreachable receiver fails for the other messages, too


def post(url: str, body: str) -> Outcome:
    """Post JSON; follow no redirect. A user and a password in the URL are sent as basic authentication."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return Outcome("the URL is not valid")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return Outcome("the URL must begin with http:// or https:// and name a host")
    bare, authorization = without_account(parts)
    headers = {"Content-Type": "application/json", "User-Agent": "ranklake", **authorization}
    request = urllib.request.Request(bare, body.encode(), headers, method="POST")  # noqa: S310 - http(s), see above
    try:
        with urllib.request.build_opener(NoRedirect).open(request):
            return Outcome()
    except urllib.error.HTTPError as error:
        return outcome_of(error.code, error.headers.get("Retry-After"))
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Outcome(reason(error), is_transient=not isinstance(_root(error), ssl.SSLError))


def without_account(parts: SplitResult) -> tuple[str, dict[str, str]]:
    """Return a URL without its user and password, and the headers with them."""
    account, _, place = parts.netloc.rpartition("@")
    bare = urlunsplit(parts._replace(netloc=place))
    if not account:
        return bare, {}
    user, _, password = account.partition(":")
    pair = f"{unquote(user)}:{unquote(password)}".encode()
    return bare, {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def outcome_of(status: int, retry_after: str | None) -> Outcome:
    """Return the result for an answer's status."""
    if 200 <= status < 300:  # noqa: PLR2004 - as HTTP has it
        return Outcome()
    if 300 <= status < 400:  # noqa: PLR2004
        return Outcome(f"status {status}: redirects are not followed")
    wait_s = seconds_after(retry_after or "")
    text = f"status {status}{f', to be tried again in {wait_s:g} s' if wait_s else ''}"
    return Outcome(text, status in _PASSING or status >= 500, wait_s)  # noqa: PLR2004


def seconds_after(text: str) -> float:
    """Return the seconds to wait by a Retry-After, which has seconds or a date; 0 for other texts and past dates.

    >>> seconds_after("120"), seconds_after("soon"), seconds_after("Wed, 21 Oct 2015 07:28:00 GMT")
    (120.0, 0.0, 0.0)
    """
    if text.isdecimal() and text.isascii():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def reason(error: BaseException) -> str:
    """Return why a connection failed, without the address that libraries put into their messages."""
    root = _root(error)
    if isinstance(root, ssl.SSLCertVerificationError):
        return f"TLS: {root.verify_message}"
    if isinstance(root, ssl.SSLError):
        return f"TLS: {_REASONS.get(root.reason or '', root.reason) or type(root).__name__}"
    if isinstance(root, socket.gaierror):
        return "the host's name is not known"
    return getattr(root, "strerror", None) or _REASONS.get(type(root).__name__, type(root).__name__)


def _root(error: BaseException) -> BaseException:
    """Return the error of the operating system or of TLS at the bottom of wrapped errors."""
    rest, seen = [error], set[int]()
    while rest:
        current = rest.pop(0)
        if isinstance(
            current, ssl.SSLError | socket.gaierror | ConnectionError | TimeoutError | http.client.HTTPException
        ):
            return current
        seen.add(id(current))
        inner = (getattr(current, "reason", None), *current.args, current.__cause__, current.__context__)
        rest += [each for each in inner if isinstance(each, BaseException) and id(each) not in seen]
    return error


class AppriseSender:
    """A service of apprise's, by its URL, for several messages."""

    def __init__(self, url: str, timeout_s: float) -> None:
        import apprise
        import requests
        from apprise.manager_plugins import NotificationManager

        self._apprise, self._outcome, self._lines = apprise, Outcome(), []  # type: ignore[var-annotated]
        logger = logging.getLogger("apprise")
        logger.propagate = False
        logger.handlers = [_Lines(self._lines)]
        logger.setLevel(logging.DEBUG)
        self._timeout_s = timeout_s
        requests.Session.send = self._noting(requests.Session.send)  # type: ignore[method-assign]
        if "SSL_CERT_FILE" in os.environ:  # requests has variables of its own
            os.environ.setdefault("REQUESTS_CA_BUNDLE", os.environ["SSL_CERT_FILE"])
        self._url = url
        plugins: Any = NotificationManager  # not typed
        self._schemes: list[str] = sorted(plugins().schemas())

    def send(self, message: dict[str, Any]) -> Outcome:
        """Send a message."""
        if self._url.lower().startswith("pagerduty://"):
            return Outcome("PagerDuty needs a receiver of 'kind: pagerduty', which can resolve, too")
        service = self._service(message["level"])
        if service is None:
            return self._wrong_url()
        self._outcome, kinds = Outcome(), self._apprise.NotifyType
        self._lines.clear()
        # Apprise's own limit, mostly 4 s, would repeat messages to slow services.
        service.socket_read_timeout = service.socket_connect_timeout = self._timeout_s
        formats = self._apprise.NotifyFormat
        if service.notify_format == formats.MARKDOWN:  # there apprise turns similar text into mentions
            service.notify_format = formats.TEXT
        kind = {"page": kinds.FAILURE, "ticket": kinds.WARNING, "resolved": kinds.SUCCESS}
        service_list = self._apprise.Apprise()
        service_list.add(service)
        is_delivered = service_list.notify(
            title=message["title"],
            body=self._fitting(service, message),
            notify_type=kind.get(message["level"], kinds.INFO),
            body_format=formats.TEXT,
        )
        if is_delivered:
            return Outcome()
        if self._outcome.error:
            return self._outcome
        line = " ".join(self._lines[-1:])
        if refusal := _SMTP.search(line):
            status, _, text = refusal.groups()
            return Outcome(f"SMTP {status}: {text}"[:150], is_transient=status < "500")
        return Outcome(line[:150] or "not delivered", is_transient=True)

    def _fitting(self, service: Any, message: dict[str, Any]) -> str:  # noqa: ANN401 - a plugin's class
        """Cut a text to the service's limit: many refuse longer texts."""
        text: str = message["text"]
        if "overflow=" in self._url:
            return text
        most = service.body_maxlen - len(message["title"])
        if service.notify_format == self._apprise.NotifyFormat.HTML:  # HTML entities need more room
            most //= 2
        return text if len(text) <= most else f"{text[: max(0, most - 1)]}…"

    def _service(self, level: str) -> Any:  # noqa: ANN401 - a plugin's class
        """Return the service; for a page, with a high priority, unless the URL sets one."""
        asset = self._apprise.AppriseAsset(http_redirects=False, app_id="ranklake", app_desc="ranklake")
        if level == "page" and "priority=" not in self._url:
            url = f"{self._url}{'&' if '?' in self._url else '?'}priority=high"
            service = self._apprise.Apprise.instantiate(url, asset=asset)
            if service is not None and "priority" in service.template_args:
                return service
        return self._apprise.Apprise.instantiate(self._url, asset=asset)

    def _wrong_url(self) -> Outcome:
        scheme, sign, _ = self._url.partition("://")
        if scheme.lower() in {"http", "https"}:
            service = "json" if scheme.lower() == "http" else "jsons"
            kinds = "an Alertmanager and PagerDuty have kinds of their own"
            return Outcome(f"no service of apprise has such an address: write any webhook as {service}://, and {kinds}")
        if sign and scheme.lower() in self._schemes:
            return Outcome(f"the URL of the service {scheme!r} lacks a part, or has a wrong one")
        hint = did_you_mean(scheme, self._schemes) if sign else ""
        return Outcome(f"the URL must begin with a service of apprise, such as mailto://{f'; {hint}' if hint else ''}")

    def _noting(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Record the result of an exchange: apprise returns only True or False."""

        def noting(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as requests has it
            try:
                answer = send(*args, **{**kwargs, "stream": True})
                answer._content, answer._content_consumed = _body_of(answer), True  # noqa: SLF001 - no other way to limit it
            except Exception as error:
                is_transient = not isinstance(_root(error), ssl.SSLError)
                self._outcome = Outcome(reason(error), is_transient)
                raise
            self._outcome = outcome_of(answer.status_code, answer.headers.get("Retry-After"))
            return answer

        return noting


def _body_of(answer: Any) -> bytes:  # noqa: ANN401 - of requests
    """Return the body of an answer, or the part received in time. Errors are not raised."""
    parts: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(Exception):  # cut off, inconsistent with its headers, …
            for part in answer.raw.stream(1 << 14, decode_content=True):
                parts.append(part)
                if len(parts) << 14 >= _BODY_BYTES:
                    break

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(_BODY_S)
    return b"".join(parts)


class _Lines(logging.Handler):
    """Keep the log lines that may explain why a message was not sent."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.WARNING or text.startswith("Socket Exception"):
            self._lines.append(" ".join(text.removeprefix("Socket Exception: ").split()))


if __name__ == "__main__":
    for line in send_all(json.load(sys.stdin)):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
