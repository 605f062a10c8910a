"""A rank of the experiment, started by torchrun: does work of known size, and measures it independently of ranklake.

Each rank sleeps, multiplies matrices, reduces a tensor over all ranks and writes a file in every step. It measures
inside the block that ranklake times, so that ranklake's value can only be longer, by its own overhead.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import distributed

from ranklake import capture
from ranklake.calibration.truth import (
    DATA_S,
    FLOPS,
    FORWARD_S,
    PRODUCTS,
    REDUCED_BYTES,
    SAMPLES,
    SIDE,
    TOKENS,
    WRITTEN_BYTES,
    Noise,
)


def record(options: argparse.Namespace) -> None:
    """Run the steps on this rank; write the truth to a file of its own."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.set_num_threads(1)
    left, right = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    reduced, written = torch.ones(REDUCED_BYTES // 4), b"\0" * WRITTEN_BYTES
    place = options.journal / f"rank-{rank}.bin"
    run = capture.start(job="ranklake-calibration", run=options.run_name, spool=options.spool,
                        local_dir=options.local_dir, injected=f"slow rank {options.slow_rank}")  # fmt: skip
    run.collectives()
    silent = range(options.silent_from, options.silent_to) if rank == options.silent_rank else range(0)
    truth: dict[str, object] = {"rank": rank, "flops": FLOPS}
    steps, noise = [], Noise()
    for step in range(options.steps):
        if step in silent:  # the work is done but not recorded
            distributed.all_reduce(reduced)
            continue
        with run.step(step, tokens=TOKENS, samples=SAMPLES):
            wall_ns, begun = time.time_ns(), time.perf_counter_ns()
            with run.phase("data"):
                data = _measure_sleep(DATA_S)
            with run.phase("forward"):
                planned = FORWARD_S + (noise.slow_s if rank == options.slow_rank else 0.0)
                forward = _measure_sleep(planned)
            for _ in range(PRODUCTS):
                left @ right
            alone = time.perf_counter_ns() - begun
            distributed.all_reduce(reduced)
            together = time.perf_counter_ns()
            with run.phase("write", size_bytes=WRITTEN_BYTES):
                place.write_bytes(written)
            run.log({"calibration/square": float(step * step)})
            after = time.perf_counter_ns() - together
            noise.add(DATA_S + planned, (alone / 1e9, after / 1e9))
            steps.append([step, wall_ns, time.perf_counter_ns() - begun, data, forward])
    with run.count_flops():
        for _ in range(PRODUCTS):
            left @ right
    truth |= {"steps": steps, "reduced": options.steps * REDUCED_BYTES, "written": len(steps) * WRITTEN_BYTES}
    run.close()
    (options.journal / f"truth-{rank}.json").write_text(json.dumps(truth))
    distributed.destroy_process_group()


def _measure_sleep(seconds: float) -> int:
    """Sleep, and return the duration in nanoseconds."""
    begun = time.perf_counter_ns()
    time.sleep(seconds)
    return time.perf_counter_ns() - begun


def main() -> None:
    """Parse the command's arguments, and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--run-name", "--spool", "--local-dir"):
        parser.add_argument(name, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    for name in ("--steps", "--slow-rank", "--silent-rank", "--silent-from", "--silent-to"):
        parser.add_argument(name, type=int, required=True)
    record(parser.parse_args())


if __name__ == "__main__":
    main()
