"""Facts of a run for the terminal, the demo and the pages, each with its SQL."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from typing import Final

from ranklake.insight.incidents.incidents import Incident, Incidents, incidents
from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, QueriedFacts, Row
from ranklake.insight.runs.caveats import Caveats, caveats
from ranklake.insight.runs.checkpoints import Checkpoint, first_trouble, last_good_checkpoint


def steps_done(row: Row) -> str:
    """Return the steps in a row of a summary as text, such as ``150 steps (0 to 149)``.

    Steps are numbered from 0: the last of 150 is 149, and a rank that dies after it is in step 150.
    """
    count, first, last = row["steps"], row["first_step"], row["last_step"]
    if count is None:
        return "an unknown number of steps"
    if not count or first is None or last is None:
        return "no step" if not count else f"{count:,} steps"
    which = f"{first:,}" if first == last else f"{first:,} to {last:,}"
    if count > last - first + 1:  # of several attempts: repeated steps count again
        which += ", some more than once"
    return f"{count:,} step{'' if count == 1 else 's'} ({which})"


_MOST_NAMED = 8
_MOST_REASONS: Final = 3
_SLOWDOWN: Final = "rank_slowdown"


def nodes(ask: Ask, runs: Collection[str], ranks: Collection[int] | None = None) -> QueriedFacts:
    """Return the nodes of ranks of some runs: a row per attempt and rank; no rows for no ranks."""
    if not runs or (ranks is not None and not ranks):
        return QueriedFacts("")
    return ask(statements.nodes(statements.run_condition(tuple(sorted(runs))), ranks))


def hardware_findings(ask: Ask, runs: Collection[str], ranks: Collection[int]) -> QueriedFacts:
    """Return findings about devices and hosts of some ranks, one row each; no rows for no ranks."""
    if not runs or not ranks:
        return QueriedFacts("")
    return ask(statements.hardware_findings_sql(statements.run_condition(tuple(sorted(runs))), ranks))


def cause_text(rows: Iterable[Row]) -> str:
    """Return findings about a rank's device and host, worst first: ``GPU 1 of node 2 throttles, since …``.

    Empty if there are none. At most three detectors, each with its first finding.
    """
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row["detector"], row)
    return "; ".join(
        f"{row['message'].rpartition(' (')[0] or row['message']}, since {row['start_ts']:%Y-%m-%d %H:%M} UTC"
        for row in list(first.values())[:_MOST_REASONS]
    )


def slowdowns(listed: Iterable[Incident]) -> list[Row]:
    """Return the incidents' findings of ranks that became slow during the run, or were slow for a while."""
    return [row for each in listed for row in each.evidence if row["detector"] == _SLOWDOWN and "rank" in row]


def place_text(rows: Iterable[Row]) -> str:
    """Return the nodes of an attempt's ranks, such as ``on node 3 of 0 to 15, local rank 1``; empty if unknown."""
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
"""Most rows of a run that are read one by one for the terminal; longer runs use rollups only."""

_PARTS: Final = 512
_MOST: Final = 50
_MOST_LINES: Final = 500
_WITHIN_S: Final = 60
"""Time within which a launcher ends the other ranks after one fails; on other nodes by their next heartbeat."""
_NO_STEPS: Final = "(SELECT run, attempt, rank, step FROM events WHERE FALSE) AS unread"
"""Replaces the table of steps if there are too many, or if the role does not see them."""
_NO_SUMMARY: Final = "no summary of the run; run 'ranklake rollup'"


@dataclass(frozen=True, slots=True)
class RunHead:
    """Facts for the head of a run's page.

    Attributes
    ----------
    run
        Its name.
    summary, attempts, goodput
        The run in one row; one row per attempt (at most 500); and its wall time by kind, restarts included.
    annotations
        Its current name, tags and summary values.
    health
        Ranks, worst first, at most 50.
    code
        Code, machine, framework and configuration by attempt. For the head alone, only of failed runs.
    ends
        Failed ends of its attempts: one row per rank and kind, in order of time, at most 50.
    nodes
        Nodes of these ranks and of slow ranks: one row per attempt and rank. Its column ``host`` is pseudonymous, and
        must not be on a page of a whole lake.
    beneath
        Findings about devices and hosts of slow ranks, one row each.
    caveats
        Failed checks of its rows.
    incidents
        Its incidents, the worst first, at most 50, with marks by people.
    checkpoint
        The last good checkpoint before the first incident that needs attention.
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
    """All facts of a run in a lake.

    Attributes
    ----------
    notes
        Its notes, newest first, at most 50.
    starts
        Parts of its init and its restarts: one row per part, the longest first.
    ranks, shares
        By rank: rows, distinct steps, and mean times of a step and its phases in seconds; and the share of the steps'
        spans that their phases cover. Not for runs of more than `MOST_RANK_STEPS` rows.
    phases
        Means over all ranks and steps.
    loss
        By part of the steps, at most 512.
    datasets, artifacts
        Datasets that it read, and its artifacts; at most 50 rows each.
    media
        Its images, tables, confusion matrices and texts, by name, without their bytes; at most 50.
    events, logs, gaps
        Counts: events by kind, log lines by level, rows by table that were not recorded or not stored.
    host, gpu, no_gpu
        Its samples of host and GPUs, and samplers that failed.
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
    """Return the facts for the head of a run's page: half of the queries of `gather`, to answer sooner."""
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
    """Return the facts of a run, by its full name; empty for an unknown run."""

    def of(name: str, **numbers: int) -> QueriedFacts:
        return ask(statements.of_run(name, run, **numbers))

    head = gather_head(ask, run)
    reason = _too_many_rows(head.summary)
    known = {each.name: getattr(head, each.name) for each in fields(head) if each.name != "code"}
    return RunFacts(
        **known,
        code=head.code if head.ends.rows else _code(ask, run),
        notes=of("notes", most=_MOST),
        starts=of("starts"),
        ranks=QueriedFacts(statements.of_run("ranks", run), (), reason) if reason else of("ranks"),
        shares=QueriedFacts(statements.of_run("shares", run), (), reason) if reason else of("shares"),
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
    """Return why the rows of a run's steps are not read one by one; empty if they can be."""
    rows = summary.first_row.get("rank_steps") or 0
    return f"{rows:,} rows are too many to read one by one" if rows > MOST_RANK_STEPS else ""


def _attempt_ends(ask: Ask, run: str, *, has_steps: bool) -> QueriedFacts:
    """Return the failed ends of a run's attempts, with each rank's last step if steps can be read."""
    answer = QueriedFacts("", (), "steps are not read")
    for steps in (*(["steps"] if has_steps else []), _NO_STEPS):
        answer = ask(statements.of_run("ends", run, most=_MOST, within_s=_WITHIN_S, steps=steps))
        if not answer.reason:
            break
    return answer
