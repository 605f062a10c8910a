"""Tests of roles, written as data (`Case`, docs/roles.md), and checks of roles' conditions and teams."""

import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.query.admission import admit
from ranklake.lake.query.engine import SessionContext, engine
from ranklake.lake.query.errors import QueryError, one_line
from ranklake.lake.query.former import TableNames
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.query.sql import READ_ONLY, plain_text_columns, query
from ranklake.masking.masks import Pseudonyms
from ranklake.operator_files import OperatorFile, raise_all
from ranklake.segments.envelope import KEY_BYTES, Key
from ranklake.segments.keys import Keyring

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenCondition:
    """A condition of a role on a table that cannot be computed, and the error."""

    role: str
    table: str
    error: QueryError

    @property
    def line(self) -> str:
        """The problem in one line."""
        return f"role {self.role}: its condition on {self.table}: {self.error.what}"

    @property
    def hint(self) -> str:
        """How to fix it."""
        return self.error.hint or f"mend it: every query of {self.table} as {self.role} is refused"


def broken_conditions(role: "Role", contracts: Mapping[str, "Contract"]) -> Iterator[BrokenCondition]:
    """Yield the conditions of a role that fail on tables without rows. Does not find those that fail on some rows."""
    by_table = {table: role.own_conditions(contracts[table]) for table in sorted(role.tables & contracts.keys())}
    if not any(by_table.values()):
        return
    ctx = _without_rows(contracts)
    for table, conditions in by_table.items():
        for condition in conditions:
            try:
                text = f'SELECT 1 FROM "{table}" AS "{table}" WHERE (\n{condition}\n)'  # noqa: S608 - the role's own
                ctx.sql_with_options(text, READ_ONLY).to_arrow_table()
            except Exception as error:  # noqa: BLE001 - DataFusion raises no common class
                yield BrokenCondition(role=role.name, table=table, error=one_line(error, contracts, [table]))


def _without_rows(contracts: Mapping[str, "Contract"]) -> SessionContext:
    ctx = engine(1)
    for name, contract in contracts.items():
        schema = arrow_schema(contract).remove_metadata()
        ctx.register_record_batches(name, [[pa.RecordBatch.from_pylist([], schema=schema)]])
    TableNames.of(contracts.values()).put(ctx, keeps=True)
    return ctx


@dataclass(frozen=True, slots=True)
class UnknownTeam:
    """A team of a role that has no rows in the lake.

    Attributes
    ----------
    role, team
        Names of the role and the team.
    hint
        The nearest known names.
    """

    role: str
    team: str
    hint: str

    @property
    def line(self) -> str:
        """The problem in one line."""
        return f"role {self.role}: no run and no job is of team {self.team!r} yet"


def unknown_teams(lake: "Lake", roles: Iterable["Role"]) -> list[UnknownTeam]:
    """Return the teams of roles that no run and no job has. Makes no query if no role has teams.

    Raises the errors of a query.
    """
    with_teams = [role for role in roles if role.teams]
    if not with_teams:
        return []
    text = "SELECT team FROM runs WHERE team IS NOT NULL UNION SELECT team FROM jobs WHERE team IS NOT NULL"
    teams = set(query(lake, text).column("team").to_pylist())
    return [
        UnknownTeam(role.name, team, did_you_mean(team, sorted(teams)) if teams else "the lake has no team so far")
        for role in with_teams
        for team in sorted(role.teams - teams)
    ]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A test as in the file; None for a missing key."""

    role: str
    name: str = ""
    table: str | None = None
    sees: tuple[str, ...] | None = None
    masked: Mapping[str, Any] | None = None
    hidden: tuple[str, ...] | None = None
    refused: tuple[str, ...] | None = None
    given: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    ask: str | None = None
    gives: tuple[Mapping[str, Any], ...] | None = None
    never: tuple[str, ...] | None = None

    @property
    def columns(self) -> dict[str, str]:
        """The expected visibility of each named column."""
        masked = {name: "nullify" if mask is None else str(mask) for name, mask in (self.masked or {}).items()}
        return {**dict.fromkeys(self.sees or (), "seen"), **masked, **dict.fromkeys(self.hidden or (), "hidden")}


@dataclass(frozen=True)
class CasesFile:
    """A file of tests."""

    tests: tuple[Case, ...]


def read_cases(
    path: Path, roles: Mapping[str, Role], contracts: Mapping[str, "Contract"]
) -> Iterator[tuple[Case, str]]:
    """Yield the tests of a file, each with its file and line. Raises `RoleError` with all mistakes of the file."""
    file = OperatorFile(path, error=RoleError, noun="file of tests of roles")
    cases = file.load(CasesFile).tests
    raise_all(
        file.error(("tests", index), what, hint)
        for index, case in enumerate(cases)
        for what, hint in _mistakes(case, roles, contracts)
    )
    yield from ((case, f"{path}:{file.line(('tests', index))}") for index, case in enumerate(cases))


def _mistakes(case: Case, roles: Mapping[str, Role], contracts: Mapping[str, "Contract"]) -> Iterator[tuple[str, str]]:
    """Yield each mistake in a test, such as an unknown name or a missing key, and its hint."""
    has_columns = any(names is not None for names in (case.sees, case.masked, case.hidden))
    has_answers = case.gives is not None or case.never is not None
    if not has_columns and not has_answers and case.refused is None:
        yield "a test expects nothing", "write one of sees, masked, hidden, refused, gives, never"
    if has_columns and case.table is None:
        yield "a test of columns names no table", "write table: NAME"
    if has_answers and case.ask is None:
        yield "a test of rows asks nothing", "write ask: SELECT …"
    tables = [*([case.table] if case.table else []), *(case.refused or ()), *case.given]
    columns = [(case.table or "", name) for name in case.columns]
    columns += [(table, name) for table, rows in case.given.items() for row in rows for name in row]
    names: list[tuple[str, str, Collection[str], str]] = [("role", case.role, roles, "")]
    names += [("table", table, contracts, "") for table in tables]
    names += [("column", name, contracts[table].names, f" of {table}") for table, name in columns if table in contracts]
    for noun, name, known_names, suffix in names:
        if name not in known_names:
            yield f"unknown {noun} {name!r}{suffix}", did_you_mean(name, known_names)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a case.

    Attributes
    ----------
    name, at
        Its name; its file and line.
    faults
        Differences from the expectation, one clause each.
    """

    name: str
    at: str
    faults: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether there are no differences."""
        return not self.faults

    @property
    def line(self) -> str:
        """The result in one line."""
        return f"{self.at}: {self.name}: {'; '.join(self.faults)}"

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"name": self.name, "at": self.at, "passed": self.passed, "faults": list(self.faults)}


def run_cases(files: Sequence[Path], roles: Mapping[str, Role], contracts: Mapping[str, "Contract"]) -> list[Result]:
    """Run all tests of these files. Raises `ranklake.lake.query.roles.RoleError`, with file and line."""
    return [
        Result(case.name or _case_name(case), at, tuple(_faults(case, roles, contracts)))
        for path in files
        for case, at in read_cases(path, roles, contracts)
    ]


def _case_name(case: Case) -> str:
    return f"{case.role} asks {case.table or case.ask or ', '.join(case.refused or ())}"


def _faults(case: Case, roles: Mapping[str, Role], contracts: Mapping[str, "Contract"]) -> Iterator[str]:
    role = roles[case.role]
    yield from (f"{table} is seen, and must not be" for table in case.refused or () if role.sees(table))
    if case.table is not None:
        yield from _column_faults(case, role, contracts[case.table])
    if case.ask is not None:
        yield from _row_faults(case, role, contracts)


def _column_faults(case: Case, role: Role, contract: "Contract") -> Iterator[str]:
    if not role.sees(contract.table):
        yield f"{contract.table} is not there for {role.name}"
        return
    states = {sight.column.name: sight.visibility for sight in role.sights(contract)}
    for name, expected in case.columns.items():
        if states[name] != expected:
            yield f"{name} must be {expected}, and is {states[name]}"


def _row_faults(case: Case, role: Role, contracts: Mapping[str, "Contract"]) -> Iterator[str]:
    try:
        answer = _answer(case, role, contracts)
    except RanklakeError as error:
        yield f"the query fails: {error}"
        return
    rows = answer.to_pylist()
    if case.gives is not None:
        expected, actual = (Counter(map(_row_text, side)) for side in (case.gives, rows))
        lacking, extra = (expected - actual).total(), (actual - expected).total()
        if lacking or extra:
            yield f"{answer.num_rows} rows, of which {extra} must not be there; {lacking} are missing"
    texts = [str(value) for row in rows for value in row.values()]
    for number, text in enumerate(case.never or (), 1):
        if any(text in value for value in texts):
            yield f"never: text {number} of {len(case.never or ())} is in the answer"


def _answer(case: Case, role: Role, contracts: Mapping[str, "Contract"]) -> pa.Table:
    """Return the result of the test's query as the role, over the test's rows. Raises `RanklakeError`."""
    ctx = engine(1)
    try:
        for name, contract in contracts.items():
            rows = _rows(case.given.get(name) or (), arrow_schema(contract).remove_metadata())
            ctx.register_record_batches(
                name, [rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]]
            )
        admit(ctx, role, contracts, Pseudonyms(Keyring((Key(secrets.token_bytes(KEY_BYTES)),))))
        return plain_text_columns(ctx.sql_with_options(str(case.ask), READ_ONLY).to_arrow_table())
    except QueryError:
        raise
    except Exception as error:  # noqa: BLE001 - DataFusion raises no common class
        raise one_line(error, contracts, [name for name in contracts if role.sees(name)]) from None


def _rows(given: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return the test's rows with a table's schema; missing values are NULL. Times and dates are ISO 8601 text."""
    columns = [pa.array([row.get(field.name) for row in given]).cast(field.type) for field in schema]
    return pa.table(columns, schema=pa.schema([field.with_nullable(nullable=True) for field in schema]))


def _row_text(row: Mapping[str, Any]) -> str:
    return repr(sorted((name, None if value is None else str(value)) for name, value in row.items()))
