"""The flow of each stage, from one factory, since they differ only in work and options; and the pipeline's flow."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext, suppress
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from typing import Any, Final, ParamSpec, TypeVar, cast

from prefect import Flow, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler
from prefect.states import Failed, format_exception
from prefect.utilities.urls import url_for

from ranklake.errors import RanklakeError
from ranklake.flows import artifacts, overdue, run_names
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

Given = ParamSpec("Given")
Made = TypeVar("Made")


def unkept(run: Callable[Given, Coroutine[Any, Any, Made]]) -> Callable[Given, Coroutine[Any, Any, Made]]:
    """Have a flow's function end in a failed state rather than raise.

    Whoever called the flow meets the exception all the same, in the process in which it ran. No file has it: what a
    check saw may be somebody's, and no erasure looks into Prefect's storage unasked.
    """

    @wraps(run)
    async def ended(*args: Given.args, **options: Given.kwargs) -> Made:
        try:
            return await run(*args, **options)
        except Exception as error:  # noqa: BLE001 - whatever it is, Prefect would write it
            lost = lost_server(error)
            if lost is not None:
                _LOG.error("Prefect's server does not answer (%s); the next run goes on where this one stopped", lost)
            elif not isinstance(error, RanklakeError):
                _LOG.exception("the flow failed")
            message = f"Flow run encountered an exception: {format_exception(error)}"
            return cast("Made", Failed(data=error, message=message))  # Prefect takes a state for how it ended

    return ended


_LOG: Final = logging.getLogger(__name__)
# Results stay in memory, whatever Prefect's default is: what a check saw may be somebody's, and no erasure looks there.
_ONCE: Final[dict[str, Any]] = {"cache_policy": NO_CACHE, "persist_result": False}


def stage_flow(stage: Stage) -> Flow[..., Any]:
    """Return the flow of a stage: a task in a thread, tried again when an outage may pass, around those of its units.

    Its parameters are ``settings`` and the options of the stage's work; it ends as `Stage.outcome` says.
    """

    def work(settings: FlowSettings, **options: Any) -> tuple[Done, str, Links]:  # noqa: ANN401 - the stage's own
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
    unit = task(name=stage.name, task_run_name=stage.name, tags={"ranklake"}, **_ONCE, **RETRIES)(work)

    async def run(settings: FlowSettings, **options: Any) -> Done:  # noqa: ANN401 - likewise
        attach()
        await delete_superseded()
        async with one_driver(settings.context().lake_uri) if stage.drives else nullcontext():
            done, lake, links = await asyncio.to_thread(lambda: unit(settings, **options))
        await run_names.add(headline(stage.name, done)[:1])
        await artifacts.publish(stage.name, lake, done, links, options.get("kinds", ()))
        return stage.outcome(done)

    _describe_flow(run, stage, "flow")
    at_first = partial(run_names.at_first, stage.name)
    return flow(name=f"ranklake-{stage.name}", flow_run_name=at_first, persist_result=False)(unkept(run))


def _describe_flow(function: Any, stage: Stage, kind: str) -> None:  # noqa: ANN401 - functions have what mypy does not know of
    """Give a function the name, the text and the parameters that Prefect shows and validates."""
    function.__name__ = function.__qualname__ = f"{stage.name}_{kind}"
    options = [
        one.replace(kind=Parameter.KEYWORD_ONLY)
        for one in signature(stage.work).parameters.values()
        if one.name not in {"context", "progress"}
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
    "by": "Who applies it, for the audit trail; default: the account that runs this.",
}


def flow_docstring(summary: str, parameters: Iterable[str]) -> str:
    """Return a flow's docstring, from which Prefect takes what it says of each parameter."""
    return "\n".join([summary, "", "Args:", *(f"    {name}: {PARAMETERS[name]}" for name in parameters)])


FLOWS: Final[dict[str, Any]] = {one.name: stage_flow(one) for one in STAGES}
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
    attach()
    await delete_superseded()
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


_ROOMS: Final = logging.getLogger("ranklake")
_THREADS: Final = "Timeout of %s seconds configured for this task"


class RunLog(APILogHandler):
    """Sends records to the run in whose context they are made, and no others; without what looks like a credential."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record. Handlers after this one get it without credentials, too."""
        record.msg, record.args = redact(record.getMessage()), None
        if FlowRunContext.get() or TaskRunContext.get():
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text as it is stored."""
        return str(redact(super().format(record)))


def attach() -> None:
    """Let the rooms log into runs from now on, from the level on that Prefect's own loggers have."""
    if not any(isinstance(one, RunLog) for one in _ROOMS.handlers):
        _ROOMS.addHandler(RunLog())
        logging.getLogger("prefect.task_runs").addFilter(_is_news)
    if _ROOMS.level == logging.NOTSET:
        _ROOMS.setLevel(logging.getLogger("prefect.flow_runs").getEffectiveLevel())


def _is_news(record: logging.LogRecord) -> bool:
    """Drop what Prefect says of every task with a timeout that is no coroutine; `ranklake.flows.watching` says it."""
    return not str(record.msg).startswith(_THREADS)
