"""Verifies that the audit trail is intact: its chain, its own count, and its heads outside the table."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ranklake.lake.audit.chain import GENESIS, Chain, follow
from ranklake.lake.audit.heads import head_records
from ranklake.lake.audit.trail import ROWS, TABLE, trail
from ranklake.lake.delta.commit import PLAN_ID, number_of, said
from ranklake.lake.delta.tables import delta_table

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.audit.chain import Head
    from ranklake.lake.storage.store import Lake


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known of a trail.

    Attributes
    ----------
    rows
        In the table.
    broken
        Number of the first row that is missing, repeated or altered; None if the trail is whole.
    why
        What is wrong, in words; empty if the trail is whole.
    lost
        First and last number of rows that are missing, where a row of action ``audit.resume`` says that they are.
    witnessed
        Rows that each place outside the table vouches for, by place.
    """

    rows: int
    broken: int | None
    why: str
    lost: tuple[tuple[int, int], ...]
    witnessed: dict[str, int]

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong."""
        return self.broken is None


def prove(lake: "Lake") -> Proof:
    """Read the trail whole and check it against its count and its heads.

    Raises `ranklake.lake.audit.heads.HeadError` where a head record cannot be read, and what the store raises.
    """
    heads = {place.where: place.last() for place in head_records(lake)}  # before the table, which is never behind them
    handle = delta_table(lake, TABLE)
    rows = trail(lake)
    chain = follow(rows)
    broken, why = _wrong(chain, handle)
    digests = {0: GENESIS, **{row["seq"] + 1: row["sha256"] for row in rows}}
    for where, head in heads.items():
        at, said_so = _differs(chain, digests, where, head)
        if at is not None and (broken is None or at < broken):
            broken, why = at, said_so
    return Proof(len(rows), broken, why, chain.lost, {where: head.rows for where, head in heads.items()})


def verify(lake: "Lake") -> int | None:
    """Return the number of the first row that is missing, repeated or altered; None if the trail is whole."""
    return prove(lake).broken


def _wrong(chain: Chain, handle: "DeltaTable | None") -> tuple[int | None, str]:
    """Return the first row that is wrong by the chain itself, or by the count in the table's log."""
    if chain.broken is not None:
        return chain.broken, f"row {chain.broken} is missing, repeated or altered"
    counted = 0 if handle is None else said(handle, ROWS)
    if counted is None and handle is not None and said(handle, PLAN_ID) is None:
        counted = number_of(handle)  # older software made a commit of each row, and counted only those
    if counted is not None and counted != chain.head.rows:
        return chain.head.rows, f"the trail ends at row {chain.head.rows - 1}, and its log counts {counted} rows"
    return None, ""


def _differs(chain: Chain, digests: dict[int, str], where: str, head: "Head") -> tuple[int | None, str]:
    """Return the first row that is wrong by a head, and what is."""
    if head.rows > chain.head.rows and chain.broken is None:
        return chain.head.rows, f"{where} vouches for {head.rows} rows, and {chain.head.rows} are there"
    found = digests.get(head.rows)
    if found is not None and found != head.sha256:
        return max(head.rows - 1, 0), f"row {head.rows - 1} is not the one that {where} vouches for"
    return None, ""
