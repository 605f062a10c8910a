"""Incidents as things that need a look, and which other things they say already."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from ranklake.insight.incidents.incidents import Incident, names_in
from ranklake.insight.runs.need import Need
from ranklake.lake.rollups.findings import short_message

_STATES: Final[Mapping[str, str]] = {"critical": "failing", "error": "failing", "warning": "warning"}
_PLACES: Final[Mapping[str, int]] = {"critical": 0, "error": 1, "warning": 2}
_SHOWN: Final = 3
_FAILURE: Final = "run_failed"
"""Detector of failures themselves: what it says, the failed run says better."""
_LONGEST: Final = 160


def incident_needs(listed: Iterable[Incident], failed: Mapping[str, Need]) -> tuple[list[Need], set[str]]:
    """Return what incidents need, the worst first, and the runs whose failure is reported with one.

    Those of severity info need nothing, nor those that somebody resolved, or that are false or muted.

    Parameters
    ----------
    failed
        What failed runs need, by run. The worst open incident of such a run takes that in: what came before a failure
        is its likely cause.
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
    """Return what other detectors found, a message of each of the first few."""
    messages: dict[str, str] = {}
    for shown in incident.evidence:
        if shown["detector"] != incident.facts["kind"]:
            messages.setdefault(shown["detector"], short_message(" ".join(shown["message"].split())))
    return [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…" for text in list(messages.values())[:_SHOWN]]


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
    """Return a sentence without its period, and with a small letter first unless that is an abbreviation's."""
    small = text[:1].lower() if text[1:3].islower() or text[1:2] == " " else text[:1]
    return f"{small}{text[1:].rstrip('.')}"


def told_by(listed: Iterable[Incident]) -> set[tuple[str, str]]:
    """Return what incidents say, whatever people said of them: run or device, and name in the failure library."""
    return {
        (subject, name)
        for incident in listed
        for subject in (incident.facts["run"], incident.facts["device_uuid"])
        if subject
        for name in names_in(incident.facts["causes"])
    }
