"""Reads the file of roles.

    roles:
      researcher:
        classes: [operational]               classes of columns that are visible unmasked
        masked: [pseudonymous]               classes of columns that are visible with the masks in their contracts
        masks:                               other masks, of a class or of one column
          personal: nullify
          runs.git_branch: keep:2
          attempt_facts.user: nullify
        tables: [steps, runs, attempt_facts] visible tables
        runs: "run LIKE 'open-%'"            SQL condition for rows of every table that has `run`
        where: {steps: "rank = 0"}           SQL condition for rows of one table
        groups: {attempt_facts: {by: [team], least: 5, of: user}}   combinations of `by` must be shared by 5 users
        until: 2027-06-30                    last day on which the role may be used
        teams: [vision, speech]              only rows of these teams and of their runs

Tables and columns that a role does not list do not exist for it. `ranklake.masking.masks` describes the masks. The
operator writes the conditions: they are evaluated on the complete tables, with hidden columns and rows, and may use
other tables, such as ``run IN (SELECT run FROM runs WHERE ...)``.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.model import CLASSES
from ranklake.lake.query.roles import MOST_COLUMNS, WORD, Groups, Role, RoleError, identifying_column
from ranklake.masking.masks import NULLIFY, Mask, MaskError
from ranklake.operator_files import KeyPath, OperatorFile, raise_all

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column, Contract

_LEAST: Final = 2
"""Lowest valid minimum size of a group."""
Class = Literal["operational", "pseudonymous", "personal", "secret"]


@dataclass(frozen=True, kw_only=True)
class GroupsItem:
    """Groups of one table, as written in the file; see `Groups`."""

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
    """One role, as written in the file; see `Role`."""

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
    """Read one role of a file. Raises `RoleError` if the role is missing or anything in the file is invalid."""
    known = load_roles(path, contracts)
    if name not in known:
        raise RoleError(f"unknown role {name!r}", where=str(path), hint=did_you_mean(name, known))
    return known[name]


def load_roles(path: Path, contracts: Mapping[str, "Contract"]) -> dict[str, Role]:
    """Read all roles of a file. Raises `RoleError` with all errors of the file, if there are any."""
    file = OperatorFile(path, error=RoleError, noun="file of roles")
    readers = [_RoleReader(file, name, item, contracts) for name, item in file.load(RolesFile).roles.items()]
    roles = {reader.name: reader.role() for reader in readers}
    raise_all(error for reader in readers for error in reader.errors)
    return roles


class _RoleReader:
    """Checks one role of the file and converts it to a `Role`.

    Attributes
    ----------
    errors
        Errors in the role's definition. With any error, the returned role must not be used.
    """

    def __init__(self, file: OperatorFile, name: str, item: RoleItem, contracts: Mapping[str, "Contract"]) -> None:
        self.name, self.errors = name, list[RanklakeError]()
        self._file, self._item, self._contracts = file, item, contracts
        self._tables = {contract.name: contract.table for contract in contracts.values()}

    def role(self) -> Role:
        """Return the role; `errors` has what is wrong with it."""
        item = self._item
        self._refuse_empty()
        where = {self._tables.get(table, table): condition for table, condition in item.where.items()}
        tables = frozenset(self._tables.get(table, table) for table in item.tables)
        table_keys: list[tuple[KeyPath, str]] = [(("tables", at), table) for at, table in enumerate(item.tables)]
        for key, table in [*table_keys, *((("where", table), table) for table in item.where)]:
            self._check_known(key, "table", table, {*self._tables, *self._contracts})
        class_masks, column_masks = self._masks(tables)
        if in_both := sorted({*item.classes} & {*item.masked, *class_masks}):
            message = f"columns of class {in_both[0]} are to be seen both as they are and masked"
            self._fault((), message, f"take {in_both[0]} out of classes, or out of masked and masks")
        masks = MappingProxyType(class_masks), MappingProxyType(column_masks)
        classes, masked = frozenset(item.classes), frozenset(item.masked)
        role = Role(
            self.name, classes, tables, MappingProxyType(where), item.runs, masked, *masks, until=item.until,
            teams=frozenset(item.teams),
        )  # fmt: skip
        if self.errors:
            return role
        self._refuse_partly_hidden_runs(role)
        self._refuse_tables_without_team(role)
        groups = {table: groups for name in item.groups for table, groups in self._groups(role, name)}
        return replace(role, groups=MappingProxyType(groups))

    def _fault(self, at: KeyPath, what: str, hint: str = "") -> None:
        self.errors.append(self._file.error(("roles", self.name, *at), what, hint))

    def _check_known(self, at: KeyPath, noun: str, name: str, known: Collection[str]) -> bool:
        if name not in known:
            self._fault(at, f"unknown {noun} {name!r}", did_you_mean(name, known))
        return name in known

    def _refuse_empty(self) -> None:
        """Refuse empty conditions and teams, since they would make all rows visible."""
        stated = self._file.content["roles"][self.name]
        for key, hint in (("runs", "runs: \"run LIKE 'open-%'\""), ("teams", "teams: [vision]")):
            if key in stated and not all(stated[key] or [""]):
                self._fault((key,), f"{key} must not be empty", f"write {hint}, or leave it out for all")
        for table, condition in self._item.where.items():
            if not condition:
                self._fault(("where", table), f"where.{table} must not be empty", 'write "true" for all rows')

    def _masks(self, tables: Collection[str]) -> tuple[dict[str, Mask], dict[tuple[str, int], Mask]]:
        """Return the masks of classes and of columns."""
        class_masks: dict[str, Mask] = {}
        column_masks: dict[tuple[str, int], Mask] = {}
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
                class_masks[key] = mask
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
                column_masks[table, column.id] = mask
        return class_masks, column_masks

    def _refuse_misfit(self, at: KeyPath, mask: Mask, contract: "Contract", column: "Column") -> None:
        if not mask.applies_to(column.type):
            hint = f"{mask.spec} is for {mask.fitting}; nullify is for all"
            self._fault(at, f"{mask.spec} does not fit a column of type {column.type}", hint)
        elif column.name in contract.grain and mask.kind != "hash":
            message = f"{column.name} tells rows of {contract.table} apart, which {mask.spec} would mix up"
            self._fault(at, message, "write hash, which keeps them apart, or hide its class")

    def _groups(self, role: Role, name: str) -> Iterator[tuple[str, Groups]]:
        """Yield the table and its groups, if they are valid."""
        item, at, table = self._item.groups[name], ("groups", name), self._tables.get(name, name)
        if not self._check_known(at, "table", table, self._contracts):
            return
        if table not in role.tables:
            self._fault(at, f"the role does not see {table}", f"add {table} to tables")
            return
        contract, errors_before = self._contracts[table], len(self.errors)
        sights = [sight for sight in role.sights(contract) if not sight.is_hidden]
        self._check_columns(at, item, contract, {sight.column.name for sight in sights})
        if len(self.errors) > errors_before:
            return
        groups = Groups(item.by, item.least, item.of)
        visible = [(sight.column.name, sight.column.class_) for sight in sights if sight.mask != NULLIFY]
        if column := identifying_column(groups, visible):
            hint = f"add {column} to by, or hide it: masks: {{{contract.table}.{column}: nullify}}"
            self._fault(at, f"{column} is seen beside the groups, and tells people apart", hint)
        yield table, groups

    def _check_columns(self, at: KeyPath, item: GroupsItem, contract: "Contract", seen: Collection[str]) -> None:
        for index, column in enumerate(item.by):
            key = (*at, "by", index)
            if self._check_known(key, "column", column, contract.names) and column not in seen:
                self._fault(key, f"the role does not see {column}", f"take {column} out of by")
            elif column in {*contract.grain, *contract.partition}:
                message = f"{column} tells rows of {contract.table} apart, and no group shares it"
                self._fault(key, message, "group by what people may share")
        key = (*at, "of")
        is_known = not item.of or self._check_known(key, "column", item.of, contract.names)
        if is_known and item.of and contract.column(item.of).type == "int64_list":
            self._fault(key, f"{item.of} holds lists", "name a column of single values by of")

    def _refuse_partly_hidden_runs(self, role: Role) -> None:
        """Refuse a role that restricts runs in one table and sees all runs in another."""
        by_run = sorted(table for table, text in role.where.items() if "run" in WORD.findall(text.lower()))
        contracts = {table: self._contracts[table] for table in sorted(role.tables)}
        open_ = [table for table, contract in contracts.items() if "run" in contract and not role.conditions(contract)]
        if by_run and open_:
            message = f"{by_run[0]} is restricted by run, and {open_[0]} tells of all runs"
            hint = f'write the condition under runs:, or where: {{{open_[0]}: "true"}} if that is meant'
            self._fault((), message, hint)

    def _refuse_tables_without_team(self, role: Role) -> None:
        """Refuse tables without teams and runs for a role with teams, unless the role has a condition for them."""
        open_ = sorted(table for table in role.tables if role.by_team(self._contracts[table]) == "false")
        if open_:
            hint = f'write where: {{{open_[0]}: "true"}} if rows of all teams are meant, or take it out of tables'
            self._fault((), f"rows of {open_[0]} name neither team nor run", hint)
