"""Live page: what ``ranklake watch`` shows, as a page that the agent serves on loopback.

Whoever may open a socket on the node could read it, so its address holds a token that only the agent's log tells.
"""

import json
import re
import secrets
import threading
import time
from importlib.resources import files
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from ranklake.capture.node.endpoint import ADDRESS, Answer
from ranklake.follower import Follower

MOST_RUNS: Final = 4
"""Runs that are followed at once."""
_AGAIN_S: Final = 10.0
_ASSETS: Final = {
    "": ("live.html", "text/html; charset=utf-8"),
    "shell.css": ("shell.css", "text/css; charset=utf-8"),
    "shell.js": ("shell.js", "text/javascript; charset=utf-8"),
    "live.js": ("live.js", "text/javascript; charset=utf-8"),
}
_JSON: Final = "application/json"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{0,128}")


class LivePage:
    """Answers the requests of the page, and follows the runs that it asks for, while it asks.

    Parameters
    ----------
    root
        The local spool.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._token = secrets.token_urlsafe(18)
        self._followers: dict[str, Follower] = {}
        self._lock = threading.Lock()

    def url(self, port: int) -> str:
        """Return the page's address."""
        return f"http://{ADDRESS}:{port}/{self._token}/"

    def answer(self, path: str) -> Answer | None:
        """Answer a request; None without the token, and for what is not there."""
        asked = urlsplit(path)
        _, token, *rest = asked.path.split("/") if asked.path.startswith("/") else ("", "")
        if not secrets.compare_digest(token.encode(), self._token.encode()) or len(rest) != 1:
            return None
        if rest[0] in _ASSETS:
            name, kind = _ASSETS[rest[0]]
            return Answer(kind, files("ranklake.views.html").joinpath("assets", name).read_bytes())
        return Answer(_JSON, self._look(parse_qs(asked.query)).encode()) if rest[0] == "live" else None

    def close(self) -> None:
        """End what follows."""
        with self._lock:
            for one in self._followers.values():
                one.close()
            self._followers.clear()

    def _look(self, query: dict[str, list[str]]) -> str:
        run, after = query.get("run", [""])[0], query.get("after", [""])[0]
        if not _NAME.fullmatch(run):
            return json.dumps({"error": "no name of a run"})
        follower = self._following(run)
        if follower is None:
            return json.dumps({"error": f"{MOST_RUNS} runs are followed already; close a page"})
        count, line = follower.after(int(after) if after.isdecimal() else -1)
        return f'{{"count":{count},"facts":{line.strip()}}}'

    def _following(self, run: str) -> Follower | None:
        """Return what follows a run. What ended some time ago begins anew: there may be another attempt, or run."""
        now = time.monotonic()
        with self._lock:
            for name, one in list(self._followers.items()):
                if now - one.ended_at > _AGAIN_S:
                    del self._followers[name]
            if run not in self._followers:
                if len(self._followers) >= MOST_RUNS:
                    return None
                self._followers[run] = Follower(self._root, run)
            return self._followers[run]
