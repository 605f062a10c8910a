"""``ranklake quality``."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from pathlib import Path

import click

from ranklake.commands.approvals import SigningOptions, approval_command, mode_facts, signing_options, tell_mode
from ranklake.commands.context import with_context
from ranklake.commands.options import Group, json_option, lake_option, optional_spool
from ranklake.context import Context
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.store.lake_config import ApprovalsSection
from ranklake.printable import counted
from ranklake.quality.export.project import export_project
from ranklake.quality.release import KINDS, plan_release
from ranklake.quality.release import apply as apply_release
from ranklake.quality.release import approve as approve_release
from ranklake.quality.trust import Input, inputs_of
from ranklake.quality.why.explain import explain, result_counts
from ranklake.retention.proposals.identities import APPLY
from ranklake.retention.proposals.releases import RELEASES, Hold, Item, Release, holds
from ranklake.views.json_output import show_json
from ranklake.views.quality import explanation_lines
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell

_ITEMS = (*map(TextColumn, ("what", "table", "partition")), *numbers(("rows",)), TextColumn("about"))

_by = click.option(
    "--by", metavar="NAME", help="Who does it; default: your login name. Where approvals are signed, the key tells."
)
_alone = click.option(
    "--single-operator",
    is_flag=True,
    help="Let one person propose and approve; recorded in the audit log. Not if approvals are signed.",
)


@click.group(cls=Group)
def release() -> None:
    """Propose, approve and apply the release of held partitions, of rows in quarantine, and of refused segments."""


@release.command()
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option("--date", "day", metavar="DATE", type=click.DateTime(["%Y-%m-%d"]), help="Only of this date.")
@click.option(
    "--only", type=click.Choice(KINDS), help="Only partitions that are held, rows in quarantine, or refused segments."
)
@click.option("--reason", metavar="TEXT", required=True, help="What was fixed; recorded in the register.")
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
    signature_options: SigningOptions,
    as_json: bool,
) -> None:
    """Propose to release held partitions, rows in quarantine that pass today's contracts, and refused segments.

    A refused segment is proposed if today's rules would accept it; the next ingest checks it again. Rows that a person
    disowned, of dates that retention removed, or that the table has already, are not released. The person who proposes
    is the author, and cannot approve.
    """
    lake = context.open_lake()
    if signature_options.text_only:
        raise click.UsageError("--statement is for approve and apply: what is proposed is not known before")
    who = signature_options.who(lake, "ranklake quality release plan", by)
    kinds = KINDS if only is None else (only,)
    result = plan_release(
        lake,
        who,
        reason,
        tables,
        None if day is None else day.date(),
        kinds,
        spool=_spool(context),
        signing=signature_options.signing,
    )
    if as_json:
        show_json({**result.plain(), **mode_facts(lake)})
        return
    _show(result, lake.config.approvals)
    tell_mode(lake)


release.add_command(
    approval_command(
        RELEASES,
        approve_release,
        "Approve a release that another person proposed.",
        metavar="RELEASE",
        then=lambda release, named: f"apply it with '{named(RELEASES.to_apply(release.name))}'",
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
def apply(
    context: Context,
    name: str,
    by: str | None,
    *,
    single_operator: bool,
    signature_options: SigningOptions,
    as_json: bool,
) -> None:
    """Release exactly the items of an approved release. If it is interrupted, run it again."""
    lake = context.open_lake()
    if signature_options.text_only:
        signature_options.print_statement(lake, RELEASES, name, APPLY, by)
        return
    who = signature_options.who(lake, f"ranklake quality release apply {name}", by)
    spool = _spool(context)
    result, fresh = apply_release(
        lake, name, who, spool=spool, single_operator=single_operator, signing=signature_options.signing
    )
    if as_json:
        show_json({"applied_now": fresh, **mode_facts(lake), **result.plain()})
        return
    then = (
        "ranklake ingest judges the segments again"
        if result.of("segment")
        else "ranklake check and ranklake rollup go on with it"
    )
    results = f"by plan {result.plan}; {then}"
    tell(f"{name}: {_sums(result)} released {results}" if fresh else f"{name}: applied already, {results}")
    tell_mode(lake)


@release.command("list")
@lake_option
@json_option
@with_context
def list_(context: Context, *, as_json: bool) -> None:
    """List releases and their state."""
    results = RELEASES.register(context.open_lake()).values()
    if as_json:
        show_json([one.plain() for one in results])
        return
    for item in results:
        tell(f"{item.name}  {item.state:<8}  {_sums(item)}")
    if not results:
        tell("no releases")


def _show(release: Release, section: ApprovalsSection) -> None:
    lines = [
        (one.item_kind, one.table, str(one.partition_date), f"{one.rows:,}", one.about)
        for one in release.items
        if one.item_kind != "segment"
    ]
    tell(*table_lines(_ITEMS, [*lines, *_segments(release.of("segment"))]))
    then = {
        "proposed": f"nobody approved it yet: {section.by_somebody(RELEASES.to_approve(release.name))}",
        "approved": f"approved: ranklake quality release apply {release.name}",
        "applied": "applied",
        "altered": "its items were altered",
    }
    tell(f"release {release.name}: {_sums(release)}; {then[release.state]}")


def _segments(items: Sequence[Item]) -> Iterator[tuple[str, ...]]:
    """Yield a line for all segments of a table that were refused on a date for one reason."""
    rows: dict[tuple[str, str, str], list[int]] = {}
    for item in items:
        rows.setdefault((item.table, str(item.partition_date), item.about.rpartition(": ")[0]), []).append(item.rows)
    for (table, day, reason), reasons in rows.items():
        yield "segment", table, day, f"{sum(reasons):,}", f"{counted(len(reasons), 'segment')} {reason}"


def _sums(release: Release) -> str:
    facts = release.facts
    segments = f", {counted(facts['segments'], 'segment')}" if "segments" in facts else ""
    return f"{counted(facts['partitions'], 'partition')}, {counted(facts['rows'], 'row')}{segments}"


def _spool(context: Context) -> Spool | None:
    return context.spool() if context.has_spool else None


@click.command()
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option(
    "--date", "day", metavar="DATE", type=click.DateTime(["%Y-%m-%d"]), help="Only failures in this partition."
)
@click.option("--check", "check_id", metavar="ID", help="Only failures of this check.")
@click.option(
    "--limit", type=click.IntRange(1), default=10, show_default=True, help="Most failures to explain, worst first."
)
@lake_option
@json_option
@with_context
def why(
    context: Context, tables: tuple[str, ...], day: datetime | None, check_id: str | None, limit: int, *, as_json: bool
) -> None:
    """Show the host, rank, run, version or hour that rows failing a check have in common.

    Reads the rows of the failures that the last checks found; nothing is written. For each value, shows how many of its
    rows fail, and how many of the other rows. Classified values are not shown.
    """
    chosen = None if day is None else day.date()
    results = explain(context.open_lake(), tables or None, day=chosen, check_id=check_id, limit=limit)
    if as_json:
        failures = [one.plain() for one in results]
        show_json(failures)
        if not failures:  # an empty list alone would look like success
            tell(
                _no_failures_text(result_counts(context.open_lake(), tables or None, day=chosen, check_id=check_id)),
                err=True,
            )
        return
    shown_count = 0
    for item in results:
        shown_count += 1
        tell(*explanation_lines(item))
    if not shown_count:
        tell(_no_failures_text(result_counts(context.open_lake(), tables or None, day=chosen, check_id=check_id)))
    elif shown_count == limit:
        tell(f"the worst {counted(limit, 'failure')}; more with --limit")


def _no_failures_text(states: Counter[str]) -> str:
    """Explain why there is no failure, from the number of results by state."""
    if not states:
        return "nothing was checked here yet: run 'ranklake check'"
    unknown = f"; {counted(states['errored'], 'check')} could not be computed" if states["errored"] else ""
    return f"no check failed here{unknown}"


_HELD = (*map(TextColumn, ("table", "partition", "severity")), *numbers(("rows failed",)), TextColumn("checks"))
_INPUTS = tuple(map(TextColumn, ("state", "input", "its partition", "read by", "for", "checks")))


@click.group(cls=Group)
def quality() -> None:
    """Show partitions that checks hold back from rollups and why, release them after a fix, and export results."""


quality.add_command(why)
quality.add_command(release)


@quality.command()
@lake_option
@json_option
@with_context
def held(context: Context, *, as_json: bool) -> None:
    """List partitions that checks hold back from rollups."""
    result = holds(context.open_lake().tables)
    if as_json:
        show_json([one.plain() for one in result])
    elif result:
        tell(*table_lines(_HELD, map(_hold, result)))
        tell("rollups of them stay as they are; after a fix: ranklake check, or ranklake quality release plan")
    else:
        tell("nothing is held back")


@quality.command()
@click.argument("table")
@click.option("--date", "day", metavar="DATE", type=click.DateTime(["%Y-%m-%d"]), help="Rows of this date.")
@click.option("--run", metavar="RUN", help="Rows of this run, for a rollup of whole runs.")
@lake_option
@json_option
@with_context
def inputs(context: Context, table: str, day: datetime | None, run: str | None, *, as_json: bool) -> None:
    """Show the quality of a rollup's inputs, by partition, through all intermediate tables."""
    result = inputs_of(context.open_lake(), table, _day(day), run)
    if as_json:
        show_json([one.plain() for one in result])
    elif result:
        tell(*table_lines(_INPUTS, map(_input, result)))
    else:
        tell("nothing was computed")


@quality.command()
@click.option(
    "--out", metavar="FOLDER", required=True, type=click.Path(path_type=Path, file_okay=False), help="Where it stands."
)
@click.option("--table", "tables", metavar="TABLE", multiple=True, help="Only this table; may be given several times.")
@lake_option
@json_option
@with_context
def export(context: Context, out: Path, tables: tuple[str, ...], *, as_json: bool) -> None:
    """Write suites and results of the last checks as a project that Great Expectations opens, with its Data Docs.

    Pages load nothing from the network. An earlier export in FOLDER is replaced; other files there stay.
    """
    result = export_project(context.open_lake(), out, tables or None)
    if as_json:
        show_json(result.plain())
        return
    counts = f"{counted(result.suites, 'suite')}, {counted(result.expectations, 'expectation')}"
    tell(f"{counts}, {counted(result.results, 'validation result')}; open {result.index}")
    if result.unexpressed:
        tell(f"{counted(result.unexpressed, 'check')} have no word there: they are in results only")


def _day(moment: datetime | None) -> date | None:
    return None if moment is None else moment.date()


def _hold(hold: Hold) -> tuple[str, ...]:
    return (hold.table, str(hold.partition_date), hold.severity, f"{hold.rows_failed:,}", ", ".join(hold.checks))


def _input(source: Input) -> tuple[str, ...]:
    state = f"{source.state}, released" if source.is_released else source.state
    return (
        state,
        source.table,
        source.partition,
        source.output_table,
        source.output_partition,
        ", ".join(source.checks),
    )
