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

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import yaml

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.model import CLASSES
from ranklake.lake.query.groups import MOST_COLUMNS, Groups, telling
from ranklake.lake.query.roles import WORD, Role, RoleError
from ranklake.masking.masks import NULLIFY, Mask, MaskError

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column, Contract

_KEYS: Final = ("classes", "tables", "runs", "where", "masked", "masks", "groups", "until", "teams")
_GROUP_KEYS: Final = ("by", "least", "of")
_Masks = tuple[Mapping[str, Mask], Mapping[tuple[str, int], Mask]]


def load_role(path: Path, name: str, contracts: Mapping[str, "Contract"]) -> Role:
    """Read one role of a file. Raises `RoleError` if it is not there, or anything in the file is not understood."""
    known = load_roles(path, contracts)
    if name not in known:
        raise RoleError(f"unknown role {name!r}", where=str(path), hint=did_you_mean(name, known))
    return known[name]


def load_roles(path: Path, contracts: Mapping[str, "Contract"]) -> dict[str, Role]:
    """Read all roles of a file. Raises `RoleError` if anything in it is not understood."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RoleError(
            f"no roles can be read ({type(error).__name__})", where=str(path), hint="fix the file"
        ) from error
    roles = document.get("roles") if isinstance(document, dict) and set(document) == {"roles"} else None
    if not isinstance(roles, dict):
        raise RoleError("no mapping of roles", where=str(path), hint="write them under roles:, and nothing beside it")
    return {str(one): _role(f"{path}: role {one}", str(one), body, contracts) for one, body in roles.items()}


def _role(place: str, name: str, body: object, contracts: Mapping[str, "Contract"]) -> Role:
    if not isinstance(body, dict) or "classes" not in body:
        raise RoleError("no list of classes", where=place, hint=f"write classes: [{', '.join(CLASSES)}] or fewer")
    for key in body:
        _known(place, "key", key, _KEYS)
    classes = _names(place, "class", body["classes"], CLASSES)
    if "tables" not in body:
        raise RoleError(
            "no list of tables", where=place, hint="write tables: [steps, runs], each that the role may ask"
        )
    where, runs = body.get("where", {}), body.get("runs", "")
    if not isinstance(where, dict) or not all(isinstance(text, str) and text for text in where.values()):
        raise RoleError("where is not a mapping of conditions", where=place, hint='write where: {steps: "rank = 0"}')
    if not isinstance(runs, str) or ("runs" in body and not runs):
        raise RoleError("runs is not a condition", where=place, hint="""write runs: "run LIKE 'open-%'\"""")
    folders = {one.name: one.table for one in contracts.values()}
    where = {folders.get(table, table): said for table, said in where.items()}
    for table in where:
        _known(place, "table", table, contracts)
    said = body["tables"]
    tables = [folders.get(one, one) for one in said] if isinstance(said, list) and all(map(_is_text, said)) else said
    tables = _names(place, "table", tables, contracts)
    masked = _names(place, "class", body.get("masked", []), CLASSES)
    class_masks, column_masks = _masks(place, body.get("masks", {}), tables, contracts)
    if twice := sorted(classes & (masked | class_masks.keys())):
        what = f"columns of class {twice[0]} are to be seen both as they are and masked"
        raise RoleError(what, where=place, hint=f"take {twice[0]} out of classes, or out of masked and masks")
    until = body.get("until")
    if until is not None and (not isinstance(until, date) or isinstance(until, datetime)):
        raise RoleError("until is no day", where=place, hint="write until: 2027-06-30")
    masks = class_masks, column_masks
    teams = _teams(place, body)
    role = Role(name, classes, tables, MappingProxyType(where), runs, masked, *masks, until=until, teams=teams)
    _refuse_half(place, role, contracts)
    _refuse_of_no_team(place, role, contracts)
    return replace(role, groups=_groups(place, role, body.get("groups", {}), contracts))


def _teams(place: str, body: Mapping[Any, Any]) -> frozenset[str]:
    """Return the teams that a role is bound to; none that is said would be all teams."""
    said = body.get("teams")
    if "teams" in body and (not isinstance(said, list) or not said or not all(_is_text(one) and one for one in said)):
        raise RoleError("teams is no list of names", where=place, hint="write teams: [vision], or leave it out for all")
    return frozenset(said or ())


def _groups(place: str, role: Role, said: object, contracts: Mapping[str, "Contract"]) -> Mapping[str, Groups]:
    if not isinstance(said, dict) or not all(isinstance(one, dict) for one in said.values()):
        hint = "write groups: {runs: {by: [team, cluster], least: 5, of: user}}"
        raise RoleError("groups is not a mapping of tables", where=place, hint=hint)
    found = {}
    for name, body in said.items():
        table = next((one.table for one in contracts.values() if one.name == name), str(name))
        here = f"{place}: groups: {name}"
        _known(place, "table", table, contracts)
        if table not in role.tables:
            raise RoleError(f"the role does not see {table}", where=here, hint=f"add {table} to tables")
        found[table] = _groups_of(here, role, body, contracts[table])
    return MappingProxyType(found)


def _groups_of(here: str, role: Role, body: Mapping[Any, Any], contract: "Contract") -> Groups:
    for key in body:
        _known(here, "key", key, _GROUP_KEYS)
    by, least, of = body.get("by"), body.get("least"), body.get("of", "")
    if not isinstance(by, list) or not 0 < len(by) <= MOST_COLUMNS or len(set(map(str, by))) < len(by):
        raise RoleError(f"by is no list of 1 to {MOST_COLUMNS} columns", where=here, hint="write by: [team, cluster]")
    if not isinstance(least, int) or isinstance(least, bool) or least < 2:  # noqa: PLR2004 - one is no group
        raise RoleError("least is no number above 1", where=here, hint="write least: 5")
    sights = [one for one in role.sights(contract) if not one.is_hidden]
    seen = {one.column.name for one in sights}
    told = [(one.column.name, one.column.class_) for one in sights if one.mask != NULLIFY]
    for name in by:
        _known(here, "column", name, contract.names)
        if name not in seen:
            raise RoleError(f"the role does not see {name}", where=here, hint=f"take {name} out of by")
        if name in {*contract.grain, *contract.partition}:
            hint = "group by what people may share"
            raise RoleError(
                f"{name} tells rows of {contract.table} apart, and no group shares it", where=here, hint=hint
            )
    if of:
        _known(here, "column", of, contract.names)
        if contract.column(of).type == "int64_list":
            raise RoleError(f"{of} holds lists", where=here, hint="name a column of single values by of")
    groups = Groups(tuple(by), least, of)
    if name := telling(groups, told):
        hint = f"add {name} to by, or hide it: masks: {{{contract.table}.{name}: nullify}}"
        raise RoleError(f"{name} is seen beside the groups, and tells people apart", where=here, hint=hint)
    return groups


def _masks(place: str, said: object, tables: frozenset[str], contracts: Mapping[str, "Contract"]) -> _Masks:
    if not isinstance(said, dict):
        hint = "write masks: {personal: nullify, runs.user: hash}"
        raise RoleError("masks is not a mapping of masks", where=place, hint=hint)
    of_classes: dict[str, Mask] = {}
    of_columns: dict[tuple[str, int], Mask] = {}
    for key, text in said.items():
        here = f"{place}: masks: {key}"
        try:
            mask = Mask.parse(text, here)
        except MaskError as error:
            raise RoleError(error.what, where=error.where, hint=error.hint) from error
        table, dot, name = str(key).partition(".")
        if not dot:
            _known(place, "class", table, CLASSES)
            of_classes[table] = mask
            continue
        table = next((one.table for one in contracts.values() if one.name == table), table)
        _known(place, "table", table, contracts)
        if table not in tables:
            raise RoleError(f"the role does not see {table}", where=here, hint=f"add {table} to tables")
        _known(here, "column", name, contracts[table].names)
        column = contracts[table].column(name)
        _refuse_misfit(here, mask, contracts[table], column)
        of_columns[table, column.id] = mask
    return MappingProxyType(of_classes), MappingProxyType(of_columns)


def _refuse_misfit(here: str, mask: Mask, contract: "Contract", column: "Column") -> None:
    """Raise `RoleError` where a mask is not for a column."""
    if not mask.fits(column.type):
        hint = f"{mask.said} is for {mask.fitting}; nullify is for all"
        raise RoleError(f"{mask.said} does not fit a column of type {column.type}", where=here, hint=hint)
    if column.name in contract.grain and mask.kind != "hash":
        what = f"{column.name} tells rows of {contract.table} apart, which {mask.said} would mix up"
        raise RoleError(what, where=here, hint="write hash, which keeps them apart, or hide its class")


def _refuse_half(place: str, role: Role, contracts: Mapping[str, "Contract"]) -> None:
    """Raise `RoleError` where runs are hidden in one table and another tells of them."""
    by_run = sorted(table for table, said in role.where.items() if "run" in WORD.findall(said.lower()))
    open_ = sorted(
        table for table in role.tables if "run" in contracts[table] and not role.conditions(contracts[table])
    )
    if by_run and open_:
        what = f"{by_run[0]} is restricted by run, and {open_[0]} tells of all runs"
        hint = f'write the condition under runs:, or where: {{{open_[0]}: "true"}} if that is meant'
        raise RoleError(what, where=place, hint=hint)


def _refuse_of_no_team(place: str, role: Role, contracts: Mapping[str, "Contract"]) -> None:
    """Raise `RoleError` where a role is bound to teams, and sees a table whose rows are of none."""
    open_ = sorted(table for table in role.tables if role.by_team(contracts[table]) == "false")
    if open_:
        hint = f'write where: {{{open_[0]}: "true"}} if rows of all teams are meant, or take it out of tables'
        raise RoleError(f"rows of {open_[0]} name neither team nor run", where=place, hint=hint)


def _names(place: str, noun: str, said: Any, known: Any) -> frozenset[str]:  # noqa: ANN401 - whatever YAML gives
    if not isinstance(said, list):
        raise RoleError(f"no list of {noun} names", where=place, hint="write them in brackets")
    for name in said:
        _known(place, noun, name, known)
    return frozenset(said)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _known(place: str, noun: str, name: object, known: Any) -> None:  # noqa: ANN401 - a container of names
    if not isinstance(name, str) or name not in known:
        raise RoleError(f"unknown {noun} {name!r}", where=place, hint=did_you_mean(str(name), known))
