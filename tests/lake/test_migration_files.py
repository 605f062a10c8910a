"""Files of migrations: what each may say, how they are numbered, and what lint refuses."""

from dataclasses import replace
from datetime import date

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from ranklake.lake.contracts.load import contract, load_contracts
from ranklake.lake.contracts.model import Column
from ranklake.lake.migrations import registry
from ranklake.lake.migrations.__main__ import main
from ranklake.lake.migrations.migration import Migration, check_target, read_migration, step_of
from ranklake.lake.migrations.steps.columns import Add, Convert, Drop, Rename, Retype
from ranklake.lake.migrations.steps.computed import Merge, Split
from ranklake.lake.migrations.steps.step import MigrationError


def test_a_column_whose_day_has_come_wants_its_migration():
    """Lint fails from the day after on, until a version without it is released."""
    assert list(registry.problems(load_contracts(), today=date(2027, 6, 30))) == []
    (said,) = registry.problems(load_contracts(), today=date(2027, 7, 1))
    assert said.startswith("cluster_hourly.scope_name was to go after 2027-06-30; write the version")


def test_a_version_without_its_migration_is_found(changed):
    """A contract version that nobody wrote a migration for does not pass lint."""
    changed.add("steps", id=900, name="late", type="string")
    assert next(registry.problems({"steps": contract("steps")})) == (
        "version 2 of steps has no migration; run: ranklake migrate new steps"
    )


def test_ci_refuses_what_lint_does(changed):
    """The command that `make lint`, and so CI, runs exits 1 for a version without its migration."""
    lint = CliRunner()
    assert lint.invoke(main, []).exit_code == 0
    changed.add("steps", id=900, name="late", type="string")
    found = lint.invoke(main, [])
    assert (found.exit_code, "version 2 of steps has no migration" in found.output) == (1, True)


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        ({"number": 3}, "the file is not named"),
        ({"to": 3}, "leads to the next version"),
        ({"steps": [{"renam": "a", "to": "b"}]}, "no kind of step; did you mean 'rename'"),
        ({"steps": [{"rename": "a"}]}, "steps.0. lacks the key 'to'"),
        ({"steps": [{"rename": "a", "to": 3}]}, "steps.0..to must be text, not a number"),
        ({"steps": [{"drop": "a", "too": "b"}]}, "unknown key 'too' in steps.0."),
        ({"steps": [{"split": "a", "into": {}}]}, "into must not be empty"),
        ({"steps": [{"split": "a", "into": {"b": 1}}]}, "into.b must be text, not a number"),
        ({"steps": [{"merge": "a", "into": "b", "by": "c"}]}, "merge must be a list, not text"),
        ({"steps": [{"add": "a", "fill": 1}]}, "fill must be true or false, not a number"),
        ({"steps": "none"}, "steps must be a list, not text"),
        ({"steps": [{"rename": "a", "to": "b", "until": date(2027, 6, 30)}, {}]}, "steps.1. must not be empty"),
        ({"steps": [{"rename": "a", "to": "b", "until": "2027-02-30"}]}, "there is no day 2027-02-30"),
        ({"digests": {}}, "digests lacks the key 'from'"),
        ({"number": True}, "number must be a whole number, not true or false"),
    ],
)
def test_a_file_that_is_no_migration_is_named(tmp_path, edit, what):
    """The error names the file and the mend."""
    facts = {"number": 1, "name": "x", "table": "steps", "from": 1, "to": 2}
    facts |= {"digests": {"from": "", "to": ""}, "steps": [{"rename": "a", "to": "b"}]}
    path = tmp_path / "0001_x.yaml"
    path.write_text(yaml.safe_dump({**facts, **edit}, sort_keys=False))
    with pytest.raises(MigrationError, match=what) as raised:
        read_migration(path)
    assert str(path) in str(raised.value)


def test_all_that_is_wrong_with_a_migration_is_told_at_once(tmp_path):
    """Each fault has its line; a key that stands twice is refused, not the last of them taken."""
    path = tmp_path / "0001_x.yaml"
    text = "number: 1\nname: y\ntable: steps\nfrom: 1\nto: 3\ndigests: {from: a, to: b}\n"
    text += "steps:\n- {renam: a, to: b}\n- {drop: 1}\n"
    path.write_text(text)
    with pytest.raises(MigrationError) as raised:
        read_migration(path)
    assert [str(error).removeprefix(f"{path}:") for error in (raised.value, *raised.value.others)] == [
        "2: the file is not named 0001_y.yaml; rename it",
        "5: a migration leads to the next version; write one for each version",
        "8: 'renam' is no kind of step; did you mean 'rename'?",
        "9: steps[1].drop must be text, not a number",
    ]
    path.write_text(text + "to: 2\n")
    with pytest.raises(MigrationError, match=r"0001_x\.yaml:10: not usable YAML \(key 'to' appears twice\)"):
        read_migration(path)


def test_gaps_and_forks_are_refused(changed):
    """Numbers have no holes, and no version of a table is left twice."""
    changed.migrate("steps", lambda facts: facts["columns"].append(column(900)))
    last = registry.load_migrations()[-1]
    number = last.number
    text = (registry.FOLDER / f"{last.label}.yaml").read_text()
    gap = registry.FOLDER / f"{number + 2:04}_steps_2.yaml"
    gap.write_text(text.replace(f"number: {number}", f"number: {number + 2}"))
    with pytest.raises(MigrationError, match=f"migration {number + 1} is missing"):
        registry.load_migrations()
    gap.unlink()
    fork = registry.FOLDER / f"{number:04}_another.yaml"
    fork.write_text(text.replace("name: steps_2", "name: another"))
    with pytest.raises(MigrationError, match=f"two migrations have number {number}"):
        registry.load_migrations()
    fork.unlink()
    later = text.replace("steps_2", "another").replace(f"number: {number}", f"number: {number + 1}")
    (registry.FOLDER / f"{number + 1:04}_another.yaml").write_text(later)
    with pytest.raises(MigrationError, match="begins at version 1 of steps, and the one before ends at 2"):
        registry.load_migrations()


def column(id_, name="late", type_="string", **facts):
    """Return a column of a document."""
    return {"id": id_, "name": name, "type": type_, "class": "operational", "doc": "Later.", **facts}


def table_of(*columns):
    """Return the contract of ``steps`` with other columns: (id, name, type, unit)."""
    made = tuple(Column(id_, name, type_, "operational", "-", unit=unit) for id_, name, type_, unit in columns)
    return replace(contract("steps"), columns=made, checks=(), sort=(), grain=(), partition=())


@pytest.mark.parametrize(
    ("steps", "what"),
    [
        ([{"rename": "a", "to": "b"}, {"rename": "b", "to": "a"}], "'b' is taken"),  # a cycle
        ([{"retype": "b", "to": "int32"}], "not every int64 is a int32"),
        ([{"retype": "a", "to": "string"}], "not every float32 is a string"),
        ([{"convert": "b", "to": "b", "unit": "s", "factor": 0.001}], "would lose fractions"),
        ([{"convert": "a", "to": "a", "unit": "s", "factor": 0}], "loses every value"),
        ([{"convert": "a", "to": "b", "unit": "s", "factor": 2}], "'b' is taken"),
        ([{"drop": "c"}], "no column 'c'"),
        ([{"add": "a"}], "is there already"),
        ([{"add": "c"}], "is not in the next contract"),
        ([{"rename": "a", "to": "c"}], "do not lead to version 2 of steps"),
        ([{"split": "c", "into": {"d": "c"}}], "no column 'c'"),
        ([{"split": "a", "into": {"b": "a"}}], "'b' is taken"),
        ([{"split": "a", "into": {"d": "a"}}], "'d' is not in the next contract"),
        ([{"merge": ["a", "c"], "into": "a", "by": "a"}], "no column 'c'"),
        ([{"merge": ["a", "b"], "into": "a", "by": "a", "back": {"a": "a"}}], "back is not of a, b"),
    ],
)
def test_what_a_migration_must_not_do_is_refused(steps, what):
    """Cycles, narrowing, lost fractions, columns that are not there, and steps that lead elsewhere."""
    same = table_of((20, "a", "float32", "ms"), (21, "b", "int64", "ns"))
    made = tuple(step_of(one) for one in steps)
    with pytest.raises(MigrationError, match=what):
        check_target(Migration(1, "m", "steps", 1, 2, "", "", made, "", "file"), same, same)


WIDER = {"int32": ("int64", "float64"), "float32": ("float64",)}
VALUES = {
    "int32": st.integers(-1000, 1000),
    "int64": st.integers(-(2**40), 2**40),
    "float32": st.floats(-1000, 1000, width=32),
    "float64": st.floats(-1000, 1000),
}
ARROW = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
}


def split_of(name, spare):
    """Return the step that splits whole numbers, and what plain Python makes of each."""
    sevens, rest = next(spare), next(spare)
    into = ((sevens, f"{name} / 7"), (rest, f"{name} % 7"))

    def parts(value):
        sign = -1 if value < 0 else 1
        return sign * (abs(value) // 7), sign * (abs(value) % 7)

    return Split(name, into, f"{sevens} * 7 + {rest}"), {sevens: 0, rest: 1}, parts


def merge_of(names, types, spare):
    """Return the step that merges whole numbers into text."""
    into = next(spare)
    by = " || '/' || ".join(f"coalesce(CAST({name} AS VARCHAR), '-')" for name in names)
    sql = {"int32": "INT", "int64": "BIGINT"}
    back = tuple(
        (name, f"CAST(nullif(split_part({into}, '/', {place}), '-') AS {sql[type_]})")
        for place, (name, type_) in enumerate(zip(names, types, strict=True), 1)
    )
    return Merge(names, into, by, back)


@st.composite
def histories(draw):
    """Draw columns with values, and some changes to them.

    Returns rows, steps, what plain Python makes of them, and which columns of the beginning cannot come back.
    """
    columns = {}
    for name in ("a", "b", "c"):
        type_ = draw(st.sampled_from(sorted(VALUES)))
        columns[name] = (type_, draw(st.lists(st.none() | VALUES[type_], min_size=3, max_size=3)))
    rows = pa.table({name: pa.array(values, ARROW[type_]) for name, (type_, values) in columns.items()})
    of, lost = {name: {name} for name in columns}, set()
    steps, spare = [], iter("defghijklmnopqrstuvwxyz")
    for _ in range(draw(st.integers(1, 6))):
        if not columns:
            break
        name = draw(st.sampled_from(sorted(columns)))
        type_, values = columns.pop(name)
        whole = [one for one, (other, _) in sorted(columns.items()) if other.startswith("int")]
        kinds = ["rename", "drop", *(["convert"] if type_ in VALUES else [])]
        kinds += [*(["retype"] if type_ in WIDER else []), *(["split"] if type_.startswith("int") else [])]
        kinds += ["merge"] if type_.startswith("int") and whole else []
        kind = draw(st.sampled_from(kinds))
        if kind == "rename":
            other = next(spare)
            steps.append(Rename(name, other))
            columns[other], of[other] = (type_, values), of[name]
        elif kind == "retype":
            wide = draw(st.sampled_from(WIDER[type_]))
            steps.append(Retype(name, wide))
            plain = values if wide == "int64" else [None if value is None else float(value) for value in values]
            columns[name] = (wide, plain)
        elif kind == "convert":
            other = next(spare)
            factor = draw(st.sampled_from([2, 3] if type_.startswith("int") else [0.5, 1000, 0.001]))
            steps.append(Convert(name, other, "s", factor))
            columns[other], of[other] = (
                (type_, [None if value is None else value * factor for value in values]),
                of[name],
            )
        elif kind == "split":
            step, places, parts = split_of(name, spare)
            steps.append(step)
            for new, place in places.items():
                columns[new] = ("int64", [None if value is None else parts(value)[place] for value in values])
                of[new] = of[name]
        elif kind == "merge":
            other, found = whole[0], columns.pop(whole[0])
            steps.append(merge_of((name, other), (type_, found[0]), spare))
            pairs = zip(values, found[1], strict=True)
            texts = ["/".join("-" if one is None else str(one) for one in pair) for pair in pairs]
            columns[steps[-1].into], of[steps[-1].into] = ("string", texts), of[name] | of[other]
        else:
            steps.append(Drop(name))
            lost |= of[name]
    return rows, steps, columns, lost


def alike(found, values, tolerance):
    """Say whether a column has values, NULL where they are None."""
    pairs = zip(found.to_pylist(), values, strict=True)
    exact = (str, type(None))
    return all(one == (two if isinstance(two, exact) else pytest.approx(two, rel=tolerance)) for one, two in pairs)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(histories())
def test_any_history_of_changes_is_what_plain_python_makes_of_it(history):
    """Renamed, widened, converted, split, merged, dropped, in whatever order: names, types, values are the oracle's."""
    rows, steps, expected, lost = history
    one = Migration(1, "m", "steps", 1, 2, "", "", tuple(steps), "", "file")
    found = one.upgrade_rows(rows)
    assert sorted(found.column_names) == sorted(expected)
    for name, (type_, values) in expected.items():
        assert found[name].type == ARROW[type_]
        assert alike(found[name], values, 1e-6)
    back = one.downgrade_rows(found)
    assert set(rows.column_names) - lost <= set(back.column_names) <= set(rows.column_names)
    for name in back.column_names:
        assert alike(back[name], rows[name].to_pylist(), 1e-5)


def test_numbers_that_grow_out_of_their_type_stop_a_conversion():
    """They would be infinite, or others."""
    for type_, value in ((pa.float32(), 1e38), (pa.int32(), 2**30), (pa.int64(), 2**62)):
        with pytest.raises(pa.ArrowInvalid):
            Convert("a", "b", "s", 1000).rows(pa.table({"a": pa.array([value, None], type_)}))
    never = Convert("a", "b", "s", 1000).rows(pa.table({"a": pa.array([float("inf"), None], pa.float32())}))
    assert never["b"].to_pylist() == [float("inf"), None]


def test_what_would_be_computed_of_a_dropped_column_stays_away():
    """An expression could make a value of NULL; nobody knows what it was."""
    steps = (Split("a", (("tens", "a / 10"), ("rest", "a % 10")), "coalesce(tens, 0) * 10 + rest"), Drop("tens"))
    one = Migration(1, "m", "steps", 1, 2, "", "", steps, "", "f")
    assert one.downgrade_rows(one.upgrade_rows(pa.table({"a": [42], "b": [1]}))).to_pydict() == {"b": [1]}


def test_a_column_that_a_file_lacks_stays_away():
    """Files do not hold columns without values; no step makes one."""
    rows = pa.table({"a": [1.0]})
    steps = (Rename("x", "y"), Drop("z"), Retype("q", "float64"), Convert("m", "n", "s", 2), Add("new"))
    assert Migration(1, "m", "steps", 1, 2, "", "", steps, "", "f").upgrade_rows(rows).equals(rows)
