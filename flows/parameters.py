"""What Prefect's UI says of the parameters of flows; those of `FlowSettings` say it themselves."""

from collections.abc import Iterable
from typing import Final

PARAMETERS: Final = {
    "settings": "Which lake, and which ranklake.toml to read where the flow runs. Never holds a secret.",
    "kinds": "Kinds of tables to check: fact, derived; default: all.",
    "again": "Check all partitions, whether they changed or not.",
    "with_scrub": "Also read every data file first and compare it with its digest.",
    "as_of": "The day on which a row must be past its period; default: today (UTC).",
    "plan": "Name of an approved retention plan, as `ranklake retain list` shows it.",
    "limit": "Artifacts to hash again at most.",
    "max_bytes": "Bytes to hash again at most, as recorded; one artifact is hashed however large it is.",
    "by": "Who applies it, for the audit trail; default: the account that runs this.",
}


def documented(summary: str, parameters: Iterable[str]) -> str:
    """Return a flow's docstring, from which Prefect takes what it says of each parameter."""
    return "\n".join([summary, "", "Args:", *(f"    {name}: {PARAMETERS[name]}" for name in parameters)])
