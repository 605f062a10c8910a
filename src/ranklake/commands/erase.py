"""``ranklake erase``."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import click

from ranklake.commands.context import with_context
from ranklake.commands.erase_certificate import certificate
from ranklake.commands.erase_steps import apply, approve, given_values, list_, plan
from ranklake.commands.options import json_option, lake_option, spool_option
from ranklake.context import Context
from ranklake.retention.erasure.keys import key_traces
from ranklake.retention.erasure.search import Trace, search
from ranklake.retention.subjects.state import LOST, key_state
from ranklake.views.json_output import show_json
from ranklake.views.progress import progress_bar
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import counted

_COLUMNS = (*map(TextColumn, ("place", "where")), *numbers(("files", "rows or times")), TextColumn("such as"))


@click.group()
def erase() -> None:
    """Find where a person's data, or a run's, is; erase it, and prove that.

    Only an erasure that somebody has approved takes anything.
    """


for _command in (plan, approve, apply, list_, certificate):
    erase.add_command(_command)


@erase.command()
@click.argument("values", metavar="VALUE...", nargs=-1, required=True)
@click.option(
    "--also",
    "folders",
    metavar="PATH",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Search this folder, too: local spools, Prefect's home. The configured report is. May be given several times.",
)
@lake_option
@spool_option
@json_option
@with_context
def find(context: Context, values: tuple[str, ...], folders: tuple[Path, ...], *, as_json: bool) -> int:
    """Search every file of the lake and the spool for VALUEs: names, addresses, names of runs.

    Reads them from standard input, one a line, where VALUE is -, so that no list of processes and no history of the
    shell has them. Looks into tables, old versions, logs, statistics, plans, quarantine, segments and packs, in letters
    of either case, and in JSON, HTML, URLs, base64 and hex. Hashes and pseudonyms of a value are not found; keys of
    subjects are. No value is shown. Exits 1 if anything is found, or could not be looked into.
    """
    given = given_values(values)
    lake, spool = context.open_lake(), context.spool() if context.has_spool else None
    with progress_bar("search") as progress:
        done = search(lake, spool, given, (*context.own_folders, *folders), progress=progress)
    done = replace(done, found=(*done.found, *key_traces(lake, given)))
    if as_json:
        show_json(done.plain())
        return 0 if done.is_clean else 1
    _table(done.found)
    if done.unsearched:
        tell("could not be looked into:")
        _table(done.unsearched)
    places = counted(len({one.place for one in done.found}), "kind") + " of places"
    tell(f"{counted(done.files, 'file')} searched: {f'found in {places}' if done.found else 'nothing found'}")
    return 0 if done.is_clean else 1


@erase.command()
@lake_option
@json_option
@with_context
def keys(context: Context, *, as_json: bool) -> int:
    """Say what became of the keys that columns are stored under: how many are there, forgotten, damaged, lost.

    Exits 1 if one is damaged or lost: restore its file from a backup, or erase whom it was of.
    """
    state = key_state(context.open_lake())
    if as_json:
        show_json(state.plain())
        return 0 if state.is_sound else 1
    for where, wrong, hint in state.faults:
        tell(f"{where}: {wrong}; {hint}")
    for column, rows in state.lost:
        tell(f"{column}: {counted(rows, 'row')} under keys that are lost; {LOST}")
    tell(f"{counted(state.keys, 'key')} of subjects, {state.forgotten:,} forgotten")
    return 0 if state.is_sound else 1


def _table(some: Iterable[Trace]) -> None:
    lines = [(one.place, one.where, f"{one.files:,}", f"{one.count:,}", one.examples[0]) for one in some]
    if lines:
        tell(*table_lines(_COLUMNS, lines))
