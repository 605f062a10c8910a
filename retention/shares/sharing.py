"""Makes shares, keeps them up to date and drops them, with rows in the audit log.

share.create    before the first row is copied: the role and the place
share.refresh   after a refresh that changed something: numbers of rows and files
share.drop      before a share is deleted: the reason;  share.dropped  after it is deleted
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
from ranklake.retention.shares.copies import stale_pieces
from ranklake.retention.shares.place import MARKER, ShareError, claim, open_place, refuse_other, share_uri
from ranklake.retention.shares.refresh import RefreshResult, refresh, refuse_unshareable, sources_of
from ranklake.retention.shares.register import Share, add_share, recorded_tables, remove_share, shares
from ranklake.retention.shares.shared_table import SharedTable, erase_table, shared_table_names

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store


@dataclass(frozen=True, slots=True)
class WithdrawalResult:
    """Number of files that were deleted from a share."""

    share: str
    files: int


def withdraw(store: "Store", tables: Iterable[str] | None = None) -> list[WithdrawalResult]:
    """Remove the copies of rows that were removed or changed in the lake's tables from every share.

    Parameters
    ----------
    tables
        Tables to check; default all tables of a share.

    Raises `ShareError` if a place no longer belongs to this lake, and the errors of the stores. Shares before that one
    stay withdrawn.
    """
    results = []
    for share in shares(store):
        place = open_place(store, share.uri)
        refuse_other(store, place, share.role)
        recorded = recorded_tables(store, share)
        selected = recorded if tables is None else recorded & set(tables)
        deleted = sum(_withdraw_table(store, share, place, table) for table in sorted(selected))
        results.append(WithdrawalResult(share.name, deleted))
    return results


def _withdraw_table(store: "Store", share: Share, place: "Store", table: str) -> int:
    shared = SharedTable(store, share, place, table)
    handle = shared.open()
    if handle is None:
        return 0
    shared_files = frozenset(live_paths(handle))
    pieces = shared.record.pieces
    stale = stale_pieces(pieces, sources_of(live_files(delta_table(store, table))), shared_files)
    valid = [piece for piece in pieces if piece not in stale]
    unneeded = shared_files - {path for piece in valid for path in piece.files}  # also files of no recorded piece
    shared.commit(handle, (), unneeded, valid)
    return shared.sweep(everything=True)


def drop(store: "Store", share: Share) -> int:
    """Delete the tables of a share; return the number of deleted files. The caller deletes its record in the lake.

    After a crash the next call continues. Raises `ShareError` if the place belongs to another lake; nothing was deleted
    then.
    """
    place = open_place(store, share.uri)
    if place.fs.exists(place.path(MARKER)):
        refuse_other(store, place, share.role)
    elif listed(place.fs, place.path("tables")):
        raise ShareError("what says whose share this is is gone", where=share.uri, hint=f"restore {MARKER} there")
    deleted = sum(erase_table(place, table) for table in sorted(shared_table_names(place)))
    if place.fs.exists(place.path(MARKER)):
        deleted += delete(place, place.path(MARKER))
    return deleted


CREATE: Final = "share.create"
REFRESH: Final = "share.refresh"
DROP: Final = "share.drop"
DROPPED: Final = "share.dropped"
Outcome = TypeVar("Outcome")
Refusal = Callable[[str], str]
"""Takes a role's name; returns why the role may no longer be shared, empty if it may."""


@dataclass(frozen=True, slots=True)
class DropResult:
    """A dropped share, the reason, and the number of deleted files."""

    share: Share
    why: str
    files: int

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        place = {"share": self.share.name, "role": self.share.role, "uri": self.share.uri}
        return {**place, "why": self.why, "files": self.files}


@dataclass(frozen=True, slots=True)
class KeepResult:
    """Result of `keep`: the refreshed and the dropped shares."""

    refreshed: tuple[RefreshResult, ...]
    dropped: tuple[DropResult, ...]

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {name: [result.plain() for result in getattr(self, name)] for name in ("refreshed", "dropped")}


def share(
    lake: "Lake", role: Role, to: str, by: str, workers: "Workers", progress: "Progress | None" = None
) -> RefreshResult:
    """Make the share of a role below a place, or refresh it if it exists.

    Raises `ShareError`, `ranklake.lake.query.roles.RoleError`, and the errors of `refresh`.
    """
    uri = share_uri(open_place(lake.store, to).address, role.name)
    refuse_unshareable(lake, role)
    claim(lake, open_place(lake.store, uri), role.name)
    existing = next((item for item in shares(lake.store) if (item.role, item.uri) == (role.name, uri)), None)
    if existing is None:
        record(lake, by, CREATE, role.name, None, {"to": uri, **unsigned_note(lake)})
        existing = add_share(lake.store, role.name, uri)
    return _refresh(lake, existing, role, by, workers, progress)


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
    """Refresh all shares, and drop those whose role was removed or may no longer be shared.

    Parameters
    ----------
    roles
        All defined roles, by name.
    wanted
        Role and place of configured shares, which are made if they do not exist.

    Shares are dropped before others are refreshed. A share that fails does not stop the others: the error is raised at
    the end, several errors as one `ShareError`. Raises the errors of `share`.
    """
    failed: list[RanklakeError | OSError] = []

    def drop_reason(role: str) -> str:
        return _end_reason(roles[role]) or refusal(role) if role in roles else "the role is gone"

    def share_role(name: str, to: str) -> RefreshResult:
        return share(lake, _find_role(roles, name), to, by, workers, progress)

    def refreshes() -> Iterator[Callable[[], RefreshResult]]:
        configured = set()
        for name, to in wanted:
            if name not in roles or not drop_reason(name):
                configured.add((name, share_uri(open_place(lake.store, to).address, name)))
                yield partial(share_role, name, to)
        for share in shares(lake.store):
            if (share.role, share.uri) not in configured and not drop_reason(share.role):
                yield partial(_refresh, lake, share, roles[share.role], by, workers, progress)

    ended = [(item, reason) for item in shares(lake.store) if (reason := drop_reason(item.role))]
    dropped = _try_all((partial(end, lake, item, by, reason) for item, reason in ended), failed)
    refreshed = _try_all(refreshes(), failed)
    if failed:
        raise failed[0] if len(failed) == 1 else _combined_error(failed)
    return KeepResult(tuple(refreshed), tuple(dropped))


def _find_role(roles: Mapping[str, Role], name: str) -> Role:
    if name not in roles:
        raise ShareError(f"unknown role {name!r}", where="[shares] roles", hint=did_you_mean(name, roles))
    return roles[name]


def _try_all(actions: Iterable[Callable[[], Outcome]], failed: list[RanklakeError | OSError]) -> list[Outcome]:
    """Return the results of the actions that succeed; append the errors of the others to `failed`."""
    results = []
    for action in actions:
        try:
            results.append(action())
        except (RanklakeError, OSError) as error:
            failed.append(error)
    return results


def _combined_error(failed: Sequence[RanklakeError | OSError]) -> ShareError:
    return ShareError(f"{len(failed)} shares failed, the others were kept: {' | '.join(map(str, failed))}")


def _end_reason(role: Role) -> str:
    """Return that a role has expired, as a clause; empty if it has not."""
    try:
        role.refuse_ended(datetime.now(UTC).date())
    except RoleError as error:
        return error.what
    return ""


def end(lake: "Lake", share: Share, by: str, why: str) -> DropResult:
    """Drop a share, with an audit row before and after. Raises `ShareError` if its place belongs to another lake."""
    once_for = f"{share.name} {share.since}"
    record(lake, by, DROP, share.role, why, {"to": share.uri, **unsigned_note(lake)}, once=True, once_for=once_for)
    deleted = drop(lake.store, share)
    facts = {"to": share.uri, "files": deleted, **unsigned_note(lake)}
    record(lake, by, DROPPED, share.role, None, facts, once=True, once_for=once_for)
    remove_share(lake.store, share)
    return DropResult(share, why, deleted)


def _refresh(
    lake: "Lake", share: Share, role: Role, by: str, workers: "Workers", progress: "Progress | None"
) -> RefreshResult:
    result = refresh(lake, share, role, workers, progress)
    if result.is_changed:
        changed = [table for table in result.tables if table.is_changed]
        facts = {
            "to": share.uri,
            "tables": [table.table for table in changed],
            "rows_added": sum(table.rows_added for table in changed),
            "files_removed": sum(table.files_removed for table in changed),
            "taken_back": list(result.taken_back),
            **unsigned_note(lake),
        }
        record(lake, by, REFRESH, role.name, None, facts)
    return result
