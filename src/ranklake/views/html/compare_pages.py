"""The page of runs side by side: curves on the same axes, differences, and tests of repeats."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from ranklake.insight.runs.compare import MEASURES, Comparison, Difference
from ranklake.insight.runs.curves import PlottedMetric
from ranklake.insight.runs.repeats import LEVEL, Repeats, Verdict
from ranklake.insight.runs.statements import annotations, run_condition
from ranklake.printable import counted
from ranklake.views.html.charts import Chart, compared, short_number
from ranklake.views.html.figures import Source, answer_table, source_of
from ranklake.views.html.run_curves import AXES
from ranklake.views.html.run_pages import COLUMNS, marks_of
from ranklake.views.html.run_tables import STATES
from ranklake.views.html.shell import Entry, Page, digest_of
from ranklake.views.html.site import Section
from ranklake.views.run_plot import metric_title
from ranklake.views.runs import ended_lines
from ranklake.views.words import length_text, number_text, percent_text

SECTION: Final = "compare"
HOME: Final = f"{SECTION}/index.html"

_MOST: Final = 200
_TITLES: Final[Mapping[str, tuple[str, str, Any]]] = {
    "last_loss": ("last loss", "1", number_text),
    "mean_step_time_s": ("mean step", "s", length_text),
    "tokens_per_s": ("tokens/s", "{token}/s", number_text),
    "mfu_ratio": ("MFU", "ratio", percent_text),
    "goodput_ratio": ("goodput", "ratio", percent_text),
}


def section(comparison: Comparison, drawn: Sequence[Sequence[PlottedMetric]], chance: Repeats) -> Section:
    """Return the page; `drawn` are metrics, each of all runs."""
    headline = _headline(comparison, chance)
    digest = digest_of((comparison, drawn, chance))
    page = Page(HOME, "Compare", "compare.html", partial(facts_of, comparison, drawn, chance), digest)
    entry = Entry(f"compare {', '.join(comparison.runs)}"[:200], "comparison", "compare", HOME)
    return Section(SECTION, "Compare", "passed", headline, HOME, (page,), (entry,))


def _headline(comparison: Comparison, chance: Repeats) -> str:
    settings = counted(len(comparison.settings), "setting")
    facts = [
        counted(len(comparison.runs), "run"),
        f"{settings} differ" if len(comparison.settings) != 1 else "1 setting differs",
    ]
    if significant := [one for one in chance.verdicts if one.is_significant]:
        facts.append(f"{', '.join(dict.fromkeys(_TITLES[one.measure][0] for one in significant))} differ significantly")
    elif any(one.p_value is not None for one in chance.verdicts):
        facts.append("no difference is significant")
    elif len(chance.groups) > 1:
        facts.append("without repeats chance cannot be told from a difference")
    return ", ".join(facts)


def facts_of(
    comparison: Comparison,
    drawn: Sequence[Sequence[PlottedMetric]],
    chance: Repeats,
    links: Mapping[str, str] = MappingProxyType({}),
) -> Mapping[str, Any]:
    """Return the facts of ``compare.html``; `links` are pages of runs, from the site's root, by run."""
    summaries = replace(comparison.summaries, rows=tuple(row for row in comparison.summaries.rows if row))
    marks = marks_of(summaries.rows, comparison.caveats)
    runs = answer_table(
        "runs", "Runs", summaries, ["run"], COLUMNS, "Unknown: no summary.", states=STATES, marks=marks, links=links
    )
    code_note = "The last row: that of the last attempt. Likewise for each run."
    return {
        "headline": _headline(comparison, chance),
        "runs": comparison.runs,
        "table": runs,
        "ended": ended_lines(comparison.ended_metrics),
        "charts": list(_charts(drawn)),
        "level": LEVEL,
        "groups": [
            {"runs": group.runs, "name": _name(place), "source": source_of(f"group-{place}", group.spread),
             "cells": list(_cells(place, group.spread.first_row, chance.verdicts)), "reason": group.spread.reason}
            for place, group in enumerate(chance.groups)
        ],
        "measures": [_TITLES[name][:2] for name in MEASURES],
        "differing": [
            ("settings", "Settings that differ", _rows(comparison.settings), len(comparison.settings)),
            ("surroundings", "Surroundings that differ", _rows(comparison.surroundings), len(comparison.surroundings)),
        ],
        "summary": _rows(comparison.summary),
        "summary_count": len(comparison.summary),
        "summary_reason": comparison.summary_reason,
        "summary_source": Source("summary", annotations(run_condition(comparison.runs))),
        "most": _MOST,
        "alike": comparison.alike,
        "code_source": source_of("code", comparison.code[0], code_note),
        "unknown": [(run, one.reason) for run, one in zip(comparison.runs, comparison.code, strict=True) if one.reason],
    }  # fmt: skip


def _rows(differences: Sequence[Difference]) -> Sequence[Difference]:
    return differences[:_MOST]


def _name(place: int) -> str:
    return "first group" if place == 0 else f"group {place + 1}"


def _cells(place: int, row: Mapping[str, Any], verdicts: Sequence[Verdict]) -> Iterator[dict[str, Any]]:
    of = {one.measure: one for one in verdicts if one.group == place}
    for name in MEASURES:
        _, _, text = _TITLES[name]
        count, mean, deviation = (row.get(f"{name}_{what}") for what in ("n", "mean", "std"))
        verdict = of.get(name)
        yield {
            "name": name,
            "values": [
                (f"{name}_{what}", value, text(value))
                for what, value in (("mean", mean), ("std", deviation))
                if value is not None
            ],
            "count": count,
            "state": "warning" if verdict and verdict.is_significant else "",
            "verdict": _verdict(verdict) if verdict else "",
        }


def _verdict(verdict: Verdict) -> str:
    if verdict.p_value is None:
        return f"not tested: {verdict.reason}"
    return f"{'differs' if verdict.is_significant else 'no difference shown'} (p = {verdict.p_value:.2g})"


def _charts(drawn: Sequence[Sequence[PlottedMetric]]) -> Iterator[Chart]:
    for every in drawn:
        runs = [one.run for one in every]
        values = [
            {"run": one.run, "value": short_number(row[one.column]), **{name: short_number(row[name]) for name in AXES}}
            for one in every
            for row in one.answered.rows
            if row[one.column] is not None
        ]  # fmt: skip
        first = every[0]
        note = f"Column {first.column}; likewise for each run, by its name."
        words = "Means over ranks and a share of the steps; a colour a run."
        title = metric_title(first)
        spec = compared(values, "value", title, runs)
        yield Chart(first.metric, title, words, spec, source_of(f"curve-{first.metric}", first.answered, note))
