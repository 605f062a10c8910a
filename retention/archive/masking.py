"""Masks that came due while rows were archived: whoever brings them back sees what the lake would show by now."""

from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa

from ranklake.retention.due import by_day
from ranklake.retention.holds import holds_of
from ranklake.retention.masks import Masks
from ranklake.retention.parts import Parts, run_facts

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Lake
    from ranklake.retention.rules.policies import Policies


def masking_on(lake: "Lake", policies: "Policies", as_of: date) -> Callable[["Contract", date, pa.Table], pa.Table]:
    """Return what masks rows of a table and date as rules and legal holds say on a day.

    What it returns raises `ranklake.retention.policy.PolicyError` where columns are hashed and there is no key.
    """
    holds = holds_of(lake, as_of)
    runs = run_facts(lake, [*policies.rules, *(one.rule for one in holds)])

    def masked(contract: "Contract", day: date, rows: pa.Table) -> pa.Table:
        masks = Masks(lake, contract, policies.rules, ())
        if not masks.columns:
            return rows
        for name in masks.columns.keys() & set(rows.column_names):
            at, field = rows.schema.get_field_index(name), rows.schema.field(name)
            if pa.types.is_dictionary(field.type):  # its words would stay where values go
                rows = rows.set_column(at, name, rows[name].cast(field.type.value_type))
        return masks.applied_to(rows, by_day(Parts(lake, contract, masks.rules, (), runs), holds)(day), day, as_of)

    return masked
