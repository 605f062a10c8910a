"""Sources of signals, each a function of a lake: incidents, burn rates of objectives, failing checks, the pipeline.

Each returns signals, with facts for messages: a line of evidence, SQL, page and runbook. If a source fails, only its
rules are unknown, and their alerts stay unchanged. A signal of the source ``rules`` reports a rule that could not be
evaluated; ranklake adds a rule for it if a file has none.
"""

import logging
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ranklake.errors import RanklakeError
from ranklake.insight.incidents.incidents import Incident, incidents
from ranklake.insight.overview.pipeline import unsound_condition
from ranklake.insight.runs.asking import Ask, Row, asking, sql_text
from ranklake.insight.runs.statements import run_condition
from ranklake.lake.contracts.json_text import facts_in
from ranklake.lake.query.literal import literal
from ranklake.lake.rollups.thresholds import INCIDENT_GAP_S
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.pipeline.alerts.file import OWN_RULE, AlertFile, Rule
from ranklake.pipeline.alerts.message import AlertFacts
from ranklake.pipeline.alerts.rule_queries import QUERY_TIMEOUT_S, run_queries
from ranklake.pipeline.alerts.state import Alert, Signal
from ranklake.pipeline.health.problems import LOOK, Problem
from ranklake.printable import counted, duration
from ranklake.quality.results import live_partitions
from ranklake.retention.proposals.releases import released_partitions
from ranklake.views.html.incident_pages import href as incident_href
from ranklake.views.words import percent_text

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

_HERE: Final = "ranklake.pipeline.alerts"
MOST: Final = 1_000
"""Most signals of a source, the worst first."""
RECENT: Final = timedelta(days=1)
"""Greatest age of a new incident: imported logs of last year must not alert anybody."""
_GAP: Final = timedelta(seconds=INCIDENT_GAP_S)
_MONTH: Final = timedelta(days=31)
_TWO_DAYS: Final = timedelta(days=2)
_BURN_SEVERITIES: Final = MappingProxyType({"page": "critical", "ticket": "warning"})
_OF_RUN: Final = ("team", "region", "environment", "model")
_SHOWN: Final = 3
_NAMES: Final = ("run", "host", "device_uuid")
"""Labels with names of runs or machines, which texts must not contain if the role sees them masked."""


class KnownSignal(NamedTuple):
    """A signal, and its facts."""

    signal: Signal
    facts: AlertFacts


@dataclass(frozen=True, slots=True)
class Reader:
    """Inputs of sources.

    Attributes
    ----------
    ask
        Answers queries as the role.
    active
        Subjects of existing alerts.
    problems
        Finds problems of the pipeline itself.
    pages
        Address of the report's pages, ending in a slash; empty if not configured.
    """

    lake: "Lake"
    role: "Role | None"
    ask: Ask
    now: datetime
    active: Collection[str]
    problems: Callable[[], Iterable[Problem]] = tuple
    pages: str = ""

    def page(self, path: str) -> str:
        """Return the address of a page; empty if there is none."""
        return f"{self.pages}{path}" if self.pages else ""


def incident_signals(reader: Reader) -> Iterator[KnownSignal]:
    """Yield lasting incidents that are not resolved or marked as false.

    An ended incident lasts for half an hour after its detection: until then, another finding would belong to it, and
    ends of runs have no duration.
    """
    answer = incidents(reader.ask, since=reader.now - RECENT, most=MOST)
    listed = [incident for incident in answer.listed if incident.needs_a_look and _lasts(incident, reader)]
    answer.answered.seen()
    runs = tuple(sorted({str(incident.facts["run"]) for incident in listed if incident.facts["run"]}))
    of_runs = {row["run"]: row for row in reader.ask(_runs_sql(run_condition(runs))).rows} if runs else {}
    clear = _names_in_clear(reader, [incident.id for incident in listed])
    for incident in listed:
        facts = incident.facts
        run = of_runs.get(facts["run"], {})
        labels = {
            **{name: facts[name] for name in ("kind", "run", "attempt", "job", "rank")},
            "host": facts["host"], "device": facts["device_uuid"], **_facts_of(run),
        }  # fmt: skip
        hidden = _hidden(clear.get(incident.id, {}), facts)
        signal = _signal("incidents", incident.id, facts["severity"], _without(facts["title"], hidden), labels)
        yield KnownSignal(signal, _facts_of_incident(reader, incident, hidden))


def _lasts(incident: Incident, reader: Reader) -> bool:
    facts = incident.facts
    if facts["last_ts"] < reader.now - RECENT and incident.id not in reader.active:
        return False
    return facts["end_ts"] is None or max(facts["last_ts"], facts["detected_ts"]) >= reader.now - _GAP


def _runs_sql(where: str) -> str:
    return sql_text(_HERE, "runs").format(where=where)


def _facts_of(run: Row) -> dict[str, object]:
    """Return labels of a run: columns of its row override its own labels."""
    own = facts_in(run.get("labels"))
    return {name: run.get(name) or own.get(name) for name in _OF_RUN}


def _names_in_clear(reader: Reader, ids: Collection[str]) -> dict[str, Row]:
    """Return the unmasked names in incidents, by id; none if the role sees them unmasked."""
    if reader.role is None or not ids:
        return {}
    names = ", ".join(map(literal, sorted(ids)))
    sql = f"SELECT incident_id, {', '.join(_NAMES)} FROM incidents WHERE incident_id IN ({names})"  # noqa: S608 - quoted
    return {row["incident_id"]: row for row in asking(reader.lake)(sql).rows}


def _hidden(clear: Row, seen: Row) -> dict[str, str]:
    """Return replacements for names that the role sees masked."""
    return {
        str(clear[name]): str(seen[name] or "(hidden)")
        for name in _NAMES
        if clear and clear[name] not in {None, seen[name]}
    }


def _without(text: str, hidden: Mapping[str, str]) -> str:
    """Mask names in a text: messages of findings may contain names that their columns mask."""
    for name, shown in sorted(
        hidden.items(), key=lambda item: -len(item[0])
    ):  # longest first: a name may be the beginning of another
        text = text.replace(name, shown)
    return text


def _facts_of_incident(reader: Reader, incident: Incident, hidden: Mapping[str, str]) -> AlertFacts:
    """Return facts of an incident's leading findings; without SQL containing names that are hidden from the role."""
    shown = sorted(incident.evidence, key=lambda finding: finding["detector"] != incident.facts["kind"])
    messages = dict.fromkeys(" ".join(finding["message"].split()) for finding in shown)
    lead = shown[0] if shown else {}
    runbook = lead.get("runbook")
    return AlertFacts(
        evidence=_without("; ".join(list(messages)[:_SHOWN]), hidden),
        sql="" if hidden else lead.get("evidence_sql") or "",
        page=reader.page(incident_href(incident.id)),
        runbook=f"docs/runbooks/{runbook}.md" if runbook else "",
    )


def objective_signals(reader: Reader) -> Iterator[KnownSignal]:
    """Yield objectives with a firing burn-rate alert at the last evaluation: a page is critical, a ticket a warning."""
    for row in reader.ask(sql_text(_HERE, "burning").format(most=MOST)).seen().rows:
        about = f" of {row['subject']}" if row["subject"] else ""
        text = (
            f"The error budget of {row['slo']}{about} burns: {percent_text(row['attained_ratio'])} attained, "
            f"{percent_text(row['objective_ratio'])} promised, {percent_text(row['budget_used_ratio'])} of it used"
        )
        labels = {"kind": row["alert"], "slo": row["slo"], "about": row["subject"], "owner": row["owner"]}
        subject = f"{row['slo']}/{row['subject']}" if row["subject"] else row["slo"]
        signal = _signal("slo", subject, _BURN_SEVERITIES[row["alert"]], text, labels)
        sql = f"SELECT * FROM slo WHERE slo = {literal(row['slo'])} ORDER BY window_end_ts DESC"  # noqa: S608 - quoted
        yield KnownSignal(signal, AlertFacts(sql=sql, page=reader.page("slo/index.html")))


def check_signals(reader: Reader) -> Iterator[KnownSignal]:
    """Yield failing checks of partitions.

    A signal ends when the check passes, or is removed from its suite; when the partition is removed, or released by a
    person; and a day after the rows moved to ``rejects``. New failures of partitions older than a month are ignored.
    """
    contracts = reader.lake.contracts()
    is_active = any(subject.partition("/")[0] in contracts for subject in reader.active)
    since = date.min if is_active else (reader.now - _MONTH).date()
    text = sql_text(_HERE, "checks").format(
        since=f"DATE '{since}'", day_ago=literal((reader.now - RECENT).astimezone(UTC).replace(tzinfo=None)), most=MOST
    )
    rows = reader.ask(text).seen().rows
    dated = {(row["table"], row["partition_date"]) for row in rows if row["partition_date"] is not None}
    live = live_partitions(reader.lake, dated)
    free = released_partitions(reader.lake.tables) if rows else set()
    for row in rows:
        table, day = row["table"], row["partition_date"]
        is_released = row["on_fail"] == "hold" and (table, day, row["files_sha256"]) in free
        if is_released or (day is not None and (table, day) not in live):
            continue
        subject = "/".join(str(part) for part in (table, row["check_id"], row["column"], day) if part is not None)
        if day is not None and day < (reader.now - _MONTH).date() and subject not in reader.active:
            continue
        failed = "" if row["rows_failed"] is None else f", {counted(row['rows_failed'], 'row')}"
        on = "" if day is None else f" on {day}"
        text = f"Check {row['check_id']} of {table} {row['status']}{on}{failed}"
        owner = contracts[table].owner if table in contracts else None
        labels = {"kind": row["check_id"], "table": table, "status": row["status"], "owner": owner}
        evidence = f"ranklake quality why {table} --check {row['check_id']}"
        facts = AlertFacts(evidence=evidence, page=reader.page("quality/index.html"))
        yield KnownSignal(_signal("checks", subject, row["severity"], text, labels), facts)


def pipeline_signals(reader: Reader) -> Iterator[KnownSignal]:
    """Yield problems of the pipeline itself, and unrepaired unreadable segments.

    New ones older than two days are ignored.
    """
    facts = AlertFacts(evidence="ranklake doctor; ranklake status", page=reader.page("pipeline/index.html"))
    for problem in reader.problems():
        subject = problem.message.partition(":")[0]  # the figures after it would make a new alert each round
        kind = problem.check
        if kind == LOOK and problem.unknown in reader.active:  # keep it active: whether it has ended is unknown
            subject = kind = problem.unknown
        since = "" if problem.since_s is None else f" (for {duration(problem.since_s)})"
        words = (
            problem.message if reader.role is None else subject
        )  # an error's text may contain data that is hidden from the role
        text = f"{words[:1].upper()}{words[1:]}{since}"
        yield KnownSignal(_signal("pipeline", subject, "error", text, {"kind": kind}), facts)
    sql = sql_text("ranklake.insight.overview", "unreadable").format(condition=unsound_condition(reader.lake))
    for row in reader.ask(sql).seen().rows:
        subject = f"unreadable {row['table']} {row['run']}"
        if row["last_date"] < (reader.now - _TWO_DAYS).date() and subject not in reader.active:
            continue
        rows = "rows unknown" if row["rows"] is None else counted(row["rows"], "row")
        text = f"{counted(row['segments'], 'segment')} of {row['table']} cannot be read: {rows}, in quarantine"
        labels = {"kind": "unreadable", "table": row["table"], "run": row["run"]}
        yield KnownSignal(_signal("pipeline", subject, "error", text, labels), facts)


def _signal(source: str, subject: str, severity: str, message: str, labels: Mapping[str, Any]) -> Signal:
    """Return a signal; unknown labels are left out."""
    texts = {name: str(value) for name, value in labels.items() if value is not None and value != ""}
    return Signal(source=source, subject=subject, severity=severity, message=message, labels=texts)


SOURCES: Final[Mapping[str, Callable[[Reader], Iterator[KnownSignal]]]] = MappingProxyType(
    {
        "incidents": incident_signals,
        "slo": objective_signals,
        "checks": check_signals,
        "pipeline": pipeline_signals,
    }
)


_LOG: Final = logging.getLogger(__name__)
MOST_OF_RULE: Final = 100
"""Most rows of a rule's query that become signals; the number of others is a signal of the pipeline."""
_RULES: Final = "rules"
"""Source of signals about rules that could not be evaluated completely."""


@dataclass(frozen=True, slots=True)
class CurrentSignals:
    """Present signals, their facts by source and subject, and rules that could not be evaluated."""

    signals: tuple[Signal, ...]
    facts: Mapping[tuple[str, str], AlertFacts]
    unknown: frozenset[str]

    def facts_of(self, file: AlertFile, alerts: Iterable[Alert]) -> dict[str, AlertFacts]:
        """Return the facts of alerts, by key; the SQL is the rule's."""
        result = {}
        for alert in alerts:
            rule = file.rules[alert.rule]
            known = AlertFacts(sql=rule.sql) if rule.sql else self.facts.get((rule.source, alert.subject))
            if known:
                result[alert.key] = known
        return result


def with_own_rule(file: AlertFile) -> AlertFile:
    """Add the rule about rules that could not be evaluated, unless there is one."""
    if any(rule.source == _RULES for rule in file.rules.values()):
        return file
    rule = Rule(
        source=_RULES,
        owner="whoever keeps the rules of alerts",
        summary="A rule could not be evaluated, or not as a whole: whether something is wrong is not known.",
    )
    return replace(file, rules={**file.rules, OWN_RULE: rule})


def current_signals(
    lake: "Lake",
    file: AlertFile,
    now: datetime,
    *,
    role: "Role | None" = None,
    active: Collection[str] = frozenset(),
    query_timeout_s: float = QUERY_TIMEOUT_S,
    problems: Callable[[], Iterable[Problem]] = tuple,
    pages: str = "",
) -> CurrentSignals:
    """Return the present signals of the rules' sources, as a role sees them.

    Parameters
    ----------
    active
        Subjects of existing alerts, which stay even if they are old or beyond the limit of a query's rows.
    query_timeout_s
        Time limit of a rule's query.
    problems
        Yields problems of the pipeline itself.
    pages
        Address of the report's pages; empty if not configured.

    Raises `LakeUnreachableError`; other errors become signals.
    """
    reader = Reader(lake, role, asking(lake, role), now, active, problems, f"{pages.rstrip('/')}/" if pages else "")
    by_source: dict[str, list[str]] = {}
    for name, rule in file.rules.items():
        by_source.setdefault(rule.source, []).append(name)
    known: list[KnownSignal] = []
    faults: dict[str, str] = {}
    for source in SOURCES.keys() & by_source.keys():
        try:
            known += SOURCES[source](reader)
        except LakeUnreachableError:
            raise
        except RanklakeError as error:
            faults |= dict.fromkeys(by_source[source], str(error))
        except Exception as error:  # noqa: BLE001 - a bug in one source must not hide signals of others
            trace = "".join(
                traceback.format_exception(error)
            )  # as text: a log record that keeps the error would keep files open
            _LOG.error("signals of %s cannot be made: %s", source, trace)
            faults |= dict.fromkeys(by_source[source], f"a bug in its source ({type(error).__name__})")
    signals = [each.signal for each in known]
    texts = {name: rule.sql for name, rule in file.rules.items() if rule.sql is not None}
    incomplete = {}
    for name, result in run_queries(lake, role, texts, query_timeout_s).items():
        if result.fault:
            faults[name] = result.fault
            continue
        shown = sorted(result.signals, key=lambda signal: signal.subject not in active)[:MOST_OF_RULE]
        signals += shown
        if omitted := len(result.signals) - len(shown):
            incomplete[name] = f"has {counted(len(shown), 'alert')} and {omitted:,} more: its query gives too many rows"
    incomplete |= {name: f"could not be evaluated: {reason}" for name, reason in faults.items()}
    signals += [
        Signal(
            source=_RULES, subject=name, severity="error", message=f"Rule {name} {text}", labels={"about": name}
        )
        for name, text in sorted(incomplete.items())
    ]  # fmt: skip
    facts = {(each.signal.source, each.signal.subject): each.facts for each in known}
    return CurrentSignals(tuple(signals), facts, frozenset(faults))
