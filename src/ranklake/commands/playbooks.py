"""``ranklake playbooks``: automated steps for incidents: notify, check, propose, act."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import Group, json_option, lake_option, overriding
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.insight.incidents.actions import UNKNOWN
from ranklake.lake.audit.trail import record
from ranklake.lake.store.files import delete
from ranklake.pipeline.calls import FAILED_STEPS, playbook_runner
from ranklake.pipeline.playbooks.file import Playbooks, keys_of, load_playbooks
from ranklake.pipeline.playbooks.running import DUE, STOPPED, StepState, StoppedError, run_cases, subject_of
from ranklake.printable import counted, printable
from ranklake.retention.proposals.identities import account
from ranklake.terminal import width
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, fitting
from ranklake.views.tell import tell

if TYPE_CHECKING:
    from ranklake.pipeline.playbooks.file import Step

files_option = overriding(
    "--playbooks",
    place="playbooks.files",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="File of playbooks, or folder of such files; default: as configured.",
)


@click.group(cls=Group)
def playbooks() -> None:
    """Run playbooks, which notify, check, propose or act on incidents. Nothing acts without --apply."""


@playbooks.command("list")
@files_option
@lake_option
@json_option
@with_context
def list_playbooks(context: Context, *, as_json: bool) -> None:
    """List playbooks with their steps, and whether they are stopped."""
    known = _load(context)
    lake = context.open_lake()
    stopped = playbook_runner(context, lake, known, "").stop_reason()
    if as_json:
        show_json(playbook_facts(known, stopped))
        return
    tell(*playbook_lines(known))
    if stopped:
        tell(f"nothing acts: {stopped}")


@playbooks.command("test")
@files_option
@json_option
@with_context
def test(context: Context, *, as_json: bool) -> int:
    """Run the tests in the files: given incidents, expected steps. Exits 1 if one fails.

    Opens no lake and runs no steps.
    """
    results = run_cases(_load(context))
    failed = [result for result in results if not result.passed]
    if as_json:
        show_json([result.plain() for result in results])
    else:
        tell(*(result.line for result in failed), f"{counted(len(results), 'test')}, {len(failed):,} failed")
    return 1 if failed else 0


@playbooks.command("run")
@click.argument("incidents", metavar="[ID]...", nargs=-1)
@click.option("--apply", "is_applied", is_flag=True, help="Run the steps; by default they are only shown.")
@click.option("--again", is_flag=True, help="Repeat steps that failed, or that have no recorded outcome.")
@files_option
@lake_option
@json_option
@with_context
def run(context: Context, incidents: tuple[str, ...], *, is_applied: bool, again: bool, as_json: bool) -> int:
    """Show the steps of playbooks for incidents, or, with --apply, run them. Exits 1 if a step fails.

    Without an ID, for unmarked incidents that are not too old. Each step runs once for an incident.
    """
    lake = context.open_lake()
    runner = playbook_runner(context, lake, _load(context), account(lake) if is_applied else "")
    if is_applied and (reason := runner.stop_reason()):
        raise StoppedError("nothing acts", where=reason, hint="ranklake playbooks resume --why TEXT")
    planned = runner.plan(incidents, again=again)
    states = list(runner.run(planned, act=True)) if is_applied else planned
    if as_json:
        show_json({"applied": is_applied, "steps": [state.plain() for state in states]})
    elif states:
        tell(*state_lines(states, width()))
    else:
        tell("no incident leads to a step")
    if not is_applied and any(state.outcome == DUE for state in states):
        tell("nothing was done; --apply does it", err=True)
    pairs = zip(planned, states, strict=True)
    return int(any(before.outcome == DUE and after.outcome in FAILED_STEPS for before, after in pairs))


@playbooks.command("stop")
@click.option("--why", required=True, metavar="TEXT", help="Why; kept in the audit log.")
@lake_option
@with_context
def stop(context: Context, *, why: str) -> None:
    """Stop all playbooks on this lake, on every machine; checked before each step that acts."""
    lake = context.open_lake()
    is_new = lake.put_if_absent(STOPPED, " ".join(why.split()).encode())  # stop first: writing the audit log may fail
    record(lake, account(lake), "playbook.stop", STOPPED, why)
    tell("playbooks are stopped" if is_new else "playbooks were stopped before")


@playbooks.command("resume")
@click.option("--why", required=True, metavar="TEXT", help="Why; kept in the audit log.")
@lake_option
@with_context
def resume(context: Context, *, why: str) -> None:
    """End what stop did."""
    lake = context.open_lake()
    record(lake, account(lake), "playbook.resume", STOPPED, why)
    tell("playbooks go on" if delete(lake.store, lake.path(STOPPED)) else "playbooks were not stopped")


def _load(context: Context) -> Playbooks:
    files = context.config.playbooks.files
    if not files:
        hint = "pass --playbooks PATH, or write files under [playbooks] in ranklake.toml"
        raise RanklakeError("no playbooks are configured", where="ranklake playbooks", hint=hint)
    return load_playbooks(Path(files))


_STATES: Final = tuple(map(TextColumn, ("incident", "playbook", "step", "how it stands", "what")))
_MAY: Final = "it may have run: look, then repeat it by --again"


def playbook_lines(playbooks: Playbooks) -> Iterator[str]:
    """Yield each playbook with its steps."""
    for name, book in playbooks.playbooks.items():
        yield f"{name} ({printable(book.owner)}): {printable(keys_of(book.where))}; {book.per_hour:,} steps an hour"
        yield f"  {printable(book.reason)}"
        for step in book.steps:
            where = f" if {printable(keys_of(step.where))}" if list(step.where.patterns()) else ""
            yield f"  - {step.name}: {_kind(step)} {printable(subject_of(step))}{where}"


def playbook_facts(playbooks: Playbooks, stopped: str) -> dict[str, Any]:
    """Return playbooks as plain JSON values."""
    return {
        "stopped": stopped or None,
        "playbooks": [
            {
                "name": name, "owner": book.owner, "reason": book.reason, "per_hour": book.per_hour,
                "where": {key: list(texts) for key, texts in book.where.patterns()},
                "steps": [
                    {"name": step.name, "kind": step.kind, "acts": step.acts, "subject": subject_of(step),
                     "where": {key: list(texts) for key, texts in step.where.patterns()}}
                    for step in book.steps
                ],
            }
            for name, book in playbooks.playbooks.items()
        ],
    }  # fmt: skip


def _kind(step: "Step") -> str:
    return step.kind if step.acts else f"propose {step.kind}" if step.kind != "propose" else "propose:"


def state_lines(states: Sequence[StepState], width: int | None) -> list[str]:
    """Return the states of steps as a table."""
    cells = [
        (printable(state.incident.id), state.match.name, state.match.step.name,
         state.outcome if state.match.step.acts or state.outcome != "due" else "due, as a proposal",
         printable(_MAY if state.outcome == UNKNOWN else state.note or subject_of(state.match.step)))
        for state in states
    ]  # fmt: skip
    return fitting(_STATES, cells, width)
