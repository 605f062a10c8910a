"""Incidents: findings that belong together, as one row with its evidence and likely causes.

The rule. Findings of a run belong together while each begins within the gap (half an hour, ``INCIDENT_GAP_S``) of the
end of one before it; while one lasts, whatever begins does. Those of a host or device outside of runs do likewise. An
incident of a host or device that overlaps, within the gap, a run's incident that names the same host or device is part
of that one: the first of several. Hosts that are hit alike at once, and share a switch or rack by the operator's
topology, are one incident, which is of a run only if the run has all of them. A fault of a node that was imported is an
incident by itself. Findings of different weeks (Monday to Sunday, by their dates) are never together: so a date depends
on the dates of its week alone, and computing some dates gives the same rows as computing all.
"""

import hashlib
import inspect
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.rollups import topology as topology_module
from ranklake.lake.rollups.declaration import replace_table
from ranklake.lake.rollups.detectors.registry import DETECTORS
from ranklake.lake.rollups.failures import SHARED, causes_of, library_text
from ranklake.lake.rollups.topology import (
    KINDS,
    PLACE,
    RAIL,
    TOPOLOGY,
    SharedPlace,
    rail_of,
    shared_places,
    shared_rails,
)

if TYPE_CHECKING:
    from ranklake.lake.query.engine import SessionContext

SEVERITIES: Final = ("critical", "error", "warning", "info")
"""The worst first."""
MOST_EVIDENCE: Final = 20
APART: Final = frozenset({"node_fault"})
"""Detectors of which each finding is an incident by itself: who recorded it knows its start and end."""
_LONGEST_TITLE: Final = 300
_MOST_PLACES: Final = 3
_DAY: Final = timedelta(days=1)

Row = Mapping[str, Any]
Topology = Mapping[str, Mapping[str, str]]
_NOWHERE: Final[Topology] = {}
Subject = tuple[str, str]

_LIGHT: Final = (
    *("finding_id", "detector", "severity", "run", "attempt", "rank", "host", "device_uuid", "step", "start_ts"),
    *("end_ts", "computed_ts", "date"),
)
_HEAVY: Final = (
    *("finding_id", "end_step", "value", "baseline", "effect", "message", "evidence"),
    *("evidence_sql", "runbook"),
)
_EVIDENCE: Final = (
    *("finding_id", "detector", "severity", "attempt", "rank", "step", "end_step", "start_ts", "end_ts"),
    *("value", "baseline", "effect", "message", "evidence", "evidence_sql", "runbook"),
)


@dataclass
class Group:
    """Findings that belong together, in order of time.

    Attributes
    ----------
    subject
        Kind (``run``, ``host``, ``device``, ``fault`` or ``lake``) and name.
    until
        When the last of them ends; None while one lasts.
    places
        Hosts and devices that they name.
    shared
        The switch or rack whose hosts it is about.
    """

    subject: Subject
    findings: list[Row] = field(default_factory=list)
    until: datetime | None = None
    places: set[Subject] = field(default_factory=set)
    shared: SharedPlace | None = None

    @property
    def start(self) -> datetime:
        """When the first of them begins."""
        begin: datetime = self.findings[0]["start_ts"]
        return begin

    @property
    def first(self) -> Row:
        """The first finding of the subject itself."""
        return min(self.findings, key=lambda finding: (_subject(finding) != self.subject, *_by_time(finding)))

    def accepts(self, begin: datetime, gap: timedelta) -> bool:
        """Whether a finding that begins then belongs to it."""
        return self.until is None or not self.findings or begin <= self.until + gap

    def add(self, finding: Row) -> None:
        """Take a finding in."""
        end = finding["end_ts"]
        if not self.findings:
            self.until = end
        elif self.until is not None:
            self.until = None if end is None else max(self.until, end)
        self.findings.append(finding)
        self.places |= {(name, finding[name]) for name in ("host", "device_uuid") if finding[name]}

    def join(self, other: "Group") -> None:
        """Take another group in, with all that it has."""
        self.until = None if self.until is None or other.until is None else max(self.until, other.until)
        self.findings = sorted([*self.findings, *other.findings], key=_by_time)
        self.places |= other.places

    def overlaps(self, other: "Group", gap: timedelta) -> bool:
        """Whether the times of two groups overlap, within a gap."""
        return self.accepts(other.start, gap) and other.accepts(self.start, gap)


def groups(findings: Iterable[Row], gap: timedelta, topology: Topology = _NOWHERE) -> list[Group]:
    """Return the findings of one week as groups, by the rule at the head of this module, whatever their order.

    `topology` has the rack and switch of hosts.
    """
    by_subject: dict[Subject, list[Row]] = defaultdict(list)
    for finding in findings:
        by_subject[_subject(finding)].append(finding)
    of_runs: list[Group] = []
    others: list[Group] = []
    for subject, rows in sorted(by_subject.items()):
        (of_runs if subject[0] == "run" else others).extend(_chains(subject, rows, gap))
    by_place: dict[Subject, list[Group]] = defaultdict(list)
    for group in of_runs:
        for place in group.places:
            by_place[place].append(group)
    alone = []
    for group in _joined(sorted(others, key=lambda group: (group.start, group.subject)), gap, topology):
        near = {id(run): run for place in group.places for run in by_place[place] if run.overlaps(group, gap)}
        if group.shared is not None:  # one of several runs there would hide what hits them all
            near = {key: run for key, run in near.items() if group.places <= run.places}
        if near:
            first = min(near.values(), key=lambda run: (run.start, run.subject))
            first.findings += group.findings
        else:
            alone.append(group)
    for group in of_runs:
        group.findings.sort(key=_by_time)
    return [*of_runs, *alone]


def _joined(ordered: list[Group], gap: timedelta, topology: Topology) -> list[Group]:
    """Return groups in order of time, those of hosts together that are hit alike at once and share a switch or rack."""
    by_detector: dict[str, list[Group]] = defaultdict(list)
    for group in ordered:
        if group.subject[0] == "host" and group.subject[1] in topology:
            for detector in sorted({finding["detector"] for finding in group.findings}):
                by_detector[detector].append(group)
    into: dict[int, Group] = {}  # the group that took another in, by the other's id()
    for _, hit in sorted(by_detector.items()):
        for together in _at_once(hit, gap):
            for shared in shared_places(topology, {group.subject[1] for group in together}, topology):
                inside = [into.get(id(group), group) for group in together if group.subject[1] in shared.hit]
                first = min(inside, key=lambda group: (group.start, group.subject))
                first.shared = first.shared or shared
                for group in {id(group): group for group in inside if group is not first}.values():
                    first.join(group)
                    into |= {key: first for key, taker in into.items() if taker is group} | {id(group): first}
    return [group for group in ordered if id(group) not in into]


def _at_once(ordered: Sequence[Group], gap: timedelta) -> Iterator[list[Group]]:
    """Yield groups in order of time, those together of which each begins before one before it is over."""
    together: list[Group] = []
    for group in ordered:
        if together and not any(before.accepts(group.start, gap) for before in together):
            yield together
            together = []
        together.append(group)
    if together:
        yield together


def _subject(finding: Row) -> Subject:
    if finding["detector"] in APART:
        return "fault", finding["finding_id"]
    for kind, name in (("run", "run"), ("host", "host"), ("device", "device_uuid")):
        if finding[name]:
            return kind, finding[name]
    return "lake", ""


def _by_time(finding: Row) -> tuple[datetime, str]:
    return finding["start_ts"], finding["finding_id"]


def _chains(subject: Subject, findings: Sequence[Row], gap: timedelta) -> Iterator[Group]:
    group = Group(subject)
    for finding in sorted(findings, key=_by_time):
        if not group.accepts(finding["start_ts"], gap):
            yield group
            group = Group(subject)
        group.add(finding)
    yield group


def incident_id(group: Group) -> str:
    """Return the id of a group: of its subject and its first finding."""
    return id_of(group.subject, group.first["finding_id"])


def id_of(subject: Subject, finding_id: str) -> str:
    """Return the id of an incident by its subject and first finding."""
    return hashlib.sha256("\n".join([*subject, finding_id]).encode()).hexdigest()[:16]


def severity_rank(severity: str | None) -> int:
    """Return the place of a severity among `SEVERITIES`; what is unknown comes last."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


_ORDER: Final = {detector.name: place for place, detector in enumerate(DETECTORS)}


def _by_weight(finding: Row) -> tuple[int, datetime, int, str]:
    """Return the place of a finding: the worst, then the first; the loss before the gradients of the same step."""
    begin, name = _by_time(finding)
    return severity_rank(finding["severity"]), begin, _ORDER.get(finding["detector"], len(_ORDER)), name


def telling(group: Group) -> list[Row]:
    """Return the findings that say most, at most `MOST_EVIDENCE`.

    These are the first one, the worst of each detector, the worst of all.
    """
    worst = sorted(group.findings, key=_by_weight)
    firsts: dict[str, Row] = {}
    for finding in worst:
        firsts.setdefault(finding["detector"], finding)
    chosen = {finding["finding_id"]: finding for finding in (group.first, *firsts.values(), *worst)}
    return sorted(list(chosen.values())[:MOST_EVIDENCE], key=_by_time)


class Incidents:
    """The body of the rollup ``incidents``: dates of ``run_findings`` and ``node_findings`` in, incidents out."""

    @property
    def source(self) -> str:
        """Text of this module, of what tells which hosts share a switch, and of the failure library."""
        return "\n".join([*map(inspect.getsource, (sys.modules[__name__], topology_module)), library_text()])

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
        """Return the incidents that begin on the dates from ``date`` to ``last``."""
        first: date = values["date"].as_py()
        last: date = values["last"].as_py() if "last" in values else first
        gap = timedelta(seconds=values["gap_s"])
        known = {row["node"]: row for row in ctx.sql(f"SELECT * FROM {TOPOLOGY}").to_arrow_table().to_pylist()}  # noqa: S608 - ours
        topology = {node: {kind: row[kind] for kind in PLACE if row[kind]} for node, row in known.items()}
        begun = [
            group
            for monday in _mondays(first, last)
            for group in groups(_findings(ctx, monday), gap, topology)
            if first <= group.findings[0]["date"] <= last
        ]
        evidence = [telling(group) for group in begun]
        details = _details(ctx, first, last, {finding["finding_id"] for rows in evidence for finding in rows})
        about = _About(
            {(row["run"], row["attempt"]): row for row in ctx.sql(_ATTEMPTS).to_arrow_table().to_pylist()},
            {(row["run"], row["monday"]): row for row in ctx.sql(_PRICES).to_arrow_table().to_pylist()},
            topology,
            _hosts(ctx, {group.subject[1] for group in begun if group.subject[0] == "run"}),
        )
        rows = [
            _incident(group, [{**finding, **details[finding["finding_id"]]} for finding in chosen], about)
            for group, chosen in zip(begun, evidence, strict=True)
        ]
        return pa.Table.from_pylist(rows, schema=arrow_schema(contract("incidents")))


class _About(NamedTuple):
    """What is known of runs and hosts.

    Attributes
    ----------
    attempts, prices
        By run and attempt, and by run and Monday.
    topology
        Rack, switch and rails by host.
    hosts
        By run and attempt: host and local rank of each rank, and the date since when they are known.
    """

    attempts: Mapping[tuple[str, int], Row]
    prices: Mapping[tuple[str, date], Row]
    topology: Topology
    hosts: Mapping[tuple[str, int], Mapping[int, tuple[str, int | None, date]]]

    def gpus_of(self, run: str | None, attempt: int | None, day: date) -> dict[int, tuple[str, int | None]]:
        """Return host and local rank by rank of an attempt, of the ranks that were known on a day."""
        known = self.hosts.get((run or "", -1 if attempt is None else attempt), {})
        return {rank: (host, local) for rank, (host, local, since) in sorted(known.items()) if since <= day}


def _hosts(
    ctx: "SessionContext", runs: Iterable[str]
) -> dict[tuple[str, int], dict[int, tuple[str, int | None, date]]]:
    replace_table(ctx, "hit_runs", pa.table({"hit": pa.array(sorted(runs), pa.string())}))
    rows = ctx.sql(_RANKS).to_arrow_table().to_pylist()
    ctx.deregister_table("hit_runs")
    hosts: dict[tuple[str, int], dict[int, tuple[str, int | None, date]]] = defaultdict(dict)
    for row in rows:
        hosts[row["run"], row["attempt"]].setdefault(row["rank"], (row["host"], row["local_rank"], row["date"]))
    return hosts


_RANKS: Final = """SELECT DISTINCT run, attempt, rank, host, local_rank, date FROM ranks
LEFT SEMI JOIN hit_runs ON run = hit
WHERE host IS NOT NULL AND rank IS NOT NULL ORDER BY date, host, local_rank NULLS LAST"""
_ATTEMPTS: Final = "SELECT run, attempt, job, device_count, injected, date FROM attempt_facts"
# By week: what is there of other weeks hangs on how many dates are computed at once.
_PRICES: Final = """SELECT
    run, CAST(date_trunc('week', date) AS DATE) AS monday, min(device_price) AS price, min(currency) AS currency
FROM cost WHERE run IS NOT NULL GROUP BY 1, 2
HAVING count(DISTINCT device_price) = 1 AND count(DISTINCT currency) = 1 AND count(*) = count(device_price)"""


def _mondays(first: date, last: date) -> Iterator[date]:
    monday = first - timedelta(days=first.weekday())
    while monday <= last:
        yield monday
        monday += 7 * _DAY


def _select(columns: Sequence[str], first: date, last: date) -> str:
    within = f"date >= DATE '{first}' AND date <= DATE '{last}'"
    names = ", ".join(columns)
    tables = ("run_findings", "node_findings")
    return " UNION ALL ".join(f"SELECT {names} FROM {table} WHERE {within}" for table in tables)  # noqa: S608 - ours


def _findings(ctx: "SessionContext", monday: date) -> list[dict[str, Any]]:
    """Return the findings of a week, with what tells which belong together."""
    rows: list[dict[str, Any]] = ctx.sql(_select(_LIGHT, monday, monday + 6 * _DAY)).to_arrow_table().to_pylist()
    return rows


def _details(ctx: "SessionContext", first: date, last: date, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return what else is known of a few findings, by id; an incident may take in findings of all its week."""
    begin = first - timedelta(days=first.weekday())
    replace_table(ctx, "telling_findings", pa.table({"finding_id": pa.array(sorted(ids), pa.string())}))
    every = _select(_HEAVY, begin, last + 6 * _DAY)
    on = "findings.finding_id = telling_findings.finding_id"
    sql = f"SELECT findings.* FROM ({every}) AS findings LEFT SEMI JOIN telling_findings ON {on}"  # noqa: S608 - ours
    rows = ctx.sql(sql).to_arrow_table().to_pylist()
    ctx.deregister_table("telling_findings")
    return {row["finding_id"]: row for row in rows}


def _incident(group: Group, evidence: Sequence[Row], about: _About) -> dict[str, Any]:
    findings = group.findings
    run = group.subject[1] if group.subject[0] == "run" else None
    lead = min(evidence, key=_by_weight)
    day: date = findings[0]["date"]
    attempt = about.attempts.get((run or "", lead["attempt"] if lead["attempt"] is not None else -1), {})
    if attempt and attempt["date"] > day:  # it is there only where later dates are computed with this one
        attempt = {}
    counts = Counter(finding["detector"] for finding in findings)
    start = findings[0]["start_ts"]
    ends = [finding["end_ts"] for finding in findings]
    end = None if None in ends else max(ends)
    last = max([*(moment for moment in ends if moment is not None), findings[-1]["start_ts"]])
    detected = min(finding["computed_ts"] for finding in findings)
    devices = attempt.get("device_count") if run else len({row["device_uuid"] for row in findings} - {None}) or None
    has_lasted = end is not None or last > start  # else it goes on, and nothing says how long it has
    affected_s = devices * (last - start).total_seconds() if devices is not None and has_lasted else None
    price = about.prices.get((run or "", day - timedelta(days=day.weekday())), {})
    worst = {row["detector"]: _by_weight(row)[:2] for row in sorted(findings, key=_by_weight, reverse=True)}
    where = _where(group, lead, about)
    causes = [*([SHARED] if where.shared else []), *causes_of(worst, (row["runbook"] for row in evidence))]
    return {
        "incident_id": incident_id(group),
        "kind": lead["detector"],
        "severity": lead["severity"],
        "title": _title(f"{lead['message']}{where.text}", len(findings) - 1),
        "run": run,
        **{name: attempt.get(name) for name in ("job", "injected")},
        **{name: lead[name] for name in ("attempt", "rank")},
        "host": where.host,
        "device_uuid": next((row["device_uuid"] for row in (lead, *findings) if row["device_uuid"]), None),
        **{kind: where.place.get(kind) for kind in (*KINDS, RAIL)},
        "step": min((row["step"] for row in findings if row["step"] is not None), default=None),
        "start_ts": start,
        "end_ts": end,
        "last_ts": last,
        "detected_ts": detected,
        "time_to_detect_s": (detected - start).total_seconds() if detected >= start else None,
        "time_to_recover_s": None if end is None else (end - start).total_seconds(),
        "device_count": devices,
        "affected_device_s": affected_s,
        "affected_cost": None if affected_s is None or not price else affected_s / 3600 * float(price["price"]),
        "currency": None if affected_s is None else price.get("currency"),
        "cause": causes[0] if causes else None,
        "causes": json.dumps(causes),
        "status": "open" if end is None else "closed",
        "findings": len(findings),
        "detectors": json.dumps(dict(sorted(counts.items()))),
        "evidence": json.dumps([_evidence_row(row) for row in evidence], ensure_ascii=False),
        "date": day,
    }


class _Where(NamedTuple):
    """Place of an incident: host, rack, switch and rail of its lead finding, the shared place, and text of it."""

    host: str | None
    place: Mapping[str, str]
    shared: SharedPlace | None
    text: str


def _where(group: Group, lead: Row, about: _About) -> _Where:
    gpus = about.gpus_of(lead["run"], lead["attempt"], group.findings[0]["date"])
    gpu = gpus.get(lead["rank"]) if lead["rank"] is not None else None
    of_rank = gpu[0] if gpu else None
    host: str | None = lead["host"] or of_rank or next((row["host"] for row in group.findings if row["host"]), None)
    place = dict(about.topology.get(host or "", {}))
    alike = [row for row in group.findings if row["detector"] == lead["detector"] and row["attempt"] == lead["attempt"]]
    hit_gpus = {gpus[row["rank"]] for row in alike if row["rank"] in gpus}
    hit = {row["host"] or gpus[row["rank"]][0] for row in alike if row["host"] or row["rank"] in gpus}
    hosts = list(dict.fromkeys(host for host, _ in gpus.values()))
    topology = about.topology
    shared = [*shared_rails(topology, hit_gpus, gpus.values()), *shared_places(topology, hit, hosts)]
    shared = [group.shared] if group.shared else shared
    if shared:
        most = max(shared, key=lambda each: each.share)
        alike_places = [each for each in shared if each.kind == most.kind][:_MOST_PLACES]
        return _Where(host, {**place, most.kind: most.name}, most, f"; {' and '.join(map(str, alike_places))}")
    if {rail_of(topology, each) for each in hit_gpus} == {rail := rail_of(topology, gpu or ("", None))} != {""}:
        place[RAIL] = rail
    parts = [f"node {hosts.index(of_rank)}"] if of_rank and not lead["host"] and len(hosts) > 1 else []
    parts += [f"{kind} {place[kind]}" for kind in (*reversed(KINDS), RAIL) if place.get(kind)]
    return _Where(host, place, None, f"; {', '.join(parts)}" if parts else "")


def _title(message: str, others: int) -> str:
    line = " ".join(message.split())
    line = line if len(line) <= _LONGEST_TITLE else f"{line[: _LONGEST_TITLE - 1]}…"
    return f"{line} (and {others:,} more finding{'' if others == 1 else 's'})" if others else line


def _evidence_row(finding: Row) -> dict[str, Any]:
    shown = {name: finding[name] for name in _EVIDENCE if finding[name] is not None}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in shown.items()}
