"""Every check kind has every form, and a new one is one module."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from checked import CHECKS, RANGES, made, table
from hypothesis import given
from hypothesis import strategies as st

from ranklake.lake.contracts import Check, odcs
from ranklake.lake.contracts.checks import registry
from ranklake.lake.contracts.checks.kind import CheckKind
from ranklake.lake.contracts.checks.registry import KINDS, WRITTEN, cannot_fail, failures, fault_text, promise
from ranklake.lake.contracts.checks.series import quartiles_of_others
from ranklake.lake.contracts.edge import reject_reasons
from ranklake.lake.contracts.model import TYPES
from ranklake.lake.contracts.schema import problems, schema
from ranklake.quality import forms

SAMPLES = {one.kind: one for one in CHECKS} | {
    "unique": Check("f1", "unique", columns=("whole",)),
    "row_count": Check("f2", "row_count", min=1),
    "duplicates": Check("f3", "duplicates", columns=("whole",), max=0.1),
}
SAMPLES |= {
    name: Check(f"w:{name}", name, columns=("whole",), by=("text",), values=("ts",))
    for name, kind in KINDS.items()
    if kind.level == "watch"
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_every_form(name):
    """A kind has words, types, a rule or words for ODCS, a form for quality, and a mask unless it is about wholes."""
    kind, check = KINDS[name], SAMPLES[name]
    assert kind.name == name
    assert kind.types
    assert kind.types <= set(TYPES)
    assert fault_text(check)
    assert promise(check)
    assert forms.FORMS[name].expectation.startswith("Expect")
    assert {parameter for group in kind.needs for parameter in group} <= set(Check.__slots__)
    assert (kind.passes is None) == (kind.level in {"table", "watch"})
    assert (kind.watch is None) == (kind.level != "watch")
    (rule,) = odcs.document(replace(made(), columns=made().columns[:1], checks=(check,)))["schema"][0]["quality"]
    assert rule["description"]
    assert (rule["type"] == "library") == ("metric" in rule)
    if kind.passes is not None:
        rows = table([{}, {"whole": 1, "text": "ab", "metric": "a", "real": 0.5}])
        mask = failures(check, rows, RANGES)
        assert (len(mask), mask.null_count, mask.type) == (2, 0, pa.bool_())
        assert not cannot_fail(check, rows) or not any(mask.to_pylist())


def test_the_schema_names_the_kinds_that_contracts_may_spell_out():
    """The schema of contracts takes a check of each such kind, and of no other."""
    for name in KINDS:
        assert (name in WRITTEN) == (not list(problems({"id": "c", "kind": name}, schema("check"))))


def test_a_new_kind_is_one_module(judge_of_new_kind):
    """A kind that no other module knows is judged at the edge, exported and put to Great Expectations by its mask."""
    contract, check = judge_of_new_kind
    rows = table([{"whole": 2}, {"whole": 3}, {}])
    assert reject_reasons(contract, rows).to_pylist() == [None, "even: whole is odd", None]
    (rule,) = odcs.document(contract)["schema"][0]["quality"]
    assert rule["description"] == "No row has whole is odd."
    frame = forms.Form().columns(check, rows, {})
    assert frame["holds:even"].to_pylist() == [1.0, 0.0, None]
    assert forms.Form().clear(forms.Screen(rows.slice(0, 1), {}), check) == 1


@pytest.fixture
def judge_of_new_kind(monkeypatch):
    """Return a contract with a check of a kind that is not packaged, and the check."""

    def passes(check, rows, _):
        column = rows.column(check.columns[0])
        return pc.equal(pc.bit_wise_and(column, 1), 0)

    even = CheckKind(name="is_even", fault=lambda check: f"{check.columns[0]} is odd", passes=passes)
    monkeypatch.setattr(registry, "KINDS", {**KINDS, "is_even": even})
    check = Check("even", "is_even", on_fail="quarantine", columns=("whole",))
    return replace(made(), table="of_new_kind", checks=(check,)), check


def test_kinds_load_without_pyarrow_and_great_expectations():
    """Contracts are loaded beside training: their check kinds bring in nothing heavy."""
    program = (
        "import sys, ranklake.lake.contracts.checks.registry;"
        "print(*{'pyarrow', 'great_expectations', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@given(st.lists(st.floats(1e-9, 1e12), min_size=3, max_size=40), st.booleans())
def test_quartiles_of_others_are_those_of_numpy(values, alike):
    """For each series they are the quartiles of all others, also where many are the same."""
    values = [values[0]] * len(values) if alike else values
    for at, found in enumerate(quartiles_of_others(values)):
        rest = values[:at] + values[at + 1 :]
        assert found == pytest.approx(np.quantile(rest, [0.25, 0.5, 0.75]), rel=1e-9)
