"""Steps that make columns of others, sort, key and partition anew: in a lake, back again, and what they refuse."""

from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest
from bringing import adds_up, bring
from segments import DAY, put_segment, step_rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.migrations import applying, registry
from ranklake.lake.migrations.due import due
from ranklake.lake.migrations.proof import verify
from ranklake.lake.migrations.steps.columns import narrow_rows
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.proposals.proposals import NotApprovedError


def apply(lake):
    """Apply what is due."""
    return applying.apply(lake, InProcess(), "Ada")


def undo(lake, table="steps"):
    """Undo the last of a table."""
    return applying.undo(lake, InProcess(), "Ada", table)


def values(lake, name):
    """Return a column of ``steps`` in the order of its keys."""
    order = ["incarnation", "segment", "slot"]
    rows = read(lake.tables, contract("steps"), [*order, name])
    return rows.sort_by([(one, "ascending") for one in order])[name].to_pylist()


def retire(facts, *names):
    """Let columns go from a document, and the checks that name them."""
    for name in names:
        gone = next(one for one in facts["columns"] if one["name"] == name)
        facts["columns"].remove(gone)
        tomb = {"id": gone["id"], "name": name, "type": gone["type"], "retired_in": facts["version"] + 1, "reason": "-"}
        facts.setdefault("retired", []).append(tomb)
    facts["checks"] = [one for one in facts.get("checks", []) if not set(names) & set(one.get("columns", []))]


def bring_in(facts, id_, name, type_):
    """Add a column to a document."""
    unit = {} if type_ == "string" else {"unit": "1"}
    facts["columns"].append({"id": id_, "name": name, "type": type_, "class": "operational", "doc": "-", **unit})


def splits(facts):
    """Have tokens as thousands and the rest."""
    retire(facts, "tokens")
    bring_in(facts, 901, "thousands", "int64")
    bring_in(facts, 902, "rest", "int32")


SPLIT = {
    "split": "tokens",
    "into": {"thousands": "tokens / 1000", "rest": "CAST(tokens % 1000 AS INT)"},
    "back": "thousands * 1000 + rest",
}


@pytest.mark.slow
def test_one_column_becomes_two_and_one_again(lake, spool, changed):
    """A split converts what is stored and what older writers send; undone, all rows have the column again."""
    put_segment(spool, step_rows(30))
    bring(lake, spool)
    put_segment(spool, step_rows(20, segment=1), rows_before=30)
    changed.migrate("steps", splits, [SPLIT])
    assert list(registry.problems({"steps": contract("steps")}))[1:] == []  # but that it is not released
    apply(lake)
    assert bring(lake, spool).rows_stored == 20
    assert (values(lake, "thousands"), values(lake, "rest")) == ([1] * 50, [24] * 50)
    proof = verify(lake, "steps")
    assert (proof.rows, proof.faults) == (30, [])
    assert "tokens" not in proof.untouched
    undo(lake)
    changed.earlier()
    assert values(lake, "tokens") == [1024] * 50
    adds_up(lake, spool)


def test_two_columns_become_one_and_two_again(lake, spool, changed):
    """A merge of numbers into text, with NULL in one of them throughout."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)

    def change(facts):
        retire(facts, "tokens", "samples")
        bring_in(facts, 901, "amount", "string")

    by = "coalesce(CAST(tokens AS VARCHAR), '-') || '/' || coalesce(CAST(samples AS VARCHAR), '-')"
    back = {
        name: f"CAST(nullif(split_part(amount, '/', {place}), '-') AS BIGINT)"
        for place, name in enumerate(("tokens", "samples"), 1)
    }
    changed.migrate("steps", change, [{"merge": ["tokens", "samples"], "into": "amount", "by": by, "back": back}])
    apply(lake)
    assert values(lake, "amount") == ["1024/-"] * 20
    assert verify(lake, "steps").faults == []
    undo(lake)
    changed.earlier()
    assert (values(lake, "tokens"), values(lake, "samples")) == ([1024] * 20, [None] * 20)


def test_what_would_not_come_back_stops_before_anything_changed(lake, spool, changed):
    """`back` that is wrong for a row stops the migration; nothing was committed, and without `back` it is a drop."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    version = delta_table(lake.store, "steps").version()
    path = changed.migrate("steps", splits, [{**SPLIT, "back": "thousands * 1000"}])
    with pytest.raises(MigrationError, match="20 of 20 values of tokens would not come back"):
        apply(lake)
    assert delta_table(lake.store, "steps").version() == version
    path.write_text(path.read_text().replace("back: thousands * 1000\n", ""))
    (one,) = due(lake)
    assert one.migration.drops == ("tokens",)
    with pytest.raises(NotApprovedError):
        apply(lake)


@pytest.mark.parametrize(
    ("into", "what"),
    [
        ({"thousands": "sum(tokens)"}, "looks at more than its row"),
        ({"thousands": "row_number() OVER ()"}, "looks at more than its row"),
        ({"thousands": "(SELECT max(tokens) FROM rows)"}, "looks at more than its row"),
        ({"thousands": "random()"}, "looks at more than its row"),
        ({"thousands": "loss"}, "no expression"),
        ({"thousands": "tokens +"}, "no expression"),
        ({"thousands": "CAST('x' AS BIGINT)"}, "Cannot cast string '…'"),
    ],
)
def test_expressions_are_of_one_row(lake, spool, changed, into, what):
    """Aggregates, windows, subqueries, chance, other columns and text that is no number stop it, in a line."""
    put_segment(spool, step_rows(5))
    bring(lake, spool)

    def change(facts):
        retire(facts, "tokens")
        bring_in(facts, 901, "thousands", "int64")

    changed.migrate("steps", change, [{"split": "tokens", "into": into, "back": "thousands"}])
    with pytest.raises(MigrationError, match=what):
        apply(lake)


@pytest.mark.slow
def test_a_value_that_does_not_fit_stops_in_one_line(lake, spool, changed):
    """A number that grows out of its type names the file, and the table stays as it was."""
    put_segment(spool, step_rows(5))
    bring(lake, spool)

    def change(facts):
        next(one for one in facts["columns"] if one["name"] == "tokens").update(unit="{byte}")

    changed.migrate("steps", change, factor=10**17)
    with pytest.raises(MigrationError, match="cannot bring its rows along: overflow"):
        apply(lake)
    assert values_before(lake, changed) == [1024] * 5


def values_before(lake, changed):
    """Return tokens by the contracts of today."""
    changed.earlier()
    return values(lake, "tokens")


@pytest.mark.slow
@pytest.mark.parametrize("count", [1024, 1023])
def test_undo_keeps_newer_whole_numbers_or_refuses(lake, spool, changed, count):
    """Rows that came since are converted back as they were; where that is no whole number, nothing changes."""
    put_segment(spool, step_rows(5))
    bring(lake, spool)

    def change(facts):
        next(one for one in facts["columns"] if one["name"] == "tokens").update(unit="{half}")

    path = changed.migrate("steps", change, factor=2)
    apply(lake)
    rows = step_rows(5, segment=1)
    rows = rows.set_column(rows.column_names.index("tokens"), "tokens", pa.array([count] * 5, pa.int64()))
    put_segment(spool, rows, rows_before=5)
    bring(lake, spool)
    assert values(lake, "tokens") == [2048] * 5 + [count] * 5
    assert path.exists()
    if count % 2:
        with pytest.raises(MigrationError, match="rows back: 5 of 5 values of tokens are no whole number of tokens"):
            undo(lake)
        assert values(lake, "tokens") == [2048] * 5 + [count] * 5
    else:
        undo(lake)
        changed.earlier()
        assert values(lake, "tokens") == [1024] * 5 + [count // 2] * 5


@pytest.mark.parametrize(
    ("wide", "narrow", "fits", "does_not"),
    [
        (pa.float64(), "float32", [0.1, None, float("inf"), float("nan")], [1e300]),
        (pa.timestamp("us", tz="UTC"), "date", [DAY, None], [DAY + timedelta(hours=1)]),
    ],
)
def test_a_value_that_only_the_wide_type_has_does_not_go_back(wide, narrow, fits, does_not):
    """Arrow would cast it without a word."""
    target = replace(contract("steps"), columns=(replace(contract("steps").columns[-1], name="a", type=narrow),))
    assert narrow_rows(pa.table({"a": pa.array(fits, wide)}), target)["a"].null_count == 1
    with pytest.raises(pa.ArrowInvalid, match="1 of 1 values of a are no"):
        narrow_rows(pa.table({"a": pa.array(does_not, wide)}), target)


def test_an_expression_that_its_column_would_round_is_refused(lake, spool, changed):
    """What comes back is computed of what is stored, and no more of it."""

    def change(facts):
        retire(facts, "tokens")
        bring_in(facts, 901, "amount", "float32")

    step = {"split": "tokens", "into": {"amount": "tokens * 1.5"}, "back": "amount / 1.5"}
    changed.migrate("steps", change, [step])
    assert any("amount is float, and its expression gives double" in one for one in registry.problems({}))
