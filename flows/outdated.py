"""Deployments of ours that this version cannot run any more: an earlier one registered them.

Prefect refuses the parameters of such a run before the flow begins, so that every run of it would end Crashed. They
are paused, with what they have kept, until somebody registers them again or deletes them.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final
from uuid import UUID

from prefect import Flow
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

if TYPE_CHECKING:
    from collections.abc import Collection

    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

_OURS: Final = "ranklake.flows."
_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class Outdated:
    """A deployment that cannot run, and why not."""

    name: str
    id: UUID
    reason: str
    is_paused: bool


async def outdated(client: "PrefectClient", tags: "Collection[str]", but: "Collection[UUID]") -> list[Outdated]:
    """Return those with all of these tags that this version cannot run, except for some, by name."""
    chosen = DeploymentFilter(tags=DeploymentFilterTags(all_=sorted(tags)))
    result: list[DeploymentResponse] = []
    while page := await client.read_deployments(deployment_filter=chosen, limit=_PAGE, offset=len(result)):
        result += page
    pairs = [(one, _reason(one)) for one in result if one.id not in but]
    return [
        Outdated(one.name, one.id, why, one.paused) for one, why in sorted(pairs, key=lambda pair: pair[0].name) if why
    ]


async def pause(client: "PrefectClient", deployments: "Collection[Outdated]") -> None:
    """Pause deployments; those that are paused stay so."""
    for item in deployments:
        if not item.is_paused:
            await client.update_deployment(item.id, DeploymentUpdate(paused=True))


def _reason(deployment: "DeploymentResponse") -> str:
    """Return why this version cannot run it; empty if it can, or where its flow is not ours."""
    module, _, attribute = (deployment.entrypoint or "").partition(":")
    if not module.startswith(_OURS):
        return ""
    try:
        flow = getattr(import_module(module), attribute, None)
    except ImportError:
        flow = None
    if not isinstance(flow, Flow):
        return f"there is no flow {deployment.entrypoint} any more"
    gone = sorted({*deployment.parameters} - {*flow.parameters.properties})
    return f"there is no parameter {', '.join(gone)} any more" if gone else ""
