"""``ranklake report``: pages about the lake, as a site of HTML that needs no server."""

import click

from ranklake.commands.completing import complete_roles, complete_runs
from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import json_option, lake_option, optional_lake
from ranklake.context import Context
from ranklake.pipeline.calls import report_as, report_of
from ranklake.pipeline.report_sections import SECTIONS, compliance_of
from ranklake.retention.report.record import markdown
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell, tell_broken
from ranklake.views.words import counted

_out_option = click.option(
    "--out",
    default="",
    metavar="URI",
    help="Folder or URI to write the site to.  [default: [report] out, or report; of a role report-ROLE]",
)


_role_option = click.option(
    "--role",
    shell_complete=complete_roles,
    help="Write what this role, of the file that [sql] roles in ranklake.toml names, sees; to a place of its own.",
)
_run_option = click.option(
    "--run",
    default="",
    shell_complete=complete_runs,
    help="Have a page of this run, however old it is; the beginning of its name will do.",
)


@click.group(invoke_without_command=True)
@_out_option
@_run_option
@_role_option
@optional_lake("URI or folder of the lake.")
@json_option
@with_context
@click.pass_context
def report(
    ctx: click.Context, /, context: Context, out: str, run: str, role: str | None, *, as_json: bool
) -> int | None:
    """Write pages about the lake: HTML that opens from a disk or a bucket, without a network.

    Without a command, writes all sections. Only pages that changed are written. With --role, writes those that tell
    what the role's own queries would tell, and says which are left out.
    """
    if ctx.invoked_subcommand is None:
        return _write(context, tuple(SECTIONS), out, run, role, as_json=as_json)
    if out or run or role is not None or as_json:
        raise click.UsageError(f"give options behind the section: ranklake report {ctx.invoked_subcommand} --out URI")
    return None


@report.command()
@_out_option
@lake_option
@json_option
@with_context
def quality(context: Context, out: str, *, as_json: bool) -> int:
    """Write the pages of data quality: what fails, worst first, by table, check and partition.

    Reads the results of earlier checks; run 'ranklake check' first. Writes only the pages that changed. Exits 0
    whatever the state is; 'ranklake check' is what tells a script.
    """
    return _write(context, ("quality",), out, as_json=as_json)


@report.command()
@_out_option
@_run_option
@_role_option
@lake_option
@json_option
@with_context
def runs(context: Context, out: str, run: str, role: str | None, *, as_json: bool) -> int:
    """Write the pages of runs: a list, and one of each of the latest with curves, ranks, goodput and provenance.

    Reads the rollups; run 'ranklake rollup' first. Writes only the pages that changed.
    """
    return _write(context, ("runs",), out, run, role, as_json=as_json)


@report.command()
@_out_option
@lake_option
@json_option
@with_context
def oncall(context: Context, out: str, *, as_json: bool) -> int:
    """Write the page of what needs a look, worst first: ranks, runs, checks, devices, the pipeline, and next steps.

    All is told as of the last ingest; run 'ranklake pipeline' first. It links to the pages of runs, and writes these,
    too. Exits 0 whatever it tells; 'ranklake status' and 'ranklake check' are what tell a script.
    """
    return _write(context, ("oncall", "runs"), out, as_json=as_json)


@report.command()
@_out_option
@_role_option
@lake_option
@json_option
@with_context
def cluster(context: Context, out: str, role: str | None, *, as_json: bool) -> int:
    """Write the page of the cluster: nodes by hour, which stay low, utilization, queues, over its last 48 hours.

    Reads the rollups; run 'ranklake rollup' first. Hours are counted back from the last of which anything is told.
    """
    return _write(context, ("cluster",), out, role=role, as_json=as_json)


@report.command()
@_out_option
@_role_option
@lake_option
@json_option
@with_context
def executive(context: Context, out: str, role: str | None, *, as_json: bool) -> int:
    """Write the page of the fleet: device time, utilization, MFU, goodput, outcomes and cost, week by week.

    Reads the rollups; run 'ranklake rollup' first. Weeks are counted back from the last date of which anything is told.
    """
    return _write(context, ("executive",), out, role=role, as_json=as_json)


@report.command()
@_out_option
@lake_option
@json_option
@with_context
def pipeline(context: Context, out: str, *, as_json: bool) -> int:
    """Write the page of the pipeline: its stages, what waits for them, the last plans, checks that fail.

    All is told as of the last thing that a stage did; 'ranklake doctor' tells of now.
    """
    return _write(context, ("pipeline",), out, as_json=as_json)


@report.command()
@_out_option
@lake_option
@json_option
@with_context
def catalog(context: Context, out: str, *, as_json: bool) -> int:
    """Write the pages of the catalog: tables, columns with their classes, freshness, metrics, lineage as a drawing.

    Reads the catalog's tables; run 'ranklake catalog refresh' first, or the pipeline.
    """
    return _write(context, ("catalog",), out, as_json=as_json)


@report.command()
@_out_option
@lake_option
@json_option
@with_context
def governance(context: Context, out: str, *, as_json: bool) -> int:
    """Write the page of governance: policies against what is stored, what is due, waits, is held, was erased and went.

    Reads the catalog's tables; run 'ranklake catalog refresh' first. All is told as of today. Removes nothing.
    """
    return _write(context, ("governance",), out, as_json=as_json)


@report.command()
@_out_option
@lake_option
@json_option
@with_context
def compliance(context: Context, out: str, *, as_json: bool) -> int:
    """Write the page of compliance: which role sees which classified column how, grants and their use, keys, the trail.

    Also how the lake's store encrypts and where it is, and the data-protection record, which 'ranklake report record'
    prints.
    """
    return _write(context, ("compliance",), out, as_json=as_json)


@report.command()
@lake_option
@json_option
@with_context
def record(context: Context, *, as_json: bool) -> None:
    """Print the data-protection record: what is held about people, for what, how long, and who receives it.

    Contracts, policies and roles say it. Markdown, or with --json the same as JSON.
    """
    found = compliance_of(context, context.open_lake())
    if as_json:
        show_json([one.plain() for one in found.record])
    else:
        click.echo(markdown(found.record, found.lake, found.policies))  # noqa: TID251 - a document, as it is


def _write(
    context: Context, sections: tuple[str, ...], out: str, run: str = "", role: str | None = None, *, as_json: bool
) -> int:
    """Write sections; of several the first is told, and the others are a step away from it."""
    # An empty name is a role that nobody defined: a script's variable that is not set must not mean the whole site.
    seen_by = None if role is None else noted_role_of(context, lake := context.open_lake(), role)
    if seen_by is None:
        place = out or context.config.report.out or "report"
        done = report_of(Context.of(context.config, {"report.out": place}), sections, run)
    else:
        done = report_as(
            Context.of(context.config, {"report.out": out or f"report-{role}"}), lake, sections, run, seen_by
        )
    code = 1 if done["broken"] else 0
    if as_json:
        show_json(done)
        return code
    told, wrote = next(done[name]["headline"] for name in sections if name in done), done["published"]
    pages = f"{counted(wrote['pages'], 'page')}, {wrote['written']:,} written"
    tell(f"{told}; {pages}: {wrote['out']}/{wrote['first']}")
    for name, why in done.get("left_out", {}).items():
        tell(f"left out for role {role}: {name}: {why}", err=True)
    tell_broken(done)
    return code
