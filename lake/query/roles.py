"""Roles: what a query may see, as views that replace the tables.

A role's file is YAML. What a role does not name is not there for it, neither tables nor columns:

    roles:
      researcher:
        classes: [operational]               columns of these classes
        tables: [steps, scalars, runs]       and of these tables
        runs: "run LIKE 'open-%'"            rows of every table that has `run`, in SQL
        where: {steps: "rank = 0"}           rows of one table besides, in SQL

Conditions are the operator's: they are evaluated on the tables as they are, with all columns and rows, and may ask
other tables (``run IN (SELECT run FROM runs WHERE ...)``), whatever the query names.

A view binds those who come through it. Who holds keys to the bucket reads the files themselves.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import yaml

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.model import CLASSES
from ranklake.lake.query.engine import SessionContext, col

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

_ALL_ROWS: Final = 2**63 - 1
_TELL_FILES: Final = ("input_file_name",)
_KEYS: Final = ("classes", "tables", "runs", "where")
_WORD: Final = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)
_OTHER_RUNS: Final = frozenset({"holder_run"})
"""Columns that name runs beside ``run``: which runs hold a device, whoever's row it is."""


class RoleError(RanklakeError):
    """A role that nobody defined, or a definition that says nothing that can be held to."""


@dataclass(frozen=True, slots=True)
class Role:
    """What one role may see.

    Attributes
    ----------
    name
        Its name.
    classes
        Classes of columns that it sees; others are not there.
    tables
        Tables that it may ask; others are not there.
    where
        Condition in SQL that rows must meet, by table.
    runs
        Condition in SQL that rows of every table with a column ``run`` must meet; empty for none.
    """

    name: str
    classes: frozenset[str]
    tables: frozenset[str] = frozenset()
    where: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    runs: str = ""

    def sees(self, table: str) -> bool:
        """Return whether it may ask a table."""
        return table in self.tables

    def columns(self, contract: "Contract") -> list[str]:
        """Return the columns of a table that it sees."""
        hidden = _OTHER_RUNS if self.runs else frozenset()
        return [one.name for one in contract.columns if one.class_ in self.classes and one.name not in hidden]

    def conditions(self, contract: "Contract") -> list[str]:
        """Return what rows of a table must meet."""
        said = [self.where.get(contract.table, ""), self.runs if "run" in contract else ""]
        return [one for one in said if one]

    def words(self, contracts: Iterable["Contract"]) -> set[str]:
        """Return the words, in lower case, of the conditions of some tables: columns and tables among them."""
        return {word.lower() for one in contracts for said in self.conditions(one) for word in _WORD.findall(said)}


def load_role(path: Path, name: str, contracts: Mapping[str, "Contract"]) -> Role:
    """Read one role of a file. Raises `RoleError` if it is not there, or anything in the file is not understood."""
    known = load_roles(path, contracts)
    if name not in known:
        raise RoleError(f"unknown role {name!r}", where=str(path), mend=did_you_mean(name, known))
    return known[name]


def load_roles(path: Path, contracts: Mapping[str, "Contract"]) -> dict[str, Role]:
    """Read all roles of a file. Raises `RoleError` if anything in it is not understood."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RoleError(
            f"no roles can be read ({type(error).__name__})", where=str(path), mend="fix the file"
        ) from error
    roles = document.get("roles") if isinstance(document, dict) and set(document) == {"roles"} else None
    if not isinstance(roles, dict):
        raise RoleError("no mapping of roles", where=str(path), mend="write them under roles:, and nothing beside it")
    return {str(one): _role(f"{path}: role {one}", str(one), body, contracts) for one, body in roles.items()}


def _role(place: str, name: str, body: object, contracts: Mapping[str, "Contract"]) -> Role:
    if not isinstance(body, dict) or "classes" not in body:
        raise RoleError("no list of classes", where=place, mend=f"write classes: [{', '.join(CLASSES)}] or fewer")
    for key in body:
        _known(place, "key", key, _KEYS)
    classes = _names(place, "class", body["classes"], CLASSES)
    if "tables" not in body:
        raise RoleError(
            "no list of tables", where=place, mend="write tables: [steps, runs], each that the role may ask"
        )
    where, runs = body.get("where", {}), body.get("runs", "")
    if not isinstance(where, dict) or not all(isinstance(text, str) and text for text in where.values()):
        raise RoleError("where is not a mapping of conditions", where=place, mend='write where: {steps: "rank = 0"}')
    if not isinstance(runs, str) or ("runs" in body and not runs):
        raise RoleError("runs is not a condition", where=place, mend="""write runs: "run LIKE 'open-%'\"""")
    for table in where:
        _known(place, "table", table, contracts)
    role = Role(
        name,
        classes,
        _names(place, "table", body["tables"], contracts),
        MappingProxyType(where),
        runs,
    )
    _refuse_half(place, role, contracts)
    return role


def _refuse_half(place: str, role: Role, contracts: Mapping[str, "Contract"]) -> None:
    """Raise `RoleError` where runs are hidden in one table and another tells of them."""
    by_run = sorted(table for table, said in role.where.items() if "run" in _WORD.findall(said.lower()))
    open_ = sorted(
        table for table in role.tables if "run" in contracts[table] and not role.conditions(contracts[table])
    )
    if by_run and open_:
        what = f"{by_run[0]} is restricted by run, and {open_[0]} tells of all runs"
        mend = f'write the condition under runs:, or where: {{{open_[0]}: "true"}} if that is meant'
        raise RoleError(what, where=place, mend=mend)


def _names(place: str, noun: str, said: Any, known: Any) -> frozenset[str]:  # noqa: ANN401 - whatever YAML gives
    if not isinstance(said, list):
        raise RoleError(f"no list of {noun} names", where=place, mend="write them in brackets")
    for name in said:
        _known(place, noun, name, known)
    return frozenset(said)


def _known(place: str, noun: str, name: object, known: Any) -> None:  # noqa: ANN401 - a container of names
    if name not in known:
        raise RoleError(f"unknown {noun} {name!r}", where=place, mend=did_you_mean(str(name), known))


def admit(ctx: SessionContext, role: Role, contracts: Mapping[str, "Contract"]) -> None:
    """Put the role's views in place of a session's tables.

    Parameters
    ----------
    contracts
        Of all tables that are registered: those that the role asks for, and those that its conditions name. What it
        does not see is not there afterwards.

    Rows are chosen behind a limit that takes all of them. No optimizer may move a condition across a limit, so no
    condition of the query is ever evaluated on a row that the role does not see: it could tell by failing. The
    functions that tell which file a row is from are taken away.
    """
    for name in _TELL_FILES:
        ctx.deregister_udf(name)
    views = {}
    for table, contract in contracts.items():
        if not role.sees(table):
            continue
        frame = ctx.table(table)
        if conditions := role.conditions(contract):
            # each on lines of its own, so that a comment in it ends
            said = " AND ".join(f"(\n{one}\n)" for one in conditions)
            frame = ctx.sql(f'SELECT * FROM "{table}" WHERE {said} LIMIT {_ALL_ROWS}')  # noqa: S608 - the role's own
        views[table] = frame.select(*(col(f'"{name}"') for name in role.columns(contract)))
    for table in contracts:
        ctx.deregister_table(table)
    for table, view in views.items():
        ctx.register_view(table, view)
