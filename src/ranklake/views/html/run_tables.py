"""Tables of a run's page: which columns of its facts they show, and what each means."""

from collections.abc import Iterator, Mapping
from typing import Final

from ranklake.insight.incidents.incidents import Incidents
from ranklake.insight.runs.facts import RunFacts, RunHead
from ranklake.insight.runs.media import MOST_MEDIA, MOST_OF_A_NAME
from ranklake.insight.runs.report import MOST_CHARACTERS, MOST_LINES, NO_LINES, RunState
from ranklake.views.html.figures import Column, FactTable, answer_table, moment_text
from ranklake.views.run_causes import DID, launcher_of
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
    Column("incident", "Its id; below it what stands of it: open, closed, or what a person said.", "incident_id"),
    Column("severity", "The worst of its findings.", "severity"),
    Column("what", "Its leading finding.", "title"),
    Column.moment("began", "When its first finding begins.", "start_ts"),
    Column.moment("over", "When its last finding ends; unknown while one lasts.", "end_ts"),
    Column("run", "Run that was hit.", "run"),
    Column.number("findings", "How many it is made of.", "findings", "{finding}"),
    Column("affected", "Devices of the run times the time it lasted.", "affected_device_s", "s", is_number=True,
           text=lambda seconds: hours_text(seconds / 3600)),
)  # fmt: skip
HEALTH_TITLE: Final = "Ranks, slowest first"


def severity_state(severity: str | None) -> str:
    """Return the state of the report for a severity, whatever a row has for one."""
    return SEVERITIES.get(severity or "", "unchecked")


def tables(facts: RunFacts, *, is_for_role: bool = False) -> Iterator[FactTable]:
    """Yield the tables of a run; to a role with names of hosts, as it sees them."""
    states: Mapping[str, Mapping[str, str]] = {"attempts": STATES, "events": _SEVERITIES}
    for name, caption, key, columns, empty in (
        ("attempts", "Attempts", ["attempt"], _ATTEMPTS, "No attempts."),
        ("health", HEALTH_TITLE, ["attempt", "rank"], _HEALTH, "Ranks were not compared."),
        ("nodes", "Where ranks are that ended badly or hold the others up", ["attempt", "rank"],
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


def ends_table(facts: RunHead) -> FactTable:
    """Return all that ended attempts badly: the first rank on top, and which ranks ended because of it."""
    rows = facts.ends.rows
    launcher = launcher_of(facts, rows[-1]["attempt"]) if rows else ""
    words = {**DID, "stopped": f"ended by the launcher ({launcher})" if launcher else DID["preemption"]}
    columns = (
        Column("rank", "Global rank.", "rank"),
        Column("what", "How it ended. What a launcher ends after another rank is a consequence.", "ending",
               text=lambda ending: words.get(ending, ending)),
        Column.number("after rank", "The rank whose death or failure came first, where it was at most 60 s before.",
                      "follows"),
        Column.seconds("after the first", "How long after the attempt's first bad end.", "after_s"),
        Column.number("in step", "Step that it was in and did not end, where it said so; steps are numbered from 0.",
                      "step"),
        Column.number("last step", "The last that the rank recorded, in whatever way it ended.", "last_step"),
        Column("when", "By its host's clock; of one that died, the last thing seen of it.", "ts", text=moment_text),
        Column.number("ranks alike", "Ranks of the attempt with the same event.", "ranks", "{rank}"),
        Column.number("attempt", "Restart number, from 0.", "attempt"),
    )  # fmt: skip
    key = ["attempt", "rank", "ending"]
    return answer_table("ends", "What ended attempts", facts.ends, key, columns, "Nothing did.", states=_END_STATES)


def incidents_of_run(known: Incidents) -> FactTable:
    """Return what went wrong in a run, each with what stands of it."""
    return answer_table(
        "incidents", "Incidents, worst first: ranklake incidents show ID says more", known.answered, ["incident_id"],
        INCIDENTS, "None.", states=SEVERITIES, notes={incident.id: incident.state for incident in known.listed},
    )  # fmt: skip


def lines_tables(run: RunState) -> Iterator[FactTable]:
    """Yield the table of log lines, of a page for a role; errors first."""
    if run.lines.reason != NO_LINES:
        caption = f"Log lines: errors, then the latest; at most {MOST_LINES}"
        yield answer_table("lines", caption, run.lines, ["ts", "rank", "message"], _LINES, "No lines.", states=_LEVELS)


def media_table(run: RunState) -> Iterator[FactTable]:
    """Yield the table of media, of a run that has some."""
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
    Column.moment("began", "Its start; of a restart the end of the attempt before.", "ts"),
    Column.moment("last seen", "Its end, or the last thing seen of it.", "end_ts"),
    Column.number("steps", "Counted once whatever the number of ranks.", "steps", "{step}"),
    Column.number("from", "Lowest step number.", "first_step"),
    Column.number("to", "Highest step number.", "last_step"),
    Column.ratio("goodput", "Productive over wall time.", "goodput_ratio"),
    Column.ratio("MFU", "Model FLOPs over the peak of its devices.", "mfu_ratio"),
    Column.nanoseconds("wall time", "The kinds of time add up to it.", "wall_ns"),
    Column.nanoseconds("productive", "Steps that count.", "productive_ns"),
    Column.nanoseconds("init", "To the first step of the first attempt.", "init_ns"),
    Column.nanoseconds("checkpoint", "In checkpoints.", "checkpoint_ns"),
    Column.nanoseconds("restart", "To the first step of a restart.", "restart_ns"),
    Column.nanoseconds("lost work", "In steps that were done again.", "lost_work_ns"),
    Column.nanoseconds("stall", "Without progress.", "stall_ns"),
    Column.nanoseconds("unattributed", "That nothing is known of.", "unattributed_ns"),
)  # fmt: skip
_HEALTH: Final = (
    Column("rank", "Global rank.", "rank"),
    Column("verdict", "In words, with its figures, of the worst day.", "reason"),
    Column.ratio("longer than its peers", "Self time over its peers', less 1.", "excess_ratio"),
    Column.seconds("more a step", "Self time less its peers', a step.", "excess_s"),
    Column.number("steps compared", "Held against its peers.", "steps_compared", "{step}"),
    Column("cause", "Of a straggler: waiting for input, or computing.", "cause"),
    Column.number("attempt", "Restart number.", "attempt"),
)  # fmt: skip
_NODES: Final = (
    Column("rank", "Global rank.", "rank"),
    Column.number("node",
                  "Of the attempt, from 0, by the lowest rank on each. 'ranklake show' names its host, pages do not.",
                  "node"),
    Column.number("nodes", "Of the attempt.", "node_count", "{node}"),
    Column.number("local rank", "Its number on that node, from 0.", "local_rank"),
    Column.number("ranks there", "Of the attempt, on that node.", "rank_count", "{rank}"),
    Column.number("from", "Lowest rank on that node.", "first_rank"),
    Column.number("to", "Highest rank on that node.", "last_rank"),
    Column("device", "As its driver names it.", "device_name"),
    Column.number("attempt", "Restart number.", "attempt"),
)  # fmt: skip
_HOST: Final = Column("host", "As the role sees it.", "host")
_EVENTS: Final = (
    Column("event", "What happened; messages are not shown, since they are free text.", "event"),
    Column("severity", "How bad it is.", "severity"),
    Column.number("count", "How often.", "n", "{event}"),
    Column.moment("first", "When first.", "first_ts"),
    Column.moment("last", "When last.", "last_ts"),
    Column.number("last step", "Highest step that it names.", "last_step"),
    Column.number("attempt", "Restart number.", "attempt"),
)  # fmt: skip
_ARTIFACTS: Final = (
    Column("name", "Unique within the run and kind.", "name"),
    Column("kind", "What it is.", "kind"),
    Column("action", "What happened to it.", "action"),
    Column.number("step", "Step that it holds the state of.", "step"),
    Column.size("size", "Of all its files.", "bytes"),
    Column.nanoseconds("took", "Time of writing, loading or verifying.", "duration_ns"),
    Column.nanoseconds("held up", "Part of it that training waited for.", "blocking_ns"),
    Column("SHA-256", "Of its bytes, or of the list of its files.", "sha256", text=lambda text: text[:12]),
    Column("verified at load", "Whether a load found the recorded digest; else ranklake verify-artifact.", "verified"),
    Column.moment("when", "End of the action.", "ts"),
    Column.number("attempt", "Restart number.", "attempt"),
)  # fmt: skip
_MEDIA: Final = (
    Column("name", "The same at other steps.", "name"),
    Column("kind", "What it is.", "kind"),
    Column.number("step", "Step that it shows.", "step"),
    Column.number("rank", "Global rank.", "rank"),
    Column.size("size", "Of its bytes.", "bytes"),
    Column.number("rows", "Of a table or matrix; height of an image in pixels.", "row_count"),
    Column.number("columns", "Of a table or matrix; width of an image in pixels.", "column_count"),
    Column.number("of that name", "In all.", "of_name", "{row}"),
    Column("when", "When it was given.", "ts", text=moment_text),
    Column.number("attempt", "Restart number.", "attempt"),
)  # fmt: skip
_DATASETS: Final = (
    Column("name", "Name of the dataset.", "name"),
    Column("version", "That its makers gave it.", "version"),
    Column("split", "Part of it.", "split"),
    Column("role", "What the run used it for.", "role"),
    Column.size("size", "Of its files.", "bytes"),
    Column.number("samples", "In it.", "samples", "{sample}"),
    Column.number("tokens", "In it.", "tokens", "{token}"),
    Column("Merkle root", "Of the SHA-256 of its files.", "merkle_root_sha256", text=lambda text: text[:12]),
)  # fmt: skip
_GAPS: Final = (
    Column("table", "Whose rows.", "table"),
    Column.number("not recorded", "Rows that were due and could not be recorded.", "gap_rows", "{row}"),
    Column.number("in quarantine", "Rows that went to the table rejects.", "rows_rejected", "{row}"),
    Column.number("recorded", "Rows in segments.", "rows", "{row}"),
)  # fmt: skip
_LEVELS: Final = {"ERROR": "failing", "CRITICAL": "failing", "FATAL": "failing", "WARNING": "warning"}
_LINES: Final = (
    Column("when", "By its host's clock.", "ts", text=moment_text),
    Column("level", "As the logger names it.", "severity"),
    Column.number("rank", "Global rank.", "rank"),
    Column("message", f"As the role sees it; its first {MOST_CHARACTERS} characters.", "message"),
    Column("logger", "Name of the logger.", "logger"),
    Column.number("step", "That it was logged in.", "step"),
    Column("exception", "Its class.", "exception_type"),
    Column.number("attempt", "Restart number.", "attempt"),
)  # fmt: skip
_LOGS: Final = (
    Column("level", "As the logger names it.", "severity"),
    Column.number("lines", "That were kept.", "n", "{record}"),
    Column.number("suppressed", "Left out by the rate limit.", "suppressed", "{record}"),
)  # fmt: skip
