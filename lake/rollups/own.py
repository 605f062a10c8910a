"""Own rollups: derived tables of an operator's overlay, which are computed like packaged rollups.

    own/<table>.yaml          contract, inputs, parameters ──┐
    own/rollups/<table>.sql   one query ─────────────────────┴─▶ Rollup ─▶ runner, lineage, replay

The query sees the operational columns of its inputs, and other columns only if its contract names them. It cannot read
other tables or change anything.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import arrow_schema, conform
from ranklake.lake.contracts.errors import ContractMismatchError
from ranklake.lake.migrations.former import former_names
from ranklake.lake.query.engine import col, engine
from ranklake.lake.query.errors import QueryError, one_line
from ranklake.lake.query.former import Chosen, Former, TableNames, add_former, plan_with_former_names, without_former
from ranklake.lake.query.sql import READ_ONLY, plain_text_columns
from ranklake.lake.rollups.declaration import AFFECTED, Input, Rollup, replace_table

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.engine import DataFrame, SessionContext

_DAY = date(2026, 1, 1)


class OwnRollupError(RanklakeError):
    """The query of an own rollup fails, or its result does not match its contract."""


@dataclass(frozen=True)
class OwnBody:
    """The body of an own rollup: a query of an overlay.

    Attributes
    ----------
    contract
        Contract of the computed table.
    inputs
        Contracts of the input tables, with only the columns that the query sees.
    whole
        Contracts of the input tables, with all columns.
    """

    contract: "Contract"
    inputs: "Mapping[str, Contract]" = field(hash=False)
    whole: "Mapping[str, Contract]" = field(hash=False)

    @property
    def where(self) -> str:
        """Path of the query's file."""
        folder, _, _ = self.contract.path.rpartition("/")
        return f"{folder}/rollups/{self.contract.table}.sql"

    @property
    def text(self) -> str:
        """Text of the query."""
        assert self.contract.rollup is not None, "own derived tables have a rollup"
        return self.contract.rollup.sql

    @property
    def source(self) -> str:
        """Text of the query, and the columns that it sees."""
        return f"{sorted((name, contract.names) for name, contract in self.inputs.items())}\n{self.text}"

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
        """Run the query. Raises `OwnRollupError`."""
        views = {
            name: ctx.table(name).select(*(col(f'"{column}"') for column in contract.names))
            for name, contract in self.inputs.items()
        }

        def plan(former: Chosen) -> "DataFrame":
            for name, frame in views.items():
                ctx.deregister_table(name)
                ctx.register_view(name, frame)
            add_former(ctx, former)
            TableNames.of(self.inputs.values()).put(ctx, keeps=True)
            return ctx.sql_with_options(self.text, READ_ONLY, param_values=dict(values))

        try:
            frame, _ = plan_with_former_names(plan, self._former_columns, self.inputs, datetime.now(UTC).date())
            rows = conform(without_former(plain_text_columns(frame.to_arrow_table())), self.contract)
        except ContractMismatchError as error:
            hint = f"have it give the columns of {self.contract.table}"
            raise OwnRollupError(error.what, where=self.where, hint=hint) from None
        except QueryError as error:
            raise self._rollup_error(error) from error
        except Exception as error:  # DataFusion raises Exception and ValueError
            raise self._rollup_error(one_line(error, self.inputs, self.inputs)) from error
        self._refuse_other_dates(ctx, rows, values)
        return rows

    def _former_columns(self, table: str) -> dict[str, Former]:
        """Return the former names of the columns of an input that the query sees."""
        names = former_names(self.whole[table])  # all columns, since a hidden column's name is no former name
        return {name: former for name, former in names.items() if former.is_within(self.inputs[table].names)}

    def _rollup_error(self, error: QueryError) -> OwnRollupError:
        hint = error.hint
        hidden = (
            [table for name in self.contract.rollup.inputs if (table := name.table)] if self.contract.rollup else []
        )
        if "unknown column" in error.what and not hint:
            hint = f"name it under classified: of its input, if it is there ({', '.join(hidden)})"
        where = self.where + error.where.removeprefix("SQL")
        return OwnRollupError(error.what, where=where, hint=hint)

    def _refuse_other_dates(self, ctx: "SessionContext", rows: pa.Table, values: Mapping[str, Any]) -> None:
        """Raise `OwnRollupError` for rows of other dates than the computed ones, since they would never be replaced."""
        if "date" in values:
            is_due = pc.equal(rows["date"], values["date"])
            hint = "give $date as its column date"
        else:
            affected = plain_text_columns(ctx.table(AFFECTED).to_arrow_table())
            due = {(row["run"], row["date"]) for row in affected.to_pylist()}
            pairs = zip(rows["run"].to_pylist(), rows["date"].to_pylist(), strict=True)
            is_due = pa.chunked_array([pa.array([pair in due for pair in pairs], pa.bool_())])
            hint = f"join {AFFECTED} on run, and give its column date"
        if not pc.all(is_due.fill_null(False)).as_py() and rows.num_rows:  # noqa: FBT003 - pyarrow's own
            raise OwnRollupError("gives rows of another date than was asked for", where=self.where, hint=hint)


def own_rollups(contracts: "Mapping[str, Contract]") -> tuple[Rollup, ...]:
    """Return the own rollups among some contracts, each after the rollups that it reads."""
    rollups: dict[str, Rollup] = {}

    def add(name: str) -> None:
        facts = contracts[name].rollup
        if facts is None or name in rollups:
            return
        for item in facts.inputs:
            add(item.table)
        visible = {item.table: _visible_contract(contracts[item.table], item.classified) for item in facts.inputs}
        ordered = sorted(facts.inputs, key=lambda item: item.reach == "until")  # output dates are those of the others
        inputs = tuple(Input(item.table, item.reach) for item in ordered)  # type: ignore[arg-type]
        leads = sum(item.reach != "until" for item in inputs) or len(inputs)
        body = OwnBody(contracts[name], visible, {item.table: contracts[item.table] for item in facts.inputs})
        parameters = dict(facts.parameters)
        own = contracts[name]
        scope = facts.scope
        rollups[name] = Rollup(name, scope, inputs, parameters, leads=leads, body=body, own=own)  # type: ignore[arg-type]

    for name in contracts:
        add(name)
    return tuple(rollups.values())


def _visible_contract(contract: "Contract", classified: Iterable[str]) -> "Contract":
    """Return a contract with only its operational columns and the columns in `classified`, without checks."""
    wanted = {*classified}
    columns = tuple(column for column in contract.columns if column.class_ == "operational" or column.name in wanted)
    return replace(contract, columns=columns, checks=())


def faults(contracts: "Mapping[str, Contract]") -> Iterator[OwnRollupError]:
    """Run the own rollups among some contracts on empty tables; yield their errors."""
    for rollup in own_rollups(contracts):
        ctx = engine(1)
        for name in rollup.tables:
            replace_table(ctx, name, arrow_schema(contracts[name]).remove_metadata().empty_table())
        values: dict[str, Any] = dict(rollup.parameters)
        if rollup.scope == "partition":
            begin = datetime(_DAY.year, _DAY.month, _DAY.day, tzinfo=UTC)
            values |= {"date": pa.scalar(_DAY, pa.date32()), "begin": pa.scalar(begin, pa.timestamp("us", tz="UTC"))}
        else:
            replace_table(ctx, AFFECTED, pa.schema({"run": pa.string(), "date": pa.date32()}).empty_table())
        try:
            rollup.transform.rows(ctx, values)
        except OwnRollupError as error:
            yield error
