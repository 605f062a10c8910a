"""Worker: seal and send the segments of the agent's local spool once, in a short-lived process.

    agent's process: small, long-lived ──task as JSON on stdin────▶ worker: numpy, pyarrow, the store's client
                                       ◀──result as JSON on stdout──

Sealing and uploading take a second each minute, but need more memory than the agent may use. When the worker process
ends, all its memory is freed (decision 028). After a kill of the worker, another worker continues.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

from ranklake.capture.node.agent_metrics import GapCount, PassResult
from ranklake.capture.node.fallback import Fallback
from ranklake.capture.recording.breaker import BreakerState

_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """The task of a worker process.

    Attributes
    ----------
    root, spool, storage_options
        As in the agent. They are passed through a pipe, because other users can read command lines, and options may
        contain credentials.
    encryption_key, signing_key
        Sources of the keys.
    breaker_states
        States of the spools' breakers, by URI.
    read
        Position in bytes up to which each stream was read for gaps.
    fallback
        Spool for segments while the first one is unreachable.
    """

    root: str
    spool: str
    storage_options: Mapping[str, Any]
    encryption_key: str
    breaker_states: Mapping[str, BreakerState] = field(default_factory=dict)
    read: Mapping[str, int] = field(default_factory=dict)
    signing_key: str = ""
    fallback: Fallback = field(default_factory=Fallback)

    def to_json(self) -> str:
        """Return the task as JSON."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, raw: str) -> Self:
        """Parse a task. Raises `ValueError`, `TypeError`."""
        facts: dict[str, Any] = json.loads(raw)
        breaker_states = {uri: BreakerState(**state) for uri, state in facts.pop("breaker_states").items()}
        fallback = Fallback(**facts.pop("fallback"))
        return cls(**facts, breaker_states=breaker_states, fallback=fallback)


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """The result of a task.

    Attributes
    ----------
    done
        Counts of streams and segments.
    retries, sent_bytes
        Number of failed uploads, and size of the successful ones.
    breaker_states
        States of the breakers afterwards.
    gaps
        New gaps: table, reason, rows.
    read
        Position in bytes up to which each stream was read for gaps.
    failed
        Whether the worker process itself failed.
    """

    done: PassResult
    retries: int = 0
    sent_bytes: int = 0
    breaker_states: Mapping[str, BreakerState] = field(default_factory=dict)
    gaps: Sequence[tuple[str, str, int]] = ()
    read: Mapping[str, int] = field(default_factory=dict)
    failed: bool = False

    def to_json(self) -> str:
        """Return the result as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, raw: str) -> Self:
        """Parse a result. Raises `ValueError`, `TypeError`, `KeyError`."""
        facts: dict[str, Any] = json.loads(raw)
        done = facts.pop("done")
        breaker_states = {uri: BreakerState(**state) for uri, state in facts.pop("breaker_states").items()}
        return cls(PassResult(**{**done, "troubles": tuple(done["troubles"])}), **facts, breaker_states=breaker_states)


def run(task: WorkerTask, stop: threading.Event) -> WorkerResult:
    """Run a task: adopt streams of dead processes, and send all sealed segments."""
    # Not at the top: the agent's process imports this module, and must stay small.
    from ranklake.capture.node.agent import Agent
    from ranklake.capture.sealing.keys import SealingKeys

    parent = os.getppid()
    agent = Agent(
        Path(task.root),
        task.spool,
        task.storage_options,
        keys=SealingKeys(task.encryption_key, task.signing_key),
        breaker_states=task.breaker_states,
        gaps=GapCount({Path(folder): at for folder, at in task.read.items()}),
        fallback=task.fallback,
    )
    done = agent.look(lambda: stop.is_set() or os.getppid() != parent, pack_now=True)
    return WorkerResult(
        done,
        agent.figures.retries,
        agent.figures.sent_bytes,
        agent.breakers(),
        [(table, reason, rows) for (table, reason), rows in agent.gaps.rows.items()],
        {str(folder): at for folder, at in agent.gaps.read.items()},
    )


def send(task: WorkerTask, stop: threading.Event, grace_s: float) -> WorkerResult:
    """Run a task in a new process and return its result. Errors of the process are in the result, not raised.

    Parameters
    ----------
    stop
        When set, ends the process by SIGTERM, and after `grace_s` by SIGKILL.
    """
    command = [sys.executable, "-m", "ranklake.capture.node.worker"]
    request: str | None = task.to_json()
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
    except OSError as error:
        return WorkerResult(PassResult(troubles=(f"{task.root}: no process can be started: {error}",)), failed=True)
    deadline = float("inf")
    reply = ""
    while True:
        try:
            reply, _ = process.communicate(request, timeout=_POLL_S)
            break
        except subprocess.TimeoutExpired:
            request = None
        if stop.is_set() and deadline == float("inf"):
            process.terminate()
            deadline = time.monotonic() + grace_s
        if time.monotonic() > deadline:
            process.kill()
    try:
        return WorkerResult.from_json(reply)
    except (ValueError, TypeError, KeyError):
        problem = f"the process that sends ended with status {process.returncode}"
        troubles = () if stop.is_set() else (f"{task.root}: {problem}",)
        return WorkerResult(PassResult(troubles=troubles), failed=True)


def main() -> None:
    """Read a task from stdin, run it, and write the result to stdout."""
    stop = threading.Event()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        stop.set()

    signal.signal(signal.SIGTERM, ask_to_stop)
    sys.stdout.write(run(WorkerTask.from_json(sys.stdin.read()), stop).to_json())


if __name__ == "__main__":
    main()
