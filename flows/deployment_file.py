"""Writes ``docs/deploy/prefect.yaml`` from the deployments, for Prefect's own ``prefect deploy``.

python -m ranklake.flows.deployment_file PATH [--check]
"""

import sys
from pathlib import Path
from typing import Any, Final

import yaml

from ranklake.errors import RanklakeError
from ranklake.flows.deployments import ANCHOR, Deployment, deployments

CONFIG: Final = "/etc/ranklake/ranklake.toml"
POOL: Final = "ranklake"
_HEAD: Final = """\
# Written by `make deployments` from flows/deployments.py: change them there.
# `ranklake deploy --pool NAME` registers the same, and the limit of one driver a lake. By hand:
#   prefect work-pool create ranklake --type process
#   prefect --no-prompt deploy --all --prefect-file docs/deploy/prefect.yaml
# Each run reads the ranklake.toml that its parameters name, where it runs. No secret is a parameter.
"""


class StaleFileError(RanklakeError):
    """The file differs from the one generated from the deployments."""


def text() -> str:
    """Return the content of the file."""
    body = {"name": "ranklake", "pull": [], "deployments": [_entry(item) for item in deployments()]}
    return _HEAD + yaml.safe_dump(body, sort_keys=False, width=110)


def _entry(deployment: Deployment) -> dict[str, Any]:
    schedule = deployment.schedule
    when: dict[str, Any] = {"slug": deployment.name, "timezone": "UTC"}
    when |= {"cron": schedule.cron} if schedule.cron else {"interval": schedule.every_s}
    if schedule.every_s:
        when["anchor_date"] = ANCHOR.isoformat()
    return {
        "name": deployment.name,
        "entrypoint": deployment.entrypoint,
        "description": deployment.description,
        "tags": list(deployment.tags),
        "parameters": {"settings": {"config": CONFIG}, **deployment.parameters},
        "schedules": [when] if schedule else [],
        "concurrency_limit": {"limit": 1, "collision_strategy": "ENQUEUE"},
        "work_pool": {"name": POOL},
    }


def main(arguments: list[str]) -> None:
    """Write the file; with ``--check`` raise `StaleFileError` if it differs."""
    place = Path(arguments[0])
    if "--check" in arguments:
        if not place.is_file() or place.read_text(encoding="utf-8") != text():
            raise SystemExit(
                str(StaleFileError("is not what the deployments make", where=str(place), hint="make deployments"))
            )
        return
    place.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
