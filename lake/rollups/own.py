"""Operators' rollups: derived tables of an overlay, computed by its queries like ours by ours.

    own/<table>.yaml          contract, inputs, parameters ──┐
    own/rollups/<table>.sql   one query ─────────────────────┴─▶ Rollup ─▶ runner, lineage, replay

Such a query sees of its inputs the operational columns, and of the others those that its contract names. It can read
nothing else, and change nothing.
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
    """A query of an operator's rollup that cannot be answered, or gives what its contract does not promise."""


@dataclass(frozen=True)
class OwnBody:
    """A query of an overlay.

    Attributes
    ----------
    contract
        Of the table that it computes.
    inputs
        Contracts of the tables that it reads, as far as it sees them.
    whole
        Contracts of the same tables, with all columns.
    """

    contract: "Contract"
    inputs: "Mapping[str, Contract]" = field(hash=False)
    whole: "Mapping[str, Contract]" = field(hash=False)

    @property
    def where(self) -> str:
        """The query's file."""
        folder, _, _ = self.contract.path.rpartition("/")
        return f"{folder}/rollups/{self.contract.table}.sql"

    @property
    def text(self) -> str:
        """The query."""
        assert self.contract.rollup is not None, "own tables that are computed have one"
        return self.contract.rollup.sql

    @property
    def source(self) -> str:
        """The query, and the columns that it sees."""
        return f"{sorted((name, one.names) for name, one in self.inputs.items())}\n{self.text}"

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
        """Run the query. Raises `OwnRollupError`."""
        views = {
            name: ctx.table(name).select(*(col(f'"{column}"') for column in seen.names))
            for name, seen in self.inputs.items()
        }

        def planned(former: Chosen) -> "DataFrame":
            for name, frame in views.items():
                ctx.deregister_table(name)
                ctx.register_view(name, frame)
            add_former(ctx, former)
            TableNames.of(self.inputs.values()).put(ctx, keeps=True)
            return ctx.sql_with_options(self.text, READ_ONLY, param_values=dict(values))

        try:
            frame, _ = plan_with_former_names(planned, self._former_columns, self.inputs, datetime.now(UTC).date())
            answer = conform(without_former(plain_text_columns(frame.to_arrow_table())), self.contract)
        except ContractMismatchError as error:
            hint = f"have it give the columns of {self.contract.table}"
            raise OwnRollupError(error.what, where=self.where, hint=hint) from None
        except QueryError as error:
            raise self._rollup_error(error) from error
        except Exception as error:  # DataFusion raises plain Exception and ValueError alike
            raise self._rollup_error(one_line(error, self.inputs, self.inputs)) from error
        self._refuse_elsewhere(ctx, answer, values)
        return answer

    def _former_columns(self, table: str) -> dict[str, Former]:
        """Return the former names of the columns that the query sees of an input."""
        there = former_names(self.whole[table])  # the name of a column that is hidden is no former one
        return {name: one for name, one in there.items() if one.is_within(self.inputs[table].names)}

    def _rollup_error(self, error: QueryError) -> OwnRollupError:
        hint = error.hint
        hidden = (
            [table for name in self.contract.rollup.inputs if (table := name.table)] if self.contract.rollup else []
        )
        if "unknown column" in error.what and not hint:
            hint = f"name it under classified: of its input, if it is there ({', '.join(hidden)})"
        where = self.where + error.where.removeprefix("SQL")
        return OwnRollupError(error.what, where=where, hint=hint)

    def _refuse_elsewhere(self, ctx: "SessionContext", rows: pa.Table, values: Mapping[str, Any]) -> None:
        """Raise `OwnRollupError` for rows of a date that is not computed: they would never be replaced."""
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
    """Return the rollups of overlays among some contracts, each after what it reads."""
    rollups: dict[str, Rollup] = {}

    def add(name: str) -> None:
        facts = contracts[name].rollup
        if facts is None or name in rollups:
            return
        for item in facts.inputs:
            add(item.table)
        seen = {one.table: _visible_contract(contracts[one.table], one.classified) for one in facts.inputs}
        ordered = sorted(facts.inputs, key=lambda item: item.reach == "until")  # dates are those of the others, if any
        inputs = tuple(Input(one.table, one.reach) for one in ordered)  # type: ignore[arg-type]
        leads = sum(one.reach != "until" for one in inputs) or len(inputs)
        body = OwnBody(contracts[name], seen, {one.table: contracts[one.table] for one in facts.inputs})
        parameters = dict(facts.parameters)
        own = contracts[name]
        scope = facts.scope
        rollups[name] = Rollup(name, scope, inputs, parameters, leads=leads, body=body, own=own)  # type: ignore[arg-type]

    for name in contracts:
        add(name)
    return tuple(rollups.values())


def _visible_contract(contract: "Contract", classified: Iterable[str]) -> "Contract":
    """Return a contract with the columns that a query sees."""
    wanted = {*classified}
    columns = tuple(one for one in contract.columns if one.class_ == "operational" or one.name in wanted)
    return replace(contract, columns=columns, checks=())


def faults(contracts: "Mapping[str, Contract]") -> Iterator[OwnRollupError]:
    """Try the operators' rollups among some contracts on tables without rows; yield what is wrong with them."""
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
