"""Sends OTLP/HTTP requests in JSON to an OpenTelemetry collector or a compatible receiver.

Endpoint and headers come from OpenTelemetry's variables, so that tokens are not in arguments.
"""

import gzip
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ranklake.errors import RanklakeError
from ranklake.pipeline.alerts.send import Outcome, outcome_of, reason, without_account
from ranklake.pipeline.playbooks.post import NoRedirect
from ranklake.printable import printable
from ranklake.redaction.redact import redact_uri

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
HEADERS: Final = "OTEL_EXPORTER_OTLP_HEADERS"
TIMEOUT_S: Final = 10.0
_ATTEMPTS: Final = 5
_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 30.0
_ANSWER_BYTES: Final = 1 << 16


@dataclass(slots=True)
class OtlpSender:
    """Sends to one endpoint.

    Attributes
    ----------
    endpoint
        Base URL, such as http://localhost:4318; the signal's path is appended.
    headers
        Headers of each request.
    rejected
        Number of rejected items, by the receiver's reason.
    """

    endpoint: str
    headers: Mapping[str, str]
    rejected: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, endpoint: str, environ: Mapping[str, str]) -> "OtlpSender":
        """Return the sender to an endpoint. Raises `RanklakeError` for an invalid URL or headers."""
        try:
            parts = urlsplit(endpoint)
            is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url:
            hint = "name a collector, such as http://localhost:4318"
            raise RanklakeError("not a URL of a collector", where=redact_uri(endpoint), hint=hint)
        bare, headers = without_account(parts)
        headers |= {"Content-Type": "application/json", "Content-Encoding": "gzip", "User-Agent": "ranklake"}
        for item in filter(None, (part.strip() for part in environ.get(HEADERS, "").split(","))):
            name, equals, value = (unquote(part.strip()) for part in item.partition("="))
            if not equals or not name.isascii() or not name.isprintable() or not value.isprintable():
                raise RanklakeError("not name=value, with commas between them", where=HEADERS)
            headers[name] = value
        return cls(bare.rstrip("/"), headers)

    def send(self, signal: str, request: Mapping[str, Any]) -> None:
        """Send a request; transient errors are retried. Raises `RanklakeError` if it fails."""
        body = gzip.compress(json.dumps(request, separators=(",", ":")).encode(), 6, mtime=0)
        url = f"{self.endpoint}/v1/{signal}"
        outcome = Outcome()
        for attempt in range(_ATTEMPTS):
            outcome = self._post(url, body)
            if not outcome.is_transient or attempt == _ATTEMPTS - 1:
                break
            time.sleep(min(_LONGEST_WAIT_S, outcome.wait_s or _WAIT_S * 2**attempt))
        if outcome.error is not None:
            hint = f"is a collector there, with an OTLP receiver for HTTP? Its headers are in {HEADERS}"
            raise RanklakeError(f"not taken: {outcome.error}", where=redact_uri(url), hint=hint)

    def _post(self, url: str, body: bytes) -> Outcome:
        request = urllib.request.Request(url, body, dict(self.headers), method="POST")  # noqa: S310 - checked in `of`
        try:
            with urllib.request.build_opener(NoRedirect).open(request, timeout=TIMEOUT_S) as answer:
                self._note_rejected(answer.read(_ANSWER_BYTES))
                return Outcome()
        except urllib.error.HTTPError as error:
            return outcome_of(error.code, error.headers.get("Retry-After"))
        except (OSError, ValueError, http.client.HTTPException) as error:
            return Outcome(reason(error), is_transient=isinstance(error, OSError))

    def _note_rejected(self, answer: bytes) -> None:
        """Count the rejected items in an answer with OTLP's partial success."""
        try:
            partial = json.loads(answer or b"{}").get("partialSuccess") or {}
            reason_text = printable(str(partial.get("errorMessage") or "no reason given"))
            count = sum(int(value) for name, value in partial.items() if name.startswith("rejected"))
        except (ValueError, TypeError, AttributeError, RecursionError):
            return
        if count > 0:
            self.rejected[reason_text] = self.rejected.get(reason_text, 0) + count
