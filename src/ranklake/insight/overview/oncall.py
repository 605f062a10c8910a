"""What needs a look: ranks, runs, devices, checks and the pipeline, each with its evidence and a next step."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Final

from ranklake.insight.runs.asking import Answered, Row, asking, sql_text
from ranklake.insight.runs.facts import nodes, placed, steps_done
from ranklake.insight.runs.find import Wanted, find
from ranklake.insight.runs.need import ORDER, Need
from ranklake.insight.runs.report import MOST_PAGES
from ranklake.lake.ingest.status.liveness import NEEDS_A_LOOK, RankState, liveness
from ranklake.lake.query.literal import literal

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake

_HERE: Final = "ranklake.insight.overview"
HOT_CELSIUS: Final = 90
"""Data-centre GPUs slow themselves down from 83 to 92 degrees on, by model."""
THROTTLED_RATIO: Final = 0.05
"""A device that is throttled for less of its time costs a run less than other noise does."""
PCIE_REPLAYS: Final = 100
"""A day: links in use repeat a transfer now and then."""
UNSAVED_S: Final = 2 * 3600.0
"""What a failure costs a run that has not saved for so long."""
LATE_S: Final = 3600.0
"""The pipeline runs every five minutes: rows an hour old when they came in say that uploads or ingest are stuck."""
_BACK: Final = timedelta(days=2)
_MONTH: Final = timedelta(days=31)
_SHOWN: Final = 8
_RANKS: Final = {
    "hung": ("lives, and no step or phase begins", "py-spy dump --pid PID there; run.flight_recorder keeps dumps"),
    "silent": (
        "nothing was heard of it",
        "look whether its node is up; ranklake agent --once there sends what is left",
    ),
    "missing": ("nothing was ever heard of it", "look at its node, and whether its process can write its local spool"),
    "abandoned": ("its process died without a word", "look at the node's log: out of memory, a kill, a lost device"),
}


@dataclass(frozen=True, slots=True)
class OnCall:
    """What whoever is on call should know.

    Attributes
    ----------
    lake
        Last part of its location.
    until
        When ingest last brought rows in: all is told as of then, so that the same tables tell the same; None if never.
    needs
        Worst first.
    paged
        Runs that have a page in the report: the latest.
    pipeline, running, failed, stragglers, devices, links, checks
        The evidence.
    """

    lake: str
    until: datetime | None
    needs: tuple[Need, ...]
    paged: tuple[str, ...]
    pipeline: Answered
    running: Answered
    failed: Answered
    stragglers: Answered
    devices: Answered
    links: Answered
    checks: Answered


def on_call(lake: "Lake") -> OnCall:
    """Return what needs a look, as of the last ingest. Raises what queries raise."""
    ask = asking(lake)
    name = lake.uri.rstrip("/").rpartition("/")[2]
    pipeline = ask(sql_text(_HERE, "until"))
    until: datetime | None = pipeline.one.get("until")
    if until is None:
        nothing = Answered("", (), "nothing was ingested yet")
        return OnCall(name, None, (), (), nothing, nothing, nothing, nothing, nothing, nothing, nothing)

    def of(which: str) -> Answered:
        return ask(_filled(which, until))

    running, failed, stragglers, devices = of("running"), of("failed"), of("stragglers"), of("devices")
    links, checks = of("links"), of("checks")
    ranks = [one for one in liveness(lake, (), until) if one.state in NEEDS_A_LOOK]
    slow = [(row["run"], row["rank"]) for row in stragglers.rows]
    about = [*((one.run, one.rank) for one in ranks), *slow]
    where = nodes(ask, {run for run, _ in about}, {rank for _, rank in about}).rows
    needs = [*of_ranks(ranks, failed.rows, where), *of_failed(failed.rows, ranks, where), *_of_checks(checks.rows)]
    needs += [*_of_devices(devices.rows), *_of_links(links.rows), *of_stragglers(stragglers.rows, where)]
    needs += [*_of_running(running.rows), *_of_pipeline(pipeline.one)]
    needs.sort(key=lambda one: ORDER.index(one.state))
    paged = tuple(str(row["run"]) for row in find(ask, Wanted(), "newest", MOST_PAGES).rows)
    return OnCall(name, until, tuple(needs), paged, pipeline, running, failed, stragglers, devices, links, checks)


def of_ranks(states: Iterable[RankState], failed: Iterable[Row], where: Sequence[Row] = ()) -> Iterator[Need]:
    """Yield what ranks need, but for those of an attempt that failed: that is one incident, and told with it.

    `where` has the ranks' nodes, as of `ranklake.insight.runs.facts`.
    """
    in_failed = {(row["run"], row["attempt"]) for row in failed}
    bad = [one for one in states if (one.run, one.attempt) not in in_failed]
    for (run, state), group in groupby(sorted(bad, key=_by_state), key=lambda one: (one.run, one.state)):
        ranks = list(group)
        meaning, step = _RANKS[state]
        heard = max((one.heard for one in ranks if one.heard is not None), default=None)
        detail = f"{_ranks_text([one.rank for one in ranks])}: {meaning}{_on(where, run, ranks)}"
        detail += f"; last heard {heard:%Y-%m-%d %H:%M} UTC" if heard is not None else ""
        yield Need("failing", f"{_count(len(ranks), 'rank')} of run {run} {state}", detail, step, run)


def of_failed(rows: Iterable[Row], states: Iterable[RankState], where: Sequence[Row] = ()) -> Iterator[Need]:
    """Yield runs that failed, each with what became of its ranks, and where those are."""
    bad = sorted(states, key=_by_state)
    for row in rows:
        of_attempt = [one for one in bad if (one.run, one.attempt) == (row["run"], row["attempt"])]
        detail = f"attempt {row['attempt']}, {steps_done(row)}, {row['end_ts']:%Y-%m-%d %H:%M} UTC"
        for state, group in groupby(of_attempt, key=lambda one: one.state):
            ranks = list(group)
            detail += f"; {_ranks_text([one.rank for one in ranks])}: {_RANKS[state][0]}{_on(where, row['run'], ranks)}"
        detail += "; it saved no checkpoint" if row["checkpoints"] == 0 else ""
        detail += f"; on purpose: {row['injected']}" if row["injected"] else ""
        yield Need("failing", f"run {row['run']} {row['status']}", detail, f"ranklake show {row['run']}", row["run"])


def _on(where: Iterable[Row], run: str, ranks: Iterable[RankState]) -> str:
    wanted = {(run, one.attempt, one.rank) for one in ranks}
    place = placed(row for row in where if (row["run"], row["attempt"], row["rank"]) in wanted)
    return f", {place}" if place else ""


def _by_state(rank: RankState) -> tuple[str, str, int]:
    return rank.run, rank.state, rank.rank


def _of_checks(rows: Iterable[Row]) -> Iterator[Need]:
    for row in rows:
        state = "failing" if row["severity"] == "critical" else "warning"
        detail = (
            f"{row['severity']}: {_count(row['partitions'], 'partition')}, {row['first_date']} to {row['last_date']}"
        )
        title = f"check {row['check_id']} of {row['table']} {row['status']}"
        yield Need(state, title, detail, f"ranklake quality why {row['table']} --check {row['check_id']}")


def _of_devices(rows: Iterable[Row]) -> Iterator[Need]:
    for row in rows:
        signs = []
        if row["ecc_uncorrected_count"]:
            signs.append(f"{_count(row['ecc_uncorrected_count'], 'uncorrected ECC error')}")
        if row["xid_count"]:
            signs.append(_count(row["xid_count"], "XID error"))
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
            f"{row[name]:,} {plurals.get(said, f'{said}s') if row[name] > 1 else said}"
            for name, said in kinds.items()
            if row[name]
        ]
        state = "failing" if row["nvlink_recovery_count"] else "warning"
        held = f"; held by {row['holder']}" if row["holder"] else ""
        step = "nvidia-smi nvlink -e there; if it goes on, take it out of its pool and have the link reseated"
        yield Need(state, f"links of {row['device_uuid']}", f"{', '.join(counts)}{held}", step, row["holder"] or "")


def of_stragglers(rows: Iterable[Row], where: Sequence[Row] = ()) -> Iterator[Need]:
    """Yield runs with slow ranks: how slow, through what, where those are, and whether it was done on purpose."""
    for run, group in groupby(
        sorted(rows, key=lambda row: (str(row["run"]), -row["excess_ratio"])), lambda r: r["run"]
    ):
        every = list(group)
        worst = every[0]
        ranks = sorted({row["rank"] for row in every})
        subject = "its own work takes" if len(ranks) == 1 else f"of rank {worst['rank']}, the worst, the own work takes"
        detail = f"{_ranks_text(ranks)}: {subject} {100 * worst['excess_ratio']:.1f} % longer than that of its peers"
        detail += "" if worst["excess_s"] is None else f", {worst['excess_s']:.3g} s more a step"
        detail += f", through {worst['cause']}" if worst["cause"] else ""
        attempt = {(row["attempt"], row["rank"]) for row in every}
        place = placed(row for row in where if row["run"] == run and (row["attempt"], row["rank"]) in attempt)
        detail += f"; {place}" if place else ""
        detail += f"; on purpose: {worst['injected']}" if worst["injected"] else ""
        yield Need("warning", f"{_count(len(ranks), 'slow rank')} of run {run}", detail, f"ranklake show {run}", run)


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


def _ranks_text(ranks: list[int]) -> str:
    word = "rank" if len(ranks) == 1 else "ranks"
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    return f"{word} {shown}, … ({len(ranks):,})" if len(ranks) > _SHOWN else f"{word} {shown}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _filled(name: str, until: datetime) -> str:
    fills = {
        "until": literal(until),
        "since": literal(until - _BACK),
        "since_date": f"DATE '{(until - _BACK).date()}'",
        "day_ago": literal(until - timedelta(days=1)),
        "month_ago": f"DATE '{(until - _MONTH).date()}'",
        "hot_celsius": str(HOT_CELSIUS),
        "throttled_ratio": str(THROTTLED_RATIO),
        "pcie_replays": str(PCIE_REPLAYS),
    }
    return sql_text(_HERE, name).format(**fills)
