"""Registers deployments with a Prefect server. Idempotent; touches none that is not ours.

Deployments of ours that this version cannot run any more, since an earlier one registered them, are paused: Prefect
refuses the parameters of such a run before the flow begins, so that every run of it would end Crashed. They stay
paused, with what they have kept, until somebody registers them again or deletes them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Final
from uuid import UUID

from prefect import Flow
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.types.entrypoint import EntrypointType

from ranklake.errors import RanklakeError
from ranklake.flows.deployments import ANCHOR, OWNED, Deployment, Schedule
from ranklake.flows.one_driver import limit_name
from ranklake.flows.settings import FlowSettings

if TYPE_CHECKING:
    from collections.abc import Collection

    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

PAUSED: Final = "paused"
"""How `Registered.action` begins for one that this version cannot run."""
_LAKE: Final = "lake:"
"""How the tag begins that says whose a deployment is."""
_ONE: Final = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)


class ForeignDeploymentError(RanklakeError):
    """A deployment of that name is somebody else's, or another lake's. Nothing was changed."""


class NoLakeError(ForeignDeploymentError):
    """A deployment of that name is ours, and nobody knows of which lake: ``prefect deploy`` registered it."""


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """A deployment as the server has it: what was done to it, and its id (None in a dry run that would create it)."""

    name: str
    schedule: str
    action: str
    id: UUID | None


async def register(
    client: "PrefectClient",
    deployments: Iterable[Deployment],
    settings: FlowSettings,
    pool: str,
    job_variables: Mapping[str, object],
    *,
    lake: str,
    dry_run: bool = False,
) -> list[RegisterResult]:
    """Create or update deployments on a work pool, and the limit of one driver a lake.

    Others of this lake that this version cannot run any more are paused, and come last in the list.
    Raises `ForeignDeploymentError` before anything is written, where a name is taken.
    """
    made = [(one, await _runner_deployment(one, settings, pool, job_variables)) for one in deployments]
    limit = limit_name(lake)
    mark = f"{_LAKE}{limit}"
    there = {deployment.full_name: await _existing(client, deployment.full_name) for _, deployment in made}
    for name, other in there.items():
        if other is not None:
            _refuse_foreign(name, other, mark)
    if not dry_run:
        await client.upsert_global_concurrency_limit_by_name(limit, 1)
    done = []
    for item, deployment in made:
        before = there[deployment.full_name]
        deployment.tags = [*item.tags, mark]
        done_id = before.id if before else None
        if not dry_run:
            done_id = await deployment.aapply()
            if before and not item.schedule:  # an update leaves schedules alone that it does not speak of
                for old in before.schedules:
                    await client.delete_deployment_schedule(before.id, old.id)
        action = "updated" if before else "created"
        done.append(RegisterResult(deployment.full_name, str(item.schedule), action, done_id))
    stale = await outdated_deployments(client, [OWNED, mark], {one.id for one in there.values() if one is not None})
    if not dry_run:
        await pause(client, stale)
    return [*done, *(RegisterResult(one.name, "never", f"{PAUSED}: {one.reason}", one.id) for one in stale)]


async def _existing(client: "PrefectClient", name: str) -> "DeploymentResponse | None":
    try:
        return await client.read_deployment_by_name(name)
    except ObjectNotFound:
        return None


def _refuse_foreign(name: str, other: "DeploymentResponse", mark: str) -> None:
    """Raise `ForeignDeploymentError` for one that does not carry our tag, or carries that of another lake."""
    if OWNED not in other.tags:
        raise ForeignDeploymentError(
            "a deployment of this name is not ranklake's", where=name, hint="rename it, or give ours another by --name"
        )
    if not any(tag.startswith(_LAKE) for tag in other.tags):
        message = "`prefect deploy` registered it, and no lake is named there"
        raise NoLakeError(message, where=name, hint=f"prefect deployment delete {name}, and run this again")
    if mark not in other.tags:
        raise ForeignDeploymentError(
            "a deployment of this name is for another lake", where=name, hint="give these another name by --name"
        )


async def _runner_deployment(
    deployment: Deployment, settings: FlowSettings, pool: str, job_variables: Mapping[str, object]
) -> RunnerDeployment:
    module, _, attribute = deployment.entrypoint.partition(":")
    flow = getattr(import_module(module), attribute)
    made: RunnerDeployment = await flow.ato_deployment(
        name=deployment.name,
        parameters={"settings": asdict(settings), **deployment.parameters},
        description=deployment.description,
        tags=list(deployment.tags),
        concurrency_limit=_ONE,
        enforce_parameter_schema=True,
        entrypoint_type=EntrypointType.MODULE_PATH,
        work_pool_name=pool,
        job_variables=dict(job_variables),
    )
    made.entrypoint = deployment.entrypoint
    made.schedules = [*_schedules(deployment.name, deployment.schedule)]
    return made


def _schedules(name: str, schedule: Schedule) -> list[DeploymentScheduleCreate]:
    if not schedule:
        return []
    if schedule.cron:
        return [DeploymentScheduleCreate(schedule=CronSchedule(cron=schedule.cron, timezone="UTC"), slug=name)]
    every = IntervalSchedule(interval=timedelta(seconds=schedule.every_s), anchor_date=ANCHOR, timezone="UTC")
    return [DeploymentScheduleCreate(schedule=every, slug=name)]


_OURS: Final = "ranklake.flows."
_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class OutdatedDeployment:
    """A deployment that cannot run, and why not."""

    name: str
    id: UUID
    reason: str
    is_paused: bool


async def outdated_deployments(
    client: "PrefectClient", tags: "Collection[str]", but: "Collection[UUID]"
) -> list[OutdatedDeployment]:
    """Return those with all of these tags that this version cannot run, except for some, by name."""
    chosen = DeploymentFilter(tags=DeploymentFilterTags(all_=sorted(tags)))
    result: list[DeploymentResponse] = []
    while page := await client.read_deployments(deployment_filter=chosen, limit=_PAGE, offset=len(result)):
        result += page
    pairs = [(one, _reason(one)) for one in result if one.id not in but]
    return [
        OutdatedDeployment(one.name, one.id, why, one.paused)
        for one, why in sorted(pairs, key=lambda pair: pair[0].name)
        if why
    ]


async def pause(client: "PrefectClient", deployments: "Collection[OutdatedDeployment]") -> None:
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
