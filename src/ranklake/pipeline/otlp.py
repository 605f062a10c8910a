"""Send requests of OTLP/HTTP to OpenTelemetry's collector, or to whatever else takes its JSON form.

Endpoint and headers are those of OpenTelemetry's own variables, so that a token is in no argument.
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
        Base URL, such as http://localhost:4318; the signal's path goes behind it.
    headers
        Of each request.
    rejected
        Items that the receiver did not take, by its reason.
    """

    endpoint: str
    headers: Mapping[str, str]
    rejected: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, endpoint: str, environ: Mapping[str, str]) -> "OtlpSender":
        """Return the sender to an endpoint. Raises `RanklakeError` for what is no URL, or headers that are none."""
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
        """Send a request; what may pass is tried again. Raises `RanklakeError` where it is not taken."""
        body = gzip.compress(json.dumps(request, separators=(",", ":")).encode(), 6, mtime=0)
        url = f"{self.endpoint}/v1/{signal}"
        outcome = Outcome()
        for attempt in range(_ATTEMPTS):
            outcome = self._post(url, body)
            if not outcome.is_passing or attempt == _ATTEMPTS - 1:
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
            return Outcome(reason(error), is_passing=isinstance(error, OSError))

    def _note_rejected(self, answer: bytes) -> None:
        """Count what an answer says was not taken, as OTLP's partial success has it."""
        try:
            partial = json.loads(answer or b"{}").get("partialSuccess") or {}
            why = printable(str(partial.get("errorMessage") or "no reason given"))
            count = sum(int(value) for name, value in partial.items() if name.startswith("rejected"))
        except (ValueError, TypeError, AttributeError, RecursionError):
            return
        if count > 0:
            self.rejected[why] = self.rejected.get(why, 0) + count
