"""Incidents on a terminal, and the retrospective of one as Markdown."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ranklake.insight.incidents.actions import UNKNOWN as UNRECORDED
from ranklake.insight.incidents.actions import Action
from ranklake.insight.incidents.incidents import Incident, Incidents
from ranklake.insight.runs.checkpoints import Checkpoint
from ranklake.lake.rollups.failures import RESUME, Signature
from ranklake.printable import counted, fit, printable
from ranklake.views.table import TextColumn, fitting
from ranklake.views.words import UNKNOWN, hours_text, length_text, moment_text, number_text

Causes = Sequence[tuple[Signature, str]]
_COLUMNS: Final = tuple(map(TextColumn, ("incident", "severity", "state", "since", "lasted", "run", "what")))
_LONGEST: Final = 200
_MOST_CAUSES: Final = 3


def runbook_path(name: str) -> str:
    """Return the path of a runbook's page, from the repository's root."""
    return f"docs/runbooks/{name}.md"


def list_lines(listed: Sequence[Incident], width: int | None) -> list[str]:
    """Return incidents as a table."""
    cells = [
        (printable(incident.id), incident.facts["severity"], incident.state, moment_text(incident.facts["start_ts"]),
         duration_text(incident), printable(incident.facts["run"] or place(incident) or "-"),
         printable(incident.facts["title"]))
        for incident in listed
    ]  # fmt: skip
    return fitting(_COLUMNS, cells, width)


def list_facts(answer: Incidents, shown: Sequence[Incident]) -> dict[str, Any]:
    """Return incidents as plain JSON values, with their SQL."""
    sql = {"sql": answer.answered.sql, "marks_sql": answer.marks.sql}
    return {"incidents": [incident.plain() for incident in shown], **sql}


def duration_text(incident: Incident) -> str:
    """Return the duration of an incident, or that it lasts."""
    seconds = incident.time_to_recover_s
    return "goes on" if seconds is None else length_text(seconds) if seconds else "a moment"


def place(incident: Incident) -> str:
    """Return the host of an incident, else its device, with rack, switch and rail; empty for none."""
    facts = incident.facts
    device = f"device {facts['device_uuid']}" if facts["device_uuid"] else ""
    parts = [f"host {facts['host']}" if facts["host"] else device]
    return ", ".join(
        [*filter(None, parts), *(f"{kind} {facts[kind]}" for kind in ("rack", "switch", "rail") if facts[kind])]
    )


def impact_text(incident: Incident) -> str:
    """Return what an incident affected, in device-hours and money."""
    facts = incident.facts
    if facts["affected_device_s"] is None:
        reason = "nobody recorded how many devices" if facts["device_count"] is None else "it goes on"
        return f"{UNKNOWN}: {reason}"
    if not facts["affected_device_s"]:
        return "no time that lasts"
    cost = facts["affected_cost"]
    money = "no price is known" if cost is None else f"{number_text(cost)} {printable(facts['currency'] or '')}"
    return f"{hours_text(facts['affected_device_s'] / 3600)} of devices, {money}"


def checkpoint_text(checkpoint: Checkpoint) -> str:
    """Return the last good checkpoint, or why none is known."""
    if not checkpoint.name or checkpoint.ts is None or checkpoint.verified_ts is None:
        return f"{'none' if checkpoint.is_none else UNKNOWN}: {printable(checkpoint.reason)}"
    step = "" if checkpoint.step is None else f" of step {checkpoint.step:,}"
    saved, verified = moment_text(checkpoint.ts), moment_text(checkpoint.verified_ts)
    return f"{printable(checkpoint.name)}{step}, saved {saved}, verified {verified}"


def resume_text(checkpoint: Checkpoint) -> str:
    """Return how to resume a run, from its checkpoints; for `Signature.remedy`."""
    if checkpoint.is_none:
        return "begin again (no checkpoint from before it is left)"
    if checkpoint.newest:
        return f"resume from {printable(checkpoint.newest)} (once it is verified)"
    if not checkpoint.name:
        return RESUME
    step = "" if checkpoint.step is None else f" of step {checkpoint.step:,}"
    return f"resume from {printable(checkpoint.name)}{step}"


def action_text(action: Action) -> str:
    """Return an action as text, without its output."""
    took = f" after {action.after['seconds']:g} s" if action.after.get("seconds") else ""
    outcome = "nobody recorded how it ended" if action.outcome == UNRECORDED else f"{action.outcome}{took}"
    return f"{action.playbook}.{action.step}: {action.kind} {action.subject}: {outcome}"


def figures_text(shown: dict[str, Any]) -> str:
    """Return the measured and expected figures of a finding; empty if one is missing."""
    figures = [shown.get(name) for name in ("value", "baseline")]
    if not all(isinstance(figure, int | float) for figure in figures):
        return ""
    value, baseline = map(number_text, figures)
    return f"{value}, expected {baseline}"


def show_lines(
    incident: Incident, causes: Causes, checkpoint: Checkpoint, actions: Sequence[Action] = ()
) -> Iterator[str]:
    """Yield the facts of an incident."""
    facts = incident.facts
    yield f"incident {printable(incident.id)}  {facts['severity']}  {incident.state}"
    yield printable(facts["title"])
    if facts["injected"]:
        yield f"on purpose  {printable(facts['injected'])}"
    yield ""
    if facts["run"]:
        job = f" of job {printable(facts['job'])}" if facts["job"] else ""
        yield f"run         {printable(facts['run'])}{job}; ranklake show {printable(facts['run'])}"
    if place(incident):
        yield f"where       {printable(place(incident))}"
    yield f"began       {moment_text(facts['start_ts'])}"
    yield f"noticed     {moment_text(facts['detected_ts'])}, {length_text(facts['time_to_detect_s'])} after it began"
    yield f"lasted      {duration_text(incident)}"
    yield f"affected    {impact_text(incident)}"
    if facts["run"]:
        yield f"checkpoint  last good: {checkpoint_text(checkpoint)}"
    if incident.muted_by:
        yield f"muted       since incident {printable(incident.muted_by)} was marked false"
        yield f"            ranklake incidents mark {printable(incident.muted_by)} --reopen --why TEXT ends that"
    for mark in incident.marks:
        reason = f"{printable(mark.why or 'masked')}{_author_clause(mark.author)}"
        yield f"mark        {moment_text(mark.ts)} {mark.mark}: {reason}"
    for action in actions:
        yield f"playbook    {moment_text(action.ts)} {printable(action_text(action))}"
    yield ""
    yield from _evidence_lines(incident)
    yield from _cause_lines(causes, resume_text(checkpoint), printable(facts["run"] or "RUN"))
    yield f"SQL of the evidence: ranklake incidents show {printable(incident.id)} --json"


def _author_clause(author: str | None) -> str:
    return f" ({printable(author)})" if author else ""


def _evidence_lines(incident: Incident) -> Iterator[str]:
    shown = incident.evidence
    yield f"{counted(incident.facts['findings'], 'finding')}{_of_them(incident)}"
    for row in shown:
        yield f"  {row['start_ts'][:16].replace('T', ' ')} {row['severity']}: {printable(_message(row))}"
    yield ""


def _message(row: dict[str, Any]) -> str:
    """Return the message of a finding, with its figures."""
    numbers = figures_text(row)
    return _truncate(row["message"]) + (f" ({numbers})" if numbers else "")


def _of_them(incident: Incident) -> str:
    return (
        f", of which {len(incident.evidence)} say most" if incident.facts["findings"] > len(incident.evidence) else ""
    )


def _cause_lines(causes: Causes, resume: str, run: str) -> Iterator[str]:
    if not causes:
        yield "likely causes: none known to the failure library"
    for number, (signature, line) in enumerate(causes[:_MOST_CAUSES], 1):
        yield f"{number}. {signature.cause} (confidence: {signature.confidence}; {signature.name})"
        if line:
            yield f"   log: {printable(_truncate(line))}"
        yield f"   {signature.remedy(resume, run)}"
        yield f"   runbook: {runbook_path(signature.name)}"


def _truncate(text: str) -> str:
    return fit(" ".join(text.split()), _LONGEST)


def retrospective(incident: Incident, causes: Causes, checkpoint: Checkpoint, actions: Sequence[Action] = ()) -> str:
    """Return the retrospective of an incident as Markdown, with gaps to fill in."""
    facts = incident.facts
    subject = f"run `{facts['run']}`" if facts["run"] else place(incident) or "the lake"
    resume, run = resume_text(checkpoint), facts["run"] or "RUN"
    lines = [
        f"# Incident {_md(incident.id)}: {_md(facts['title'])}",
        "",
        "| | |",
        "|---|---|",
        f"| severity | {facts['severity']} |",
        f"| state | {incident.state} |",
        f"| subject | {_md(subject)} |",
        f"| began | {moment_text(facts['start_ts'])} |",
        f"| noticed | {moment_text(facts['detected_ts'])}, after {length_text(facts['time_to_detect_s'])} |",
        f"| over | {'' if incident.time_to_recover_s is None else 'after '}{duration_text(incident)} |",
        f"| affected | {_md(impact_text(incident))} |",
        *([f"| last good checkpoint | {_md(checkpoint_text(checkpoint))} |"] if facts["run"] else []),
        *([f"| on purpose | {_md(facts['injected'])} |"] if facts["injected"] else []),
        "",
        "## What happened",
        "",
    ]
    lines += [
        f"- {row['start_ts'][:16].replace('T', ' ')} UTC, {row['severity']}: {_md(_message(row))}"
        for row in incident.evidence
    ]
    more = facts["findings"] - len(incident.evidence)
    lines += [f"- and {counted(more, 'more finding')}" for _ in range(more > 0)]
    lines += ["", "## Likely causes", ""]
    lines += [
        f"{number}. {signature.cause} Confidence: {signature.confidence}. {_md(signature.remedy(resume, run))} "
        f"([{signature.name}]({runbook_path(signature.name)}))" + (f"\n   Log: `{_code(line)}`" if line else "")
        for number, (signature, line) in enumerate(causes[:_MOST_CAUSES], 1)
    ] or ["None known to the failure library."]
    lines += ["", "## What people did", ""]
    lines += [f"- {moment_text(mark.ts)}: {mark.mark}: {_md(mark.why or 'masked')}" for mark in incident.marks] or [
        "- nothing was marked"
    ]
    if actions:
        lines += ["", "## What playbooks did", ""]
        lines += [f"- {moment_text(action.ts)}: {_md(action_text(action))}" for action in actions]
    lines += ["", "## What we learnt, and what we change", "", "- ", "", "## Evidence", ""]
    for sql in dict.fromkeys(str(row["evidence_sql"]) for row in incident.evidence if row.get("evidence_sql")):
        lines += ["```sql", *map(printable, sql.strip().replace("```", "").splitlines()), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _md(text: str) -> str:
    line = printable(" ".join(text.split()))
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in line)


def _code(text: str) -> str:
    return printable(_truncate(text)).replace("`", "'")
