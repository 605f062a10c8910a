"""The executive page: facts of `ranklake.insight.fleet` as figures, lines by date, tables by week and group."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from ranklake.insight.fleet.facts import FleetState
from ranklake.insight.runs.asking import Answered, Row
from ranklake.views.html.charts import PERCENT, Chart
from ranklake.views.html.date_charts import lines_by_date
from ranklake.views.html.figures import Column, FactTable, Figure, sourced, time_text
from ranklake.views.html.run_page import LOW_MFU
from ranklake.views.html.shell import Entry, Page, digest_of
from ranklake.views.html.site import Section
from ranklake.views.html.step_charts import values_of
from ranklake.views.words import counted, hours_text, number_text, percent_text

SECTION: Final = "executive"
HOME: Final = f"{SECTION}/index.html"
_GROUP_TITLES: Final = ("By team", "By pool", "By device")
_NO_SCHEDULER: Final = "no scheduler's pools, jobs or device samples in these days"
_NO_SAMPLES: Final = "no samples of devices in these days"
_NO_RUNS: Final = "no run in these days"
_NOT_ENDED: Final = "no run that began in these days has ended"
_NOT_FINISHED: Final = "no run that began in these days has finished"


def _marked(ratio: float) -> str:
    return f"{percent_text(ratio)}{' (low)' if ratio < LOW_MFU else ''}"


def _points(change: float) -> str:
    return f"{100 * change:+.1f}\u00a0pp"


def _energy(kwh: float) -> str:
    return f"{number_text(kwh)}\u00a0kWh"


def _change(change: float) -> str:
    return f"{'+' if change > 0 else ''}{number_text(change)}"


_FIGURES: Final = (
    ("scheduled_h", "GPU-hours scheduled", "h", hours_text, _NO_SCHEDULER,
     "Capacity that was up and open to jobs, by the snapshots of pools."),
    ("delivered_h", "delivered", "h", hours_text, _NO_SCHEDULER,
     "Time allocated to jobs: by snapshots, jobs or samples."),
    ("busy_h", "busy", "h", hours_text, _NO_SAMPLES, "Utilisation times time."),
    ("idle_h", "held idle", "h", hours_text, _NO_SAMPLES, "Time held with a utilisation of 0."),
    ("utilization_ratio", "utilization", "ratio", percent_text, _NO_SAMPLES,
     "Busy time over the time for which utilisation was known."),
    ("device_h", "held by runs", "h", hours_text, _NO_RUNS, "Wall time of runs, times their devices, as held."),
    ("wasted_h", "wasted by runs", "h", hours_text, _NO_RUNS,
     "Part of it in steps that were done again, in restarts and in stalls."),
    ("goodput_ratio", "goodput", "ratio", percent_text, _NO_RUNS,
     "Time in steps that count over wall time, weighed by devices."),
    ("mfu_ratio", "MFU", "ratio", percent_text, "",
     "Model FLOPs over the devices' peak in the steps' time, of runs whose MFU is known; marked below 30 %."),
    ("cost_total", "cost", "{currency}", number_text, "", "Device time that has a price, times the operator's prices."),
    ("cost_idle", "cost of idle", "{currency}", number_text, "", "Part of it for devices held and idle."),
    ("cost_lost_work", "cost of lost work", "{currency}", number_text, "", "Part of it for steps done again."),
    ("runs", "runs", "{run}", number_text, "", "Runs that began in these days."),
    ("success_ratio", "success", "ratio", percent_text, _NOT_ENDED,
     "Runs that finished over those that ended, of the runs that began in these days."),
    ("failures", "failures", "{failure}", number_text, "", "Attempts of these runs that failed or were abandoned."),
    ("preemptions", "preemptions", "{preemption}", number_text, "", "Attempts of these runs that were asked to end."),
    ("time_to_train_median_h", "time to train p50", "h", hours_text, _NOT_FINISHED,
     "Wall time from the end of the first start to the end, of these runs that finished."),
    ("time_to_train_p90_h", "time to train p90", "h", hours_text, _NOT_FINISHED, "Its 90th percentile."),
    ("energy_kwh", "energy", "kW.h", _energy, _NO_SAMPLES, "Energy that the devices drew while it was measured."),
)  # fmt: skip
_WEEKS: Final = (
    Column("seven days to", "Last of the UTC dates.", "last_day", text=time_text),
    Column("delivered", "GPU-hours allocated to jobs.", "delivered_h", "h", is_number=True, text=hours_text),
    Column("busy", "GPU-hours busy.", "busy_h", "h", is_number=True, text=hours_text),
    Column("utilization", "Busy over observed time.", "utilization_ratio", "ratio", is_number=True, text=percent_text),
    Column("of runs", "Device-hours of runs.", "device_h", "h", is_number=True, text=hours_text),
    Column("wasted", "Device-hours done again, in restarts and stalls.", "wasted_h", "h", is_number=True,
           text=hours_text),
    Column("goodput", "Weighed by devices.", "goodput_ratio", "ratio", is_number=True, text=percent_text),
    Column("MFU", "Of runs whose MFU is known.", "mfu_ratio", "ratio", is_number=True, text=_marked),
    Column("MFU known of", "Share of step time with a known MFU.", "mfu_known_ratio", "ratio", is_number=True,
           text=percent_text),
    Column("cost", "Of device time that has a price.", "cost_total", "{currency}", is_number=True, text=number_text),
    Column("cost known of", "Share of device time with a known cost.", "cost_known_ratio", "ratio", is_number=True,
           text=percent_text),
    Column("currency", "ISO 4217 code.", "currency"),
    Column("runs", "That began then.", "runs", "{run}", is_number=True),
    Column("success", "Finished over ended.", "success_ratio", "ratio", is_number=True, text=percent_text),
    Column("failures", "Attempts that failed or were abandoned.", "failures", "{failure}", is_number=True),
    Column("preemptions", "Attempts that were asked to end.", "preemptions", "{preemption}", is_number=True),
)  # fmt: skip
_GROUPS: Final = (
    Column("name", "As runs and jobs recorded it.", "name"),
    Column("of runs", "Device-hours of runs.", "device_h", "h", is_number=True, text=hours_text),
    Column("change", "From the seven days before.", "device_h_change", "h", is_number=True, text=_change),
    Column("wasted", "Device-hours done again, in restarts and stalls.", "wasted_h", "h", is_number=True,
           text=hours_text),
    Column("goodput", "Weighed by devices.", "goodput_ratio", "ratio", is_number=True, text=percent_text),
    Column("change of it", "In percentage points.", "goodput_change", "ratio", is_number=True, text=_points),
    Column("MFU", "Of runs whose MFU is known.", "mfu_ratio", "ratio", is_number=True, text=_marked),
    Column("change of MFU", "In percentage points.", "mfu_change", "ratio", is_number=True, text=_points),
    Column("delivered", "GPU-hours allocated.", "delivered_h", "h", is_number=True, text=hours_text),
    Column("change of delivered", "From the week before.", "delivered_h_change", "h", is_number=True, text=_change),
    Column("utilization", "Busy over observed time.", "utilization_ratio", "ratio", is_number=True, text=percent_text),
    Column("cost", "Of device time that has a price, in one currency.", "cost_total", "{currency}", is_number=True,
           text=number_text),
    Column("change of cost", "From the seven days before.", "cost_change", "{currency}", is_number=True, text=_change),
)  # fmt: skip
_CHANGES: Final = (
    Column("name", "As runs and jobs recorded it; all rows but the last add up to it.", "name"),
    Column("device time", "Device-hours of runs, from the seven days before.", "device_h_change", "h", is_number=True,
           text=_change),
    Column("wasted", "Device-hours done again, in restarts and stalls.", "wasted_h_change", "h", is_number=True,
           text=_change),
    Column("cost", "In one currency, where both weeks have a cost.", "cost_change", "{currency}", is_number=True,
           text=_change),
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
    Column("weeks", "That it is a mean of.", "weeks_used", "{week}", is_number=True),
    Column("unknown because", "Why there is no forecast.", "reason"),
)  # fmt: skip


def section(found: FleetState) -> Section:
    """Return the executive page as a section of its own."""
    headline, state = _headline(found), _state(found)
    digest = digest_of((found, LOW_MFU))
    page = Page(HOME, "Executive", "executive.html", partial(_facts, found, headline, state), digest)
    return Section(SECTION, "Executive", state, headline, HOME, (page,), (Entry("Executive", "page", state, HOME),))


def _headline(found: FleetState) -> str:
    week = found.week.one
    if not week:
        return "Nothing to tell yet"
    told = []
    if week["delivered_h"] is not None:
        told.append(f"{hours_text(week['delivered_h'])} of GPU time delivered")
    if week["device_h"] is not None:
        told.append(f"{hours_text(week['device_h'])} of device time in runs")
    if week["utilization_ratio"] is not None:
        told.append(f"utilization {percent_text(week['utilization_ratio'])}")
    if week["goodput_ratio"] is not None:
        told.append(f"goodput {percent_text(week['goodput_ratio'])}")
    if week["mfu_ratio"] is not None:
        told.append(f"MFU {_marked(week['mfu_ratio'])}")
    if week["failures"]:
        told.append(counted(week["failures"], "failure"))
    return f"Seven days to {found.through}: {', '.join(told) or 'nothing ran'}"


def _state(found: FleetState) -> str:
    mfu = found.week.one.get("mfu_ratio")
    if not found.week.rows:
        return "unchecked"
    return "warning" if mfu is not None and mfu < LOW_MFU else "passed"


def _facts(found: FleetState, headline: str, state: str) -> Mapping[str, Any]:
    groups = [
        _table(f"group-{place}", f"{title}, most device time first", one, ["name"], _GROUPS)
        for place, (title, one) in enumerate(zip(_GROUP_TITLES, found.groups, strict=True))
    ]
    changes = [
        _table(f"change-{place}", f"What changed since the week before, {title.lower()}", one, ["name"], _CHANGES,
               "Nothing is told of one of the two weeks.")
        for place, (title, one) in enumerate(zip(_GROUP_TITLES, found.changes, strict=True))
        if one.rows or not place  # once is enough where nothing is told
    ]  # fmt: skip
    forecast = _table("forecast", "Forecast, if the next week is like those before", found.forecast, ["measure"],
                      _FORECAST)  # fmt: skip
    weeks = _table("weeks", "Week by week, latest first", found.weeks, ["last_day"], _WEEKS)
    return {
        "lake": found.lake,
        "headline": headline,
        "state": state,
        "nothing": found.week.reason,
        "figures": sorted(_figures(found), key=lambda one: one.value is None) if found.week.rows else [],
        "charts": list(_charts(found.days)),
        "tables": [*changes, forecast, weeks, *groups] if found.week.rows else [],
    }


def _figures(found: FleetState) -> Iterator[Figure]:
    week: Row = found.week.one
    before: Row = found.weeks.rows[1]
    source = sourced("week", found.week, "The week before is the second row of the table of weeks.")
    for name, label, unit, text, why, definition in _FIGURES:
        value = week[name]
        if value is None:
            reason = week["mfu_reason"] or _NO_RUNS if name == "mfu_ratio" else why or week["cost_reason"] or "no cost"
            yield Figure(label, None, unit, definition, source, name, "", str(reason))
            continue
        notes = [] if before[name] is None else [f"week before: {text(before[name])}"]
        notes += [_part(week)] if unit == "{currency}" and week["cost_reason"] else []
        state = "warning" if name == "mfu_ratio" and value < LOW_MFU else ""
        mark = " (below 30 %)" if state else ""
        money = f" {week['currency']}" if unit == "{currency}" else ""
        yield Figure(label + mark, value, unit, definition, source, name, state, "; ".join(notes), text(value) + money)


def _part(week: Row) -> str:
    """Return of which part of the device time a cost is known, and why not of the rest."""
    known = week["cost_known_ratio"]
    part = "not of all" if known is None or known == 1 else f"of {percent_text(known)} of the"
    return f"known {part} device time: {week['cost_reason']}"


def _charts(days: Answered) -> Iterator[Chart]:
    source = sourced("days", days)
    hours = {"delivered_h": "delivered", "busy_h": "busy", "idle_h": "held idle", "device_h": "of runs",
             "wasted_h": "wasted by runs"}  # fmt: skip
    ratios = {"utilization_ratio": "utilization", "goodput_ratio": "goodput"}
    for name, title, words, parts, unit, form in (
        ("hours", "Device time by date", "Hours of devices a day, by what is known of them.", hours, "h", ",.3~r"),
        ("ratios", "Utilization and goodput by date", "Ratios of sums over the day.", ratios, "ratio", PERCENT),
    ):
        known = {one: said for one, said in parts.items() if any(row[one] is not None for row in days.rows)}
        if known:
            values = [{**dict.fromkeys(known), **row} for row in values_of(days.rows, ["date", *known])]
            yield Chart(name, title, words, lines_by_date(values, known, unit, form), source)


def _table(
    name: str,
    caption: str,
    found: Answered,
    key: list[str],
    columns: tuple[Column, ...],
    empty: str = "Nothing in these days.",
) -> FactTable:
    return FactTable(caption, sourced(name, found), columns, key, name, found.rows, empty=empty)
