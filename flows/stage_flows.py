"""Prefect flows of all stages, and of the pipeline. One factory makes the stages' flows: only work and options differ.

The name of a run consists of the stage, the minute (UTC) and a count, such as
``ingest 2026-11-22T10:05 1,284 segments``.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from typing import Any, Final, ParamSpec, TypeVar, cast

from prefect import Flow, flow, get_client, task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler
from prefect.states import Failed, format_exception
from prefect.utilities.urls import url_for

from ranklake.errors import RanklakeError
from ranklake.flows import artifacts
from ranklake.flows.artifacts import Progress
from ranklake.flows.lineage import Lineage
from ranklake.flows.one_driver import delete_superseded, one_driver
from ranklake.flows.pages import Links
from ranklake.flows.retrying import RETRIES, lost_server
from ranklake.flows.settings import ANNOUNCE, PIPELINE_CONTEXT, FlowSettings
from ranklake.flows.watching import Watching
from ranklake.lake.plans.driver import watched_by
from ranklake.pipeline.calls import DamageError
from ranklake.pipeline.findings import FindingsError
from ranklake.pipeline.headlines import headline
from ranklake.pipeline.stages import (
    STAGES,
    Done,
    Stage,
    Step,
    alerts_in,
    merge_stage_results,
    pipeline_outcome,
    round_of,
    steps,
)
from ranklake.redaction.redact import redact, redact_uri

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def without_stored_exception(
    run: Callable[Arguments, Coroutine[Any, Any, Returned]],
) -> Callable[Arguments, Coroutine[Any, Any, Returned]]:
    """Return a flow function that ends in a Failed state where the given one raises.

    Prefect would write a raised exception to its result storage. The exception may quote personal data from a check,
    and an erasure does not search that storage. In this process the caller of the flow still gets the exception.
    """

    @wraps(run)
    async def run_to_state(*args: Arguments.args, **options: Arguments.kwargs) -> Returned:
        try:
            return await run(*args, **options)
        except Exception as error:  # noqa: BLE001 - Prefect would store any exception
            lost = lost_server(error)
            if lost is not None:
                _LOG.error("Prefect's server does not answer (%s); the next run goes on where this one stopped", lost)
            elif not isinstance(error, RanklakeError):
                _LOG.exception("the flow failed")
            message = f"Flow run encountered an exception: {format_exception(error)}"
            return cast("Returned", Failed(data=error, message=message))  # Prefect uses a returned state as the run's

    return run_to_state


_LOG: Final = logging.getLogger(__name__)
# Results are never stored: they may quote personal data, and an erasure does not search Prefect's storage.
_NOT_STORED: Final[dict[str, Any]] = {"cache_policy": NO_CACHE, "persist_result": False}


def _run_name(stage: str) -> str:
    """Return the name of the current flow run: the stage and the minute (UTC) that it was scheduled for."""
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    start = (run.expected_start_time if run else None) or datetime.now(UTC)
    return f"{stage} {start.astimezone(UTC):%Y-%m-%dT%H:%M}"


async def _extend_run_name(words: Sequence[str]) -> None:
    """Append words to the name of the current flow run. A server error is logged."""
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None or not words:
        return
    try:
        async with get_client() as client:
            await client.update_flow_run(run.id, name=" ".join([run.name, *words]))
    except Exception as error:  # noqa: BLE001 - the stage's work is done; a server error must not undo that
        _LOG.warning("the run keeps its name: %s", type(error).__name__)


def stage_flow(stage: Stage) -> Flow[..., Any]:
    """Return the flow of a stage. It runs the stage as one task in a thread; the stage's units are tasks within it.

    The task is retried after errors that may be temporary. Parameters of the flow are ``settings`` and the options of
    the stage's work. `Stage.outcome` decides whether the flow ends Failed.
    """

    def work(settings: FlowSettings, **options: Any) -> tuple[Done, str, Links]:  # noqa: ANN401 - they differ by stage
        began = time.monotonic()
        context = settings.context()
        lake = context.lake_uri
        _LOG.info("%s of %s begins", stage.name, redact_uri(lake))
        watching = Watching(Lineage(lake, context.config.spool.uri, context.contracts()))
        if "progress" in signature(stage.work).parameters:
            options["progress"] = Progress(stage.name, lake)
        with watched_by(watching):
            done = stage.run(context, **options)
        counts = ", ".join(headline(stage.name, done))
        _LOG.info("%s ends after %.1f s: %s", stage.name, time.monotonic() - began, counts)
        tables = {table: url_for("task-run", obj_id=run) or "" for table, run in watching.shown.items()}
        return done, lake, Links(tables, context.config.report.url)

    _describe_flow(work, stage, "task")
    unit = task(name=stage.name, task_run_name=stage.name, tags={"ranklake"}, **_NOT_STORED, **RETRIES)(work)

    async def run(settings: FlowSettings, **options: Any) -> Done:  # noqa: ANN401 - as above
        attach()
        await delete_superseded()
        async with one_driver(settings.context().lake_uri) if stage.drives else nullcontext():
            done, lake, links = await asyncio.to_thread(lambda: unit(settings, **options))
        await _extend_run_name(headline(stage.name, done)[:1])
        await artifacts.publish(stage.name, lake, done, links, options.get("kinds", ()))
        return stage.outcome(done)

    _describe_flow(run, stage, "flow")
    run_name = partial(_run_name, stage.name)
    make_flow = flow(name=f"ranklake-{stage.name}", flow_run_name=run_name, persist_result=False)
    return make_flow(without_stored_exception(run))


def _describe_flow(function: Any, stage: Stage, kind: str) -> None:  # noqa: ANN401 - mypy rejects setting __signature__
    """Set the name, docstring and signature of a function; Prefect shows them, and validates parameters by them."""
    function.__name__ = function.__qualname__ = f"{stage.name}_{kind}"
    options = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for parameter in signature(stage.work).parameters.values()
        if parameter.name not in {"context", "progress"}
    ]
    settings = Parameter("settings", Parameter.POSITIONAL_OR_KEYWORD, annotation=FlowSettings)
    function.__signature__ = Signature([settings, *options], return_annotation=Done)
    function.__doc__ = flow_docstring(stage.summary, function.__signature__.parameters)


PARAMETERS: Final = {
    "settings": "Which lake, and which ranklake.toml to read where the flow runs. Never holds a secret.",
    "kinds": "Kinds of tables to check: fact, derived; default: all.",
    "again": "Check all partitions, whether they changed or not.",
    "with_scrub": "Also read every data file first and compare it with its digest.",
    "as_of": "The day on which a row must be past its period; default: today (UTC).",
    "plan": "Name of an approved retention plan, as `ranklake retain list` shows it.",
    "limit": "Artifacts to hash again at most.",
    "max_bytes": "Bytes to hash again at most, as recorded; one artifact is hashed however large it is.",
    "by": "Who applies it, for the audit log; default: the account that runs this.",
}


def flow_docstring(summary: str, parameters: Iterable[str]) -> str:
    """Return a flow's docstring. Prefect shows its ``Args`` section as the description of each parameter."""
    return "\n".join([summary, "", "Args:", *(f"    {name}: {PARAMETERS[name]}" for name in parameters)])


FLOWS: Final[dict[str, Any]] = {stage.name: stage_flow(stage) for stage in STAGES}
ingest_flow = FLOWS["ingest"]
check_flow = FLOWS["check"]
rollup_flow = FLOWS["rollup"]
catalog_flow = FLOWS["catalog"]
report_flow = FLOWS["report"]
share_flow = FLOWS["share"]
playbooks_flow = FLOWS["playbooks"]
alerts_flow = FLOWS["alerts"]
upkeep_flow = FLOWS["upkeep"]
retention_plan_flow = FLOWS["retention_plan"]
retention_apply_flow = FLOWS["retention_apply"]
verify_artifacts_flow = FLOWS["verify_artifacts"]
backup_flow = FLOWS["backup"]
drill_flow = FLOWS["drill"]
doctor_flow = FLOWS["doctor"]


@flow(name="ranklake-pipeline", flow_run_name=partial(_run_name, "pipeline"), persist_result=False)
@without_stored_exception
async def pipeline_flow(settings: FlowSettings) -> dict[str, Any]:
    """Ingest, check facts, roll up, check rollups and refresh the catalog; where [report] names a place, write pages.

    The pipeline continues after findings: a failed check, an unreadable segment, a damaged file, or a section of the
    report that cannot be made. The flow then ends Failed with an error of `ranklake.pipeline.calls`, after all steps.

    Args:
        settings: Which lake, and which ranklake.toml to read where the flow runs. Never holds a secret.
    """
    attach()
    await delete_superseded()
    context = settings.context()
    async with one_driver(context.lake_uri):
        results: list[tuple[Stage, Done]] = []
        remaining = steps(context)
        token = PIPELINE_CONTEXT.set((settings, context))
        try:
            with round_of(context), context.held_workers():
                try:
                    while remaining:
                        step = remaining.pop(0)
                        results.append((step.stage, await _run_step(step, settings)))
                        context = context.with_lake()  # the first step creates a missing lake
                        PIPELINE_CONTEXT.set((settings, context))
                except Exception:
                    with suppress(Exception):  # report the first error
                        for step in alerts_in(remaining):
                            await _run_step(step, settings)
                    raise
        finally:
            PIPELINE_CONTEXT.reset(token)
            await artifacts.publish_overdue(context)
    return pipeline_outcome(merge_stage_results(results))


async def _run_step(step: Step, settings: FlowSettings) -> Done:
    """Run the flow of a step and return its result, also where it ends Failed because of findings."""
    ANNOUNCE.get()(step.stage.name)
    try:
        done: Done = await FLOWS[step.stage.name](settings, **step.options)
    except (FindingsError, DamageError) as error:
        return error.done
    return done


_RANKLAKE_LOG: Final = logging.getLogger("ranklake")
_TIMEOUT_MESSAGE: Final = "Timeout of %s seconds configured for this task"


class RunLog(APILogHandler):
    """Sends log records to the flow or task run that logged them, with credentials redacted.

    Records from outside a run are not sent.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record. The record itself is redacted, so later handlers get the redacted text, too."""
        record.msg, record.args = redact(record.getMessage()), None
        if FlowRunContext.get() or TaskRunContext.get():
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the text that the server stores, with credentials redacted."""
        return str(redact(super().format(record)))


def attach() -> None:
    """Send log records of ranklake to the current run, from the level of Prefect's own loggers on."""
    if not any(isinstance(handler, RunLog) for handler in _RANKLAKE_LOG.handlers):
        _RANKLAKE_LOG.addHandler(RunLog())
        logging.getLogger("prefect.task_runs").addFilter(_is_no_timeout_message)
    if _RANKLAKE_LOG.level == logging.NOTSET:
        _RANKLAKE_LOG.setLevel(logging.getLogger("prefect.flow_runs").getEffectiveLevel())


def _is_no_timeout_message(record: logging.LogRecord) -> bool:
    """Return False for the message that Prefect logs for each sync task with a timeout: every unit is one."""
    return not str(record.msg).startswith(_TIMEOUT_MESSAGE)
