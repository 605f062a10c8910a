"""Registers all deployments on an existing server, for the workers of a work pool.

If a worker is killed, nobody reports the end of its run, which would stay Running and block its deployment. Each run
therefore sends a heartbeat every `FREQUENCY_S` seconds, and an automation of the server marks runs without a heartbeat
for `WITHIN_S` seconds Crashed.
"""

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import httpx
from prefect.automations import AutomationCore
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from ranklake.errors import RanklakeError
from ranklake.flows.deployments import OWNED, Deployment
from ranklake.flows.register import RegisterResult, register
from ranklake.flows.settings import FlowSettings
from ranklake.redaction.redact import redact_uri

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

KINDS: Final = ("process", "docker", "kubernetes")
_NEEDS_IMAGE: Final = ("docker", "kubernetes")


class ServerError(RanklakeError):
    """The Prefect server cannot be reached, or refuses requests."""


class PoolError(RanklakeError):
    """The work pool does not exist, or cannot run these flows."""


@dataclass(frozen=True, slots=True)
class Target:
    """The work pool and the lake of the deployments.

    Attributes
    ----------
    pool
        Name of the work pool.
    image
        Container image, for pools whose workers start containers.
    lake
        URI of the lake, as the flows open it.
    """

    pool: str
    image: str
    lake: str


async def deploy_all(
    deployments: Iterable[Deployment], settings: FlowSettings, target: Target, *, dry_run: bool
) -> list[RegisterResult]:
    """Register deployments. Raises `ServerError`, `PoolError`, `ranklake.flows.register.ForeignDeploymentError`."""
    url = os.environ.get("PREFECT_API_URL", "")
    if not url:
        hint = "set it, such as http://prefect:4200/api, or serve here: ranklake up"
        raise ServerError("no Prefect server is named", where="PREFECT_API_URL", hint=hint)
    try:
        async with get_client() as client:
            pool = await _pool(client, target.pool)
            _check(pool.type, target)
            variables = {"env": ENVIRONMENT, **({"image": target.image} if target.image else {})}
            done = await register(
                client, deployments, settings, target.pool, variables, lake=target.lake, dry_run=dry_run
            )
            if not dry_run:
                await register_automation(client)
            return done
    except PrefectHTTPStatusError as error:
        reason = f"{error.response.status_code} {error.response.reason_phrase}"
        hint = "check PREFECT_API_URL, PREFECT_API_KEY and the server's version"
        raise ServerError(f"the server answers {reason}", where=redact_uri(url), hint=hint) from None
    except (httpx.HTTPError, OSError, RuntimeError) as error:
        hint = "start the server, or mend PREFECT_API_URL"
        raise ServerError("the server cannot be reached", where=redact_uri(url), hint=hint) from error


async def _pool(client: Any, name: str) -> Any:  # noqa: ANN401 - Prefect's
    try:
        return await client.read_work_pool(name)
    except ObjectNotFound:
        hint = f"create it: prefect work-pool create {shlex.quote(name)} --type process (or docker, kubernetes)"
        raise PoolError("there is no such work pool", where=name, hint=hint) from None


def _check(kind: str, target: Target) -> None:
    if kind not in KINDS:
        hint = f"create one of type {', '.join(KINDS)}: prefect work-pool create NAME --type process"
        raise PoolError(f"is a work pool of type {kind}", where=target.pool, hint=hint)
    if kind in _NEEDS_IMAGE and not target.image:
        raise PoolError(f"starts containers ({kind})", where=target.pool, hint="name an image with ranklake by --image")
    if kind not in _NEEDS_IMAGE and target.image:
        raise PoolError("starts processes, no containers", where=target.pool, hint="leave --image out")


FREQUENCY_S: Final = 30  # the shortest that Prefect takes
WITHIN_S: Final = 3.0 * FREQUENCY_S
ENVIRONMENT: Final = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(FREQUENCY_S)}
"""Variables of a run's process, so that it sends heartbeats."""
NAME: Final = "ranklake: end runs whose worker is gone"
_HEARTBEAT: Final = "prefect.flow-run.heartbeat"
_ENDS: Final = ("Completed", "Failed", "Cancelled", "Crashed")


def automation(within_s: float = WITHIN_S) -> AutomationCore:
    """Return the automation for runs of all our deployments; Prefect requires `within_s` to be at least 10."""
    return AutomationCore(
        name=NAME,
        description="Made by 'ranklake deploy'. The next run goes on where the lost one stopped.",
        trigger=EventTrigger(
            after={_HEARTBEAT},
            expect={_HEARTBEAT, *(f"prefect.flow-run.{end}" for end in _ENDS)},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{OWNED}"},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=within_s),
        ),
        actions=[
            ChangeFlowRunState(
                name=None, state=StateType.CRASHED, message="its process sends no heartbeat any more", force=True
            )
        ],
    )


async def register_automation(client: "PrefectClient", within_s: float = WITHIN_S) -> None:
    """Create the automation on the server, or update an existing one."""
    existing = await client.read_automations_by_name(NAME)
    if existing:
        await client.update_automation(existing[0].id, automation(within_s))
    else:
        await client.create_automation(automation(within_s))
