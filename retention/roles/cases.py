"""Tests of roles as data: what a role must see and must not, in words, and by rows that are made up.

Their form: `ranklake.retention.roles.cases`.
"""

import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.document import Document
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.schema import problems
from ranklake.lake.query.admission import admit
from ranklake.lake.query.engine import engine
from ranklake.lake.query.errors import QueryError, explained
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.query.sql import READ_ONLY, plain
from ranklake.masking.pseudonyms import Pseudonyms
from ranklake.segments.envelope import KEY_BYTES, Key
from ranklake.segments.keys import Keyring

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract


_TEXT: Final = {"type": "string"}
_NAMES: Final = {"type": "array", "items": _TEXT}
_ROWS: Final = {"type": "array", "items": {"type": "object"}}
_OF_COLUMNS: Final = ("sees", "masked", "hidden")
_OF_ANSWERS: Final = ("gives", "never")
_CASE: Final[Mapping[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["role"],
    "properties": {
        **dict.fromkeys(("name", "role", "table", "ask"), _TEXT),
        **dict.fromkeys(("sees", "hidden", "refused", "never"), _NAMES),
        "masked": {"type": "object"},
        "given": {"type": "object"},
        "gives": _ROWS,
    },
}
_FILE: Final[Mapping[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["tests"],
    "properties": {"tests": {"type": "array", "items": _CASE}},
}

Case = Mapping[str, Any]
"""A test, as the file has it."""


def read_cases(
    path: Path, roles: Mapping[str, Role], contracts: Mapping[str, "Contract"]
) -> Iterator[tuple[Case, str]]:
    """Yield the tests of a file, each with its file and line. Raises `RoleError` for what is none."""
    try:
        document = Document(path)
        for problem in problems(document.content, _FILE):
            document.fail(problem.at, problem.what, problem.hint)
        for place, case in enumerate(document.content["tests"]):
            _agree(document, place, case, roles, contracts)
            yield case, f"{path}:{document.line(('tests', place))}"
    except ContractError as error:
        raise RoleError(error.what, where=error.where, hint=error.hint) from error


def _agree(
    document: Document, place: int, case: Case, roles: Mapping[str, Role], contracts: Mapping[str, "Contract"]
) -> None:
    """Raise `ContractError` where a test names what is not there, or tests nothing."""
    at = ("tests", place)

    def known(noun: str, names: Collection[Any], there: Collection[str], of: str = "") -> None:
        for name in names:
            if name not in there:
                document.fail(at, f"unknown {noun} {name!r}{of}", did_you_mean(str(name), there))

    columns, answers = ([key for key in keys if key in case] for keys in (_OF_COLUMNS, _OF_ANSWERS))
    if not columns and not answers and "refused" not in case:
        document.fail(
            at, "a test expects nothing", f"write one of {', '.join((*_OF_COLUMNS, 'refused', *_OF_ANSWERS))}"
        )
    if columns and "table" not in case:
        document.fail(at, "a test of columns names no table", "write table: NAME")
    if answers and "ask" not in case:
        document.fail(at, "a test of rows asks nothing", "write ask: SELECT …")
    given = case.get("given", {})
    known("role", [case["role"]], roles)
    known("table", [*([case["table"]] if "table" in case else []), *case.get("refused", ()), *given], contracts)
    for key in columns:
        known("column", case[key], contracts[case["table"]].names, f" of {case['table']}")
    for table, rows in given.items():
        for problem in problems(rows, _ROWS, (*at, "given", table)):
            document.fail(problem.at, problem.what, problem.hint)
        known("column", [name for row in rows for name in row], contracts[table].names, f" of {table}")


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a case.

    Attributes
    ----------
    name, at
        Its name; file and line.
    faults
        What is otherwise than it must be, a clause each.
    """

    name: str
    at: str
    faults: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether all is as it must be."""
        return not self.faults

    @property
    def line(self) -> str:
        """What to tell of it, in one line."""
        return f"{self.at}: {self.name}: {'; '.join(self.faults)}"

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"name": self.name, "at": self.at, "passed": self.passed, "faults": list(self.faults)}


def run_cases(files: Sequence[Path], roles: Mapping[str, Role], contracts: Mapping[str, "Contract"]) -> list[Result]:
    """Run all tests of some files. Raises `ranklake.lake.query.roles.RoleError`, with file and line."""
    return [
        Result(case.get("name") or _named(case), at, tuple(_faults(case, roles, contracts)))
        for path in files
        for case, at in read_cases(path, roles, contracts)
    ]


def _named(case: Case) -> str:
    return f"{case['role']} asks {case.get('table') or case.get('ask') or ', '.join(case.get('refused', ()))}"


def _faults(case: Case, roles: Mapping[str, Role], contracts: Mapping[str, "Contract"]) -> Iterator[str]:
    role = roles[case["role"]]
    yield from (f"{table} is seen, and must not be" for table in case.get("refused", ()) if role.sees(table))
    if "table" in case:
        yield from _of_columns(case, role, contracts[case["table"]])
    if "ask" in case:
        yield from _of_rows(case, role, contracts)


def _of_columns(case: Case, role: Role, contract: "Contract") -> Iterator[str]:
    if not role.sees(contract.table):
        yield f"{contract.table} is not there for {role.name}"
        return
    found = {sight.column.name: sight.said for sight in role.sights(contract)}
    wanted = {
        **dict.fromkeys(case.get("sees", ()), "seen"),
        **{name: "nullify" if said is None else str(said) for name, said in case.get("masked", {}).items()},
        **dict.fromkeys(case.get("hidden", ()), "hidden"),
    }
    yield from (f"{name} must be {how}, and is {found[name]}" for name, how in wanted.items() if found[name] != how)


def _of_rows(case: Case, role: Role, contracts: Mapping[str, "Contract"]) -> Iterator[str]:
    try:
        answer = _answer(case, role, contracts)
    except RanklakeError as error:
        yield f"the query fails: {error}"
        return
    if "gives" in case:
        wanted, found = (Counter(_bare(row) for row in rows) for rows in (case["gives"], answer.to_pylist()))
        lacking, extra = (wanted - found).total(), (found - wanted).total()
        if lacking or extra:
            yield f"{answer.num_rows} rows, of which {extra} must not be there; {lacking} are missing"
    said = [str(value) for row in answer.to_pylist() for value in row.values()]
    for number, text in enumerate(case.get("never", ()), 1):
        if any(str(text) in value for value in said):
            yield f"never: text {number} of {len(case['never'])} is in the answer"


def _answer(case: Case, role: Role, contracts: Mapping[str, "Contract"]) -> pa.Table:
    """Return what the role gets from the given rows. Raises `RanklakeError`."""
    ctx = engine(1)
    try:
        for name, contract in contracts.items():
            rows = _rows(case.get("given", {}).get(name) or [], arrow_schema(contract).remove_metadata())
            ctx.register_record_batches(
                name, [rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]]
            )
        admit(ctx, role, contracts, Pseudonyms(Keyring((Key(secrets.token_bytes(KEY_BYTES)),))))
        return plain(ctx.sql_with_options(str(case["ask"]), READ_ONLY).to_arrow_table())
    except QueryError:
        raise
    except Exception as error:  # noqa: BLE001 - DataFusion raises it; what is given may be of no column's type
        raise explained(error, contracts, [name for name in contracts if role.sees(name)]) from None


def _rows(given: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return made up rows under a table's schema; what they lack is NULL. Times and dates are text as in ISO 8601."""
    columns = [pa.array([row.get(field.name) for row in given]).cast(field.type) for field in schema]
    return pa.table(columns, schema=pa.schema([field.with_nullable(nullable=True) for field in schema]))


def _bare(row: Mapping[str, Any]) -> str:
    return repr(sorted((name, None if value is None else str(value)) for name, value in row.items()))
