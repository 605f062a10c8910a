"""Queries of facts: SQL in, rows out; data hidden from a role is reported as a reason instead of rows."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.migrations.former import former_names
from ranklake.lake.query.errors import QueryError
from ranklake.lake.query.scan import Opened
from ranklake.lake.query.sql import Answer, answer, answer_next

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

Row = Mapping[str, Any]
_WHOLE_MASKS: Final = frozenset({"hash", "redact"})
"""Masks that keep distinct values distinct; under other masks, counts and means would be wrong."""
_WORD: Final = re.compile(r"\w+")
_ALL_COLUMNS: Final = re.compile(r"(?:select|\.)\s*\*", re.IGNORECASE)
_READS: Final = re.compile(r'\b(?:from|join)\s+"?(\w+)', re.IGNORECASE)


class UnseenError(RanklakeError):
    """A query needs a table or column that the role does not see."""


def _unseen(reason: str) -> UnseenError:
    return UnseenError(reason, hint="ask whoever keeps the roles")


@dataclass(frozen=True, slots=True)
class QueriedFacts:
    """Facts, and the SQL that gave them.

    Attributes
    ----------
    sql
        The query, which ``ranklake sql`` can run. Empty if there was no query.
    rows
        Its rows, columns by name.
    reason
        Why there are no rows, if the query was not made or the answer is hidden; else empty.
    versions
        Delta versions of the tables that were read; None for one that was never written. Ignored in comparisons of
        facts.
    """

    sql: str
    rows: tuple[Row, ...] = ()
    reason: str = ""
    versions: Mapping[str, int | None] = field(default_factory=dict, repr=False, compare=False)

    @property
    def first_row(self) -> Row:
        """Its only row; an empty one if there is none."""
        return self.rows[0] if self.rows else {}

    def seen(self) -> "QueriedFacts":
        """Return the same facts. Raises `UnseenError` if they are hidden from the role."""
        if self.reason:
            raise _unseen(self.reason)
        return self


Ask = Callable[[str], QueriedFacts]
"""Answers one SELECT. Raises what `ranklake.lake.query.sql.answer` does."""


class Reader:
    """Reads tables of a lake by SQL, as a role sees them. Each table is opened when a question first names it.

    Attributes
    ----------
    lake, role
        Lake and role; None for all data.
    used
        Columns that were used, by table; None if they are not recorded.
    """

    def __init__(self, lake: "Lake", role: "Role | None" = None, *, counts_use: bool = False) -> None:
        self.lake, self.role = lake, role
        self.used: dict[str, set[str]] | None = {} if counts_use else None
        self._opened = Opened(lake)

    def read(self, sql: str) -> Answer:
        """Answer one SELECT. Raises `UnseenError` for data that is hidden from the role, or unsuitably masked."""
        role = self.role
        if role is not None and (masked := masked_column(role, sql, self._opened)):
            raise _unseen(f"role {role.name} sees {masked}, and numbers of that would be wrong")
        try:
            if self.used is None:
                return answer_next(self.lake, self._opened, sql, role)
            result = answer(self.lake, sql, role=role, former=former_names, opened=self._opened)
        except QueryError as error:
            if role is None or not error.what.startswith("unknown "):
                raise
            raise _unseen(f"role {role.name} does not see it ({error.what})") from error
        for table, names in result.sketch.columns.items():
            self.used.setdefault(table, set()).update(names)
        return result

    def ask(self, sql: str) -> QueriedFacts:
        """Answer one SELECT with plain rows; if `read` raises `UnseenError`, with its reason."""
        try:
            result = self.read(sql)
        except UnseenError as error:
            return QueriedFacts(sql, (), error.what)
        versions = read_by(sql, result.versions) if self.role is None else {}
        return QueriedFacts(sql, tuple(result.rows.to_pylist()), versions=versions)


def asking(lake: "Lake", role: "Role | None" = None) -> Ask:
    """Return a function that answers queries of a lake, as a role sees it.

    Hidden tables and columns give no rows, and a reason; so do columns whose mask would make numbers wrong. A role gets
    no table versions, which would reveal others' activity. Other errors are raised. Each table is opened once, so that
    all answers are of one version.
    """
    return Reader(lake, role).ask


def masked_column(role: "Role", sql: str, opened: Opened) -> str:
    """Return a column in a query whose mask merges values for the role, with the mask; empty for none."""
    words = set(_WORD.findall(sql))
    for table in sorted(set(_READS.findall(sql)) & set(opened.contracts)):
        for sight in role.sights(opened.contracts[table]) if role.sees(table) else ():
            if sight.mask is None or sight.is_hidden or sight.mask.kind in _WHOLE_MASKS:
                continue
            if sight.column.name in words or _ALL_COLUMNS.search(sql):
                return f"{table}.{sight.column.name} as {sight.mask.spec}"
    return ""


def read_by(sql: str, versions: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return the versions of the tables that appear in a query."""
    names = set(_READS.findall(sql))
    return {name: at for name, at in sorted(versions.items()) if name in names}


@cache
def sql_text(package: str, name: str) -> str:
    """Return the SQL of a file in a package, without its comments, so that a reader can run it."""
    lines = files(package).joinpath(f"{name}.sql").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("--")) + "\n"
