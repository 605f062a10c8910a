"""Query errors in one line: DataFusion's messages shortened, with the nearest existing name."""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError, did_you_mean

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

FENCE: Final = "__former_names_"
"""Prefix of the internal columns that mark former names (`ranklake.lake.query.former`). Queries do not use it."""

_NO_TABLE: Final = re.compile(r"table '(?:[^']*\.)?([^'.]+)' not found")
_NO_FIELD: Final = re.compile(r"No field named ([^\n]+?)\.(?: Did you mean '([^']+)'\?)?(?:\n|$)")
_VALID: Final = re.compile(r"Valid fields are ([^\n]+?)\.(?:\n|$)")
_NO_FUNCTION: Final = re.compile(r"Invalid function '([^']+)'\.(?:\s*Did you mean '([^']+)'\?)?")
_NO_VALUE: Final = re.compile(r"(?:No value found for placeholder with name |Placeholder ')\$(\w+)")
_ARROW: Final = re.compile(r"Operator ->>? is not yet supported")
_POSITION: Final = re.compile(r" at Line: (\d+), Column: (\d+)")


class QueryError(RanklakeError):
    """A query that cannot be answered."""


class ConditionError(QueryError):
    """A condition of a role that is invalid SQL. The message contains nothing of the condition.

    Attributes
    ----------
    cause
        DataFusion's error, which the role must not see.
    """

    def __init__(self, role: str, table: str, error: Exception) -> None:
        message = f"a condition of role {role} on {table} cannot be understood"
        hint = "ranklake doctor tells whoever keeps the roles what is wrong with it"
        super().__init__(message, where=f"role {role}", hint=hint)
        self.cause = error


class NotReadOnlyError(QueryError):
    """A statement that is no query, such as INSERT or CREATE TABLE."""


_VALUES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\S*/\S*|[-+]?\d[\d.e+-]*")


def without_values(error: QueryError) -> QueryError:
    """Remove values and paths from an error of a running query: they may be from rows that the role must not see."""
    return QueryError(_VALUES.sub("…", error.what), where="SQL", hint=error.hint)


def missing_column(error: Exception) -> tuple[str, str] | None:
    """Return qualifier (or "") and name of an unknown column, from DataFusion's error; None for any other error."""
    match = _NO_FIELD.search(str(error))
    if match is None:
        return None
    qualifier, _, name = match[1].replace('"', "").rpartition(".")
    return qualifier.rpartition(".")[2], name


def missing_table(error: Exception) -> str:
    """Return the name of an unknown table, from DataFusion's error; empty for any other error."""
    match = _NO_TABLE.search(str(error))
    return match[1] if match else ""


def one_line(error: Exception, contracts: Mapping[str, "Contract"], opened: Iterable[str]) -> QueryError:
    """Convert DataFusion's error to an error of one line, with a hint.

    Parameters
    ----------
    contracts
        Tables that the query may use, for "did you mean".
    opened
        Tables that the query names.
    """
    text = str(error)
    if "not supported: " in text and any(word in text for word in ("DDL", "DML", "Statement")):
        return NotReadOnlyError("only queries are answered here", where="SQL", hint="write SELECT …")
    if match := _NO_TABLE.search(text):
        name = match[1]
        known = [contract.name for contract in contracts.values()]
        return QueryError(f"unknown table {name!r}", where="SQL", hint=did_you_mean(name, known))
    if match := _NO_FIELD.search(text):
        return _no_column(match[1], _VALID.search(text), contracts, opened)
    if match := _NO_FUNCTION.search(text):
        hint = f"did you mean {match[2]!r}?" if match[2] else ""
        return QueryError(f"unknown function {match[1]!r}", where="SQL", hint=hint)
    if match := _NO_VALUE.search(text):
        return QueryError(f"no value is given for ${match[1]}", where="SQL", hint=f"pass --param {match[1]}=VALUE")
    where = "SQL"
    if match := _POSITION.search(text):
        where = f"SQL:{match[1]}:{match[2]}"
        text = _POSITION.sub("", text)
    for noise in ("SQL error: ", "Error during planning: ", "Schema error: ", "This feature is not implemented: "):
        text = text.removeprefix(noise)
    if match := re.fullmatch(r'ParserError\("(.*)"\)', text.strip(), re.DOTALL):
        text = f"syntax error: {match[1]}"
    hint = "write json_text(column, 'key'), or json_number(column, 'key')" if _ARROW.search(text) else ""
    return QueryError(" ".join(text.split()) or type(error).__name__, where=where, hint=hint)


def _no_column(
    name: str, valid: re.Match[str] | None, contracts: Mapping[str, "Contract"], opened: Iterable[str]
) -> QueryError:
    wanted = name.replace('"', "").split(".")[-1]
    known = {field.replace('"', "").split(".")[-1] for field in valid[1].split(", ")} if valid else set()
    known = {column for column in known if not column.startswith(FENCE)}
    if not known:
        known = {column for table in opened for column in contracts[table].names}
    return QueryError(f"unknown column {name!r}", where="SQL", hint=did_you_mean(wanted, known))
