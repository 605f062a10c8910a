"""Facts of a run on a terminal, for ``ranklake show`` and the demo."""

import itertools
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ranklake.insight.ended_metrics import EndedMetric
from ranklake.insight.runs.annotations import annotations_of
from ranklake.insight.runs.asking import QueriedFacts, Row
from ranklake.insight.runs.facts import PHASES, RunFacts, cause_text, place_text, slowdowns, steps_done
from ranklake.insight.runs.find import flat
from ranklake.lake.contracts.json_text import facts_in
from ranklake.printable import counted, printable, shorten
from ranklake.views.incidents import checkpoint_text
from ranklake.views.run_causes import NOTHING_SAVED, failure_cause, part_text, saved_nothing, starts
from ranklake.views.run_plot import curve_lines
from ranklake.views.runs import MOST_TAGS, tag_text
from ranklake.views.table import TextColumn, fitting, numbers
from ranklake.views.words import length_text, loss_text, moment_text, number_text, percent_text, size_text

_MOST_RANKS: Final = 16
_MOST_MADE: Final = 8
_MOST_LETTERS: Final = 200
"""Most characters of a free text; `--json` has all."""
_AXIS_COLUMNS: Final = 10
_PLOT_COLUMNS: Final = 64
_KINDS: Final = ("productive", "init", "checkpoint", "evaluation", "restart", "lost_work", "stall", "unattributed")
_TROUBLE: Final = frozenset({"warning", "error", "critical", "fatal"})


def run_lines(
    facts: RunFacts,
    width: int | None,
    beside: Mapping[int, str] | None = None,
    verdicts: Mapping[str, str] | None = None,
    path: str = "",
    ended: Sequence[EndedMetric] = (),
) -> list[str]:
    """Return the facts of a run as lines.

    Parameters
    ----------
    width
        Columns of the terminal; None for no terminal.
    beside
        The trainer's own counts, by rank, for a column.
    verdicts
        Results of verifying its artifacts, by name; by default artifacts are listed as recorded.
    path
        Rank on its critical path, as text; empty to omit it.
    ended
        Ended metrics that it recorded.
    """
    result = (
        [f"artifact    {name}: {told}" for name, told in verdicts.items()] if verdicts is not None else _made(facts)
    )
    lines = [
        _head(facts),
        *_description_lines(facts),
        *_annotations(facts),
        "",
        *_ranks(facts, width, beside or {}),
        "",
    ]
    lines += [
        *_loss(facts, width),
        _mfu(facts),
        *_goodput(facts),
        *_incidents(facts),
        *_failed_checks(facts),
        *(f"metric      {printable(metric.note)}" for metric in ended),
        *_stragglers(facts),
        *_place_lines(facts),
        *([path] if path else []),
        *_attempts(facts, width),
    ]
    lines += [*_trouble(facts), _host(facts), _gpus(facts), *_code(facts), *_data(facts), *result]
    lines += [*_media(facts), *_logs(facts)]
    return [*lines, _gaps(facts)]


def _head(facts: RunFacts) -> str:
    summary = facts.summary.first_row
    name = printable(annotations_of(facts.run, facts.annotations.rows).name)
    head = f"run {facts.run}  {name}  {summary.get('status', 'unknown')}"
    return f"{head}  [injected on purpose: {summary['injected']}]" if summary.get("injected") else head


def _description_lines(facts: RunFacts) -> Iterator[str]:
    summary = facts.summary.first_row
    if not summary:
        yield facts.summary.reason
        return
    who = [f"job {summary['job']}"] if summary["job"] else []
    who += [f"{name} {row[name]}" for row in facts.code.rows[-1:] for name in ("team", "cluster", "pool") if row[name]]
    where = "ranks unknown" if summary["world_size"] is None else counted(summary["world_size"], "rank")
    yield ", ".join([*who, f"{where} on {summary['device_name'] or 'an unknown device'}"])
    took = length_text(summary["wall_ns"] / 1e9)
    yield f"began {moment_text(summary['ts'])}, last seen {moment_text(summary['end_ts'])}, {took}"
    yield f"steps       {steps_done(summary)}"
    end = failure_cause(facts)
    if end.summary:
        yield f"ended       {end.summary}"
        yield f"            {end.next_step}"


def _annotations(facts: RunFacts) -> Iterator[str]:
    """Yield its tags, summary values and notes."""
    annotations = annotations_of(facts.run, facts.annotations.rows)
    if annotations.tags:
        yield f"tags        {tag_text(annotations.tags)}"
    for key, value in itertools.islice(annotations.summary.items(), MOST_TAGS):
        shown = number_text(value) if isinstance(value, float) else str(value)
        yield f"summary     {printable(key)} {printable(_clip(shown))}"
    if len(annotations.summary) > MOST_TAGS:
        yield f"            and {len(annotations.summary) - MOST_TAGS:,} more: ranklake show {facts.run} --json"
    for row in facts.notes.rows[:_MOST_MADE]:
        yield f"note        {moment_text(row['ts'])} {printable(_clip(row['text'] or 'masked'))}"
    if facts.annotations.reason:
        yield f"tags        unknown: {facts.annotations.reason}"


def _ranks(facts: RunFacts, width: int | None, beside: Mapping[int, str]) -> list[str]:
    rows = facts.ranks.rows
    if not rows:
        return [_by_phase(facts)]
    shown = sorted(sorted(rows, key=_self_time, reverse=True)[:_MOST_RANKS], key=lambda row: int(row["rank"]))
    shares = {row["rank"]: row["phases_ratio"] for row in facts.shares.rows}
    phases = [phase for phase in PHASES if any(row[phase] is not None for row in rows)]
    counts = ["rank", *(["trainer counted"] if beside else []), "rows in steps", "mean ms a step"]
    cells = [
        (
            str(row["rank"]),
            *([beside.get(row["rank"], "0")] if beside else []),
            f"{row['n']:,}",
            _ms(row["step"]),
            *(_ms(row[phase]) for phase in phases),
            "-" if shares.get(row["rank"]) is None else percent_text(shares[row["rank"]]),
        )
        for row in shown
    ]
    lines = fitting([*numbers(counts), *numbers([*phases, "in phases"])], cells, width)
    if len(rows) > len(shown):
        lines.append(f"the {len(shown)} ranks with the longest self time, of {len(rows):,}")
    world = facts.summary.first_row.get("world_size")
    covered = sum(row["speaks_for"] for row in rows)
    if covered > len(rows):
        lines.append(f"these rows speak for {counted(covered, 'rank')}")
    if world is not None and world > covered:
        lines.append(f"{counted(world - covered, 'rank')} of {world:,} recorded no step here")
    return lines


def _by_phase(facts: RunFacts) -> str:
    """Return the means over all ranks, for a run whose ranks were not read one by one."""
    row = facts.phases.first_row
    if not row.get("steps"):
        return f"steps       none: {facts.ranks.reason or facts.phases.reason or 'the run has no rows in steps'}"
    if row["step"] is None:
        return "a step      unknown: the run timed none; run.step() around each does"
    phases = ", ".join(f"{phase} {length_text(row[phase])}" for phase in PHASES if row[phase] is not None)
    reason = f" (by rank: {facts.ranks.reason})" if facts.ranks.reason else ""
    return (
        f"a step      {length_text(row['step'])}, of the slowest rank {length_text(row['slowest'])}; {phases}{reason}"
    )


def _self_time(row: Row) -> float:
    return float((row["step"] or 0.0) - (row["collective"] or 0.0))


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.2f}"


def _loss(facts: RunFacts, width: int | None) -> list[str]:
    summary = facts.summary.first_row
    steps, since = summary.get("non_finite_steps") or 0, summary.get("non_finite_loss_step")
    diverged = (
        [f"loss, or another value, NaN or infinite in {counted(steps, 'step')}: see non_finite of steps"]
        if steps
        else []
    )
    if since is not None:
        now = f"; the last is {loss_text(summary)}" if summary["last_loss_flag"] else ", and finite at the end"
        diverged.insert(0, f"loss        not finite first in step {since:,}{now}")
    if not facts.loss.rows:
        reason = "no rank logged a finite one" if steps else "no rank logged one"
        return [f"loss        unknown: {facts.loss.reason or reason}", *diverged, ""]
    columns = _PLOT_COLUMNS if width is None else max(min(_PLOT_COLUMNS, width - _AXIS_COLUMNS), 1)
    losses = [row["loss"] for row in facts.loss.rows]
    plot = curve_lines([loss for loss in losses if math.isfinite(loss)], width=columns)
    first, last = facts.loss.rows[0]["step"], facts.loss.rows[-1]["step"]
    odd = sum(not math.isfinite(loss) for loss in losses)
    notes = [f"NaN or infinite in {odd:,} of {len(losses):,} parts of the steps"] if odd else []
    return [f"loss by step {first:,} to {last:,} (mean of the ranks)", *plot, *notes, *diverged, ""]


def _mfu(facts: RunFacts) -> str:
    summary = facts.summary.first_row
    if summary.get("mfu_ratio") is None:
        reason = summary.get("mfu_reason") or facts.summary.reason or "no summary of the run"
        fix = "" if "FLOPs are not recorded" not in reason else "; run.count_flops counts them, once in a run"
        return f"MFU         unknown: {reason}{fix}"
    return (
        f"MFU         {percent_text(summary['mfu_ratio'])} of a {summary['peak_dtype']} peak "
        f"({summary['peak_source']}); FLOPs {summary['flops_convention']}"
    )


def _goodput(facts: RunFacts) -> Iterator[str]:
    goodput = facts.goodput.first_row
    if goodput.get("goodput_ratio") is None:
        reason = facts_in(goodput.get("unavailable")).get("goodput_ratio")
        yield f"goodput     unknown: {facts.goodput.reason or reason or 'no productive step'}"
        return
    wall = goodput["wall_ns"]
    unsaved = f"; {NOTHING_SAVED}" if saved_nothing(facts.summary.first_row) else ""
    yield f"goodput     {percent_text(goodput['goodput_ratio'])} of {length_text(wall / 1e9)} wall time{unsaved}"
    parts = {kind: goodput[f"{kind}_ns"] for kind in _KINDS[1:]}
    kinds = [f"{kind.replace('_', ' ')} {percent_text(part / wall)}" for kind, part in parts.items() if part and wall]
    if kinds:
        yield f"            the rest: {', '.join(kinds)}"
    yield from _starts(facts)


def _starts(facts: RunFacts) -> Iterator[str]:
    """Yield the parts of init and restarts, if known."""
    for start in starts(facts.starts):
        parts = ", ".join(printable(part_text(row)) for row in start.parts)
        yield f"{start.kind:<12}{length_text(start.whole_ns / 1e9)}: {parts}"


def _incidents(facts: RunFacts) -> Iterator[str]:
    """Yield its incidents, except resolved and false ones."""
    waiting = [incident for incident in facts.incidents.listed if incident.needs_a_look]
    for incident in waiting[:_MOST_MADE]:
        text = printable(_clip(incident.facts["title"]))
        yield f"incident    {incident.facts['severity']}: {text}; ranklake incidents show {printable(incident.id)}"
    if len(waiting) > _MOST_MADE:
        yield f"            and {len(waiting) - _MOST_MADE:,} more: ranklake incidents --run {facts.run}"
    if facts.checkpoint.name or (waiting and facts.artifacts.rows):
        yield f"checkpoint  last good: {checkpoint_text(facts.checkpoint)}"


def _failed_checks(facts: RunFacts) -> Iterator[str]:
    for check in facts.caveats.failed.get(facts.run, ()):
        doubts = f"; in doubt: {', '.join(name.replace('_', ' ') for name in check.numbers)}" if check.numbers else ""
        rows = counted(check.rows, "row")
        failed = f"{check.severity}: {check.about} failed for {rows}{doubts}"
        yield f"check       {failed}; ranklake quality why {check.table}"


def _stragglers(facts: RunFacts) -> list[str]:
    named = [(row["attempt"], row["rank"], row["reason"].removeprefix("straggler: "))
             for row in facts.health.rows if row["is_straggler"]]  # fmt: skip
    named += [(row["attempt"], row["rank"], row["message"].partition(" is ")[2].rpartition(" (")[0])
              for row in slowdowns(facts.incidents.listed)]  # fmt: skip
    if not named:
        nearest = "".join(f"nearest: rank {row['rank']}, {row['reason']}" for row in facts.health.rows[:1])
        return [f"stragglers  none ({nearest or facts.health.reason or 'no steps'})"]
    lines = []
    for attempt, rank, reason in named[:_MOST_MADE]:
        lines.append(f"straggler   rank {rank}: {reason}")
        ails = [each for each in facts.beneath.rows if (each["attempt"], each["rank"]) == (attempt, rank)]
        lines += [f"            {cause_text(ails)}"] if ails else []
    return lines


def _place_lines(facts: RunFacts) -> Iterator[str]:
    """Yield the nodes and hosts of failed and slow ranks."""
    for row in facts.nodes.rows[:_MOST_MADE]:
        host = f", host {printable(row['host'])}" if row["host"] else ""
        pid = "" if row["pid"] is None else f", process {row['pid']}"
        attempt = f" of attempt {row['attempt']}" if row["attempt"] else ""
        yield f"where       rank {row['rank']}{attempt}: {place_text([row]) or 'host unknown'}{host}{pid}"
    if len(facts.nodes.rows) > _MOST_MADE:
        yield f"            and {counted(len(facts.nodes.rows) - _MOST_MADE, 'rank')} more: table ranks"


def _attempts(facts: RunFacts, width: int | None) -> list[str]:
    if len(facts.attempts.rows) < 2:  # noqa: PLR2004 - one needs no table
        return []
    heads = [*numbers(["attempt"]), TextColumn("status"), *numbers(["steps", "last step"]), TextColumn("began")]
    cells = [
        (str(row["attempt"]), row["status"], _count(row["steps"]), _count(row["last_step"]), moment_text(row["ts"]))
        for row in facts.attempts.rows
    ]
    return ["", *fitting(heads, cells, width), ""]


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _trouble(facts: RunFacts) -> list[str]:
    events = [row for row in facts.events.rows if row["severity"] in _TROUBLE]
    return [
        f"{row['severity']:<11} {counted(row['n'], row['event'].replace('_', ' '))}"
        + (f", last in step {row['last_step']:,}" if row["last_step"] is not None else "")
        for row in events[:_MOST_MADE]
    ]


def _host(facts: RunFacts) -> str:
    host = facts.host.first_row
    if not host.get("n"):
        return f"host        no samples{_reason_clause(facts.host.reason)}"
    memory = "unknown" if host["memory_bytes"] is None else size_text(host["memory_bytes"])
    cpu = "CPU unknown" if host["cpu_ratio"] is None else f"CPU {100 * host['cpu_ratio']:.0f} % busy"
    return f"host        {counted(host['n'], 'sample')}: {cpu}, memory at most {memory}"


def _gpus(facts: RunFacts) -> str:
    gpu = facts.gpu.first_row
    if gpu.get("n"):
        busy = percent_text(gpu["utilization_ratio"])
        return f"GPU         {gpu['n']:,} samples of {counted(gpu['devices'], 'device')}: {busy} busy"
    sources = [str(facts_in(row["attributes"]).get("source", "a sampler")) for row in facts.no_gpu.rows]
    lacking = f"{', '.join(sources)} could not be sampled there" if sources else facts.gpu.reason
    return f"GPU         no samples: {lacking or 'nothing recorded GPU telemetry in this run'}"


def _reason_clause(reason: str) -> str:
    return f": {reason}" if reason else ""


def _code(facts: RunFacts) -> Iterator[str]:
    if not facts.code.rows:
        yield f"code        unknown: {facts.code.reason or 'the run recorded nothing of it'}"
        return
    code = facts.code.rows[-1]
    commit = code["git_commit"]
    where = (
        f"commit {commit[:12]}{' with changes' if code['git_dirty'] else ''}" if commit else "no git repository known"
    )
    framework = " ".join(str(code[name]) for name in ("framework", "framework_version") if code[name])
    yield "code        " + "; ".join(
        what for what in (where, framework, code["os_description"], code["cpu_model"]) if what
    )
    config = list(flat(facts_in(code["config"])))
    if config:
        shown = ", ".join(f"{name} {_clip(value)}" for name, value in config[:_MOST_MADE])
        yield f"config      {shown}{', …' if len(config) > _MOST_MADE else ''}"


def _clip(value: object) -> str:
    return shorten(str(value), _MOST_LETTERS)


def _data(facts: RunFacts) -> list[str]:
    return [
        f"data        {row['name']} {row['version'] or ''}, {_bytes(row['bytes'])}, "
        f"Merkle root {(row['merkle_root_sha256'] or 'unknown')[:12]}"
        for row in facts.datasets.rows[:_MOST_MADE]
    ]


def _bytes(size: int | None) -> str:
    return "size unknown" if size is None else size_text(size)


def _made(facts: RunFacts) -> list[str]:
    every: Sequence[Mapping[str, Any]] = [row for row in facts.artifacts.rows if row["action"] == "created"]
    lines = [
        f"artifact    {row['kind']} {row['name']}, {_bytes(row['bytes'])}"
        + ("" if row["step"] is None else f", step {row['step']:,}")
        for row in every[:_MOST_MADE]
    ]
    more = len(every) - len(lines)
    return [*lines, *([f"            and {more} before"] if more else [])]


def _media(facts: RunFacts) -> Iterator[str]:
    for row in facts.media.rows[:_MOST_MADE]:
        shown = f"{counted(row['n'], 'time')}{_steps(row)}, {_bytes(row['bytes'])}"
        yield f"media       {_kind(row)} {printable(row['name'])}, {shown}"
    if len(facts.media.rows) > _MOST_MADE:
        yield f"            and {len(facts.media.rows) - _MOST_MADE} more: ranklake media {facts.run}"


def media_lines(answer: QueriedFacts, width: int | None) -> list[str]:
    """Return a run's media as a table, one line per name and kind; empty without media."""
    heads = [TextColumn("name"), TextColumn("kind"), *numbers(["times", "first step", "last step", "bytes"])]
    cells = [
        (printable(row["name"]), _kind(row), f"{row['n']:,}", _count(row["first_step"]), _count(row["last_step"]),
         _bytes(row["bytes"]))
        for row in answer.rows
    ]  # fmt: skip
    return fitting(heads, cells, width) if cells else []


def _kind(row: Row) -> str:
    return printable(str(row["kind"]).replace("_", " "))


def _steps(row: Row) -> str:
    first, last = row["first_step"], row["last_step"]
    if last is None:
        return ""
    return f", step {last:,}" if first == last else f", steps {first:,} to {last:,}"


def _logs(facts: RunFacts) -> Iterator[str]:
    counts = ", ".join(f"{row['n']:,} {row['severity']}" for row in facts.logs.rows)
    yield f"log lines   {counts or 'none'}{_reason_clause(facts.logs.reason)}"
    if any(row["severity"] == "FATAL" for row in facts.logs.rows):
        tracebacks = "SELECT rank, exception_stacktrace FROM logs WHERE run = $run AND exception_stacktrace IS NOT NULL"
        run = shlex.quote(printable(facts.run))
        yield f"            tracebacks: ranklake sql '{tracebacks}' --param run={run} --format vertical"


def _gaps(facts: RunFacts) -> str:
    tables = [
        f"{row['table']}: {row['gap_rows'] or 0:,} not recorded, {row['rows_rejected'] or 0:,} in quarantine"
        for row in facts.gaps.rows
    ]
    return f"gaps        {'; '.join(tables) or facts.gaps.reason or 'none'}"
