"""Flow ``ranklake-pipeline``: the flows of the pipeline's steps, in order."""

from contextlib import suppress
from functools import partial
from typing import Any

from prefect import flow

from ranklake.flows import overdue, run_log, run_names, superseded
from ranklake.flows.announcing import ANNOUNCE
from ranklake.flows.one_driver import one_driver
from ranklake.flows.settings import PIPELINE_CONTEXT, FlowSettings
from ranklake.flows.stage_flows import FLOWS
from ranklake.flows.unkept import unkept
from ranklake.pipeline.calls import DamageError
from ranklake.pipeline.findings import FindingsError
from ranklake.pipeline.stages import (
    Done,
    Stage,
    Step,
    alerts_in,
    merge_stage_results,
    pipeline_outcome,
    round_of,
    steps,
)


@flow(name="ranklake-pipeline", flow_run_name=partial(run_names.at_first, "pipeline"), persist_result=False)
@unkept
async def pipeline_flow(settings: FlowSettings) -> dict[str, Any]:
    """Ingest, check facts, roll up, check rollups and refresh the catalog; where [report] names a place, write pages.

    A failed check stops nothing, nor does an unreadable segment, a damaged file, or a section of the report that cannot
    be made: they are findings. But the flow ends Failed for them, by an error of `ranklake.pipeline.calls`, once all is
    done.

    Args:
        settings: Which lake, and which ranklake.toml to read where the flow runs. Never holds a secret.
    """
    run_log.attach()
    await superseded.delete_superseded()
    context = settings.context()
    async with one_driver(context.lake_uri):
        done: list[tuple[Stage, Done]] = []
        left = steps(context)
        outside = PIPELINE_CONTEXT.set((settings, context))
        try:
            with round_of(context), context.held_workers():
                try:
                    while left:
                        step = left.pop(0)
                        done.append((step.stage, await _done(step, settings)))
                        context = context.with_lake()  # which the first step has made, if it was not there
                        PIPELINE_CONTEXT.set((settings, context))
                except Exception:
                    with suppress(Exception):  # what failed first is what is told
                        for step in alerts_in(left):
                            await _done(step, settings)
                    raise
        finally:
            PIPELINE_CONTEXT.reset(outside)
            await overdue.publish(context)
    return pipeline_outcome(merge_stage_results(done))


async def _done(step: Step, settings: FlowSettings) -> Done:
    """Return what a step's flow did, also where it ends Failed for what it found."""
    ANNOUNCE.get()(step.stage.name)
    try:
        done: Done = await FLOWS[step.stage.name](settings, **step.options)
    except (FindingsError, DamageError) as error:
        return error.done
    return done
