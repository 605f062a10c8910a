"""The work of each stage as a plain function from a context to plain JSON values.

The command ``ranklake pipeline`` calls them without Prefect, so that scheduled and manual runs do the same.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from ranklake.allowed import allowed_places
from ranklake.artifacts import longest_unverified, note
from ranklake.context import Context
from ranklake.doctor.examination import Patient, examine
from ranklake.insight.catalog.refresh import refresh
from ranklake.insight.runs.asking import UnseenError
from ranklake.insight.runs.find import NoSuchRunError
from ranklake.insight.slo.report import evaluate_all, record
from ranklake.lake.contracts.model import ALARMS
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.ingest.run import KEEP_DAYS, ingest
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.rollups.life.register import changes
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.lake.store.store import Store
from ranklake.lake.tables.live_files import Damage, DamagedFileError
from ranklake.pipeline.auditing import audit_ingest, audit_plans, audit_upkeep
from ranklake.pipeline.findings import FindingsError, first_few, with_masks
from ranklake.pipeline.playbooks.file import PlaybookError, Playbooks, load_playbooks
from ranklake.pipeline.playbooks.running import DUE, Runner
from ranklake.pipeline.report_sections import SECTIONS
from ranklake.printable import counted, printable
from ranklake.quality.check import run_checks
from ranklake.quality.suite import KINDS
from ranklake.rehash import rehash
from ranklake.retention.backup.history import follow_removals
from ranklake.retention.plans.apply import apply
from ranklake.retention.plans.plan import make_plan
from ranklake.retention.plans.purge import expired_names, purge_due
from ranklake.retention.policies.policies import record_overdue
from ranklake.retention.proposals.identities import account, name_of
from ranklake.retention.proposals.lifecycle import propose
from ranklake.retention.proposals.retention_plans import RETENTION_PLANS
from ranklake.retention.shares.register import shares
from ranklake.retention.shares.sharing import KeepResult, keep, withdraw
from ranklake.retention.sweep import sweep
from ranklake.views.html.site import Section, failed_section, fault_text, publish

Progress = Callable[[int, int], None]

MOST_ARTIFACTS: Final = 1_000
MOST_ARTIFACT_BYTES: Final = 200 * 2**30
"""Limits of one scheduled run that hashes artifacts again; the next run continues with the longest unverified."""
FAILED_STEPS: Final = frozenset({"failed", "timed out", "not met"})
MOST_STEPS: Final = 100
ANNOUNCED: Final = timedelta(days=30)
"""Age up to which a change of names, units or columns is on the page of the catalog's run."""


class ChecksFailedError(FindingsError):
    """A check of severity error or critical failed, now or earlier on rows that are still in the table."""

    def __init__(self, done: dict[str, Any], summary: dict[str, Any]) -> None:
        alarms = [result for result in (*summary["unsound"], *summary["standing"]) if result["severity"] in ALARMS]
        texts = [f"{result['table']} {result['partition_date']} {result['check_id']}" for result in alarms]
        hint = "ranklake check shows them; rows and results are in the tables rejects and quality_results"
        super().__init__(done, f"checks failed: {first_few(texts)}", hint=hint)


class DamageError(DamagedFileError):
    """Data files are damaged and were skipped; `done` is the result for the other files."""

    def __init__(self, done: dict[str, Any], damage: Sequence[Damage]) -> None:
        super().__init__(damage)
        self.done = done


def damage_in(done: dict[str, Any]) -> list[Damage]:
    """Return the damaged files in a result of one of the functions below, each once."""
    parts = [done, *done.get("rollups", []), done.get("ingest", {}), *done.get("rollup", {}).get("rollups", [])]
    return list(dict.fromkeys(Damage(**facts) for part in parts for facts in part.get("damaged", [])))


def refuse_damage(done: dict[str, Any]) -> dict[str, Any]:
    """Return the result. Raises `DamageError` if it has damaged files, so that a flow ends Failed."""
    if damages := damage_in(done):
        raise DamageError(done, damages)
    return done


class UnreadableError(FindingsError):
    """Segments could not be read and are in quarantine; `done` is the result for the others."""

    def __init__(self, done: dict[str, Any], count: int) -> None:
        hint = "'ranklake status' says why, and 'ranklake disown' sets aside what is lost"
        super().__init__(done, f"{counted(count, 'segment')} could not be read", hint=hint)


def unreadable_in(ingested: dict[str, Any]) -> int:
    """Return the number of segments that an ingest could not read, without segments refused by a rule."""
    refused: dict[str, int] = ingested["refused"]
    return int(ingested["unreadable"]) - sum(refused.values())


def refuse_unreadable(done: dict[str, Any]) -> dict[str, Any]:
    """Return the result of an ingest. Raises `UnreadableError` or `DamageError`, so that a flow ends Failed."""
    if count := unreadable_in(done):
        raise UnreadableError(done, count)
    return refuse_damage(done)


def refuse_failure(done: dict[str, Any]) -> dict[str, Any]:
    """Return the result of checks. Raises `ChecksFailedError` if they failed, so that a flow ends Failed."""
    if not done["passed"]:
        raise ChecksFailedError(done, done)
    return done


def ingest_once(context: Context, progress: Progress | None = None) -> dict[str, Any]:
    """Ingest new segments; return the fields of `ranklake.lake.ingest.run.IngestResult`."""
    lake = context.create_lake()
    with context.workers() as workers:
        result = ingest(lake, context.spool(), workers, keep_days=KEEP_DAYS, progress=progress)
    audit_ingest(lake, result.purged, KEEP_DAYS)
    return asdict(result)


def check_once(
    context: Context, progress: Progress | None = None, kinds: Sequence[str] = KINDS, *, again: bool = False
) -> dict[str, Any]:
    """Check new partitions of tables of some kinds, or all with `again`; return the verdict and the failures.

    Unmasked values in masked columns are failures, too, in new and old partitions.
    """
    lake = context.open_lake()
    with context.workers() as workers:
        report = run_checks(lake, kinds=kinds, workers=workers, progress=progress, again=again)
    audit_plans(lake)
    return with_masks(context, lake, kinds, report.summary())


def rollup_once(context: Context, progress: Progress | None = None) -> dict[str, Any]:
    """Recompute the rollups with changed inputs; return the partitions written per rollup."""
    lake = context.open_lake()
    with context.workers() as workers:
        results = run_rollups(lake, workers=workers, progress=progress)
    return {"rollups": [asdict(result) for result in results]}


class PlaybooksFailedError(FindingsError):
    """Files of playbooks cannot be used, or steps failed."""

    def __init__(self, done: dict[str, Any]) -> None:
        steps = [
            f"{step['playbook']}.{step['step']} of {step['incident']}: {step['outcome']}" for step in done["failed"]
        ]
        hint = "" if done["fault"] else "ranklake playbooks run shows how all steps stand"
        super().__init__(done, done["fault"] or f"steps of playbooks failed: {'; '.join(steps[:3])}", hint=hint)


def refuse_failed_steps(done: dict[str, Any]) -> dict[str, Any]:
    """Return the result of playbooks. Raises `PlaybooksFailedError` if steps failed, so that a flow ends Failed."""
    if done.get("fault") or done.get("failed"):
        raise PlaybooksFailedError(done)
    return done


def playbooks_once(context: Context) -> dict[str, Any]:
    """Run the steps of the configured playbooks if ``[playbooks] act`` is set; otherwise record them as proposals."""
    lake, section = context.open_lake(), context.config.playbooks
    result = {"act": section.act, "fault": "", "outcomes": dict[str, int](), "failed": list[dict[str, Any]]()}
    try:
        playbooks = load_playbooks(Path(section.files))
    except PlaybookError as error:  # later stages must still run
        return {**result, "fault": "\n".join(map(str, (error, *error.others)))}
    runner = playbook_runner(context, lake, playbooks, "the flow playbooks")
    planned = runner.plan()
    states = list(runner.run(planned, act=section.act))
    failed = [
        state.plain()
        for before, state in zip(planned, states, strict=True)
        if before.outcome == DUE and state.outcome in FAILED_STEPS
    ]
    return {**result, "outcomes": dict(Counter(state.outcome for state in states)), "failed": failed[:MOST_STEPS]}


def playbook_runner(context: Context, lake: Lake, playbooks: Playbooks, actor: str) -> Runner:
    """Return the runner of playbooks with the configured limits."""

    def run_checks_of(tables: tuple[str, ...]) -> tuple[bool, str]:
        with context.workers() as workers:
            report = run_checks(lake, tables, workers=workers)
        counts = report.summary()["checks"]
        return report.passed, ", ".join(f"{count:,} {status}" for status, count in counts.items()) or "nothing new"

    section = context.config.playbooks
    age = timedelta(hours=section.max_age_h)
    return Runner(lake, playbooks, actor, run_checks_of, section.per_hour, age, section.off)


def upkeep_once(context: Context, progress: Progress | None = None, *, with_scrub: bool = False) -> dict[str, Any]:
    """Maintain the tables' files; return the fields of `UpkeepResult`, and retention plans whose files were purged."""
    lake = context.open_lake()
    with context.workers() as workers:
        result = upkeep(lake, workers, with_scrub=with_scrub, progress=progress)
    purged_plans = purge_due(lake, account(lake))
    audit_upkeep(context, lake, result)
    return {**asdict(result), "retention": {**purged_plans.plain(), "expired": expired_names(lake.tables)}}


def catalog_once(context: Context) -> dict[str, Any]:
    """Refresh the catalog's tables; return the number of rows of each, and recent changes of names."""
    lake = context.open_lake()
    result = asdict(refresh(lake))
    return {**result, "changes": [change.plain() for change in changes(lake, datetime.now(UTC) - ANNOUNCED)]}


def slo_once(context: Context) -> dict[str, Any]:
    """Evaluate the objectives and record the results in the table ``slo``; return them, alerts first.

    Raises `ranklake.insight.slo.document.SloError` if a file of objectives is invalid.
    """
    lake = context.open_lake()
    statuses = evaluate_all(lake, context.slos().values(), datetime.now(UTC), alerts=context.burn_alerts())
    record(lake.tables, statuses)
    return {
        "objectives": [{**asdict(status), "window_end_ts": status.window_end_ts.isoformat()} for status in statuses]
    }


def report_once(context: Context) -> dict[str, Any]:
    """Write the report's changed pages to ``[report] out``; return the state of each section, and what was written.

    Raises `ranklake.config.ConfigError` if no place is configured, and the errors of
    `ranklake.views.html.site.publish`.
    """
    return report_of(context, tuple(SECTIONS))


def report_of(context: Context, names: Sequence[str], run: str = "") -> dict[str, Any]:
    """Write some sections of the report, as `report_once`; a named run gets a page regardless of its age.

    Raises also `ranklake.insight.runs.find.NoSuchRunError`.
    """
    lake, faults = context.open_lake(), dict[str, str]()
    sections = [_section(lake.store, name, partial(SECTIONS[name].make, context, lake, run), faults) for name in names]
    return _published(context, sections, faults)


def _section(store: Store, name: str, make: Callable[[], Section], faults: dict[str, str]) -> Section:
    """Return a section, or a page with the error if it cannot be made, which is also added to `faults`.

    An error in one section does not affect the others. Raises errors that concern all sections.
    """
    try:
        return make()
    except (NoSuchRunError, UnseenError, LakeUnreachableError, ModuleNotFoundError):
        raise
    except Exception as error:  # noqa: BLE001 - other sections must still be written
        faults[name] = fault_text(error)
        return failed_section(
            name, store.uri.rstrip("/").rpartition("/")[2], f"This section cannot be made: {faults[name]}"
        )


class ReportError(FindingsError):
    """Sections of the report could not be made; `done` is the result with the other sections."""

    def __init__(self, done: dict[str, Any]) -> None:
        parts = "; ".join(f"{name}: {reason}" for name, reason in done["broken"].items())
        super().__init__(done, f"sections of the report cannot be made: {parts}", hint="the other pages are up to date")


def refuse_broken(done: dict[str, Any]) -> dict[str, Any]:
    """Return the result. Raises `ReportError` if sections could not be made, so that a flow ends Failed."""
    if done.get("broken"):
        raise ReportError(done)
    return done


def report_as(context: Context, lake: Lake, names: Sequence[str], run: str, role: Role) -> dict[str, Any]:
    """Write some sections as a role sees them; ``left_out`` of the result has the reasons for omitted sections.

    Raises the errors of `report_of`, and `ranklake.lake.query.roles.RoleError` if the role may see none of them.
    """
    sections, left_out, faults = list[Section](), dict[str, str](), dict[str, str]()
    for name in names:
        make = SECTIONS[name].make_for_role
        if make is None:
            left_out[name] = "it tells of whole tables, whoever's rows are in them"
            continue
        try:
            sections.append(_section(lake.store, name, partial(make, lake, role, run), faults))
        except UnseenError as error:
            left_out[name] = error.what
    if not sections:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise RoleError(f"nothing to show to role {role.name}: {reasons}", where="--role", hint="ask for its tables")
    return {**_published(context, sections, faults, role.name), "left_out": left_out}


def _published(context: Context, sections: Sequence[Section], faults: dict[str, str], role: str = "") -> dict[str, Any]:
    result = publish(context.place(context.config.report_out()), *sections, role=role)
    facts = {
        section.name: {"title": section.title, "state": section.state, "headline": section.headline}
        for section in sections
    }
    return {**facts, "published": asdict(result), "broken": faults | result.broken}


def share_once(context: Context, progress: Progress | None = None) -> dict[str, Any]:
    """Refresh all shares; create those in ``[shares]``, and delete those whose role no longer exists."""
    lake = context.open_lake()
    wanted = context.config.wanted_shares()
    if not wanted and not shares(lake.store):
        return KeepResult((), ()).plain()
    roles, refusal = context.roles(lake.catalog), context.share_refusal(lake)
    with context.workers() as workers:
        result = keep(lake, roles, "the flow share", workers, wanted, refusal=refusal, progress=progress)
    return result.plain()


class ArtifactsError(FindingsError):
    """Artifacts differ from their records; `done` is the result of all verifications."""

    def __init__(self, done: dict[str, Any]) -> None:
        altered = [artifact for artifact in done["artifacts"] if not artifact["verified"]]
        texts = [
            f"{printable(artifact['name'])} of {printable(artifact['run'])}: {artifact['verdict']}"
            for artifact in altered
        ]
        hint = "ranklake verify-artifact NAME --run RUN tells where it was looked for"
        super().__init__(done, f"artifacts are not as recorded: {first_few(texts)}", hint=hint)


def refuse_altered(done: dict[str, Any]) -> dict[str, Any]:
    """Return the result. Raises `ArtifactsError` if artifacts differ from their records, so that a flow ends Failed."""
    if not all(artifact["verified"] for artifact in done["artifacts"]):
        raise ArtifactsError(done)
    return done


def verify_artifacts_once(
    context: Context, *, limit: int = MOST_ARTIFACTS, max_bytes: int = MOST_ARTIFACT_BYTES
) -> dict[str, Any]:
    """Hash recorded artifacts again, the longest unverified first, up to the limits; return the result of each."""
    lake = context.open_lake()
    allow = allowed_places((*context.config.artifacts.allow, lake.uri, context.config.spool.uri), ())
    actor = "the flow verify_artifacts"
    result = rehash(
        lake.store,
        longest_unverified(lake, ""),
        allow,
        lambda verdicts: note(lake, verdicts, actor),
        limit=limit,
        most_bytes=max_bytes,
    )
    checked = [
        {"run": verdict.row["run"], "name": verdict.row["name"], "verified": verdict.is_good, "verdict": verdict.status}
        for verdict in result.verdicts
    ]
    counts = {"hashed_bytes": result.hashed_bytes, "not_allowed": len(result.closed), "waiting": result.waiting}
    return {"artifacts": checked, **counts}


def retention_plan_once(context: Context, *, as_of: date | None = None) -> dict[str, Any]:
    """Plan retention of rows past their period on a day (default: today, UTC); return the plan, None if none is due."""
    day = as_of or datetime.now(UTC).date()
    lake = context.open_lake()
    policies = context.policies(lake)
    account = None if lake.config.approvals.key else "the flow retention_plan"
    result = make_plan(lake, lake.contracts(), policies, day, account)
    record_overdue(lake, policies, "the flow retention_plan")
    if result is not None and lake.config.approvals.key:
        propose(lake, RETENTION_PLANS, result.name, name_of(lake, "the flow retention_plan", None))
    return {"as_of": day.isoformat(), "plan": None if result is None else result.plain()}


def retention_apply_once(context: Context, *, plan: str, by: str = "") -> dict[str, Any]:
    """Apply an approved plan by its name, then sweep the spool if one is configured; return what was removed.

    Parameters
    ----------
    by
        Actor for the audit log; by default the account that runs this. Where approvals are signed, ``[approvals]
        key`` signs.

    Raises the errors of `ranklake.retention.plans.apply.apply`: nothing is removed without an approval in the lake, or
    by its approver.
    """
    lake = context.open_lake()
    actor = name_of(lake, f"ranklake retain apply {plan}", by)
    proposal, fresh = apply(lake, plan, actor, lake.contracts(), context.policies(lake))
    swept = sweep(lake, context.spool(), actor) if context.has_spool else None
    withdrawn = [asdict(share) for share in withdraw(lake.store, {item.table for item in proposal.items})]
    outcome = {"swept": None if swept is None else asdict(swept), "withdrawn": withdrawn}
    left_in_backups = list(follow_removals(lake))
    return {"applied_now": fresh, "left_in_backups": left_in_backups, **outcome, **proposal.plain()}


class UnsoundError(FindingsError):
    """The doctor found faults; `done` is its result. The message has the faults that rounds of alerts do not report."""

    def __init__(self, done: dict[str, Any]) -> None:
        unalerted = [finding for finding in done["findings"] if not finding["is_alerted"]]
        first = first_few([f"{finding['check']}: {finding['what']}" for finding in unalerted or done["findings"]])
        super().__init__(done, f"the doctor finds {first}", hint="its artifact, and 'ranklake doctor', say what to do")


class AlertedError(UnsoundError):
    """Rounds of alerts report all faults that the doctor found."""


def refuse_unsound(done: dict[str, Any]) -> dict[str, Any]:
    """Return the doctor's result. Raises `UnsoundError` if it found faults, so that a flow ends Failed."""
    if done["findings"]:
        raise (AlertedError if all(finding["is_alerted"] for finding in done["findings"]) else UnsoundError)(done)
    return done


def doctor_once(context: Context) -> dict[str, Any]:
    """Examine everything that ranklake depends on, on this machine; return counts by state, and the faults."""
    findings = examine(Patient(context.config))
    faults = [asdict(finding) for finding in findings if finding.is_wrong]
    return {"counts": dict(Counter(finding.state for finding in findings)), "findings": faults}
