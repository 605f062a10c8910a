"""Time travel: the version of a table that a query reads, given by number, by time, or the newest."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ranklake.lake.query.errors import QueryError
from ranklake.lake.tables.tables import at_version, commit_info, delta_table, retry_listing

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store

_HINT: Final = "write a version (12), a table's version (steps=12) or a time (2026-03-01T12:00:00Z)"


@dataclass(frozen=True, slots=True)
class AsOf:
    """The time or versions at which a query reads tables.

    Attributes
    ----------
    time
        Time at which all tables are read; None for now.
    version
        Delta version, for a query that names only one table.
    versions
        Delta versions by table. They take precedence over `time`.
    """

    time: datetime | None = None
    version: int | None = None
    versions: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def parse(cls, spec: "AsOf | datetime | int | str | Collection[str] | None") -> "AsOf":
        """Parse a time, a version, ``table=version``, or several of these. Raises `QueryError`.

        A time without a zone is UTC.
        """
        if isinstance(spec, AsOf):
            return spec
        time, version, versions = None, None, {}
        parts = [] if spec is None else [spec] if isinstance(spec, (datetime, int, str)) else list(spec)
        for part in parts:
            text = part.isoformat() if isinstance(part, datetime) else str(part).strip()
            if match := re.fullmatch(r"(\w+)=(\d+)", text):
                versions[match[1]] = int(match[2])
            elif text.isdecimal():
                version = int(text)
            else:
                time = _time(text)
        return cls(time, version, versions)

    def handle(self, store: "Store", table: str, named: Collection[str]) -> DeltaTable | None:
        """Return a table's handle at the version to read; None if the table did not exist yet.

        Parameters
        ----------
        named
            Names of all tables of the query.

        Raises `QueryError` if there is no such version, or if the log no longer has it.
        """
        if unknown := sorted(set(self.versions) - set(named)):
            raise QueryError(f"the query does not name {unknown[0]}", where="--as-of", hint=_HINT)
        if self.version is not None and len(named) != 1:
            hint = "write which table's it is, such as steps=12, or give a time"
            raise QueryError(f"version {self.version} of which of {len(named)} tables?", where="--as-of", hint=hint)
        newest = delta_table(store, table)
        version = self.versions.get(table, self.version)
        if version is not None:
            return _at_version(store, table, newest, version)
        return newest if newest is None or self.time is None else _at_time(store, newest, table, self.time)


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise QueryError(f"{text!r} is neither a version nor a time", where="--as-of", hint=_HINT) from error
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError as error:
        raise QueryError(f"{text!r} is before or after all times", where="--as-of", hint=_HINT) from error


def _at_version(store: "Store", table: str, newest: DeltaTable | None, version: int) -> DeltaTable:
    last = -1 if newest is None else newest.version()
    if version > last:
        hint = f"its versions end at {last}" if newest is not None else "it was never written"
        raise QueryError(f"{table} has no version {version}", where="--as-of", hint=hint)
    try:
        return at_version(store, table, version)
    except (DeltaError, OSError, ValueError):
        raise _too_old(table, f"version {version}") from None


def _at_time(store: "Store", table: DeltaTable, name: str, time: datetime) -> DeltaTable | None:
    """Load the version that was current at a time, by the times in the commits; None if the table was created later.

    delta-rs uses the modification times of the log's files instead. A copy of a lake has other times, and object stores
    only have seconds.
    """
    limit_ms = time.timestamp() * 1000
    low, high = 0, table.version() + 1
    while low < high:
        middle = (low + high) // 2
        committed_ms = _committed_ms(store, name, middle)
        if committed_ms is not None and committed_ms > limit_ms:
            high = middle
        else:  # a deleted commit is older than the existing ones
            low = middle + 1
    version = low - 1
    if version < 0:
        return None
    if _committed_ms(store, name, version) is None:
        raise _too_old(name, time.isoformat())
    try:
        retry_listing(lambda: table.load_as_version(version))
    except (DeltaError, OSError, ValueError):
        raise _too_old(name, time.isoformat()) from None
    return table


def _committed_ms(store: "Store", table: str, version: int) -> int | None:
    """Return when a version was committed, in milliseconds since 1970; None if the commit was deleted or is damaged."""
    try:
        return int(commit_info(store, table, version)["timestamp"])
    except (FileNotFoundError, ValueError, KeyError, TypeError, StopIteration, RecursionError):
        return None


def _too_old(table: str, when: str) -> QueryError:
    return QueryError(
        f"the log of {table} no longer reaches back to {when}", where="--as-of", hint="ask for a later one"
    )
