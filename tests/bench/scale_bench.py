"""Measures what one node's ranks send, with an agent and without, and reckons it up to ten thousand ranks.

    node       8 processes that record at a stated rate, for some minutes, beside one `ranklake agent`
    measured   from the spool: segments, rows and bytes a rank and minute, packs a node and minute; CPU seconds
    reckoned   by multiplication alone: requests, bytes and price of 10,000 ranks

`--speed 60` records sixty times as fast and seals and packs sixty times as often: the same segments in less time, but
for the times in them. It is for the test of this file; figures to be quoted are taken at speed 1.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from ranklake import capture
from ranklake.capture.sealing.segment_bytes import read_footer

STEPS_PER_S, VALUES, PHASES = 1.0, 20, ("data", "forward", "backward", "optimizer", "collective", "checkpoint")
STEADY = ("scalars", "spans", "steps")
SEAL_S, LOOK_S = 60.0, 10.0
RANKS, RANKS_PER_NODE = 10_000, 8
# What Amazon S3 says of a prefix (requests a second), and what 1,000 requests cost (US dollars); see docs/scale.md.
PUTS_PER_S, PUT_PRICE, HEAD_PRICE = 3500, 0.005, 0.0004
DAY_MIN = 24 * 60
HEADERS_BYTES = 30 + 46  # of a member of a ZIP archive: before it and in the directory, both with its name


@dataclass(frozen=True)
class Measured:
    """What was seen of one node. All per minute of recording, and per rank unless said otherwise."""

    date: str
    ranks: int
    minutes: float
    segments: float
    rows: float
    segment_bytes: float
    bytes_per_row: dict[str, float]
    packs_per_node: float
    pack_bytes_per_node: float
    agent_cpu_s_per_node: float
    rank_cpu_s: float


@dataclass(frozen=True)
class Load:
    """What `RANKS` ranks put on a bucket in a minute, in one way of sending."""

    way: str
    puts: float
    mib: float
    share_of_prefix: float
    objects_a_week: float
    dollars_a_day: float


def record(spool: str, local: str, rank: int, minutes: float, speed: float) -> None:
    """Be one rank: a step each second, with phases and values; say when it begins and what CPU time it took."""
    run = capture.start(
        job="scale", run="scale", rank=rank, world_size=RANKS_PER_NODE, spool=spool, local_dir=local,
        seal_every_s=SEAL_S / speed,
    )  # fmt: skip
    print("ready", flush=True)
    sys.stdin.readline()
    begun, cpu = time.monotonic(), time.process_time()
    period = 1 / (STEPS_PER_S * speed)
    for number in range(round(minutes * 60 * STEPS_PER_S)):
        with run.step(number, tokens=4096):
            for phase in PHASES:
                with run.phase(phase):
                    pass
            run.log({f"train/value_{i}": (number * (i + 1)) % 97 / 97 + i for i in range(VALUES)})
        time.sleep(max(0.0, begun + (number + 1) * period - time.monotonic()))
    print(json.dumps({"cpu_s": time.process_time() - cpu}), flush=True)
    sys.stdin.readline()
    run.close()


def measure(minutes: float, speed: float, folder: Path) -> Measured:
    """Run a node and read what it sent."""
    spool, local = folder / "spool", folder / "local"
    local.mkdir()
    command = [sys.executable, "-m", "ranklake", "agent", "--spool", str(spool), "--local-dir", str(local)]
    cadence = ["--interval-s", str(max(0.1, LOOK_S / speed)), "--pack-s", str(SEAL_S / speed)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    agent = subprocess.Popen([*command, *cadence], stdout=subprocess.DEVNULL)
    own = [sys.executable, __file__, "--spool", str(spool), "--local", str(local), "--minutes", str(minutes)]
    ranks = [
        subprocess.Popen([*own, "--speed", str(speed), "--rank", str(rank)], **pipes) for rank in range(RANKS_PER_NODE)
    ]
    try:
        for process in ranks:
            process.stdout.readline()
        before = psutil.Process(agent.pid).cpu_times()
        for process in ranks:
            process.stdin.write("\n")
            process.stdin.flush()
        cpu = [json.loads(process.stdout.readline())["cpu_s"] for process in ranks]
        after = psutil.Process(agent.pid).cpu_times()
        for process in ranks:
            process.communicate("\n")
    finally:
        for process in ranks:
            process.kill()
            process.wait()
        agent.terminate()
        agent.wait()
    subprocess.run([*command, "--once"], check=True, stdout=subprocess.DEVNULL)
    spent = sum(after[:4]) - sum(before[:4])  # the agent's, and that of the processes that it starts
    return read_spool(spool, minutes, speed, spent, sum(cpu))


def read_spool(spool: Path, minutes: float, speed: float, agent_cpu_s: float, ranks_cpu_s: float) -> Measured:
    """Count what ranks sealed by the minute: the first and the last segment of a table belong to no whole one."""
    sizes: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    packed = 0
    times = []
    for path in sorted(spool.glob("segments/*/packs/*.zip")):
        counted, ended = 0, False
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                raw = archive.read(name)
                footer = read_footer(raw)
                ended = ended or footer.final
                if footer.table not in STEADY or not footer.rows_before or footer.final:
                    continue
                counted += len(raw) + 2 * len(name) + HEADERS_BYTES
                if footer.run == "scale":
                    sizes[footer.rank, footer.table].append((footer.rows, len(raw)))
        packed += counted
        if counted and not ended:  # a pack of what dead processes left comes out of turn
            times.append(path.stat().st_mtime)
    seals: Counter[int] = Counter()  # by rank: its whole minutes
    for (rank, _), found in sizes.items():
        seals[rank] = max(seals[rank], len(found))
    assert seals, "no minute is whole; record for longer"
    total: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for (_, table), found in sizes.items():
        total[table] += sum(size for _, size in found)
        rows[table] += sum(count for count, _ in found)
    assert len(times) > 1, "too few packs; record for longer"
    rank_minutes = seals.total()
    node_minutes = rank_minutes / RANKS_PER_NODE
    return Measured(
        date=datetime.now(UTC).date().isoformat(),
        ranks=RANKS_PER_NODE,
        minutes=minutes,
        segments=sum(map(len, sizes.values())) / rank_minutes,
        rows=rows.total() / rank_minutes,
        segment_bytes=total.total() / rank_minutes,
        bytes_per_row={table: total[table] / rows[table] for table in sorted(total)},
        packs_per_node=(len(times) - 1) / (max(times) - min(times)) * 60 / speed,
        pack_bytes_per_node=packed / node_minutes,
        agent_cpu_s_per_node=agent_cpu_s / minutes,
        rank_cpu_s=ranks_cpu_s / minutes / RANKS_PER_NODE,
    )


def reckon(found: Measured) -> list[Load]:
    """Multiply. Each PUT is followed by one HEAD, which verifies it."""
    nodes = RANKS / RANKS_PER_NODE
    ways = {
        "each rank for itself": (RANKS * found.segments, RANKS * found.segment_bytes),
        "an agent a node": (nodes * found.packs_per_node, nodes * found.pack_bytes_per_node),
    }
    return [
        Load(
            way=way,
            puts=puts,
            mib=size / 2**20,
            share_of_prefix=puts / 60 / PUTS_PER_S,
            objects_a_week=puts * DAY_MIN * 7,
            dollars_a_day=puts * DAY_MIN * (PUT_PRICE + HEAD_PRICE) / 1000,
        )
        for way, (puts, size) in ways.items()
    ]


def table(found: Measured, loads: list[Load]) -> str:
    """Return both tables as Markdown."""
    lines = [
        f"Measured on {found.date}: {found.ranks} ranks, {found.minutes:g} minutes.",
        "",
        "| per rank and minute | |",
        "|---|---|",
        f"| segments | {found.segments:.2f} |",
        f"| rows | {found.rows:,.0f} |",
        f"| bytes in segments | {found.segment_bytes:,.0f} |",
        *(f"| bytes a row of `{name}` | {size:.1f} |" for name, size in found.bytes_per_row.items()),
        f"| CPU seconds of the rank's process, recording and sealing | {found.rank_cpu_s:.3f} |",
        f"| packs, per node | {found.packs_per_node:.2f} |",
        f"| bytes in packs, per node | {found.pack_bytes_per_node:,.0f} |",
        f"| CPU seconds of the agent, per node | {found.agent_cpu_s_per_node:.3f} |",
        "",
        f"| {RANKS:,} ranks, {RANKS_PER_NODE} a node | " + " | ".join(load.way for load in loads) + " |",
        "|---|" + "---:|" * len(loads),
    ]
    shown = {
        "PUTs a minute": lambda load: f"{load.puts:,.0f}",
        "MiB a minute": lambda load: f"{load.mib:,.0f}",
        "mean object, KiB": lambda load: f"{load.mib * 1024 / load.puts:,.1f}",
        f"share of a prefix's {PUTS_PER_S:,} PUTs a second": lambda load: f"{load.share_of_prefix:.1%}",
        "objects that a week leaves in the spool": lambda load: f"{load.objects_a_week:,.0f}",
        "requests' price a day, US dollars": lambda load: f"{load.dollars_a_day:,.0f}",
    }
    lines += [f"| {name} | " + " | ".join(show(load) for load in loads) + " |" for name, show in shown.items()]
    return "\n".join(lines)


def main() -> None:
    """Measure and print, or be a rank."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--json", action="store_true", help="print what was measured, for --of")
    parser.add_argument("--of", type=Path, metavar="FILE", help="reckon with what was measured before")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--spool", help=argparse.SUPPRESS)
    parser.add_argument("--local", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        record(given.spool, given.local, given.rank, given.minutes, given.speed)
        return
    if given.of:
        found = Measured(**json.loads(given.of.read_text()))
    else:
        with tempfile.TemporaryDirectory(prefix="ranklake-scale-") as folder:
            found = measure(given.minutes, given.speed, Path(folder))
    print(json.dumps(asdict(found), indent=1) if given.json else table(found, reckon(found)))


if __name__ == "__main__":
    main()
