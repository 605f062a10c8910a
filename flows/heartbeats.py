"""The automation of a Prefect server that marks runs Crashed whose worker was killed.

Nobody reports such a run's end, so it would stay Running and keep its deployment's slot for ever. Its process sends a
heartbeat every `FREQUENCY_S` seconds; where none comes for `WITHIN_S` seconds, the server ends the run.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from prefect.automations import AutomationCore
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture

from ranklake.flows.deployments import OWNED

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

FREQUENCY_S: Final = 30  # the shortest that Prefect takes
WITHIN_S: Final = 3.0 * FREQUENCY_S
ENVIRONMENT: Final = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(FREQUENCY_S)}
"""Variables of a run's process, so that it sends heartbeats."""
NAME: Final = "ranklake: end runs whose worker is gone"
_HEARTBEAT: Final = "prefect.flow-run.heartbeat"
_ENDS: Final = ("Completed", "Failed", "Cancelled", "Crashed")


def automation(within_s: float = WITHIN_S) -> AutomationCore:
    """Return the automation, for runs of all deployments that are ranklake's; at least 10 s, as Prefect wants."""
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
    """Create the automation on the server, or update what an earlier call made."""
    existing = await client.read_automations_by_name(NAME)
    if existing:
        await client.update_automation(existing[0].id, automation(within_s))
    else:
        await client.create_automation(automation(within_s))
