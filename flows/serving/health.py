"""Health of ``ranklake up``: looks at lake and server again and again, and answers ``/metrics`` and ``/healthz``.

    up ──every HealthSection.every_s──▶ ranklake metrics --json, forked from the warm process, killed where it hangs
       │                                   └──▶ samples in memory
       └─ no flow can run, at two looks ──▶ ranklake alerts round, without its heartbeat: people are told
    scrape ──▶ endpoint's thread ──▶ samples of the last look, and how the children are now

So a scrape reads no lake and waits for nobody, and a look that hangs costs a process that is killed.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from ranklake.capture.node.agent_metrics import CONTENT_TYPE
from ranklake.capture.node.endpoint import Answer
from ranklake.flows.serving.child import Child, kill_tree, start_on_leash
from ranklake.flows.serving.warm import run_command
from ranklake.pipeline.health.declaration import BY_NAME, Sample
from ranklake.pipeline.health.exposition import exposition
from ranklake.pipeline.health.problems import Problem, problems
from ranklake.printable import printable
from ranklake.redaction.redact import redact

if TYPE_CHECKING:
    from ranklake.config.settings import HealthSection

LIMIT_S: Final = 30
"""What a look is given; it is killed after twice as long."""
LATE: Final = 3
"""As many times `HealthSection.every_s` after a look, what it found says nothing of the present any more."""
_MOST_BYTES: Final = 1 << 22
ROUND_S: Final = 180
"""What a round of alerts is given: its receivers have 64 s, queries 30 s each."""
_FLOWS_NEED: Final = frozenset({"server", "worker", "prefect", "pool"})
"""Checks that mean, where they fail, that no flow runs: nor one that tells somebody."""


class Health:
    """What was found at the last look, and how the children are.

    Parameters
    ----------
    children
        By name: the server and the worker.
    home
        Folder of this ``ranklake up``.
    given
        Options of ``ranklake metrics`` and ``ranklake alerts round``: of which lake.
    environment
        Of the looks.
    section
        How often to look, and what is nearly full.
    """

    def __init__(
        self,
        children: Mapping[str, Child],
        home: Path,
        given: list[str],
        environment: Mapping[str, str],
        section: "HealthSection",
    ) -> None:
        self._children = children
        self._command = [*run_command(home, "ranklake"), *_LOOK, "--home", str(home), *given]
        self._round = [*_ROUND, *given]
        self._environment = dict(environment)
        self._section = section
        self._samples: list[Sample] = []
        self._looked = time.monotonic()
        self._looked_ts: float | None = None
        self._fault = "the first look is not over yet"
        self._was_out, self._untold = False, ""

    async def keep_looking(self) -> None:
        """Look again and again, until cancelled; tell receivers of alerts while flows cannot."""
        while True:
            await self.look()
            is_out = any(problem.check in _FLOWS_NEED for problem in self.problems())
            if is_out and self._was_out:  # what is started again by the next look is no outage
                await self._tell_receivers()
            elif not is_out:
                self._untold = ""
            self._was_out = is_out
            await asyncio.sleep(self._section.every_s)

    async def _tell_receivers(self) -> None:
        """Do a round of alerts in a process of its own; one that does not end is killed. The next look tries again."""
        process = await start_on_leash(self._round, self._environment, _MOST_BYTES)
        try:
            _, error = await asyncio.wait_for(process.communicate(), ROUND_S)
            self._untold = _last_line(error, process.returncode) if process.returncode else ""
        except TimeoutError:
            self._untold = f"a round of alerts did not end within {ROUND_S} s"
        finally:
            if process.returncode is None:
                kill_tree(process.pid)
                await process.wait()

    async def look(self) -> None:
        """Look once, in a process of its own; one that does not end is killed."""
        process = await start_on_leash(self._command, self._environment, _MOST_BYTES)
        try:
            out, error = await asyncio.wait_for(process.communicate(), 2 * LIMIT_S)
        except TimeoutError:
            self._fault = f"a look at the lake did not end within {2 * LIMIT_S} s"
            return
        finally:
            if process.returncode is None:
                kill_tree(process.pid)
                await process.wait()
        try:
            self._samples = [_sample(each) for each in json.loads(out)["samples"] if each["metric"] in BY_NAME]
        except (ValueError, KeyError, TypeError):
            self._fault = f"a look at the lake came to nothing: {_last_line(error, process.returncode)}"
            return
        self._looked, self._looked_ts, self._fault = time.monotonic(), time.time(), ""

    def answer(self, path: str) -> Answer | None:
        """Answer a request for ``/metrics`` or ``/healthz``: None for all else. Called in other threads."""
        name = path.partition("?")[0]
        if name == "/metrics":
            return Answer(CONTENT_TYPE, exposition([*self._own(), *self._samples]).encode())
        if name != "/healthz":
            return None
        wrong = self.problems()
        facts = {
            "healthy": not wrong,
            "looked": self._looked_ts,
            "problems": [{"check": each.check, "what": each.message, "since_s": each.since_s} for each in wrong],
        }
        status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
        return Answer("application/json", (json.dumps(facts) + "\n").encode(), status)

    def problems(self) -> list[Problem]:
        """Return what is wrong now with the children, and at the last look with the rest."""
        wrong = [Problem(name, f"the {name} {state}") for name, state in self._states() if state]
        if self._untold:
            wrong.append(Problem("alerts", f"nobody is told that no flow runs: {self._untold}"))
        age_s = time.monotonic() - self._looked
        if self._looked_ts is None:
            return [*wrong, Problem("look", self._fault, age_s)]
        wrong += problems(self._samples, self._section.disk_free_ratio)
        if age_s > LATE * self._section.every_s + LIMIT_S:
            wrong.append(Problem("look", self._fault or "the looks at the lake stopped", age_s))
        return wrong

    def _own(self) -> Iterator[Sample]:
        for name, state in self._states():
            yield Sample("child_up", float(not state), {"child": name})
            yield Sample("child_restarts_total", self._children[name].restarts, {"child": name})
        yield Sample("look_timestamp_seconds", self._looked_ts)

    def _states(self) -> Iterator[tuple[str, str]]:
        yield from ((name, child_state(child)) for name, child in self._children.items())


_LOOK: Final = ("metrics", "--json", "--limit-s", str(LIMIT_S))
_ROUND: Final = (sys.executable, "-m", "ranklake", "alerts", "round", "--no-heartbeat")


def child_state(child: Child) -> str:
    """Return what is wrong with a child, in words; empty while it runs."""
    process = child.process
    if process is None:
        return "is not started yet"
    if process.returncode is not None:
        return "is dead, and is started again"
    with contextlib.suppress(psutil.Error):
        if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
            return f"is stopped (kill -CONT {process.pid} lets it go on)"
    return ""


def _last_line(error: bytes, code: int | None) -> str:
    lines = error.decode(errors="replace").strip().splitlines()
    return printable(redact(lines[-1])) if lines else f"it ended with exit code {code}"


def _sample(facts: Mapping[str, Any]) -> Sample:
    return Sample(facts["metric"], facts["value"], facts["labels"], facts["reason"])
