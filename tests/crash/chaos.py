"""Three drivers, upkeep and four workers, all dying at random, while segments keep coming: every row ends up once.

    python chaos.py LAKE SPOOL [--kills 200] [--seed N] [--storage JSON]
    python chaos.py --radosgw [--kills 200] [--seed N]

LAKE and SPOOL are empty places: folders, or URIs of an object store with --storage as delta-rs names its options. With
--radosgw a Ceph gateway is started for it, which those who die reach through connections that are cut, refusals, and
answers that are lost (one request in fifteen). A segment counts as acknowledged when it is whole in the spool.

Exits 0 if at the end, after one undisturbed ingest, every acknowledged row is in its table or in quarantine exactly
once, the books add up, and purging all that nobody can want any more changes neither. In a local spool each segment
comes with a hostile object (`mutations.py`), whose own lies may be named, and nothing else.
"""

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import chaos_child
import pyarrow as pa
from distributed import LocalCluster
from mutations import faults_of_others, poison
from radosgw import radosgw
from segments import segment_bytes, step_rows
from stores import Proxy, s3_storage

from ranklake.lake.audit.proof import verify
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table

DRIVERS, WORKERS, ROWS = 3, 4, 100


def bad_rows(slot):
    """Say whether a row is one that the contract refuses."""
    return slot % 50 == 7


class Source:
    """What capture would be: puts whole segments into the spool, and remembers what it acknowledged."""

    def __init__(self, spool, rng):
        self.spool, self.rng = spool, rng
        self.segments = 0
        self.folder = Path(spool.root) if "file" in spool.fs.protocol else None
        if self.folder:
            self.outside = self.folder.with_name("outside")
            self.outside.mkdir()
            (self.outside / "canary").write_bytes(b"nobody's business")

    def put(self):
        """Put one segment; every third is sent a second time, with a longer cut."""
        number = self.segments
        rows = step_rows(ROWS, segment=number)
        times = [-1.0 if bad_rows(slot) else 0.5 for slot in range(ROWS)]
        place = rows.schema.get_field_index("step_time_s")
        rows = rows.set_column(place, rows.schema.field(place), pa.array(times, pa.float32()))
        if number % 3 == 0:
            self._send(rows.slice(0, ROWS // 2), number)
        self._send(rows, number)
        self.segments += 1
        if self.folder:
            poison(self.rng, number, self.folder, self.outside)

    def _send(self, rows, number):
        path, raw = segment_bytes(rows, rows_before=ROWS * number)
        target = f"{self.spool.root}/segments/2026-03-0{1 + number % 3}/{path}"
        fs = self.spool.fs
        if "file" in fs.protocol:  # whole or not at all, as an object store does it
            scratch = Path(f"{target}.tmp")
            scratch.parent.mkdir(parents=True, exist_ok=True)
            scratch.write_bytes(raw)
            scratch.rename(target)
        else:
            fs.pipe_file(target, raw)

    def expected(self):
        """Return (keys that must be stored, keys that must be in quarantine)."""
        every = {(7, number, slot) for number in range(self.segments) for slot in range(ROWS)}
        bad = {key for key in every if bad_rows(key[2])}
        return Counter(every - bad), Counter(bad)


class Crew:
    """Processes that are killed and started anew."""

    def __init__(self, place, cluster, rng):
        self.cluster, self.rng = cluster, rng
        self.arguments = (*place, cluster.scheduler_address)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["chaos_child"])
        self.children = [self._start(work) for work in [*[chaos_child.drive] * DRIVERS, chaos_child.keep_up]]
        self.kills = Counter()
        self.findings = []

    def _start(self, work):
        process = self.context.Process(target=work, args=(*self.arguments, self.rng.randrange(2**32)))
        process.start()
        return work, process

    def look(self):
        """Start again whoever is dead."""
        for place, (work, process) in enumerate(self.children):
            if process.exitcode is None:
                continue
            if process.exitcode == -signal.SIGKILL:
                self.kills[work.__name__] += 1
            else:
                self.findings.append(f"{work.__name__} ended with {process.exitcode}")
            process.close()
            self.children[place] = self._start(work)

    def kill_one(self):
        """Kill a driver, upkeep or a worker, whatever it is doing."""
        if self.rng.random() < 0.35:
            pids = [nanny.pid for nanny in self.cluster.workers.values() if nanny.pid]
            if pids:
                os.kill(self.rng.choice(pids), signal.SIGKILL)
                self.kills["worker"] += 1
            return
        _, process = self.rng.choice(self.children)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()

    def stop(self):
        """Kill all, for good."""
        for _, process in self.children:
            process.kill()
            process.join()


def keys(lake, table):
    """Count the rows of a table by key."""
    rows = read(lake.tables, contract(table), ["incarnation", "segment", "slot"])
    every = zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True)
    return Counter(key for key in every if key[0] == 7)


def judge(lake, spool, source):
    """Return what is wrong, in words; nothing if all is well."""
    stored, refused = source.expected()
    found = []
    for table, wanted in (("steps", stored), ("rejects", refused)):
        have = keys(lake, table)
        missing, excess = (wanted - have).total(), (have - wanted).total()
        if missing or excess:
            found.append(f"{table}: {missing} rows lost, {excess} too many")
    faults = [f"{item.table}: {fault}" for item in balance(lake, spool.listing()) for fault in item.faults]
    found += faults_of_others(faults)
    if verify(lake) is not None:
        found.append("the audit log is broken")
    if read_plan(lake.store, last_finished(lake.tables) + 1) is not None:
        found.append("a plan is unfinished")
    return found


def _tell(crew, kills, told):
    """Say every twenty kills how far it is; return how many were told of."""
    done = crew.kills.total()
    if done < told + 20:
        return told
    print(f"{done} of {kills} kills", file=sys.stderr, flush=True)
    return done


def campaign(lake_uri, spool_uri, storage, flapping, kills, seed):
    """Run the campaign; return the findings and a line for people. Who dies reaches the store by `flapping`."""
    rng = random.Random(seed)
    lake, spool = Lake.create(lake_uri, storage), Spool(spool_uri, storage)
    source = Source(spool, rng)
    began = time.monotonic()
    source.put()
    ingest(lake, spool, InProcess())
    whole_s = time.monotonic() - began  # kills come so often, so that something gets done in between on any machine
    with LocalCluster(
        n_workers=WORKERS,
        threads_per_worker=1,
        memory_limit="2GiB",
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    ) as cluster:
        crew = Crew((lake_uri, spool_uri, flapping), cluster, rng)
        told = 0
        try:
            while crew.kills.total() < kills:
                for _ in range(rng.randint(1, 4)):
                    source.put()
                time.sleep(whole_s * rng.uniform(0.1, 2.0))
                crew.kill_one()
                crew.look()
                told = _tell(crew, kills, told)
        finally:
            crew.stop()
    findings = crew.findings
    ingest(lake, spool, InProcess())
    findings += judge(lake, spool, source)
    kept = upkeep(lake, InProcess(), grace=timedelta(0))
    findings += [f"after upkeep: {what}" for what in judge(lake, spool, source)]
    again = upkeep(lake, InProcess(), grace=timedelta(0))
    if again.purged or again.plans:
        findings.append(f"upkeep did not come to an end: {again}")
    live = files(delta_table(lake.store, "steps"))
    dead = ", ".join(f"{count} {name}" for name, count in sorted(crew.kills.items()))
    line = (
        f"chaos: {crew.kills.total()} kills ({dead}), seed {seed}, {source.segments} segments, "
        f"{last_finished(lake.tables)} plans, {kept.purged} purged, {live.num_rows} files left, "
        f"{time.monotonic() - began:.0f} s: {'; '.join(findings) or 'every row once'}"
    )
    return findings, line


def main():
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lake", nargs="?")
    parser.add_argument("spool", nargs="?")
    parser.add_argument("--radosgw", action="store_true")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--storage", type=json.loads, default={})
    given = parser.parse_args()
    if not given.radosgw and not (given.lake and given.spool):
        parser.error("name LAKE and SPOOL, or --radosgw")
    with contextlib.ExitStack() as stack:
        place, storage, flapping = (given.lake, given.spool), given.storage, given.storage
        if given.radosgw:
            place = ("s3://bucket/lake", "s3://bucket/spool")
            url = stack.enter_context(radosgw(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
            proxy = stack.enter_context(Proxy(url))
            dice = random.Random(given.seed)
            proxy.rule = lambda _: dice.choices([None, 503, "reset", "late"], [42, 1, 1, 1])[0]
            storage, flapping = s3_storage(url), s3_storage(proxy.url)
        findings, line = campaign(*place, storage, flapping, given.kills, given.seed)
    print(line)
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
