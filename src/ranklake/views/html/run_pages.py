"""The pages of runs: a list, and one per run, from facts of `ranklake.insight.runs`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from ranklake.insight.ended_metrics import ended_of_runs
from ranklake.insight.runs.annotations import annotations_of
from ranklake.insight.runs.asking import Row
from ranklake.insight.runs.caveats import Caveats
from ranklake.insight.runs.compare import Changes
from ranklake.insight.runs.facts import RunFacts, RunHead, cause_text, gather_head, steps_done
from ranklake.insight.runs.find import flat
from ranklake.insight.runs.report import RunQuestions, RunsState, run_state
from ranklake.lake.contracts.json_text import facts_in
from ranklake.printable import counted
from ranklake.views.html.figures import Column, Figure, Measure, answer_table, figures, source_of, time_text
from ranklake.views.html.run_curves import charts, metrics, not_drawn, rank_heat
from ranklake.views.html.run_media import drawable_media
from ranklake.views.html.run_tables import STATES, failed_ends_table, incidents_table, lines_tables, media_table, tables
from ranklake.views.html.shell import Entry, Page, file_stem
from ranklake.views.html.site import Section, overview
from ranklake.views.html.slowdown_charts import slowdown_charts, slowdown_map, slowdown_tables, verdict
from ranklake.views.incidents import checkpoint_text
from ranklake.views.run_causes import NOTHING_SAVED, failure_cause, path_words, saved_nothing, why_slow
from ranklake.views.runs import tag_words
from ranklake.views.words import length_text, loss_text, number_text, percent_text

SECTION: Final = "runs"
HOME: Final = f"{SECTION}/index.html"
LOW_MFU: Final = 0.3
"""A lower MFU is marked."""

_TOTALS: Final = (
    Measure("runs", "runs", "{run}", "Runs of the lake: those with a row in run_summary."),
    Measure("failed", "failed", "{run}", "Runs whose last attempt failed or was abandoned.",
            state="failing"),
    Measure("preempted", "preempted", "{run}", "Runs whose last attempt was asked to end.", state="warning"),
    Measure("running", "running", "{run}", "Runs whose last attempt has not ended, as far as known."),
    Measure("finished", "finished", "{run}", "Runs whose last attempt ended successfully."),
    Measure("with_stragglers", "with stragglers", "{run}", "Runs in which a rank slowed the others down.",
            state="warning"),
    Measure("low_mfu", "MFU below 30 %", "{run}", "Runs whose MFU is known and below 0.3.", state="warning"),
    Measure("restarts", "restarts", "{restart}", "Attempts after the first, of all runs."),
)  # fmt: skip
COLUMNS: Final = (
    Column("run", "Its name; the latest runs have a page.", "run"),
    Column("status", "How its last attempt ended.", "status"),
    Column.moment("began", "When its first attempt began.", "ts"),
    Column("took", "Wall time of all attempts.", "wall_ns", "ns", is_number=True,
           text=lambda ns: length_text(ns / 1e9)),
    Column.number("steps", "Steps of all attempts.", "steps", "{step}"),
    Column("last loss", "Mean loss over ranks of the last step that logged one.", "last_loss", "1", is_number=True,
           text=number_text),
    Column("tokens/s", "Tokens over the time of the steps that counted them.", "tokens_per_s", "{token}/s",
           is_number=True, text=number_text),
    Column.seconds("mean step", "Mean step time over all ranks and steps.", "mean_step_time_s"),
    Column.ratio("MFU", "Model FLOPs over the peak of its devices; see the run's page.", "mfu_ratio"),
    Column.ratio("goodput", "Time in steps that were not repeated, over wall time.", "goodput_ratio"),
    Column.number("ranks", "Number of ranks that the run recorded.", "world_size", "{rank}"),
    Column.number("restarts", "Attempts after the first.", "restarts", "{restart}"),
    Column.number("straggler", "The rank that slowed the others down most.", "straggler_rank"),
    Column("job", "Job that it belongs to.", "job"),
)  # fmt: skip


_MOST_CHANGES: Final = 100
_CODE: Final = (
    *("job", "team", "cluster", "pool", "region", "deployment_environment", "scheduler_job_id", "launcher"),
    *("framework", "framework_version", "python_version", "ranklake_version", "git_commit", "git_dirty"),
    *("git_diff_summary", "git_patch_sha256", "container_image", "container_image_digest", "lockfile_sha256"),
    *("world_size", "local_world_size", "node_count", "device_count", "device_type", "device_name", "compute_dtype"),
    *("param_count", "dp_size", "tp_size", "pp_size", "ep_size", "cp_size", "seed", "deterministic"),
    *("os_description", "cpu_model", "cpu_count", "host_memory_bytes", "driver_version", "cuda_version"),
    *("cudnn_version", "nccl_version", "config_sha256"),
)


def section(runs: RunsState, *, is_served: bool = False) -> Section:
    """Return the pages of runs: the list, whose runs can be selected on a server, and one per run with a digest."""
    totals = runs.totals.first_row
    state = "unchecked"
    if totals.get("runs"):
        state = "failing" if totals["failed"] else "warning" if totals["preempted"] else "passed"
    by_name = {str(row["run"]): row for row in runs.listed.rows}
    entries = [
        Entry(_search_name(runs, run), "run", str(by_name[run]["status"]) if run in by_name else "run", href(run))
        for run in runs.marks
    ]
    headline = _totals_headline(totals)
    listed = (runs.lake, runs.totals, runs.listed, runs.caveats.failed, runs.annotations, runs.teams, list(runs.marks))
    pages = [overview(HOME, "Runs", state, headline, listed, partial(_list_parts, runs, has_choice=is_served))]
    pages += [run_page(runs, run, mark) for run, mark in runs.marks.items()]
    return Section(SECTION, "Runs", state, headline, HOME, tuple(pages), tuple(entries))


def href(run: str) -> str:
    """Return the path of a run's page: its name in file-safe characters, with a digest to make it unique."""
    return f"{SECTION}/run-{file_stem(run)}.html"


def _totals_headline(totals: Row) -> str:
    if not totals.get("runs"):
        return "No runs yet"
    facts = [f"{totals[name]:,} {name}" for name in ("failed", "preempted", "running") if totals[name]]
    facts += [f"{totals['with_stragglers']:,} with stragglers"] if totals["with_stragglers"] else []
    count = counted(totals["runs"], "run")
    return f"{count}: {', '.join(facts)}" if facts else count


def _list_parts(runs: RunsState, *, has_choice: bool) -> Mapping[str, Any]:
    rows, total = runs.listed.rows, runs.totals.first_row.get("runs") or 0
    cut = f": the latest {len(rows):,} of {total:,}" if total > len(rows) else ""
    no_runs = "No runs: run 'ranklake pipeline' first."
    table = answer_table(
        "runs", f"Runs, newest first{cut}", runs.listed, ["run"], COLUMNS, no_runs, has_choice=has_choice,
        links={run: href(run) for run in runs.marks}, states=STATES,
        notes={run: _note(runs, run) for run in runs.annotations},
        marks=marks_of(rows, runs.caveats),
    )  # fmt: skip
    return {"lake": runs.lake, "figures": list(figures("totals", runs.totals, _TOTALS)), "tables": [table]}


def _note(runs: RunsState, run: str) -> str:
    """Return a run's display name, team and tags."""
    annotations, team = runs.annotations[run], runs.teams.get(run)
    return " · ".join([annotations.name, *([f"team {team}"] if team else []), *tag_words(annotations.tags)])


def _search_name(runs: RunsState, run: str) -> str:
    """Return the search terms of a run: id, display name, team, tags, job."""
    row = next((row for row in runs.listed.rows if row["run"] == run), {})
    return " · ".join([run, _note(runs, run), *([f"job {row['job']}"] if row.get("job") else [])])


def marks_of(rows: Sequence[Row], caveats: Caveats) -> dict[tuple[Any, str], tuple[str, str]]:
    """Return notes for cells of a table of runs: non-finite losses, and doubtful numbers."""
    marks = {}
    for row in rows:
        for column in COLUMNS:
            if row.get(column.name) is not None and (doubt := caveats.of(row["run"], column.name)):
                marks[row["run"], column.name] = ("check failed", doubt)
        if row["last_loss_flag"]:
            first = f"not finite first in step {row['non_finite_loss_step']:,}"
            marks[row["run"], "last_loss"] = (loss_text(row), first)
    return marks


def run_page(runs: RunQuestions, run: str, mark: str = "") -> Page:
    """Return the page of a run, by its full name; `mark` is a digest of its facts."""
    return Page(href(run), run, "run.html", partial(_run_parts, runs, run), f"{mark} {LOW_MFU}", (("Runs", HOME),))


def _run_parts(runs: RunQuestions, run: str) -> Mapping[str, Any]:
    """Return the first facts for the template of a run's page; ``later`` queries the rest, which takes longer."""
    ask = cache(runs.ask)  # queries of both parts are made once
    facts = gather_head(ask, run)
    summary, end = facts.summary.first_row, failure_cause(facts)
    annotations = annotations_of(run, facts.annotations.rows)
    hosts = f"ranklake show {run}" if facts.nodes.rows and not runs.is_for_role else ""
    return {
        "run": run,
        "status": summary.get("status", "unknown"),
        "state": STATES.get(summary.get("status", ""), "unchecked"),
        "headline": _headline(facts),
        "about": _run_description(facts),
        "ended_metrics": [metric.note for metric in ended_of_runs(ask, runs.ended, [run]).get(run, ())],
        "name": annotations.name,
        "tags": tag_words(annotations.tags),
        "summary": tag_words(
            {key: None if value is None else str(value) for key, value in annotations.summary.items()}
        ),
        "figures": list(_figures(facts)),
        "ended": end,
        "hosts": hosts,
        "ends": failed_ends_table(facts) if facts.ends.rows else None,
        "incidents": incidents_table(facts.incidents) if facts.incidents.listed else None,
        "checkpoint": checkpoint_text(facts.checkpoint) if facts.incidents.listed else "",
        "said_source": source_of("said", facts.annotations, facts.annotations.reason or "Pages do not show notes."),
        "later": cache(partial(_later_parts, replace(runs, ask=ask), run)),
    }


def _later_parts(runs: RunQuestions, run: str) -> Mapping[str, Any]:
    """Return the facts for the template of a run's page below its figures."""
    state, cause = run_state(runs.ask, run, runs.scalars, is_for_role=runs.is_for_role), runs.why(run)
    facts = state.facts
    injected, leads = facts.summary.first_row.get("injected"), bool(cause.part) and not failure_cause(facts).summary
    last = facts.code.rows[-1] if facts.code.rows else {}
    return {
        "changed": [_change_facts(place, changes, facts) for place, changes in enumerate(state.changes)],
        "slowed": verdict(cause),
        "is_slowed": bool(cause.part),
        "slowness_leads": leads,
        "slowed_map": slowdown_map(cause),
        "slowed_by": list(slowdown_charts(cause)),
        "slowed_tables": list(slowdown_tables(cause)),
        "slowed_why": why_slow(facts),
        "slowed_next": f"It was done on purpose: {injected}." if leads and injected else cause.next_step,
        "slowed_path": "" if cause.simulation is None else path_words(cause.simulation.critical_path, cause.part),
        "not_simulated": cause.reason,
        "charts": list(charts(state)),
        "heat": rank_heat(state),
        "metrics": list(metrics(state.curves.metrics, runs.units)),
        "not_drawn": not_drawn(state.curves),
        "names_source": source_of("names", state.curves.names),
        "media": list(drawable_media(state.media)),
        "media_sources": [
            source_of(f"media-bytes-{place}", answer)
            for place, answer in enumerate(state.media.sources)
            if not answer.reason
        ],
        "media_withheld": state.media.withheld,
        "tables": [*tables(facts, is_for_role=runs.is_for_role), *media_table(state), *lines_tables(state)],
        "no_lines": "" if runs.is_for_role else state.lines.reason,
        "code": [(name, _plain(last[name])) for name in _CODE if last and last[name] is not None],
        "unavailable": sorted(facts_in(last.get("unavailable")).items()),
        "config": [(name, _plain(value)) for name, value in flat(facts_in(last.get("config")))],
        "labels": [(name, _plain(value)) for name, value in flat(facts_in(last.get("labels")))],
        "code_source": source_of("code", facts.code, "The last row: that of the last attempt."),
        "no_code": facts.code.reason or "the run recorded nothing of it",
    }


def _change_facts(place: int, changes: Changes, facts: RunFacts) -> Mapping[str, Any]:
    """Return the changes since another attempt or run, for the template."""
    rows = (*changes.settings, *changes.surroundings)
    pairs = ((changes.settings, "setting"), (changes.surroundings, "surrounding"))
    counts = " and ".join(counted(len(differences), noun) for differences, noun in pairs if differences)
    of_run = "Compared with the previous run of the same job; values of each run's last attempt."
    of_attempt = "Settings, then code, machine and software, as each attempt recorded them."
    return {
        "name": f"changed-{place}",
        "words": f"Since {changes.since} {counts or 'nothing'} changed",
        "title": f"Changed since {changes.since}",
        "rows": rows[:_MOST_CHANGES],
        "heads": (changes.since, "now"),
        "count": len(rows),
        "most": _MOST_CHANGES,
        "source": source_of(f"changed-{place}", changes.code),
        "definition": of_attempt if changes.run == facts.run else of_run,
    }


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _headline(facts: RunHead) -> str:
    summary = facts.summary.first_row
    if not summary:
        return facts.summary.reason
    lasted = f" in {length_text(summary['wall_ns'] / 1e9)}" if summary["wall_ns"] else ""
    # An imported trace may have only spans, and then no times of the run.
    parts = [f"{'no steps recorded' if summary['steps'] is None else steps_done(summary)}{lasted}"]
    if saved_nothing(summary):
        parts.append(NOTHING_SAVED)
    elif summary["goodput_ratio"] is not None:
        parts.append(f"goodput {percent_text(summary['goodput_ratio'])}")
    parts += [f"loss {loss_text(summary)}"] if summary["last_loss_flag"] else []
    if summary["stragglers"]:
        worst = summary["straggler_rank"]
        reason = cause_text(row for row in facts.beneath.rows if row["rank"] == worst)
        parts.append(f"rank {worst} slows the others down{f' ({reason})' if reason else ''}")
    parts += [counted(summary["restarts"], "restart")] if summary["restarts"] else []
    return ", ".join(parts)


def _run_description(facts: RunHead) -> str:
    summary = facts.summary.first_row
    if not summary:
        return ""
    ranks = "unknown ranks" if summary["world_size"] is None else counted(summary["world_size"], "rank")
    job = f"job {summary['job']}, " if summary["job"] else ""
    injected = f" Injected on purpose: {summary['injected']}." if summary["injected"] else ""
    return (
        f"{job}{ranks} on {summary['device_name'] or 'an unknown device'}; began {time_text(summary['ts'])}, "
        f"last seen {time_text(summary['end_ts'])}.{injected}"
    )


def _figures(facts: RunHead) -> Iterator[Figure]:
    """Yield the figures of a run, with notes on doubtful ones."""
    row, source = facts.summary.first_row, source_of("summary", facts.summary)
    no_goodput = str(facts_in(facts.goodput.first_row.get("unavailable")).get("goodput_ratio") or "no productive step")
    mfu, flag = row.get("mfu_ratio"), row.get("last_loss_flag")
    peak = f" Peak: {row.get('peak_dtype')}, {row.get('peak_source')}. FLOPs: {row.get('flops_convention')}."
    is_low = mfu is not None and mfu < LOW_MFU
    measures = [
        Measure("steps", "steps", "{step}",
                "Distinct steps of all attempts, each counted once for all ranks. Numbered from 0.",
                unknown="the imported files have none"),
        Measure("last_loss", "last loss", "1", "Mean loss over ranks of the last step that logged one.", number_text,
                "" if flag else "no rank logged one"),
        Measure("mean_step_time_s", "mean step", "s", "Step time over all ranks and steps.", length_text, "no steps"),
        Measure("tokens_per_s", "tokens/s", "{token}/s", "Tokens of all ranks over the steps' own time.", number_text,
                "no rank counted tokens"),
        Measure("mfu_ratio", f"MFU{' (below 30 %)' if is_low else ''}", "ratio",
                f"Model FLOPs over the peak FLOPs of the devices in the steps' time.{peak if mfu else ''}",
                percent_text, str(row.get("mfu_reason") or ""), "warning" if is_low else ""),
        Measure("goodput_ratio", "goodput", "ratio",
                "Time in steps that no later attempt repeated, over wall time, restarts included.", percent_text,
                no_goodput),
        Measure("wall_ns", "wall time", "ns", "From the first attempt's start to the last one's end.",
                lambda ns: length_text(ns / 1e9)),
        Measure("restarts", "restarts", "{restart}", "Attempts after the first.", None, "the run has no summary",
                "warning"),
        Measure("checkpoints", "checkpoints", "{event}", "Checkpoint events of all attempts."),
    ]  # fmt: skip
    if row.get("non_finite_steps"):
        text = "Steps with a NaN or an infinity on some rank."
        measures.append(Measure("non_finite_steps", "steps not finite", "{step}", text, state="failing"))
    for measure in measures:
        figure = measure.figure(row, source)
        if not row:
            figure = replace(figure, reason=facts.summary.reason or "no summary")
        if measure.column == "last_loss" and flag:
            figure = replace(figure, text=loss_text(row), state="failing")
        if measure.column == "goodput_ratio" and figure.value is not None and saved_nothing(row):
            figure = replace(figure, reason=NOTHING_SAVED)
        if doubt := facts.caveats.of(facts.run, measure.column):
            figure = replace(figure, reason=f"a check failed: {doubt}", state="failing")
        yield figure
