"""Registers deployments with a Prefect server. Idempotent; never changes deployments of others.

Deployments of an earlier version that this version cannot run are paused, because Prefect would end each run Crashed:
it refuses the parameters before the flow begins. They stay paused with their history until somebody registers them
again or deletes them.
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
"""Prefix of `RegisterResult.action` for a deployment that this version cannot run."""
_LAKE: Final = "lake:"
"""Prefix of the tag with a deployment's lake."""
_ONE: Final = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)


class ForeignDeploymentError(RanklakeError):
    """The name belongs to a deployment of others, or of another lake. Nothing was changed."""


class NoLakeError(ForeignDeploymentError):
    """The name belongs to a deployment of ranklake without a lake: ``prefect deploy`` registered it."""


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """A registered deployment: name, schedule, the action taken, and id; None in a dry run that would create it."""

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
    """Create or update deployments on a work pool, and the lake's concurrency limit.

    Other deployments of this lake that this version cannot run are paused, and are last in the list.
    Raises `ForeignDeploymentError` before any change if a name is taken.
    """
    prepared = [(item, await _runner_deployment(item, settings, pool, job_variables)) for item in deployments]
    limit = limit_name(lake)
    mark = f"{_LAKE}{limit}"
    existing = {deployment.full_name: await _existing(client, deployment.full_name) for _, deployment in prepared}
    for name, other in existing.items():
        if other is not None:
            _refuse_foreign(name, other, mark)
    if not dry_run:
        await client.upsert_global_concurrency_limit_by_name(limit, 1)
    results = []
    for item, deployment in prepared:
        before = existing[deployment.full_name]
        deployment.tags = [*item.tags, mark]
        id_ = before.id if before else None
        if not dry_run:
            id_ = await deployment.aapply()
            if before and not item.schedule:  # an update keeps schedules that it does not contain
                for old in before.schedules:
                    await client.delete_deployment_schedule(before.id, old.id)
        action = "updated" if before else "created"
        results.append(RegisterResult(deployment.full_name, str(item.schedule), action, id_))
    stale = await outdated_deployments(
        client, [OWNED, mark], {deployment.id for deployment in existing.values() if deployment}
    )
    if not dry_run:
        await pause(client, stale)
    return [*results, *(RegisterResult(item.name, "never", f"{PAUSED}: {item.reason}", item.id) for item in stale)]


async def _existing(client: "PrefectClient", name: str) -> "DeploymentResponse | None":
    try:
        return await client.read_deployment_by_name(name)
    except ObjectNotFound:
        return None


def _refuse_foreign(name: str, other: "DeploymentResponse", mark: str) -> None:
    """Raise `ForeignDeploymentError` for a deployment without our tag, or with the tag of another lake."""
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
    runner: RunnerDeployment = await flow.ato_deployment(
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
    runner.entrypoint = deployment.entrypoint
    runner.schedules = [*_schedules(deployment.name, deployment.schedule)]
    return runner


def _schedules(name: str, schedule: Schedule) -> list[DeploymentScheduleCreate]:
    if not schedule:
        return []
    if schedule.cron:
        return [DeploymentScheduleCreate(schedule=CronSchedule(cron=schedule.cron, timezone="UTC"), slug=name)]
    interval = IntervalSchedule(interval=timedelta(seconds=schedule.every_s), anchor_date=ANCHOR, timezone="UTC")
    return [DeploymentScheduleCreate(schedule=interval, slug=name)]


_OURS: Final = "ranklake.flows."
_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class OutdatedDeployment:
    """A deployment that this version cannot run, with the reason."""

    name: str
    id: UUID
    reason: str
    is_paused: bool


async def outdated_deployments(
    client: "PrefectClient", tags: "Collection[str]", except_ids: "Collection[UUID]"
) -> list[OutdatedDeployment]:
    """Return the deployments with all of these tags that this version cannot run, ordered by name."""
    chosen = DeploymentFilter(tags=DeploymentFilterTags(all_=sorted(tags)))
    result: list[DeploymentResponse] = []
    while page := await client.read_deployments(deployment_filter=chosen, limit=_PAGE, offset=len(result)):
        result += page
    pairs = [(item, _reason(item)) for item in result if item.id not in except_ids]
    return [
        OutdatedDeployment(item.name, item.id, reason, item.paused)
        for item, reason in sorted(pairs, key=lambda pair: pair[0].name)
        if reason
    ]


async def pause(client: "PrefectClient", deployments: "Collection[OutdatedDeployment]") -> None:
    """Pause deployments that are not paused yet."""
    for item in deployments:
        if not item.is_paused:
            await client.update_deployment(item.id, DeploymentUpdate(paused=True))


def _reason(deployment: "DeploymentResponse") -> str:
    """Return why this version cannot run a deployment; empty if it can, or if the flow is not ours."""
    module, _, attribute = (deployment.entrypoint or "").partition(":")
    if not module.startswith(_OURS):
        return ""
    try:
        flow = getattr(import_module(module), attribute, None)
    except ImportError:
        flow = None
    if not isinstance(flow, Flow):
        return f"there is no flow {deployment.entrypoint} any more"
    removed = sorted({*deployment.parameters} - {*flow.parameters.properties})
    return f"there is no parameter {', '.join(removed)} any more" if removed else ""
