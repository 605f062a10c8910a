"""The executive page: figures, lines by date, tables by week and group, of `ranklake.insight.overview.fleet`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from ranklake.insight.doubts import MOST_SHOWN
from ranklake.insight.overview.fleet import FleetState
from ranklake.insight.runs.asking import QueriedFacts, Row
from ranklake.printable import counted
from ranklake.views.html.charts import PERCENT, Chart, lines_by_time, values_of
from ranklake.views.html.figures import Column, Figure, Measure, answer_table, source_of
from ranklake.views.html.run_pages import LOW_MFU
from ranklake.views.html.site import Section, page_section
from ranklake.views.words import hours_text, money_text, number_text, percent_text

_GROUP_TITLES: Final = ("By team", "By pool", "By device")
_NO_SCHEDULER: Final = "no scheduler's pools, jobs or device samples in these days"
_NO_SAMPLES: Final = "no samples of devices in these days"
_NO_RUNS: Final = "no run in these days"
_NOT_ENDED: Final = "no run that began in these days has ended"
_NOT_FINISHED: Final = "no run that began in these days has finished"


def _ratio_cell(ratio: float) -> str:
    return f"{percent_text(ratio)}{' (low)' if ratio < LOW_MFU else ''}"


def _points(change: float) -> str:
    return f"{100 * change:+.1f}\u00a0pp"


def _energy(kwh: float) -> str:
    return f"{number_text(kwh)}\u00a0kWh"


def _change(change: float) -> str:
    return f"{'+' if change > 0 else ''}{number_text(change)}"


def _cost_change(change: float) -> str:
    return f"{'+' if change > 0 else ''}{money_text(change)}"


_MEASURES: Final = (
    Measure("scheduled_h", "GPU-hours scheduled", "h",
            "Capacity that was up and open to jobs, by the snapshots of pools.", hours_text, _NO_SCHEDULER),
    Measure("delivered_h", "delivered", "h", "Time allocated to jobs: by snapshots, jobs or samples.",
            hours_text, _NO_SCHEDULER),
    Measure("busy_h", "busy", "h", "Utilisation times time.", hours_text, _NO_SAMPLES),
    Measure("idle_h", "held idle", "h", "Time held with a utilisation of 0.", hours_text, _NO_SAMPLES),
    Measure("utilization_ratio", "utilization", "ratio", "Busy time over the time for which utilisation was known.",
            percent_text, _NO_SAMPLES),
    Measure("device_h", "held by runs", "h", "Wall time of runs, times their devices, as held.", hours_text, _NO_RUNS),
    Measure("wasted_h", "wasted by runs", "h", "Part of it in steps that were done again, in restarts and in stalls.",
            hours_text, _NO_RUNS),
    Measure("goodput_ratio", "goodput", "ratio", "Time in steps that count over wall time, weighed by devices.",
            percent_text, _NO_RUNS),
    Measure("mfu_ratio", "MFU", "ratio",
            "Model FLOPs over the devices' peak in the steps' time, of runs whose MFU is known; marked below 30 %.",
            percent_text),
    Measure("cost_total", "cost", "{currency}", "Device time that has a price, times the operator's prices.",
            money_text),
    Measure("cost_idle", "cost of idle", "{currency}", "Part of it for devices held and idle.", money_text),
    Measure("cost_lost_work", "cost of lost work", "{currency}", "Part of it for steps done again.", money_text),
    Measure("runs", "runs", "{run}", "Runs that began in these days.", number_text),
    Measure("success_ratio", "success", "ratio",
            "Runs that finished over those that ended, of the runs that began in these days.",
            percent_text, _NOT_ENDED),
    Measure("failures", "failures", "{failure}", "Attempts of these runs that failed or were abandoned.", number_text),
    Measure("preemptions", "preemptions", "{preemption}", "Attempts of these runs that were asked to end.",
            number_text),
    Measure("time_to_train_median_h", "time to train p50", "h",
            "Wall time from the end of the first start to the end, of these runs that finished.",
            hours_text, _NOT_FINISHED),
    Measure("time_to_train_p90_h", "time to train p90", "h", "Its 90th percentile.", hours_text, _NOT_FINISHED),
    Measure("energy_kwh", "energy", "kW.h", "Energy that the devices drew while it was measured.",
            _energy, _NO_SAMPLES),
)  # fmt: skip
_WEEKS: Final = (
    Column.moment("seven days to", "Last of the UTC dates.", "last_day"),
    Column.hours("delivered", "GPU-hours allocated to jobs.", "delivered_h"),
    Column.hours("busy", "GPU-hours busy.", "busy_h"),
    Column.ratio("utilization", "Busy over observed time.", "utilization_ratio"),
    Column.hours("of runs", "Device-hours of runs.", "device_h"),
    Column.hours("wasted", "Device-hours done again, in restarts and stalls.", "wasted_h"),
    Column.ratio("goodput", "Weighed by devices.", "goodput_ratio"),
    Column("MFU", "Of runs whose MFU is known.", "mfu_ratio", "ratio", is_number=True, text=_ratio_cell),
    Column.ratio("MFU known of", "Share of step time with a known MFU.", "mfu_known_ratio"),
    Column("cost", "Of device time that has a price.", "cost_total", "{currency}", is_number=True, text=money_text),
    Column.ratio("cost known of", "Share of device time with a known cost.", "cost_known_ratio"),
    Column("currency", "ISO 4217 code.", "currency"),
    Column.number("runs", "That began then.", "runs", "{run}"),
    Column.ratio("success", "Finished over ended.", "success_ratio"),
    Column.number("failures", "Attempts that failed or were abandoned.", "failures", "{failure}"),
    Column.number("preemptions", "Attempts that were asked to end.", "preemptions", "{preemption}"),
)  # fmt: skip
_GROUPS: Final = (
    Column("name", "As runs and jobs recorded it.", "name"),
    Column.hours("of runs", "Device-hours of runs.", "device_h"),
    Column("change", "From the seven days before.", "device_h_change", "h", is_number=True, text=_change),
    Column.hours("wasted", "Device-hours done again, in restarts and stalls.", "wasted_h"),
    Column.ratio("goodput", "Weighed by devices.", "goodput_ratio"),
    Column("change of it", "In percentage points.", "goodput_change", "ratio", is_number=True, text=_points),
    Column("MFU", "Of runs whose MFU is known.", "mfu_ratio", "ratio", is_number=True, text=_ratio_cell),
    Column("change of MFU", "In percentage points.", "mfu_change", "ratio", is_number=True, text=_points),
    Column.hours("delivered", "GPU-hours allocated.", "delivered_h"),
    Column("change of delivered", "From the week before.", "delivered_h_change", "h", is_number=True, text=_change),
    Column.ratio("utilization", "Busy over observed time.", "utilization_ratio"),
    Column("cost", "Of device time that has a price, in one currency.", "cost_total", "{currency}", is_number=True,
           text=money_text),
    Column("change of cost", "From the seven days before.", "cost_change", "{currency}", is_number=True,
           text=_cost_change),
)  # fmt: skip
_CHANGES: Final = (
    Column("name", "As runs and jobs recorded it; all rows but the last add up to it.", "name"),
    Column("device time", "Device-hours of runs, from the seven days before.", "device_h_change", "h", is_number=True,
           text=_change),
    Column("wasted", "Device-hours done again, in restarts and stalls.", "wasted_h_change", "h", is_number=True,
           text=_change),
    Column("cost", "In one currency, where both weeks have a cost.", "cost_change", "{currency}", is_number=True,
           text=_cost_change),
    Column("goodput: its own", "By its own goodput: mean share of wall time, times how much its goodput changed.",
           "goodput_own", "ratio", is_number=True, text=_points),
    Column("goodput: its share", "By its share: how much that changed, times its goodput over that of all.",
           "goodput_mix", "ratio", is_number=True, text=_points),
    Column("goodput", "Both; all of them together are the change of the fleet's goodput.", "goodput_change", "ratio",
           is_number=True, text=_points),
)  # fmt: skip
_FORECAST: Final = (
    Column("next seven days", "What is forecast.", "measure"),
    Column("forecast", "The mean of the last whole weeks of which it is known, four to seven.", "forecast",
           is_number=True, text=number_text),
    Column("from", "Four of five next weeks would be in the interval, were weeks independent and normal.", "low",
           is_number=True, text=number_text),
    Column("to", "Its other end.", "high", is_number=True, text=number_text),
    Column("unit", "Of it.", "unit"),
    Column.number("weeks", "That it is a mean of.", "weeks_used", "{week}"),
    Column("unknown because", "Why there is no forecast.", "reason"),
)  # fmt: skip


def section(fleet: FleetState) -> Section:
    """Return the executive page as a section of its own."""
    mfu = fleet.week.first_row.get("mfu_ratio")
    state = "unchecked" if not fleet.week.rows else "warning" if mfu is not None and mfu < LOW_MFU else "passed"
    return page_section("executive", "Executive", state, _headline(fleet), (fleet, LOW_MFU), lambda: _parts(fleet))


def _headline(fleet: FleetState) -> str:
    week = fleet.week.first_row
    if not week:
        return "Nothing to tell yet"
    words = (
        ("delivered_h", hours_text, "{} of GPU time delivered"),
        ("device_h", hours_text, "{} of device time in runs"),
        ("utilization_ratio", percent_text, "utilization {}"),
        ("goodput_ratio", percent_text, "goodput {}"),
        ("mfu_ratio", _ratio_cell, "MFU {}"),
    )
    facts = [form.format(text(week[name])) for name, text, form in words if week[name] is not None]
    facts += [counted(week["failures"], "failure")] if week["failures"] else []
    return f"Seven days to {fleet.through}: {', '.join(facts) or 'nothing ran'}"


def _parts(fleet: FleetState) -> Mapping[str, Any]:
    if not fleet.week.rows:
        return {"lake": fleet.lake, "hint": f"unknown: {fleet.week.reason}", "charts": list(_charts(fleet.days))}
    empty = "Nothing in these days."
    groups = [
        answer_table(f"group-{place}", f"{title}, most device time first", group, ["name"], _GROUPS, empty)
        for place, (title, group) in enumerate(zip(_GROUP_TITLES, fleet.groups, strict=True))
    ]
    changes = [
        answer_table(f"change-{place}", f"What changed since the week before, {title.lower()}", change, ["name"],
                     _CHANGES, "Nothing is told of one of the two weeks.")
        for place, (title, change) in enumerate(zip(_GROUP_TITLES, fleet.changes, strict=True))
        if change.rows or not place  # one message is enough if nothing is reported
    ]  # fmt: skip
    caption = "Forecast, if the next week is like those before"
    return {
        "lake": fleet.lake,
        "doubts": [doubt.text for doubt in fleet.doubts[:MOST_SHOWN]],
        "figures": sorted(_figures(fleet), key=lambda figure: figure.value is None),
        "charts": list(_charts(fleet.days)),
        "tables": [
            *changes,
            answer_table("forecast", caption, fleet.forecast, ["measure"], _FORECAST, empty),
            answer_table("weeks", "Week by week, latest first", fleet.weeks, ["last_day"], _WEEKS, empty),
            *groups,
        ],
    }


def _figures(fleet: FleetState) -> Iterator[Figure]:
    """Yield the week's figures, each beside that of the week before."""
    week, before = fleet.week.first_row, fleet.weeks.rows[1]
    source = source_of("week", fleet.week, "The week before is the second row of the table of weeks.")
    for measure in _MEASURES:
        name, figure = measure.column, measure.figure(week, source)
        if figure.value is None:
            reason = week["mfu_reason"] or _NO_RUNS if name == "mfu_ratio" else week["cost_reason"] or "no cost"
            yield replace(figure, reason=measure.unknown or str(reason))
            continue
        is_cost = measure.unit == "{currency}"
        notes = [] if before[name] is None else [f"week before: {measure.text(before[name])}"] if measure.text else []
        notes += [_part(week)] if is_cost and week["cost_reason"] else []
        text = f"{figure.text} {week['currency']}" if is_cost else figure.text
        figure = replace(figure, reason="; ".join(notes), text=text)
        is_low = name == "mfu_ratio" and week[name] < LOW_MFU
        yield replace(figure, label=f"{figure.label} (below 30 %)", state="warning") if is_low else figure


def _part(week: Row) -> str:
    """Return the share of device time with a known cost, and why the rest has none."""
    known = week["cost_known_ratio"]
    part = "not of all" if known is None or known == 1 else f"of {percent_text(known)} of the"
    return f"known {part} device time: {week['cost_reason']}"


def _charts(days: QueriedFacts) -> Iterator[Chart]:
    source = source_of("days", days)
    hours = {"delivered_h": "delivered", "busy_h": "busy", "idle_h": "held idle", "device_h": "of runs",
             "wasted_h": "wasted by runs"}  # fmt: skip
    ratios = {"utilization_ratio": "utilization", "goodput_ratio": "goodput"}
    for name, title, words, parts, unit, form in (
        ("hours", "Device time by date", "Hours of devices a day, by what is known of them.", hours, "h", ",.3~r"),
        ("ratios", "Utilization and goodput by date", "Ratios of sums over the day.", ratios, "ratio", PERCENT),
    ):
        known = {column: words for column, words in parts.items() if any(row[column] is not None for row in days.rows)}
        if known:
            values = [{**dict.fromkeys(known), **row} for row in values_of(days.rows, ["date", *known])]
            yield Chart(name, title, words, lines_by_time(values, known, unit, form), source)
