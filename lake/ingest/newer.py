"""Segments of newer writers: they wait in the spool until the contract of their table here is another.

Nothing of one is stored. What its columns mean is said by a contract that is not here: behind a name that is known
there may be another unit. So it is taken in whole, once, by the first ingest that knows more (decision 097).
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ranklake.lake.contracts.freeze import contract_digest
from ranklake.lake.ingest.spool.gate import NEWER, UnreadError
from ranklake.segments.segment import FORMAT, REFUSED, REFUSED_ROW

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.segments.segment import SegmentFooter

NEWER_FORMAT = f"{NEWER}segment format {FORMAT}"
"""Of a segment whose footer is of a later format."""


class NewerSegmentError(UnreadError):
    """A sound segment that says more than is known here; `what` says what is known."""


def known_here(table: str, contracts: "Mapping[str, Contract]") -> str:
    """Return what is known of a table, as the reason for which segments that say more wait.

    It is another reason once the contract is another: so one that waited for the one before is tried again.
    """
    found = contracts.get(table)
    return unknown_table(table) if found is None else _known(found)


def _known(found: "Contract") -> str:
    added = f", your columns version {found.added_version}" if found.added_version > 1 else ""
    return f"{NEWER}{found.table} version {found.version}{added} ({contract_digest(found)[:12]})"


def unknown_table(table: str) -> str:
    """Return the reason for which segments of a table without a contract wait."""
    return f"{NEWER}no table {table}"


def refuse_newer(footer: "SegmentFooter", columns: Iterable[str], target: "Contract") -> None:
    """Raise `NewerSegmentError` where a segment was written by a later contract, or has columns that are not known.

    Unknown columns of an older contract are no news, and left to whoever judges them.
    """
    known = {*target.names, REFUSED, REFUSED_ROW}
    theirs, ours = ((footer.contract_version, footer.added_version), (target.version, target.added_version))
    unknown = theirs == ours and not known.issuperset(columns)
    if theirs[0] > ours[0] or theirs[1] > ours[1] or unknown:
        raise NewerSegmentError(_known(target))
