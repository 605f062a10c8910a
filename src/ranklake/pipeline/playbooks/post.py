"""Post JSON to a webhook: a program of its own, so that it can be ended, whatever the other side does.

Standard input: a line of JSON, ``{"url": …}``, and then the body. It follows no redirect: a URL of the operator's is
meant, not one that its answer names.
"""

import http.client
import json
import sys
import urllib.error
import urllib.request
from typing import IO, Any

_MOST_BYTES = 1900  # of an answer: with the status before it, all that is kept of a program's output


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Take a redirect for a failure."""

    def redirect_request(self, *_: Any) -> None:  # noqa: ANN401, D102 - urllib's
        return None


def post(source: IO[bytes]) -> int:
    """Post what standard input has; print the status, and the beginning of the answer where that is no success."""
    url = json.loads(source.readline())["url"]
    headers = {"Content-Type": "application/json", "User-Agent": "ranklake"}
    request = urllib.request.Request(url, source.read(), headers, method="POST")  # noqa: S310 - http(s) by its file
    try:
        with urllib.request.build_opener(NoRedirect).open(request) as answer:
            sys.stdout.write(f"status {answer.status}\n")
            return 0
    except urllib.error.HTTPError as error:
        sys.stdout.write(f"status {error.code}\n{error.read(_MOST_BYTES).decode(errors='replace')}\n")
    except (OSError, ValueError, http.client.HTTPException) as error:
        sys.stdout.write(f"not reached: {getattr(error, 'reason', None) or type(error).__name__}\n")
    return 1


if __name__ == "__main__":
    sys.exit(post(sys.stdin.buffer))
