"""Incidents with marks by people: which need attention, and likely causes.

Marks are rows of ``annotations``; an incident's last mark is valid. An incident marked false mutes its detector for its
job (or run, or host), from its beginning until it is reopened: incidents led by this detector are then ``muted``.
Critical ones are never muted. A resolved incident is open again if one of its findings begins or ends after the mark.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.runs.asking import Ask, QueriedFacts, Row, sql_text
from ranklake.insight.runs.need import Need
from ranklake.lake.contracts.json_text import facts_in, parsed
from ranklake.lake.query.literal import literal
from ranklake.lake.rollups.failures import CRASH, SHARED, Signature, causes_of, library
from ranklake.lake.rollups.findings import short_message
from ranklake.lake.rollups.incidents import SEVERITIES, id_of, severity_rank
from ranklake.printable import fit

if TYPE_CHECKING:
    from ranklake.lake.rollups.incidents import Subject

_HERE: Final = "ranklake.insight.incidents"
MARKS: Final = ("acknowledged", "resolved", "false", "reopened")
"""Marks of incidents."""
CLOSED: Final = frozenset({"resolved", "false", "muted"})
"""States in which an incident needs no attention."""
MOST: Final = 1000
_MOST_LINES: Final = 2000
_AROUND: Final = timedelta(minutes=10)
"""Time before and after an incident in which log lines are read: a cause is often logged before."""
_ALL: Final = "TRUE"
_TEXTS: Final = ("finding_id", "detector", "severity", "start_ts", "message")
"""Keys of each finding in the evidence."""


class NoSuchIncidentError(RanklakeError):
    """No incident, or more than one, has this id."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A person's mark of an incident.

    Attributes
    ----------
    mark
        One of `MARKS`.
    why, author
        Reason and author; a role may not see them.
    """

    mark: str
    why: str | None
    author: str | None
    ts: datetime


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident.

    Attributes
    ----------
    facts
        Its row of ``incidents.sql``.
    state
        ``open``, ``closed`` (ended without a mark), ``acknowledged``, ``resolved``, ``false`` or ``muted``.
    marks
        All its marks, in order.
    muted_by
        The incident whose mark mutes it; empty for none.
    """

    facts: Row
    state: str
    marks: tuple[Mark, ...] = ()
    muted_by: str = ""

    @property
    def id(self) -> str:
        """Its id."""
        return str(self.facts["incident_id"])

    @property
    def ids(self) -> set[str]:
        """Its id, and the ids that it had or would have with another first finding."""
        by_findings = (id_of(_subject(self.facts), shown["finding_id"]) for shown in self.evidence)
        return {self.id, *by_findings}

    @property
    def needs_a_look(self) -> bool:
        """Whether it is not resolved, false or muted."""
        return self.state not in CLOSED

    @property
    def time_to_recover_s(self) -> float | None:
        """Time from its start until it was resolved, else until its last finding ended; None while it lasts."""
        if self.state == "resolved":
            return float((self.marks[-1].ts - self.facts["start_ts"]).total_seconds())
        seconds: float | None = self.facts["time_to_recover_s"]
        return seconds

    @property
    def evidence(self) -> list[dict[str, Any]]:
        """The most important findings, by time."""
        return evidence_in(self.facts["evidence"])

    @property
    def causes(self) -> list[Signature]:
        """Likely causes from its findings, in order."""
        return [library()[name] for name in names_in(self.facts["causes"])]

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **self.facts,
            "evidence": self.evidence,
            "causes": names_in(self.facts["causes"]),
            "detectors": facts_in(self.facts["detectors"]),
            "state": self.state,
            "time_to_recover_s": self.time_to_recover_s,
            "marks": [
                {"mark": mark.mark, "why": mark.why, "author": mark.author, "ts": mark.ts} for mark in self.marks
            ],
            "muted_by": self.muted_by or None,
        }


@dataclass(frozen=True, slots=True)
class Incidents:
    """Incidents of a lake, and the queries' answers."""

    listed: tuple[Incident, ...]
    answered: QueriedFacts
    marks: QueriedFacts


def incidents(ask: Ask, run: str = "", since: datetime | None = None, most: int = MOST) -> Incidents:
    """Return incidents, of a run or of all: the worst first, lasting ones before others, then the latest.

    Parameters
    ----------
    since
        Only incidents that lasted at this time or began later; by default all.
    most
        Most incidents; the worst are kept.
    """
    conditions = [f"run = {literal(run)}"] if run else []
    conditions += [f"(end_ts IS NULL OR last_ts >= {literal(since)})"] if since is not None else []
    answered = ask(sql_text(_HERE, "incidents").format(where=" AND ".join(conditions) or _ALL, most=most))
    marks = ask(sql_text(_HERE, "marks"))
    by_id = _by_id(marks.rows)
    mutes = _mutes(ask, by_id)
    return Incidents(tuple(_incident(row, by_id, mutes) for row in answered.rows), answered, marks)


def find_incident(ask: Ask, name: str) -> Incident:
    """Return the incident of an id, or of a unique beginning of it. Raises `NoSuchIncidentError`."""
    every = ask("SELECT incident_id FROM incidents ORDER BY start_ts DESC").seen()
    ids = [str(row["incident_id"]) for row in every.rows]
    matches = [one for one in ids if one == name] or [one for one in ids if name and one.startswith(name)]
    if len(matches) != 1:
        problem = f"{len(matches)} incidents begin with {name!r}" if matches else f"there is no incident {name!r}"
        hint = "write more of it" if matches else did_you_mean(name, ids) or "ranklake incidents lists them"
        raise NoSuchIncidentError(problem, where="ID", hint=hint)
    answered = ask(sql_text(_HERE, "incidents").format(where=f"incident_id = {literal(matches[0])}", most=1))
    by_id = _by_id(ask(sql_text(_HERE, "marks")).rows)
    return _incident(answered.first_row, by_id, _mutes(ask, by_id))


def evidence_in(text: str) -> list[dict[str, Any]]:
    """Parse the findings in a text of the column ``evidence``; invalid ones are left out."""
    try:
        rows = parsed(text)
    except ValueError:
        return []
    every = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [row for row in every if all(isinstance(row.get(name), str) for name in _TEXTS)]


def names_in(text: str) -> list[str]:
    """Parse the names of the failure library in a text of the column ``causes``."""
    try:
        names = parsed(text)
    except ValueError:
        return []
    return [name for name in names if isinstance(name, str) and name in library()] if isinstance(names, list) else []


def _by_id(rows: Iterable[Row]) -> dict[str, list[Mark]]:
    by_id: dict[str, list[Mark]] = {}
    for row in (row for row in rows if row["mark"] in MARKS):
        by_id.setdefault(str(row["incident_id"]), []).append(Mark(row["mark"], row["why"], row["author"], row["ts"]))
    return by_id


Mutes = Mapping[tuple[str, str], tuple[datetime, str]]
"""By muted subject and detector: since when, and the incident that was marked false."""


def _mutes(ask: Ask, by_id: Mapping[str, Sequence[Mark]]) -> Mutes:
    false = [name for name, marks in by_id.items() if marks[-1].mark == "false"]
    if not false:
        return {}
    names = ", ".join(map(literal, false))
    sql = (
        f"SELECT incident_id, kind, job, run, host, device_uuid, start_ts FROM incidents WHERE incident_id IN ({names})"  # noqa: S608 - quoted
    )
    mutes: dict[tuple[str, str], tuple[datetime, str]] = {}
    for row in ask(f"{sql} ORDER BY start_ts DESC, incident_id").rows:
        mutes[_muted_subject(row), row["kind"]] = (row["start_ts"], row["incident_id"])
    return mutes


def _muted_subject(row: Row) -> str:
    """Return the subject of a mute: an incident's job, else its run, else its host or device."""
    return next((f"{kind} {row[kind]}" for kind in ("job", "run", "host", "device_uuid") if row[kind]), "")


def _incident(row: Row, by_id: Mapping[str, Sequence[Mark]], mutes: Mutes) -> Incident:
    names = Incident(row, "").ids
    marks = tuple(sorted((mark for name in names for mark in by_id.get(name, ())), key=lambda mark: mark.ts))
    since, muted_by = mutes.get((_muted_subject(row), row["kind"]), (None, ""))
    is_muted = since is not None and row["start_ts"] >= since and row["severity"] != "critical"
    state = _state(row, marks)
    if is_muted and state in {"open", "closed"} and not marks:
        return Incident(row, "muted", marks, muted_by)
    return Incident(row, state, marks)


def _subject(row: Row) -> "Subject":
    """Return the parts of an incident's id besides its first finding, as in the rollup."""
    for kind, name in (("run", "run"), ("host", "host"), ("device", "device_uuid")):
        if row[name]:
            return kind, row[name]
    return "lake", ""


def _state(row: Row, marks: Sequence[Mark]) -> str:
    last = marks[-1] if marks else None
    if last is None:
        return str(row["status"])
    if last.mark == "reopened" or (last.mark == "resolved" and row["last_ts"] > last.ts):
        return "open"
    return last.mark


def likely_causes(ask: Ask, incident: Incident) -> tuple[list[tuple[Signature, str]], QueriedFacts]:
    """Return likely causes from findings and from the run's log lines around an incident, each with its first line.

    A role that sees no log lines gets causes from findings only; the line is empty if there is none.
    """
    facts = incident.facts
    if not facts["run"]:
        return [(signature, "") for signature in incident.causes], QueriedFacts("")
    since, until = facts["start_ts"] - _AROUND, facts["last_ts"] + _AROUND
    answered = ask(
        sql_text(_HERE, "lines").format(
            run=literal(facts["run"]), first=since.date(), last=until.date(), since=literal(since),
            until=literal(until), most=_MOST_LINES,
        )
    )  # fmt: skip
    lines = [text for row in answered.rows for text in _texts(row)]
    raised = next((row for row in answered.rows if row["exception_type"]), None)
    runbooks = [shown.get("runbook") for shown in incident.evidence]
    worst: dict[str, tuple[int, str]] = dict.fromkeys(facts_in(facts["detectors"]), (len(SEVERITIES), ""))
    for shown in incident.evidence:
        weight = severity_rank(shown.get("severity")), str(shown.get("start_ts"))
        worst[shown["detector"]] = min(worst.get(shown["detector"], weight), weight)
    names = [*(SHARED for one in incident.causes if one.name == SHARED), *causes_of(worst, runbooks, lines)]
    known = {name: _first(library()[name], lines) for name in names}
    if raised is not None and CRASH in known:
        known[CRASH] = f"rank {raised['rank']}: {_error(raised)}"
    return [(library()[name], line) for name, line in known.items()], answered


def _error(row: Row) -> str:
    return ": ".join(text for text in (row["exception_type"], row["exception_message"]) if text)


def _texts(row: Row) -> list[str]:
    return [text for text in (row["message"], _error(row)) if text]


def _first(signature: Signature, lines: Iterable[str]) -> str:
    return next((line for line in lines if signature.matches(line)), "")


_STATES: Final[Mapping[str, str]] = {"critical": "failing", "error": "failing", "warning": "warning"}
_PLACES: Final[Mapping[str, int]] = {"critical": 0, "error": 1, "warning": 2}
_SHOWN: Final = 3
_FAILURE: Final = "run_failed"
"""Detector of failures themselves, whose findings repeat what the failed run shows."""
_LONGEST: Final = 160


def incident_needs(listed: Iterable[Incident], failed: Mapping[str, Need]) -> tuple[list[Need], set[str]]:
    """Return the needs of incidents, the worst first, and the runs whose failure is merged into one.

    Incidents of severity info need nothing, nor resolved, false or muted ones.

    Parameters
    ----------
    failed
        Needs of failed runs, by run. They are merged into the run's worst open incident, its likely cause.
    """
    needs: list[Need] = []
    folded: set[str] = set()
    for incident in listed:
        severity = str(incident.facts["severity"])
        if not incident.needs_a_look or severity not in _STATES:
            continue
        need = _need(incident, severity)
        failure = failed.get(need.run)
        if failure is not None and need.run not in folded:
            folded.add(need.run)
            is_same = incident.facts["kind"] == _FAILURE
            detail = f"{failure.detail}; {'' if is_same else 'before that: '}{need.detail}"
            title = failure.title if is_same else f"{failure.title}: {need.title}"
            need = replace(need, state="failing", title=title, detail=detail, place=0)
        needs.append(need)
    return needs, folded


def _need(incident: Incident, severity: str) -> Need:
    facts = incident.facts
    parts = [severity, "acknowledged" if incident.state == "acknowledged" else _lasting(incident)]
    if (affected := f"{(facts['affected_device_s'] or 0) / 3600:,.1f}") != "0.0":
        parts.append(f"{affected} device-hours affected")
    if also := _other_messages(incident):
        parts.append(f"also: {' · '.join(also)}")
    if incident.causes:
        parts.append(f"likely cause: {_within_a_sentence(incident.causes[0].cause)}")
    if facts["injected"]:
        parts.append(f"on purpose: {facts['injected']}")
    is_taken = incident.state == "acknowledged"
    return Need(
        "warning" if is_taken else _STATES[severity],
        facts["title"],
        "; ".join(filter(None, parts)),
        f"ranklake incidents show {incident.id}",
        facts["run"] or "",
        incident.id,
        _PLACES[severity],
        incident.causes[0].name if incident.causes else "",
    )


def _other_messages(incident: Incident) -> list[str]:
    """Return messages of the first few other detectors."""
    messages: dict[str, str] = {}
    for shown in incident.evidence:
        if shown["detector"] != incident.facts["kind"]:
            messages.setdefault(shown["detector"], short_message(" ".join(shown["message"].split())))
    return [fit(text, _LONGEST) for text in list(messages.values())[:_SHOWN]]


def _lasting(incident: Incident) -> str:
    begin, end = f"{incident.facts['start_ts']:%Y-%m-%d %H:%M} UTC", incident.facts["end_ts"]
    until = "" if end is None else f"{end:%Y-%m-%d %H:%M} UTC"
    is_told = f"since {begin}" in incident.facts["title"]
    if end is None:
        return "goes on" if is_told else f"since {begin}, goes on"
    if until == begin:
        return "" if is_told else f"at {begin}"
    return f"until {until}" if is_told else f"{begin} until {until}"


def _within_a_sentence(text: str) -> str:
    """Return a sentence for use within another: without period and, except in abbreviations, capital."""
    small = text[:1].lower() if text[1:3].islower() or text[1:2] == " " else text[:1]
    return f"{small}{text[1:].rstrip('.')}"


def told_by(listed: Iterable[Incident]) -> set[tuple[str, str]]:
    """Return (run or device, name in the failure library) of incidents, whatever their marks."""
    return {
        (subject, name)
        for incident in listed
        for subject in (incident.facts["run"], incident.facts["device_uuid"])
        if subject
        for name in names_in(incident.facts["causes"])
    }
