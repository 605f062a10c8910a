"""The flow of each stage: one factory, since they differ only in their work and its options."""

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Any, Final

from prefect import Flow, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.utilities.urls import url_for

from ranklake.flows import artifacts, run_log, run_names, superseded
from ranklake.flows.artifacts import Progress
from ranklake.flows.lineage import Lineage
from ranklake.flows.one_driver import one_driver
from ranklake.flows.pages import Links
from ranklake.flows.retrying import RETRIES
from ranklake.flows.settings import FlowSettings
from ranklake.flows.unkept import unkept
from ranklake.flows.watching import Watching
from ranklake.lake.plans.driver import watched_by
from ranklake.pipeline.headlines import headline
from ranklake.pipeline.stages import STAGES, Done, Stage
from ranklake.redaction.redact import redact_uri

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
        run_log.attach()
        await superseded.delete_superseded()
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
