"""The flow of each stage: one factory, since they differ only in their work and its options."""

import asyncio
from inspect import Parameter, Signature, signature
from typing import Any, Final

from prefect import Flow, flow, task

from ranklake.flows.retrying import RETRIES
from ranklake.flows.settings import FlowSettings
from ranklake.flows.stages import CATALOG, CHECK, INGEST, ROLLUP, UPKEEP, Done, Stage


def stage_flow(stage: Stage) -> Flow[..., Any]:
    """Return the flow of a stage: one task, off the event loop, tried again when an outage may pass.

    Its parameters are ``settings`` and the options of the stage's work; it ends as `Stage.outcome` says.
    """

    async def work(settings: FlowSettings, **options: Any) -> Done:  # noqa: ANN401 - the stage's own
        return await asyncio.to_thread(lambda: stage.work(settings.context(), **options))

    _named(work, stage, "task")
    unit = task(name=stage.name, **RETRIES)(work)

    async def run(settings: FlowSettings, **options: Any) -> Done:  # noqa: ANN401 - likewise
        return stage.outcome(await unit(settings, **options))

    _named(run, stage, "flow")
    return flow(name=f"ranklake-{stage.name}")(run)


def _named(function: Any, stage: Stage, kind: str) -> None:  # noqa: ANN401 - functions have what mypy does not know of
    """Give a function the name, the text and the parameters that Prefect shows and validates."""
    function.__name__ = function.__qualname__ = f"{stage.name}_{kind}"
    function.__doc__ = stage.summary
    options = [
        one.replace(kind=Parameter.KEYWORD_ONLY)
        for one in signature(stage.work).parameters.values()
        if one.name not in {"context", "progress"}
    ]
    settings = Parameter("settings", Parameter.POSITIONAL_OR_KEYWORD, annotation=FlowSettings)
    function.__signature__ = Signature([settings, *options], return_annotation=Done)


FLOWS: Final[dict[str, Any]] = {one.name: stage_flow(one) for one in (INGEST, CHECK, ROLLUP, CATALOG, UPKEEP)}
ingest_flow = FLOWS["ingest"]
check_flow = FLOWS["check"]
rollup_flow = FLOWS["rollup"]
catalog_flow = FLOWS["catalog"]
upkeep_flow = FLOWS["upkeep"]
