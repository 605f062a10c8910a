"""What the software makes of the published data: each function imports, ingests, asks, and returns numbers by name.

Each takes the folder of the data, an empty lake and an empty spool.
"""

import gzip
import json
import re
from collections import Counter
from datetime import date
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from click.testing import CliRunner
from importing import ask, imported
from published_data import table
from published_mfu import utilization_of

from ranklake.capture.provenance.names import clean
from ranklake.cli import cli
from ranklake.lake.rollups.runner import run_rollups

GPT3 = "mlperf/v4.1/NVIDIA__eos_n64_ngc24.09_nemo_gpt3/result_0.txt.gz"
LORA = "mlperf/v4.0/NVIDIA__eos_ngc24.04_nemo_llama2_70b_lora"
CATEGORIES = ("wall", "init", "productive", "evaluation", "unattributed")
SUMMARY = """\
table: scalars
run: {metric}
time: {{value: 2020-09-27T00:00:00Z}}  # the table has none, and no figure needs one
columns:
  metric: {{value: {metric}}}
  kind: {{value: aggregate}}
  value: {metric}
  agg_count: {{column: gpu_job_num}}
filters:
  - {{column: id, not_in: [total]}}
"""

BESIDE = {
    "runs": "{device_name: device, compute_dtype: dtype}",
    "scalars": "{metric: {value: model/flops_per_step}, kind: {value: gauge}, value: flops}",
}
"""What one line beside an imported log says of its run, by table."""


def helios(data, lake, spool):
    """GPU-weighted utilization by hours of clusters, what these flag, and rows that state another ratio than theirs."""
    done = imported(lake, spool, "table", data / "helios" / "vc*.csv.gz", mapping="helios")
    run_rollups(lake, ["cluster_hourly"])
    ratio = "SELECT sum(gpu_delivered_s) / sum(gpu_total_s) u, sum(gpu_total_s) s FROM cluster_hourly WHERE"
    stated = ask(
        lake, "SELECT gpu_allocated a, gpu_total t, gpu_utilization_ratio u, count(*) n FROM pools GROUP BY 1, 2, 3"
    )
    idle = "FROM cluster_hourly WHERE is_idle_day AND scope = 'pool'"
    flagged = ask(lake, f"SELECT date, count(DISTINCT scope_name) n {idle} GROUP BY date")
    return {
        "rows": done.rows["pools"],
        "refused": sum(done.refused.values()),
        "rows_unlike": sum(row["n"] for row in stated if abs(round(row["a"] / row["t"], 3) - row["u"]) > 1e-7),
        "vc6YE": ask(lake, f"{ratio} scope = 'pool' AND scope_name = 'vc6YE'")[0]["u"],
        "all": ask(lake, f"{ratio} scope = 'cluster'")[0]["u"],
        "idle_days": len(flagged),
        "idle_pools_10_may": sum(row["n"] for row in flagged if row["date"] == date(2020, 5, 10)),
    }


def helios_capacity(data, lake, spool):
    """Devices of virtual clusters side by side: the days flagged on which one of them has all."""
    lines = (data / "helios" / "Earth_gpu_number.csv").read_text().splitlines()
    some = spool.parent / "Earth_gpu_number.csv"  # the slip is a day's own: the days around it are enough
    some.write_text("\n".join([lines[0], *(line for line in lines if line.startswith("2020-05-0"))]) + "\n")
    done = imported(lake, spool, "table", some, mapping="helios-capacity")
    run_rollups(lake, ["cluster_hourly"])
    flagged = ask(lake, "SELECT DISTINCT date FROM cluster_hourly WHERE is_capacity_in_one_pool AND scope = 'cluster'")
    most = "SELECT max(gpu_total_s) / 3600 n FROM cluster_hourly WHERE is_capacity_in_one_pool AND scope = 'pool'"
    return {
        "refused": sum(done.refused.values()),
        "days_flagged": len(flagged),
        "is_9_may": int([row["date"] for row in flagged] == [date(2020, 5, 9)]),
        "gpus": ask(lake, most)[0]["n"],
    }


def clusters(data, lake, spool):
    """Averages of the four clusters combined: sums over sums, weighted by each cluster's GPU jobs."""
    for column in ("avg_gpu_num", "avg_que_time_gpu", "complete_gpu_time"):
        mapping = spool.parent / f"{column}.yaml"
        mapping.write_text(SUMMARY.format(metric=column))
        imported(lake, spool, "table", data / "helios" / "helios_cluster_summary.csv", mapping=str(mapping))
    sums = "sum(value * agg_count) / sum(agg_count) weighted, avg(value) plain, sum(value) total"
    found = {row["run"]: row for row in ask(lake, f"SELECT run, {sums} FROM scalars GROUP BY run")}
    return {
        "gpus_per_job": found["avg_gpu_num"]["weighted"],
        "gpus_per_job_unweighted": found["avg_gpu_num"]["plain"],
        "queue_s": found["avg_que_time_gpu"]["weighted"],
        "gpu_s": found["complete_gpu_time"]["total"],
    }


def gpt3(data, lake, spool):
    """Events, ranks, goodput, steps and MFU of GPT-3 on 512 H100."""
    done = imported(lake, spool, "mlperf", data / GPT3, run="gpt3")
    counted = ask(lake, "SELECT event, count(*) n, count(DISTINCT rank) r FROM events GROUP BY event")
    by_event = {row["event"]: row for row in counted}
    run_rollups(lake)
    account = ask(lake, f"SELECT {', '.join(f'{name}_ns {name}' for name in CATEGORIES)} FROM goodput")[0]
    seconds = {f"{name}_s": account[name] / 1e9 for name in CATEGORIES}
    run_s = seconds["wall_s"] - seconds["init_s"]
    steps = [row["s"] for row in ask(lake, "SELECT step_time_s s FROM steps")]
    shape = {"layers": 96, "d_model": 12_288, "seq_len": 2_048, "vocab": 51_200}
    speed = {"tokens_per_s": 2_048 * 2_048 / median(steps), "gpus": 512}
    of = {
        dtype: utilization_of("narayanan", shape, **speed, device="H100 SXM", dtype=dtype, recompute="none")
        for dtype in ("fp8", "bf16")
    }
    return {
        **seconds,
        "refused": sum(done.refused.values()),
        "events": done.rows["events"],
        "ranks": by_event["init_start"]["r"],
        "init_starts": by_event["init_start"]["n"],
        "nodes": by_event["cache_clear"]["n"],
        "run_s": run_s,
        "steps": done.rows["steps"],
        "step_median_s": median(steps),
        "step_sum_s": sum(steps),
        "train_of_run_pct": 100 * seconds["productive_s"] / run_s,
        "train_of_wall_pct": 100 * seconds["productive_s"] / seconds["wall_s"],
        "tflops": of["bf16"]["model_flops_per_s_per_device"] / 1e12,
        "fp8_pct": of["fp8"]["mfu_pct"],
        "bf16_pct": of["bf16"]["mfu_pct"],
    }


def precision(data, lake, spool):
    """MFU of the same run against the peaks of two number formats: what the log does not say is imported beside it."""
    flops = 72 * 2_048 * 96 * 2_048 * 12_288**2 * (1 + 2_048 / (6 * 12_288) + 51_200 / (12 * 12_288 * 96))
    found = {}
    for dtype in ("fp8", "bf16"):
        run = f"gpt3-{dtype}"
        imported(lake, spool, "mlperf", data / GPT3, run=run)
        for to, columns in BESIDE.items():
            facts = spool.parent / f"{dtype}-{to}.csv"
            facts.write_text(f"device,dtype,flops\nNVIDIA H100 80GB HBM3,{dtype},{flops / 512}\n")
            mapping = spool.parent / f"{dtype}-{to}.yaml"
            mapping.write_text(f"table: {to}\nrun: {run}\ntime: {{value: 2024-10-02T19:12:00Z}}\ncolumns: {columns}\n")
            imported(lake, spool, "table", facts, mapping=str(mapping))
        run_rollups(lake, ["mfu"])
        # The hours are weighed by their steps' times; the published figure is of the median step.
        (median_s,) = (row["s"] for row in ask(lake, f"SELECT median(step_time_s) s FROM steps WHERE run = '{run}'"))
        (row,) = ask(
            lake,
            "SELECT avg(flops_per_step) f, avg(peak_flops_per_s) p, bool_or(is_ratio_implausible) is_flagged "
            f"FROM mfu WHERE run = '{run}'",
        )
        found |= {f"{dtype}_pct": 100 * row["f"] / (row["p"] * median_s), f"{dtype}_flagged": int(row["is_flagged"])}
    return found


def lora(data, lake, spool):
    """Minutes of the ten runs: their mean without best and worst, and scaled, as the result is."""
    done = imported(lake, spool, "mlperf", data / LORA / "result_*.txt.gz", run="lora")
    minutes = sorted(row["d"] / 60e9 for row in ask(lake, "SELECT duration_ns d FROM spans WHERE name = 'run'"))
    factor = json.loads((data / LORA / "scaling.json").read_text())["scaling_factor"]
    return {
        "runs": len(done.runs),
        "mean_min": fmean(minutes[1:-1]),
        "result_min": fmean(minutes[1:-1]) * factor,
    }


def union(intervals):
    """Return the length that intervals cover together."""
    total, end = 0, -1
    for begin, stop in sorted(intervals):
        total += max(0, stop - max(begin, end))
        end = max(end, stop)
    return total


STEP_PARTS = ("step_us", "gpu_busy_us", "compute_us", "nccl_us", "overlap_us")


def kineto(data, lake, spool):
    """Step, busy, compute, communication and overlap of each file and step, in µs, clipped to the step."""
    files = {row["file"] for row in table(data / "kineto" / "per_step_reference.csv")}
    of = {clean(name): name for name in files if (data / "kineto" / name).is_file()}
    for run, name in of.items():
        imported(lake, spool, "kineto", data / "kineto" / name, run=run)
    ns = "SELECT run, kind, step, device_time, attributes, start_ns b, duration_ns d FROM spans"
    spans = ask(lake, ns)
    found = {}
    for step in (one for one in spans if one["kind"] == "step"):
        begin, end = step["b"], step["b"] + step["d"]
        device = [
            (max(one["b"], begin), min(one["b"] + one["d"], end), one["kind"] == "collective", one["attributes"] or "")
            for one in spans
            if one["run"] == step["run"] and one["device_time"] and one["b"] < end and one["b"] + one["d"] > begin
        ]
        nccl = [(b, e) for b, e, collective, _ in device if collective]
        # the reference counts kernels alone, not copies
        compute = [(b, e) for b, e, collective, attributes in device if not collective and '"kernel"' in attributes]
        lengths = {
            "step_us": end - begin,
            "gpu_busy_us": union(compute + nccl),
            "compute_us": union(compute),
            "nccl_us": union(nccl),
            "overlap_us": union(compute) + union(nccl) - union(compute + nccl),
        }
        found |= {f"{of[step['run']]}/{step['step']}/{name}": value / 1000 for name, value in lengths.items()}
    return found


def what_if(trace, lake, spool):
    """Return what the command says of a trace, given as a file."""
    name = trace.stem.removeprefix("trace-")
    imported(lake, spool, "table", trace, mapping="straggler-trace", run=name)
    done = CliRunner().invoke(cli, ["what-if", name, "--json", "--lake", lake.uri], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


def stragglers(data, lake, spool):
    """S, its parts and M of every trace, by ``name/what`` or ``name/what/part``."""
    found = {}
    for trace in sorted((data / "stragglers").glob("trace-*.parquet")):
        name = trace.stem.removeprefix("trace-")
        for what, value in what_if(trace, lake, spool).items():
            if isinstance(value, dict):
                found |= {f"{name}/{what}/{part}": one for part, one in value.items()}
            elif isinstance(value, float):
                found[f"{name}/{what}"] = value
    return found


def logs(folder):
    """Return the logs below a folder: whatever is neither a licence nor JSON, packed or not."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return [file for file in files if file.suffix != ".json" and not file.name.startswith(("LICENSE", "README"))]


def stem(file):
    """Return a log's name without what says that it is one."""
    return file.name.removesuffix(".gz").removesuffix(".out").removesuffix(".log").removesuffix(".txt")


def text_of(file):
    """Return a log's text."""
    raw = file.read_bytes()
    return (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode(errors="replace")


def told_iterations(file):
    """Return (step, milliseconds) of each iteration that a log of Megatron-LM tells, by its text alone."""
    told = re.findall(r"iteration +(\d+)/ +\d+ \|.*?elapsed time per iteration \(ms\): ([\d.]+)", text_of(file))
    return sorted((int(step), float(ms)) for step, ms in told)


def usual_gap(steps):
    """Return the commonest distance between neighbours."""
    gaps = Counter(after - before for before, after in pairwise(steps) if after > before)
    return gaps.most_common(1)[0][0] if gaps else 1


def megatron(data, lake, spool):
    """Count iterations, and sum their times, by log."""
    for file in logs(data / "megatron_logs"):
        imported(lake, spool, "megatron", file, run=file.name)
    found = ask(lake, "SELECT run, count(*) n, sum(step_time_s) s FROM steps GROUP BY run")
    return {f"{row['run']}/{name}": row[name] for row in found for name in ("n", "s")}


def told_intervals(file):
    """Return the lengths in s that an MLPerf log tells by begin and end, by its text alone."""
    entries = [json.loads(one) for one in re.findall(r":::MLLOG (\{.*\})", text_of(file))]
    at = {
        key: sorted(one["time_ms"] for one in entries if one["key"] == key) for key in {one["key"] for one in entries}
    }
    if not ({"init_start", "run_start", "run_stop"} <= at.keys() and len(at["run_start"]) == 1):
        return {}
    begin, end = at["run_start"][0], at["run_stop"][0]
    told = {"init, s": (begin - at["init_start"][0]) / 1000, "run, s": (end - begin) / 1000}
    pairs = {
        what: [
            (max(a, begin), min(b, end))
            for a, b in zip(at[f"{what}_start"], at[f"{what}_stop"], strict=True)
            if a < end
        ]
        for what in ("eval", "block")
        if f"{what}_start" in at and len(at[f"{what}_start"]) == len(at.get(f"{what}_stop", []))
    }
    if "eval" in pairs:
        told["evaluation, s"] = union(pairs["eval"]) / 1000
    if len(pairs) > 1:
        told["train, s"] = (union(pairs["eval"] + pairs["block"]) - union(pairs["eval"])) / 1000
    return told


def mlperf(data, lake, spool):
    """Lengths of each log's intervals, as goodput has them, in s."""
    of = {}
    for number, file in enumerate(logs(data / "mlperf")):
        of[f"log-{number}"] = file.relative_to(data / "mlperf").as_posix()
        imported(lake, spool, "mlperf", file, run=f"log-{number}")
    run_rollups(lake, ["goodput"])
    found = {}
    for row in ask(lake, "SELECT * FROM goodput WHERE attempt = 0"):
        parts = {"init, s": row["init_ns"], "run, s": row["wall_ns"] - row["init_ns"], "train, s": row["productive_ns"],
                 "evaluation, s": row["evaluation_ns"]}  # fmt: skip
        found |= {
            f"{of[row['run']]}/{name}": ns / 1e9 for name, ns in parts.items() if ns is not None and row["run"] in of
        }
    return found


def mlperf_intervals(data, lake, spool):
    """Training, evaluation, run and stall of logs whose intervals overlap, begin once, or end late, in s."""
    imported(lake, spool, "mlperf", data / "published2" / "mlperf_intervals" / "*.gz", run="log")
    run_rollups(lake, ["goodput"])
    found = {}
    for row in ask(lake, "SELECT * FROM goodput"):
        parts = {"train": row["productive_ns"], "evaluation": row["evaluation_ns"], "stall": row["stall_ns"],
                 "run": row["wall_ns"] - row["init_ns"]}  # fmt: skip
        name = row["run"].removeprefix("log-")
        found |= {f"{name}/{part}": ns / 1e9 for part, ns in parts.items() if ns is not None}
        found |= {f"{name}/{part} unknown": 1 for part, ns in parts.items() if ns is None}
    return found


def documented(page, heading):
    """Return the query that a page of the documentation has under a heading."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    return text.partition(f"### {heading}\n")[2].partition("```sql\n")[2].partition("```")[0]


def mlperf_scores(data, lake, spool):
    """Scores of submissions as the cookbook computes them, in minutes, scaled where they are."""
    folders = sorted(one for one in (data / "published2" / "mlperf_scores").iterdir() if one.is_dir())
    jobs = {}
    for folder in folders:
        done = imported(lake, spool, "mlperf", folder / "result_*.txt.gz", run=folder.name)
        jobs |= dict.fromkeys(done.runs, folder.name)
    run_rollups(lake, ["run_goodput"])
    query = documented("cookbook.md", "What is the MLPerf score of a set of runs?")
    # a lake of one submission has one job a benchmark; here are several
    names = " ".join(f"WHEN run LIKE '{folder.name}%' THEN '{folder.name}'" for folder in folders)
    found = {}
    for row in ask(lake, query.replace("max(job)", f"CASE {names} END")):
        scaling = data / "published2" / "mlperf_scores" / row["job"] / "scaling.json"
        factor = json.loads(scaling.read_text())["scaling_factor"] if scaling.exists() else 1
        found |= {row["job"]: row["score_min"] * factor, f"{row['job']}/runs": row["runs"]}
    return found


def power(data, lake, spool):
    """Mean energy of a node from begin to end of its runs, in J, by trapezoids over its readings."""
    place, energies = data / "published2", []
    for file in sorted((place / "power").glob("*__node_0.txt.gz")):
        name = file.name.partition("__")[0]
        imported(lake, spool, "mlperf", file, run=f"{name}-power")
        imported(lake, spool, "mlperf", place / "mlperf_scores" / "smc1_lora" / f"{name}.txt.gz", run=name)
        run = "SELECT CAST(ts AS BIGINT) b, CAST(ts AS BIGINT) + duration_ns / 1000 e FROM spans WHERE name = 'run'"
        readings = f"""
            SELECT CAST(ts AS BIGINT) at, value FROM scalars, ({run} AND run = '{name}')
            WHERE run = '{name}-power' AND metric = 'mlperf/power_reading' AND CAST(ts AS BIGINT) BETWEEN b AND e
            ORDER BY at"""
        told = ask(lake, readings)
        energies.append(sum((a["value"] + b["value"]) / 2 * (b["at"] - a["at"]) / 1e6 for a, b in pairwise(told)))
    return {"mean_j": fmean(energies), "runs": len(energies)}


def jobs(data, lake, spool):
    """Sum up XDMoD's reference data, in hours: of jobs, and of the cluster's GPUs by hour."""
    imported(lake, spool, "sacct", data / "published2" / "jobs" / "xdmod_phillips.txt.gz")
    run_rollups(lake, ["cluster_hourly"])
    sums = """
        SELECT count(*) rows, sum(elapsed_s) wall, sum(elapsed_s * gpu_count) gpu, sum(elapsed_s * cpu_count) cpu,
            sum(elapsed_s * node_count) node FROM jobs"""
    (told,) = ask(lake, sums)
    hourly = """
        SELECT sum(gpu_delivered_s) / 3600 delivered_h, sum(queue_time_sum_s) / 3600 wait_h, sum(queue_time_count) ran
        FROM cluster_hourly WHERE scope = 'cluster'"""
    hours = {f"{name}_h": told[name] / 3600 for name in ("wall", "gpu", "cpu", "node")}
    return {**hours, "rows": told["rows"], **ask(lake, hourly)[0]}


def scenarios(data, lake, spool):
    """Goodput of Google's scenarios, in %."""
    for name in ("events", "steps"):
        place = data / "published2" / "goodput"
        imported(lake, spool, "table", place / f"{name}.csv", mapping=str(place / f"{name}.yaml"))
    run_rollups(lake, ["run_goodput"])
    return {row["run"]: 100 * row["goodput_ratio"] for row in ask(lake, "SELECT run, goodput_ratio FROM run_goodput")}


DLLOGGER = """\
table: steps
run: dllogger
time: {column: at, format: epoch_s}
columns: {step: step, step_time_s: {column: took, unit: s}}
"""


def dllogger(data, lake, spool):
    """Mean of steps 10 to 30 of a log of NVIDIA's DLLogger, and the utilization by the FLOPs of a sample."""
    entries = [
        json.loads(line.removeprefix("DLLL "))
        for line in (data / "published2" / "mfu" / "dllogger.json").read_text().splitlines()
        if line.startswith("DLLL ")
    ]
    steps = [
        {"at": float(one["timestamp"]), "step": one["step"], "took": one["data"]["train_step_timing in s"]}
        for one in entries
        if "train_step_timing in s" in one["data"]
    ]
    (spool.parent / "steps.jsonl").write_text("".join(json.dumps(one) + "\n" for one in steps))
    (spool.parent / "steps.yaml").write_text(DLLOGGER)
    imported(lake, spool, "table", spool.parent / "steps.jsonl", mapping=str(spool.parent / "steps.yaml"))
    (step,) = ask(lake, "SELECT avg(step_time_s) s FROM steps WHERE step BETWEEN 10 AND 30")
    options = {"flops_per_token": 2.2e15, "tokens_per_s": 2_048 / step["s"], "gpus": 256, "peak_flops": 989e12}
    found = utilization_of("counted", {}, **options)
    return {
        "step_s": step["s"],
        "tflops": found["model_flops_per_s_per_device"] / 1e12,
        "mfu_pct": found["mfu_pct"],
    }


DEVICE_PARTS = {
    "computation_time": ("kernel", "gpu_memset"), "total_comm_time": ("collective",),
    "total_memcpy_time": ("gpu_memcpy",), "busy_time": ("kernel", "gpu_memset", "collective", "gpu_memcpy"),
}  # fmt: skip


def device_parts(data, lake, spool):
    """Return what devices did in each trace, in ms: computation, communication, copies, all, from first to last."""
    found = {}
    for number, file in enumerate(sorted((data / "published2" / "kineto").glob("*.json.gz"))):
        imported(lake, spool, "kineto", file, run=f"trace-{number}")
        spans = [
            (row["b"], row["b"] + row["d"], row["kind"] if row["kind"] == "collective" else json.loads(row["a"])["cat"])
            for row in ask(lake, "SELECT start_ns b, duration_ns d, kind, attributes a FROM spans "
                                 f"WHERE device_time AND run = 'trace-{number}'")
        ]  # fmt: skip
        told = {part: union([(b, e) for b, e, kind in spans if kind in kinds]) for part, kinds in DEVICE_PARTS.items()}
        told["total_time"] = max(e for _, e, _ in spans) - min(b for b, *_ in spans)
        found |= {f"{file.name}/{part}": ns / 1e6 for part, ns in told.items()}
    return found


def worker_steps(data, lake, spool):
    """Jobs, workers, and which job tells a step of a worker twice."""
    done = imported(lake, spool, "table", data / "worker_steps" / "job_*_norm.csv", mapping="worker-steps")
    workers = ask(lake, "SELECT run, rank, count(*) n FROM steps GROUP BY run, rank")
    twice = ask(lake, "SELECT run FROM steps GROUP BY run, rank, step HAVING count(*) > 1")
    lengths = {run: {row["n"] for row in workers if row["run"] == run} for run in done.runs}
    return {
        "refused": sum(done.refused.values()),
        "jobs": len(done.runs),
        "workers": len(workers),
        "twice": len(twice),
        "twice_in_job_2": sum(row["run"] == "job_2_norm" for row in twice),
        "job_2_ragged": len(lengths["job_2_norm"]) > 1,
    }


def faults(data, lake, spool):
    """Faults of nodes: starts and ends, classes, times to repair, and what they kept from work."""
    imported(lake, spool, "faults", data / "faults" / "fault_trace.json", run="faults")
    run_rollups(lake, ["node_findings"])
    rows = ask(lake, "SELECT host, evidence, value / 86400 AS days, start_ts, end_ts FROM node_findings")
    classes = [json.loads(row["evidence"])["class"] for row in rows]
    repairs = {name: [row["days"] for row, kind in zip(rows, classes, strict=True) if kind == name] for name in classes}
    down_days = sum(
        (end - begin).total_seconds() / 86400
        for host in {row["host"] for row in rows}
        for begin, end in united((row["start_ts"], row["end_ts"]) for row in rows if row["host"] == host)
    )
    node_days = 400 * 348
    levels = [json.loads(row["evidence"])["level"] for row in rows]
    return {
        "starts": len(rows),
        "ends": sum(row["end_ts"] is not None for row in rows),
        "nodes": len({row["host"] for row in rows}),
        **{f"{name}_pct": 100 * classes.count(name) / len(rows) for name in repairs},
        **{f"{name}_repair_days": fmean(days) for name, days in repairs.items()},
        **{f"{name}_repair_median_days": median(days) for name, days in repairs.items()},
        "hardware_pct": 100 * levels.count("Hardware Failure") / len(rows),
        "down_node_days": down_days,
        "down_pct": 100 * down_days / node_days,
        "node_days_between_failures": node_days / len(rows),
    }


def united(intervals):
    """Return intervals with those that overlap as one."""
    apart = []
    for begin, end in sorted(intervals):
        if apart and begin <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(end, apart[-1][1]))
        else:
            apart.append((begin, end))
    return apart
