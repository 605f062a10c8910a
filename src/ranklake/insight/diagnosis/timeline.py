"""The ideal timeline, as trace events that Perfetto and chrome://tracing open."""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ranklake.insight.diagnosis.simulate import WhatIfError, run
from ranklake.insight.diagnosis.what_if import WhatIf

_GAP: Final = 1.05
"""Steps begin so many step times apart."""


def timeline(analysis: WhatIf) -> Iterator[dict[str, Any]]:
    """Yield trace events, times in microseconds: a process a data-parallel rank, a thread a stage and stream."""
    trace, graph, ideal = analysis.trace, analysis.trace.graph, analysis.lengths_ns
    starts, ends = run(graph, lambda node: ideal[node : node + 1])
    threads = {pair: number for number, pair in enumerate(sorted(set(zip(graph.stages, graph.streams, strict=True))))}
    several = len(trace.ranks) and trace.ranks.shape[1] > 1
    for dp in range(len(trace.ranks)):
        yield _named("process_name", dp, 0, f"data-parallel rank {dp}, ideal")
        for (stage, stream), thread in threads.items():
            place = f"stage {stage}, {stream}" if several else stream
            yield _named("thread_name", dp, thread, f"{place} (rank {trace.ranks[dp, stage]})")
            yield {"ph": "M", "name": "thread_sort_index", "pid": dp, "tid": thread, "args": {"sort_index": thread}}
    for at, step in enumerate(trace.steps.tolist()):
        begin = at * analysis.ideal_ns * _GAP
        for node, name in enumerate(graph.names):
            for dp in range(len(trace.ranks)):
                yield {
                    "ph": "X",
                    "name": name,
                    "cat": graph.parts[node],
                    "pid": dp,
                    "tid": threads[graph.stages[node], graph.streams[node]],
                    "ts": round((begin + float(starts[node].item())) / 1000, 3),
                    "dur": round(float(ends[node].item() - starts[node].item()) / 1000, 3),
                    "args": {"step": step, "recorded_us": round(float(trace.duration_ns[node, at, dp]) / 1000, 3)},
                }


def write_timeline(analysis: WhatIf, path: Path) -> int:
    """Write the timeline to ``.json`` or ``.json.gz``, whole or not at all; return how many events it has.

    Raises
    ------
    WhatIfError
        The file cannot be written; nothing is left of it.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with gzip.open(scratch, "wt") if path.suffix == ".gz" else scratch.open("w") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [')
            count = 0
            for event in timeline(analysis):
                file.write(",\n" if count else "\n")
                file.write(json.dumps(event))
                count += 1
            file.write("\n]}\n")
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        message = f"cannot be written: {error.strerror}"
        raise WhatIfError(message, where=str(path), hint="name another file with --timeline") from error
    return count


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
