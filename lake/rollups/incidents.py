"""Incidents: groups of related findings, each one row with its evidence and likely causes.

Rules for grouping:

1. Findings of a run are one incident while each begins within the gap (``INCIDENT_GAP_S``, half an hour) after the end
   of an earlier one. A finding that has not ended includes all later ones. Findings of a host or device outside of runs
   are grouped in the same way.
2. Incidents of hosts are one incident if the same detectors hit them at the same time and the hosts share a switch or
   rack in the operator's topology.
3. An incident of hosts or devices is merged into a run's incident that names the same host or device and overlaps it in
   time, within the gap; if there are several, into the first. An incident by rule 2 is only merged if the run's
   incident names all of its hosts.
4. An imported fault of a node is an incident of its own.
5. Findings of different weeks (Monday to Sunday, by their dates) are never in one incident. So the incidents of a date
   depend only on the dates of its week.
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
from ranklake.printable import fit

if TYPE_CHECKING:
    from ranklake.lake.query.engine import SessionContext

SEVERITIES: Final = ("critical", "error", "warning", "info")
"""Severities in descending order."""
MOST_EVIDENCE: Final = 20
APART: Final = frozenset({"node_fault"})
"""Detectors whose findings are not grouped, since they are imported with start and end."""
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
    """Findings of one incident, in order of time.

    Attributes
    ----------
    subject
        Kind (``run``, ``host``, ``device``, ``fault`` or ``lake``) and name.
    until
        The latest end of a finding; None if a finding has not ended.
    places
        Hosts and devices in the findings.
    shared
        The switch or rack that the hosts share; None without one.
    """

    subject: Subject
    findings: list[Row] = field(default_factory=list)
    until: datetime | None = None
    places: set[Subject] = field(default_factory=set)
    shared: SharedPlace | None = None

    @property
    def start(self) -> datetime:
        """Start of the first finding."""
        begin: datetime = self.findings[0]["start_ts"]
        return begin

    @property
    def first(self) -> Row:
        """The first finding of the group's subject, before findings of merged groups."""
        return min(self.findings, key=lambda finding: (_subject(finding) != self.subject, *_by_time(finding)))

    def accepts(self, begin: datetime, gap: timedelta) -> bool:
        """Whether a finding that begins at a time belongs to the group."""
        return self.until is None or not self.findings or begin <= self.until + gap

    def add(self, finding: Row) -> None:
        """Add a finding."""
        end = finding["end_ts"]
        if not self.findings:
            self.until = end
        elif self.until is not None:
            self.until = None if end is None else max(self.until, end)
        self.findings.append(finding)
        self.places |= {(name, finding[name]) for name in ("host", "device_uuid") if finding[name]}

    def join(self, other: "Group") -> None:
        """Add the findings and places of another group."""
        self.until = None if self.until is None or other.until is None else max(self.until, other.until)
        self.findings = sorted([*self.findings, *other.findings], key=_by_time)
        self.places |= other.places

    def overlaps(self, other: "Group", gap: timedelta) -> bool:
        """Whether the times of two groups overlap, within a gap."""
        return self.accepts(other.start, gap) and other.accepts(self.start, gap)


def groups(findings: Iterable[Row], gap: timedelta, topology: Topology = _NOWHERE) -> list[Group]:
    """Group the findings of one week by the rules in this module's docstring. Their order does not matter.

    Parameters
    ----------
    topology
        Rack and switch by host.
    """
    by_subject: dict[Subject, list[Row]] = defaultdict(list)
    for finding in findings:
        by_subject[_subject(finding)].append(finding)
    run_groups: list[Group] = []
    other_groups: list[Group] = []
    for subject, rows in sorted(by_subject.items()):
        (run_groups if subject[0] == "run" else other_groups).extend(_chains(subject, rows, gap))
    runs_by_place: dict[Subject, list[Group]] = defaultdict(list)
    for group in run_groups:
        for place in group.places:
            runs_by_place[place].append(group)
    unmerged = []
    by_start = sorted(other_groups, key=lambda group: (group.start, group.subject))
    for group in _merge_by_topology(by_start, gap, topology):
        matches = {id(run): run for place in group.places for run in runs_by_place[place] if run.overlaps(group, gap)}
        if group.shared is not None:  # merged into one of several runs, it would be hidden from the others
            matches = {key: run for key, run in matches.items() if group.places <= run.places}
        if matches:
            first = min(matches.values(), key=lambda run: (run.start, run.subject))
            first.findings += group.findings
        else:
            unmerged.append(group)
    for group in run_groups:
        group.findings.sort(key=_by_time)
    return [*run_groups, *unmerged]


def _merge_by_topology(ordered: list[Group], gap: timedelta, topology: Topology) -> list[Group]:
    """Merge groups of hosts that the same detector hit at the same time and that share a switch or rack.

    Takes and returns groups in order of time.
    """
    by_detector: dict[str, list[Group]] = defaultdict(list)
    for group in ordered:
        if group.subject[0] == "host" and group.subject[1] in topology:
            for detector in sorted({finding["detector"] for finding in group.findings}):
                by_detector[detector].append(group)
    merged_into: dict[int, Group] = {}  # by id() of the group that was merged
    for _, detector_groups in sorted(by_detector.items()):
        for concurrent in _concurrent_groups(detector_groups, gap):
            for shared in shared_places(topology, {group.subject[1] for group in concurrent}, topology):
                inside = [merged_into.get(id(group), group) for group in concurrent if group.subject[1] in shared.hit]
                first = min(inside, key=lambda group: (group.start, group.subject))
                first.shared = first.shared or shared
                for group in {id(group): group for group in inside if group is not first}.values():
                    first.join(group)
                    moved = {key: first for key, target in merged_into.items() if target is group}
                    merged_into |= moved | {id(group): first}
    return [group for group in ordered if id(group) not in merged_into]


def _concurrent_groups(ordered: Sequence[Group], gap: timedelta) -> Iterator[list[Group]]:
    """Yield lists of groups; in a list, each group begins before an earlier one of the list is over."""
    concurrent: list[Group] = []
    for group in ordered:
        if concurrent and not any(earlier.accepts(group.start, gap) for earlier in concurrent):
            yield concurrent
            concurrent = []
        concurrent.append(group)
    if concurrent:
        yield concurrent


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
    """Return the incident's id of a group, a digest of its subject and first finding."""
    return id_of(group.subject, group.first["finding_id"])


def id_of(subject: Subject, finding_id: str) -> str:
    """Return the id of an incident from its subject and the id of its first finding."""
    return hashlib.sha256("\n".join([*subject, finding_id]).encode()).hexdigest()[:16]


def severity_rank(severity: str | None) -> int:
    """Return the index of a severity in `SEVERITIES`; an unknown one comes last."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


_DETECTOR_ORDER: Final = {detector.name: index for index, detector in enumerate(DETECTORS)}


def _by_weight(finding: Row) -> tuple[int, datetime, int, str]:
    """Return the sort key of a finding: by severity, start, and detector in the order of the registry."""
    begin, name = _by_time(finding)
    return (
        severity_rank(finding["severity"]),
        begin,
        _DETECTOR_ORDER.get(finding["detector"], len(_DETECTOR_ORDER)),
        name,
    )


def select_evidence(group: Group) -> list[Row]:
    """Return the most important findings, at most `MOST_EVIDENCE`, in order of time.

    These are the first finding, then the most severe one of each detector, then the most severe ones of all.
    """
    by_severity = sorted(group.findings, key=_by_weight)
    by_detector: dict[str, Row] = {}
    for finding in by_severity:
        by_detector.setdefault(finding["detector"], finding)
    selected = {finding["finding_id"]: finding for finding in (group.first, *by_detector.values(), *by_severity)}
    return sorted(list(selected.values())[:MOST_EVIDENCE], key=_by_time)


class Incidents:
    """The body of the rollup ``incidents``: computes incidents from ``run_findings`` and ``node_findings``."""

    @property
    def source(self) -> str:
        """Text of this module, of the topology module, and of the failure library."""
        return "\n".join([*map(inspect.getsource, (sys.modules[__name__], topology_module)), library_text()])

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
        """Return the incidents that begin on the dates from ``date`` to ``last``."""
        first: date = values["date"].as_py()
        last: date = values["last"].as_py() if "last" in values else first
        gap = timedelta(seconds=values["gap_s"])
        nodes = {row["node"]: row for row in ctx.sql(f"SELECT * FROM {TOPOLOGY}").to_arrow_table().to_pylist()}  # noqa: S608 - ours
        topology = {node: {kind: row[kind] for kind in PLACE if row[kind]} for node, row in nodes.items()}
        selected = [
            group
            for monday in _mondays(first, last)
            for group in groups(_findings(ctx, monday), gap, topology)
            if first <= group.findings[0]["date"] <= last
        ]
        evidence = [select_evidence(group) for group in selected]
        details = _details(ctx, first, last, {finding["finding_id"] for rows in evidence for finding in rows})
        context = _Context(
            {(row["run"], row["attempt"]): row for row in ctx.sql(_ATTEMPTS).to_arrow_table().to_pylist()},
            {(row["run"], row["monday"]): row for row in ctx.sql(_PRICES).to_arrow_table().to_pylist()},
            topology,
            _hosts(ctx, {group.subject[1] for group in selected if group.subject[0] == "run"}),
        )
        rows = [
            _incident(group, [{**finding, **details[finding["finding_id"]]} for finding in findings], context)
            for group, findings in zip(selected, evidence, strict=True)
        ]
        return pa.Table.from_pylist(rows, schema=arrow_schema(contract("incidents")))


class _Context(NamedTuple):
    """Facts about runs and hosts.

    Attributes
    ----------
    attempts, prices
        Rows of ``attempt_facts`` by run and attempt; prices by run and Monday.
    topology
        Rack, switch and rails by host.
    hosts
        By run and attempt, for each rank: host, local rank, and the first date on which they were recorded.
    """

    attempts: Mapping[tuple[str, int], Row]
    prices: Mapping[tuple[str, date], Row]
    topology: Topology
    hosts: Mapping[tuple[str, int], Mapping[int, tuple[str, int | None, date]]]

    def gpus_of(self, run: str | None, attempt: int | None, day: date) -> dict[int, tuple[str, int | None]]:
        """Return host and local rank of the ranks of an attempt that were recorded up to a day, by rank."""
        ranks = self.hosts.get((run or "", -1 if attempt is None else attempt), {})
        return {rank: (host, local) for rank, (host, local, since) in sorted(ranks.items()) if since <= day}


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
# Prices are by week: rows of other weeks are only present if more dates are computed at the same time.
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
    """Return the findings of a week with the columns that grouping needs."""
    rows: list[dict[str, Any]] = ctx.sql(_select(_LIGHT, monday, monday + 6 * _DAY)).to_arrow_table().to_pylist()
    return rows


def _details(ctx: "SessionContext", first: date, last: date, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the other columns of some findings, by id. They may be from any date of the weeks of `first` to `last`."""
    begin = first - timedelta(days=first.weekday())
    replace_table(ctx, "evidence_ids", pa.table({"finding_id": pa.array(sorted(ids), pa.string())}))
    all_findings = _select(_HEAVY, begin, last + 6 * _DAY)
    on = "findings.finding_id = evidence_ids.finding_id"
    sql = f"SELECT findings.* FROM ({all_findings}) AS findings LEFT SEMI JOIN evidence_ids ON {on}"  # noqa: S608 - ours
    rows = ctx.sql(sql).to_arrow_table().to_pylist()
    ctx.deregister_table("evidence_ids")
    return {row["finding_id"]: row for row in rows}


def _incident(group: Group, evidence: Sequence[Row], context: _Context) -> dict[str, Any]:
    """Return the incident of a group, as a row of the table ``incidents``."""
    findings = group.findings
    run = group.subject[1] if group.subject[0] == "run" else None
    lead = min(evidence, key=_by_weight)
    day: date = findings[0]["date"]
    attempt = context.attempts.get((run or "", lead["attempt"] if lead["attempt"] is not None else -1), {})
    if attempt and attempt["date"] > day:  # only present if later dates are computed at the same time
        attempt = {}
    counts = Counter(finding["detector"] for finding in findings)
    start = findings[0]["start_ts"]
    ends = [finding["end_ts"] for finding in findings]
    end = None if None in ends else max(ends)
    last = max([*(moment for moment in ends if moment is not None), findings[-1]["start_ts"]])
    detected = min(finding["computed_ts"] for finding in findings)
    devices = attempt.get("device_count") if run else len({row["device_uuid"] for row in findings} - {None}) or None
    has_duration = end is not None or last > start  # an incident that has not ended may have no known duration
    affected_s = devices * (last - start).total_seconds() if devices is not None and has_duration else None
    price = context.prices.get((run or "", day - timedelta(days=day.weekday())), {})
    weights = {row["detector"]: _by_weight(row)[:2] for row in sorted(findings, key=_by_weight, reverse=True)}
    where = _where(group, lead, context)
    causes = [*([SHARED] if where.shared else []), *causes_of(weights, (row["runbook"] for row in evidence))]
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
    """Place of an incident: host, rack, switch and rail of its most severe finding, the shared place, and a text."""

    host: str | None
    place: Mapping[str, str]
    shared: SharedPlace | None
    text: str


def _where(group: Group, lead: Row, context: _Context) -> _Where:
    gpus = context.gpus_of(lead["run"], lead["attempt"], group.findings[0]["date"])
    gpu = gpus.get(lead["rank"]) if lead["rank"] is not None else None
    rank_host = gpu[0] if gpu else None
    host: str | None = lead["host"] or rank_host or next((row["host"] for row in group.findings if row["host"]), None)
    place = dict(context.topology.get(host or "", {}))
    same_kind = [
        row for row in group.findings if row["detector"] == lead["detector"] and row["attempt"] == lead["attempt"]
    ]
    hit_gpus = {gpus[row["rank"]] for row in same_kind if row["rank"] in gpus}
    hit_hosts = {row["host"] or gpus[row["rank"]][0] for row in same_kind if row["host"] or row["rank"] in gpus}
    hosts = list(dict.fromkeys(host for host, _ in gpus.values()))
    topology = context.topology
    shared = [*shared_rails(topology, hit_gpus, gpus.values()), *shared_places(topology, hit_hosts, hosts)]
    shared = [group.shared] if group.shared else shared
    if shared:
        most = max(shared, key=lambda candidate: candidate.share)
        listed = [candidate for candidate in shared if candidate.kind == most.kind][:_MOST_PLACES]
        return _Where(host, {**place, most.kind: most.name}, most, f"; {' and '.join(map(str, listed))}")
    if {rail_of(topology, hit) for hit in hit_gpus} == {rail := rail_of(topology, gpu or ("", None))} != {""}:
        place[RAIL] = rail
    parts = [f"node {hosts.index(rank_host)}"] if rank_host and not lead["host"] and len(hosts) > 1 else []
    parts += [f"{kind} {place[kind]}" for kind in (*reversed(KINDS), RAIL) if place.get(kind)]
    return _Where(host, place, None, f"; {', '.join(parts)}" if parts else "")


def _title(message: str, others: int) -> str:
    line = fit(" ".join(message.split()), _LONGEST_TITLE)
    return f"{line} (and {others:,} more finding{'' if others == 1 else 's'})" if others else line


def _evidence_row(finding: Row) -> dict[str, Any]:
    values = {name: finding[name] for name in _EVIDENCE if finding[name] is not None}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}
