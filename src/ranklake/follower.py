"""Follower: a process of ``ranklake watch --json``, and the latest line that it wrote, for as long as somebody asks.

The agent's own process stays light: what decodes rows lives while a page is open (decision 028).
"""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Final

EVERY_S: Final = 1.0
"""Time between two lines."""
IDLE_S: Final = 15.0
"""How long nobody asks before the process is ended."""
NOTHING_YET: Final = "looking for the first time"
_WAIT_S: Final = 10.0


class Follower:
    """Follows a run on this node; it begins at once.

    Parameters
    ----------
    root
        The local spool.
    run
        As `ranklake watch` takes it: the beginning of a name will do; empty is the latest run.
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
        """Return the latest line, as JSON, and its number, once that is another than `count` or some seconds are over.

        An ended process has a last line: the state at the end, or ``{"error": …}``.
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
            said = _last_line(err)
        with self._news:
            if not self._line:
                self._line = json.dumps({"error": said or f"ended with status {self._process.returncode}"})
            self.ended_at = time.monotonic()
            self._news.notify_all()

    def _tell(self, line: str) -> None:
        with self._news:
            self._line, self._count = line, self._count + 1
            self._news.notify_all()


def _last_line(err: IO[str]) -> str:
    return (err.read().strip().splitlines() or [""])[-1]
