"""The list of three in the morning: each fault tells the right receiver once, with evidence, and then that it is over.

    python tests/crash/night.py FOLDER [--only NAME …]

One lake, sound jobs, a round of the pipeline each five minutes by a moved clock (that of the fortnight), and real HTTP
receivers: `oncall` gets what is critical, as a page, `team` the rest, a third the heartbeat. First a stretch in which
nothing is wrong and nobody is told anything. Then each fault in turn: planted, told within `ROUNDS` rounds, by one
message with its evidence and to nobody else; taken away, and after its time told to be over, once. Exits 1 if anything
did not hold. `up_night.py` is the same in a running `ranklake up`, with a worker and a server that die.
"""

import argparse
import contextlib
import hashlib
import io
import os
import random
import re
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from campaign import FAKED, Calendar, Site, go_away, prepare
from receivers import serve
from sampled import gpu_samples
from segments import put_segment, step_rows
from ssh_keys import Keys

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract

ROUNDS, EVERY_S = 3, 300
DAY_S = 86_400
DISK = "health.disk_free_ratio = "
CONFIGURED = """
alerts.file = "{0}/alerts.yaml"
backup.to = ["{0}/backups"]
approvals.allowed_signers = "{0}/keys/allowed_signers"
health.disk_free_ratio = 0.0
"""
RULES = """
version: 1
rules:
  run-diverges:
    {source: incidents, where: {kind: [non_finite, divergence]}, severity: critical, owner: training,
     summary: The loss is no number.}
  run-hangs:
    {source: incidents, where: {kind: [hang, stall, rank_silence]}, severity: critical, owner: training,
     summary: A run makes no steps.}
  gpu-throttles:
    {source: incidents, where: {kind: gpu_throttling}, owner: cluster, summary: A GPU is slowed down.}
  audit-broken:
    {source: pipeline, where: {kind: audit-trail}, severity: critical, owner: security,
     summary: Somebody changed the audit log.}
  checks-fail: {source: checks, where: {severity: [error, critical]}, owner: stewards, summary: Checks fail.}
  pipeline-fails:
    {source: pipeline, where: {kind: [stage, disk, pool, unreadable, signers, keys, backup, alerts]},
     owner: stewards, summary: The pipeline needs a look.}
  server-out:
    {source: pipeline, where: {kind: prefect}, for_s: 60, owner: stewards, summary: The Prefect server is out.}
  runs-fail:
    {source: pipeline, where: {kind: [deployment, look]}, for_s: 900, owner: stewards, summary: Scheduled runs fail.}
receivers:
  oncall: {url: "env:ONCALL_URL"}
  team: {url: "env:TEAM_URL"}
heartbeat: {url: "env:HEARTBEAT_URL"}
routes:
  - {where: {severity: critical}, receivers: [oncall], kind: page}
  - {receivers: [team]}
"""


@dataclass(frozen=True)
class Fault:
    """A fault, who is to be told of it, and by which words.

    Attributes
    ----------
    plant, mend
        Functions of the night: do it, take it away.
    over_s
        After how long by the clock it is over, once it was taken away.
    """

    name: str
    receiver: str
    words: tuple
    plant: object
    mend: object
    over_s: int = EVERY_S


@dataclass
class Night:
    """The site, its receivers, and how far the clock went."""

    site: Site
    servers: dict
    elapsed_s: int = 0
    jobs: int = 0
    read: dict = field(default_factory=dict)
    kept: dict = field(default_factory=dict)

    def move(self, seconds):
        """Move the clock on."""
        self.elapsed_s += seconds
        self.site.clock.set(0, 0, self.elapsed_s)

    def train(self, kind="fine"):
        """Train two runs, of which the second ends as it is said."""
        self.jobs += 1
        jobs = [self.site.job(f"sound-{self.jobs}"), self.site.job(f"{kind}-{self.jobs}", kind)]
        self.site.work(0, 0, jobs, second=self.elapsed_s)

    def command(self, *words):
        """Run a command; return its exit code, and date what it wrote."""
        from ranklake import cli

        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = cli.run([*words])
        self.site.clock.date_files(*(self.site.folder / name for name in ("lake", "spool", "backups")))
        return code

    def messages(self):
        """Return what receivers got since, by receiver: title and text of each."""
        result = {}
        for name, server in self.servers.items():
            requests, self.read[name] = server.requests[self.read.get(name, 0) :], len(server.requests)
            result[name] = [request.body.decode() if name == "heartbeat" else request.json for request in requests]
        return result

    def round(self):
        """Run the pipeline once; return what people got, and complain if no heartbeat came."""
        code = self.command("pipeline", "--json")
        got = self.messages()
        if code == 2 or len(got.pop("heartbeat")) != 1:
            self.site.complain(f"the pipeline exits {code}, or sends no heartbeat")
        return [(name, each["title"], each["message"]) for name, every in got.items() for each in every]

    def wait_for_message(self, fault, state, most):
        """Run rounds until a message comes; return whether one did."""
        for number in range(most):
            if number:
                self.move(EVERY_S)
            if messages := self.round():
                (first, *more) = messages
                self.expect(fault, state, first)
                for name, title, text in more:
                    self.site.complain(f"{fault.name}: {name} got {title!r} beside it: {text}")
                return True
        self.site.complain(f"{fault.name}: nobody is told that it is {state}")
        return False

    def expect(self, fault, state, message):
        """Complain of a message that goes to another, is of another kind, or lacks words of evidence."""
        name, title, text = message
        kind = ("PAGE" if fault.receiver == "oncall" else "TICKET") if state == "firing" else "Resolved"
        lacks = [word for word in fault.words if word not in text] if state == "firing" else []
        if name != fault.receiver or not re.match(rf"\[{kind}\] \d+ {state}: ", title) or lacks:
            self.site.complain(f"{fault.name}: {name} got {title!r}, which lacks {lacks}: {text}")


def signers(night, days=None):
    """Write who may sign: one whose key expires in so many days."""
    keys = Keys(night.site.folder / "keys")
    until = "" if days is None else f'valid-before="{night.site.clock.now + timedelta(days=days):%Y%m%d}"'
    keys.allow(keys.line("ada", until), keys.line("otto"))


def unreadable(night):
    """Put a segment into the spool that is none."""
    raw = b"PAR1 no Parquet"
    name = f"torn~a0~r00000~0123456789abcdef~000002~80~{hashlib.sha256(raw).hexdigest()}.parquet"
    folder = night.site.folder / "spool" / "segments" / f"{night.site.clock.now:%Y-%m-%d}" / "steps"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(raw)


def send_again(night):
    """Send what `unreadable` stands for: a sound segment of the same place, with as many rows."""
    rows = step_rows(80, segment=2, incarnation=0x0123456789ABCDEF, run="torn", start=night.site.clock.now)
    put_segment(night.site.folder / "spool", rows, day=f"{night.site.clock.now:%Y-%m-%d}")
    night.site.clock.date_files(night.site.folder / "spool")


def disown_negative(night):
    """Set the run aside whose rows fail, as somebody does who knows that they are wrong."""
    run = f"negative-{night.jobs}"
    streams = night.site.sql(f"SELECT DISTINCT attempt, rank, incarnation FROM segments WHERE run = '{run}'")
    for each in streams:
        stream = f"{run}~a{each['attempt']}~r{each['rank']:05d}~{each['incarnation']:016x}"
        night.site.run("disown", stream, "--by", "Ada", "--reason", "tokens below zero")


def tamper(night):
    """Change who did what the newest file of the audit log tells."""
    files = (night.site.folder / "lake" / "tables" / "audit").rglob("*.parquet")
    path = max((path for path in files if "_delta_log" not in path.parts), key=lambda path: path.stat().st_mtime)
    night.kept[path] = path.read_bytes()
    rows = pq.ParquetFile(path).read()
    place = rows.schema.get_field_index("actor")
    changed = pa.array(["nobody"] * rows.num_rows, rows.schema.field(place).type)
    pq.write_table(rows.set_column(place, rows.schema.field(place), changed), path)


def throttle(night):
    """Have a GPU of a sound run say for ten minutes that it is slowed down since it is hot, as its sampler records."""
    night.train()
    run, start = f"sound-{night.jobs}", night.site.clock.now - timedelta(minutes=20)
    usual = {"temperature_celsius": 60.0, "clock_event_reasons": "sw_power_cap"}
    hot = {"temperature_celsius": 80.0, "clock_event_reasons": "hw_thermal_slowdown"}
    place = {"run": run, "attempt": 0, "rank": 0, "segment": 0, "holder_run": run, "host": "node1"}
    samples = gpu_samples(120, every_s=10, start=start, device="GPU-hot", device_index=0, device_name="NVIDIA H100")
    rows = [{**row, **place, **(hot if 30 <= row["slot"] < 90 else usual)} for row in samples]
    schema = arrow_schema(contract("gpu_samples"), segment=True)
    table = pa.Table.from_pylist([dict.fromkeys(schema.names) | row for row in rows], schema=schema)
    spool = night.site.folder / "spool"
    put_segment(spool, table, "gpu_samples", day=f"{night.site.clock.now:%Y-%m-%d}")
    night.site.clock.date_files(spool)


def put_back(night):
    """Put files back as they were."""
    for path, raw in night.kept.items():
        path.write_bytes(raw)
    night.kept.clear()


def disk_counts_as_full(night, before="0.0", after="0.99"):
    """Have any disk count as nearly full: a disk of one's own needs rights that tests do not have."""
    path = night.site.folder / "ranklake.toml"
    path.write_text(path.read_text().replace(f"{DISK}{before}", f"{DISK}{after}"))


def nothing(night):
    """Do nothing: time passes."""
    del night


def days_without_backup(night):
    """Keep the lake in shape, and back up nothing."""
    night.command("upkeep")
    night.move(3 * DAY_S)


def days_without_upkeep(night):
    """Have files that nothing refers to any more lie for ten days."""
    night.command("upkeep")
    night.move(10 * DAY_S)
    night.command("backup")


FAULTS = (
    Fault("hung rank", "oncall", ("run hung-", "evidence: ", "severity: critical"), lambda night: night.train("hung"),
          nothing, over_s=1800),
    Fault("NaN run", "oncall", ("run nan-", "evidence: ", "severity: critical"), lambda night: night.train("nan"),
          nothing, over_s=1800),
    Fault("throttled node", "team", ("GPU", "throttles", "thermal", "host node1", "evidence: "), throttle,
          nothing, over_s=2400),
    Fault("expiring key", "team", ("1 of 2 keys may not sign, or not 14 days", "evidence: ranklake doctor"),
          lambda night: signers(night, 9), signers),
    Fault("audit tampered", "oncall", ("audit log is broken", "evidence: ranklake doctor"), tamper, put_back),
    Fault("full disk", "team", ("is nearly full", "% is free", "evidence: "), disk_counts_as_full,
          lambda night: disk_counts_as_full(night, "0.99", "0.0")),
    Fault("backup overdue", "team", ("overdue: ", "the newest backup is", " h old"),
          days_without_backup, lambda night: night.command("backup")),
    Fault("unreadable segment", "team", ("1 segment of steps cannot be read: 80 rows", "evidence: "), unreadable,
          send_again),
    Fault("overdue upkeep", "team", ("Upkeep is overdue", "evidence: "), days_without_upkeep,
          lambda night: night.command("upkeep")),
    Fault("failing check", "team", ("Check ", "evidence: ranklake quality why"), lambda night: night.train("negative"),
          disown_negative),
)  # fmt: skip


def clean_stretch(night):
    """Have sound jobs and rounds, and complain of each message."""
    night.command("ingest")
    night.command("backup")
    night.command("pipeline")
    night.messages()
    for _ in range(6):
        night.move(EVERY_S)
        night.train()
        for message in night.round():
            night.site.complain(f"nothing is wrong, and {message[0]} is told {message[1]}: {message[2]}")


def one_fault(night, fault):
    """Plant a fault, and take it away; return a row of the table."""
    night.move(EVERY_S)
    fault.plant(night)
    planted_s = night.elapsed_s
    is_told, told_s = night.wait_for_message(fault, "firing", ROUNDS), night.elapsed_s - planted_s
    night.move(EVERY_S)
    for _, title, text in night.round():
        night.site.complain(f"{fault.name}: told again: {title!r}: {text}")
    mended_s = night.elapsed_s
    fault.mend(night)
    night.move(max(fault.over_s - ROUNDS * EVERY_S, EVERY_S))
    is_over, over_s = night.wait_for_message(fault, "resolved", ROUNDS + 1), night.elapsed_s - mended_s
    for _, title, text in night.round():
        night.site.complain(f"{fault.name}: told after its end: {title!r}: {text}")
    return fault.name, fault.receiver, told_s if is_told else None, over_s if is_over else None


def store_away(night):
    """Take lake and spool away for ten minutes: the heartbeat stops, nobody is told, and then all goes on."""
    night.move(EVERY_S)
    go_away(night.site, back=False)
    for _ in range(2):
        code, got = night.command("pipeline"), night.messages()
        if code != 2 or any(got.values()):
            night.site.complain(f"store away: exit code {code}, {got}")
        night.move(EVERY_S)
    go_away(night.site, back=True)
    for _, title, text in night.round():
        night.site.complain(f"store away: told {title!r}: {text}")
    return "store away 10 minutes", "heartbeat", "stops", "goes on"


def main():
    """Live through the night; exit 1 if anything did not hold."""
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--only", nargs="*", default=[], metavar="NAME")
    given = options.parse_args()
    folder = given.folder.resolve()
    if "FAKETIME" not in os.environ:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("RANKLAKE_", "PREFECT_"))}
        os.execve(sys.executable, [sys.executable, *sys.argv], plain | FAKED | {"HOME": str(folder)})
    calendar = Calendar(1, 1, 0, 3, late=range(0), outage=-1, restarts=(), retention=())
    site = Site(folder, random.Random(1), calendar)
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(serve()) for name in ("oncall", "team", "heartbeat")}
        for name, server in servers.items():
            kind = "http" if name == "heartbeat" else "json"
            os.environ[f"{name.upper()}_URL"] = f"{kind}://127.0.0.1:{server.port}/"
        night = Night(site, servers)
        night.move(2 * 3600 + 1800)
        stack.callback(site.stop_nodes)
        prepare(site)
        signers(night)
        (folder / "alerts.yaml").write_text(RULES)
        with (folder / "ranklake.toml").open("a") as file:
            file.write(CONFIGURED.format(folder))
        clean_stretch(night)
        rows = [] if given.only else [store_away(night)]
        for fault in FAULTS:
            if not given.only or fault.name in given.only:
                rows.append(one_fault(night, fault))
                print(rows[-1], f"{len(site.complaints)} complaints so far", flush=True)
    print(
        f"\n{'fault':22} {'told to':10} {'s to tell':>9} {'s to its end':>12}   (by the clock, rounds of {EVERY_S} s)"
    )
    for name, receiver, told, over in rows:
        print(f"{name:22} {receiver:10} {told!s:>9} {over!s:>12}")
    print(f"{len(site.complaints)} complaints, in {folder}")
    sys.exit(bool(site.complaints))


if __name__ == "__main__":
    main()
