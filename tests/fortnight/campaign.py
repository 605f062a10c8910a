"""A fortnight of plain use by a moved clock: jobs on three nodes, rounds every hour, and each day what has to hold.

    python tests/fortnight/campaign.py FOLDER --seed 1

The clock is libfaketime's; monotonic time is real, so that a job of milliseconds takes milliseconds. Commands run in
this process, jobs and agents in processes of their own (`node.py`); `ledger.py` says what has to hold.
"""

import argparse
import base64
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import libfaketime
from ledger import CHECKS, Entry, rows_go_when_due_unless_held

NODES = ("node1", "node2", "node3")
LOOK_H, OUTAGE_HOURS = 22, range(12, 15)
GPUS, GPU_JOB_H = 2, 30
MOST = 4
"""Complaints of one check that are shown."""
FAKED = {
    "LD_PRELOAD": str(next(Path(libfaketime.__file__).parent.rglob("libfaketime.so.1"))), "FAKETIME": "+0",
    "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    "NO_FAKE_STAT": "1",
}  # fmt: skip
FILES = {
    "ranklake.toml": """
lake.uri = "{0}/lake"
spool = {{uri = "{0}/spool", local = "{0}/nothing"}}
sql.roles = "{0}/roles.yaml"
cost.prices = "{0}/prices.csv"
masking.key = "file:{0}/pseudonyms"
retention.policies = "{0}/policies"
audit.witness = "file:{0}/witness"
""",
    "prices.csv": "device_name,pool,price_per_device_hour,currency,valid_from,valid_to\n,,2.50,EUR,2020-01-01,\n",
    "policies/ours.yaml": """version: 1
owner: platform
basis: data minimisation
review: 2030-01-31
rules:
  spans: {{where: {{table: spans}}, delete_after_days: {1}, reason: nobody looks at those of last week}}
""",
}
KINDS = {  # how a job ends: its status in the lake, and the exit code of its processes
    "fine": ("finished", 0),
    "nan": ("finished", 0),
    "hung": ("finished", 0),
    "negative": ("finished", 0),
    "failed": ("failed", 1),
    "killed": ("abandoned", -9),
    "preempted": ("preempted", -15),
    "clock ahead": ("finished", 0),
    "clock back": ("finished", 0),
}


@dataclass(frozen=True)
class Calendar:
    """What happens when.

    Attributes
    ----------
    days, every_h, sweep, spans_days
        How many there are, the hours between rounds of the pipeline, the runs of a sweep, and how long spans are kept.
    late, outage, restarts, retention
        Days on which the third node reaches no spool, nobody reaches the store, all restarts, and retention is due.
    idle
        Days and hours at which nothing is done that is done at that hour on other days.
    """

    days: int
    every_h: int
    sweep: int
    spans_days: int
    late: range
    outage: int
    restarts: tuple
    retention: tuple
    idle: tuple = ()


FORTNIGHT = Calendar(14, 1, 12, 3, late=range(3, 6), outage=6, restarts=(4, 9), retention=(5, 12, 14))
SHORT = Calendar(
    2, 12, 3, 1, late=range(1), outage=1, restarts=(1,), retention=(1, 2), idle=((0, 13), (0, 16), (0, LOOK_H), (1, 23))
)


class Clock:
    """The clock of this process. It is set back, so that what the disk says of files written just now is not past."""

    def __init__(self):
        self._real, self._began = time.time(), time.monotonic()
        today = datetime.fromtimestamp(self._real, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        self.day0 = self.now = today - timedelta(days=17)

    @property
    def offset_s(self):
        """How far it is from the machine's."""
        return self.now.timestamp() - self._real - (time.monotonic() - self._began)

    def set(self, day, hour, second=0):
        """Set it to a moment of a day."""
        self.now = self.day0 + timedelta(days=day, hours=hour, seconds=second)
        os.environ["FAKETIME"] = f"{self.offset_s:+.6f}"

    def date_files(self, *folders):
        """Date files that were written since as if the disk had this clock, too."""
        for path in (Path(place, name) for folder in folders for place, _, names in os.walk(folder) for name in names):
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_mtime >= self._real - 1:
                    os.utime(path, (self.now.timestamp(),) * 2, follow_symlinks=False)


@dataclass
class Site:
    """All that there is: folders, nodes, the clock, the ledger, and what did not hold."""

    folder: Path
    random: random.Random
    calendar: Calendar
    clock: Clock = field(default_factory=Clock)
    runs: dict = field(default_factory=dict)
    unsent: dict = field(default_factory=dict)
    imports: list = field(default_factory=list)
    gpu_hours: int = 0
    held: list = field(default_factory=list)
    kept_from: datetime | None = None
    costs: list = field(default_factory=list)
    complaints: list = field(default_factory=list)
    nodes: dict = field(default_factory=dict)

    def complain(self, what):
        """Note what does not hold."""
        self.complaints.append(f"day {(self.clock.now - self.clock.day0).days} {self.clock.now:%H:%M}: {what}")
        print(self.complaints[-1], flush=True)

    def run(self, *words, code=0, saying=""):
        """Run a command of ranklake's; return what it printed. Its exit code, and a word of it, are expected."""
        from ranklake import cli

        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main([*words])
                ended = 0
            except SystemExit as end:
                ended = end.code
        said = out.getvalue() + err.getvalue()
        if ended != code or saying not in said:
            self.complain(f"ranklake {' '.join(words)}: exit code {ended} for {code} {saying!r}:\n{said[-800:]}")
        return out.getvalue()

    def facts(self, *words, code=0):
        """Run a command; return its JSON."""
        return json.loads(self.run(*words, "--json", code=code) or "{}")

    def sql(self, query):
        """Return the rows of a query."""
        return self.facts("sql", query, "--limit", "100000")

    def alarms(self):
        """Return what doctor finds wrong, but for the disk's clock, which is not moved."""
        findings = self.facts("doctor", code=1)["findings"]
        wrong = [one for one in findings if one["state"] not in ("ok", "skipped", "unknown")]
        return {f"{one['check']}: {one['what']}" for one in wrong if one["check"] != "clock"}

    def start_nodes(self):
        """Start the nodes' processes, or start them again."""
        self.stop_nodes()
        for name in NODES:
            (self.folder / name).mkdir(exist_ok=True)
            command = [
                sys.executable,
                str(Path(__file__).with_name("node.py").resolve()),
                name,
                str(self.folder / name),
            ]
            plain = {key: value for key, value in os.environ.items() if key != "RANKLAKE_CONFIG"}  # the agent sends
            self.nodes[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=plain, cwd=self.folder / name
            )

    def stop_nodes(self):
        """End the nodes' processes."""
        for process in self.nodes.values():
            process.stdin.close()
            process.wait(60)

    def is_away(self, day, hour):
        """Say whether the store cannot be reached."""
        return day == self.calendar.outage and hour in OUTAGE_HOURS

    def work(self, day, hour, jobs, *, beside=False, second=0):
        """Have the nodes do jobs, each in turn, with an agent on every node; enter them into the ledger."""
        self.clock.set(day, hour, second)
        late = {NODES[2]} if day in self.calendar.late else set()
        for name, process in self.nodes.items():
            spool = str(self.folder / ("prices.csv/nowhere" if name in late else "spool"))
            mine = [job for job in jobs if job["node"] == name]
            message = {"offset_s": self.clock.offset_s, "agent": spool, "jobs": mine, "beside": beside}
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
        for name, process in self.nodes.items():
            done = json.loads(process.stdout.readline())
            mine = [job for job in jobs if job["node"] == name]
            expected = {"jobs": [KINDS[job["kind"]][1] for job in mine for _ in range(job["ranks"])], "agent": [0, 0]}
            if done != expected:
                self.complain(f"{name} ended with {done} for {expected}")
            for job in mine:
                self.enter(job)
                self.unsent.setdefault(name, set()).add(job["run"])
            if name not in late and not self.is_away(day, hour):
                self.unsent[name] = set()
        self.clock.date_files(*(self.folder / name for name in (*NODES, "spool")))

    def enter(self, job):
        """Enter an attempt into the ledger."""
        entry = self.runs.setdefault(job["run"], Entry(job["node"]))
        entry.status = KINDS[job["kind"]][0]
        entry.attempts += 1
        entry.steps += job["steps"] * job["ranks"]
        entry.loss = float("nan") if job["kind"] == "nan" else job["loss"] + 1 / (job["first"] + job["steps"])
        if job["kind"].startswith("clock"):
            entry.wall_s = float((self.folder / job["node"] / "spent" / f"{job['run']}.0").read_text())

    def arrived(self):
        """Return the runs that the lake can know of."""
        unsent = set().union(*self.unsent.values())
        return {name: entry for name, entry in self.runs.items() if name not in unsent}

    def job(self, run, kind="fine", *, node=None, steps=None, first=0, ranks=1, step_s=0.002, **config):
        """Return a job for a node."""
        return {
            "run": run, "kind": kind, "job": run.split("-")[0], "node": node or self.random.choice(NODES),
            "steps": steps or self.random.randrange(9, 30), "first": first, "ranks": ranks, "step_s": step_s,
            "team": self.random.choice(("vision", "speech")), "loss": self.random.uniform(1, 3), "config": config,
        }  # fmt: skip


def morning(site, day):
    """Do a job of two ranks, one that fails, and a sweep."""
    count = site.calendar.sweep
    sweep = [site.job(f"resnet50_b1024_lr0p4_wd{n}e5-{day}", steps=6, weight_decay=n * 1e-5) for n in range(count)]
    site.work(day, 9, [site.job(f"gpt-{day}", ranks=2), site.job(f"bert-{day}", "failed"), *sweep])


def noon(site, day):
    """Do jobs that are killed, preempted and diverge, and two whose clock is set meanwhile."""
    kinds = {"vit": "killed", "moe": "preempted", "nan": "nan", "ahead": "clock ahead", "back": "clock back"}
    site.work(day, 13, [site.job(f"{name}-{day}", kind) for name, kind in kinds.items()])


def afternoon(site, day):
    """Go on with what was killed and preempted, on its node."""
    names = (f"vit-{day}", f"moe-{day}")
    site.work(day, 16, [site.job(name, node=site.runs[name].node, first=30, steps=9) for name in names])


def scheduler(site, day):
    """Import what Slurm tells of jobs that ended; on each other day none of those that were submitted had a GPU."""

    def line(number, begin_h, end_h, rest):
        begin, end = (
            f"{site.clock.day0 + timedelta(days=day, hours=hour):%Y-%m-%dT%H:%M:%S}" for hour in (begin_h, end_h)
        )
        return f"{day}{number}|c|p|vision|ada|{begin}|{begin}|{end}|COMPLETED|1|{rest}"

    lines = ["JobID|Cluster|Partition|Account|User|Submit|Start|End|State|NNodes|NCPUS|AllocTRES"]
    lines += [line(number, 2 + number, 9 + number, "8|billing=8,cpu=8,mem=24G,node=1") for number in range(3)]
    if day % 2:
        lines.append(line(9, -16, GPU_JOB_H - 16, f"12|billing=12,cpu=12,gres/gpu={GPUS},mem=31G,node=1"))
        site.gpu_hours += GPUS * GPU_JOB_H
    file = site.folder / f"sacct-{day}.txt"
    file.write_text("\n".join(lines) + "\n")
    site.imports.append(f"slurm-{day}")
    site.run("import", "sacct", str(file), "--run", site.imports[-1])


def night(site, day):
    """Do two jobs that overlap at midnight."""
    jobs = [site.job(f"night{n}-{day}", node=NODES[n], steps=20, step_s=0.1) for n in range(2)]
    site.work(day, 23, jobs, beside=True, second=3599)


def upkeep(site, day):
    """Keep the lake in shape."""
    del day
    site.run("upkeep")


def retention(site, day):
    """Once a week hold a run's rows; plan, approve and apply what is due; look back at what checks found."""
    if day not in site.calendar.retention:
        return
    if not site.held:
        hold = ("retain", "hold", "--until", "2099-01-01", "--reason", "a claim", "--where")
        site.run(*hold, "team=vison", code=2)
        site.held.append(next(iter(site.arrived())))
        site.run(*hold, f"run={site.held[0]}")
    site.run("retain", "plan", "--by", "Petra")
    for plan in site.facts("retain", "list"):
        if plan["state"] == "planned":
            site.run("retain", "approve", plan["retention_plan"], "--by", "Anna", "--reason", "due")
            site.run("retain", "apply", plan["retention_plan"], "--by", "Otto")
            site.kept_from = site.clock.day0 + timedelta(days=day - site.calendar.spans_days)
    for words in (("check", "--incidents"), ("check", "--backtest", "7d"), ("retain", "holds"), ("audit", "verify")):
        site.run(*words)


def restart(site):
    """End all processes and start the same version: there is nothing to migrate, and a new process goes on."""
    site.start_nodes()
    site.run("migrate", "plan")
    site.run("config", "check")
    command = [sys.executable, "-m", "ranklake", "pipeline"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        site.complain(f"a new process: {done.returncode} {done.stdout}{done.stderr}")


def go_away(site, *, back):
    """Take the store away, or give it back: where it was there is nothing that could be a folder."""
    for place, away in ((site.folder / name, site.folder / f"{name}.away") for name in ("lake", "spool")):
        if back:
            place.unlink()
            away.rename(place)
        else:
            place.rename(away)
            place.touch()


def pipeline(site, *, code=0):
    """Run the pipeline once; return how often it read, and how many bytes, which depends on no machine."""

    def reads():
        lines = (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return {name: int(count) for name, count in lines if name in ("syscr", "rchar")}

    before = reads()
    checks = site.facts("pipeline", code=code).get("check", {}).get("checks", {})
    after = reads()
    if checks.get("errored"):
        site.complain(f"{checks['errored']} checks errored")
    site.clock.date_files(site.folder / "lake", site.folder / "spool")
    return {name: after[name] - before[name] for name in after}


def look(site, day):
    """Hold the lake against the ledger, and measure a round that has nothing to do."""
    del day
    pipeline(site)
    site.costs.append(pipeline(site))
    hold_against(site, CHECKS)


def hold_against(site, checks):
    """Note what does not hold of some checks, the first few of each."""
    for check in checks:
        complaints = list(check(site))
        more = [f"and {len(complaints) - MOST} more"] if len(complaints) > MOST else []
        for complaint in complaints[:MOST] + more:
            site.complain(f"{check.__name__}: {complaint}")


HOURS = {3: upkeep, 4: retention, 9: morning, 13: noon, 16: afternoon, 20: scheduler, LOOK_H: look, 23: night}


def one_day(site, day):
    """Live through a day."""
    site.clock.set(day, 0)
    if day in site.calendar.restarts:
        restart(site)
    for hour in range(24):
        site.clock.set(day, hour, 60)
        is_away = site.is_away(day, hour)
        if is_away != site.is_away(day, hour - 1):
            go_away(site, back=not is_away)
        if is_away:
            site.run("pipeline", code=2, saying=str(site.folder))
        elif hour % site.calendar.every_h == 0:
            pipeline(site)
        if hour in HOURS and (day, hour) not in site.calendar.idle:
            HOURS[hour](site, day)


def finale(site):
    """Remove what is due, then break things in turn: a lake that is gone, bytes of no table, negative numbers.

    Each is reported by an exit code and by a finding of doctor that names it; nothing else fails meanwhile.
    """
    site.clock.set(site.calendar.days, 0, 1200)
    retention(site, site.calendar.days)
    if site.kept_from is None:
        site.complain("nothing was ever due")
    hold_against(site, [rows_go_when_due_unless_held])
    lake, gone = site.folder / "lake", site.folder / "lake.gone"
    lake.rename(gone)
    site.run("pipeline", code=2)
    if lake.exists():
        site.complain("a lake that is gone was made anew")
        shutil.rmtree(lake)
    gone.rename(lake)
    pipeline(site)
    known = site.alarms()
    raw = b"PAR1 no Parquet"
    file = f"torn~a0~r00000~0123456789abcdef~000002~5~{hashlib.sha256(raw).hexdigest()}.parquet"
    folder = site.folder / "spool" / "segments" / f"{site.clock.now:%Y-%m-%d}" / "steps"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(raw)
    pipeline(site, code=1)
    site.facts("status", code=1)
    doctor_reports(site, "could not be read", known)
    known = site.alarms()
    site.work(site.calendar.days, 0, [site.job("negative", "negative")], second=1800)
    pipeline(site, code=1)
    doctor_reports(site, "checks fail", known)


def doctor_reports(site, words, known):
    """Complain if no finding of doctor has these words, beside those known before."""
    findings = site.alarms() - known
    if not any(words in finding for finding in findings):
        site.complain(f"doctor does not say that {words}: {findings}")


def prepare(site):
    """Write what an operator configures, and start the nodes."""
    os.environ["RANKLAKE_CONFIG"] = str(site.folder / "ranklake.toml")
    site.folder.mkdir(parents=True, exist_ok=True)
    (site.folder / "ranklake.toml").touch()
    site.run("roles", "new", str(site.folder / "roles.yaml"))
    site.run("retain", "new", str(site.folder / "policies"))
    for name, text in FILES.items():
        (site.folder / name).write_text(text.format(site.folder, site.calendar.spans_days))
    key = site.folder / "pseudonyms"
    key.write_text(base64.b64encode(site.random.randbytes(32)).decode() + "\n")
    key.chmod(0o600)
    site.start_nodes()


def main():
    """Live through so many days; exit 1 if anything did not hold."""
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--short", action="store_true", help="two days, and a tenth of the work")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    if "FAKETIME" not in os.environ:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("RANKLAKE_")}
        os.execve(sys.executable, [sys.executable, *sys.argv], plain | FAKED)
    site = Site(given.folder.resolve(), random.Random(given.seed), SHORT if given.short else FORTNIGHT)
    site.clock.set(0, 0)
    try:
        prepare(site)
        for day in range(site.calendar.days):
            one_day(site, day)
            spent_s, cost = time.process_time(), site.costs[-1:]
            print(f"day {day}: {len(site.runs)} runs so far, {spent_s:.0f} s of CPU time, {cost}", flush=True)
        finale(site)
    finally:
        site.stop_nodes()
    print(f"{len(site.complaints)} complaints, seed {given.seed}, in {site.folder}")
    sys.exit(bool(site.complaints))


if __name__ == "__main__":
    main()
