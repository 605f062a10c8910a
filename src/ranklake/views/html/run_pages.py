"""The pages of runs: a list of them, and one a run; facts of `ranklake.insight.runs`."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from ranklake.insight.runs.asking import Row
from ranklake.insight.runs.caveats import Caveats
from ranklake.insight.runs.report import RunsState
from ranklake.views.html.figures import Column, FactTable, Figure, sourced, time_text
from ranklake.views.html.run_page import LOW_MFU, page_facts
from ranklake.views.html.run_tables import STATES
from ranklake.views.html.shell import Entry, Page, file_stem
from ranklake.views.html.site import Section
from ranklake.views.runs import tag_words
from ranklake.views.words import counted, loss_text, number_text, percent_text
from ranklake.views.words import time_text as length_text

SECTION: Final = "runs"
HOME: Final = f"{SECTION}/index.html"
_TOTALS: Final = (
    ("runs", "runs", "{run}", "", "Runs that the lake tells of: those with a row in run_summary."),
    ("failed", "failed", "{run}", "failing", "Runs whose last attempt failed, or was abandoned without a word."),
    ("preempted", "preempted", "{run}", "warning", "Runs whose last attempt was asked to end."),
    ("running", "running", "{run}", "", "Runs whose last attempt goes on, as far as is known."),
    ("finished", "finished", "{run}", "", "Runs whose last attempt told that it ended well."),
    ("with_stragglers", "with stragglers", "{run}", "warning", "Runs in which a rank held the others up."),
    ("low_mfu", "MFU below 30 %", "{run}", "warning", "Runs whose MFU is known and below 0.3."),
    ("restarts", "restarts", "{restart}", "", "Attempts after the first, of all runs."),
)  # fmt: skip
COLUMNS: Final = (
    Column("run", "Its name; the latest runs have a page.", "run"),
    Column("status", "How its last attempt ended.", "status"),
    Column("began", "When its first attempt began.", "ts", text=time_text),
    Column("took", "Wall time of all attempts.", "wall_ns", "ns", is_number=True,
           text=lambda ns: length_text(ns / 1e9)),
    Column("steps", "Of all attempts.", "steps", "{step}", is_number=True),
    Column("last loss", "Mean loss over ranks of the last step that logged one.", "last_loss", "1", is_number=True,
           text=number_text),
    Column("tokens/s", "Tokens over the time of the steps that counted them.", "tokens_per_s", "{token}/s",
           is_number=True, text=number_text),
    Column("mean step", "Over all ranks and steps.", "mean_step_time_s", "s", is_number=True, text=length_text),
    Column("MFU", "Model FLOPs over the peak of its devices; see the run's page.", "mfu_ratio", "ratio",
           is_number=True, text=percent_text),
    Column("goodput", "Time in steps that count over wall time.", "goodput_ratio", "ratio", is_number=True,
           text=percent_text),
    Column("ranks", "As the run recorded.", "world_size", "{rank}", is_number=True),
    Column("restarts", "Attempts after the first.", "restarts", "{restart}", is_number=True),
    Column("straggler", "The rank that held the others up most.", "straggler_rank", is_number=True),
    Column("job", "Job that it belongs to.", "job"),
)  # fmt: skip


def section(found: RunsState) -> Section:
    """Return the pages of runs: the list, and one a run that has a mark."""
    totals = found.totals.one
    headline = _headline(totals)
    state = _state(found)
    by_name = {str(row["run"]): row for row in found.listed.rows}
    entries = [
        Entry(_called(found, run), "run", str(by_name[run]["status"]) if run in by_name else "run", href(run))
        for run in found.marks
    ]
    pages = [_index(found, headline, state), *(_page(found, run, mark) for run, mark in found.marks.items())]
    return Section(SECTION, "Runs", state, headline, HOME, tuple(pages), tuple(entries))


def href(run: str) -> str:
    """Return the path of a run's page: its name where a file may have it, with a digest so that no two are one."""
    return f"{SECTION}/run-{file_stem(run)}.html"


def _headline(totals: Row) -> str:
    if not totals.get("runs"):
        return "No runs yet"
    told = [f"{totals[name]:,} {name}" for name in ("failed", "preempted", "running") if totals[name]]
    if totals["with_stragglers"]:
        told.append(f"{totals['with_stragglers']:,} with stragglers")
    return f"{counted(totals['runs'], 'run')}: {', '.join(told)}" if told else counted(totals["runs"], "run")


def _state(found: RunsState) -> str:
    totals = found.totals.one
    if not totals.get("runs"):
        return "unchecked"
    return "failing" if totals["failed"] else "warning" if totals["preempted"] else "passed"


def _index(found: RunsState, headline: str, state: str) -> Page:
    told = "\n".join(
        [
            found.lake,
            headline,
            *map(repr, (found.totals, found.listed, found.caveats.failed, found.said, found.teams)),
            *found.marks,
        ]
    )
    digest = hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()
    return Page(HOME, "Runs", "runs.html", partial(_index_facts, found, headline, state), digest)


def _index_facts(found: RunsState, headline: str, state: str) -> Mapping[str, Any]:
    source = sourced("totals", found.totals)
    totals = found.totals.one
    table = FactTable(
        f"Runs, newest first{_cut(found)}", sourced("runs", found.listed), COLUMNS, ["run"], "runs",
        found.listed.rows, {run: href(run) for run in found.marks}, STATES, "No runs: run 'ranklake pipeline' first.",
        {run: _note(found, run) for run in found.said}, marks_of(found.listed.rows, found.caveats),
    )  # fmt: skip
    figures = [
        Figure(label, totals.get(name), unit, definition, source, name, mark if totals.get(name) else "")
        for name, label, unit, mark, definition in _TOTALS
    ]
    return {"lake": found.lake, "headline": headline, "state": state, "figures": figures, "table": table}


def _note(found: RunsState, run: str) -> str:
    """Return what people call a run, its team and its tags."""
    said, team = found.said[run], found.teams.get(run)
    return " · ".join([said.name, *([f"team {team}"] if team else []), *tag_words(said.tags)])


def _called(found: RunsState, run: str) -> str:
    """Return what a search finds a run by: its id, what people call it, its team, its tags, its job."""
    row = next((row for row in found.listed.rows if row["run"] == run), {})
    return " · ".join([run, _note(found, run), *([f"job {row['job']}"] if row.get("job") else [])])


def marks_of(rows: Sequence[Row], caveats: Caveats) -> dict[tuple[Any, str], tuple[str, str]]:
    """Return what stands in cells of a table of runs: losses that are no numbers, and which numbers are in doubt."""
    marks = {}
    for row in rows:
        for column in COLUMNS:
            if row.get(column.name) is not None and (doubt := caveats.of(row["run"], column.name)):
                marks[row["run"], column.name] = ("check failed", doubt)
        if row["last_loss_flag"]:
            first = f"not finite first in step {row['non_finite_loss_step']:,}"
            marks[row["run"], "last_loss"] = (loss_text(row), first)
    return marks


def _cut(found: RunsState) -> str:
    shown, every = len(found.listed.rows), found.totals.one.get("runs") or 0
    return f": the latest {shown:,} of {every:,}" if every > shown else ""


def _page(found: RunsState, run: str, mark: str) -> Page:
    facts = partial(page_facts, found.ask, found.why, run, found.units, found.scalars, is_for_role=found.is_for_role)
    return Page(href(run), run, "run.html", facts, f"{mark} {LOW_MFU}", (("Runs", HOME),))
