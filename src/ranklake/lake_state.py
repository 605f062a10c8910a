"""State of a lake: the facts of ``ranklake status``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ranklake.capture.spool.locations import existing_root
from ranklake.capture.spool.stream_files import PendingSegments, pending_segments
from ranklake.context import Context
from ranklake.lake.audit.proof import Proof, prove
from ranklake.lake.ingest.index_summary import IngestionIndex
from ranklake.lake.ingest.ingestion_index import new_files, select_readable
from ranklake.lake.ingest.status.liveness import DuplicateRank, RankState, duplicate_ranks, liveness
from ranklake.lake.ingest.status.reconciliation import TableBalance, lost_tables, reconcile
from ranklake.lake.plans.plan import DamagedPlanError, last_finished, read_plan
from ranklake.lake.plans.verification import authorise
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.plans.removals import removal_faults
from ranklake.segments.envelope import MissingKeyError


@dataclass(frozen=True, slots=True)
class UnfinishedPlan:
    """The next plan.

    Attributes
    ----------
    number
        Its number; None if there is none.
    kind
        Its kind; empty if there is none, or if it is refused.
    refused
        Why it is refused; empty if it is not.
    """

    number: int | None = None
    kind: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class LakeState:
    """State of a lake, its spool and this node.

    Attributes
    ----------
    balances
        Balance of recorded and stored rows of each table.
    lost
        Tables without their log, which have no balance.
    unfinished
        The next plan.
    proof, removals
        Proof of the audit log; and unapproved removals of rows, one line each.
    ranks, doubled
        State of recent ranks, and ranks that were recorded twice.
    held
        Files of the spool that ingest skips, by path, with the reason.
    root, here
        This node's local spool, and its unsent segments; None if there is none.
    """

    balances: Sequence[TableBalance]
    lost: Sequence[str]
    unfinished: UnfinishedPlan
    proof: Proof
    removals: Sequence[str]
    ranks: Sequence[RankState]
    doubled: Sequence[DuplicateRank]
    held: Mapping[str, str]
    root: Path | None
    here: PendingSegments | None

    @property
    def adds_up(self) -> bool:
        """Whether the balances of all tables add up."""
        return all(item.adds_up for item in self.balances)

    @property
    def is_sound(self) -> bool:
        """Whether logs, balances, audit log, removals and the next plan are sound, and all segments were readable."""
        is_whole = self.adds_up and not self.lost and not self.unreadable and self.proof.whole
        return is_whole and not self.removals and not self.unfinished.refused

    @property
    def refused(self) -> Counter[str]:
        """Segments that were refused, by reason."""
        return sum((Counter(item.refused) for item in self.balances), Counter[str]())

    @property
    def unreadable(self) -> Counter[str]:
        """Segments in quarantine whose bytes could not be read, by reason."""
        return sum((Counter(item.unreadable) for item in self.balances), Counter[str]())


def lake_state(context: Context) -> LakeState:
    """Read the state of the lake, its spool if configured, and this node's local spool."""
    config, lake = context.config, context.open_lake()
    unfinished = _unfinished_plans(lake)
    index = IngestionIndex(lake.store, delta_table(lake.store, "segments"))
    spool = context.spool() if context.has_spool else None
    spooled = spool.waiting(index.recent_member_count) if spool else []
    known = index.rows_about(spooled)
    news = new_files(spooled, known)
    incoming = [claims[0] for claims in news]
    root = existing_root(config.spool.local)
    return LakeState(
        balances=reconcile(lake, incoming),
        lost=lost_tables(lake),
        unfinished=unfinished,
        proof=prove(lake),
        removals=removal_faults(lake),
        ranks=liveness(lake, incoming),
        doubled=duplicate_ranks(lake),
        held=select_readable(news, known, config.ingest, lake.contracts())[1] | (spool.passed_over if spool else {}),
        root=root,
        here=None if root is None else pending_segments(root),
    )


def _unfinished_plans(lake: Lake) -> UnfinishedPlan:
    number = last_finished(lake.tables) + 1
    try:
        plan = read_plan(lake.store, number)
        if plan is None:
            return UnfinishedPlan()
        authorise(lake, plan)
    except (DamagedPlanError, MissingKeyError) as error:
        return UnfinishedPlan(number, refused=str(error))
    return UnfinishedPlan(number, plan.kind)
