"""``ranklake quality release``."""

from collections.abc import Iterator, Sequence
from datetime import datetime

import click

from ranklake.commands.approving import approval_command
from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option, optional_spool
from ranklake.commands.signing import Told, mode_facts, signing_options, tell_mode
from ranklake.context import Context
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.store.lake_config import ApprovalsSection
from ranklake.quality.release import KINDS, plan_release
from ranklake.quality.release import apply as apply_release
from ranklake.quality.release import approve as approve_release
from ranklake.retention.proposals.identities import APPLY
from ranklake.retention.proposals.releases import RELEASES, Item, Release
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import counted

_ITEMS = (*map(TextColumn, ("what", "table", "partition")), *numbers(("rows",)), TextColumn("about"))

_by = click.option(
    "--by", metavar="NAME", help="Who does it; default: your login name. Where approvals are signed, the key tells."
)
_alone = click.option(
    "--single-operator", is_flag=True, help="One person does both; the trail says so. Not where approvals are signed."
)


@click.group()
def release() -> None:
    """Propose, approve and apply the release of held partitions, of rows in quarantine, and of refused segments."""


@release.command()
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option("--date", "day", metavar="DATE", type=click.DateTime(["%Y-%m-%d"]), help="Only of this date.")
@click.option(
    "--only", type=click.Choice(KINDS), help="Only partitions that are held, rows in quarantine, or refused segments."
)
@click.option("--reason", metavar="TEXT", required=True, help="What was mended; kept in the register.")
@_by
@signing_options
@lake_option
@optional_spool("URI or folder of the spool; without one, refused segments are not looked at.")
@json_option
@with_context
def plan(
    context: Context,
    tables: tuple[str, ...],
    day: datetime | None,
    only: str | None,
    reason: str,
    by: str | None,
    *,
    told: Told,
    as_json: bool,
) -> None:
    """Propose to release what is held, rows in quarantine that pass the contracts of today, and refused segments.

    A refused segment is proposed if it would be taken in under the rules of today; the next ingest judges it again.
    Rows that a person disowned, of dates that retention removed, or that the table has already, stay where they are.
    Whoever proposes it is its author, and cannot approve it.
    """
    lake = context.open_lake()
    if told.text_only:
        raise click.UsageError("--statement is for approve and apply: what is proposed is not known before")
    who = told.who(lake, "ranklake quality release plan", by)
    kinds = KINDS if only is None else (only,)
    found = plan_release(
        lake,
        who,
        reason,
        tables,
        None if day is None else day.date(),
        kinds,
        spool=_spool(context),
        signing=told.signing,
    )
    if as_json:
        show_json({**found.plain(), **mode_facts(lake)})
        return
    _show(found, lake.config.approvals)
    tell_mode(lake)


release.add_command(
    approval_command(
        RELEASES,
        approve_release,
        "Approve a release that another person proposed.",
        metavar="RELEASE",
        then=lambda one, named: f"apply it with '{named(RELEASES.to_apply(one.name))}'",
        plain=Release.plain,
    )
)


@release.command()
@click.argument("name", metavar="RELEASE")
@_by
@_alone
@signing_options
@lake_option
@optional_spool("URI or folder of the spool; needed where refused segments are released.")
@json_option
@with_context
def apply(context: Context, name: str, by: str | None, *, single_operator: bool, told: Told, as_json: bool) -> None:
    """Free exactly what an approved release names. If it is interrupted, run it again."""
    lake = context.open_lake()
    if told.text_only:
        told.print_statement(lake, RELEASES, name, APPLY, by)
        return
    who = told.who(lake, f"ranklake quality release apply {name}", by)
    spool = _spool(context)
    found, fresh = apply_release(lake, name, who, spool=spool, single_operator=single_operator, signing=told.signing)
    if as_json:
        show_json({"applied_now": fresh, **mode_facts(lake), **found.plain()})
        return
    then = (
        "ranklake ingest judges the segments again"
        if found.of("segment")
        else "ranklake check and ranklake rollup go on with it"
    )
    done = f"by plan {found.plan}; {then}"
    tell(f"{name}: {_sums(found)} released {done}" if fresh else f"{name}: applied already, {done}")
    tell_mode(lake)


@release.command("list")
@lake_option
@json_option
@with_context
def list_(context: Context, *, as_json: bool) -> None:
    """List releases and their state."""
    found = RELEASES.register(context.open_lake()).values()
    if as_json:
        show_json([one.plain() for one in found])
        return
    for one in found:
        tell(f"{one.name}  {one.state:<8}  {_sums(one)}")
    if not found:
        tell("no releases")


def _show(found: Release, section: ApprovalsSection) -> None:
    lines = [
        (one.item_kind, one.table, str(one.partition_date), f"{one.rows:,}", one.about)
        for one in found.items
        if one.item_kind != "segment"
    ]
    tell(*table_lines(_ITEMS, [*lines, *_segments(found.of("segment"))]))
    then = {
        "proposed": f"nobody approved it yet: {section.by_somebody(RELEASES.to_approve(found.name))}",
        "approved": f"approved: ranklake quality release apply {found.name}",
        "applied": "applied",
        "altered": "its items were altered",
    }
    tell(f"release {found.name}: {_sums(found)}; {then[found.state]}")


def _segments(items: Sequence[Item]) -> Iterator[tuple[str, ...]]:
    """Yield a line for all segments of a table that were refused on a date for one reason."""
    rows: dict[tuple[str, str, str], list[int]] = {}
    for one in items:
        rows.setdefault((one.table, str(one.partition_date), one.about.rpartition(": ")[0]), []).append(one.rows)
    for (table, day, reason), some in rows.items():
        yield "segment", table, day, f"{sum(some):,}", f"{counted(len(some), 'segment')} {reason}"


def _sums(one: Release) -> str:
    facts = one.facts
    segments = f", {counted(facts['segments'], 'segment')}" if "segments" in facts else ""
    return f"{counted(facts['partitions'], 'partition')}, {counted(facts['rows'], 'row')}{segments}"


def _spool(context: Context) -> Spool | None:
    return context.spool() if context.has_spool else None
