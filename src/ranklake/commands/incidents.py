"""``ranklake incidents`` and ``ranklake detectors``: faults with evidence and likely causes, and their detectors."""

import click

from ranklake.capture.common.values import BadValueError
from ranklake.capture.provenance.annotations import incident_mark
from ranklake.commands.completion import complete_runs
from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import Group, json_option, lake_option, role_option, spool_option, with_config
from ranklake.commands.spool_rows import send_rows
from ranklake.config import Config
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.insight.incidents.actions import actions
from ranklake.insight.incidents.incidents import find_incident, likely_causes
from ranklake.insight.incidents.incidents import incidents as all_incidents
from ranklake.insight.runs.asking import Ask, asking
from ranklake.insight.runs.checkpoints import last_good_checkpoint
from ranklake.insight.runs.find import NoSuchRunError, find_run
from ranklake.lake.query.literal import literal
from ranklake.lake.rollups.registry import detectors_with
from ranklake.printable import counted
from ranklake.segments.segment import AGENT_JOB
from ranklake.terminal import width
from ranklake.views.incidents import list_facts, list_lines, resume_text, retrospective, show_lines
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, table_lines
from ranklake.views.tell import tell

_COLUMNS = tuple(map(TextColumn, ("detector", "severity", "watches", "thresholds")))
_FACTS = ("name", "watches", "finds", "table", "effect", "severity", "runbook", "false_positive_target")


@click.command()
@json_option
@with_config
def detectors(config: Config, *, as_json: bool) -> None:
    """List the detectors of faults: the signals of each, and its thresholds, which are settings."""
    listed = detectors_with(config.lake_config)
    if as_json:
        show_json(
            [
                {
                    **{name: getattr(each, name) for name in _FACTS},
                    "grain": list(each.grain),
                    "columns": list(each.columns),
                    "thresholds": thresholds,
                }
                for each, thresholds in listed
            ]
        )
        return
    rows = [
        (each.name, each.severity, each.watches, " ".join(f"{name}={value:g}" for name, value in limits.items()))
        for each, limits in listed
    ]
    tell(*table_lines(_COLUMNS, rows))


NO_RUN = f"{AGENT_JOB}-incidents"
"""Name of the run for marks of incidents outside of runs; rollups of runs skip it."""


class _ListByDefault(Group):
    """Lists incidents if no command is given, as in ``ranklake incidents --open``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in {"-h", "--help"}):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListByDefault)
def incidents() -> None:
    """Show incidents with evidence and likely causes, and mark them; without a command, list them.

    An incident groups related findings of detectors. 'ranklake check --incidents' lists failures of checks.
    """


@incidents.command("list")
@click.option("--run", "run", default="", metavar="RUN", shell_complete=complete_runs, help="Incidents of this run.")
@click.option("--open", "only_open", is_flag=True, help="Only those that need a look: not resolved, false or muted.")
@role_option
@json_option
@lake_option
@with_context
def list_incidents(context: Context, *, run: str, only_open: bool, role: str | None, as_json: bool) -> None:
    """List incidents, the worst first, with place and time."""
    lake = context.open_lake()
    ask = asking(lake, noted_role_of(context, lake, role))
    answer = all_incidents(ask, _run_of_incidents(ask, run) if run else "")
    answer.answered.seen()
    shown = [one for one in answer.listed if one.needs_a_look or not only_open]
    if as_json:
        show_json(list_facts(answer, shown))
        return
    if shown:
        tell(*list_lines(shown, width()))
        tell("ranklake incidents show ID says more", err=True)
    else:
        left = len(answer.listed)
        tell(f"no incident is open; {counted(left, 'other')} listed without --open" if left else "no incident")


def _run_of_incidents(ask: Ask, text: str) -> str:
    """Return the run of a name; before the first rollup, runs are those of incidents."""
    try:
        return find_run(ask, text)
    except NoSuchRunError:
        if not ask(f"SELECT run FROM incidents WHERE run = {literal(text)} LIMIT 1").rows:  # noqa: S608 - quoted
            raise
        return text


@incidents.command("show")
@click.argument("name", metavar="ID")
@click.option("--markdown", "as_markdown", is_flag=True, help="Write a retrospective as Markdown.")
@role_option
@json_option
@lake_option
@with_context
def show_incident(context: Context, *, name: str, as_markdown: bool, role: str | None, as_json: bool) -> None:
    """Show an incident: evidence, likely causes, remedies, and marks by people.

    ID may be the beginning of one. --json has the SQL of the evidence.
    """
    lake = context.open_lake()
    ask = asking(lake, noted_role_of(context, lake, role))
    shown = find_incident(ask, name)
    causes, lines = likely_causes(ask, shown)
    by_playbooks = actions(ask, shown.ids).listed
    checkpoint = last_good_checkpoint(ask, shown.facts["run"], shown.facts["start_ts"])
    if as_json:
        likely = [
            {"name": signature.name, "cause": signature.cause, "confidence": signature.confidence,
             "fix": signature.remedy(resume_text(checkpoint), shown.facts["run"] or "RUN"), "log_line": line or None}
            for signature, line in causes
        ]  # fmt: skip
        good = {"last_good_checkpoint": checkpoint.plain(), "playbooks": list(by_playbooks)}
        show_json({**shown.plain(), "causes": likely, "log_lines_sql": lines.sql or None, **good})
    elif as_markdown:
        tell(*retrospective(shown, causes, checkpoint, by_playbooks).splitlines())
    else:
        tell(*show_lines(shown, causes, checkpoint, by_playbooks))


@incidents.command("mark")
@click.argument("name", metavar="ID")
@click.option("--ack", "acknowledged", is_flag=True, help="Somebody works on it.")
@click.option("--resolved", "resolved", is_flag=True, help="Mark as resolved; later findings open it again.")
@click.option(
    "--false", "is_false", is_flag=True, help="Mark as a false alarm: mutes its detector for the job until reopened."
)
@click.option("--reopen", "reopened", is_flag=True, help="Open it again; unmutes its detector after --false.")
@click.option("--why", required=True, metavar="TEXT", help="Why; kept with the mark.")
@json_option
@lake_option
@spool_option
@with_context
def mark_incident(context: Context, *, name: str, why: str, as_json: bool, **flags: bool) -> None:
    """Mark an incident as acknowledged, resolved, a false alarm, or open again.

    A mark is a row of the table annotations: nothing is overwritten, and the last mark is valid after the next ingest.
    """
    named_marks = [flag.removeprefix("is_") for flag, is_set in flags.items() if is_set]
    if len(named_marks) != 1:
        hint = "write one of --ack, --resolved, --false, --reopen"
        problem = "several marks are named" if named_marks else "no mark is named"
        raise RanklakeError(problem, where="ranklake incidents mark", hint=hint)
    (mark,) = named_marks
    shown = find_incident(asking(context.open_lake()), name)
    try:
        row = incident_mark(shown.id, mark, why)
    except BadValueError as error:
        raise RanklakeError(str(error), where="--why", hint="say in a few words why") from error
    send_rows(context, shown.facts["run"] or NO_RUN, [row])
    if as_json:
        show_json({"incident": shown.id, "mark": mark, "why": row["text"]})
    else:
        tell(f"incident {shown.id} marked {mark} in the spool; 'ranklake ingest' brings it in")
        if mark == "false":
            names = (shown.facts[kind] for kind in ("job", "run", "host", "device_uuid"))
            subject = next(filter(None, names), "all that is outside of runs, hosts and devices")
            tell(f"that mutes {shown.facts['kind']} for {subject} until somebody reopens the incident", err=True)
