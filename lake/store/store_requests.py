"""Counts the requests of this process to S3-compatible stores: by kind, errors, retries and bytes.

    botocore ──an event for each HTTP request──▶ COUNTS ──difference over a stage──▶ the table `stage_runs`

An event costs microseconds, a request milliseconds. Requests of delta-rs cannot be counted, because its client emits no
events. It reads and writes the table logs, which are three quarters of the requests of a lake's first ingest.
"""

from collections import Counter
from functools import cache
from typing import Any, Final

COUNTS: Final[Counter[str]] = Counter()
"""Counts by column name of the table ``stage_runs``."""
COLUMNS: Final = (
    *("store_gets", "store_puts", "store_lists", "store_deletes", "store_errors", "store_retries"),
    *("store_read_bytes", "store_written_bytes"),
)
_FIRST_ERROR_STATUS: Final = 400
_EXPECTED: Final = frozenset({404, 409, 412})
"""HTTP statuses that do not count as errors: the object does not exist, or the name exists."""


def _column(event_name: str) -> str:
    """Return the column that counts a request, by the kind as which stores bill its operation."""
    operation = event_name.rpartition(".")[2]
    if operation.startswith("Delete"):
        return "store_deletes"
    if operation.startswith("List"):
        return "store_lists"
    return "store_gets" if operation.startswith(("Get", "Head", "Select")) else "store_puts"


def _before_call(**_: Any) -> None:  # noqa: ANN401 - botocore ships no types
    COUNTS["store_retries"] -= 1  # `_before_send` adds 1 for each request; the first request of a call is no retry


def _before_send(request: Any, event_name: str, **_: Any) -> None:  # noqa: ANN401 - likewise
    COUNTS["store_retries"] += 1
    COUNTS[_column(event_name)] += 1
    COUNTS["store_written_bytes"] += _length(request.headers)


def _after_response(response_dict: Any, exception: Any, event_name: str, **_: Any) -> None:  # noqa: ANN401 - likewise
    status = 0 if response_dict is None else int(response_dict["status_code"])
    is_read = response_dict is not None and not event_name.endswith(".HeadObject")
    COUNTS["store_read_bytes"] += _length(response_dict["headers"]) if is_read and status < _FIRST_ERROR_STATUS else 0
    COUNTS["store_errors"] += exception is not None or (status >= _FIRST_ERROR_STATUS and status not in _EXPECTED)


def _length(headers: Any) -> int:  # noqa: ANN401 - likewise
    text = headers.get("Content-Length", headers.get("content-length", "0"))
    text = text.decode() if isinstance(text, bytes) else str(text)
    return int(text) if text.isdigit() else 0


@cache
def counted_session() -> Any:  # noqa: ANN401 - likewise
    """Return a session that counts the requests of its clients, for ``session`` of `s3fs.S3FileSystem`."""
    from aiobotocore.session import AioSession  # type: ignore[import-untyped] # installed only for S3

    session = AioSession()
    session.register("before-call.s3", _before_call)
    session.register("before-send.s3", _before_send)
    session.register("response-received.s3", _after_response)
    return session


def take_counts() -> Counter[str]:
    """Return the counts of this process and reset them. Drivers add the counts of their workers."""
    counts = Counter(COUNTS)
    COUNTS.clear()
    return counts
