"""A file of roles.

    roles:
      researcher:
        classes: [operational]               columns of these classes are seen as they are
        masked: [pseudonymous]               and of these masked, as their contracts say
        masks:                               or masked in other ways: a class, or one column
          personal: nullify
          runs.git_branch: keep:2
          attempt_facts.user: nullify
        tables: [steps, runs, attempt_facts] of these tables
        runs: "run LIKE 'open-%'"            rows of every table that has `run`, in SQL
        where: {steps: "rank = 0"}           rows of one table besides, in SQL
        groups: {attempt_facts: {by: [team], least: 5, of: user}}   no combination that fewer people share
        until: 2027-06-30                    the last day on which it may be used
        teams: [vision, speech]              rows of these teams, and of their runs, alone

What a role does not name is not there for it, neither tables nor columns. Masks are written as
`ranklake.masking.masks` says. Conditions are the operator's: they are evaluated on the tables as they are, with
all columns and rows, and may ask other tables (``run IN (SELECT run FROM runs WHERE ...)``), whatever the query names.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.model import CLASSES
from ranklake.lake.query.roles import MOST_COLUMNS, WORD, Groups, Role, RoleError, telling
from ranklake.masking.masks import NULLIFY, Mask, MaskError
from ranklake.operator_files import KeyPath, OperatorFile, raise_all

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column, Contract

_LEAST: Final = 2
"""One is no group."""
Class = Literal["operational", "pseudonymous", "personal", "secret"]


@dataclass(frozen=True, kw_only=True)
class GroupsItem:
    """Groups of one table, as the file has them."""

    by: tuple[str, ...]
    least: int
    of: str = ""

    def __post_init__(self) -> None:
        if not 0 < len(self.by) <= MOST_COLUMNS or len(set(self.by)) < len(self.by):
            raise ValueError(f"by must be a list of 1 to {MOST_COLUMNS} columns, each once")
        if self.least < _LEAST:
            raise ValueError(f"least must be at least {_LEAST}")


@dataclass(frozen=True, kw_only=True)
class RoleItem:
    """One role, as the file has it."""

    classes: tuple[Class, ...]
    tables: tuple[str, ...]
    runs: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    masked: tuple[Class, ...] = ()
    masks: Mapping[str, str | None] = field(default_factory=dict)
    groups: Mapping[str, GroupsItem] = field(default_factory=dict)
    until: date | None = None
    teams: tuple[str, ...] = ()


@dataclass(frozen=True)
class RolesFile:
    """Roles by name."""

    roles: Mapping[str, RoleItem]


def load_role(path: Path, name: str, contracts: Mapping[str, "Contract"]) -> Role:
    """Read one role of a file. Raises `RoleError` if it is not there, or anything in the file is not understood."""
    known = load_roles(path, contracts)
    if name not in known:
        raise RoleError(f"unknown role {name!r}", where=str(path), hint=did_you_mean(name, known))
    return known[name]


def load_roles(path: Path, contracts: Mapping[str, "Contract"]) -> dict[str, Role]:
    """Read all roles of a file. Raises `RoleError` for what is not understood, with all others of the file."""
    file = OperatorFile(path, error=RoleError, noun="file of roles")
    readers = [_RoleReader(file, name, item, contracts) for name, item in file.load(RolesFile).roles.items()]
    roles = {reader.name: reader.role() for reader in readers}
    raise_all(error for reader in readers for error in reader.errors)
    return roles


class _RoleReader:
    """Makes a role of what the file has of it.

    Attributes
    ----------
    errors
        What names nothing, or cannot be held to; the role is of no use then.
    """

    def __init__(self, file: OperatorFile, name: str, item: RoleItem, contracts: Mapping[str, "Contract"]) -> None:
        self.name, self.errors = name, list[RanklakeError]()
        self._file, self._item, self._contracts = file, item, contracts
        self._tables = {contract.name: contract.table for contract in contracts.values()}

    def role(self) -> Role:
        """Return the role as far as it is sound."""
        item = self._item
        self._refuse_empty()
        where = {self._tables.get(table, table): condition for table, condition in item.where.items()}
        tables = frozenset(self._tables.get(table, table) for table in item.tables)
        places: list[tuple[KeyPath, str]] = [(("tables", at), table) for at, table in enumerate(item.tables)]
        for place, table in [*places, *((("where", table), table) for table in item.where)]:
            self._check_known(place, "table", table, {*self._tables, *self._contracts})
        class_masks, column_masks = self._masks(tables)
        if twice := sorted({*item.classes} & {*item.masked, *class_masks}):
            message = f"columns of class {twice[0]} are to be seen both as they are and masked"
            self._fault((), message, f"take {twice[0]} out of classes, or out of masked and masks")
        masks = MappingProxyType(class_masks), MappingProxyType(column_masks)
        classes, masked = frozenset(item.classes), frozenset(item.masked)
        role = Role(
            self.name, classes, tables, MappingProxyType(where), item.runs, masked, *masks, until=item.until,
            teams=frozenset(item.teams),
        )  # fmt: skip
        if self.errors:
            return role
        self._refuse_half(role)
        self._refuse_of_no_team(role)
        groups = {table: groups for name in item.groups for table, groups in self._groups(role, name)}
        return replace(role, groups=MappingProxyType(groups))

    def _fault(self, at: KeyPath, what: str, hint: str = "") -> None:
        self.errors.append(self._file.error(("roles", self.name, *at), what, hint))

    def _check_known(self, at: KeyPath, noun: str, name: str, known: Collection[str]) -> bool:
        if name not in known:
            self._fault(at, f"unknown {noun} {name!r}", did_you_mean(name, known))
        return name in known

    def _refuse_empty(self) -> None:
        """Refuse empty conditions and teams: they would be those of all rows."""
        stated = self._file.content["roles"][self.name]
        for key, hint in (("runs", "runs: \"run LIKE 'open-%'\""), ("teams", "teams: [vision]")):
            if key in stated and not all(stated[key] or [""]):
                self._fault((key,), f"{key} must not be empty", f"write {hint}, or leave it out for all")
        for table, condition in self._item.where.items():
            if not condition:
                self._fault(("where", table), f"where.{table} must not be empty", 'write "true" for all rows')

    def _masks(self, tables: Collection[str]) -> tuple[dict[str, Mask], dict[tuple[str, int], Mask]]:
        of_classes: dict[str, Mask] = {}
        of_columns: dict[tuple[str, int], Mask] = {}
        for key, text in self._item.masks.items():
            at = ("masks", key)
            try:
                mask = Mask.parse(text, "")
            except MaskError as error:
                self._fault(at, error.what, error.hint)
                continue
            table, dot, name = key.partition(".")
            if not dot:
                self._check_known(at, "class", key, CLASSES)
                of_classes[key] = mask
                continue
            table = self._tables.get(table, table)
            if not self._check_known(at, "table", table, self._contracts):
                continue
            contract = self._contracts[table]
            if table not in tables:
                self._fault(at, f"the role does not see {table}", f"add {table} to tables")
            elif self._check_known(at, "column", name, contract.names):
                column = contract.column(name)
                self._refuse_misfit(at, mask, contract, column)
                of_columns[table, column.id] = mask
        return of_classes, of_columns

    def _refuse_misfit(self, at: KeyPath, mask: Mask, contract: "Contract", column: "Column") -> None:
        if not mask.applies_to(column.type):
            hint = f"{mask.spec} is for {mask.fitting}; nullify is for all"
            self._fault(at, f"{mask.spec} does not fit a column of type {column.type}", hint)
        elif column.name in contract.grain and mask.kind != "hash":
            message = f"{column.name} tells rows of {contract.table} apart, which {mask.spec} would mix up"
            self._fault(at, message, "write hash, which keeps them apart, or hide its class")

    def _groups(self, role: Role, name: str) -> Iterator[tuple[str, Groups]]:
        """Yield the table and its groups, if they are sound."""
        item, at, table = self._item.groups[name], ("groups", name), self._tables.get(name, name)
        if not self._check_known(at, "table", table, self._contracts):
            return
        if table not in role.tables:
            self._fault(at, f"the role does not see {table}", f"add {table} to tables")
            return
        contract, before = self._contracts[table], len(self.errors)
        sights = [sight for sight in role.sights(contract) if not sight.is_hidden]
        self._check_columns(at, item, contract, {sight.column.name for sight in sights})
        if len(self.errors) > before:
            return
        groups = Groups(item.by, item.least, item.of)
        shown = [(sight.column.name, sight.column.class_) for sight in sights if sight.mask != NULLIFY]
        if column := telling(groups, shown):
            hint = f"add {column} to by, or hide it: masks: {{{contract.table}.{column}: nullify}}"
            self._fault(at, f"{column} is seen beside the groups, and tells people apart", hint)
        yield table, groups

    def _check_columns(self, at: KeyPath, item: GroupsItem, contract: "Contract", seen: Collection[str]) -> None:
        for index, column in enumerate(item.by):
            here = (*at, "by", index)
            if self._check_known(here, "column", column, contract.names) and column not in seen:
                self._fault(here, f"the role does not see {column}", f"take {column} out of by")
            elif column in {*contract.grain, *contract.partition}:
                message = f"{column} tells rows of {contract.table} apart, and no group shares it"
                self._fault(here, message, "group by what people may share")
        here = (*at, "of")
        is_known = not item.of or self._check_known(here, "column", item.of, contract.names)
        if is_known and item.of and contract.column(item.of).type == "int64_list":
            self._fault(here, f"{item.of} holds lists", "name a column of single values by of")

    def _refuse_half(self, role: Role) -> None:
        """Refuse runs that are hidden in one table while another reports them."""
        by_run = sorted(table for table, text in role.where.items() if "run" in WORD.findall(text.lower()))
        contracts = {table: self._contracts[table] for table in sorted(role.tables)}
        open_ = [table for table, contract in contracts.items() if "run" in contract and not role.conditions(contract)]
        if by_run and open_:
            message = f"{by_run[0]} is restricted by run, and {open_[0]} tells of all runs"
            hint = f'write the condition under runs:, or where: {{{open_[0]}: "true"}} if that is meant'
            self._fault((), message, hint)

    def _refuse_of_no_team(self, role: Role) -> None:
        """Refuse tables whose rows are of no team to a role that is bound to teams."""
        open_ = sorted(table for table in role.tables if role.by_team(self._contracts[table]) == "false")
        if open_:
            hint = f'write where: {{{open_[0]}: "true"}} if rows of all teams are meant, or take it out of tables'
            self._fault((), f"rows of {open_[0]} name neither team nor run", hint)
