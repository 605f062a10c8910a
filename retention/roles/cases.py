"""Tests of roles as data: what a role must see and must not, in words, and by rows that are made up.

Their form: `ranklake.retention.roles.case_file`.
"""

import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.query.admission import admit
from ranklake.lake.query.engine import engine
from ranklake.lake.query.errors import QueryError, explained
from ranklake.lake.query.roles import Role
from ranklake.lake.query.sql import READ_ONLY, plain
from ranklake.masking.pseudonyms import Pseudonyms
from ranklake.retention.roles.case_file import Case, read_cases
from ranklake.segments.envelope import KEY_BYTES, Key
from ranklake.segments.keys import Keyring

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract


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
    found = {one.column.name: one.said for one in role.sights(contract)}
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
