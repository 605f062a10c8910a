"""Tables of a run's page: which columns of its facts they show, and what each means."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ranklake.insight.runs.asking import Answered
from ranklake.insight.runs.facts import RunFacts
from ranklake.insight.runs.media import MOST_MEDIA, MOST_OF_A_NAME
from ranklake.insight.runs.report import MOST_CHARACTERS, MOST_LINES, NO_LINES, RunState
from ranklake.views.html.figures import Column, FactTable, moment_text, sourced, time_text
from ranklake.views.words import percent_text, size_text
from ranklake.views.words import time_text as length_text

STATES: Final[Mapping[str, str]] = {
    "finished": "passed", "failed": "failing", "abandoned": "errored", "preempted": "warning", "running": "unchecked",
    "imported": "skipped", "interrupted": "warning",
}  # fmt: skip
"""States of the report by the status of a run."""
HEALTH_TITLE: Final = "Ranks, slowest first"


def tables(facts: RunFacts, *, is_for_role: bool = False) -> Iterator[FactTable]:
    """Yield the tables of a run; to a role with names of hosts, as it sees them."""
    yield _table("attempts", "Attempts", facts.attempts, ["attempt"], _ATTEMPTS, "no attempts", STATES)
    yield _table("health", HEALTH_TITLE, facts.health, ["attempt", "rank"], _HEALTH, "ranks were not compared")
    if facts.nodes.rows or facts.nodes.reason:
        caption = "Where ranks are that ended badly or hold the others up"
        columns = (*_NODES, *([_HOST] if is_for_role else []))
        yield _table("nodes", caption, facts.nodes, ["attempt", "rank"], columns, "not recorded")
    yield _table("events", "Events", facts.events, ["event", "severity", "attempt"], _EVENTS, "no events", _SEVERITIES)
    yield _table(
        "artifacts",
        "Artifacts, latest first",
        facts.artifacts,
        ["name", "ts", "action", "attempt"],
        _ARTIFACTS,
        "none recorded",
    )
    yield _table(
        "datasets", "Datasets", facts.datasets, ["name", "version", "split", "role"], _DATASETS, "none recorded"
    )
    yield _table(
        "gaps", "Rows that are missing", facts.gaps, ["table"], _GAPS, "none: all rows were recorded and stored"
    )
    yield _table("logs", "Log lines", facts.logs, ["severity"], _LOGS, "none recorded")


def lines_tables(found: RunState) -> Iterator[FactTable]:
    """Yield the table of log lines, of a page for a role; errors first."""
    if found.lines.reason == NO_LINES:
        return
    caption = f"Log lines: errors, then the latest; at most {MOST_LINES}"
    key = ["ts", "rank", "message"]
    yield _table("lines", caption, found.lines, key, _LINES, "no lines", _LEVELS)


def media_table(found: RunState) -> Iterator[FactTable]:
    """Yield the table of media, of a run that has some."""
    listed = found.media.listed
    if listed.rows or listed.reason:
        caption = f"Media: of each name the latest {MOST_OF_A_NAME}, at most {MOST_MEDIA}"
        if listed.rows and (count := listed.rows[0]["of_run"]) > len(listed.rows):
            caption += f": {len(listed.rows)} of {count:,}"
        yield _table("media", caption, listed, ["name", "ts", "rank", "attempt"], _MEDIA, "none recorded")


def _table(
    name: str, caption: str, found: Answered, key: Sequence[str], columns: Sequence[Column], empty: str,
    states: Mapping[str, str] | None = None,
) -> FactTable:  # fmt: skip
    told = f"Unknown: {found.reason}." if found.reason else f"{empty[0].upper()}{empty[1:]}."
    return FactTable(caption, sourced(name, found), columns, key, name, found.rows, {}, states or {}, told)


def _seconds(ns: int) -> str:
    return length_text(ns / 1e9)


_SEVERITIES: Final = {"warning": "warning", "error": "failing", "critical": "failing", "fatal": "failing"}
_ATTEMPTS: Final = (
    Column("attempt", "Restart number, from 0.", "attempt"),
    Column("status", "How it ended.", "status"),
    Column("began", "Its start; of a restart the end of the attempt before.", "ts", text=time_text),
    Column("last seen", "Its end, or the last thing seen of it.", "end_ts", text=time_text),
    Column("steps", "Counted once whatever the number of ranks.", "steps", "{step}", is_number=True),
    Column("from", "Lowest step number.", "first_step", is_number=True),
    Column("to", "Highest step number.", "last_step", is_number=True),
    Column("goodput", "Productive over wall time.", "goodput_ratio", "ratio", is_number=True, text=percent_text),
    Column("MFU", "Model FLOPs over the peak of its devices.", "mfu_ratio", "ratio", is_number=True, text=percent_text),
    Column("wall time", "The kinds of time add up to it.", "wall_ns", "ns", is_number=True, text=_seconds),
    Column("productive", "Steps that count.", "productive_ns", "ns", is_number=True, text=_seconds),
    Column("init", "To the first step of the first attempt.", "init_ns", "ns", is_number=True, text=_seconds),
    Column("checkpoint", "In checkpoints.", "checkpoint_ns", "ns", is_number=True, text=_seconds),
    Column("restart", "To the first step of a restart.", "restart_ns", "ns", is_number=True, text=_seconds),
    Column("lost work", "In steps that were done again.", "lost_work_ns", "ns", is_number=True, text=_seconds),
    Column("stall", "Without progress.", "stall_ns", "ns", is_number=True, text=_seconds),
    Column("unattributed", "That nothing is known of.", "unattributed_ns", "ns", is_number=True, text=_seconds),
)  # fmt: skip
_HEALTH: Final = (
    Column("rank", "Global rank.", "rank"),
    Column("verdict", "In words, with its figures, of the worst day.", "reason"),
    Column("longer than its peers", "Self time over its peers', less 1.", "excess_ratio",
           "ratio", is_number=True, text=percent_text),
    Column("more a step", "Self time less its peers', a step.", "excess_s", "s", is_number=True, text=length_text),
    Column("steps compared", "Held against its peers.", "steps_compared", "{step}", is_number=True),
    Column("cause", "Of a straggler: waiting for input, or computing.", "cause"),
    Column("attempt", "Restart number.", "attempt", is_number=True),
)  # fmt: skip
_NODES: Final = (
    Column("rank", "Global rank.", "rank"),
    Column("node", "Of the attempt, from 0, by the lowest rank on each. 'ranklake show' names its host, which pages do "
           "not.", "node", is_number=True),
    Column("nodes", "Of the attempt.", "node_count", "{node}", is_number=True),
    Column("local rank", "Its number on that node, from 0.", "local_rank", is_number=True),
    Column("ranks there", "Of the attempt, on that node.", "rank_count", "{rank}", is_number=True),
    Column("from", "Lowest rank on that node.", "first_rank", is_number=True),
    Column("to", "Highest rank on that node.", "last_rank", is_number=True),
    Column("device", "As its driver names it.", "device_name"),
    Column("attempt", "Restart number.", "attempt", is_number=True),
)  # fmt: skip
_HOST: Final = Column("host", "As the role sees it.", "host")
_EVENTS: Final = (
    Column("event", "What happened; messages are not shown, since they are free text.", "event"),
    Column("severity", "How bad it is.", "severity"),
    Column("count", "How often.", "n", "{event}", is_number=True),
    Column("first", "When first.", "first_ts", text=time_text),
    Column("last", "When last.", "last_ts", text=time_text),
    Column("last step", "Highest step that it names.", "last_step", is_number=True),
    Column("attempt", "Restart number.", "attempt", is_number=True),
)  # fmt: skip
_ARTIFACTS: Final = (
    Column("name", "Unique within the run and kind.", "name"),
    Column("kind", "What it is.", "kind"),
    Column("action", "What happened to it.", "action"),
    Column("step", "Step that it holds the state of.", "step", is_number=True),
    Column("size", "Of all its files.", "bytes", "By", is_number=True, text=size_text),
    Column("took", "Time of writing, loading or verifying.", "duration_ns", "ns", is_number=True, text=_seconds),
    Column("held up", "Part of it that training waited for.", "blocking_ns", "ns", is_number=True, text=_seconds),
    Column("SHA-256", "Of its bytes, or of the list of its files.", "sha256", text=lambda text: text[:12]),
    Column("verified", "Whether the bytes had the expected digest.", "verified"),
    Column("when", "End of the action.", "ts", text=time_text),
    Column("attempt", "Restart number.", "attempt", is_number=True),
)  # fmt: skip
_MEDIA: Final = (
    Column("name", "The same at other steps.", "name"),
    Column("kind", "What it is.", "kind"),
    Column("step", "Step that it shows.", "step", is_number=True),
    Column("rank", "Global rank.", "rank", is_number=True),
    Column("size", "Of its bytes.", "bytes", "By", is_number=True, text=size_text),
    Column("rows", "Of a table or matrix; height of an image in pixels.", "row_count", is_number=True),
    Column("columns", "Of a table or matrix; width of an image in pixels.", "column_count", is_number=True),
    Column("of that name", "In all.", "of_name", "{row}", is_number=True),
    Column("when", "When it was given.", "ts", text=moment_text),
    Column("attempt", "Restart number.", "attempt", is_number=True),
)  # fmt: skip
_DATASETS: Final = (
    Column("name", "Name of the dataset.", "name"),
    Column("version", "That its makers gave it.", "version"),
    Column("split", "Part of it.", "split"),
    Column("role", "What the run used it for.", "role"),
    Column("size", "Of its files.", "bytes", "By", is_number=True, text=size_text),
    Column("samples", "In it.", "samples", "{sample}", is_number=True),
    Column("tokens", "In it.", "tokens", "{token}", is_number=True),
    Column("Merkle root", "Of the SHA-256 of its files.", "merkle_root_sha256", text=lambda text: text[:12]),
)  # fmt: skip
_GAPS: Final = (
    Column("table", "Whose rows.", "table"),
    Column("not recorded", "Rows that were due and could not be recorded.", "gap_rows", "{row}", is_number=True),
    Column("in quarantine", "Rows that went to the table rejects.", "rows_rejected", "{row}", is_number=True),
    Column("recorded", "Rows in segments.", "rows", "{row}", is_number=True),
)  # fmt: skip
_LEVELS: Final = {"ERROR": "failing", "CRITICAL": "failing", "FATAL": "failing", "WARNING": "warning"}
_LINES: Final = (
    Column("when", "By its host's clock.", "ts", text=moment_text),
    Column("level", "As the logger names it.", "severity"),
    Column("rank", "Global rank.", "rank", is_number=True),
    Column("message", f"As the role sees it; its first {MOST_CHARACTERS} characters.", "message"),
    Column("logger", "Name of the logger.", "logger"),
    Column("step", "That it was logged in.", "step", is_number=True),
    Column("exception", "Its class.", "exception_type"),
    Column("attempt", "Restart number.", "attempt", is_number=True),
)  # fmt: skip
_LOGS: Final = (
    Column("level", "As the logger names it.", "severity"),
    Column("lines", "That were kept.", "n", "{record}", is_number=True),
    Column("suppressed", "Left out by the rate limit.", "suppressed", "{record}", is_number=True),
)  # fmt: skip
