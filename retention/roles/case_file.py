"""A file of tests of roles, held to its form.

tests:
  - role: researcher
    table: runs
    sees: [run, job]                        as they are
    masked: {user: hash}
    hidden: [git_patch]
  - role: researcher
    refused: [logs]                         tables that are not there for it
  - name: closed runs stay hidden
    role: researcher
    given: {runs: [{run: open-1, user: ada}, {run: closed, user: eve}]}
    ask: SELECT run FROM runs
    gives: [{run: open-1}]                  these rows, in any order
    never: [ada, eve]                       texts that no value of the answer holds
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.document import Document
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.schema import problems
from ranklake.lake.query.roles import Role, RoleError

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
