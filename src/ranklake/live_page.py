"""Live page: the output of ``ranklake watch`` as a page that the agent serves on loopback.

Every user of the node could open it, so its address has a token that is only in the agent's log. The agent's own
process stays small: rows are decoded by a process of ``ranklake watch --json``, which runs while somebody views the
page (decision 028).
"""

import json
import re
import secrets
import subprocess
import sys
import threading
import time
from importlib.resources import files
from pathlib import Path
from typing import IO, Final
from urllib.parse import parse_qs, urlsplit

from ranklake.capture.node.endpoint import ADDRESS, Answer

EVERY_S: Final = 1.0
"""Time between two lines."""
IDLE_S: Final = 15.0
"""Time without requests after which the process is ended."""
NOTHING_YET: Final = "looking for the first time"
_WAIT_S: Final = 10.0


class Follower:
    """Follows a run on this node; starts at once.

    Parameters
    ----------
    root
        The local spool.
    run
        As for `ranklake watch`: the beginning of a name; empty for the latest run.
    """

    def __init__(self, root: Path, run: str) -> None:
        command = [sys.executable, "-m", "ranklake", "watch", "--json"]
        command += ["--interval-s", str(EVERY_S), "--local-dir", str(root), "--", run]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._news = threading.Condition()
        self._line, self._count, self._asked, self.ended_at = "", 0, time.monotonic(), float("inf")
        self._thread = threading.Thread(target=self._read, name="ranklake-follower", daemon=True)
        self._thread.start()

    def after(self, count: int) -> tuple[int, str]:
        """Return the latest line, as JSON, and its number; waits some seconds for a number other than `count`.

        The last line is the state at the end, or ``{"error": …}``.
        """
        with self._news:
            self._asked = time.monotonic()
            self._news.wait_for(lambda: self._count != count or self.ended_at < float("inf"), _WAIT_S)
            return self._count, self._line or json.dumps({"error": NOTHING_YET})

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._thread.join()

    def _read(self) -> None:
        out, err = self._process.stdout, self._process.stderr
        assert out is not None
        assert err is not None
        with self._process, out, err:
            for line in out:
                self._tell(line)
                if time.monotonic() - self._asked > IDLE_S:
                    self._process.terminate()
            message = _last_line(err)
        with self._news:
            if not self._line:
                self._line = json.dumps({"error": message or f"ended with status {self._process.returncode}"})
            self.ended_at = time.monotonic()
            self._news.notify_all()

    def _tell(self, line: str) -> None:
        with self._news:
            self._line, self._count = line, self._count + 1
            self._news.notify_all()


def _last_line(err: IO[str]) -> str:
    return (err.read().strip().splitlines() or [""])[-1]


MOST_RUNS: Final = 4
"""Most runs that are followed at once."""
_RESTART_S: Final = 10.0
_ASSETS: Final = {
    "": ("live.html", "text/html; charset=utf-8"),
    "shell.css": ("shell.css", "text/css; charset=utf-8"),
    "shell.js": ("shell.js", "text/javascript; charset=utf-8"),
    "live.js": ("live.js", "text/javascript; charset=utf-8"),
}
_PARTS: Final = "live_parts.html"
"""The part that the page shares with `ranklake ui`: a template without placeholders."""
_JSON: Final = "application/json"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{0,128}")


def _asset(name: str) -> bytes:
    """Return a file of the page, with the shared parts inserted."""
    html = files("ranklake.views.html")
    data = html.joinpath("assets", name).read_bytes()
    return data.replace(f"<!-- {_PARTS} -->\n".encode(), html.joinpath("templates", _PARTS).read_bytes())


class LivePage:
    """Answers the page's requests, and follows runs while they are requested.

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
        """Answer a request; None without the token, and for unknown paths."""
        asked = urlsplit(path)
        _, token, *rest = asked.path.split("/") if asked.path.startswith("/") else ("", "")
        if not secrets.compare_digest(token.encode(), self._token.encode()) or len(rest) != 1:
            return None
        if rest[0] in _ASSETS:
            name, kind = _ASSETS[rest[0]]
            return Answer(kind, _asset(name))
        return Answer(_JSON, self._look(parse_qs(asked.query)).encode()) if rest[0] == "live" else None

    def close(self) -> None:
        """End all followers."""
        with self._lock:
            for follower in self._followers.values():
                follower.close()
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
        """Return the follower of a run; restart one that ended some time ago, as there may be another attempt."""
        now = time.monotonic()
        with self._lock:
            for name, follower in list(self._followers.items()):
                if now - follower.ended_at > _RESTART_S:
                    del self._followers[name]
            if run not in self._followers:
                if len(self._followers) >= MOST_RUNS:
                    return None
                self._followers[run] = Follower(self._root, run)
            return self._followers[run]
