"""Facts of the pages of incidents: the list, and one incident with its findings."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ranklake.insight.incidents.actions import Action, actions
from ranklake.insight.incidents.incidents import Incident, Incidents, incidents, likely_causes
from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, QueriedFacts, asking, sql_text
from ranklake.insight.runs.checkpoints import Checkpoint, last_good_checkpoint
from ranklake.insight.runs.find import RunConditions, find
from ranklake.insight.runs.report import MOST_PAGES as MOST_RUNS
from ranklake.lake.query.literal import literal
from ranklake.lake.rollups.failures import Signature

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

_HERE: Final = "ranklake.insight.incidents"
MOST_LISTED: Final = 500
MOST_PAGES: Final = 200
"""Most incidents with their own page: the worst that need attention, then the worst others."""
_WEEK: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class IncidentsState:
    """Incidents of a lake.

    Attributes
    ----------
    lake
        Last part of its location.
    incidents
        The worst incidents, at most `MOST_LISTED`.
    paged
        Incidents that have a page.
    runs
        Runs that have a page in the report.
    actions
        Actions of playbooks.
    verified
        Number of artifact verifications: a checkpoint may have become good.
    ask
        Answers queries of pages when they are written.
    """

    lake: str
    incidents: Incidents
    paged: tuple[Incident, ...]
    runs: tuple[str, ...]
    actions: tuple[Action, ...]
    verified: QueriedFacts
    ask: Ask = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class IncidentState:
    """One incident.

    Attributes
    ----------
    facts
        Its row.
    findings
        The most important findings.
    causes
        Likely causes in order, each with whether a log line of the run confirms it.
    checkpoint
        The last good one of the run.
    exception
        Class and rank of the first exception in the run's log lines; empty for none.
    """

    facts: QueriedFacts
    findings: QueriedFacts
    causes: tuple[tuple[Signature, bool], ...]
    checkpoint: Checkpoint
    exception: str = ""


def incidents_state(lake: "Lake", role: "Role | None" = None) -> IncidentsState:
    """Return a lake's incidents, as a role sees them.

    Raises `ranklake.insight.runs.asking.UnseenError` for a role that does not see them, and what queries raise.
    """
    ask = asking(lake, role)
    known = incidents(ask, most=MOST_LISTED)
    known.answered.seen()
    runs = tuple(str(row["run"]) for row in find(ask, RunConditions(), "newest", MOST_RUNS).rows)
    did, verified = actions(ask).listed, ask(statements.verifications_sql())
    return IncidentsState(
        lake.uri.rstrip("/").rpartition("/")[2], known, incidents_with_page(known), runs, did, verified, ask
    )


def incidents_with_page(known: Incidents) -> tuple[Incident, ...]:
    """Return the listed incidents that have a page."""
    return tuple(sorted(known.listed, key=lambda incident: not incident.needs_a_look)[:MOST_PAGES])


def incident_state(ask: Ask, incident: Incident) -> IncidentState:
    """Return the facts of an incident for its page."""
    causes, logged = likely_causes(ask, incident)
    raised = next((row for row in logged.rows if row["exception_type"]), None)
    return IncidentState(
        ask(sql_text(_HERE, "incidents").format(where=f"incident_id = {literal(incident.id)}", most=1)),
        ask(_findings(incident)),
        tuple((signature, bool(line)) for signature, line in causes),
        last_good_checkpoint(ask, incident.facts["run"], incident.facts["start_ts"]),
        "" if raised is None else f"{raised['exception_type']} on rank {raised['rank']}",
    )


def _findings(incident: Incident) -> str:
    ids = [str(shown["finding_id"]) for shown in incident.evidence]
    first, last = incident.facts["start_ts"].date(), incident.facts["last_ts"].date()
    listed = ", ".join(map(literal, ids)) or "NULL"
    return sql_text(_HERE, "findings").format(ids=listed, first=first - _WEEK, last=last + _WEEK)
