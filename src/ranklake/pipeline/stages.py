"""The stages of the pipeline, in order. The command and the flows use this table.

A stage calls a plain function of `ranklake.pipeline.calls`; `ranklake.flows.stage_flows` makes its flow.

    round_of(context) ──▶ carry_out(stage …) a row each, in memory ──▶ one commit at the end, also after errors

Each run of a stage gives a row of ``stage_runs`` with its outcome, duration, CPU time and requests. A stage outside of
a round is its own round. If a row cannot be written, the stage still succeeds.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from uuid import uuid4

import psutil

from ranklake.config import ConfigError
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.lake.plans.plan import append_own
from ranklake.lake.store.store_requests import COLUMNS, COUNTS
from ranklake.pipeline.alerts.stage import alerts_once, raise_if_lost
from ranklake.pipeline.backups import backup_once, drill_once, refuse_failed_backups
from ranklake.pipeline.calls import (
    ChecksFailedError,
    catalog_once,
    check_once,
    doctor_once,
    ingest_once,
    playbooks_once,
    refuse_altered,
    refuse_broken,
    refuse_damage,
    refuse_failed_steps,
    refuse_failure,
    refuse_unreadable,
    refuse_unsound,
    report_once,
    retention_apply_once,
    retention_plan_once,
    rollup_once,
    share_once,
    slo_once,
    upkeep_once,
    verify_artifacts_once,
)
from ranklake.pipeline.headlines import headline
from ranklake.quality.results import merged_summary

Done = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """Work with a schedule of its own, or as a step of the pipeline.

    Attributes
    ----------
    name
        Name of its task; its flow is ``ranklake-<name>``.
    summary
        Its work, in a sentence.
    work
        Function that takes a context and options by keyword, and returns plain JSON values.
    outcome
        Returns the result, or raises findings, so that the flow ends Failed when the command exits 1.
    drives
        Whether it may apply plans, so that only one run at a time is allowed on a lake.
    """

    name: str
    summary: str
    work: Callable[..., Done]
    outcome: Callable[[Done], Done] = refuse_damage
    drives: bool = True

    def run(self, context: Context, **options: Any) -> Done:  # noqa: ANN401 - they differ by stage
        """Do the work, record its outcome, and send OpenLineage events if configured."""
        return carry_out(self, context, lambda: self._emitting(context, **options))

    def _emitting(self, context: Context, **options: Any) -> Done:  # noqa: ANN401 - as above
        if not context.config.openlineage.url:
            return self.work(context, **options)
        try:
            # Imports an extra and a parser of SQL, only needed for events.
            from ranklake.pipeline.openlineage import emitted
        except ModuleNotFoundError as error:
            hint = "pip install 'ranklake[openlineage]'"
            raise ConfigError("the OpenLineage client is not installed", where="openlineage.url", hint=hint) from error
        with emitted(context, self.name) as run:
            run.done = self.work(context, **options)
        return run.done


@dataclass(frozen=True, slots=True)
class Step:
    """A stage with options as a step of the pipeline; `is_wanted` tells whether it is configured."""

    stage: Stage
    options: Mapping[str, object] = field(default_factory=dict)
    is_wanted: Callable[[Context], bool] = lambda _: True


INGEST: Final = Stage(
    "ingest", "Bring new segments from the spool into the lake, exactly once.", ingest_once, refuse_unreadable
)
CHECK: Final = Stage("check", "Run the contracts' checks on new partitions.", check_once, refuse_failure)
ROLLUP: Final = Stage("rollup", "Recompute the rollups whose inputs changed.", rollup_once)
CATALOG: Final = Stage("catalog", "Bring the catalog's tables up to date.", catalog_once)
SLO: Final = Stage("slo", "Evaluate the service level objectives: error budgets, burn rates, alerts.", slo_once)
REPORT: Final = Stage(
    "report", "Write the report's pages that changed, to the place that [report] names.", report_once, refuse_broken
)
SHARE: Final = Stage(
    "share", "Bring copies of what roles see up to date, and drop those whose role is gone.", share_once
)
PLAYBOOKS: Final = Stage(
    "playbooks",
    "Follow the playbooks that [playbooks] names: tell, check, propose, and do what they allow about incidents.",
    playbooks_once,
    refuse_failed_steps,
    drives=False,  # a command may take an hour; concurrent runs are safe, since steps are claimed
)
ALERTS: Final = Stage(
    "alerts",
    "Evaluate the rules of alerts, and tell the receivers that [alerts] names what began and what ended.",
    alerts_once,
    raise_if_lost,
    drives=False,  # long stages must not delay alerts; of two concurrent rounds, one sends
)
UPKEEP: Final = Stage(
    "upkeep",
    "Merge small files, shorten the logs and vacuum unreferenced files. With a scrub, read every data file first. "
    "Schedule it by itself, such as once a day: the pipeline's ingest merges by itself.",
    upkeep_once,
)
RETENTION_PLAN: Final = Stage(
    "retention_plan",
    "Write down what is past its retention period, as a plan that waits for somebody's approval. It removes nothing.",
    retention_plan_once,
)
RETENTION_APPLY: Final = Stage(
    "retention_apply",
    "Remove what an approved plan names. The lake holds the approval: without one, or by the approver, nothing goes.",
    retention_apply_once,
)
VERIFY_ARTIFACTS: Final = Stage(
    "verify_artifacts",
    "Hash recorded artifacts again, those first that wait longest, and compare them with what was recorded.",
    verify_artifacts_once,
    refuse_altered,
    drives=False,  # it reads for hours, and writes only to the audit log
)
BACKUP: Final = Stage(
    "backup",
    "Back the lake up to the places that [backup] names, where the newest backup is older than its every_h.",
    backup_once,
    refuse_failed_backups,
    drives=False,  # it only reads the lake
)
DRILL: Final = Stage(
    "drill",
    "Restore the newest backup of each place that [backup] names into a scratch folder, verify it, and measure that.",
    drill_once,
    refuse_failed_backups,
    drives=False,  # it only reads the lake
)
DOCTOR: Final = Stage(
    "doctor",
    "Look at everything that the pipeline depends on, and end Failed where something is wrong.",
    doctor_once,
    refuse_unsound,
    drives=False,  # it changes nothing, and must run while others hang
)
STAGES: Final = (
    *(INGEST, CHECK, ROLLUP, CATALOG, SLO, PLAYBOOKS, ALERTS, REPORT, SHARE, UPKEEP, RETENTION_PLAN, RETENTION_APPLY),
    *(VERIFY_ARTIFACTS, BACKUP, DRILL, DOCTOR),
)

PIPELINE: Final = (
    Step(INGEST),
    Step(CHECK, {"kinds": ("fact",)}),
    Step(ROLLUP),
    Step(CHECK, {"kinds": ("derived",)}),
    Step(CATALOG),
    Step(PLAYBOOKS, is_wanted=lambda context: bool(context.config.playbooks.files)),
    Step(SLO),
    Step(ALERTS, is_wanted=lambda context: bool(context.config.alerts.file or context.config.alerts.notify)),
    Step(SHARE, is_wanted=lambda context: bool(context.config.shares.roles)),
    Step(REPORT, is_wanted=lambda context: bool(context.config.report.out)),
)
"""Facts are checked before they are rolled up, derived tables after that. Pages come last, since they show all
results."""


def steps(context: Context) -> list[Step]:
    """Return the configured steps of the pipeline, in order."""
    return [step for step in PIPELINE if step.is_wanted(context)]


def merge_stage_results(results: Iterable[tuple[Stage, Done]]) -> Done:
    """Return the results of the pipeline's steps, by stage; a stage's two steps are merged."""
    by_stage: Done = {}
    for stage, result in results:
        by_stage[stage.name] = merged_summary(by_stage[stage.name], result) if stage.name in by_stage else result
    return by_stage


def pipeline_once(context: Context) -> Done:
    """Run the pipeline's steps in order; failed checks do not stop it.

    An error ends the pipeline, except that alerts still run: they must report lasting and overdue problems.
    """
    results: list[tuple[Stage, Done]] = []
    remaining = steps(context)
    with round_of(context), context.held_workers():
        try:
            while remaining:
                step = remaining.pop(0)
                results.append((step.stage, step.stage.run(context, **step.options)))
                context = context.with_lake()  # created by the first step, if necessary
        except Exception:
            with suppress(Exception):  # the first error is raised
                for step in alerts_in(remaining):
                    step.stage.run(context, **step.options)
            raise
    return merge_stage_results(results)


def alerts_in(remaining: Iterable[Step]) -> list[Step]:
    """Return the step of alerts, if it was not reached."""
    return [step for step in remaining if step.stage is ALERTS]


def pipeline_outcome(done: Done) -> Done:
    """Return the pipeline's result. Raises an error of `ranklake.pipeline.calls` for findings."""
    if not done[CHECK.name]["passed"]:
        raise ChecksFailedError(done, done[CHECK.name])
    refuse_unreadable(done[INGEST.name])
    refuse_broken(done.get(REPORT.name, {}))
    refuse_failed_steps(done.get(PLAYBOOKS.name, {}))
    raise_if_lost(done.get(ALERTS.name, {}))
    return refuse_damage(done)


TABLE: Final = "stage_runs"
_S3: Final = ("s3://", "s3a://")
_LOG: Final = logging.getLogger(__name__)
Rows = list[dict[str, Any]]
_ROUND: ContextVar[tuple[str, Rows] | None] = ContextVar("ranklake_round", default=None)


class JudgedStage(Protocol):
    """Interface of a stage: `ranklake.pipeline.stages.Stage`, which imports this module."""

    @property
    def name(self) -> str:
        """Name of the stage."""

    @property
    def outcome(self) -> Callable[[Done], Done]:
        """Returns the result, or raises findings."""


@contextmanager
def round_of(context: "Context") -> Iterator[None]:
    """Collect runs of stages in the block, and commit them at its end; a nested round joins the outer one."""
    if _ROUND.get() is not None:
        yield
        return
    rows: Rows = []
    token = _ROUND.set((uuid4().hex[:12], rows))
    try:
        yield
    finally:
        _ROUND.reset(token)
        _write(context, rows)


def carry_out(stage: JudgedStage, context: "Context", work: Callable[[], Done]) -> Done:
    """Do a stage's work, and record its outcome. Raises what the work raises; findings are not raised here."""
    with round_of(context):
        round_ = _ROUND.get()
        assert round_ is not None
        began, ts, cpu_s, requests = time.monotonic(), datetime.now(UTC), _cpu_s(), Counter(COUNTS)
        row: dict[str, Any] = {"ts": ts, "stage": stage.name, "round": round_[0], "outcome": "ok", "date": ts.date()}
        try:
            result = work()
        except Exception as error:
            row |= {"outcome": "failed", "error": type(error).__name__}
            raise
        else:
            row["headline"] = ", ".join(headline(stage.name, result)) or None
            try:
                stage.outcome(result)
            except RanklakeError as error:
                row |= {"outcome": "findings", "error": type(error).__name__}
            return result
        finally:
            config = context.config
            is_here = not config.dask.address
            row["duration_s"] = time.monotonic() - began
            row["cpu_s"] = max(_cpu_s() - cpu_s, 0.0) if is_here else None
            is_counted = is_here and any(uri.startswith(_S3) for uri in (config.lake.uri, config.spool.uri))
            row |= {name: COUNTS[name] - requests[name] if is_counted else None for name in COLUMNS}
            round_[1].append(row)


def _cpu_s() -> float:
    """Return the CPU time of this process and its descendants, including ended ones."""
    me = psutil.Process()
    total = sum(me.cpu_times()[:4])  # user and system time, and those of ended children
    for child in me.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.Error:  # it has just ended
            continue
    return total


def _write(context: "Context", rows: Rows) -> None:
    if not rows:
        return
    try:
        append_own(context.open_lake().tables, TABLE, lambda _: rows)
    except (RanklakeError, OSError) as error:  # the stages' work is committed already
        _LOG.warning("how stages went is not kept: %s", type(error).__name__)
