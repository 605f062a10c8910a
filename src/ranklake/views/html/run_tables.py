"""Tables of a run's page: which columns of its facts they show, and what each means."""

from collections.abc import Iterator, Mapping
from typing import Final

from ranklake.insight.incidents.incidents import Incidents
from ranklake.insight.runs.facts import RunFacts, RunHead
from ranklake.insight.runs.media import MOST_MEDIA, MOST_OF_A_NAME
from ranklake.insight.runs.report import MOST_CHARACTERS, MOST_LINES, NO_LINES, RunState
from ranklake.views.html.figures import Column, FactTable, answer_table, moment_text
from ranklake.views.run_causes import ENDINGS, launcher_of
from ranklake.views.words import hours_text

STATES: Final[Mapping[str, str]] = {
    "finished": "passed", "failed": "failing", "abandoned": "errored", "preempted": "warning", "running": "unchecked",
    "imported": "skipped", "interrupted": "warning",
}  # fmt: skip
"""States of the report by the status of a run."""
SEVERITIES: Final[Mapping[str, str]] = {
    "critical": "failing", "error": "failing", "warning": "warning", "info": "unchecked",
}  # fmt: skip
"""States of the report by severity."""
INCIDENTS: Final = (
    Column("incident", "Its id, and its state: open, closed, or as a person marked it.", "incident_id"),
    Column("severity", "The worst of its findings.", "severity"),
    Column("what", "Its leading finding.", "title"),
    Column.moment("began", "When its first finding begins.", "start_ts"),
    Column.moment("over", "When its last finding ends; unknown while one lasts.", "end_ts"),
    Column("run", "Run that was hit.", "run"),
    Column.number("findings", "How many it is made of.", "findings", "{finding}"),
    Column("affected", "The run's devices times the incident's duration.", "affected_device_s", "s", is_number=True,
           text=lambda seconds: hours_text(seconds / 3600)),
)  # fmt: skip
HEALTH_TITLE: Final = "Ranks, slowest first"


def severity_state(severity: str | None) -> str:
    """Return the state of the report for a severity, whatever a row has for one."""
    return SEVERITIES.get(severity or "", "unchecked")


def tables(facts: RunFacts, *, is_for_role: bool = False) -> Iterator[FactTable]:
    """Yield the tables of a run. For a role they include host names, masked as the role sees them."""
    states: Mapping[str, Mapping[str, str]] = {"attempts": STATES, "events": _SEVERITIES}
    for name, caption, key, columns, empty in (
        ("attempts", "Attempts", ["attempt"], _ATTEMPTS, "No attempts."),
        ("health", HEALTH_TITLE, ["attempt", "rank"], _HEALTH, "Ranks were not compared."),
        ("nodes", "Nodes of ranks that failed or slow the others down", ["attempt", "rank"],
         (*_NODES, *([_HOST] if is_for_role else [])), "Not recorded."),
        ("events", "Events", ["event", "severity", "attempt"], _EVENTS, "No events."),
        ("artifacts", "Artifacts, latest first", ["name", "ts", "action", "attempt"], _ARTIFACTS, "None recorded."),
        ("datasets", "Datasets", ["name", "version", "split", "role"], _DATASETS, "None recorded."),
        ("gaps", "Rows that are missing", ["table"], _GAPS, "None: all rows were recorded and stored."),
        ("logs", "Log lines", ["severity"], _LOGS, "None recorded."),
    ):  # fmt: skip
        answer = getattr(facts, name)
        if name != "nodes" or answer.rows or answer.reason:
            yield answer_table(name, caption, answer, key, columns, empty, states=states.get(name, {}))


def failed_ends_table(facts: RunHead) -> FactTable:
    """Return the failed ends of attempts: the first rank on top, and the ranks that ended because of it."""
    rows = facts.ends.rows
    launcher = launcher_of(facts, rows[-1]["attempt"]) if rows else ""
    by_launcher = f"ended by the launcher ({launcher})" if launcher else ENDINGS["preemption"]
    texts = {**ENDINGS, "stopped": by_launcher}
    columns = (
        Column("rank", "Global rank.", "rank"),
        Column("what", "How it ended. Ranks that a launcher ends after another's failure are consequences.", "ending",
               text=lambda ending: texts.get(ending, ending)),
        Column.number("after rank", "The rank that died or failed first, if at most 60 s before.",
                      "follows"),
        Column.seconds("after the first", "How long after the attempt's first bad end.", "after_s"),
        Column.number("in step", "Step that it had begun and not ended, if recorded; steps are numbered from 0.",
                      "step"),
        Column.number("last step", "Last step that the rank recorded.", "last_step"),
        Column("when", "By its host's clock; of a rank that died, its last record's time.", "ts", text=moment_text),
        Column.number("ranks alike", "Ranks of the attempt with the same event.", "ranks", "{rank}"),
        Column.number("attempt", "Restart number, from 0.", "attempt"),
    )  # fmt: skip
    key = ["attempt", "rank", "ending"]
    return answer_table("ends", "What ended attempts", facts.ends, key, columns, "Nothing did.", states=_END_STATES)


def incidents_table(run_incidents: Incidents) -> FactTable:
    """Return the incidents of a run, each with its state."""
    return answer_table(
        "incidents", "Incidents, worst first; details: ranklake incidents show ID", run_incidents.answered,
        ["incident_id"], INCIDENTS, "None.", states=SEVERITIES,
        notes={incident.id: incident.state for incident in run_incidents.listed},
    )  # fmt: skip


def lines_tables(run: RunState) -> Iterator[FactTable]:
    """Yield the table of log lines, errors first. Only pages for a role have it."""
    if run.lines.reason != NO_LINES:
        caption = f"Log lines: errors, then the latest; at most {MOST_LINES}"
        yield answer_table("lines", caption, run.lines, ["ts", "rank", "message"], _LINES, "No lines.", states=_LEVELS)


def media_table(run: RunState) -> Iterator[FactTable]:
    """Yield the table of media if the run has any."""
    listed = run.media.listed
    if listed.rows or listed.reason:
        caption = f"Media: of each name the latest {MOST_OF_A_NAME}, at most {MOST_MEDIA}"
        if listed.rows and (count := listed.rows[0]["of_run"]) > len(listed.rows):
            caption += f": {len(listed.rows)} of {count:,}"
        yield answer_table("media", caption, listed, ["name", "ts", "rank", "attempt"], _MEDIA, "None recorded.")


_END_STATES: Final[Mapping[str, str]] = {
    "abandoned": "failing", "failure": "failing", "interruption": "warning", "preemption": "warning",
    "stopped": "skipped",
}  # fmt: skip
_SEVERITIES: Final = {"warning": "warning", "error": "failing", "critical": "failing", "fatal": "failing"}
_ATTEMPTS: Final = (
    Column("attempt", "Restart number, from 0.", "attempt"),
    Column("status", "How it ended.", "status"),
    Column.moment("began", "Its start; a restart begins at the end of the attempt before.", "ts"),
    Column.moment("last seen", "Its end, or when its last record was made.", "end_ts"),
    Column.number("steps", "Distinct steps, each counted once for all ranks.", "steps", "{step}"),
    Column.number("from", "Lowest step number.", "first_step"),
    Column.number("to", "Highest step number.", "last_step"),
    Column.ratio("goodput", "Productive over wall time.", "goodput_ratio"),
    Column.ratio("MFU", "Model FLOPs over the peak of its devices.", "mfu_ratio"),
    Column.nanoseconds("wall time", "Sum of the kinds of time below.", "wall_ns"),
    Column.nanoseconds("productive", "Time in steps that were not repeated later.", "productive_ns"),
    Column.nanoseconds("init", "Time to the first step of the first attempt.", "init_ns"),
    Column.nanoseconds("checkpoint", "Time in checkpoints.", "checkpoint_ns"),
    Column.nanoseconds("restart", "Time to the first step of a restart.", "restart_ns"),
    Column.nanoseconds("lost work", "Time in steps that were repeated after a restart.", "lost_work_ns"),
    Column.nanoseconds("stall", "Time without progress.", "stall_ns"),
    Column.nanoseconds("unattributed", "Time without any record.", "unattributed_ns"),
)  # fmt: skip
_HEALTH: Final = (
    Column("rank", "Global rank.", "rank"),
    Column("verdict", "Verdict and figures of the worst day.", "reason"),
    Column.ratio("longer than its peers", "Self time divided by its peers', minus 1.", "excess_ratio"),
    Column.seconds("more a step", "Self time minus its peers', per step.", "excess_s"),
    Column.number("steps compared", "Steps in which it was compared with its peers.", "steps_compared", "{step}"),
    Column("cause", "Of a straggler: waiting for input, or computing.", "cause"),
    Column.number("attempt", "Restart number.", "attempt"),
)  # fmt: skip
_NODES: Final = (
    Column("rank", "Global rank.", "rank"),
    Column.number("node",
                  "Number of the node in the attempt, from 0, ordered by lowest rank. 'ranklake show' prints its host.",
                  "node"),
    Column.number("nodes", "Nodes of the attempt.", "node_count", "{node}"),
    Column.number("local rank", "Its number on that node, from 0.", "local_rank"),
    Column.number("ranks there", "Ranks of the attempt on that node.", "rank_count", "{rank}"),
    Column.number("from", "Lowest rank on that node.", "first_rank"),
    Column.number("to", "Highest rank on that node.", "last_rank"),
    Column("device", "As its driver names it.", "device_name"),
    Column.number("attempt", "Restart number.", "attempt"),
)  # fmt: skip
_HOST: Final = Column("host", "As the role sees it.", "host")
_EVENTS: Final = (
    Column("event", "Kind of event. Messages are free text and are not shown.", "event"),
    Column("severity", "How bad it is.", "severity"),
    Column.number("count", "How often.", "n", "{event}"),
    Column.moment("first", "Time of the first event.", "first_ts"),
    Column.moment("last", "Time of the last event.", "last_ts"),
    Column.number("last step", "Highest step of these events.", "last_step"),
    Column.number("attempt", "Restart number.", "attempt"),
)  # fmt: skip
_ARTIFACTS: Final = (
    Column("name", "Unique within the run and kind.", "name"),
    Column("kind", "What it is.", "kind"),
    Column("action", "What happened to it.", "action"),
    Column.number("step", "Step whose state it holds.", "step"),
    Column.size("size", "Size of all its files.", "bytes"),
    Column.nanoseconds("took", "Time of writing, loading or verifying.", "duration_ns"),
    Column.nanoseconds("held up", "Part of it that training waited for.", "blocking_ns"),
    Column("SHA-256", "SHA-256 of its bytes, or of the list of its files.", "sha256", text=lambda text: text[:12]),
    Column("verified at load", "Whether a load found the recorded digest; else ranklake verify-artifact.", "verified"),
    Column.moment("when", "End of the action.", "ts"),
    Column.number("attempt", "Restart number.", "attempt"),
)  # fmt: skip
_MEDIA: Final = (
    Column("name", "Name that it was logged under, the same at each step.", "name"),
    Column("kind", "What it is.", "kind"),
    Column.number("step", "Step in which it was logged.", "step"),
    Column.number("rank", "Global rank.", "rank"),
    Column.size("size", "Size in bytes.", "bytes"),
    Column.number("rows", "Rows of a table or matrix; height of an image in pixels.", "row_count"),
    Column.number("columns", "Columns of a table or matrix; width of an image in pixels.", "column_count"),
    Column.number("of that name", "All media of that name in the run.", "of_name", "{row}"),
    Column("when", "When it was logged.", "ts", text=moment_text),
    Column.number("attempt", "Restart number.", "attempt"),
)  # fmt: skip
_DATASETS: Final = (
    Column("name", "Name of the dataset.", "name"),
    Column("version", "Version as its publisher names it.", "version"),
    Column("split", "Part of the dataset, such as train.", "split"),
    Column("role", "What the run used it for.", "role"),
    Column.size("size", "Size of its files.", "bytes"),
    Column.number("samples", "Samples in the dataset.", "samples", "{sample}"),
    Column.number("tokens", "Tokens in the dataset.", "tokens", "{token}"),
    Column("Merkle root", "Merkle root of its files' SHA-256.", "merkle_root_sha256", text=lambda text: text[:12]),
)  # fmt: skip
_GAPS: Final = (
    Column("table", "Table whose rows are missing.", "table"),
    Column.number("not recorded", "Rows that were due and could not be recorded.", "gap_rows", "{row}"),
    Column.number("in quarantine", "Rows in the table rejects.", "rows_rejected", "{row}"),
    Column.number("recorded", "Rows in segments.", "rows", "{row}"),
)  # fmt: skip
_LEVELS: Final = {"ERROR": "failing", "CRITICAL": "failing", "FATAL": "failing", "WARNING": "warning"}
_LINES: Final = (
    Column("when", "By its host's clock.", "ts", text=moment_text),
    Column("level", "As the logger names it.", "severity"),
    Column.number("rank", "Global rank.", "rank"),
    Column("message", f"As the role sees it; its first {MOST_CHARACTERS} characters.", "message"),
    Column("logger", "Name of the logger.", "logger"),
    Column.number("step", "Step in which it was logged.", "step"),
    Column("exception", "Class of the exception.", "exception_type"),
    Column.number("attempt", "Restart number.", "attempt"),
)  # fmt: skip
_LOGS: Final = (
    Column("level", "As the logger names it.", "severity"),
    Column.number("lines", "Lines that were stored.", "n", "{record}"),
    Column.number("suppressed", "Lines that the rate limit dropped.", "suppressed", "{record}"),
)  # fmt: skip
