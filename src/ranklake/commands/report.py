"""``ranklake report``: pages about the lake, as static HTML."""

import click

from ranklake.commands.completion import complete_roles, complete_runs
from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.context import Context
from ranklake.pipeline.calls import report_as, report_of
from ranklake.pipeline.report_sections import SECTIONS, compliance_of
from ranklake.printable import counted
from ranklake.retention.report.compliance import markdown
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell, tell_broken

RECORD = "record"
_HELP = """Write pages about the lake: HTML that opens from a disk or a bucket, without a network.

Without SECTION, writes all. Only pages that changed are written, from what earlier commands computed: run 'ranklake
pipeline' first. Exits 0 even if the pages report problems, and 1 if a section could not be made. A script learns of
problems from 'ranklake status' and 'ranklake check'. With --role, writes what the role may see, and says which
sections are left out.

\b
Sections:
{sections}

'ranklake report record' writes no page; it prints the data-protection record: what is held about people, for what,
how long, and who receives it, as Markdown or, with --json, as JSON.
""".format(sections="\n".join(f"  {name:<12}{section.about}" for name, section in SECTIONS.items()))


@click.command(help=_HELP)
@click.argument("sections", nargs=-1, metavar="[SECTION]...", type=click.Choice([*SECTIONS, RECORD]))
@click.option(
    "--out",
    default="",
    metavar="URI",
    help="Folder or URI to write the site to.  [default: [report] out, or report; for a role report-ROLE]",
)
@click.option(
    "--run",
    default="",
    shell_complete=complete_runs,
    help="Include a page of this run, even an old one; the beginning of its name is enough.",
)
@click.option(
    "--role",
    shell_complete=complete_roles,
    help="Write only what this role may see, to a separate folder. [sql] roles in ranklake.toml names the roles' file.",
)
@lake_option
@json_option
@with_context
def report(
    context: Context, sections: tuple[str, ...], out: str, run: str, role: str | None, *, as_json: bool
) -> int | None:
    """Write sections of the report; print the headline and page of the first."""
    if RECORD in sections:
        if len(sections) > 1 or out or run or role is not None:
            raise click.UsageError("record is printed by itself: ranklake report record")
        return _print_record(context, as_json=as_json)
    linked = [other for name in sections for other in SECTIONS[name].links_to]
    names = tuple(dict.fromkeys((*sections, *linked))) or tuple(SECTIONS)
    # An empty name is an error: an unset variable in a script must not write the site of everything.
    seen_by = None
    if role is not None:
        lake = context.open_lake()
        seen_by = noted_role_of(context, lake, role)  # and log the use of the role
    if seen_by is None:
        place = out or context.config.report.out or "report"
        result = report_of(Context.of(context.config, {"report.out": place}), names, run)
    else:
        result = report_as(
            Context.of(context.config, {"report.out": out or f"report-{role}"}), lake, names, run, seen_by
        )
    code = 1 if result["broken"] else 0
    if as_json:
        show_json(result)
        return code
    headline, wrote = next(result[name]["headline"] for name in names if name in result), result["published"]
    pages = f"{counted(wrote['pages'], 'page')}, {wrote['written']:,} written"
    first = wrote["first"] if sections else "index.html"
    tell(f"{headline}; {pages}: {wrote['out']}/{first}")
    for name, reason in result.get("left_out", {}).items():
        tell(f"left out for role {role}: {name}: {reason}", err=True)
    tell_broken(result)
    return code


def _print_record(context: Context, *, as_json: bool) -> int:
    facts = compliance_of(context, context.open_lake())
    if as_json:
        show_json([entry.plain() for entry in facts.record])
    else:
        click.echo(markdown(facts.record, facts.lake, facts.policies))  # noqa: TID251 - a document, as it is
    return 0
