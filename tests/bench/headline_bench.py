"""Measures the way from segments to checked, rolled-up tables, and reckons it up to a 10,000-GPU hour.

    generate   `ranklake bench generate`: segments of a synthetic job, sealed as capture seals them
    measured   ingest, check, rollup, catalog refresh, status: each a process of its own, with its CPU and wall time
    reckoned   by multiplication alone: the rows of an hour of 10,000 GPUs times what one more row costs

What a command costs before its first row (imports, a cluster's start) is paid once whatever the size, so two sizes are
measured, and their difference is what is multiplied; both on a cluster, which small work would not start by itself. The
two take turns, some rounds, and each stage counts as in the round that disturbed it least. CPU time holds on a machine
that others use, too, but for what they take of its caches; wall time is that of this run.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path

from measured_command import run_measured

from ranklake.capture.common.settings import CaptureSettings

GPUS, SECONDS, EVENTS = 10_000, 3600, 42
HOUR_ROWS = GPUS * SECONDS * EVENTS
CORES = 2
DAY_GPUS = 512
STAGES = {
    "ingest": ["ingest", "--new"],  # each round has a lake of its own, and they share a spool
    "check": ["check"],
    "rollup": ["rollup"],
    "catalog": ["catalog", "refresh"],
    "status": ["status"],
}
COUNTED = ("ingest", "check", "rollup")
"""What the headline is about: from segments to checked, rolled-up tables."""


@dataclass
class Stage:
    """What one command took, with the processes that it started."""

    cpu_s: float
    wall_s: float
    peak_process_bytes: int


@dataclass
class Measured:
    """What was measured, and on what."""

    date: str
    cpus: int
    python: str
    seal_s: float
    generated: dict
    stages: dict[str, Stage] = field(default_factory=dict)
    lake_bytes: dict[str, int] = field(default_factory=dict)
    lake_rows: dict[str, int] = field(default_factory=dict)
    load: float = 0.0
    small: "Measured | None" = None

    @property
    def rows(self) -> int:
        """Rows that were generated."""
        return sum(self.generated["rows"].values())


def command(*arguments: str) -> tuple[str, Stage]:
    """Run `ranklake` and return what it printed and took. Exits if it failed."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f"[dask]\nworkers = {CORES}\n")
        config.flush()
        text, usage = run_measured(*arguments, environment={**os.environ, "RANKLAKE_CONFIG": config.name})
    return text, Stage(*usage)


def generate(gpus: int, hours: float, seal_s: float, spool: Path) -> dict:
    """Generate a job; return what `ranklake bench generate --json` says of it."""
    size = ("--gpus", str(gpus), "--hours", str(hours), "--seal-s", str(seal_s))
    return json.loads(command("bench", "generate", *size, "--spool", str(spool), "--json")[0])


def measure(generated: dict, seal_s: float, spool: Path, lake: Path) -> Measured:
    """Bring a spool all the way."""
    made = Measured(
        datetime.now(UTC).date().isoformat(), os.cpu_count() or 1, platform.python_version(), seal_s, generated
    )
    busy = os.getloadavg()[0]
    for name, arguments in STAGES.items():
        more = ["--spool", str(spool)] if name in {"ingest", "status"} else []
        _, made.stages[name] = command(*arguments, "--lake", str(lake), *more)
        print(
            f"{name}: {made.stages[name].cpu_s:,.1f} CPU-s, {made.stages[name].wall_s:,.1f} s",
            file=sys.stderr,
            flush=True,
        )
    for one in json.loads(command("catalog", "sizes", "--lake", str(lake), "--json")[0]):
        made.lake_bytes[one["table"]] = one["stored_bytes"]
        made.lake_rows[one["table"]] = one["rows"]
    made.load = max(busy, os.getloadavg()[0])
    stored = sum(made.lake_rows[table] for table in generated["rows"])
    assert stored == made.rows, f"{made.rows:,} rows generated, {stored:,} stored"
    return made


def least(rounds: list[Measured]) -> Measured:
    """Return the last round with each stage as it was least disturbed, the load as it was at most."""
    found = rounds[-1]
    found.load = max(one.load for one in rounds)
    for name in found.stages:
        found.stages[name] = Stage(
            *(min(getattr(one.stages[name], field.name) for one in rounds) for field in fields(Stage))
        )
    return found


def table(found: Measured) -> str:
    """Return what was measured and what it comes to, as Markdown."""
    gpus, seconds = found.generated["gpus"], found.generated["seconds"]
    on = f"{found.cpus} CPUs, load average {found.load:.0f}"
    job = f"{gpus:,} GPUs, {seconds:,.0f} s, sealed each {found.seal_s:,.0f} s"
    lines = [
        f"Measured on {found.date} ({on}): {job}, {found.rows:,} rows.",
        "",
        "| stage | CPU-seconds | wall, s | rows a CPU-second | largest process, MiB |",
        "|---|---:|---:|---:|---:|",
    ]
    made = Stage(found.generated["cpu_s"], found.generated["wall_s"], 0)
    for name, stage in {"generate (not counted)": made, **found.stages}.items():
        peak = f"{stage.peak_process_bytes / 2**20:,.0f}" if stage.peak_process_bytes else ""
        lines.append(
            f"| {name} | {stage.cpu_s:,.1f} | {stage.wall_s:,.1f} | {found.rows / stage.cpu_s:,.0f} | {peak} |"
        )
    lines += ["", "| table | rows | bytes a row in segments | bytes a row in the lake |", "|---|---:|---:|---:|"]
    for name, rows in sorted(found.generated["rows"].items()):
        sealed = found.generated["segment_bytes"][name] / rows
        lines.append(f"| `{name}` | {rows:,} | {sealed:.1f} | {found.lake_bytes[name] / rows:.2f} |")
    small = found.small
    assert small is not None
    more = found.rows - small.rows
    factor = HOUR_ROWS / more
    cpu_s = {name: found.stages[name].cpu_s - small.stages[name].cpu_s for name in COUNTED}
    quiet = max(found.load, small.load) <= found.cpus + 1
    wall_s = sum(found.stages[name].wall_s - small.stages[name].wall_s for name in COUNTED)
    before_s = sum(small.stages[name].cpu_s for name in COUNTED) - sum(cpu_s.values()) * small.rows / more
    total_s = sum(cpu_s.values()) * factor + before_s
    lines += [
        "",
        "The arithmetic:",
        "",
        f"    {GPUS:,} GPUs x {SECONDS:,} s x {EVENTS} rows = {HOUR_ROWS:,} rows",
        f"    {found.rows:,} rows, less {small.rows:,} of a smaller job, = {more:,}; {factor:,.2f} times that",
        *(
            f"    {name:<8}{spent:>9,.1f} CPU-s more x {factor:,.2f} = {spent * factor:>7,.0f}"
            for name, spent in cpu_s.items()
        ),
        f"    and {before_s:,.1f} before the first row: {total_s:,.0f} CPU-s",
        # where others use the machine it is theirs, too
        *(
            [f"    wall time: {wall_s:,.1f} s more x {factor:,.2f} = {wall_s * factor / 60:,.1f} min on {CORES} cores"]
            * quiet
        ),
        "",
        *_kept_up(found, more / sum(cpu_s.values()), more / wall_s),
    ]
    return "\n".join(lines)


def _kept_up(found: Measured, rate: float, rows_a_second: float) -> list[str]:
    """Return what a day of a cluster comes to, and how large a cluster `CORES` cores keep up with."""
    gpus, hours = DAY_GPUS, 24
    rows = gpus * hours * SECONDS * EVENTS
    share = gpus * hours * SECONDS / (found.generated["gpus"] * found.generated["seconds"])
    lake = sum(found.lake_bytes[name] for name in found.generated["rows"])
    objects, sent = found.generated["objects"], found.generated["object_bytes"]
    kept_up = rows_a_second / EVENTS
    return [
        f"{gpus} GPUs x {hours} h, by the same multiplication:",
        "",
        f"    {rows:,} rows / {rate:,.0f} rows a CPU-s = {rows / rate / 60:,.0f} CPU-minutes",
        f"    {objects:,} objects x {share:,.0f} = {objects * share:,.0f}",
        f"    {sent * share / 2**30:,.1f} GiB in the spool, {lake * share / 2**30:,.1f} GiB in the lake",
        f"    {CORES} cores keep up with {rows_a_second:,.0f} rows a second / {EVENTS} = {kept_up:,.0f} GPUs",
    ]


def read(facts: dict) -> Measured:
    """Return what was measured, from JSON."""
    return Measured(**facts | {"stages": {name: Stage(**stage) for name, stage in facts["stages"].items()}})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--hours", type=float, default=0.5)
    default_s = CaptureSettings().seal_slots_every_s(GPUS)
    parser.add_argument(
        "--seal-s",
        type=float,
        default=default_s,
        help=f"how long each process records before it seals; default {default_s:.0f}, as among {GPUS:,} ranks",
    )
    parser.add_argument("--rounds", type=int, default=3, help="each stage as in the round that disturbed it least")
    parser.add_argument("--folder", type=Path, help="where to work and leave everything; default a temporary folder")
    parser.add_argument("--spool", type=Path, help="segments that are there already, with --generated")
    parser.add_argument(
        "--generated", type=Path, metavar="FILE", help="what `ranklake bench generate --json` said of them"
    )
    parser.add_argument("--json", action="store_true", help="print what was measured, for --of")
    parser.add_argument("--of", type=Path, metavar="FILE", help="reckon with what was measured before")
    given = parser.parse_args()
    if given.of:
        facts = json.loads(given.of.read_text())
        found = read(facts | {"small": read(facts["small"])})
    else:
        generated = json.loads(given.generated.read_text()) if given.generated else None
        with tempfile.TemporaryDirectory(prefix="ranklake-headline-") as scratch:
            folder = given.folder or Path(scratch)
            spools = folder / "small-spool", given.spool or folder / "spool"
            jobs = [generate(max(1, given.gpus // 8), given.hours, given.seal_s, spools[0])]
            jobs.append(generated or generate(given.gpus, given.hours, given.seal_s, spools[1]))
            rounds: list[list[Measured]] = [[], []]
            for number in range(given.rounds):
                for some, job, spool in zip(rounds, jobs, spools, strict=True):
                    lake = folder / f"lake-{job['gpus']}-{number}"
                    some.append(measure(job, given.seal_s, spool, lake))
                    if number + 1 < given.rounds:
                        shutil.rmtree(lake)
            found = least(rounds[1])
            found.small = least(rounds[0])
    print(json.dumps(asdict(found), indent=1) if given.json else table(found))


if __name__ == "__main__":
    main()
