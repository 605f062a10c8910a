"""Agent runs: what a node's agent records is a run, too, but trains nothing and holds no device."""

from typing import Final

AGENT_JOB: Final = "ranklake-agent"
"""Job of an agent's run."""


def is_agent_run(run: str) -> bool:
    """Whether a run is an agent's: rollups of runs leave it out, and so does whatever is counted or billed by run.

    >>> is_agent_run("ranklake-agent-node7-20260301T120000.000000")
    True
    >>> is_agent_run("ranklake-agents")
    False
    """
    return run.startswith(f"{AGENT_JOB}-")
