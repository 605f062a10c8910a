"""Published profiler traces: unions of intervals per step are those of the reference."""

import csv

from importing import ask, imported


def union(intervals):
    total, end = 0, -1
    for begin, stop in sorted(intervals):
        total += max(0, stop - max(begin, end))
        end = max(end, stop)
    return total


def test_per_step_reference(lake, spool, published):
    """Busy, compute, communication and overlap of both ranks and steps, in µs, clipped to the step."""
    imported(lake, spool, "kineto", published("kineto") / "sampled_rank-*.json.gz", run="r")
    ns = "SELECT rank, kind, name, step, device_time, attributes, CAST(ts AS BIGINT) * 1000 b, duration_ns d FROM spans"
    spans = ask(lake, ns)
    with (published("kineto") / "per_step_reference.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rank, number = int(row["rank"]), int(row["step"])
            step = next(one for one in spans if one["kind"] == "step" and (one["rank"], one["step"]) == (rank, number))
            begin, end = step["b"], step["b"] + step["d"]
            device = [
                (
                    max(one["b"], begin),
                    min(one["b"] + one["d"], end),
                    one["kind"] == "collective",
                    '"kernel"' in one["attributes"],
                )
                for one in spans
                if one["rank"] == rank and one["device_time"] and one["b"] < end and one["b"] + one["d"] > begin
            ]
            nccl = [(b, e) for b, e, collective, _ in device if collective]
            compute = [(b, e) for b, e, collective, kernel in device if not collective and kernel]
            busy = compute + nccl  # the reference counts kernels alone, not copies
            found = [
                end - begin,
                union(busy),
                union(compute),
                union(nccl),
                union(compute) + union(nccl) - union(compute + nccl),
            ]
            wanted = [float(row[name]) for name in ("step_us", "gpu_busy_us", "compute_us", "nccl_us", "overlap_us")]
            assert [value / 1000 for value in found] == wanted
