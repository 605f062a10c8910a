"""Every published figure: what it is, where it stands, how the software gives it, and how close it has to be.

`FIGURES` are written out. Figures that stand in a table of the data, row by row, are read from there, so
that another table of the same columns is run in the same way.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import published_lakes as lakes
import published_mfu as mfu
from published_data import table

from ranklake.lake.mfu.rows import INCONSISTENT


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One published number.

    Attributes
    ----------
    group, name
        What it belongs to, and what it is.
    source
        File of the data, below its folder.
    published, tolerance, relative
        As published; how far the computed one may be off: absolute, or as a share of the published one.
    of, key
        Function of `published_lakes` whose numbers hold it, under this key. It runs once for all its figures.
    compute
        Instead of both: the figure without a lake.
    inconsistent
        Why it is wrong as published; then the computed one must not match.
    unknown
        Why the software does not give it; then nothing is computed.
    """

    group: str
    name: str
    source: str
    published: float
    tolerance: float = 0.0
    relative: bool = False
    of: Callable[..., dict[str, Any]] | None = None
    key: str = ""
    compute: Callable[[], float] | None = None
    inconsistent: str = ""
    unknown: str = ""


def _group(group, source, of, *rows):
    return [
        Figure(group=group, name=name, source=source, of=of, key=key, published=published, tolerance=tolerance)
        for name, key, published, tolerance in rows
    ]


FIGURES = [
    *_group(
        "Helios", "helios/vc*.csv.gz", lakes.helios,
        ("rows of eight virtual clusters", "rows", 8 * 44_640, 0),
        ("rows refused", "refused", 0, 0),
        ("rows with another ratio than stated", "rows_unlike", 0, 0),
        ("utilization of vc6YE, May", "vc6YE", 0.902629, 5e-7),
        ("utilization of all eight, May", "all", 0.717492, 5e-7),
        ("days on which all are idle, flagged", "idle_days", 1, 0),
        ("virtual clusters idle all of 10 May, flagged", "idle_pools_10_may", 8, 0),
    ),
    *_group(
        "Helios", "helios/Earth_gpu_number.csv", lakes.helios_capacity,
        ("rows of devices refused", "refused", 0, 0),
        ("days on which one virtual cluster has all, flagged", "days_flagged", 1, 0),
        ("it is 9 May", "is_9_may", 1, 0),
        ("GPUs that it has then", "gpus", 840, 0),
    ),
    *_group(
        "Rollup of rollups", "helios/helios_cluster_summary.csv", lakes.clusters,
        ("GPUs per GPU job, weighted", "gpus_per_job", 3.716, 5e-4),
        ("GPUs per GPU job, unweighted (the trap)", "gpus_per_job_unweighted", 4.221, 5e-4),
        ("queue, s, weighted", "queue_s", 862.047, 5e-4),
        ("GPU-seconds completed", "gpu_s", 39_994_296_320, 0),
    ),
    *_group(
        "MLPerf GPT-3", lakes.GPT3, lakes.gpt3,
        ("events", "events", 1_086, 0),
        ("lines refused", "refused", 0, 0),
        ("ranks", "ranks", 512, 0),
        ("init_start, one a rank", "init_starts", 512, 0),
        ("nodes, one cache_clear each", "nodes", 64, 0),
        ("init, s", "init_s", 252.509, 1e-9),
        ("run, s", "run_s", 2_986.485, 1e-9),
        ("train blocks, s", "productive_s", 2_746.995, 1e-9),
        ("evaluation, s", "evaluation_s", 238.373, 1e-9),
        ("unattributed, s", "unattributed_s", 1.117, 1e-9),
        ("steps", "steps", 288, 0),
        ("median step, s", "step_median_s", 9.493094, 1e-6),
        ("sum of steps, s", "step_sum_s", 2_734.3427, 1e-4),
        ("train of run, %", "train_of_run_pct", 91.98, 5e-3),
        ("train of init and run, %", "train_of_wall_pct", 84.81, 5e-3),
        ("model TFLOP/s a GPU", "tflops", 928.91, 5e-3),
        ("of the FP8 peak, %", "fp8_pct", 46.94, 5e-3),
        ("of the BF16 peak, %", "bf16_pct", 93.88, 5e-3),
    ),
    *_group(
        "MLPerf GPT-3", lakes.GPT3, lakes.precision,
        ("of the FP8 peak by the rollup, %", "fp8_pct", 46.94, 5e-3),
        ("of the BF16 peak by the rollup, %", "bf16_pct", 93.88, 5e-3),
        ("peak of the right precision, flagged", "fp8_flagged", 0, 0),
        ("peak of the wrong precision, flagged", "bf16_flagged", 1, 0),
    ),
    *_group(
        "MLPerf LoRA", f"{lakes.LORA}/result_*.txt.gz", lakes.lora,
        ("runs", "runs", 10, 0),
        ("minutes, without best and worst", "mean_min", 28.0683, 5e-5),
        ("minutes, scaled", "result_min", 28.1628, 5e-5),
    ),
    *_group(
        "Worker steps", "worker_steps/job_*_norm.csv", lakes.worker_steps,
        ("jobs", "jobs", 4, 0),
        ("workers", "workers", 40, 0),
        ("rows refused", "refused", 0, 0),
        ("steps of a worker told twice", "twice", 1, 0),
        ("of these in job_2", "twice_in_job_2", 1, 0),
        ("job_2 is ragged", "job_2_ragged", 1, 0),
    ),
]  # fmt: skip

LISTED_TOLERANCE = {
    "nanogpt-flops-seq": 0.0,
    "nanogpt-mfu": 0.005,
    "narayanan21": 0.6,
    "korthikanti22": 0.2,
    "palm": 0.06,
    "llama3": 1.0,
    "torchtitan": 1.0,
    "megatron": 0.78,  # 0.1 % of 780
    "maxtext-llama3.1-8B-v6e": 0.05,
    "maxtext-llama2-70B-v6e": 0.3,
}
"""What published_mfu_rows.json says in words, by the id or its first word."""

LISTED_UNKNOWN = {
    "params": "parameters are an input of an MFU here: nothing counts them from a model's shape",
    "params_B": "parameters are an input of an MFU here: nothing counts them from a model's shape",
    "speedup_pct": "the row does not give the time that it compares with",
}
EXACT_CONTAINERS = {"26.02 NeMo Container", "26.02.01 NeMo Container", "26.04 NeMo Container"}


def figures(data: Path) -> Iterator[Figure]:
    """Yield all figures, those that tables of the data hold among them."""
    for part in (_mfu_foundry, _mfu_bigscience, _mfu_bridge, _mfu_listed, _kineto, _stragglers, _megatron):
        yield from part(data)
    yield from FIGURES


def _mfu_foundry(data):
    source = "mfu/llm_foundry_mpt_benchmarks.csv"
    for number, row in enumerate(mfu.llm_foundry(data / source), start=2):
        for what in ("mfu", "hfu"):
            yield Figure(
                group="MFU, llm-foundry", source=source, published=float(row[f"published_{what}_pct"]), tolerance=0.01,
                name=f"line {number}: {row['model']} on {row['n_gpus']} {row['gpu']}, {what.upper()}, %",
                compute=lambda row=row, what=what: row[f"{what}_pct"],
            )  # fmt: skip


def _mfu_bigscience(data):
    source = "mfu/bigscience_tr11_176b_steptime_tflops.csv"
    for row in mfu.bigscience(data / source):
        verdict = row["published_verdict"]
        yield Figure(
            group="MFU, BigScience", name=f"line {row['source_line']}: TFLOP/s a GPU", source=source,
            published=float(row["published_tflops_per_gpu"]), tolerance=0.02,
            compute=lambda row=row: row["hardware_tflops_per_gpu"],
            inconsistent=f"the calculator's word; {row['note']}" if verdict == INCONSISTENT else "",
        )  # fmt: skip


def _mfu_bridge(data):
    source = "mfu/megatron_bridge_llama_perf.csv"
    for number, row in enumerate(table(data / source), start=2):
        if row["stage"] == "Pre-Training Performance":
            container = row["container"].removesuffix(" NeMo Container")
            yield Figure(
                group="MFU, Megatron-Bridge", source=source, published=float(row["published_model_tflops_per_gpu"]),
                tolerance=0.0015 if row["container"] in EXACT_CONTAINERS else 0.023, relative=True,
                name=f"line {number}: {row['model']} {row['system']} {row['precision']} ({container}), TFLOP/s a GPU",
                compute=lambda row=row: mfu.bridge_tflops(row),
            )  # fmt: skip


def _mfu_listed(data):
    source = "mfu/published_mfu_rows.json"
    for row in json.loads((data / source).read_text(encoding="utf-8")):
        kind = row["id"].split("-")[0]
        for what, published in row["published"].items():
            aggregate = what == "aggregate_pflops"
            tolerance = LISTED_TOLERANCE.get(row["id"], LISTED_TOLERANCE.get(kind, 0.0))
            yield Figure(
                group="MFU, papers and projects", name=f"{row['id']}: {what}", source=source, published=published,
                tolerance={"aggregate_pflops": 0.004, "params_B": 0.05}.get(what, tolerance),
                relative=aggregate, unknown=LISTED_UNKNOWN.get(what, ""),
                compute=lambda row=row, kind=kind, what=what: mfu.LISTED[kind](row["inputs"])[what],
            )  # fmt: skip


def _kineto(data):
    source = "kineto/per_step_reference.csv"
    for row in table(data / source):
        for what in ("step_us", "gpu_busy_us", "compute_us", "nccl_us", "overlap_us"):
            yield Figure(
                group="Kineto", name=f"rank {row['rank']}, step {row['step']}: {what}", source=source,
                published=float(row[what]), of=lakes.kineto, key=f"{row['rank']}/{row['step']}/{what}",
            )  # fmt: skip


def _stragglers(data):
    parts = {
        "by_kind": "blocking_decompose_by_optype",
        "by_stage": "blocking_decompose_by_stage",
        "by_dp_rank": "blocking_decompose_by_dp_rank",
    }
    for file in sorted((data / "stragglers").glob("result-*.json")):
        name = file.stem.removeprefix("result-")
        result, m_s, m_w = (
            json.loads((file.parent / f"{kind}-{name}.json").read_text()) for kind in ("result", "ms", "mw")
        )
        told = [("s", result["blocking_slowdown"], 0.005, True), ("m_w", m_w["Mw"], 0.02, False)]
        told += [("m_s", m_s["Ms"], 0.02, False)]
        for ours, theirs in parts.items():
            told += [(f"{ours}/{part}", value, 0.005, True) for part, value in result[theirs].items()]
        for what, published, tolerance, relative in told:
            yield Figure(
                group="Stragglers", name=f"{name}: {what}", source=f"stragglers/{file.name}", published=published,
                tolerance=tolerance, relative=relative, of=lakes.stragglers, key=f"{name}/{what}",
            )  # fmt: skip


def _megatron(data):
    for file in sorted((data / "megatron_logs").glob("*.out.gz")):
        told = lakes.told_iterations(file)
        for name, key, published, tolerance in (
            ("iterations told", "n", len(told), 0),
            ("their time, s", "s", sum(ms for _, ms in told) / 1000, 1e-4),
        ):
            yield Figure(
                group="Megatron-LM", name=f"{file.name.removesuffix('.out.gz')}: {name}", published=published,
                source=f"megatron_logs/{file.name}", tolerance=tolerance, of=lakes.megatron, key=f"{file.name}/{key}",
            )  # fmt: skip
