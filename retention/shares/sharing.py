"""Sharing: makes shares, keeps them up to date, and ends them, each with its rows in the audit trail.

share.create    before the first row is copied: which role, where to
share.refresh   after a refresh that changed something: how many rows and files
share.drop      before a share is deleted: why;  share.dropped  when it is gone
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.audit.trail import record
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.query.scan import live_files
from ranklake.lake.store.files import delete, listed
from ranklake.lake.tables.live_files import live_paths
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.proposals.identities import unsigned_note
from ranklake.retention.shares.pieces import stale_pieces
from ranklake.retention.shares.place import MARKER, ShareError, claim, open_place, refuse_other, share_uri
from ranklake.retention.shares.refresh import RefreshResult, refresh, refuse_unshareable, sources_of
from ranklake.retention.shares.register import Share, add_share, remove_share, shares, tables_known
from ranklake.retention.shares.shared_table import SharedTable, erase_table, tables_there

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store


@dataclass(frozen=True, slots=True)
class WithdrawalResult:
    """What went from a share: its name, and files of tables that were live or left behind."""

    share: str
    files: int


def withdraw(store: "Store", tables: Iterable[str] | None = None) -> list[WithdrawalResult]:
    """Take out of every share the copies of rows that the lake's tables no longer have as they were.

    Parameters
    ----------
    tables
        To look at; default all that a share has.

    Raises `ShareError` where a place is not this lake's any more, and what the stores raise; what was withdrawn until
    then stays so.
    """
    done = []
    for share in shares(store):
        place = open_place(store, share.uri)
        refuse_other(store, place, share.role)
        wanted = tables_known(store, share) if tables is None else tables_known(store, share) & set(tables)
        gone = sum(_withdraw_table(store, share, place, table) for table in sorted(wanted))
        done.append(WithdrawalResult(share.name, gone))
    return done


def _withdraw_table(store: "Store", share: Share, place: "Store", table: str) -> int:
    shared = SharedTable(store, share, place, table)
    handle = shared.opened()
    if handle is None:
        return 0
    there = frozenset(live_paths(handle))
    pieces = shared.known.pieces
    stale = stale_pieces(pieces, sources_of(live_files(delta_table(store, table))), there)
    held = {path for piece in pieces if piece not in stale for path in piece.files}
    gone = there - held  # files that no piece names were made of rows that may be gone
    shared.commit(handle, (), gone, [one for one in pieces if one not in stale])
    return shared.sweep(everything=True)


def drop(store: "Store", share: Share) -> int:
    """Delete a share, all its tables; return how many files went. Its record in the lake is the caller's to strike.

    Killed half-way, the next call goes on. Raises `ShareError` where the place is
    another's by now: nothing was deleted then.
    """
    place = open_place(store, share.uri)
    if place.fs.exists(place.path(MARKER)):
        refuse_other(store, place, share.role)
    elif listed(place.fs, place.path("tables")):
        raise ShareError("what says whose share this is is gone", where=share.uri, hint=f"restore {MARKER} there")
    gone = sum(erase_table(place, table) for table in sorted(tables_there(place)))
    if place.fs.exists(place.path(MARKER)):
        gone += delete(place, place.path(MARKER))
    return gone


CREATE: Final = "share.create"
REFRESH: Final = "share.refresh"
DROP: Final = "share.drop"
DROPPED: Final = "share.dropped"
Outcome = TypeVar("Outcome")
Refusal = Callable[[str], str]
"""Says why a role may not be shared any more; empty where it may."""


@dataclass(frozen=True, slots=True)
class DropResult:
    """A share that went: its role, its place, why, and how many files."""

    share: Share
    why: str
    files: int

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        place = {"share": self.share.name, "role": self.share.role, "uri": self.share.uri}
        return {**place, "why": self.why, "files": self.files}


@dataclass(frozen=True, slots=True)
class KeepResult:
    """What keeping shares did: those that were refreshed, and those that went."""

    refreshed: tuple[RefreshResult, ...]
    dropped: tuple[DropResult, ...]

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {name: [one.plain() for one in getattr(self, name)] for name in ("refreshed", "dropped")}


def share(
    lake: "Lake", role: Role, to: str, by: str, workers: "Workers", progress: "Progress | None" = None
) -> RefreshResult:
    """Share what a role sees below a place, or bring that share up to date.

    Raises `ShareError`, `ranklake.lake.query.roles.RoleError`, and what `refresh` does.
    """
    uri = share_uri(open_place(lake.store, to).address, role.name)
    refuse_unshareable(lake, role)
    claim(lake, open_place(lake.store, uri), role.name)
    known = next((one for one in shares(lake.store) if (one.role, one.uri) == (role.name, uri)), None)
    if known is None:
        record(lake, by, CREATE, role.name, None, {"to": uri, **unsigned_note(lake)})
        known = add_share(lake.store, role.name, uri)
    return _refresh(lake, known, role, by, workers, progress)


def keep(
    lake: "Lake",
    roles: Mapping[str, Role],
    by: str,
    workers: "Workers",
    wanted: Iterable[tuple[str, str]] = (),
    *,
    refusal: Refusal = lambda _: "",
    progress: "Progress | None" = None,
) -> KeepResult:
    """Bring all shares up to date; drop those whose role is gone or may not be shared any more.

    Parameters
    ----------
    roles
        All roles that are defined.
    wanted
        Role and place of shares that the configuration names: they are made where they are not there.

    Shares that end go before others are refreshed. One that fails holds up no other: what failed is raised at the end,
    as it is where it is one, else as a `ShareError` of all. Raises what `share` does.
    """
    failed: list[RanklakeError | OSError] = []

    def why_not(role: str) -> str:
        return _end_reason(roles[role]) or refusal(role) if role in roles else "the role is gone"

    def shared(name: str, to: str) -> RefreshResult:
        return share(lake, _of(roles, name), to, by, workers, progress)

    def due() -> Iterator[Callable[[], RefreshResult]]:
        tried = set()
        for name, to in wanted:
            if name not in roles or not why_not(name):
                tried.add((name, share_uri(open_place(lake.store, to).address, name)))
                yield partial(shared, name, to)
        for share in shares(lake.store):
            if (share.role, share.uri) not in tried and not why_not(share.role):
                yield partial(_refresh, lake, share, roles[share.role], by, workers, progress)

    over = [(one, why) for one in shares(lake.store) if (why := why_not(one.role))]
    dropped = _all_tried((partial(end, lake, one, by, why) for one, why in over), failed)
    refreshed = _all_tried(due(), failed)
    if failed:
        raise failed[0] if len(failed) == 1 else _all_of(failed)
    return KeepResult(tuple(refreshed), tuple(dropped))


def _of(roles: Mapping[str, Role], name: str) -> Role:
    if name not in roles:
        raise ShareError(f"unknown role {name!r}", where="[shares] roles", hint=did_you_mean(name, roles))
    return roles[name]


def _all_tried(acts: Iterable[Callable[[], Outcome]], failed: list[RanklakeError | OSError]) -> list[Outcome]:
    """Return what acts give; those that fail are noted, and the next is done."""
    done = []
    for act in acts:
        try:
            done.append(act())
        except (RanklakeError, OSError) as error:
            failed.append(error)
    return done


def _all_of(failed: Sequence[RanklakeError | OSError]) -> ShareError:
    return ShareError(f"{len(failed)} shares failed, the others were kept: {' | '.join(map(str, failed))}")


def _end_reason(role: Role) -> str:
    """Say that a role's time is over; empty where it is not."""
    try:
        role.refuse_ended(datetime.now(UTC).date())
    except RoleError as error:
        return error.what
    return ""


def end(lake: "Lake", share: Share, by: str, why: str) -> DropResult:
    """Drop a share, and say so before and after. Raises `ShareError` where its place is another's."""
    which = f"{share.name} {share.since}"
    record(lake, by, DROP, share.role, why, {"to": share.uri, **unsigned_note(lake)}, once=True, once_for=which)
    gone = drop(lake.store, share)
    facts = {"to": share.uri, "files": gone, **unsigned_note(lake)}
    record(lake, by, DROPPED, share.role, None, facts, once=True, once_for=which)
    remove_share(lake.store, share)
    return DropResult(share, why, gone)


def _refresh(
    lake: "Lake", share: Share, role: Role, by: str, workers: "Workers", progress: "Progress | None"
) -> RefreshResult:
    done = refresh(lake, share, role, workers, progress)
    if done.is_changed:
        changed = [table for table in done.tables if table.is_changed]
        facts = {
            "to": share.uri,
            "tables": [table.table for table in changed],
            "rows_added": sum(table.rows_added for table in changed),
            "files_removed": sum(table.files_removed for table in changed),
            "taken_back": list(done.taken_back),
            **unsigned_note(lake),
        }
        record(lake, by, REFRESH, role.name, None, facts)
    return done
