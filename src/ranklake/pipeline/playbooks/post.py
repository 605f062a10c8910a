"""Program that posts JSON to a webhook; a separate process, so that it can always be killed.

Standard input: a line of JSON, ``{"url": …}``, and then the body. It does not follow redirects: only the operator's URL
is used.
"""

import http.client
import json
import sys
import urllib.error
import urllib.request
from typing import IO, Any

_MOST_BYTES = 1900  # bytes of an answer; with the status, all that is kept of a program's output


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treat a redirect as a failure."""

    def redirect_request(self, *_: Any) -> None:  # noqa: ANN401, D102 - urllib's
        return None


def post(source: IO[bytes]) -> int:
    """Post standard input; print the status, and, on failure, the beginning of the answer."""
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
