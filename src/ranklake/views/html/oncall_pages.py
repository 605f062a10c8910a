"""The on-call page: what needs attention, worst first, with evidence and a next step."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ranklake.insight.overview.oncall import OnCall
from ranklake.insight.runs.need import Need
from ranklake.printable import counted
from ranklake.views.html.alerts_pages import FIRING
from ranklake.views.html.alerts_pages import HREF as ALERTS
from ranklake.views.html.figures import Column, FactTable, Measure, answer_table, figures
from ranklake.views.html.incident_pages import href as incident_href
from ranklake.views.html.run_pages import href
from ranklake.views.html.run_tables import INCIDENTS, SEVERITIES, STATES
from ranklake.views.html.site import Section, page_section
from ranklake.views.words import length_text

if TYPE_CHECKING:
    from ranklake.insight.runs.asking import QueriedFacts

_MOST: Final = 100
_RUNNING: Final = (
    Column("run", "Whose last attempt goes on, as far as is known.", "run"),
    Column.moment("began", "When that attempt began.", "ts"),
    Column.moment("last seen", "The last thing seen of it.", "end_ts"),
    Column.number("last step", "Highest step number.", "last_step", "{step}"),
    Column.moment("last checkpoint", "When it last saved, of the last two days.", "checkpoint_ts"),
    Column.seconds("unsaved", "Since then, or since it began.", "unsaved_s"),
    Column("job", "Job that it belongs to.", "job"),
)
_FAILED: Final = (
    Column("run", "Whose attempt it was.", "run"),
    Column("status", "failed: it said so; abandoned: it died without a word.", "status"),
    Column.number("attempt", "Restart number.", "attempt"),
    Column.moment("ended", "The last thing seen of it.", "end_ts"),
    Column.number("steps", "That it did.", "steps", "{step}"),
    Column.number("last step", "Highest step number; they are numbered from 0.", "last_step", "{step}"),
    Column("first exception", "Class of the first that a log line of it has.", "exception_type"),
    Column.number("of rank", "Global rank that raised it.", "exception_rank"),
    Column("on purpose", "The fault that whoever started the run says was injected.", "injected"),
    Column("job", "Job that it belongs to.", "job"),
)
_STRAGGLERS: Final = (
    Column("run", "Whose rank it is.", "run"),
    Column.number("rank", "Global rank.", "rank"),
    Column.moment("date", "UTC date.", "date"),
    Column.ratio("longer than its peers", "Self time over its peers', less 1.", "excess_ratio"),
    Column.seconds("more a step", "Self time less its peers', a step.", "excess_s"),
    Column("cause", "Waiting for input, or computing.", "cause"),
    Column("on purpose", "The fault that whoever started the run says was injected.", "injected"),
    Column.number("attempt", "Restart number.", "attempt"),
)  # fmt: skip
_DEVICES: Final = (
    Column("device", "Its UUID.", "device_uuid"),
    Column("model", "As its driver names it.", "device_name"),
    Column("held by", "Run that held it last.", "holder"),
    Column.number("uncorrected ECC", "Errors in the last day.", "ecc_uncorrected_count", "{error}"),
    Column.number("XID", "Errors in the last day.", "xid_count", "{error}"),
    Column.ratio("throttled", "Share of the observed time.", "throttled_ratio"),
    Column.number("hottest", "In the last day.", "temperature_max_celsius", "Cel"),
    Column.moment("last seen", "Hour, UTC.", "last_hour"),
)
_LINKS: Final = (
    Column("device", "Its UUID.", "device_uuid"),
    Column("model", "As its driver names it.", "device_name"),
    Column("held by", "Run that held it last.", "holder"),
    Column.number("NVLink recoveries", "Links that were brought up again.", "nvlink_recovery_count", "{error}"),
    Column.number("CRC errors", "Of NVLink's data and flow control.", "nvlink_crc_count", "{error}"),
    Column.number("NVLink replays", "Transmissions repeated.", "nvlink_replay_count", "{error}"),
    Column.number("PCIe replays", "Likewise, on its bus.", "pcie_replay_count", "{error}"),
    Column.moment("last seen", "Its last sample.", "last_ts"),
)  # fmt: skip
CHECKS: Final = (
    Column("table", "Whose rows.", "table"),
    Column("check", "Its name in the contract.", "check_id"),
    Column("severity", "As the contract says.", "severity"),
    Column("status", "failed, or errored: nothing is known.", "status"),
    Column.number("partitions", "Dates on which it stands.", "partitions", "{partition}"),
    Column.number("rows failed", "On them.", "rows_failed", "{row}"),
    Column.moment("from", "First date.", "first_date"),
    Column.moment("to", "Last date.", "last_date"),
)


_NON_FINITE: Final = (
    Column("run", "Whose attempt it is.", "run"),
    Column("status", "How it ended.", "status"),
    Column.number("attempt", "Restart number.", "attempt"),
    Column.number("steps not finite", "Steps in which something was NaN or infinite.", "non_finite_steps", "{step}"),
    Column("last loss", "If it is no finite number.", "last_loss_flag"),
    Column.moment("last seen", "The last thing seen of it.", "end_ts"),
)
_KILLED: Final = (
    Column("run", "That held the host; unknown for none.", "run"),
    Column.number("hosts", "On which that happened.", "hosts", "{host}"),
    Column.number("kills", "By the kernel or a cgroup.", "kills", "{process}"),
    Column.moment("first", "Hour, UTC.", "first_hour"),
    Column.moment("last", "Hour, UTC.", "last_hour"),
)
_SAVES: Final = (
    Column("run", "Whose artifact it is.", "run"),
    Column("fault", "save_failed, load_failed; changed: its bytes are not those that were written.", "fault"),
    Column("kind", "What it is.", "kind"),
    Column.number("times", "How often.", "times", "{event}"),
    Column.moment("last", "When it last happened.", "last_ts"),
    Column("name", "Of the last one.", "last_name"),
    Column("exception", "Class of the last one.", "exception_type"),
)
_UNREADABLE: Final = (
    Column("table", "That the rows are of.", "table"),
    Column("run", "That recorded them.", "run"),
    Column.number("segments", "That cannot be read; their bytes are kept.", "segments", "{segment}"),
    Column.number("rows", "By the segments' names.", "rows", "{row}"),
    Column.moment("from", "First date.", "first_date"),
    Column.moment("to", "Last date.", "last_date"),
)


_MEASURES: Final = (
    Measure("lag_s", "pipeline lag", "s", "From the newest row's own time to the commit that brought it in.",
            length_text, "no row of the last month came in"),
    Measure("rows_stored", "rows stored", "{row}", "By the last ingest."),
    Measure("rows_rejected", "rows refused", "{row}", "By the last ingest.", state="warning"),
)  # fmt: skip


def section(oncall: OnCall) -> Section:
    """Return the on-call page as a section of its own."""
    failing = sum(need.state == "failing" for need in oncall.needs)
    state = "unchecked" if oncall.until is None else "failing" if failing else "warning" if oncall.needs else "passed"
    return page_section("oncall", "On-call", state, _headline(oncall, failing), oncall, lambda: _parts(oncall))


def _headline(oncall: OnCall, failing: int) -> str:
    if oncall.until is None:
        return "Nothing to tell yet: nothing was ingested"
    if not oncall.needs:
        return "Nothing needs a look"
    others = len(oncall.needs) - failing
    now = [f"{counted(failing, 'thing')} to fix now"] if failing else []
    return ", ".join([*now, *([counted(others, "warning")] if others else [])])


def _parts(oncall: OnCall) -> Mapping[str, Any]:
    if oncall.until is None:
        return {"lake": oncall.lake, "hint": "run 'ranklake pipeline'"}
    return {
        "lake": oncall.lake,
        "hint": "as of the last ingest,",
        "as_of": oncall.until,
        "needs": [(need, _page(oncall, need)) for need in oncall.needs[:_MOST]],
        "more": max(len(oncall.needs) - _MOST, 0),
        "figures": list(figures("pipeline", oncall.pipeline, _MEASURES)),
        "tables": list(_tables(oncall)),
    }


def _page(oncall: OnCall, need: Need) -> str:
    """Return the page of a need: of its incident, else of its run; empty for none."""
    if need.incident in oncall.paged:
        return incident_href(need.incident)
    return href(need.run) if need.run in oncall.paged else ""


def _tables(oncall: OnCall) -> Iterator[FactTable]:
    links = {run: href(run) for run in oncall.paged}
    listed = oncall.incidents
    yield answer_table("incidents", "Incidents of the last two days, worst first", listed.answered, ["incident_id"],
                       INCIDENTS, "None.", states=SEVERITIES,
                       links={name: incident_href(name) for name in oncall.paged},
                       notes={incident.id: incident.state for incident in listed.listed})  # fmt: skip
    yield answer_table("alerts", "Alerts that fire", oncall.alerts, ["alert_id"], FIRING, "None.",
                       links={row["alert_id"]: ALERTS for row in oncall.alerts.rows}, states=SEVERITIES)  # fmt: skip
    runs = (
        ("running", "Runs that go on", oncall.running, ["run"], _RUNNING),
        ("failed", "Runs that failed in the last two days", oncall.failed, ["run", "attempt"], _FAILED),
        ("stragglers", "Slow ranks of the last two days", oncall.stragglers, ["run", "attempt", "rank", "date"],
         _STRAGGLERS),
    )  # fmt: skip
    for name, caption, answer, key, columns in runs:
        yield answer_table(name, caption, answer, key, columns, "None.", links=links, states=STATES)
    sampled = "None, of those that were sampled."
    title = "Devices that throttled, ran hot or had errors in the last day"
    yield answer_table("devices", title, oncall.devices, ["device_uuid"], _DEVICES, sampled, states=STATES)
    title = "Devices whose links had errors in the last day"
    yield answer_table("links", title, oncall.links, ["device_uuid"], _LINKS, sampled, states=STATES)
    key = ["table", "check_id", "severity", "status"]
    none = "None, of those that were checked."
    yield answer_table("checks", "Checks that fail", oncall.checks, key, CHECKS, none, states=STATES)
    others: tuple[tuple[str, str, QueriedFacts, list[str], tuple[Column, ...]], ...] = (
        ("non_finite", "Runs with NaN or infinite values in the last two days", oncall.non_finite, ["run", "attempt"],
         _NON_FINITE),
        ("killed", "Processes killed for memory in the last two days", oncall.killed, ["run"], _KILLED),
        ("saves", "Artifacts that failed or changed in the last two days", oncall.saves, ["run", "kind", "fault"],
         _SAVES),
        ("unreadable", "Segments that cannot be read, of the last two days", oncall.unreadable, ["table", "run"],
         _UNREADABLE),
    )  # fmt: skip
    for name, caption, answer, keys, shown in others:
        yield answer_table(name, caption, answer, keys, shown, "None.", links=links)
