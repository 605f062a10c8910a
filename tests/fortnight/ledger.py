"""The ledger of what was done, which knows nothing of the lake, and `CHECKS`, which hold the lake against it each day.

A check yields what does not hold, in words.
"""

import json
import math
import re
from dataclasses import dataclass

TOKENS = 100
CREEP, SETTLED = 2.0, 2
"""How many times as much as a week before a round with nothing to do may read, from which day on. Before, logs have no
checkpoints yet; afterwards what is read of them goes up and down by half, as checkpoints come."""


@dataclass
class Entry:
    """What the ledger knows of a run.

    Attributes
    ----------
    node
        Where it was trained.
    status, attempts, steps
        How its last attempt ended, how many there were, and the steps that all ranks of all of them acknowledged.
    loss
        The last one; NaN of a run that diverged.
    wall_s
        From the first step to the last by the monotonic clock, where the wall clock was set meanwhile.
    """

    node: str
    status: str = ""
    attempts: int = 0
    steps: int = 0
    loss: float = 0.0
    wall_s: float | None = None


def runs_are_those_that_were_trained(site):
    known = {row["run"]: row for row in site.facts("runs", "--limit", "10000")["runs"]}
    for name, entry in site.arrived().items():
        row = known.pop(name, {"last_loss": None})
        same = (row.get("status"), row.get("attempts")) == (entry.status, entry.attempts)
        if not same or not _is_loss(row["last_loss"], entry.loss):
            yield f"{name} is {row.get('status')} after {row.get('attempts')} attempts at {row['last_loss']}: {entry}"
    yield from (f"nobody trained {name}" for name in known if name not in site.runs and name not in site.imports)


def _is_loss(loss, expected):
    if math.isnan(expected):
        return loss is None or math.isnan(loss)
    return loss is not None and abs(loss - expected) < 1e-5


def each_step_is_there_once(site):
    rows = site.sql("SELECT run, count(*) AS steps, sum(tokens) AS tokens FROM steps GROUP BY run")
    known = {row["run"]: (row["steps"], row["tokens"]) for row in rows}
    for name, entry in site.arrived().items():
        if (found := known.pop(name, None)) != (entry.steps, entry.steps * TOKENS):
            yield f"{name} has {found} for {entry}"
    yield from (f"steps of {name}, which nobody trained" for name in known if name not in site.runs)


def diverged_runs_sort_last(site):
    order = [row["run"] for row in site.facts("runs", "--sort", "loss", "--limit", "10000")["runs"]]
    sound = [not math.isnan(site.runs[name].loss) for name in order if name in site.runs]
    if sound != sorted(sound, reverse=True):
        yield f"a run that diverged is number {sound.index(False) + 1} of {len(sound)} by loss"


def wall_times_do_not_jump(site):
    rows = site.sql("SELECT run, sum(wall_ns) / 1e9 AS wall_s FROM run_summary GROUP BY run")
    for name, wall_s, entry in ((row["run"], row["wall_s"], site.runs.get(row["run"])) for row in rows):
        if entry and entry.wall_s is not None and not entry.wall_s <= wall_s <= entry.wall_s + 60:
            yield f"{name} took {wall_s:.1f} s for {entry.wall_s:.1f}: its clock was set meanwhile"


def gpu_hours_are_those_of_the_scheduler(site):
    (row,) = site.sql("SELECT sum(gpu_delivered_s) / 3600 AS hours FROM cluster_hourly WHERE scope = 'cluster'")
    if abs((row["hours"] or 0) - site.gpu_hours) > 1e-6:
        yield f"{row['hours']} for {site.gpu_hours}"


def training_alone_is_billed(site):
    for row in site.sql("SELECT run, sum(cost_total) AS cost FROM cost WHERE run IS NOT NULL GROUP BY run"):
        if row["run"] not in site.runs and row["cost"]:
            yield f"{row['run']} costs {row['cost']}"


def status_adds_up(site):
    if not site.facts("status").get("adds_up"):
        yield "it does not"


def doctor_is_content(site):
    yield from sorted(site.alarms())


def pages_tell_the_same(site):
    told = site.facts("report", "--out", str(site.folder / "report"))
    headline = told["runs"]["headline"]
    failed = sum(entry.status == "failed" for entry in site.arrived().values())
    found = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:runs|failed)", headline)]
    if found != [len(site.arrived()), failed]:  # imports of jobs alone are no runs
        yield f"{headline!r} for {len(site.arrived())}, {failed} failed"
    text = (site.folder / "report" / "runs" / "index.html").read_text()
    yield from (f"no {name} on the page of runs" for name in site.arrived() if name not in text)
    yield from (f"{name}: {one['headline']}" for name, one in told.items() if one.get("state") == "failed")


def rows_go_when_due_unless_held(site):
    spans = {
        row["run"]: row for row in site.sql("SELECT run, count(*) AS spans, min(date) AS first FROM spans GROUP BY run")
    }
    for name in site.held:
        if spans.get(name, {"spans": 0})["spans"] < site.runs[name].steps:
            yield f"{name} is held: {spans.get(name)} for {site.runs[name]}"
    for name, row in spans.items():
        if site.kept_from and name not in site.held and row["first"] < f"{site.kept_from:%Y-%m-%d}":
            yield f"{row['spans']} spans of {name}, which were due, are still there"


def roles_see_no_people(site):
    rows = json.loads(
        site.run("sql", "SELECT * FROM runs", "--role", "data-scientist", "--json", "--limit", "9") or "[]"
    )
    people = {row["user"] for row in site.sql("SELECT DISTINCT user FROM runs") if row["user"]}
    yield from (f"{value} is seen in {name}" for row in rows for name, value in row.items() if value in people)


def rounds_do_not_creep(site):
    last, before = site.costs[-1], site.costs[-8:-7]
    for name, count in before[0].items() if len(site.costs) > SETTLED + 7 else ():
        if last[name] > CREEP * count:
            yield f"{name} of a round with nothing to do is {last[name] / count:.2f} times that of a week before"


CHECKS = (
    runs_are_those_that_were_trained, each_step_is_there_once, diverged_runs_sort_last, wall_times_do_not_jump,
    gpu_hours_are_those_of_the_scheduler, training_alone_is_billed, status_adds_up, doctor_is_content,
    pages_tell_the_same, rows_go_when_due_unless_held, roles_see_no_people, rounds_do_not_creep,
)  # fmt: skip
