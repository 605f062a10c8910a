"""What says that a planted fault was found, how soon its data tell it, and what fixed thresholds would have said."""

from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.load import contract
from ranklake.lake.rollups.detectors.registry import RUN_DETECTORS
from ranklake.lake.rollups.findings import split
from ranklake.lake.tables.read import read

EXPECTED = {
    **{kind: {kind} for kind in (
        "loss_spike", "divergence", "non_finite", "gradient_spike", "zero_gradients", "straggler", "data_stall",
        "rank_slowdown",
        "rank_silence", "clock_skew", "version_skew", "run_failed", "checkpoint_failure", "checkpoint_duration", "hang",
        "collective_share", "throughput_drop", "loader_share", "gpu_temperature", "ecc", "nvlink_recovery",
        "pcie_replays", "gpu_lost", "low_sm", "iowait", "io_pressure", "memory_pressure", "oom_kill", "link_down",
        "nvlink_down", "pcie_width")},
    "lr_stuck": {"learning_rate"}, "lr_restart": {"learning_rate"}, "checkpoint_corrupt": {"checkpoint_corruption"},
    "thermal_throttling": {"gpu_throttling"}, "power_brake": {"gpu_throttling"}, "remap_pending": {"row_remap"},
    "remap_failed": {"row_remap"}, "xid_dbe": {"xid"}, "xid_bus": {"xid"},
}  # fmt: skip
"""Detectors of which one has to name a fault, by its kind."""
COMPANIONS = {
    "loss_spike": {"gradient_spike"}, "divergence": {"loss_spike", "gradient_spike", "non_finite"},
    "gradient_spike": {"loss_spike"}, "lr_restart": {"loss_spike", "divergence"},
    "collective_share": {"throughput_drop"}, "loader_share": {"throughput_drop", "data_stall"},
    "throughput_drop": {"collective_share"}, "hang": {"data_stall"}, "straggler": {"collective_share"},
    "rank_slowdown": {"collective_share", "throughput_drop", "straggler"},
}  # fmt: skip
"""What a fault brings about besides, so that a finding of it is true."""
RULES = {
    "loss_spike": "mean_loss > 6", "divergence": "mean_loss > 6", "non_finite": "non_finite_ranks > 0",
    "gradient_spike": "max_grad_norm > 10", "zero_gradients": "max_grad_norm = 0",
    "throughput_drop": "median_step_time_s > 0.1", "data_stall": "max_data_time_s > 1",
    "loader_share": "mean_data_time_s > 0.05", "collective_share": "mean_collective_time_s > 0.1",
}  # fmt: skip
"""Fixed thresholds, a rule an operator might set for these runs, over `step_rollup`; others look at single rows."""


def data_time(finding, case, steps, begun):
    """Return the seconds of data from the first bad step until there is a finding; None where that is not measured.

    For detectors over steps: the shortest series that gives it, step by step.
    """
    detector = next((each for each in RUN_DETECTORS if each.name == finding["detector"]), None)
    if detector is None or detector.table != "step_rollup":
        return max(0.0, finding["start_ts"].timestamp() - min(begun.values(), default=0.0))
    rows = steps.filter(pc.equal(steps["run"], case["name"])).sort_by([(name, "ascending") for name in detector.order])
    wanted = list(dict.fromkeys((*detector.grain, *detector.order, *detector.columns)))
    rows = rows.select(wanted)
    places = [place for place, step in enumerate(rows["step"].to_pylist()) if step >= finding["step"]]
    times = rows["ts"].cast(pa.int64()).to_pylist()
    for place in places:
        (series,) = split(rows.slice(0, place + 1), detector.grain)
        if any((each.step or 0) >= finding["step"] - 16 for each in detector.find(series, detector.thresholds)):
            return (times[place] - times[places[0]]) / 1e6
    return None


def fixed_thresholds(lake, cases):
    """Return how many faults fixed thresholds find, of how many, and how many findings are false."""
    flagged = defaultdict(set)
    steps = read(lake.tables, contract("step_rollup"))
    for kind, rule in RULES.items():
        column, sign, limit = rule.split()
        compare = pc.greater if sign == ">" else pc.equal
        holds = pc.fill_null(compare(steps[column].cast(pa.float64()), float(limit)), False)  # noqa: FBT003
        for run in steps.filter(holds)["run"].unique().to_pylist():
            flagged[run].add(kind)
    for row in read(lake.tables, contract("artifacts")).to_pylist():
        if (row["duration_ns"] or 0) > 5e9:
            flagged[row["run"]].add("checkpoint_duration")
        if row["action"] == "save_failed":
            flagged[row["run"]].add("checkpoint_failure")
    for row in read(lake.tables, contract("goodput")).to_pylist():
        if row["status"] == "failed":
            flagged[row["run"]].add("run_failed")
    _flag_hardware(lake, flagged)
    planted = {name: case["kind"] for name, case in cases.items() if "none" not in case["kind"]}
    found = sum(kind in flagged[name] for name, kind in planted.items())
    allowed = {name: {kind, *COMPANIONS.get(kind, ())} for name, kind in planted.items()}
    return found, len(planted), sum(len(kinds - allowed.get(name, set())) for name, kinds in flagged.items())


def _flag_hardware(lake, flagged):
    for row in read(lake.tables, contract("gpu_samples")).to_pylist():
        reasons = row["clock_event_reasons"] or ""
        rules = {
            "gpu_temperature": (row["temperature_celsius"] or 0) > 85,
            "low_sm": (row["sm_active_ratio"] or 1) < 0.6,
            "ecc": (row["ecc_uncorrected_volatile_count"] or 0) > 0,
            "thermal_throttling": "thermal" in reasons, "power_brake": "brake" in reasons,
        }  # fmt: skip
        flagged[row["holder_run"]] |= {kind for kind, holds in rules.items() if holds}
    for row in read(lake.tables, contract("host_samples")).to_pylist():
        if (row["cpu_iowait_ratio"] or 0) > 0.3:
            flagged[row["holder_run"]].add("iowait")
