"""Errors of contract files, of unknown tables, columns and metrics, and of data that does not fit a contract."""

from ranklake.errors import RanklakeError


class ContractError(RanklakeError):
    """A contract file, metric file or overlay is invalid.

    Attributes
    ----------
    where
        ``file:line``, so that an editor can jump there.
    """


class UnknownTableError(RanklakeError):
    """No contract has the requested table name, ``name``."""

    def __init__(self, name: str, *, hint: str = "") -> None:
        super().__init__(f"unknown table {name!r}", hint=hint)
        self.name = name


class UnknownMetricError(RanklakeError):
    """The metric registry does not contain the requested metric, ``name``."""

    def __init__(self, name: str, *, hint: str = "") -> None:
        super().__init__(f"unknown metric {name!r}", hint=hint)
        self.name = name


class UnknownColumnError(RanklakeError):
    """The table ``table`` has no column ``column``."""

    def __init__(self, table: str, column: str, *, hint: str = "") -> None:
        super().__init__(f"table {table!r} has no column {column!r}", hint=hint)
        self.table, self.column = table, column


class ContractMismatchError(RanklakeError):
    """A table cannot be cast to its contract's schema without losing data.

    Attributes
    ----------
    table
        The contract's table.
    problems
        All problems, one clause each: unknown and repeated columns, then the contract's columns in order.
    """

    def __init__(self, table: str, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems), where=f"table {table!r}")
        self.table, self.problems = table, problems
