"""``ranklake status``."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

import click

from ranklake.commands.audit import proof_lines
from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option, optional_spool
from ranklake.context import Context
from ranklake.doctor.examination import PROBES, Finding, Patient, examine
from ranklake.lake.audit.proof import Proof
from ranklake.lake.ingest.spool.gate import first_by_reason
from ranklake.lake.ingest.status.liveness import NEEDS_A_LOOK, OVER, RankState
from ranklake.lake.ingest.status.reconciliation import TableBalance
from ranklake.lake_state import LakeState, lake_state
from ranklake.printable import counted, printable
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell

_OUTCOMES = frozenset({"checks", "artifacts", "backup", "lost-rows", "prefect-runs", "proposals"})
_FATES = ("recorded", "stored", "quarantined", "sampled_out", "gaps", "in_flight", "retired")


@click.command()
@lake_option
@optional_spool("URI or folder of the spool; without one, nothing is in flight.")
@click.option("--ranks", "of_ranks", is_flag=True, help="Show the state of every rank; exit 1 if one needs attention.")
@json_option
@with_context
def status(context: Context, *, of_ranks: bool, as_json: bool) -> int:
    """Verify that every recorded row is stored, quarantined, sampled out, counted as a gap, or in flight.

    Names the ranks of the last two days' runs that are silent, missing or hung. Exits 1 if a table has lost its log, or
    its row counts do not balance, a segment in quarantine could not be read, the audit log is broken, a removal of
    rows lacks its plan, its approval or its audit rows, or the next plan is refused.

    Also lists failing checks, altered artifacts, runs with lost rows, failed scheduled runs, overdue backups, and
    proposals that have waited too long; 'ranklake doctor' checks more.
    """
    result, findings = lake_state(context), _findings(context)
    if as_json:
        show_json({**_plain(result), "findings": findings})
    else:
        _print(result, every=of_ranks)
        tell(*(f"{one.check}: {one.what}; {one.remedy}" for one in findings), err=True)
    is_asked_of_ranks = of_ranks and any(one.state in NEEDS_A_LOOK for one in result.ranks)
    return 1 if not result.is_sound or is_asked_of_ranks else 0


def _findings(context: Context) -> list[Finding]:
    """Return the doctor's findings about results of the pipeline."""
    probes = [replace(one, needs=()) for one in PROBES if one.check in _OUTCOMES]
    return [one for one in examine(Patient(context.config), probes=probes) if one.is_wrong]


def _plain(state: LakeState) -> dict[str, Any]:
    proof = state.proof
    return {
        "adds_up": state.adds_up,
        "lost_tables": state.lost,
        "tables": [{**asdict(item), "adds_up": item.adds_up} for item in state.balances],
        "unfinished_plan": state.unfinished.number,
        "refused_plan": state.unfinished.refused or None,
        "audit": {
            "rows": proof.rows,
            "whole": proof.whole,
            "first_broken": proof.broken,
            "why": proof.why or None,
        },
        "removals": state.removals,
        "recorded_twice": state.doubled,
        "waiting_on_this_node": state.here,
        "refused": state.refused,
        "unreadable": state.unreadable,
        "held": Counter(state.held.values()),
        "held_first": first_by_reason(state.held),
        "ranks": state.ranks,
    }


def _print(state: LakeState, *, every: bool) -> None:
    if state.balances or not state.lost:
        _table(state.balances)
    fix = "restore it from a backup before anything is written there"
    tell(*(f"table {printable(table)} has lost its log: {fix}" for table in state.lost), err=True)
    tell(*_lines(state.ranks, every=every), *map(str, state.doubled))
    here, held, plan = state.here, state.held, state.unfinished
    if here is not None and (here.segments or here.unsealed):
        those = f"{counted(here.rows, 'row')} in {counted(here.segments, 'segment')} that wait to be sent"
        files = f"{counted(here.unsealed, 'file')} not sealed yet"
        fix = "a running process or the agent sends them; what a killed one left, 'ranklake agent --once'"
        tell(f"on this node, not counted above: {those}, {files} in {state.root}; {fix}")
    tell(*(f"{count} segments refused: {reason}" for reason, count in sorted(state.refused.items())), err=True)
    fix = "the table segments names them, and 'ranklake disown' sets aside what is lost"
    for reason, count in sorted(state.unreadable.items()):
        tell(f"{counted(count, 'segment')} in quarantine could not be read: {reason}; {fix}", err=True)
    for why, path in first_by_reason(held).items():
        count = sum(1 for one in held.values() if one == why)
        tell(f"{count} files of the spool left alone ({why}); the first: {path}", err=True)
    hint = f"plan {plan.number} ({plan.kind}) is not finished: somebody is at it, or 'ranklake ingest' finishes it"
    tell(*_trail(state.proof), *state.removals, *([hint] if plan.kind else []), err=True)
    tell(*filter(None, [plan.refused]), err=True)


def _trail(proof: Proof) -> list[str]:
    """Return a line about the audit log; empty if it is sound."""
    return [] if proof.whole and not proof.lost else proof_lines(proof)


def _lines(ranks: Sequence[RankState], *, every: bool) -> Iterator[str]:
    """Yield a line for each active run, and for each rank that needs attention, or for every rank."""
    for (run, attempt), group in groupby(ranks, key=lambda rank: (rank.run, rank.attempt)):
        members = list(group)
        counts = Counter(one.state for one in members)
        if every or not OVER.issuperset(counts):
            counted_states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
            yield f"run {run} attempt {attempt}: {counted_states}"
            for rank in members:
                if every or rank.state in NEEDS_A_LOOK:
                    yield f"  rank {rank.rank} {rank.state}{_state_begin(rank)}"


def _state_begin(rank: RankState) -> str:
    """Return since when a rank has its state."""
    parts = []
    if rank.heard is not None and rank.unheard_s is not None:
        parts.append(f"last heard of {rank.unheard_s:,.0f} s ago, at {rank.heard:%Y-%m-%d %H:%M:%SZ}")
    if rank.state == "hung":
        parts.append(f"no step or phase for {rank.still_s:,.0f} s")
    if rank.step is not None:
        parts.append(f"step {rank.step}")
    return f": {', '.join(parts)}" if parts else ""


def _table(balances: Sequence[TableBalance]) -> None:
    if not balances:
        tell("the lake is empty, and so is the spool")
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
