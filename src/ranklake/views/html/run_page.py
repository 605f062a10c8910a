"""The page of one run: its facts as figures, curves, tables and lists."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ranklake.insight.runs.asking import Ask
from ranklake.insight.runs.changes import Changes
from ranklake.insight.runs.facts import RunFacts
from ranklake.insight.runs.find import flat
from ranklake.insight.runs.report import run_state
from ranklake.insight.runs.said import said_of
from ranklake.insight.runs.slowed import Cause
from ranklake.insight.runs.steps_done import steps_done
from ranklake.lake.contracts.json_text import facts_in
from ranklake.views.critical_path import path_words
from ranklake.views.endings import NOTHING_SAVED, ended, saved_nothing
from ranklake.views.html.figures import Figure, sourced, time_text
from ranklake.views.html.run_curves import charts, metrics, not_drawn, rank_heat
from ranklake.views.html.run_ends import ends_table
from ranklake.views.html.run_media import drawn
from ranklake.views.html.run_tables import STATES, lines_tables, media_table, tables
from ranklake.views.html.slowdown_charts import slowdown_charts, slowdown_map, slowdown_tables, verdict
from ranklake.views.runs import tag_words
from ranklake.views.slow_rank import why_slow
from ranklake.views.words import counted, loss_text, number_text, percent_text
from ranklake.views.words import time_text as length_text

LOW_MFU: Final = 0.3
"""Below it a run's MFU is marked."""

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


def page_facts(
    ask: Ask,
    why: Callable[[str], Cause],
    run: str,
    units: Mapping[str, str],
    scalars: str = "scalars",
    *,
    is_for_role: bool = False,
) -> Mapping[str, Any]:
    """Return what the template of a run's page draws; parameters are as of `ranklake.insight.runs.report.RunsState`."""
    found, cause = run_state(ask, run, scalars, is_for_role=is_for_role), why(run)
    facts = found.facts
    summary, over = facts.summary.one, ended(facts)
    said = said_of(run, facts.annotations.rows)
    injected, leads = summary.get("injected"), bool(cause.what) and not over.what
    last = facts.code.rows[-1] if facts.code.rows else {}
    return {
        "run": run,
        "status": summary.get("status", "unknown"),
        "state": STATES.get(summary.get("status", ""), "unchecked"),
        "headline": _headline(facts),
        "about": _about(facts),
        "name": said.name,
        "tags": tag_words(said.tags),
        "summary": tag_words({key: None if value is None else str(value) for key, value in said.summary.items()}),
        "figures": list(_figures(facts)),
        "ended": over,
        "hosts": f"ranklake show {run}" if facts.nodes.rows and not is_for_role else "",
        "ends": ends_table(facts) if facts.ends.rows else None,
        "slowed": verdict(cause),
        "is_slowed": bool(cause.what),
        "slowness_leads": leads,
        "slowed_map": slowdown_map(cause),
        "slowed_by": list(slowdown_charts(cause)),
        "slowed_tables": list(slowdown_tables(cause)),
        "slowed_why": why_slow(facts),
        "slowed_next": f"It was done on purpose: {injected}." if leads and injected else cause.next_step,
        "slowed_path": "" if cause.found is None else path_words(cause.found.critical_path, cause.what),
        "not_simulated": cause.reason,
        "charts": list(charts(found)),
        "heat": rank_heat(found),
        "metrics": list(metrics(found.curves.metrics, units)),
        "not_drawn": not_drawn(found.curves),
        "names_source": sourced("names", found.curves.names),
        "media": list(drawn(found.media)),
        "media_sources": [
            sourced(f"media-bytes-{place}", one) for place, one in enumerate(found.media.sources) if not one.reason
        ],
        "media_withheld": found.media.withheld,
        "tables": [
            *tables(facts, is_for_role=is_for_role),
            *media_table(found),
            *lines_tables(found),
        ],
        "no_lines": "" if is_for_role else found.lines.reason,
        "changed": [_changed(place, one, facts) for place, one in enumerate(found.changes)],
        "code": [(name, _plain(last[name])) for name in _CODE if last and last[name] is not None],
        "unavailable": sorted(facts_in(last.get("unavailable")).items()),
        "config": [(name, _plain(value)) for name, value in flat(facts_in(last.get("config")))],
        "labels": [(name, _plain(value)) for name, value in flat(facts_in(last.get("labels")))],
        "said_source": sourced("said", facts.annotations, facts.annotations.reason or "Notes are on no page."),
        "code_source": sourced("code", facts.code, "The last row: that of the last attempt."),
        "no_code": facts.code.reason or "the run recorded nothing of it",
    }


def _changed(place: int, one: Changes, facts: RunFacts) -> Mapping[str, Any]:
    """Return what the template draws of changes since another attempt or run."""
    rows = (*one.settings, *one.surroundings)
    told = [
        counted(len(some), noun)
        for some, noun in ((one.settings, "setting"), (one.surroundings, "surrounding"))
        if some
    ]
    if one.run == facts.run:
        definition = "Settings, then code, machine and software, as each attempt recorded them."
    else:
        definition = (
            "The run of the same job that began last before this one; as the last attempt of each recorded them."
        )
    return {
        "name": f"changed-{place}",
        "told": f"Since {one.since} {' and '.join(told) or 'nothing'} changed",
        "title": f"Changed since {one.since}",
        "rows": rows[:_MOST_CHANGES],
        "heads": (one.since, "now"),
        "count": len(rows),
        "most": _MOST_CHANGES,
        "source": sourced(f"changed-{place}", one.code),
        "definition": definition,
    }


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _headline(facts: RunFacts) -> str:
    summary = facts.summary.one
    if not summary:
        return facts.summary.reason
    if summary["steps"] is None:  # an imported trace may have spans alone, and then no time of its own either
        lasted = f" in {length_text(summary['wall_ns'] / 1e9)}" if summary["wall_ns"] else ""
        told = [f"no steps recorded{lasted}"]
    else:
        told = [f"{steps_done(summary)} in {length_text(summary['wall_ns'] / 1e9)}"]
    if saved_nothing(summary):
        told.append(NOTHING_SAVED)
    elif summary["goodput_ratio"] is not None:
        told.append(f"goodput {percent_text(summary['goodput_ratio'])}")
    if summary["last_loss_flag"]:
        told.append(f"loss {loss_text(summary)}")
    if summary["stragglers"]:
        told.append(f"rank {summary['straggler_rank']} holds the others up")
    if summary["restarts"]:
        told.append(counted(summary["restarts"], "restart"))
    return ", ".join(told)


def _about(facts: RunFacts) -> str:
    summary = facts.summary.one
    if not summary:
        return ""
    ranks = "unknown ranks" if summary["world_size"] is None else counted(summary["world_size"], "rank")
    job = f"job {summary['job']}, " if summary["job"] else ""
    injected = f" Injected on purpose: {summary['injected']}." if summary["injected"] else ""
    return (
        f"{job}{ranks} on {summary['device_name'] or 'an unknown device'}; began {time_text(summary['ts'])}, "
        f"last seen {time_text(summary['end_ts'])}.{injected}"
    )


def _figures(facts: RunFacts) -> Iterator[Figure]:
    row, source = facts.summary.one, sourced("summary", facts.summary)
    missing = facts.summary.reason or "no summary"

    def figure(
        column: str,
        label: str,
        unit: str,
        definition: str,
        text: str = "",
        state: str = "",
        why: str = "",
        beside: str = "",
    ) -> Figure:
        value = row.get(column)
        doubt = facts.caveats.of(facts.run, column)
        said = f"a check failed: {doubt}" if doubt else beside if value is not None else missing if not row else why
        state = "failing" if doubt else state
        is_told = value is not None or (column == "last_loss" and row.get("last_loss_flag"))
        return Figure(label, value, unit, definition, source, column, state, said, text if is_told else "")

    def value(column: str) -> Any:  # noqa: ANN401 - of any column
        return row.get(column)

    yield figure(
        "steps",
        "steps",
        "{step}",
        "Steps of all attempts, counted once whatever the number of ranks. They are numbered from 0.",
        why="the imported files have none",
    )
    yield figure(
        "last_loss",
        "last loss",
        "1",
        "Mean loss over ranks of the last step that logged one.",
        loss_text(row),
        "failing" if value("last_loss_flag") else "",
        "" if value("last_loss_flag") else "no rank logged one",
    )
    yield figure(
        "mean_step_time_s",
        "mean step",
        "s",
        "Step time over all ranks and steps.",
        length_text(value("mean_step_time_s")),
        why="no steps",
    )
    yield figure(
        "tokens_per_s",
        "tokens/s",
        "{token}/s",
        "Tokens of all ranks over the steps' own time.",
        number_text(value("tokens_per_s")),
        why="no rank counted tokens",
    )
    mfu = value("mfu_ratio")
    peak = f" Peak: {row.get('peak_dtype')}, {row.get('peak_source')}. FLOPs: {row.get('flops_convention')}."
    low = mfu is not None and mfu < LOW_MFU
    yield figure(
        "mfu_ratio",
        "MFU" + (" (below 30 %)" if low else ""),
        "ratio",
        "Model FLOPs over what the devices could have done in the steps' time." + (peak if mfu else ""),
        percent_text(mfu),
        "warning" if low else "",
        str(row.get("mfu_reason") or ""),
    )
    yield figure(
        "goodput_ratio",
        "goodput",
        "ratio",
        "Time in steps that no later attempt did again, over wall time, restarts included.",
        percent_text(value("goodput_ratio")),
        why=str(facts_in(facts.goodput.one.get("unavailable")).get("goodput_ratio") or "no productive step"),
        beside=NOTHING_SAVED if saved_nothing(row) else "",
    )
    yield figure(
        "wall_ns",
        "wall time",
        "ns",
        "From the first attempt's start to the last one's end.",
        length_text((value("wall_ns") or 0) / 1e9),
    )
    yield figure(
        "restarts",
        "restarts",
        "{restart}",
        "Attempts after the first.",
        state="warning" if value("restarts") else "",
        why="no account of the run",
    )
    yield figure("checkpoints", "checkpoints", "{event}", "Checkpoint events of all attempts.")
    if value("non_finite_steps"):
        yield figure(
            "non_finite_steps",
            "steps not finite",
            "{step}",
            "Steps with a NaN or an infinity on some rank.",
            state="failing",
        )
