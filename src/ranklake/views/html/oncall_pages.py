"""The on-call page: what needs a look, worst first, with evidence and a next step, from `ranklake.insight.oncall`."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from ranklake.insight.oncall.facts import OnCall
from ranklake.insight.runs.asking import Answered
from ranklake.views.html.figures import Column, FactTable, Figure, sourced, time_text
from ranklake.views.html.run_pages import href
from ranklake.views.html.run_tables import STATES
from ranklake.views.html.shell import Entry, Page, digest_of
from ranklake.views.html.site import Section
from ranklake.views.words import counted, percent_text
from ranklake.views.words import time_text as length_text

SECTION: Final = "oncall"
HOME: Final = f"{SECTION}/index.html"
_MOST: Final = 100
_RUNNING: Final = (
    Column("run", "Whose last attempt goes on, as far as is known.", "run"),
    Column("began", "When that attempt began.", "ts", text=time_text),
    Column("last seen", "The last thing seen of it.", "end_ts", text=time_text),
    Column("last step", "Highest step number.", "last_step", "{step}", is_number=True),
    Column("last checkpoint", "When it last saved, of the last two days.", "checkpoint_ts", text=time_text),
    Column("unsaved", "Since then, or since it began.", "unsaved_s", "s", is_number=True, text=length_text),
    Column("job", "Job that it belongs to.", "job"),
)
_FAILED: Final = (
    Column("run", "Whose attempt it was.", "run"),
    Column("status", "failed: it said so; abandoned: it died without a word.", "status"),
    Column("attempt", "Restart number.", "attempt", is_number=True),
    Column("ended", "The last thing seen of it.", "end_ts", text=time_text),
    Column("steps", "That it did.", "steps", "{step}", is_number=True),
    Column("last step", "Highest step number; they are numbered from 0.", "last_step", "{step}", is_number=True),
    Column("on purpose", "The fault that whoever started the run says was injected.", "injected"),
    Column("job", "Job that it belongs to.", "job"),
)
_STRAGGLERS: Final = (
    Column("run", "Whose rank it is.", "run"),
    Column("rank", "Global rank.", "rank", is_number=True),
    Column("date", "UTC date.", "date", text=time_text),
    Column("longer than its peers", "Self time over its peers', less 1.", "excess_ratio", "ratio", is_number=True,
           text=percent_text),
    Column("more a step", "Self time less its peers', a step.", "excess_s", "s", is_number=True, text=length_text),
    Column("cause", "Waiting for input, or computing.", "cause"),
    Column("on purpose", "The fault that whoever started the run says was injected.", "injected"),
    Column("attempt", "Restart number.", "attempt", is_number=True),
)  # fmt: skip
_DEVICES: Final = (
    Column("device", "Its UUID.", "device_uuid"),
    Column("model", "As its driver names it.", "device_name"),
    Column("held by", "Run that held it last.", "holder"),
    Column("uncorrected ECC", "Errors in the last day.", "ecc_uncorrected_count", "{error}", is_number=True),
    Column("XID", "Errors in the last day.", "xid_count", "{error}", is_number=True),
    Column("throttled", "Share of the observed time.", "throttled_ratio", "ratio", is_number=True, text=percent_text),
    Column("hottest", "In the last day.", "temperature_max_celsius", "Cel", is_number=True),
    Column("last seen", "Hour, UTC.", "last_hour", text=time_text),
)
_LINKS: Final = (
    Column("device", "Its UUID.", "device_uuid"),
    Column("model", "As its driver names it.", "device_name"),
    Column("held by", "Run that held it last.", "holder"),
    Column("NVLink recoveries", "Links that were brought up again.", "nvlink_recovery_count", "{error}",
           is_number=True),
    Column("CRC errors", "Of NVLink's data and flow control.", "nvlink_crc_count", "{error}", is_number=True),
    Column("NVLink replays", "Transmissions repeated.", "nvlink_replay_count", "{error}", is_number=True),
    Column("PCIe replays", "Likewise, on its bus.", "pcie_replay_count", "{error}", is_number=True),
    Column("last seen", "Its last sample.", "last_ts", text=time_text),
)  # fmt: skip
CHECKS: Final = (
    Column("table", "Whose rows.", "table"),
    Column("check", "Its name in the contract.", "check_id"),
    Column("severity", "As the contract says.", "severity"),
    Column("status", "failed, or errored: nothing is known.", "status"),
    Column("partitions", "Dates on which it stands.", "partitions", "{partition}", is_number=True),
    Column("rows failed", "On them.", "rows_failed", "{row}", is_number=True),
    Column("from", "First date.", "first_date", text=time_text),
    Column("to", "Last date.", "last_date", text=time_text),
)


def section(found: OnCall) -> Section:
    """Return the on-call page as a section of its own."""
    failing = sum(one.state == "failing" for one in found.needs)
    state = "unchecked" if found.until is None else "failing" if failing else "warning" if found.needs else "passed"
    headline = _headline(found, failing)
    digest = digest_of(found)
    page = Page(HOME, "On-call", "oncall.html", partial(_facts, found, headline, state), digest)
    return Section(SECTION, "On-call", state, headline, HOME, (page,), (Entry("On-call", "page", state, HOME),))


def _headline(found: OnCall, failing: int) -> str:
    if found.until is None:
        return "Nothing to tell yet: nothing was ingested"
    if not found.needs:
        return "Nothing needs a look"
    others = len(found.needs) - failing
    told = [f"{counted(failing, 'thing')} to mend now"] if failing else []
    return ", ".join([*told, *([f"{counted(others, 'warning')}"] if others else [])])


def _facts(found: OnCall, headline: str, state: str) -> Mapping[str, Any]:
    return {
        "lake": found.lake,
        "headline": headline,
        "state": state,
        "until": found.until,
        "needs": [(one, href(one.run) if one.run in found.paged else "") for one in found.needs[:_MOST]],
        "more": max(len(found.needs) - _MOST, 0),
        "figures": list(_figures(found)) if found.until else [],
        "tables": [*_tables(found)] if found.until else [],
    }


def _figures(found: OnCall) -> Iterator[Figure]:
    row, source = found.pipeline.one, sourced("pipeline", found.pipeline)
    late = row["lag_s"]
    said = "From the newest row's own time to the commit that brought it in."
    why = "no row of the last month came in"
    text = "" if late is None else length_text(late)
    yield Figure("pipeline lag", late, "s", said, source, "lag_s", "", why if late is None else "", text)
    yield Figure("rows stored", row["rows_stored"], "{row}", "By the last ingest.", source, "rows_stored")
    refused = row["rows_rejected"]
    mark = "warning" if refused else ""
    yield Figure("rows refused", refused, "{row}", "By the last ingest.", source, "rows_rejected", mark)


def _tables(found: OnCall) -> Iterator[FactTable]:
    yield _table("running", "Runs that go on", found.running, ["run"], _RUNNING, "None.", found.paged)
    yield _table(
        "failed",
        "Runs that failed in the last two days",
        found.failed,
        ["run", "attempt"],
        _FAILED,
        "None.",
        found.paged,
    )
    key = ["run", "attempt", "rank", "date"]
    yield _table(
        "stragglers", "Slow ranks of the last two days", found.stragglers, key, _STRAGGLERS, "None.", found.paged
    )
    title = "Devices that throttled, ran hot or told of errors in the last day"
    yield _table("devices", title, found.devices, ["device_uuid"], _DEVICES, "None, of those that were sampled.")
    title = "Devices whose links told of errors in the last day"
    yield _table("links", title, found.links, ["device_uuid"], _LINKS, "None, of those that were sampled.")
    key = ["table", "check_id", "severity", "status"]
    yield _table("checks", "Checks that fail", found.checks, key, CHECKS, "None, of those that were checked.")


def _table(
    name: str,
    caption: str,
    found: Answered,
    key: list[str],
    columns: tuple[Column, ...],
    empty: str,
    paged: tuple[str, ...] = (),
) -> FactTable:
    links = {run: href(run) for run in paged} if key[0] == "run" else {}
    return FactTable(caption, sourced(name, found), columns, key, name, found.rows, links, STATES, empty)
