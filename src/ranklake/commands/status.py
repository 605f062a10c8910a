"""``ranklake status``."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby

import click

from ranklake.capture.spool.places import existing_root
from ranklake.capture.spool.waiting import waiting as waiting_in
from ranklake.commands.audit import told
from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option, optional_spool
from ranklake.context import Context
from ranklake.lake.audit.proof import Proof, prove
from ranklake.lake.delta.tables import delta_table
from ranklake.lake.ingest.index_summary import History
from ranklake.lake.ingest.ingestion_index import sort_out, unknown
from ranklake.lake.plans.plan import DamagedPlanError, last_finished, read_plan
from ranklake.lake.plans.verification import authorise
from ranklake.lake.spool.gate import firsts
from ranklake.lake.status.duplicate_ranks import duplicate_ranks
from ranklake.lake.status.liveness import NEEDS_A_LOOK, OVER, RankState, liveness
from ranklake.lake.status.reconciliation import TableBalance, reconcile
from ranklake.lake.storage.store import Lake
from ranklake.printable import printable
from ranklake.retention.removals import unaccounted
from ranklake.segments.envelope import MissingKeyError
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell

_FATES = ("recorded", "stored", "quarantined", "sampled_out", "gaps", "in_flight", "retired")


@click.command()
@lake_option
@optional_spool("URI or folder of the spool; without one, nothing is in flight.")
@click.option("--ranks", "of_ranks", is_flag=True, help="Show the state of every rank; exit 1 if one needs a look.")
@json_option
@with_context
def status(context: Context, *, of_ranks: bool, as_json: bool) -> int:
    """Prove that every recorded row is stored, quarantined, sampled out, counted as a gap, or in flight.

    Names the ranks of the last two days' runs that are silent, missing or hung. Exits 1 if the books of a table do not
    add up, the audit trail is broken, a removal of rows lacks its plan, its approval or its rows in the trail, or the
    next plan is refused.
    """
    config, lake = context.config, context.open_lake()
    number, hint, stopped = _unfinished(lake)
    history = History(lake, delta_table(lake, "segments"))
    spool = context.spool() if context.has_spool else None
    spooled = spool.listing(history.near) if spool else []
    known = history.of(spooled)
    news = unknown(spooled, known)
    waiting = [claims[0] for claims in news]
    held = sort_out(news, known, config.ingest)[1] | (spool.passed_over if spool else {})
    balances = reconcile(lake, waiting)
    ranks = liveness(lake, waiting)
    doubled, root = duplicate_ranks(lake), existing_root(config.spool.local)
    here = None if root is None else waiting_in(root)
    wrong = [item for item in balances if not item.adds_up]
    refused = sum((Counter(item.refused) for item in balances), Counter[str]())
    proof, removals = prove(lake), unaccounted(lake)
    bad = bool(wrong or stopped or removals or not proof.whole)
    if as_json:
        rows = [{**asdict(item), "adds_up": item.adds_up} for item in balances]
        trail = {"rows": proof.rows, "whole": proof.whole, "first_broken": proof.broken, "why": proof.why or None}
        facts = {
            "adds_up": not wrong,
            "tables": rows,
            "unfinished_plan": number,
            "refused_plan": stopped or None,
            "audit": trail,
            "removals": removals,
            "recorded_twice": [asdict(one) for one in doubled],
            "waiting_on_this_node": None if here is None else asdict(here),
            "refused": refused,
            "held": Counter(held.values()),
            "held_first": firsts(held),
            "ranks": [asdict(r) for r in ranks],
        }
        show_json(facts)
    else:
        _print(balances)
        tell(*_lines(ranks, every=of_ranks), *map(str, doubled))
        if here is not None and (here.segments or here.unsealed):
            those = f"{here.rows:,} rows in {here.segments:,} segments that wait to be sent"
            tell(f"in {root}, and in no book yet: {those}, and {here.unsealed:,} files that are not sealed")
        tell(*(f"{count} segments refused: {reason}" for reason, count in sorted(refused.items())), err=True)
        for why, path in firsts(held).items():
            count = sum(1 for one in held.values() if one == why)
            tell(f"{count} files of the spool left alone ({why}); the first: {path}", err=True)
        tell(*filter(None, [*_trail(proof), *removals, hint, stopped]), err=True)
    return 1 if bad or (of_ranks and any(one.state in NEEDS_A_LOOK for one in ranks)) else 0


def _trail(proof: Proof) -> list[str]:
    """Return what to say of the audit trail; nothing where all of it is there."""
    return [] if proof.whole and not proof.lost else told(proof)


def _unfinished(lake: Lake) -> tuple[int | None, str, str]:
    """Return the number of the plan that is not finished, if there is one, what to say of it, and why it is refused."""
    number = last_finished(lake) + 1
    try:
        plan = read_plan(lake, number)
        if plan is None:
            return None, "", ""
        authorise(lake, plan)
    except (DamagedPlanError, MissingKeyError) as error:
        return number, "", str(error)
    hint = f"plan {number} ({plan.kind}) is not finished: somebody is at it, or 'ranklake ingest' finishes it"
    return number, hint, ""


def _lines(ranks: list[RankState], *, every: bool) -> Iterator[str]:
    """Yield a line for each run that is not over, and for each rank that needs a look, or for every one."""
    for (run, attempt), group in groupby(ranks, key=lambda one: (one.run, one.attempt)):
        members = list(group)
        counts = Counter(one.state for one in members)
        if every or not OVER.issuperset(counts):
            told = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
            yield f"run {run} attempt {attempt}: {told}"
            for one in members:
                if every or one.state in NEEDS_A_LOOK:
                    yield f"  rank {one.rank} {one.state}{_since(one)}"


def _since(one: RankState) -> str:
    """Return since when a rank is as it is."""
    parts = []
    if one.heard is not None and one.unheard_s is not None:
        parts.append(f"last heard of {one.unheard_s:,.0f} s ago, at {one.heard:%Y-%m-%d %H:%M:%SZ}")
    if one.state == "hung":
        parts.append(f"no step or phase for {one.still_s:,.0f} s")
    if one.step is not None:
        parts.append(f"step {one.step}")
    return f": {', '.join(parts)}" if parts else ""


def _print(balances: list[TableBalance]) -> None:
    if not balances:
        click.echo("the lake is empty, and so is the spool")
        return
    fates = numbers((name.replace("_", " ") for name in _FATES), 14)
    rows = [
        (
            printable(item.table),
            *(f"{getattr(item, name):,}" for name in _FATES),
            "  yes" if item.adds_up else "  NO",
        )
        for item in balances
    ]
    tell(*table_lines([TextColumn("table", 16), *fates, TextColumn("  adds up")], rows, gap=""))
    for item in balances:
        tell(*(f"{item.table}: {fault}" for fault in item.faults), err=True)
