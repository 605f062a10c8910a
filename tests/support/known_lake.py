"""A lake whose rows were made by hand, so that answers to what people ask of it are known; some must not count."""

import json
from datetime import timedelta
from decimal import Decimal

from rollup_inputs import DAY, NOON, told

from ranklake.lake.store.lake import Lake

HOUR = 3600 * 10**9
STEP = {"run": "gpt-1", "mean_step_time_s": 2.0, "mean_data_time_s": 0.5, "mean_loss": 2.0, "non_finite_ranks": 0}
LATER = NOON + timedelta(hours=1)
ROWS = {
    "step_rollup": [
        {**STEP, "step": n, "ts": NOON, **more}
        for n, more in enumerate([{}] * 8 + [{"mean_loss": 4.0, "mean_step_time_s": 4.0}, {"non_finite_ranks": 1}])
    ]
    + [{"run": "gpt-2", "step": 0, "ts": NOON, "mean_loss": 3.0}],
    "goodput_daily": [
        {"run": "gpt-1", "date": DAY, "wall_ns": 10 * HOUR, "productive_ns": 7 * HOUR, "restart_ns": HOUR,
         "device_count": 8}
    ],
    "rank_health": [
        {"run": run, "rank": rank, "date": DAY, "is_straggler": rank == 1, "excess_ratio": 0.25 * rank,
         "cause": "compute"}
        for run in ("gpt-1", "gpt-2")
        for rank in range(3)
    ],
    "ranks": [{"run": run, "rank": n, "host": f"node-{n}"} for run in ("gpt-1", "gpt-2") for n in range(3)],
    "steps": [
        {"run": run, "step": n, "step_time_s": 1.0, "data_time_s": data, "collective_time_s": 0.125}
        for run, data in (("gpt-1", 0.5), ("gpt-2", 0.25), ("gpt-3", None))
        for n in range(4)
    ],
    "run_summary": [
        {"run": "gpt-1", "job": "gpt", "mfu_ratio": 0.25, "device_name": "H100", "last_loss": 2.0,
         "tokens_per_s": 100.0, "status": "running"},
        {"run": "gpt-2", "job": "gpt", "mfu_ratio": 0.5, "last_loss": 1.0, "tokens_per_s": 300.0, "ts": LATER},
        {"run": "gpt-3", "job": "bert", "mfu_reason": "no peak"},
    ],
    "runs": [
        {"run": f"gpt-{n}", "git_commit": commit, "config": json.dumps({"opt": {"lr": lr}})}
        for n, commit, lr in ((1, "a1", 1e-3), (2, "b2", 2e-3), (3, None, 1))
    ],
    "mfu": [
        {"run": run, "device_name": name, "model_flops": flops, "peak_flops": 100.0, "mfu_ratio": flops / 100}
        for run, name, flops in (("gpt-1", "H100", 40.0), ("gpt-2", "H100", 60.0), ("gpt-3", "A100", 30.0))
    ]
    + [{"run": "gpt-4", "device_name": "TPU", "model_flops": 3.0, "peak_flops": None}],
    "run_goodput": [
        {"run": "gpt-1", "restarts": 2, "failures": 2, "wall_ns": 10 * HOUR, "productive_ns": 7 * HOUR,
         "restart_ns": HOUR, "preemptions": 2, "under_way_ns": 40_000 * 10**9,
         "lost_work_ns": 2 * HOUR, "device_s": 36_000.0 * 8, "checkpoints": 5,
         "checkpoint_mean_s": 50.0, "mttf_s": 10_000.0, "checkpoint_interval_s": 600.0, "checkpoint_ratio": 0.0625},
        {"run": "gpt-2", "wall_ns": HOUR, "productive_ns": HOUR},
        *({"run": f"bert-{n}", "time_to_train_ns": n * HOUR // 30} for n in range(1, 4)),
        {"run": "bert-4", "time_to_train_ns": None},
    ],
    "attempt_facts": [{"run": f"bert-{n}", "job": "bert"} for n in range(1, 5)],
    "spans": [
        {"name": name, "kind": kind, "bytes": 10**9, "duration_ns": ns, "group_size": size, "attributes": attributes}
        for name, kind, ns, size, attributes in (
            ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "collective", 10**7, 8, None),
            ("ncclDevKernel_Generic_4", "collective", 15 * 10**6, 8, '{"Collective name":"allreduce"}'),
            ("reduce_scatter_tensor", "collective", 10**7, 8, None), ("_allgather_base", "collective", 10**8, 8, None),
            ("all_reduce", "collective", 10**7, 1, None), ("nccl:all_reduce", "other", 10**7, 8, None),
        )
    ],
    "cost": [
        {"team": team, "run": run, "currency": "EUR", "device_s": Decimal(7200), "cost_total": Decimal(total),
         "cost_idle": Decimal(1), "cost_lost_work": Decimal(2), "tokens": tokens, "date": DAY + timedelta(days=later)}
        for team, run, total, tokens, later in
        (("vision", "gpt-1", 30, 10**6, 0), ("vision", "gpt-1", 10, 10**6, 1), ("text", "gpt-2", 20, 0, 0),
         ("text", "gpt-2", 99, 0, 60))
    ],
    "gpu_hourly": [
        {"host": f"node-{n}", "device_uuid": f"GPU-{n}", "holder_run": "gpt-1", "allocated_s": 3600.0,
         "idle_allocated_s": 1800.0 * n, "throttled_s": 100.0 * n, "temperature_max_celsius": 90.0 if n == 0 else 60.0,
         "ecc_uncorrected_count": n // 2, "xid_count": 0}
        for n in range(3)
    ],
    "cluster_hourly": [
        {"scope": scope, "scope_name": scope, "hour": NOON, "gpu_busy_s": 900.0, "gpu_busy_observed_s": 1800.0,
         "gpu_delivered_s": 7200.0}
        for scope in ("cluster", "pool")
    ],
    "job_facts": [{"job_id": str(n), "pool": "p", "queue_time_s": float(n)} for n in range(11)],
    "events": [
        {"run": f"gpt-{n % 2}", "event": "failure", "severity": "error", "message": "out of memory"} for n in range(3)
    ]
    + [{"event": "retry", "severity": "warning"}],
    "artifacts": [
        {"run": "gpt-1", "kind": "checkpoint", "action": action, "name": f"step-{n}.pt", "uri": f"s3://c/{n}",
         "step": n, "ts": ts, "bytes": None if action == "deleted" else 8}
        for n, action, ts in ((1, "created", NOON), (1, "deleted", LATER), (2, "created", NOON), (2, "tagged", LATER))
    ],
    "datasets": [
        {"run": run, "name": "web", "version": "3", "role": role, "merkle_root_sha256": "ab"}
        for run, role in (("gpt-1", "train"), ("gpt-2", "train"), ("gpt-3", "test"))
    ],
    "logs": [{"run": "gpt-1", "severity_number": number, "message": "slow store"} for number in (9, 13)],
    "quality_results": [
        {"table": "steps", "status": status, "severity": "error", "rows_failed": 3, "ts": NOON, "partition_date": DAY}
        for status in ("passed", "failed")
    ],
    "segments": [
        {"table": table, "rows": 10, "gap_rows": gap, "sha256": table * 2, "ts_max": NOON}
        for table, gap in (("steps", 3), ("spans", 0))
    ],
}  # fmt: skip


def known_lake(folder):
    """Return a lake with these rows."""
    lake = Lake.create(str(folder / "lake"))
    for table, facts in ROWS.items():
        told(lake, table, facts)
    return lake
