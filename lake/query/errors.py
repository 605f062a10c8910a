"""Query errors in one line: DataFusion's messages shortened, with the nearest existing name."""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError, did_you_mean

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

FENCE: Final = "__former_names_"
"""How columns begin that set former names apart (`ranklake.lake.query.former`); nobody asks for them."""

_NO_TABLE: Final = re.compile(r"table '(?:[^']*\.)?([^'.]+)' not found")
_NO_FIELD: Final = re.compile(r"No field named ([^\n]+?)\.(?: Did you mean '([^']+)'\?)?(?:\n|$)")
_VALID: Final = re.compile(r"Valid fields are ([^\n]+?)\.(?:\n|$)")
_NO_FUNCTION: Final = re.compile(r"Invalid function '([^']+)'\.(?:\s*Did you mean '([^']+)'\?)?")
_NO_VALUE: Final = re.compile(r"No value found for placeholder with name \$(\w+)")
_POSITION: Final = re.compile(r" at Line: (\d+), Column: (\d+)")


class QueryError(RanklakeError):
    """A query that cannot be answered."""


class ConditionError(QueryError):
    """A condition of a role that cannot be understood; it has no word of it.

    Attributes
    ----------
    told
        What DataFusion said, which is not for the role.
    """

    def __init__(self, role: str, table: str, told: Exception) -> None:
        what = f"a condition of role {role} on {table} cannot be understood"
        hint = "ranklake doctor tells whoever keeps the roles what is wrong with it"
        super().__init__(what, where=f"role {role}", hint=hint)
        self.told = told


class NotReadOnlyError(QueryError):
    """A statement that would change something."""


_VALUES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\S*/\S*|[-+]?\d[\d.e+-]*")


def veiled(error: QueryError) -> QueryError:
    """Return an error of a running query without values and places: they may be of rows that the asker must not see."""
    return QueryError(_VALUES.sub("…", error.what), where="SQL", hint=error.hint)


def missing_column(error: Exception) -> tuple[str, str] | None:
    """Return qualifier (or "") and name of the column that DataFusion misses; None where it says something else."""
    found = _NO_FIELD.search(str(error))
    if found is None:
        return None
    qualifier, _, name = found[1].replace('"', "").rpartition(".")
    return qualifier.rpartition(".")[2], name


def missing_table(error: Exception) -> str:
    """Return the name of the table that DataFusion misses; empty where it says something else."""
    found = _NO_TABLE.search(str(error))
    return found[1] if found else ""


def explained(error: Exception, contracts: Mapping[str, "Contract"], opened: Iterable[str]) -> QueryError:
    """Return one line for what DataFusion said in several.

    Parameters
    ----------
    contracts
        Tables that may be asked for.
    opened
        Those that the query names.
    """
    said = str(error)
    if "not supported: " in said and any(word in said for word in ("DDL", "DML", "Statement")):
        return NotReadOnlyError("only queries are answered here", where="SQL", hint="write SELECT …")
    if found := _NO_TABLE.search(said):
        name = found[1]
        known = [one.name for one in contracts.values()]
        return QueryError(f"unknown table {name!r}", where="SQL", hint=did_you_mean(name, known))
    if found := _NO_FIELD.search(said):
        return _no_column(found[1], _VALID.search(said), contracts, opened)
    if found := _NO_FUNCTION.search(said):
        hint = f"did you mean {found[2]!r}?" if found[2] else ""
        return QueryError(f"unknown function {found[1]!r}", where="SQL", hint=hint)
    if found := _NO_VALUE.search(said):
        return QueryError(f"no value is given for ${found[1]}", where="SQL", hint=f"pass --param {found[1]}=VALUE")
    where = "SQL"
    if found := _POSITION.search(said):
        where = f"SQL:{found[1]}:{found[2]}"
        said = _POSITION.sub("", said)
    for noise in ("SQL error: ", "Error during planning: ", "Schema error: ", "This feature is not implemented: "):
        said = said.removeprefix(noise)
    if found := re.fullmatch(r'ParserError\("(.*)"\)', said.strip(), re.DOTALL):
        said = f"syntax error: {found[1]}"
    return QueryError(" ".join(said.split()) or type(error).__name__, where=where)


def _no_column(
    name: str, valid: re.Match[str] | None, contracts: Mapping[str, "Contract"], opened: Iterable[str]
) -> QueryError:
    wanted = name.replace('"', "").split(".")[-1]
    known = {field.replace('"', "").split(".")[-1] for field in valid[1].split(", ")} if valid else set()
    known = {one for one in known if not one.startswith(FENCE)}
    if not known:
        known = {column for table in opened for column in contracts[table].names}
    return QueryError(f"unknown column {name!r}", where="SQL", hint=did_you_mean(wanted, known))
