"""Every published figure: what it is, where it stands, how the software gives it, and how close it has to be.

`FIGURES` are written out, and hold for the very files that they were published of (`OF`). Figures that stand in a table
of the data, row by row, and those that a log tells itself are read from there, so that another folder of the same kinds
(`RANKLAKE_PUBLISHED_DATA`) is run in the same way, with whatever of it is there.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import published_lakes as lakes
import published_mfu as mfu
from published_data import table

from ranklake.insight.slo import evaluation
from ranklake.lake.rollups.mfu_rows import INCONSISTENT


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
        "Faults of nodes", "faults/fault_trace.json", lakes.faults,
        ("starts", "starts", 584, 0),
        ("ends", "ends", 584, 0),
        ("nodes hit", "nodes", 231, 0),
        ("of a GPU, %", "GPU_pct", 27.05, 5e-3),
        ("of a cable, %", "Parameter Plane Cable_pct", 6.85, 5e-3),
        ("of a network card, %", "NIC_pct", 5.14, 5e-3),
        ("of hardware, %", "hardware_pct", 51.03, 5e-3),
        ("GPU, mean days to repair", "GPU_repair_days", 6.4768, 5e-5),
        ("GPU, median days", "GPU_repair_median_days", 0.6996, 5e-5),
        ("cable, mean days to repair", "Parameter Plane Cable_repair_days", 4.9796, 5e-5),
        ("cable, median days", "Parameter Plane Cable_repair_median_days", 1.9746, 6e-5),
        ("network card, mean days to repair", "NIC_repair_days", 10.6839, 5e-5),
        ("network card, median days", "NIC_repair_median_days", 0.4914, 5e-5),
        ("node-days down, overlaps once", "down_node_days", 3_231.32, 5e-3),
        ("down, %", "down_pct", 2.3214, 5e-5),
        ("node-days between failures", "node_days_between_failures", 238.36, 5e-3),
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
    *_group(
        "MLPerf, intervals", "published2/mlperf_intervals/*.gz", lakes.mlperf_intervals,
        ("OC20, NVIDIA: train, s", "oc20_nvidia_0/train", 386.853, 1e-9),
        ("OC20, NVIDIA: evaluation, s", "oc20_nvidia_0/evaluation", 258.315, 1e-9),
        ("OC20, NVIDIA: run, s", "oc20_nvidia_0/run", 645.168, 1e-9),
        ("3D U-Net, Google: train, s", "unet3d_google_0/train", 271.373, 1e-9),
        ("3D U-Net, Google: evaluation is unknown", "unet3d_google_0/evaluation unknown", 1, 0),
        ("3D U-Net, Google: run, s", "unet3d_google_0/run", 271.419, 1e-9),
        ("BERT, MosaicML: train, s", "bert_mosaicml_0/train", 1187.977, 1e-9),
        ("BERT, MosaicML: evaluation, s", "bert_mosaicml_0/evaluation", 176.040, 1e-9),
        ("BERT, MosaicML: run, s", "bert_mosaicml_0/run", 1365.795, 1e-9),
        ("ResNet, Intel: train, s", "resnet_intel_0/train", 5239.244, 1e-9),
        ("ResNet, Intel: evaluation, s", "resnet_intel_0/evaluation", 49.081, 1e-9),
        ("ResNet, Intel: run, s", "resnet_intel_0/run", 5292.062, 1e-9),
        ("ResNet, Intel: stall, s", "resnet_intel_0/stall", 0, 0),
    ),
    *_group(
        "MLPerf scores", "published2/mlperf_scores/*/*", lakes.mlperf_scores,
        ("Oracle, Llama 2 70B LoRA on 64 H100, min", "oracle8n_lora", 4.75017917, 5e-9),
        ("Oracle, GPT-3 on 1,536 H100, min", "oracle192n_gpt3", 19.6896167, 5e-8),
        ("GIGABYTE, BERT, min, scaled", "v30_giga_bert", 5.349, 5e-4),
        ("NVIDIA, DLRM, min", "v30_nv_dlrm", 4.184, 5e-4),
        ("NVIDIA, SSD, min", "v30_nv_ssd", 37.009, 5e-4),
        ("Supermicro, Llama 2 70B LoRA, min, scaled", "smc1_lora", 29.10069, 5e-6),
    ),
    *_group(
        "MLPerf power", "published2/power/*.gz", lakes.power,
        ("Supermicro, Llama 2 70B LoRA: J of AC a run, mean of seven", "mean_j", 12_127_904, 121_279),
    ),
    *_group(
        "XDMoD", "published2/jobs/xdmod_phillips.txt.gz", lakes.jobs,
        ("rows", "rows", 4_285, 0),
        ("jobs that ran", "ran", 4_046, 0),
        ("wall hours", "wall_h", 438.8203, 5e-5),
        ("GPU hours", "gpu_h", 506.9128, 5e-5),
        ("GPU hours by hour", "delivered_h", 506.9128, 5e-5),
        ("CPU hours", "cpu_h", 11_767.9883, 5e-5),
        ("hours in the queue", "wait_h", 18_829.9292, 5e-5),
        ("node hours", "node_h", 1_344.8686, 5e-5),
    ),
    *_group(
        "Goodput, Google's scenarios", "published2/goodput/*.csv", lakes.scenarios,
        ("S1, %", "S1", 75, 0), ("S3, %", "S3", 1200 / 41, 1e-9), ("S4, %", "S4", 600 / 38, 1e-9),
    ),
    Figure(
        group="Goodput, Google's scenarios", name="S2, %", source="published2/goodput/*.csv", published=60,
        unknown="all of the first step's excess is start-up there; here what is beyond ten usual steps",
    ),
    *_group(
        "DLLogger", "published2/mfu/dllogger.json", lakes.dllogger,
        ("mean step, s", "step_s", 25.39738855, 5e-9),
        ("TFLOP/s a GPU", "tflops", 692.98463, 5e-6),
        ("MFU, %", "mfu_pct", 70.069225, 5e-7),
    ),
]  # fmt: skip

OF = {
    "helios/vc*.csv.gz": "7a2d27a98981eb43196ceb7a233d187f134903aa8b719c23e237a5bf8f301b2f",
    "helios/Earth_gpu_number.csv": "70cc27a03aed1449e0ee92e997c6132b461bb4f89499dfbff609a75530dcff86",
    "helios/helios_cluster_summary.csv": "dbce7c52950f837151a4cced019647f25e9f613d9d05cbe332c6588791c5e61d",
    lakes.GPT3: "c4b9432d468849a88657246676d70c9db1edb936b5b0dc6f0a277f1b3d3128f1",
    f"{lakes.LORA}/result_*.txt.gz": "941623ed803514bd36f9884bc24881e71db38a35258e4e083dbe065a296b170f",
    "worker_steps/job_*_norm.csv": "d93b7a2c8b715308529eeb7a5a9d657c5914f17244b2803a890535122e5f288c",
    "published2/mlperf_intervals/*.gz": "e7d28f483ce1ecd138d13a2e7d3463d55ec1519d91ea9e63ef58d0f9a5e61b6e",
    "published2/mlperf_scores/*/*": "0aa275ef0108899c69deecdbccb6443733ece45c7b2cd1952c77e914ff1f66f9",
    "published2/power/*.gz": "1f31d61428ff2b8676fc46b7ab09de3ae2ecdb53d6cad59b0188522506dfa77b",
    "published2/jobs/xdmod_phillips.txt.gz": "560d728f09d3771aeabf6a23f7b3b80ca0b4d75a32ba73ef8bf602d2ecbf15ac",
    "faults/fault_trace.json": "15a61b9cc94383b64d61f67c8f3d72e34c3f7bfdef2c3e6705d9b8e6b6bdd4d6",
    "published2/goodput/*.csv": "97145363c167aa1f90588905513d7ea8feffaab4c9545c216a022072a0caa2c2",
    "published2/mfu/dllogger.json": "a0bce466eae5be18d4a52e46618299ffdc5b8a84de48f2e4bea065d34496add7",
}
"""SHA-256 of the files' digests, in the order of their names, by the source of the figures that are written out."""

LISTED_UNKNOWN = {
    "params": "parameters are an input of an MFU here: nothing counts them from a model's shape",
    "params_B": "parameters are an input of an MFU here: nothing counts them from a model's shape",
    "speedup_pct": "the row does not give the time that it compares with",
}
_TOLERANCE = re.compile(r"(?:(\w+)\s+)?±\s*([\d.]+)\s*(%|pp|B)?")


def figures(data: Path) -> Iterator[Figure]:
    """Yield the figures of what is there: those that tables of the data hold, that logs tell, and those written out."""
    for source, part in (
        ("mfu/llm_foundry_mpt_benchmarks.csv", _mfu_foundry),
        ("mfu/bigscience_tr11_176b_steptime_tflops.csv", _mfu_bigscience),
        ("mfu/megatron_bridge_llama_perf.csv", _mfu_bridge), ("mfu/published_mfu_rows.json", _mfu_listed),
        ("kineto/per_step_reference.csv", _kineto), ("stragglers", _stragglers), ("megatron_logs", _megatron),
        ("mlperf", _mlperf), ("faults", _projections), ("published2/mfu", _mfu_tpu), ("published2/kineto", _timelines),
    ):  # fmt: skip
        if (data / source).exists():
            yield from part(data)
    for figure in FIGURES:
        if files := sorted(data.glob(figure.source)):
            same = digest_of(files) == OF[figure.source]
            yield figure if same else replace(figure, unknown="it was published of other files than these")


def digest_of(files: Iterable[Path]) -> str:
    """Return the SHA-256 of files' digests."""
    return sha256("".join(sha256(file.read_bytes()).hexdigest() for file in files).encode()).hexdigest()


def tolerance_of(text: str, what: str) -> tuple[float, bool]:
    """Return how far a figure may be off, and whether as a share, as a row says it: ``params ±0.05B; pct ±0.6``."""
    clauses = _TOLERANCE.findall(text)
    own = [one for one in clauses if one[0] and what.startswith(one[0])] or [one for one in clauses if not one[0]]
    if not own:
        return 0.0, False
    _, number, unit = own[0]
    return (float(number) / 100, True) if unit == "%" else (float(number), False)


def _projections(data):
    """Yield what Kokolis et al. (arXiv:2410.21680) project for Meta's clusters; it needs no file."""
    del data
    source = "arXiv:2410.21680"
    yield Figure(
        group="Reliability", source=source, name="hours between failures of 16,384 GPUs", published=1.8, tolerance=0.05,
        compute=lambda: evaluation.time_between_failures_s(6.50, 2048) / 3600,
    )  # fmt: skip
    yield Figure(
        group="Reliability", source=source, name="expected ETTR of 16,000 GPUs that save each 5 min", published=0.93,
        tolerance=5e-3,
        compute=lambda: evaluation.expected_ettr(evaluation.time_between_failures_s(6.50, 2000), 300, 300),
    )  # fmt: skip


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
                # as published a row may be off its own formula, and says by how much
                tolerance=max(0.0015, abs(float(row.get("rel_err_pct") or 0)) / 100 + 5e-5), relative=True,
                name=f"line {number}: {row['model']} {row['system']} {row['precision']} ({container}), TFLOP/s a GPU",
                compute=lambda row=row: mfu.bridge_tflops(row),
            )  # fmt: skip


def _mfu_listed(data):
    source = "mfu/published_mfu_rows.json"
    for row in json.loads((data / source).read_text(encoding="utf-8")):
        kind = row["id"].split("-")[0]
        for what, published in row["published"].items():
            tolerance, relative = tolerance_of(row["tolerance"], what)
            unknown = "" if kind in mfu.LISTED else f"no formula is known of rows {kind}-…"
            yield Figure(
                group="MFU, papers and projects", name=f"{row['id']}: {what}", source=source, published=published,
                tolerance=tolerance, relative=relative, unknown=LISTED_UNKNOWN.get(what, unknown),
                compute=lambda row=row, kind=kind, what=what: mfu.LISTED[kind](row["inputs"])[what],
            )  # fmt: skip


def _kineto(data):
    source = "kineto/per_step_reference.csv"
    for row in table(data / source):
        absent = "" if (data / "kineto" / row["file"]).is_file() else "the trace is not there"
        for what in lakes.STEP_PARTS:
            yield Figure(
                group="Kineto", name=f"{row['file']}, step {row['step']}: {what}", source=source, tolerance=0.0005,
                published=float(row[what]), of=lakes.kineto, key=f"{row['file']}/{row['step']}/{what}", unknown=absent,
            )  # fmt: skip


def _mfu_tpu(data):
    for name in ("trillium_full_attention", "gpt", "moe"):
        source = f"published2/mfu/{name}.csv"
        for row in table(data / source) if (data / source).exists() else ():
            yield Figure(
                group="MFU, tpu-recipes", name=f"{row['id']}: TFLOP/s a chip", source=source, tolerance=2e-4,
                relative=True, published=float(row["stated_tflops"]), compute=lambda row=row: mfu.tpu_recipe(row),
            )  # fmt: skip
    source = "published2/mfu/maxtext_tables.csv"
    for row in table(data / source) if (data / source).exists() else ():
        # TFLOP/s are printed whole
        yield Figure(
            group="MFU, MaxText", name=f"{row['id']}: MFU, %", source=source, published=float(row["stated"]),
            tolerance=0.26, compute=lambda row=row: mfu.maxtext_pct(row),
        )  # fmt: skip


def _timelines(data):
    for file in sorted((data / "published2" / "kineto").glob("*.timeline.csv")):
        trace = file.name.removesuffix(".timeline.csv")
        for row in table(file):
            if row["type"] in {*lakes.DEVICE_PARTS, "total_time"}:
                yield Figure(
                    group="Kineto, devices", name=f"{trace}: {row['type']}, ms", tolerance=2e-4,
                    source=f"published2/kineto/{file.name}", published=float(row["time ms"]),
                    of=lakes.device_parts, key=f"{trace}/{row['type']}",
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
    for file in lakes.logs(data / "megatron_logs"):
        told = lakes.told_iterations(file)
        each = lakes.usual_gap([step for step, _ in told])
        for name, key, published, tolerance in (
            ("iterations told", "n", len(told) * each, 0),
            ("their time, s", "s", sum(ms for _, ms in told) * each / 1000, 1e-4 * each),
        ):
            yield Figure(
                group="Megatron-LM", name=f"{lakes.stem(file)}: {name}", published=published, tolerance=tolerance,
                source=f"megatron_logs/{file.name}", of=lakes.megatron, key=f"{file.name}/{key}",
            )  # fmt: skip


def _mlperf(data):
    for file in lakes.logs(data / "mlperf"):
        place = file.relative_to(data / "mlperf").as_posix()
        for what, published in lakes.told_intervals(file).items():
            yield Figure(
                group="MLPerf, what logs tell", name=f"{place}: {what}", source=f"mlperf/{place}", published=published,
                of=lakes.mlperf, key=f"{place}/{what}",
            )  # fmt: skip
