"""What a run did: the facts that the prompt, the demo and the pages tell, each with the SQL that gave it."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from typing import Final

from ranklake.insight.incidents.incidents import Incident, Incidents, incidents
from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, QueriedFacts, Row
from ranklake.insight.runs.caveats import Caveats, caveats
from ranklake.insight.runs.checkpoints import Checkpoint, first_trouble, last_good_checkpoint


def steps_done(row: Row) -> str:
    """Return which steps a row of a summary reports, such as ``150 steps (0 to 149)``.

    They are numbered from 0, so the last of 150 is 149, and a rank that dies after it is in step 150.
    """
    count, first, last = row["steps"], row["first_step"], row["last_step"]
    if count is None:
        return "an unknown number of steps"
    if not count or first is None or last is None:
        return "no step" if not count else f"{count:,} steps"
    which = f"{first:,}" if first == last else f"{first:,} to {last:,}"
    if count > last - first + 1:  # of several attempts: what a later one did again counts again
        which += ", some more than once"
    return f"{count:,} step{'' if count == 1 else 's'} ({which})"


_MOST_NAMED = 8
_MOST_REASONS: Final = 3
_SLOWDOWN: Final = "rank_slowdown"


def nodes(ask: Ask, runs: Collection[str], ranks: Collection[int] | None = None) -> QueriedFacts:
    """Return where ranks of some runs are, or some of their ranks: a row an attempt and rank; nothing of no rank."""
    if not runs or (ranks is not None and not ranks):
        return QueriedFacts("")
    return ask(statements.nodes(statements.run_condition(tuple(sorted(runs))), ranks))


def hardware_findings(ask: Ask, runs: Collection[str], ranks: Collection[int]) -> QueriedFacts:
    """Return what was found about devices and hosts of some ranks, a row a finding; nothing of no rank."""
    if not runs or not ranks:
        return QueriedFacts("")
    return ask(statements.hardware_findings_sql(statements.run_condition(tuple(sorted(runs))), ranks))


def cause_text(rows: Iterable[Row]) -> str:
    """Return what ails a rank's device and host, the worst first, such as ``GPU 1 of node 2 throttles, since …``.

    Empty if nothing was found. Of a detector its first finding is reported, of all three.
    """
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row["detector"], row)
    return "; ".join(
        f"{row['message'].rpartition(' (')[0] or row['message']}, since {row['start_ts']:%Y-%m-%d %H:%M} UTC"
        for row in list(first.values())[:_MOST_REASONS]
    )


def slowdowns(listed: Iterable[Incident]) -> list[Row]:
    """Return the findings of incidents that a rank turned slow while its run went on, or was slow for a while."""
    return [row for each in listed for row in each.evidence if row["detector"] == _SLOWDOWN and "rank" in row]


def place_text(rows: Iterable[Row]) -> str:
    """Return where ranks of one attempt are, such as ``on node 3 of 0 to 15, local rank 1``; empty if nobody knows."""
    known = [row for row in rows if row["node"] is not None]
    if not known:
        return ""
    nodes_seen = sorted({row["node"] for row in known})
    count = known[0]["node_count"]
    if count == 1:
        where = "on the run's only node"
    elif len(nodes_seen) == 1:
        where = f"{'all ' * (len(known) > 1)}on node {nodes_seen[0]} of 0 to {count - 1}"
    else:
        shown = ", ".join(map(str, nodes_seen[:_MOST_NAMED])) + (", …" if len(nodes_seen) > _MOST_NAMED else "")
        return f"on {len(nodes_seen):,} of {count:,} nodes: {shown}"
    local = known[0]["local_rank"]
    return f"{where}, local rank {local}" if len(known) == 1 and local is not None else where


PHASES: Final = ("data", "forward", "backward", "collective", "optimizer", "checkpoint", "evaluation")
"""Phases of a step, as columns of ``ranks.sql`` and ``phases.sql``."""

MOST_RANK_STEPS: Final = 5_000_000
"""Rows of a run that are read one by one at the prompt; of longer runs only what the rollups say."""

_PARTS: Final = 512
_MOST: Final = 50
_MOST_LINES: Final = 500
_WITHIN_S: Final = 60
"""A launcher ends the other ranks within so long after one of them, those of other nodes by their next beat."""
_NO_STEPS: Final = "(SELECT run, attempt, rank, step FROM events WHERE FALSE) AS unread"
"""In the place of steps, where those are too many, or a role does not see them."""
_NO_SUMMARY: Final = "no summary of the run; run 'ranklake rollup'"


@dataclass(frozen=True, slots=True)
class RunHead:
    """What the head of a run's page tells.

    Attributes
    ----------
    run
        Its name.
    summary, attempts, goodput
        The run in one row, a row an attempt (at most 500), and where its wall time went with all restarts.
    annotations
        What people said of it: names, tags and summary values that count.
    health
        Ranks, worst first, at most 50.
    code
        By attempt: code, machine, framework, configuration. Where only the head is asked, of runs that ended badly.
    ends
        What ended its attempts badly: a row a rank and kind, in the order in which it happened, at most 50.
    nodes
        Where those ranks, and ranks that hold the others up, are: a row an attempt and rank. Its column ``host`` is
        pseudonymous, and for no page of a whole lake.
    beneath
        What was found about devices and hosts of ranks that hold the others up, a row a finding.
    caveats
        Checks that rows of it fail.
    incidents
        What went wrong in it, the worst first, at most 50, with what people say of that.
    checkpoint
        The last good one, from before the first incident that needs a look.
    """

    run: str
    summary: QueriedFacts
    annotations: QueriedFacts
    attempts: QueriedFacts
    goodput: QueriedFacts
    health: QueriedFacts
    code: QueriedFacts
    ends: QueriedFacts
    nodes: QueriedFacts
    beneath: QueriedFacts
    caveats: Caveats
    incidents: Incidents
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class RunFacts(RunHead):
    """What a lake knows of a run.

    Attributes
    ----------
    notes
        What people wrote of it, newest first, at most 50.
    starts
        What its init, and its restarts, were made of: a row a part, the longest first.
    ranks, shares
        By rank: rows, distinct steps, and means of a step and its phases in seconds; and what share of the steps' spans
        the phases' spans directly in them are. Not asked of a run of more than `MOST_RANK_STEPS` rows.
    phases
        Means over all ranks and steps.
    loss
        By part of the steps, at most 512.
    datasets, artifacts
        What it read, and what was made; at most 50 rows each.
    media
        Images, tables, confusion matrices and texts that it showed, by name, without their bytes; at most 50.
    events, logs, gaps
        Counts: events by kind, log lines by level, rows by table that were not recorded or not stored.
    host, gpu, no_gpu
        What was sampled beside it, and which samplers could not.
    """

    notes: QueriedFacts
    starts: QueriedFacts
    ranks: QueriedFacts
    shares: QueriedFacts
    phases: QueriedFacts
    loss: QueriedFacts
    datasets: QueriedFacts
    artifacts: QueriedFacts
    media: QueriedFacts
    events: QueriedFacts
    logs: QueriedFacts
    gaps: QueriedFacts
    host: QueriedFacts
    gpu: QueriedFacts
    no_gpu: QueriedFacts


def gather_head(ask: Ask, run: str) -> RunHead:
    """Return what the head of a run's page tells: half of the questions of `gather`, for who waits for it."""
    summary = ask(statements.summaries(statements.run_condition((run,))))
    if not summary.rows and not summary.reason:
        summary = QueriedFacts(summary.sql, (), _NO_SUMMARY)
    ends = _attempt_ends(ask, run, has_steps=not _too_many_rows(summary))
    health = ask(statements.of_run("health", run, most=_MOST))
    slow = {row["rank"] for row in health.rows if row["is_straggler"]}
    known = incidents(ask, run, most=_MOST)
    slow |= {row["rank"] for row in slowdowns(known.listed)}
    return RunHead(
        run=run,
        summary=summary,
        annotations=ask(statements.annotations(statements.run_condition((run,)))),
        attempts=ask(statements.of_run("attempts", run, most=_MOST_LINES)),
        goodput=ask(statements.of_run("goodput", run)),
        health=health,
        code=_code(ask, run) if ends.rows else QueriedFacts("", (), "not asked"),
        ends=ends,
        nodes=nodes(ask, [run], {row["rank"] for row in ends.rows} | slow),
        beneath=hardware_findings(ask, [run], slow),
        caveats=caveats(ask, (run,)),
        incidents=known,
        checkpoint=last_good_checkpoint(ask, run, first_trouble(known.listed)),
    )


def gather(ask: Ask, run: str) -> RunFacts:
    """Return what is known of a run, by its whole name; of one that nobody knows, nothing."""

    def of(name: str, **numbers: int) -> QueriedFacts:
        return ask(statements.of_run(name, run, **numbers))

    head = gather_head(ask, run)
    why = _too_many_rows(head.summary)
    known = {each.name: getattr(head, each.name) for each in fields(head) if each.name != "code"}
    return RunFacts(
        **known,
        code=head.code if head.ends.rows else _code(ask, run),
        notes=of("notes", most=_MOST),
        starts=of("starts"),
        ranks=QueriedFacts(statements.of_run("ranks", run), (), why) if why else of("ranks"),
        shares=QueriedFacts(statements.of_run("shares", run), (), why) if why else of("shares"),
        phases=of("phases"),
        loss=of("loss", parts=_PARTS),
        datasets=of("datasets", most=_MOST),
        artifacts=of("artifacts", most=_MOST),
        media=of("media_names", most=_MOST),
        events=of("events", most=_MOST_LINES),
        logs=of("logs"),
        gaps=of("gaps"),
        host=of("host"),
        gpu=of("gpu"),
        no_gpu=of("no_gpu"),
    )


def _code(ask: Ask, run: str) -> QueriedFacts:
    return ask(statements.of_run("code", run, most=_MOST))


def _too_many_rows(summary: QueriedFacts) -> str:
    """Return why the rows of a run's steps are not read one by one; empty where they may be."""
    rows = summary.first_row.get("rank_steps") or 0
    return f"{rows:,} rows are too many to read one by one" if rows > MOST_RANK_STEPS else ""


def _attempt_ends(ask: Ask, run: str, *, has_steps: bool) -> QueriedFacts:
    """Return what ended a run's attempts, with each rank's last step where steps may be read."""
    answer = QueriedFacts("", (), "steps are not read")
    for steps in (*(["steps"] if has_steps else []), _NO_STEPS):
        answer = ask(statements.of_run("ends", run, most=_MOST, within_s=_WITHIN_S, steps=steps))
        if not answer.reason:
            break
    return answer
