"""The stage ``alerts``: a round under the configured rules.

    stored state ──▶ signals ──▶ evaluate ──due?──▶ claim ──▶ send ──▶ history ──▶ stored state
                                    └────────── nothing due: stored if it changed

If a process dies after its claim, the next round after the claim's end sends the same messages.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from ranklake.context import Context
from ranklake.doctor.examination import Probe, examine, up_home
from ranklake.insight.overview.alerts import firing
from ranklake.insight.runs.asking import asking
from ranklake.lake.query.role_file import load_role
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.store.lake import Lake
from ranklake.pipeline.alerts.delivery import DeliveryRound, deliver_round, unreadable_urls
from ranklake.pipeline.alerts.file import AlertFile, AlertFileError, SqlFault, load_alerts, no_fault, packaged_alerts
from ranklake.pipeline.alerts.message import AlertFacts
from ranklake.pipeline.alerts.rule_queries import QUERY_TIMEOUT_S
from ranklake.pipeline.alerts.sources import current_signals, with_own_rule
from ranklake.pipeline.alerts.state import AlertState, Evaluation, evaluate, firing_alerts
from ranklake.pipeline.alerts.stored_state import (
    StoredState,
    load_state,
    open_records,
    records_after,
    save_state,
    still_open,
    write_history,
)
from ranklake.pipeline.findings import FindingsError
from ranklake.pipeline.health.collection import LIMIT_S
from ranklake.pipeline.health.collectors import Look, disks, prefect, waiting_stages
from ranklake.pipeline.health.declaration import Sample
from ranklake.pipeline.health.problems import LOOK, Problem, problems

_REPORTED_ELSEWHERE: Final = ("AlertedError", "AlertsFailedError", "ChecksFailedError", "UnreadableError")
"""Errors of runs that other signals report already."""

PROBES: Final = (
    Probe("audit-trail", "books:recent_audit"),
    Probe("signers", "books:signers"),
    Probe("keys", "vouching:keys"),
    Probe("backup", "books:backup_ages"),
)
"""Probes of the doctor for each round: cheap ones that no other source covers."""


class AlertsFailedError(FindingsError):
    """The rules cannot be used, or messages were not delivered. The next round sends these again."""

    def __init__(self, done: dict[str, Any]) -> None:
        lost = "; ".join(f"{receiver}: {reason}" for receiver, reason in done["lost"].items())
        hint = "" if done["fault"] else "the next round sends them again"
        super().__init__(done, done["fault"] or f"receivers did not take messages: {lost}", hint=hint)


def raise_if_lost(done: dict[str, Any]) -> dict[str, Any]:
    """Return the result. Raises `AlertsFailedError` if a message was not delivered, so that the flow ends Failed."""
    if done.get("fault") or done.get("lost"):
        raise AlertsFailedError(done)
    return done


def alerts_once(context: Context) -> dict[str, Any]:
    """Call `alerts_round` with its heartbeat."""
    return alerts_round(context)


def alerts_round(context: Context, *, has_heartbeat: bool = True) -> dict[str, Any]:
    """Evaluate the rules once, send due messages, and return the fields of `RoundResult`.

    An invalid file or role becomes a ``fault``: later stages still run. `has_heartbeat` is False outside of flows,
    where a heartbeat would claim that the schedule runs.
    """
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
    # A missing URL is reported at once, not only when a message is due.
    return {**result.plain(), "lost": {**unreadable_urls(file), **result.lost}, "fault": ""}


def pipeline_problems(context: Context, now: datetime) -> Iterator[Problem]:
    """Yield problems of disks, the Prefect server, stages, deployments, the audit log, keys and backups.

    A probe that fails is also a problem. Errors of lake and spool are raised.
    """
    look, samples = Look(context, now, up_home()), [Sample("lake_up", 1)]
    for name, collector in (("disks", disks), ("prefect", prefect), ("stages", waiting_stages)):
        try:
            samples.extend(collector(look))  # results before an error are kept
        except (OSError, ValueError) as error:
            if collector is not prefect:  # an unreachable server was reported already
                yield Problem(LOOK, f"{name} cannot be looked at: {type(error).__name__}", unknown=name)
    yield from problems(samples, context.config.health.disk_free_ratio)
    for run in (sample for sample in samples if sample.metric == "deployment_failed" and sample.value):
        if not any(name in run.reason for name in _REPORTED_ELSEWHERE):
            message = f"the last run of deployment {run.labels['deployment']} failed: {run.reason}"
            yield Problem("deployment", message)
    wrong = [finding for finding in examine(look.patient(), LIMIT_S, PROBES) if finding.is_wrong]
    findings = [finding for finding in wrong if finding.is_known]
    yield from (
        Problem(LOOK, f"{finding.check} could not be looked at: {finding.what}", unknown=finding.check)
        for finding in wrong
        if not finding.is_known
    )
    for check in dict.fromkeys(finding.check for finding in findings):  # one signal a check: its figures change
        texts = (f"{finding.what} ({finding.remedy})" for finding in findings if finding.check == check)
        yield Problem(check, f"{check}: {'; '.join(texts)}")


def configured_rules(context: Context, sql_fault: SqlFault = no_fault) -> AlertFile:
    """Return the rules of ``[alerts]``: its file, else the packaged ones with its receiver.

    Raises `AlertFileError`.
    """
    section = context.config.alerts
    if section.file:
        return load_alerts(Path(section.file), sql_fault=sql_fault)
    return packaged_alerts(section.notify, section.heartbeat)


def _role(context: Context, lake: Lake) -> Role | None:
    """Return the configured role. Raises `RoleError` if it is not defined, or without a valid grant."""
    name = context.config.alerts.role
    if not name:
        return None
    if not context.config.sql.roles:
        hint = "name their file by roles under [sql] in ranklake.toml"
        raise RoleError(f"no roles are defined, so none is called {name!r}", where="[alerts] role", hint=hint)
    if refusal := context.share_refusal(lake)(name):
        raise RoleError(refusal, where="[alerts] role")
    return load_role(Path(context.config.sql.roles), name, lake.contracts())


CLAIM: Final = timedelta(minutes=5)
"""Duration of a claim: longer than all receivers take together."""
_SKEW: Final = timedelta(minutes=1)
"""Tolerance of clocks: a claim with a later end comes from a wrong clock, and is ignored."""
Deliver = Callable[[Evaluation, AlertFile, datetime, Mapping[str, AlertFacts]], DeliveryRound]
"""Sends due messages: `ranklake.pipeline.alerts.delivery.deliver_round`."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Result of a round.

    Attributes
    ----------
    firing, pending
        Number of alerts after it.
    messages
        Number of delivered messages.
    lost
        Errors of messages that were not delivered, by receiver.
    unknown
        Rules that could not be evaluated.
    is_left_to_another
        Whether another process has the claim, so that this one sent nothing.
    """

    firing: int = 0
    pending: int = 0
    messages: int = 0
    lost: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    is_left_to_another: bool = False

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "firing": self.firing, "pending": self.pending, "messages": self.messages, "lost": dict(self.lost),
            "unknown": list(self.unknown), "is_left_to_another": self.is_left_to_another,
        }  # fmt: skip


def run_round(
    lake: "Lake",
    file: AlertFile,
    now: datetime,
    deliver: Deliver = deliver_round,
    *,
    role: "Role | None" = None,
    problems: Callable[[], Iterable[Problem]] = tuple,
    pages: str = "",
    query_timeout_s: float = QUERY_TIMEOUT_S,
) -> RoundResult:
    """Evaluate the rules once and send due messages. Errors of the store and of queries are raised.

    After a crash or an error a later round sends the due messages: none is lost, and repeated ones have the same id.

    Parameters
    ----------
    role
        Role whose rows and masks apply to messages.
    problems
        Yields problems of the pipeline itself.
    pages
        Address of the report's pages.
    """
    rules = with_own_rule(file)
    stored = load_state(lake.store)
    if stored.claimed_until is not None and now < stored.claimed_until <= now + CLAIM + _SKEW:
        return _left_to_another(stored.state)
    if stored.is_behind:  # its last file is damaged: the history says what fires
        stored = stored.with_open(open_records(firing(asking(lake)).rows))
    active = frozenset(alert.subject for alert in stored.state.alerts.values())
    current = current_signals(
        lake, rules, now, role=role, active=active, query_timeout_s=query_timeout_s, pages=pages,
        problems=lambda: (*_damages(stored), *problems()),
    )  # fmt: skip
    evaluation = evaluate(rules, stored.state, current.signals, now, current.unknown)
    due, claimed = evaluation.notifications, stored
    if due:
        claimed = stored.following(state=evaluation.state, claimed_until=now + CLAIM)
        if not save_state(lake.store, claimed):
            return _left_to_another(evaluation.state)
    try:
        delivery = deliver(evaluation, rules, now, current.facts_of(rules, evaluation.state.alerts.values()))
    except BaseException:
        if due:
            save_state(lake.store, claimed.following(claimed_until=None))
        raise
    records = records_after(rules, stored.records, delivery.state, due, delivery.results, now)
    write_history(lake.tables, stored.records, records, now)
    open_after = still_open(records, delivery.state)
    if due or delivery.state != stored.state or open_after != stored.records:
        save_state(lake.store, claimed.following(state=delivery.state, records=open_after, claimed_until=None))
    return _result(delivery, current.unknown)


def _damages(stored: StoredState) -> Iterator[Problem]:
    if stored.damaged:
        message = f"records of sent alerts cannot be read: {', '.join(stored.damaged)}; some alerts may be sent again"
        yield Problem("alerts", message)


def _left_to_another(state: AlertState) -> RoundResult:
    count = len(firing_alerts(state))
    return RoundResult(firing=count, pending=len(state.alerts) - count, is_left_to_another=True)


def _result(delivery: DeliveryRound, unknown: Iterable[str]) -> RoundResult:
    count = len(firing_alerts(delivery.state))
    return RoundResult(
        firing=count,
        pending=len(delivery.state.alerts) - count,
        messages=sum(each.is_delivered and bool(each.notification) for each in delivery.results),
        lost={each.receiver: each.error for each in delivery.results if not each.is_delivered},
        unknown=tuple(sorted(unknown)),
    )
