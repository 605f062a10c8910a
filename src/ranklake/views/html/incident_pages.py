"""The pages of incidents: a list, and one per incident with evidence, likely causes, and remedies."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from ranklake.insight.incidents.actions import Action
from ranklake.insight.incidents.incidents import Incident
from ranklake.insight.incidents.report import IncidentsState, incident_state
from ranklake.lake.rollups.findings import short_message
from ranklake.printable import counted, printable
from ranklake.views.html.figures import Column, FactTable, Measure, answer_table, figures, time_text
from ranklake.views.html.run_pages import href as run_href
from ranklake.views.html.run_tables import INCIDENTS, SEVERITIES, severity_state
from ranklake.views.html.shell import Entry, Page, digest_of, file_stem
from ranklake.views.html.site import Section, overview
from ranklake.views.incidents import (
    action_text,
    checkpoint_text,
    duration_text,
    figures_text,
    resume_text,
    runbook_path,
)
from ranklake.views.words import hours_text, length_text, number_text

SECTION: Final = "incidents"
HOME: Final = f"{SECTION}/index.html"
_ID: Final = re.compile("[0-9a-f]{16}")
_FINDINGS: Final = (
    Column("finding", "Its id.", "finding_id"),
    Column("severity", "How bad it is.", "severity"),
    Column("what", "What, where, since when, by how much.", "message"),
    Column.moment("from", "When it begins.", "start_ts"),
    Column.moment("until", "When it ends; unknown while it lasts.", "end_ts"),
    Column("detector", "Which found it.", "detector"),
    Column.number("rank", "Global rank, if it is about one.", "rank"),
    Column.number("step", "First step.", "step"),
    Column("value", "What was measured.", "value", "metric", is_number=True, text=number_text),
    Column("expected", "What was to be expected.", "baseline", "metric", is_number=True, text=number_text),
    Column("effect", "How far apart they are, as the detector says.", "effect", "1", is_number=True, text=number_text),
)
_MEASURES: Final = (
    Measure("time_to_detect_s", "until noticed", "s", "From its beginning until a finding of it was computed.",
            length_text, "the clocks contradict each other"),
    Measure("time_to_recover_s", "until over", "s", "From its beginning until its last finding ended.",
            lambda seconds: length_text(seconds) if seconds else "a moment", "it goes on"),
    Measure("affected_device_s", "affected", "s", "Devices of the run times the time it lasted: not all of it is lost.",
            lambda seconds: hours_text(seconds / 3600) if seconds else "none",
            "it goes on, or nobody recorded how many devices"),
    Measure("affected_cost", "price of that", "{currency}", "The same in money, by the price table.", number_text,
            "no price is known"),
    Measure("findings", "findings", "{finding}", "How many it is made of."),
)  # fmt: skip


def href(incident: str) -> str:
    """Return the path of an incident's page."""
    return f"{SECTION}/incident-{incident if _ID.fullmatch(incident) else file_stem(incident)}.html"


def section(state: IncidentsState) -> Section:
    """Return the pages of incidents: the list, and one per incident."""
    waiting = [incident for incident in state.incidents.listed if incident.needs_a_look]
    states = [severity_state(incident.facts["severity"]) for incident in waiting]
    worst = next((one for one in ("failing", "warning") if one in states), "passed")
    headline = f"{counted(len(waiting), 'incident')} to look at" if waiting else "No incident needs a look"
    pages = [overview(HOME, "Incidents", worst, headline, state, partial(_list_parts, state))]
    pages += [_page(state, incident) for incident in state.paged]
    entries = [Entry("Incidents", "page", worst, HOME)]
    entries += [
        Entry(f"{incident.facts['title']} · {incident.id}", "incident", incident.state, href(incident.id))
        for incident in state.paged
    ]
    return Section(SECTION, "Incidents", worst, headline, HOME, tuple(pages), tuple(entries))


def incidents_table(state: IncidentsState, caption: str = "Incidents, worst first") -> FactTable:
    """Return incidents as a table, each with its state."""
    known = state.incidents
    return answer_table(
        "incidents", caption, known.answered, ["incident_id"], INCIDENTS, "No incident.",
        links={incident.id: href(incident.id) for incident in state.paged}, states=SEVERITIES,
        notes={incident.id: incident.state for incident in known.listed},
    )  # fmt: skip


def _list_parts(state: IncidentsState) -> Mapping[str, Any]:
    return {"lake": state.lake, "tables": [incidents_table(state)]}


def _page(state: IncidentsState, incident: Incident) -> Page:
    mark = digest_of((incident, incident.facts["run"] in state.runs, _actions(state, incident), state.verified.rows))
    return Page(
        href(incident.id), f"Incident {incident.id}", "incident.html", partial(_parts, state, incident), mark,
        (("Incidents", HOME),),
    )  # fmt: skip


def _parts(state: IncidentsState, incident: Incident) -> Mapping[str, Any]:
    """Return the facts for the template of an incident's page."""
    facts, known = incident.facts, incident_state(state.ask, incident)
    run = facts["run"] or ""
    return {
        "incident": incident,
        "state": severity_state(facts["severity"]),
        "title": facts["title"],
        "standing": _standing(incident),
        "run": run,
        "run_page": run_href(run) if run in state.runs else "",
        "checkpoint": checkpoint_text(known.checkpoint) if run else "",
        "exception": printable(known.exception),
        "figures": list(figures("incident", known.facts, _MEASURES)),
        "causes": [
            {"signature": signature, "fix": signature.remedy(resume_text(known.checkpoint), run or "RUN"),
             "runbook": runbook_path(signature.name), "is_logged": is_logged}
            for signature, is_logged in known.causes[:3]
        ],
        "findings": answer_table(
            "findings", "What was found", known.findings, ["finding_id"], _FINDINGS,
            "The findings are no longer in the lake.", states=SEVERITIES,
        ),
        "more": max(facts["findings"] - len(incident.evidence), 0),
        "queries": [
            (short_message(shown["message"]), figures_text(shown), shown["evidence_sql"])
            for shown in incident.evidence
            if isinstance(shown.get("evidence_sql"), str)
        ],
        "actions": [f"{time_text(action.ts)}: {action_text(action)}" for action in _actions(state, incident)],
        "marks": [(time_text(mark.ts), mark.mark) for mark in incident.marks],
    }  # fmt: skip


def _actions(state: IncidentsState, incident: Incident) -> list[Action]:
    return [action for action in state.actions if action.incident in incident.ids]


def _standing(incident: Incident) -> str:
    begin, end = time_text(incident.facts["start_ts"]), incident.facts["end_ts"]
    if end is None:
        return f"{incident.state}: since {begin}, and goes on"
    if time_text(end) != begin:
        return f"{incident.state}: {begin} until {time_text(end)}"
    length = f", for {duration_text(incident)}" if incident.time_to_recover_s else ""
    return f"{incident.state}: at {begin}{length}"
