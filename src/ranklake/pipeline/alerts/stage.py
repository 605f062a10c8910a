"""The stage ``alerts``: a round under the configured rules."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from ranklake.context import Context
from ranklake.doctor.examination import Probe, examine, up_home
from ranklake.lake.query.role_file import load_role
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.store.lake import Lake
from ranklake.pipeline.alerts.delivery import deliver_round, unreadable_urls
from ranklake.pipeline.alerts.file import AlertFile, AlertFileError, SqlFault, load_alerts, no_fault, packaged_alerts
from ranklake.pipeline.alerts.round import RoundResult, run_round
from ranklake.pipeline.findings import FindingsError
from ranklake.pipeline.health.collection import LIMIT_S
from ranklake.pipeline.health.collectors import Look, disks, prefect, waiting_stages
from ranklake.pipeline.health.declaration import Sample
from ranklake.pipeline.health.problems import LOOK, Problem, problems

_TOLD_OTHERWISE: Final = ("AlertedError", "AlertsFailedError", "ChecksFailedError", "UnreadableError")
"""Errors with which runs end for what other signals tell."""

PROBES: Final = (
    Probe("audit-trail", "books:recent_audit"),
    Probe("signers", "books:signers"),
    Probe("keys", "vouching:keys"),
    Probe("backup", "books:backup_ages"),
)
"""What the doctor looks at in each round: what is cheap, and what no other source tells."""


class AlertsFailedError(FindingsError):
    """The rules cannot be used, or receivers did not take messages."""

    def __init__(self, done: dict[str, Any]) -> None:
        lost = "; ".join(f"{receiver}: {why}" for receiver, why in done["lost"].items())
        hint = "" if done["fault"] else "the next round sends them again"
        super().__init__(done, done["fault"] or f"receivers did not take messages: {lost}", hint=hint)


def refuse_untold(done: dict[str, Any]) -> dict[str, Any]:
    """Return what a round did. Raises `AlertsFailedError` where somebody was not told, so that a flow ends Failed."""
    if done.get("fault") or done.get("lost"):
        raise AlertsFailedError(done)
    return done


def alerts_once(context: Context) -> dict[str, Any]:
    """Evaluate the rules of alerts once, send what is due, and return the fields of `RoundResult`.

    A file that cannot be used, and a role that does not hold, are a ``fault``: the stages after this one go on.
    """
    return alerts_round(context)


def alerts_round(context: Context, *, has_heartbeat: bool = True) -> dict[str, Any]:
    """Do the same, with or without the heartbeat: who tells that no flow runs must not say that all is well."""
    lake, section = context.open_lake(), context.config.alerts
    try:
        file, role = configured_rules(context), _role(context, lake)
    except (AlertFileError, RoleError) as error:
        return {**RoundResult().plain(), "fault": "\n".join(map(str, (error, *error.others)))}
    file = file if has_heartbeat else replace(file, heartbeat=None)
    now = datetime.now(UTC)
    result = run_round(
        lake, file, now, partial(deliver_round, lake=lake.uri.rstrip("/").rpartition("/")[2]),
        role=role, problems=partial(pipeline_problems, context, now), pages=context.config.report.url,
        query_timeout_s=section.query_timeout_s,
    )  # fmt: skip
    # A URL that is not there is lost at once, and not only once there is something to send.
    return {**result.plain(), "lost": {**unreadable_urls(file), **result.lost}, "fault": ""}


def pipeline_problems(context: Context, now: datetime) -> Iterator[Problem]:
    """Yield what is wrong with disks, the Prefect server, stages, deployments, the audit trail, keys and backups.

    What cannot be looked at is a problem, too.

    Raises what the lake and the spool raise.
    """
    look, samples = Look(context, now, up_home()), [Sample("lake_up", 1)]
    for name, collector in (("disks", disks), ("prefect", prefect), ("stages", waiting_stages)):
        try:
            samples.extend(collector(look))  # what came before an error stays
        except (OSError, ValueError) as error:
            if collector is not prefect:  # which has told by then that the server does not answer
                yield Problem(LOOK, f"{name} cannot be looked at: {type(error).__name__}", unknown=name)
    yield from problems(samples, context.config.health.disk_free_ratio)
    for run in (sample for sample in samples if sample.metric == "deployment_failed" and sample.value):
        if not any(name in run.reason for name in _TOLD_OTHERWISE):
            message = f"the last run of deployment {run.labels['deployment']} failed: {run.reason}"
            yield Problem("deployment", message)
    wrong = [finding for finding in examine(look.patient(), LIMIT_S, PROBES) if finding.is_wrong]
    findings = [finding for finding in wrong if finding.is_known]
    yield from (
        Problem(LOOK, f"{finding.check} could not be looked at: {finding.what}", unknown=finding.check)
        for finding in wrong
        if not finding.is_known
    )
    for check in dict.fromkeys(finding.check for finding in findings):  # one each: figures change, alerts stay
        texts = (f"{finding.what} ({finding.remedy})" for finding in findings if finding.check == check)
        yield Problem(check, f"{check}: {'; '.join(texts)}")


def configured_rules(context: Context, sql_fault: SqlFault = no_fault) -> AlertFile:
    """Return the rules of ``[alerts]``: its file, else the packaged ones, with the receiver that it names.

    Raises `AlertFileError`.
    """
    section = context.config.alerts
    if section.file:
        return load_alerts(Path(section.file), sql_fault=sql_fault)
    return packaged_alerts(section.notify, section.heartbeat)


def _role(context: Context, lake: Lake) -> Role | None:
    """Return the configured role. Raises `RoleError` where nobody defined it, or no grant holds."""
    name = context.config.alerts.role
    if not name:
        return None
    if not context.config.sql.roles:
        hint = "name their file by roles under [sql] in ranklake.toml"
        raise RoleError(f"no roles are defined, so none is called {name!r}", where="[alerts] role", hint=hint)
    if refusal := context.share_refusal(lake)(name):
        raise RoleError(refusal, where="[alerts] role")
    return load_role(Path(context.config.sql.roles), name, lake.contracts())
