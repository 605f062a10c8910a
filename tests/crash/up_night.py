"""The list of three in the morning in a running `ranklake up`, by the real clock: who is told, how soon, and the end.

    python tests/crash/up_night.py FOLDER [--only NAME …]

A real server and worker, the pipeline each `EVERY_S` seconds, and real HTTP receivers; faults, receivers and rules are
those of `night.py`. Nothing waits for a time: a fault is planted, and the message awaited; then comes another round, in
which nobody is told again; the fault is put right, and the end awaited. A message too many after it is one of the next
fault, or of the last round. Limits are shortened by settings where what is tried is that something is longer than its
limit: backups are overdue after seconds, the disk is full below 99 %, and a file that upkeep should have removed is
dated back. The store is away for ten minutes: a bucket of moto's server, behind a proxy. A hung run and a throttled GPU
are over when somebody says so. How long anything may take is counted in rounds. Exits 1 if anything did not hold.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import httpx
from campaign import Calendar, Site, prepare
from night import CONFIGURED, RULES, Fault, Night, disown_negative, put_back, send_again, signers, tamper, throttle
from night import unreadable as send_unreadable
from receivers import serve
from segments import put_segment, step_rows
from serving import Up, free_port, wait_for
from ssh_keys import Keys
from stores import Proxy, Store, moto_server, s3_storage, sent

EVERY_S, LOOK_S, AWAY_S, LOOKS, ROUNDS = 20, 15, 600, 3, 20
PATIENCE_S = 3600
"""Of what hangs. What does not come is told after `ROUNDS`."""
LONG_AGO_S = 30 * 86_400


class RealClock:
    """The clock of the machine, where `campaign.Clock` is moved."""

    offset_s = 0.0
    day0 = datetime(2026, 1, 1, tzinfo=UTC)

    @property
    def now(self):
        """Return the time."""
        return datetime.now(UTC)

    def set(self, *moment):
        """Leave it as it is."""

    def date_files(self, *folders):
        """Leave files as they are."""


@dataclass
class UpNight(Night):
    """A night in a running `ranklake up`, whose metrics are at a port."""

    up: Up | None = None
    port: int = 0

    def beats(self):
        """Return how many heartbeats came so far."""
        return len(self.servers["heartbeat"].requests)

    def round(self):
        """Do a round of alerts alone, as the deployment of this name does each minute."""
        self.deployment("alerts")

    def await_beats(self, count):
        """Wait until so many heartbeats came."""
        until = self.beats() + count
        wait_for(f"{count} heartbeats", lambda: self.beats() >= until, PATIENCE_S)

    def await_new(self):
        """Return what people got; AssertionError where they got nothing in so many rounds."""
        until = self.beats() + ROUNDS

        def look():
            got = self.new()
            assert got or self.beats() < until, "no message"
            return got

        return wait_for("a message", look, PATIENCE_S)

    def new(self):
        """Return what people got since: receiver, title, text."""
        got = self.messages()
        got.pop("heartbeat")
        return [(name, each["title"], each["message"]) for name, every in got.items() for each in every]

    def await_message(self, fault, state):
        """Wait for a message; hold it against the fault; return after how many seconds it came."""
        began = time.monotonic()
        try:
            first, *more = self.await_new()
        except AssertionError:
            self.site.complain(f"{fault.name}: nobody is told that it is {state}")
            return None
        while state == "resolved" and "still firing" in first[1]:  # a round under way knew of a part of the repair
            first, *more = self.await_new()
        took_s = time.monotonic() - began
        self.expect(fault, state, first)
        for name, title, text in more:
            self.site.complain(f"{fault.name}: {name} got {title!r} beside it: {text}")
        return took_s

    def expect_nothing(self, what):
        """Complain of each message."""
        for name, title, text in self.new():
            self.site.complain(f"{what}: {name} is told {title!r}: {text}")

    def healthz(self):
        """Return when the last look was, and what is wrong by check."""
        facts = httpx.get(f"http://127.0.0.1:{self.port}/healthz", timeout=60).json()
        return facts["looked"], {each["check"]: each["what"] for each in facts["problems"]}

    def looks(self, count):
        """Wait until so many looks were over that begin from now on."""
        for _ in range(count + 1):
            last = self.healthz()[0]
            wait_for("a look", lambda last=last: self.healthz()[0] != last, PATIENCE_S)

    def option(self, name, value):
        """Give an option of the configuration another value, at once, as an operator does while all runs."""
        path = self.site.folder / "ranklake.toml"
        lines = [
            f"{name} = {value}" if line.startswith(f"{name} =") else line for line in path.read_text().splitlines()
        ]
        (draft := path.with_suffix(".new")).write_text("\n".join(lines) + "\n")
        draft.replace(path)

    def deployment(self, name):
        """Have a deployment run now, and wait for its end."""
        run = self.up.run(name)
        wait_for(name, lambda: self.up.state(run) == "COMPLETED", PATIENCE_S)


def receiver_url(name, server):
    """Return the URL of a receiver."""
    return f"{'http' if name == 'heartbeat' else 'json'}://127.0.0.1:{server.port}/"


def resolve(night):
    """Say of all incidents that they are over, as somebody does who has looked."""
    for each in night.site.facts("incidents", "list", "--open")["incidents"]:
        night.site.run("incidents", "mark", each["incident_id"], "--resolved", "--why", "The job was stopped.")


def full(night):
    """Have any disk count as nearly full: a disk of one's own needs rights that tests do not have."""
    night.option("health.disk_free_ratio", 0.99)


def backups_overdue(night):
    """Have backups be due every few seconds, which none is."""
    night.option("backup.every_h", 0.001)


def back_up(night):
    """Back up, once a day again."""
    night.option("backup.every_h", 24)
    night.deployment("backup")


def no_upkeep(night):
    """Leave a file behind that nothing refers to, as a process does that died a month ago."""
    place = next((night.site.folder / "lake" / "tables" / "segments").glob("date=*"))
    path = place / f"p1-{'0' * 32}.parquet"
    path.write_bytes(b"PAR1")
    os.utime(path, (time.time() - LONG_AGO_S,) * 2)


FAULTS = (
    Fault("hung rank", "oncall", ("run hung-", "evidence: ", "severity: critical"), lambda night: night.train("hung"),
          resolve),
    Fault("NaN run", "oncall", ("run nan-", "evidence: ", "severity: critical"), lambda night: night.train("nan"),
          resolve),
    Fault("throttled node", "team", ("GPU", "throttles", "thermal", "host node1", "evidence: "), throttle, resolve),
    Fault("full disk", "team", ("is nearly full", "% is free", "evidence: "), full,
          lambda night: night.option("health.disk_free_ratio", 0.0)),
    Fault("unreadable segment", "team", ("1 segment of steps cannot be read: 80 rows", "evidence: "), send_unreadable,
          send_again),
    Fault("failing check", "team", ("Check ", "evidence: ranklake quality why"), lambda night: night.train("negative"),
          disown_negative),
    Fault("overdue upkeep", "team", ("Upkeep is overdue", "evidence: "), no_upkeep,
          lambda night: night.deployment("upkeep")),
    Fault("expiring key", "team", ("1 of 2 keys may not sign, or not 14 days", "evidence: ranklake doctor"),
          lambda night: signers(night, 9), signers),
    Fault("audit tampered", "oncall", ("audit log is broken", "evidence: ranklake doctor"), tamper, put_back),
    Fault("backup overdue", "team", ("overdue: ", "the newest backup is", " h old"), backups_overdue, back_up),
)  # fmt: skip


def one_fault(night, fault):
    """Plant a fault, and put it right; return a row of the table."""
    fault.plant(night)
    told_s = night.await_message(fault, "firing")
    night.round()
    night.expect_nothing(f"{fault.name}: once more")
    fault.mend(night)
    over_s = night.await_message(fault, "resolved")
    return fault.name, fault.receiver, told_s, over_s


def stopped(night, name, word, words):
    """Stop the worker or the server, so that it does nothing and is not started again; let it go on."""
    fault = Fault(name, "team", (*words, "evidence: "), None, None)
    process = night.up.child(word)
    process.send_signal(signal.SIGSTOP)
    told_s = night.await_message(fault, "firing")
    beats = night.beats()
    night.looks(LOOKS)
    if not night.healthz()[1] or night.beats() != beats:
        night.site.complain(f"{name}: /healthz says that all is well, or heartbeats go on")
    night.expect_nothing(f"{name}: once more")
    process.send_signal(signal.SIGCONT)
    over_s = night.await_message(fault, "resolved")
    night.round()  # so that what was sent is written down before anything else happens
    return name, "team", told_s, over_s


def killed(night, name, word):
    """Kill the worker or the server: it is started again within seconds, nobody is told, heartbeats go on."""
    began = time.monotonic()
    night.up.child(word).kill()
    night.await_beats(2)  # one of them may be that of a run in flight
    night.expect_nothing(name)
    return name, "nobody", None, time.monotonic() - began


def store_away(night):
    """Take the store of another `ranklake up` away for ten minutes: its lake and spool are buckets, and stay there.

    First the store refuses, then it hangs up. The heartbeat stops, /healthz says why, nobody is told, and then all goes
    on.
    """
    folder = night.site.folder / "elsewhere"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(moto_server(folder))
        proxy = stack.enter_context(Proxy(store))
        servers = {name: stack.enter_context(serve()) for name in night.servers}
        site = Site(folder, night.site.random, night.site.calendar, RealClock(), complaints=night.site.complaints)
        other = UpNight(site, servers, port=free_port())
        options = "".join(f"storage.{name} = {value!r}\n" for name, value in s3_storage(proxy.url).items())
        rules = f'alerts.file = "{night.site.folder}/alerts.yaml"\nhealth.every_s = {LOOK_S}\n'
        places = 'lake.uri = "s3://bucket/lake"\nspool.uri = "s3://bucket/spool"\n'
        (folder / "ranklake.toml").write_text(places + options + rules)
        put_segment(folder / "sent", step_rows(60, start=datetime.now(UTC) - timedelta(minutes=5)))
        sent(Store("s3://bucket/spool", s3_storage(store)), folder / "sent")
        urls = {f"{name.upper()}_URL": receiver_url(name, server) for name, server in servers.items()}
        other.up = Up.start(folder, "--every-s", str(EVERY_S), "--metrics-port", str(other.port), environment=urls)
        stack.callback(other.up.kill)
        other.up.ready()
        other.await_beats(2)
        other.expect_nothing("a lake in a bucket")
        began = time.monotonic()
        before = {each["id"] for each in other.up.runs("pipeline") if each["state_type"] == "FAILED"}
        proxy.rule = lambda _: 503
        wait_for("the lake in /healthz", lambda: "lake" in other.healthz()[1], PATIENCE_S)
        told_s = time.monotonic() - began

        def has_failed():
            runs = other.up.runs("pipeline")
            return any(each["state_type"] == "FAILED" and each["id"] not in before for each in runs)

        wait_for("a run that fails", has_failed, PATIENCE_S)
        beats = other.beats()
        time.sleep(max(0.0, began + AWAY_S / 2 - time.monotonic()))
        proxy.rule = lambda _: "reset"
        time.sleep(max(0.0, began + AWAY_S - time.monotonic()))
        if other.beats() != beats or "lake" not in other.healthz()[1]:
            night.site.complain("store away: heartbeats go on, or /healthz says that all is well")
        other.expect_nothing("store away")
        began, proxy.rule = time.monotonic(), None
        other.await_beats(2)
        wait_for("health", lambda: not other.healthz()[1], PATIENCE_S)
        over_s = time.monotonic() - began
        other.expect_nothing("store away: afterwards")
        if other.up.stop() or other.up.members():
            night.site.complain("store away: ranklake up does not end as it should")
    return "store away", "heartbeat", told_s, over_s


def others():
    """Return further entries by name."""
    return {
        "worker killed": partial(killed, name="worker killed", word="worker start"),
        "server killed": partial(killed, name="server killed", word="uvicorn"),
        "worker out": partial(stopped, name="worker out", word="worker start", words=("o worker polls the pool",)),
        "server out": partial(stopped, name="server out", word="uvicorn", words=("Prefect server does not answer",)),
    }


def protect(site):
    """Back the lake up, try that, and anchor the audit log: the doctor's hourly run fails where nobody did."""
    site.run("backup")
    site.run("audit", "anchor", "--key", str(Keys(site.folder / "keys").path("ada")))
    site.run("drill", str(site.folder / "backups"))


def main():
    """Live through the night; exit 1 if anything did not hold."""
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--only", nargs="*", default=[], metavar="NAME")
    given = options.parse_args()
    folder = given.folder.resolve()
    os.environ["HOME"] = str(folder)
    for name in [name for name in os.environ if name.startswith(("RANKLAKE_", "PREFECT_"))]:
        del os.environ[name]
    calendar = Calendar(1, 1, 0, 3, late=range(0), outage=-1, restarts=(), retention=())
    site = Site(folder, random.Random(1), calendar, RealClock())
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(serve()) for name in ("oncall", "team", "heartbeat")}
        os.environ |= {f"{name.upper()}_URL": receiver_url(name, server) for name, server in servers.items()}
        night = UpNight(site, servers, port=free_port())
        stack.callback(site.stop_nodes)
        prepare(site)
        signers(night)
        (folder / "alerts.yaml").write_text(RULES)
        with (folder / "ranklake.toml").open("a") as file:
            file.write(CONFIGURED.format(folder) + f"backup.every_h = 24\nhealth.every_s = {LOOK_S}\n")
        rows = []
        if not given.only or "store away" in given.only:  # alone: two servers wait for one another on a busy machine
            rows.append(store_away(night))
            print(rows[-1], f"{len(site.complaints)} complaints so far", flush=True)
        night.train()
        site.run("ingest")
        protect(site)
        options = ("--every-s", str(EVERY_S), "--metrics-port", str(night.port))
        variables = {name: value for name, value in os.environ.items() if name.startswith("RANKLAKE_")}
        night.up = Up.start(folder, *options, environment=variables)
        stack.callback(night.up.kill)
        night.up.ready()
        night.train()
        night.await_beats(2)
        night.expect_nothing("nothing is wrong")
        print(f"a clean stretch of {night.beats()} rounds, {len(site.complaints)} complaints", flush=True)
        entries = others() | {fault.name: partial(one_fault, fault=fault) for fault in FAULTS}
        for name, entry in entries.items():
            if not given.only or name in given.only:
                rows.append(entry(night))
                print(rows[-1], f"{len(site.complaints)} complaints so far", flush=True)
        night.round()
        night.expect_nothing("after all of it")
        if night.up.stop() or night.up.members():
            site.complain("ranklake up does not end as it should")
    print(f"\n{'fault':20} {'told to':10} {'s to tell':>9} {'s to its end':>12}   (the pipeline every {EVERY_S} s)")
    for name, receiver, *times in rows:
        told, over = ("-" if each is None else f"{each:.0f}" for each in times)
        print(f"{name:20} {receiver:10} {told:>9} {over:>12}")
    print(f"{len(site.complaints)} complaints, in {folder}")
    sys.exit(bool(site.complaints))


if __name__ == "__main__":
    main()
