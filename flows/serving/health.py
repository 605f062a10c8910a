"""Health of ``ranklake up``: probes lake and server at an interval, and serves ``/metrics`` and ``/healthz``.

    up ──every HealthSection.every_s──▶ ranklake metrics --json, forked from the warm process, killed if it hangs
       │                                   └──▶ samples in memory
       └─ no flow can run, at two probes ──▶ ranklake alerts round, without its heartbeat: receivers are alerted
    scrape ──▶ endpoint's thread ──▶ samples of the last probe, and the present state of the children

So a scrape reads no lake and never waits, and a probe that hangs is killed.
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
"""Time limit of a probe in seconds; its process is killed after twice as long."""
LATE: Final = 3
"""Multiple of `HealthSection.every_s` after which the samples are out of date."""
_MOST_BYTES: Final = 1 << 22
ROUND_S: Final = 180
"""Time limit of a round of alerts in seconds: receivers have 64 s, queries 30 s each."""
_FLOWS_NEED: Final = frozenset({"server", "worker", "prefect", "pool"})
"""Checks whose failure means that no flow can run, not even the one that sends alerts."""


class Health:
    """Samples of the last probe, and the state of the children.

    Parameters
    ----------
    children
        Server and worker, by name.
    home
        Folder of this ``ranklake up``.
    given
        Options of ``ranklake metrics`` and ``ranklake alerts round`` that select the lake.
    environment
        Environment variables of the probes.
    section
        Interval of the probes, and the limit of free disk space.
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
        """Probe at an interval until cancelled; send alerts while flows cannot."""
        while True:
            await self.look()
            is_out = any(problem.check in _FLOWS_NEED for problem in self.problems())
            if is_out and self._was_out:  # a child that is restarted before the next probe is no outage
                await self._tell_receivers()
            elif not is_out:
                self._untold = ""
            self._was_out = is_out
            await asyncio.sleep(self._section.every_s)

    async def _tell_receivers(self) -> None:
        """Run a round of alerts in a process, which is killed after `ROUND_S` seconds. The next probe tries again."""
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
        """Probe once in a process, which is killed after twice `LIMIT_S` seconds."""
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
            self._samples = [_sample(facts) for facts in json.loads(out)["samples"] if facts["metric"] in BY_NAME]
        except (ValueError, KeyError, TypeError):
            self._fault = f"a look at the lake came to nothing: {_last_line(error, process.returncode)}"
            return
        self._looked, self._looked_ts, self._fault = time.monotonic(), time.time(), ""

    def answer(self, path: str) -> Answer | None:
        """Answer a request for ``/metrics`` or ``/healthz``; None for other paths. Called in other threads."""
        name = path.partition("?")[0]
        if name == "/metrics":
            return Answer(CONTENT_TYPE, exposition([*self._child_samples(), *self._samples]).encode())
        if name != "/healthz":
            return None
        problems = self.problems()
        facts = {
            "healthy": not problems,
            "looked": self._looked_ts,
            "problems": [{"check": item.check, "what": item.message, "since_s": item.since_s} for item in problems],
        }
        status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
        return Answer("application/json", (json.dumps(facts) + "\n").encode(), status)

    def problems(self) -> list[Problem]:
        """Return the present problems of the children, and those of the last probe."""
        result = [Problem(name, f"the {name} {state}") for name, state in self._states() if state]
        if self._untold:
            result.append(Problem("alerts", f"nobody is told that no flow runs: {self._untold}"))
        age_s = time.monotonic() - self._looked
        if self._looked_ts is None:
            return [*result, Problem("look", self._fault, age_s)]
        result += problems(self._samples, self._section.disk_free_ratio)
        if age_s > LATE * self._section.every_s + LIMIT_S:
            result.append(Problem("look", self._fault or "the looks at the lake stopped", age_s))
        return result

    def _child_samples(self) -> Iterator[Sample]:
        for name, state in self._states():
            yield Sample("child_up", float(not state), {"child": name})
            yield Sample("child_restarts_total", self._children[name].restarts, {"child": name})
        yield Sample("look_timestamp_seconds", self._looked_ts)

    def _states(self) -> Iterator[tuple[str, str]]:
        yield from ((name, child_state(child)) for name, child in self._children.items())


_LOOK: Final = ("metrics", "--json", "--limit-s", str(LIMIT_S))
_ROUND: Final = (sys.executable, "-m", "ranklake", "alerts", "round", "--no-heartbeat")


def child_state(child: Child) -> str:
    """Return the fault of a child in words; empty while it runs."""
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
