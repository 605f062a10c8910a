"""Errors of contracts, of names looked up in one, and of data checked against one."""

from ranklake.errors import RanklakeError


class ContractError(RanklakeError):
    """A contract or metric file that cannot be used.

    Attributes
    ----------
    where
        ``file:line``, so that an editor can jump there.
    """


class UnknownTableError(RanklakeError):
    """No contract has this name. ``name`` is what was asked for."""

    def __init__(self, name: str, *, hint: str = "") -> None:
        super().__init__(f"unknown table {name!r}", hint=hint)
        self.name = name


class UnknownMetricError(RanklakeError):
    """The metric registry does not have this name. ``name`` is what was asked for."""

    def __init__(self, name: str, *, hint: str = "") -> None:
        super().__init__(f"unknown metric {name!r}", hint=hint)
        self.name = name


class UnknownColumnError(RanklakeError):
    """A table has no such column. ``table`` and ``column`` are what was asked for."""

    def __init__(self, table: str, column: str, *, hint: str = "") -> None:
        super().__init__(f"table {table!r} has no column {column!r}", hint=hint)
        self.table, self.column = table, column


class ContractMismatchError(RanklakeError):
    """Data that does not fit its contract and cannot be made to without losing something.

    Attributes
    ----------
    table
        The contract's table.
    problems
        One clause for each thing that is wrong, all of them, in the order of the contract's columns.
    """

    def __init__(self, table: str, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems), where=f"table {table!r}")
        self.table, self.problems = table, problems
