"""Roles: what of the tables a query may see, as views that stand in place of the tables.

A role's file is YAML:

    roles:
      researcher:
        classes: [operational]             columns of other classes are NULL
        tables: [steps, scalars, runs]     default all
        where: {steps: "run LIKE 'open-%'"}   rows of a table, in SQL

A view binds those who come through it. Who holds keys to the bucket reads the files themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import yaml

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.model import CLASSES
from ranklake.lake.engine import SessionContext, col, lit

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

_ALL_ROWS: Final = 2**63 - 1
_TELL_FILES: Final = ("input_file_name",)
_KEYS: Final = ("classes", "tables", "where")


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
        Classes of columns that it sees; others are NULL.
    tables
        Tables that it may ask; None for all.
    where
        Condition in SQL that rows must meet, by table.
    """

    name: str
    classes: frozenset[str]
    tables: frozenset[str] | None = None
    where: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def sees(self, table: str) -> bool:
        """Return whether it may ask a table."""
        return self.tables is None or table in self.tables


def load_role(path: Path, name: str, contracts: Mapping[str, "Contract"]) -> Role:
    """Read one role of a file. Raises `RoleError` if it is not there, or anything in the file is not understood."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RoleError(
            f"no roles can be read ({type(error).__name__})", where=str(path), mend="mend the file"
        ) from error
    roles = document.get("roles") if isinstance(document, dict) and set(document) == {"roles"} else None
    if not isinstance(roles, dict):
        raise RoleError("no mapping of roles", where=str(path), mend="write them under roles:, and nothing beside it")
    known = {str(one): _role(f"{path}: role {one}", str(one), body, contracts) for one, body in roles.items()}
    if name not in known:
        raise RoleError(f"no role is called {name!r}", where=str(path), mend=did_you_mean(name, known))
    return known[name]


def _role(place: str, name: str, body: object, contracts: Mapping[str, "Contract"]) -> Role:
    if not isinstance(body, dict) or "classes" not in body:
        raise RoleError("no list of classes", where=place, mend=f"write classes: [{', '.join(CLASSES)}] or fewer")
    for key in body:
        _known(place, "key", key, _KEYS)
    where = body.get("where", {})
    if not isinstance(where, dict) or not all(isinstance(text, str) and text for text in where.values()):
        raise RoleError("where is no mapping of conditions", where=place, mend='write where: {steps: "rank = 0"}')
    tables = _names(place, "table", body["tables"], contracts) if "tables" in body else None
    for table in where:
        _known(place, "table", table, contracts)
    return Role(name, _names(place, "class", body["classes"], CLASSES), tables, MappingProxyType(where))


def _names(place: str, noun: str, said: Any, known: Any) -> frozenset[str]:  # noqa: ANN401 - whatever YAML gives
    if not isinstance(said, list):
        raise RoleError(f"no list of {noun} names", where=place, mend="write them in brackets")
    for name in said:
        _known(place, noun, name, known)
    return frozenset(said)


def _known(place: str, noun: str, name: object, known: Any) -> None:  # noqa: ANN401 - a container of names
    if name not in known:
        raise RoleError(f"no {noun} is called {name!r}", where=place, mend=did_you_mean(str(name), known))


def admit(ctx: SessionContext, role: Role, contracts: Mapping[str, "Contract"]) -> None:
    """Put the role's views in place of a session's tables.

    Parameters
    ----------
    contracts
        Of the tables that are registered; the role must see them all.

    Rows are chosen behind a limit that takes all of them. No optimizer may move a condition across a limit, so no
    condition of the query is ever evaluated on a row that the role does not see: it could tell by failing. The
    functions that tell which file a row is from are taken away.
    """
    for name in _TELL_FILES:
        ctx.deregister_udf(name)
    for table, contract in contracts.items():
        frame = ctx.table(table)
        if condition := role.where.get(table):
            frame = ctx.sql(f'SELECT * FROM "{table}" WHERE {condition} LIMIT {_ALL_ROWS}')  # noqa: S608 - the role's own
        nothing = {field.name: lit(pa.scalar(None, field.type)).alias(field.name) for field in arrow_schema(contract)}
        seen = {column.name for column in contract.columns if column.class_ in role.classes}
        view = frame.select(*(col(f'"{name}"') if name in seen else null for name, null in nothing.items()))
        ctx.deregister_table(table)
        ctx.register_view(table, view)
