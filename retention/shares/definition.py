"""The definition of a copy: the contract with what a role sees, and a digest that changes if a rebuild is needed."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ranklake.lake.query.roles import Role
from ranklake.lake.tables.live_files import files_digest
from ranklake.retention.shares.place import ShareError

if TYPE_CHECKING:
    import pyarrow as pa

    from ranklake.lake.contracts.model import Contract

FORMAT: Final = 1
"""Version of the files of copies; raising it rebuilds every copy."""
_SORTED: Final = frozenset({"string", "bool", "int32", "int64", "float32", "float64", "timestamp", "date"})


def copy_contract(role: Role, contract: "Contract") -> "Contract":
    """Return the contract of a role's copy of a table: the columns that the role sees.

    A masked column may be NULL, and has no default and no format. If the role does not see a sort column unmasked, the
    copy is sorted by all visible columns, so that the order of rows reveals nothing. Raises `ShareError` if the role
    does not see the partition column unmasked.
    """
    sights = role.sights(contract)
    plain = {sight.column.name for sight in sights if sight.mask is None and not sight.is_hidden}
    if unseen := set(contract.partition) - plain:
        message = f"{role.name} does not see {contract.table}.{min(unseen)} as it is, and copies are laid out by it"
        raise ShareError(message, where=role.name, hint=f"take {contract.table} out of its tables, or let it see that")
    groups = role.groups.get(contract.table)
    group_columns = frozenset() if groups is None else frozenset(groups.by)
    columns = tuple(
        sight.column
        if sight.mask is None and sight.column.name not in group_columns
        else replace(sight.column, required=False, default=None, format=None, mask=None)
        for sight in sights
        if not sight.is_hidden
    )
    visible = {column.name for column in columns}
    order = [name for name in contract.sort if name in visible]
    if not plain.issuperset(contract.sort):
        order += [column.name for column in columns if column.name not in order and column.type in _SORTED]
    return replace(
        contract,
        columns=columns,
        sort=tuple(order),
        grain=tuple(name for name in contract.grain if name in visible),
        checks=(),
        retired=(),
        rollup=None,
        lint=(),
    )


def is_resorted(contract: "Contract", copied: "Contract") -> bool:
    """Return whether a copy has another sort order than its table."""
    return contract.sort != copied.sort


def definition(role: Role, contract: "Contract", key_ids: Sequence[str]) -> str:
    """Return a digest of how a role sees a table: columns, masks, conditions, and the keys of its pseudonyms."""
    has_hash = False
    columns = []
    for sight in role.sights(contract):
        if not sight.is_hidden:
            column = sight.column
            columns.append([column.id, column.name, column.type, column.required, column.class_, sight.visibility])
            has_hash = has_hash or sight.visibility == "hash"
    facts = [FORMAT, columns, list(contract.sort), role.conditions(contract), list(key_ids) if has_hash else []]
    if (groups := role.groups.get(contract.table)) is not None:
        facts.append(groups.text)
    return _digest(facts)


@dataclass(frozen=True, slots=True)
class CopyInputs:
    """The inputs of a copy other than its source rows.

    Attributes
    ----------
    asked
        Digest of the tables that the role's conditions read (`conditions_digest`).
    theirs
        Runs of the role's teams; None if rows do not depend on teams.
    """

    asked: str
    theirs: frozenset[str] | None = None

    def digest(self, runs: Iterable[str]) -> str:
        """Return a digest that changes when rows of these runs must be copied again."""
        return self.asked if self.theirs is None else _digest([self.asked, sorted(self.theirs.intersection(runs))])


def conditions_digest(live: Mapping[str, "pa.Table"], moment: str) -> str:
    """Return a digest of the tables that conditions read, and of `moment`, which is empty unless they use the time."""
    if not live and not moment:
        return ""
    return _digest([moment, {name: files_digest(rows["path"].to_pylist()) for name, rows in sorted(live.items())}])


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
