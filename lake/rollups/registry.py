"""The list of all packaged rollups, and their settings from the configuration."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ranklake.detection.declaration import Detector, ThresholdError, of_detector, thresholds_of
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.rollups import thresholds
from ranklake.lake.rollups.declaration import Input, Rollup
from ranklake.lake.rollups.detectors.registry import DETECTORS, NODE_DETECTORS, RUN_DETECTORS
from ranklake.lake.rollups.drift import Drift
from ranklake.lake.rollups.findings import Findings, NodeFindings
from ranklake.lake.rollups.hardware import limits
from ranklake.lake.rollups.incidents import Incidents
from ranklake.lake.rollups.lookups import PRICES, dtypes, facility, peaks, pseudonym_table, step_metrics
from ranklake.lake.rollups.prices import price_table
from ranklake.lake.rollups.rank_health import RankHealth
from ranklake.lake.rollups.topology import TOPOLOGY, topology_table
from ranklake.lake.store.lake_config import DEFAULT, LakeConfig
from ranklake.operator_files import raise_all


class UnknownRollupError(RanklakeError):
    """No rollup has this name."""


_STRAGGLERS: Final = {
    "warmup_steps": thresholds.WARMUP_STEPS,
    "min_steps": thresholds.MIN_STEPS,
    "min_excess_ratio": thresholds.MIN_EXCESS_RATIO,
    "min_slower_ratio": thresholds.MIN_SLOWER_RATIO,
    "clear_excess_ratio": thresholds.CLEAR_EXCESS_RATIO,
    "max_p_value": thresholds.MAX_P_VALUE,
    "min_burst_ratio": thresholds.MIN_BURST_RATIO,
    "burst_deviations": thresholds.BURST_DEVIATIONS,
    "burst_gap_steps": thresholds.BURST_GAP_STEPS,
    "min_burst_step_ratio": thresholds.MIN_BURST_STEP_RATIO,
    "max_burst_chance": thresholds.MAX_BURST_CHANCE,
}
_PEAK_FACTS: Final = (
    "device_type", "device_name", "device_count", "compute_dtype", "dtype", "has_dtypes", "world_size",
)  # fmt: skip
_FLOPS_FACTS: Final = (
    "rank", "said_date", "flops_per_token", "flops_per_step", "hardware_flops_per_step", "measured_peak_flops_per_s",
)  # fmt: skip
FEW_METRICS: Final = 5e-9
"""CPU seconds for each row of `scalars` if few metrics are read. Files are sorted by metric, so most is not opened."""
ROLLUPS: Final = (
    Rollup("run_facts", "partition", (Input("scalars", "day"),), row_cpu_s=FEW_METRICS),
    Rollup(
        "step_rollup",
        "partition",
        (Input("steps", "hours"), Input("scalars", "hours")),
        lookups={"step_metrics": step_metrics},
        leads=2,
        cut="step",
        settled_by="mean_step_time_s",
    ),
    Rollup("rank_health", "partition", (Input("steps", "hours"),), _STRAGGLERS, body=RankHealth("rank_health")),
    Rollup("attempt_facts", "run", (Input("runs", "run"), Input("step_rollup", "run")), lookups={"dtypes": dtypes}),
    Rollup("rank_facts", "run", (Input("run_facts", "run"), Input("attempt_facts", "run"))),
    Rollup(
        "mfu",
        "partition",
        (
            Input("steps", "day"),
            Input("attempt_facts", "until", facts=_PEAK_FACTS),
            Input("rank_facts", "until", facts=_FLOPS_FACTS),
        ),
        {"max_plausible_ratio": thresholds.MAX_PLAUSIBLE_RATIO},
        lookups={"peaks": peaks},
        lookback_s=0,
    ),
    Rollup("step_mfu", "partition", (Input("step_rollup", "day"), Input("mfu", "day"))),
    Rollup("run_epochs", "partition", (Input("scalars", "day"),), row_cpu_s=FEW_METRICS),
    Rollup(
        "goodput_daily",
        "run",
        tuple(
            Input(table, "run") for table in ("step_rollup", "run_epochs", "spans", "events", "runs", "attempt_facts")
        ),
        {
            "hang_factor": thresholds.HANG_FACTOR,
            "stall_s": thresholds.STALL_S,
            "quiet_days": thresholds.QUIET_DAYS,
        },
    ),
    Rollup(
        "goodput",
        "run",
        tuple(Input(table, "run") for table in ("goodput_daily", "step_rollup", "spans", "events", "runs")),
    ),
    Rollup("run_goodput", "run", (Input("goodput", "run"), Input("runs", "run"))),
    Rollup(
        "run_summary",
        "run",
        tuple(
            Input(table, "run")
            for table in ("attempt_facts", "events", "step_rollup", "rank_health", "mfu", "goodput", "run_goodput")
        ),
    ),
    Rollup(
        "gpu_hourly",
        "partition",
        (
            Input("gpu_samples", "eve"),
            Input("events", "day"),
            Input("attempt_facts", "until", facts=("cluster", "pool")),
        ),
        {"max_interval_s": thresholds.MAX_INTERVAL_S, "max_watts": thresholds.MAX_WATTS},
        lookback_s=thresholds.MAX_INTERVAL_S,
    ),
    Rollup(
        "host_hourly",
        "partition",
        (Input("host_samples", "eve"),),
        {"max_interval_s": thresholds.MAX_INTERVAL_S, "min_peers": thresholds.MIN_PEERS},
        lookback_s=3600,
        earlier=("hour", "host", "link_speeds"),
    ),
    Rollup(
        "job_facts",
        "partition",
        (Input("jobs", "over", begin=("submit_ts", "start_ts"), end=("submit_ts", "start_ts")),),
        {"max_days": thresholds.MAX_DAYS},
    ),
    Rollup(
        "cluster_hourly",
        "partition",
        (
            Input("pools", "days"),
            Input("job_facts", "over", end=("until_ts",)),
            Input("gpu_hourly", "day"),
            Input("attempt_facts", "until"),
        ),
        {
            "max_snapshot_s": thresholds.MAX_SNAPSHOT_S,
            "held_ratio": thresholds.HELD_RATIO,
            "low_ratio": thresholds.LOW_RATIO,
        },
        lookups={"facility": facility, "pseudonyms": pseudonym_table},
        secrets=("pseudonyms",),
        leads=3,
        in_a_row=True,
    ),
    Rollup(
        "cost",
        "partition",
        (
            Input("goodput_daily", "day"),
            Input("gpu_hourly", "day"),
            Input("job_facts", "over", end=("until_ts",)),
            Input("attempt_facts", "until"),
        ),
        lookups={PRICES: partial(price_table, "")},
        leads=3,
    ),
    Rollup("inference_hourly", "partition", (Input("inferences", "day"),), lookback_s=0),
    Rollup("drift", "partition", (Input("inferences", "week_before"),), thresholds.DRIFT, body=Drift()),
    Rollup(
        "run_findings",
        "run",
        tuple(
            Input(table, "run")
            for table in sorted({*(each.table for each in RUN_DETECTORS), "attempt_facts", "goodput"})
        ),
        thresholds_of(RUN_DETECTORS),
        body=Findings("run_findings", RUN_DETECTORS, "run IN (SELECT run FROM affected_runs)"),
        times=("start_ts", "end_ts"),
        kept=("computed_ts",),
    ),
    Rollup("gpu_minutes", "partition", (Input("gpu_samples", "day"),), lookback_s=0),
    Rollup("host_minutes", "partition", (Input("host_samples", "day"),), lookback_s=0),
    Rollup(
        "node_findings",
        "partition",
        (
            Input("gpu_minutes", "eve"),
            Input("host_minutes", "eve"),
            Input("events", "day"),
            Input("step_rollup", "day"),
            Input("ranks", "until"),
            Input("attempt_facts", "until"),
        ),
        {**thresholds_of(NODE_DETECTORS), "eve_s": thresholds.MAX_INTERVAL_S, "min_peers": thresholds.MIN_PEERS},
        lookups={"limits": limits},
        leads=3,
        body=NodeFindings("node_findings", NODE_DETECTORS, ""),
        kept=("computed_ts",),
        row_cpu_s=2e-6,
    ),
    Rollup(
        "incidents",
        "partition",
        (
            Input("run_findings", "week"),
            Input("node_findings", "week"),
            Input("attempt_facts", "until"),
            Input("ranks", "until"),
            Input("cost", "week"),
        ),
        {"gap_s": thresholds.INCIDENT_GAP_S},
        lookups={TOPOLOGY: partial(topology_table, "")},
        leads=2,
        in_a_row=True,
        body=Incidents(),
    ),
)
"""All packaged rollups. Each comes after the rollups that it reads."""


def select_rollups(
    names: Iterable[str] | None = None, config: LakeConfig = DEFAULT, own: Sequence[Rollup] = ()
) -> tuple[Rollup, ...]:
    """Return some rollups and the rollups that they read, in an order in which each comes after those that it reads.

    Parameters
    ----------
    names
        Names of rollups; by default all.
    config
        Configuration with the operator's prices, topology and detectors.
    own
        The operator's own rollups, each after those that it reads.

    Raises `UnknownRollupError` with the nearest name.
    """
    by_name = {rollup.name: rollup for rollup in (*ROLLUPS, *own)}
    wanted: set[str] = set()
    pending = list(by_name if names is None else names)
    while pending:
        name = pending.pop()
        if name not in by_name:
            raise UnknownRollupError(f"unknown rollup {name!r}", hint=did_you_mean(name, by_name))
        if name not in wanted:
            wanted.add(name)
            pending += [table for table in by_name[name].tables if table in by_name]
    rollups = tuple(_as_set(rollup, config) for rollup in by_name.values() if rollup.name in wanted)
    given = {PRICES: partial(price_table, config.cost.prices), TOPOLOGY: partial(topology_table, config.topology.file)}
    return tuple(
        replace(one, lookups={name: given.get(name, make) for name, make in one.lookups.items()})
        if given.keys() & one.lookups.keys()
        else one
        for one in rollups
    )


def detectors_with(config: LakeConfig) -> list[tuple[Detector, dict[str, float]]]:
    """Return the enabled detectors, each with its thresholds. Raises `ThresholdError` for an unknown setting."""
    settings, off = _settings(config)
    return [
        (each, of_detector(each.name, thresholds_of([each], settings))) for each in DETECTORS if each.name not in off
    ]


def setting_faults(config: LakeConfig) -> Iterator[tuple[str, ThresholdError]]:
    """Yield an error for each unknown detector or threshold in ``[detectors]``, with its configuration key."""
    section, detectors = config.detectors, {each.name: each for each in DETECTORS}
    named = [("off", name) for name in section.off] + [("thresholds", item.detector) for item in section.thresholds]
    for key, name in named:
        if name not in detectors:
            hint = did_you_mean(name, detectors)
            yield key, ThresholdError(f"unknown detector {name!r}", where="[detectors]", hint=hint)
    for item in section.thresholds:
        own = detectors[item.detector].thresholds if item.detector in detectors else {item.name: 0.0}
        if item.name not in own:
            wrong = f"unknown threshold {item.detector}.{item.name}"
            yield "thresholds", ThresholdError(wrong, where="[detectors]", hint=did_you_mean(item.name, own))


def _settings(config: LakeConfig) -> tuple[dict[str, float], frozenset[str]]:
    raise_all(error for _, error in setting_faults(config))
    section = config.detectors
    return {f"{item.detector}.{item.name}": item.value for item in section.thresholds}, frozenset(section.off)


def _as_set(rollup: Rollup, config: LakeConfig) -> Rollup:
    """Apply the operator's settings of detectors to a rollup of findings: thresholds, limit, disabled detectors."""
    if not isinstance(rollup.body, Findings) or config.detectors == DEFAULT.detectors:
        return rollup
    settings, off = _settings(config)
    detectors = tuple(each for each in rollup.body.detectors if each.name not in off)
    body = replace(rollup.body, detectors=detectors, limit_s=config.detectors.limit_s)
    return replace(rollup, parameters={**rollup.parameters, **thresholds_of(body.detectors, settings)}, body=body)
