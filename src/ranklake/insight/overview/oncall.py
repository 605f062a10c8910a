"""What needs attention: ranks, runs, devices, checks and the pipeline, each with evidence and a next step."""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Final

from ranklake.insight.incidents.incidents import Incidents, incident_needs, incidents, told_by
from ranklake.insight.incidents.report import MOST_LISTED
from ranklake.insight.incidents.report import incidents_with_page as paged_incidents
from ranklake.insight.overview.alerts import firing
from ranklake.insight.overview.pipeline import unsound_condition
from ranklake.insight.runs.asking import QueriedFacts, Row, asking, sql_text
from ranklake.insight.runs.facts import cause_text, hardware_findings, nodes, place_text, steps_done
from ranklake.insight.runs.find import RunConditions, find
from ranklake.insight.runs.need import ORDER, Need
from ranklake.insight.runs.report import MOST_PAGES
from ranklake.lake.ingest.status.liveness import NEEDS_A_LOOK, RankState, liveness
from ranklake.lake.query.literal import literal
from ranklake.printable import counted, printable, ranks_text

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake

_HERE: Final = "ranklake.insight.overview"
HOT_CELSIUS: Final = 90
"""Data-centre GPUs throttle from 83 to 92 degrees on, depending on the model."""
THROTTLED_RATIO: Final = 0.05
"""Throttling for a smaller share of time costs a run less than other noise."""
PCIE_REPLAYS: Final = 100
"""Per day: active links occasionally repeat a transfer."""
UNSAVED_S: Final = 2 * 3600.0
"""Time without a checkpoint after which a failure would be expensive."""
LATE_S: Final = 3600.0
"""The pipeline runs every five minutes: rows that are an hour old at ingest mean that uploads or ingest are stuck."""
_BACK: Final = timedelta(days=2)
_MONTH: Final = timedelta(days=31)
_RANKS: Final = {
    "hung": ("is alive, but begins no step or phase", "py-spy dump --pid PID there; run.flight_recorder keeps dumps"),
    "silent": (
        "has not been heard of lately",
        "look whether its node is up; ranklake agent --once there sends what is left",
    ),
    "missing": ("was never heard of", "look at its node, and whether its process can write its local spool"),
    "abandoned": (
        "its process died without an exit record",
        "look at the node's log: out of memory, a kill, a lost device",
    ),
}


@dataclass(frozen=True, slots=True)
class OnCall:
    """Facts for the person on call.

    Attributes
    ----------
    lake
        Last part of its location.
    until
        Time of the last ingest; facts are as of then, so that they depend only on the tables. None if never.
    needs
        Needs, the worst first.
    paged
        Runs and incidents that have a page in the report, by name and id.
    incidents
        Incidents of the last two days, the worst first, with their marks.
    pipeline, running, failed, stragglers, devices, links, checks, unreadable, saves, non_finite, killed
        The evidence.
    alerts
        Firing alerts, and their receivers.
    """

    lake: str
    until: datetime | None
    needs: tuple[Need, ...]
    paged: tuple[str, ...]
    incidents: Incidents
    pipeline: QueriedFacts
    running: QueriedFacts
    failed: QueriedFacts
    stragglers: QueriedFacts
    devices: QueriedFacts
    links: QueriedFacts
    checks: QueriedFacts
    unreadable: QueriedFacts
    saves: QueriedFacts
    non_finite: QueriedFacts
    killed: QueriedFacts
    alerts: QueriedFacts


def on_call(lake: "Lake") -> OnCall:
    """Return what needs attention, as of the last ingest. Raises what queries raise."""
    ask = asking(lake)
    name = lake.uri.rstrip("/").rpartition("/")[2]
    pipeline = ask(sql_text(_HERE, "until"))
    until: datetime | None = pipeline.first_row.get("until")
    if until is None:
        empty = QueriedFacts("", (), "nothing was ingested yet")
        return OnCall(name, None, (), (), Incidents((), empty, empty), *repeat(empty, 12))

    def query(name: str) -> QueriedFacts:
        return ask(_filled(name, until))

    running, failed, stragglers, devices = query("running"), query("failed"), query("stragglers"), query("devices")
    links, checks, saves = query("links"), query("checks"), query("saves")
    condition = f"date >= {_since_date(until)} AND {unsound_condition(lake)}"
    unreadable = ask(sql_text(_HERE, "unreadable").format(condition=condition))
    non_finite, killed = query("non_finite"), query("killed")
    listed = incidents(ask, since=until - _BACK)
    ranks = [one for one in liveness(lake, (), until) if one.state in NEEDS_A_LOOK]
    slow = [(row["run"], row["rank"]) for row in stragglers.rows]
    rank_names = [*((one.run, one.rank) for one in ranks), *slow]
    nodes_of_ranks = nodes(ask, {run for run, _ in rank_names}, {rank for _, rank in rank_names}).rows
    hardware = hardware_findings(ask, {run for run, _ in slow}, {rank for _, rank in slow}).rows
    failures = list(of_failed(failed.rows, ranks, nodes_of_ranks))
    needs, merged_runs = incident_needs(listed.listed, {need.run: need for need in reversed(failures)})
    needs += [need for need in failures if need.run not in merged_runs]
    needs += [*of_ranks(ranks, failed.rows, nodes_of_ranks), *_of_checks(checks.rows), *_of_unreadable(unreadable.rows)]
    known_faults = told_by(listed.listed)
    needs += [
        *_of_non_finite(_without_incident(non_finite, "run", known_faults, "non-finite")),
        *_of_killed(_without_incident(killed, "run", known_faults, "host-out-of-memory")),
        *_of_saves(_without_incident(saves, "run", known_faults, "checkpoint-failure", "checkpoint-corruption")),
        *_of_devices(_without_incident(devices, "device_uuid", known_faults, "gpu-hardware", "gpu-heat")),
        *_of_links(links.rows),
        *of_stragglers(_without_incident(stragglers, "run", known_faults, "straggler"), nodes_of_ranks, hardware),
    ]
    needs += [*_of_running(running.rows), *_of_pipeline(pipeline.first_row)]
    needs.sort(key=lambda need: (ORDER.index(need.state), need.place))
    runs = [str(row["run"]) for row in find(ask, RunConditions(), "newest", MOST_PAGES).rows]
    paged = (*runs, *(incident.id for incident in paged_incidents(incidents(ask, most=MOST_LISTED))))
    evidence = (running, failed, stragglers, devices, links, checks, unreadable, saves, non_finite, killed)
    return OnCall(name, until, tuple(needs), paged, listed, pipeline, *evidence, firing(ask))


def _without_incident(answer: QueriedFacts, column: str, known: AbstractSet[tuple[str, str]], *names: str) -> list[Row]:
    """Return rows without an incident of the same run or device and the same name in the failure library."""
    return [row for row in answer.rows if known.isdisjoint((row[column], name) for name in names)]


def of_ranks(states: Iterable[RankState], failed: Iterable[Row], where: Sequence[Row] = ()) -> Iterator[Need]:
    """Yield needs of ranks, except of failed attempts, which are reported as one incident.

    `where` has the ranks' nodes, from `ranklake.insight.runs.facts`.
    """
    in_failed = {(row["run"], row["attempt"]) for row in failed}
    other_ranks = [one for one in states if (one.run, one.attempt) not in in_failed]
    for (run, state), group in groupby(sorted(other_ranks, key=_by_state), key=lambda rank: (rank.run, rank.state)):
        ranks = list(group)
        meaning, step = _RANKS[state]
        heard = max((one.heard for one in ranks if one.heard is not None), default=None)
        detail = f"{ranks_text([one.rank for one in ranks])}: {meaning}{_on(where, run, ranks)}"
        detail += f"; last heard {heard:%Y-%m-%d %H:%M} UTC" if heard is not None else ""
        yield Need("failing", f"{counted(len(ranks), 'rank')} of run {run} {state}", detail, step, run, place=0)


def of_failed(rows: Iterable[Row], states: Iterable[RankState], where: Sequence[Row] = ()) -> Iterator[Need]:
    """Yield failed runs, each with the ends and nodes of its ranks."""
    bad = sorted(states, key=_by_state)
    for row in rows:
        of_attempt = [one for one in bad if (one.run, one.attempt) == (row["run"], row["attempt"])]
        detail = f"attempt {row['attempt']}, {steps_done(row)}, {row['end_ts']:%Y-%m-%d %H:%M} UTC"
        if row.get("exception_type"):
            detail += f"; first exception: {printable(row['exception_type'])} on rank {row['exception_rank']}"
        for state, group in groupby(of_attempt, key=lambda rank: rank.state):
            ranks = list(group)
            detail += f"; {ranks_text([one.rank for one in ranks])}: {_RANKS[state][0]}{_on(where, row['run'], ranks)}"
        detail += "; it saved no checkpoint" if row["checkpoints"] == 0 else ""
        detail += f"; on purpose: {row['injected']}" if row["injected"] else ""
        step = f"ranklake show {row['run']}"
        yield Need("failing", f"run {row['run']} {row['status']}", detail, step, row["run"], place=0)


def _on(where: Iterable[Row], run: str, ranks: Iterable[RankState]) -> str:
    wanted = {(run, one.attempt, one.rank) for one in ranks}
    place = place_text(row for row in where if (row["run"], row["attempt"], row["rank"]) in wanted)
    return f", {place}" if place else ""


def _by_state(rank: RankState) -> tuple[str, str, int]:
    return rank.run, rank.state, rank.rank


def _of_checks(rows: Iterable[Row]) -> Iterator[Need]:
    for row in rows:
        detail = (
            f"{row['severity']}: {counted(row['partitions'], 'partition')}, {row['first_date']} to {row['last_date']}"
        )
        title = f"check {row['check_id']} of {row['table']} {row['status']}"
        step = f"ranklake quality why {row['table']} --check {row['check_id']}"
        place = 1 if row["severity"] == "critical" else 2
        yield Need("failing", title, detail, step, place=place, runbook="failed-checks")


def _of_unreadable(rows: Iterable[Row]) -> Iterator[Need]:
    for row in rows:
        ranks = f"rank {row['first_rank']}" if row["first_rank"] == row["last_rank"] else "several ranks"
        of_rows = "rows unknown" if row["rows"] is None else counted(row["rows"], "row")
        detail = f"{of_rows}, of {ranks}, {row['first_date']} to {row['last_date']}; their bytes are in quarantine/"
        title = f"{counted(row['segments'], 'segment')} of {row['table']} of run {row['run']} cannot be read"
        yield Need("failing", title, detail, "ranklake status", row["run"], runbook="unreadable-segments")


_FAULTS: Final = {
    "save_failed": ("could not be saved", "save it elsewhere now", "checkpoint-failure"),
    "load_failed": ("could not be loaded", "look whether its bytes are there, and sound", "checkpoint-failure"),
    "changed": ("is not what was written", "do not resume from it", "checkpoint-corruption"),
}


def _of_saves(rows: Iterable[Row]) -> Iterator[Need]:
    for row in rows:
        words, step, runbook = _FAULTS[row["fault"]]
        reason = f", {row['exception_type']}" if row["exception_type"] else ""
        detail = (
            f"{counted(row['times'], 'time')}, last {row['last_ts']:%Y-%m-%d %H:%M} UTC: {row['last_name']}{reason}"
        )
        title = f"a {row['kind']} of run {row['run']} {words}"
        yield Need("failing", title, detail, step, row["run"], runbook=runbook)


def _of_non_finite(rows: Iterable[Row]) -> Iterator[Need]:
    for row in rows:
        detail = f"{counted(row['non_finite_steps'], 'step')} of attempt {row['attempt']}, which is {row['status']}"
        detail += f"; its last loss is {row['last_loss_flag']}" if row["last_loss_flag"] else ""
        detail += f"; on purpose: {row['injected']}" if row["injected"] else ""
        title = f"values of run {row['run']} are NaN or infinite"
        step = f"ranklake show {row['run']}"
        yield Need("failing", title, detail, step, row["run"], place=1, runbook="non-finite")


def _of_killed(rows: Iterable[Row]) -> Iterator[Need]:
    for row in rows:
        of_run = f" of run {row['run']}" if row["run"] else ""
        detail = (
            f"on {counted(row['hosts'], 'host')}, {row['first_hour']:%Y-%m-%d %H:%M} to {row['last_hour']:%H:%M} UTC"
        )
        title = f"{counted(row['kills'], 'kill')} for lack of memory{of_run}"
        step = "look what else ran there, and at the size of DataLoader workers"
        yield Need("failing", title, detail, step, row["run"] or "", place=1, runbook="host-out-of-memory")


def _of_devices(rows: Iterable[Row]) -> Iterator[Need]:
    for row in rows:
        signs = []
        if row["ecc_uncorrected_count"]:
            signs.append(f"{counted(row['ecc_uncorrected_count'], 'uncorrected ECC error')}")
        if row["xid_count"]:
            signs.append(counted(row["xid_count"], "XID error"))
        if (row["temperature_max_celsius"] or 0) >= HOT_CELSIUS:
            signs.append(f"{row['temperature_max_celsius']:.0f} °C")
        if (row["throttled_ratio"] or 0) > THROTTLED_RATIO:
            signs.append(f"throttled {100 * row['throttled_ratio']:.0f} % of the time")
        state = "failing" if row["ecc_uncorrected_count"] or row["xid_count"] else "warning"
        step = (
            "take it out of its pool and look at nvidia-smi -q there" if state == "failing" else "look at its cooling"
        )
        held = f"; held by {row['holder']}" if row["holder"] else ""
        yield Need(state, f"device {row['device_uuid']}", f"{', '.join(signs)}{held}", step, row["holder"] or "")


def _of_links(rows: Iterable[Row]) -> Iterator[Need]:
    kinds = {"nvlink_recovery_count": "NVLink recovery", "nvlink_crc_count": "NVLink CRC error",
             "nvlink_replay_count": "NVLink replay", "pcie_replay_count": "PCIe replay"}  # fmt: skip
    plurals = {"NVLink recovery": "NVLink recoveries"}
    for row in rows:
        counts = [
            f"{row[name]:,} {plurals.get(noun, f'{noun}s') if row[name] > 1 else noun}"
            for name, noun in kinds.items()
            if row[name]
        ]
        state = "failing" if row["nvlink_recovery_count"] else "warning"
        held = f"; held by {row['holder']}" if row["holder"] else ""
        step = "nvidia-smi nvlink -e there; if it goes on, take it out of its pool and have the link reseated"
        yield Need(state, f"links of {row['device_uuid']}", f"{', '.join(counts)}{held}", step, row["holder"] or "")


def of_stragglers(rows: Iterable[Row], where: Sequence[Row] = (), hardware: Sequence[Row] = ()) -> Iterator[Need]:
    """Yield runs with slow ranks: how slow, why, on which nodes, and whether it was injected.

    `hardware` are findings about their devices and hosts; those of the worst rank explain its slowness.
    """
    for run, group in groupby(
        sorted(rows, key=lambda row: (str(row["run"]), -row["excess_ratio"])), lambda r: r["run"]
    ):
        slow_ranks = list(group)
        worst = slow_ranks[0]
        ranks = sorted({row["rank"] for row in slow_ranks})
        subject = "its own work takes" if len(ranks) == 1 else f"of rank {worst['rank']}, the worst, the own work takes"
        detail = f"{ranks_text(ranks)}: {subject} {100 * worst['excess_ratio']:.1f} % longer than that of its peers"
        detail += "" if worst["excess_s"] is None else f", {worst['excess_s']:.3g} s more a step"
        detail += f", through {worst['cause']}" if worst["cause"] else ""
        attempt = {(row["attempt"], row["rank"]) for row in slow_ranks}
        place = place_text(row for row in where if row["run"] == run and (row["attempt"], row["rank"]) in attempt)
        detail += f"; {place}" if place else ""
        of_worst = tuple(worst[name] for name in ("run", "attempt", "rank"))
        reason = cause_text(row for row in hardware if (row["run"], row["attempt"], row["rank"]) == of_worst)
        detail += f"; {reason}" if reason else ""
        detail += f"; on purpose: {worst['injected']}" if worst["injected"] else ""
        yield Need("warning", f"{counted(len(ranks), 'slow rank')} of run {run}", detail, f"ranklake show {run}", run)


def _of_running(rows: Iterable[Row]) -> Iterator[Need]:
    for row in rows:
        if row["unsaved_s"] is not None and row["unsaved_s"] > UNSAVED_S:
            saved = row["checkpoint_ts"]
            last_save = "never saved a checkpoint" if saved is None else f"last saved {saved:%Y-%m-%d %H:%M} UTC"
            hours = f"{row['unsaved_s'] / 3600:.1f} hours of work would be lost"
            yield Need(
                "warning", f"run {row['run']} has not saved", f"{last_save}; {hours}", "save a checkpoint", row["run"]
            )


def _of_pipeline(row: Row) -> list[Need]:
    if row["lag_s"] is None or row["lag_s"] <= LATE_S:
        return []
    detail = f"newest row {row['newest_ts']:%Y-%m-%d %H:%M} UTC, ingested {row['until']:%Y-%m-%d %H:%M} UTC"
    return [Need("warning", f"the newest row came {row['lag_s'] / 3600:.1f} hours late", detail, "ranklake doctor")]


def _since_date(until: datetime) -> str:
    return f"DATE '{(until - _BACK).date()}'"


def _filled(name: str, until: datetime) -> str:
    fills = {
        "until": literal(until),
        "since": literal(until - _BACK),
        "since_date": _since_date(until),
        "day_ago": literal(until - timedelta(days=1)),
        "month_ago": f"DATE '{(until - _MONTH).date()}'",
        "hot_celsius": str(HOT_CELSIUS),
        "throttled_ratio": str(THROTTLED_RATIO),
        "pcie_replays": str(PCIE_REPLAYS),
    }
    return sql_text(_HERE, name).format(**fills)
