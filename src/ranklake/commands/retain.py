"""``ranklake retain``."""

import getpass
from datetime import UTC, datetime

import click

from ranklake.commands.approvals import SigningOptions, approval_command, mode_facts, signing_options, tell_mode
from ranklake.commands.context import with_context
from ranklake.commands.options import Group, day_of, json_option, lake_option, optional_spool, spool_option
from ranklake.commands.retain_hold import hold, hold_line, holds, release
from ranklake.commands.retain_policies import cost, explain, lint, new, simulate, test
from ranklake.commands.retain_rehydrate import archives, rehydrate
from ranklake.context import Context
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import SIGNED
from ranklake.printable import counted
from ranklake.redaction.redact import redact_uri
from ranklake.retention.archive.rehydrated import remove_expired
from ranklake.retention.archive.sweeping import sweep_archives
from ranklake.retention.backup.history import follow_removals
from ranklake.retention.holds.holds import holds_of
from ranklake.retention.plans.apply import apply as apply_plan
from ranklake.retention.plans.apply import approve as approve_plan
from ranklake.retention.plans.cancel import approve as approve_cancelling
from ranklake.retention.plans.cancel import cancel
from ranklake.retention.plans.cancel import propose as propose_cancelling
from ranklake.retention.plans.forecast import over_budget
from ranklake.retention.plans.plan import held_rows, left_for_next, make_plan
from ranklake.retention.plans.purge import delete_left
from ranklake.retention.policies.policies import overdue_line, record_overdue
from ranklake.retention.proposals.cancellations import CANCELLATIONS, needs_approval
from ranklake.retention.proposals.identities import APPLY, APPROVE, PROPOSE
from ranklake.retention.proposals.lifecycle import propose, standing
from ranklake.retention.proposals.proposals import NotApprovedError, recorded_actions
from ranklake.retention.proposals.retention_plans import RETENTION_PLANS, Item, RetentionPlan, register
from ranklake.retention.shares.sharing import withdraw
from ranklake.retention.sweep import SweepResult
from ranklake.retention.sweep import sweep as sweep_spool
from ranklake.views.json_output import json_text, show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import size_text


@click.command("cancel")
@click.argument("name", metavar="PLAN")
@lake_option
@click.option("--by", metavar="NAME", help="Who cancels it; kept in the audit log.")
@click.option("--approve", "approves", is_flag=True, help="Approve what another person proposed to cancel.")
@click.option("--reason", metavar="TEXT", help="Why it is approved; kept in the audit log.")
@signing_options
@json_option
@with_context
def cancel_(
    context: Context,
    name: str,
    by: str | None,
    reason: str | None,
    *,
    approves: bool,
    signature_options: SigningOptions,
    as_json: bool,
) -> None:
    """Restore all rows that an applied plan removed, within its grace period.

    Removed rows are kept for the policies' grace_days. Rows that an erasure removed meanwhile are not restored. Where
    approvals are signed, the first call proposes it, another person runs it with --approve, and the next call restores
    the rows. If it is interrupted, run it again.
    """
    lake = context.open_lake()
    step = APPROVE if approves else _step(lake, name)
    if signature_options.text_only:
        signature_options.print_statement(lake, CANCELLATIONS, name, step, by, reason)
        return
    who = signature_options.who(lake, f"ranklake retain cancel {name}", by)
    if step == APPLY:
        result, fresh = cancel(lake, name, who, signing=signature_options.signing)
        if as_json:
            show_json({"cancelled_now": fresh, **mode_facts(lake), **result.plain()})
            return
        results = f"{counted(result.rows, 'row')} of {counted(len(result.items), 'partition')} are back by plan"
        tell(f"{name}: {results if fresh else 'cancelled already, by plan'} {result.cancellation}")
        if fresh:
            tell("its rows are due as before: change the policies, or set a hold, before the next plan")
        tell_mode(lake)
        return
    if approves:
        approve_cancelling(lake, name, who, reason, signing=signature_options.signing)
    else:
        propose_cancelling(lake, name, who, signature_options.signing)
    item = CANCELLATIONS.find(lake, name)
    lacking = standing(lake, CANCELLATIONS, item).lacking
    if as_json:
        show_json({"cancelled_now": False, "lacking": lacking or None, **mode_facts(lake), **item.of.plain()})
        return
    as_somebody = lake.config.approvals.by_somebody
    then = f"another person: {as_somebody(CANCELLATIONS.to_approve(name))}" if lacking else "a third (or the first): "
    then += "" if lacking else as_somebody(CANCELLATIONS.to_apply(name))
    tell(f"{name}: {'approved' if approves else 'proposed'} to be cancelled; {then}")


def _step(lake: Lake, name: str) -> str:
    """Return the action of a call without --approve: to propose if an approval is needed, else to apply."""
    if not needs_approval(lake):
        return APPLY
    item = CANCELLATIONS.find(lake, name)
    if item.approved is not None or item.applied is not None:
        return APPLY
    if recorded_actions(lake.tables, CANCELLATIONS).get(name, {}).get(CANCELLATIONS.propose):
        raise NotApprovedError(CANCELLATIONS, name, lake.config.approvals, standing(lake, CANCELLATIONS, item).lacking)
    return PROPOSE


_COLUMNS = (
    *map(TextColumn, ("table", "partition", "rule")),
    *numbers(("kept days", "goes before", "rows", "bytes", "files")),
)


@click.group(cls=Group)
def retain() -> None:
    """Plan, approve and apply retention; explain and check its policies.

    Nothing is removed before somebody approves the plan.
    """


_SIGN = "Where approvals are signed, sign with --key, or print what to sign by --statement and hand it in by --signed."

approve = approval_command(
    RETENTION_PLANS,
    approve_plan,
    f"Approve a plan, so that it can be applied.\n\n{_SIGN}",
    metavar="PLAN",
    then=lambda plan, named: f"apply it with '{named(RETENTION_PLANS.to_apply(plan.name))}'",
    plain=RetentionPlan.plain,
)

for _command in (approve, archives, cancel_, cost, explain, hold, holds, lint, new, rehydrate, release, simulate, test):
    retain.add_command(_command)


@retain.command()
@lake_option
@click.option("--as-of", metavar="DATE", help="Day to plan for, such as 2026-12-31; default: today (UTC).")
@click.option("--by", metavar="NAME", help="Who plans, and therefore may not approve; recorded in the audit log.")
@signing_options
@json_option
@with_context
def plan(
    context: Context, as_of: str | None, by: str | None, *, signature_options: SigningOptions, as_json: bool
) -> None:
    """List rows past their retention period, with reasons, and record them as a plan.

    Where approvals are signed, whoever signs the plan is its author, and cannot approve it.
    """
    day = day_of(as_of, "--as-of")
    lake = context.open_lake()
    contracts, policies = lake.contracts(), context.policies(lake)
    account = None if signature_options.text_only or signature_options.is_for(lake, by) else getpass.getuser()
    result = make_plan(lake, contracts, policies, day, account)
    if result is not None and signature_options.text_only:
        signature_options.print_statement(lake, RETENTION_PLANS, result.name, PROPOSE, by)
        return
    if result is not None and signature_options.is_for(lake, by):
        who = signature_options.who(lake, "ranklake retain plan", _named(by))
        propose(lake, RETENTION_PLANS, result.name, who, signature_options.signing)
    overdue = [overdue_line(rule) for rule in record_overdue(lake, policies, _named(by) or getpass.getuser())]
    passed = over_budget(lake.tables, contracts, policies)
    held, kept = holds_of(lake, day), held_rows(lake, contracts, policies, day)
    for line in (*overdue, *passed, *map(hold_line, held)):
        tell(line, err=True)
    for table, rows in kept.items():
        tell(f"{table}: {counted(rows, 'row')} past retention, kept by legal holds", err=True)
    left = left_for_next(lake, contracts, policies, day)
    for table, days in left.items():
        more = f" and {len(days) - 1:,} more dates" if len(days) > 1 else ""
        tell(f"{table} {days[0]}{more}: more is due there than one plan takes; plan again after it", err=True)
    if as_json:
        head = {"as_of": day.isoformat(), "plan": None if result is None else result.plain(), **mode_facts(lake)}
        notes = {"reviews_overdue": overdue, "budgets_passed": passed, "held_rows": kept}
        notes["left_for_next"] = {table: [one.isoformat() for one in days] for table, days in left.items()}
        show_json({**head, **notes, "holds": [one.plain() for one in held]})
        return
    if result is None:
        tell(f"nothing is due on {day}")
    else:
        _show(lake, result)
    tell_mode(lake)


@retain.command()
@click.argument("name", metavar="PLAN")
@lake_option
@click.option("--by", metavar="NAME", help="Who applies it; default: the account that runs this.")
@click.option(
    "--single-operator",
    is_flag=True,
    help="Let the approver apply the plan, too; recorded in register, trail and outputs.",
)
@optional_spool("Spool to sweep; default: the configured one.")
@signing_options
@json_option
@with_context
def apply(
    context: Context,
    name: str,
    by: str | None,
    *,
    single_operator: bool,
    signature_options: SigningOptions,
    as_json: bool,
) -> None:
    """Remove exactly the rows of an approved plan, including their bytes.

    If policies have grace_days, the bytes stay that long, and 'ranklake retain cancel' can restore the rows; then
    'ranklake upkeep' deletes them.

    Refuses a plan without approval, one approved by the same person, and one whose partitions have changed since. Also
    deletes segments in the spool whose rows are all removed, and updates backups. If it is interrupted, run it again.
    """
    lake = context.open_lake()
    if signature_options.text_only:
        signature_options.print_statement(lake, RETENTION_PLANS, name, APPLY, by)
        return
    actor = signature_options.who(lake, f"ranklake retain apply {name}", _named(by))
    contracts, policies = lake.contracts(), context.policies(lake)
    result, fresh = apply_plan(
        lake, name, actor, contracts, policies, single_operator=single_operator, signing=signature_options.signing
    )
    swept = sweep_spool(lake, context.spool(), actor) if context.has_spool else None
    withdrawn = withdraw(lake.store, {item.table for item in result.items})
    sweep_archives(lake.tables)
    remove_expired(lake.store, datetime.now(UTC).date())
    left = [] if result.is_kept or result.cancelled else delete_left(lake, result)
    left = [*left, *follow_removals(lake)]
    if as_json:
        show_json(
            {
                "applied_now": fresh,
                "swept": swept,
                "versions_left": left,
                "withdrawn": withdrawn,
                **mode_facts(lake),
                **result.plain(),
            }
        )
        return
    if fresh:
        tell(f"{name}: removed {_sums(result)} by plan {result.plan}{_alone(result)}{_kept_files_text(result)}")
    else:
        tell(f"{name}: applied already, by plan {result.plan}{_alone(result)}; nothing done")
    for line in left:
        tell(line)
    for share in withdrawn:
        if share.files:
            tell(
                f"share {share.share}: {counted(share.files, 'file')} withdrawn; 'ranklake share --all' renews the rest"
            )
    if swept is not None:
        tell(_sweep_line(swept))
    else:
        tell("no spool is configured: what it keeps for replay was not looked at", err=True)
    tell_mode(lake)


@retain.command()
@lake_option
@spool_option
@click.option("--by", metavar="NAME", help="Who sweeps; default: the account that runs this.")
@json_option
@with_context
def sweep(context: Context, by: str | None, *, as_json: bool) -> None:
    """Delete segments from the spool whose rows were all removed by applied plans."""
    result = sweep_spool(context.open_lake(), context.spool(), _named(by) or getpass.getuser())
    tell(json_text(result) if as_json else _sweep_line(result))


@retain.command("list")
@lake_option
@json_option
@with_context
def list_(context: Context, *, as_json: bool) -> None:
    """List plans and their state."""
    lake = context.open_lake()
    plans = register(lake.tables).values()
    if as_json:
        show_json([{**one.plain(), **mode_facts(lake)} for one in plans])
        return
    if not plans:
        tell("no retention plans")
    for plan in plans:
        when = plan.applied or plan.approved or plan.proposed or datetime.fromtimestamp(0, UTC)
        when = plan.purged or plan.cancelled or when
        text = f"{_sums(plan)}{_alone(plan)}{_kept_files_text(plan)}{_overtaken_reason(plan)}"
        tell(f"{plan.name}  {plan.state:<9}  {when:%Y-%m-%d %H:%M}  {text}")
    tell_mode(lake)


def _sweep_line(swept: SweepResult) -> str:
    stay = f"; {counted(swept.in_packs, 'segment')} stay, in packs with others" if swept.in_packs else ""
    return f"swept {counted(swept.segments, 'segment')} from the spool, {swept.size_bytes:,} bytes{stay}"


def _named(by: str | None) -> str | None:
    name = None if by is None else " ".join(by.split())
    if name == "":
        raise click.BadParameter("the name is empty", param_hint="--by")
    return name


def _show(lake: Lake, made: RetentionPlan) -> None:
    lines = [
        (
            item.table,
            str(item.partition_date),
            f"{item.rule or item.retention_class}{_part(item)}",
            str(item.period_days),
            str(item.cutoff_date),
            f"{item.rows:,}",
            f"{item.bytes:,}",
            str(item.files),
        )
        for item in made.items
    ]
    tell(*table_lines(_COLUMNS, lines))
    for rule, reason in sorted({(item.rule or item.retention_class, item.reason) for item in made.items}):
        tell(f"{rule}: {reason}")
    as_somebody = lake.config.approvals.by_somebody
    lacking = standing(lake, RETENTION_PLANS, made)
    unsigned = lake.config.approvals.mode == SIGNED and not lacking.authors
    then = {
        "planned": "nobody signed as its author, so it cannot be approved: ranklake retain plan --key KEY"
        if unsigned
        else f"nobody approved it yet: {as_somebody(RETENTION_PLANS.to_approve(made.name))}",
        "approved": f"approved: {as_somebody(RETENTION_PLANS.to_apply(made.name))}",
        "applied": f"applied{_alone(made)}{_kept_files_text(made)}",
        "cancelled": "cancelled",
        "overtaken": f"overtaken{_overtaken_reason(made)}",
        "altered": "its items were altered",
    }
    tell(f"plan {made.name}: {_sums(made)}; {then[made.state]}")


def _part(item: Item) -> str:
    if item.interval_s is not None:
        return f" (downsamples to {item.interval_s:,} s)"
    if item.is_mask:
        return " (masks)"
    suffix = "" if item.part_sha256 is None else " (some rows)"
    return suffix if item.archive_to is None else f"{suffix} (to {redact_uri(item.archive_to)})"


def _alone(plan: RetentionPlan) -> str:
    return " (single operator: one person approved and applied it)" if plan.single_operator else ""


def _kept_files_text(plan: RetentionPlan) -> str:
    """Describe the state of the bytes that an applied plan kept."""
    if plan.is_kept:
        return f"; until {plan.kept_until:%Y-%m-%d %H:%M} UTC: ranklake retain cancel {plan.name}"
    return "; purged since" if plan.purged is not None else ""


def _overtaken_reason(plan: RetentionPlan) -> str:
    """Return why a plan cannot be applied any more; empty if it can, or was."""
    if plan.state != "overtaken":
        return ""
    return f"; {plan.void_because}, so it is void: ranklake retain plan"


def _sums(plan: RetentionPlan) -> str:
    counts = (counted(len(plan.items), "partition"), counted(plan.rows, "row"), size_text(plan.bytes))
    archived = sum(item.rows for item in plan.items if item.archive_to is not None)
    away = f"; {counted(archived, 'row')} of them to archives" if archived else ""
    return f"{', '.join(counts)} in {counted(plan.files, 'file')}{away}"
