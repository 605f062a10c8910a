"""Steps that make columns of others, sort, key and partition anew: in a lake, back again, and what they refuse."""

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest
from bringing import adds_up, bring
from segments import DAY, put_segment, step_rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.migrations import applying, composing, keys, registry, rewriting
from ranklake.lake.migrations.due import KEY_CPU_S, due
from ranklake.lake.migrations.migration import Migration
from ranklake.lake.migrations.proof import verify
from ranklake.lake.migrations.steps.drop import Drop
from ranklake.lake.migrations.steps.rename import Rename
from ranklake.lake.migrations.steps.repartition import Repartition
from ranklake.lake.migrations.steps.retype import narrowed
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans.plan import Plan, RefusedPlanError
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.order import sort_order
from ranklake.lake.tables.read import read, read_files
from ranklake.lake.tables.tables import delta_table
from ranklake.quality.check import run_checks
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
    rows = read(lake, contract("steps"), [*order, name])
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
    version = delta_table(lake, "steps").version()
    path = changed.migrate("steps", splits, [{**SPLIT, "back": "thousands * 1000"}])
    with pytest.raises(MigrationError, match="20 of 20 values of tokens would not come back"):
        apply(lake)
    assert delta_table(lake, "steps").version() == version
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
def test_files_are_sorted_anew(lake, spool, changed):
    """Each file lies in the new order, and in the old one after an undo; verify looks at the order."""
    for rank in (1, 0):
        put_segment(spool, step_rows(20, rank=rank, incarnation=8 + rank))
    bring(lake, spool)
    old, new = ["run", "attempt", "rank", "step"], ["step", "rank"]
    rows_before = sum(len(rows) for _, rows in read_files(lake, contract("steps")))
    changed.migrate("steps", lambda facts: facts.update(sort=new), [{"resort": new, "was": old}])

    def lie_by(names):
        every = [rows for _, rows in read_files(lake, contract("steps"))]
        return [sort_order(rows, names)[0] is None for rows in every], sum(map(len, every))

    assert lie_by(new) == ([False], rows_before)
    apply(lake)
    assert lie_by(new) == ([True], rows_before)
    assert verify(lake, "steps").faults == []
    undo(lake)
    changed.earlier()
    assert lie_by(old) == ([True], rows_before)
    assert lie_by(new) == ([False], rows_before)


def test_an_order_that_is_not_the_contracts_does_not_pass_lint(changed):
    """`resort` says what the contract says."""
    changed.migrate("steps", lambda facts: facts.update(sort=["step"]), [{"resort": ["rank"], "was": ["run"]}])
    assert any("is sorted by step" in one for one in registry.problems({"steps": contract("steps")}))


def rekeys(facts):
    """Have one row per run and step."""
    facts["grain"] = ["run", "step"]
    facts["checks"] = [one for one in facts["checks"] if one["kind"] != "unique"]


@pytest.mark.slow
def test_a_key_is_changed_where_each_row_has_it_alone(lake, spool, changed):
    """Without a file written anew, forth and back; what nobody says is a fault."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    paths = files(delta_table(lake, "steps"))["path"].to_pylist()
    path = changed.migrate("steps", rekeys)
    assert "rekey" in path.read_text()
    (told,) = due(lake)
    assert (told.files, told.cpu_s) == (0, 20 * KEY_CPU_S)  # keys are read, and nothing is written
    (done,) = apply(lake)
    assert done.rows == 0
    undo(lake)
    assert files(delta_table(lake, "steps"))["path"].to_pylist() == paths
    path.write_text(path.read_text().replace("- rekey:\n  - run\n  - step\n", "").replace("steps:\n", "steps: []\n"))
    assert any("lead to the key run, attempt, rank, step" in one for one in registry.problems({}))


@pytest.mark.parametrize("at_once", [7, 1000])
def test_a_key_that_rows_share_is_refused(lake, spool, changed, monkeypatch, at_once):
    """Two ranks that record the same steps share a key without the rank, in whichever files and dates they are."""
    put_segment(spool, step_rows(20))
    put_segment(spool, step_rows(5, rank=1, incarnation=8, start=DAY + timedelta(days=1)))
    bring(lake, spool)
    changed.migrate("steps", rekeys)
    monkeypatch.setattr(keys, "AT_ONCE", at_once)
    with pytest.raises(MigrationError, match="10 rows share run, step with another"):
        apply(lake)
    assert [one.migration.table for one in due(lake)] == ["steps"]


@pytest.mark.slow
def test_rows_move_to_the_dates_of_another_column(lake, spool, changed):
    """Results of checks lie on the date that was checked, none is lost, and they go back."""
    for segment in range(2):
        put_segment(spool, step_rows(5, segment=segment, start=DAY + timedelta(days=segment)), rows_before=5 * segment)
    bring(lake, spool)
    run_checks(lake, ["steps"])
    first = read(lake, contract("quality_results"))
    by = Counter(first["partition_date"].to_pylist())
    assert set(by) == {DAY.date(), DAY.date() + timedelta(days=1)}
    step = {"repartition": "partition_date", "was": "ts"}
    changed.migrate("quality_results", lambda _: None, [step])
    apply(lake)
    found = read(lake, contract("quality_results"))
    assert found["date"].to_pylist() == found["partition_date"].to_pylist()
    assert Counter(found["partition_date"].to_pylist()) == by
    proof = verify(lake, "quality_results")
    assert (proof.files, proof.rows, proof.faults) == (2, first.num_rows, [])
    undo(lake, "quality_results")
    changed.earlier()
    assert read(lake, contract("quality_results")).sort_by("check_id").num_rows == first.num_rows
    assert set(read(lake, contract("quality_results"))["date"].to_pylist()) == set(first["date"].to_pylist())


@pytest.mark.slow
def test_an_undo_that_died_before_a_vacuum_takes_no_row_twice(lake, spool, changed):
    """What it had made of the file of before is of no use once that file is gone: rows go back file by file."""
    for segment in range(2):
        put_segment(spool, step_rows(5, segment=segment, start=DAY + timedelta(days=segment)), rows_before=5 * segment)
    bring(lake, spool)
    run_checks(lake, ["steps"])
    count = read(lake, contract("quality_results")).num_rows
    befores = files(delta_table(lake, "quality_results"))["path"].to_pylist()
    changed.migrate("quality_results", lambda _: None, [{"repartition": "partition_date", "was": "ts"}])
    (done,) = apply(lake)
    one = registry.load_migrations()[-1]
    composing.Work(lake, InProcess(), one, backwards=True).compose(done.plan + 1)
    for path in befores:
        lake.fs.rm(lake.path("tables", "quality_results", path))
    undo(lake, "quality_results")
    changed.earlier()
    assert read(lake, contract("quality_results")).num_rows == count


def test_dates_are_found_under_the_name_that_their_column_has_then():
    """A column that is renamed after the step, or was before it, dates rows forth and back; one that goes may not."""
    days = [DAY.date(), DAY.date() + timedelta(days=1)]
    rows = pa.table({"a": pa.array(days), "b": pa.array(days[::-1])})
    steps = (Rename("a", "first"), Repartition(by="b", was="first"), Rename("b", "second"))
    one = Migration(1, "m", "t", 1, 2, "", "", steps, "", "f")
    moved = one.by_day(one.forward(rows), days[0], backwards=False)
    assert {day: part["second"].to_pylist() for day, part in moved.items()} == {day: [day] for day in days}
    back = one.by_day(one.back(one.forward(rows)), days[0], backwards=True)
    assert {day: part["a"].to_pylist() for day, part in back.items()} == {day: [day] for day in days}
    with pytest.raises(MigrationError):
        replace(one, steps=(*steps[:2], Drop("b"))).dated_by(backwards=False)


def test_rows_that_ranks_recorded_stay_on_their_date(changed):
    """Ingest and replay know rows by their date; a plan that moves them is refused whoever wrote it."""
    changed.migrate("steps", lambda _: None, [{"repartition": "ts", "was": "ts"}])
    assert any("only system tables are partitioned anew" in one for one in registry.problems({}))


@pytest.mark.slow
def test_a_plan_that_moves_rows_without_its_migration_saying_so_is_refused(lake, spool, changed):
    """A found plan may not claim what its migration does not do."""
    put_segment(spool, step_rows(5))
    bring(lake, spool)
    changed.migrate("steps", rekeys)
    (one,) = due(lake)
    plan = composing.Work(lake, InProcess(), one.migration).compose(2, {"moves_rows": True})
    lake.put_if_absent(plan.name, plan.to_json())
    with pytest.raises(RefusedPlanError, match="moves rows to other dates"):
        apply(lake)
    body = json.loads(plan.to_json())
    assert Plan.from_json(json.dumps(body).encode(), "x").number == 2


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
def test_killed_between_the_dates_of_a_file_nothing_is_twice(lake, spool, changed, monkeypatch):
    """A rewrite that dies before its note is made again, whole; its orphans are in no commit."""
    put_segment(spool, step_rows(5))
    put_segment(spool, step_rows(5, segment=1, start=DAY + timedelta(days=1)), rows_before=5)
    bring(lake, spool)
    run_checks(lake, ["steps"])
    count = read(lake, contract("quality_results")).num_rows
    changed.migrate("quality_results", lambda _: None, [{"repartition": "partition_date", "was": "ts"}])
    written = []

    def once(*args, work=rewriting.write_partition, **options):
        if len(written) == 1:
            raise KeyboardInterrupt
        written.append(work(*args, **options))
        return written[-1]

    with monkeypatch.context() as patch:
        patch.setattr(rewriting, "write_partition", once)
        with pytest.raises(KeyboardInterrupt):
            apply(lake)
    apply(lake)
    upkeep(lake, InProcess(), grace=timedelta(0))
    assert read(lake, contract("quality_results")).num_rows == count
    found = read(lake, contract("quality_results"))
    assert found["date"].to_pylist() == found["partition_date"].to_pylist()


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
    assert narrowed(pa.table({"a": pa.array(fits, wide)}), target)["a"].null_count == 1
    with pytest.raises(pa.ArrowInvalid, match="1 of 1 values of a are no"):
        narrowed(pa.table({"a": pa.array(does_not, wide)}), target)


def test_an_expression_that_its_column_would_round_is_refused(lake, spool, changed):
    """What comes back is computed of what is stored, and no more of it."""

    def change(facts):
        retire(facts, "tokens")
        bring_in(facts, 901, "amount", "float32")

    step = {"split": "tokens", "into": {"amount": "tokens * 1.5"}, "back": "amount / 1.5"}
    changed.migrate("steps", change, [step])
    assert any("amount is float, and its expression gives double" in one for one in registry.problems({}))
