"""The registry of plan kinds: every name in it is there, and no module decides by the name of a kind again."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.driver import Executor
from ranklake.lake.plans.kinds import KINDS, Rows, is_replayable, resolve, rows_effect
from ranklake.lake.plans.verification import Verifier

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_what_a_kind_names_is_there(kind):
    """What carries a kind out and what verifies it can be imported, and is called as the driver calls it."""
    for name, protocol in ((kind.execute, Executor), (kind.verify, Verifier)):
        asked = list(inspect.signature(protocol.__call__).parameters)[1:]
        inspect.signature(resolve(name)).bind(*asked)


def test_kinds_stand_under_their_names():
    """A kind is found by the name that plan files and the ledger say."""
    assert {name: kind.name for name, kind in KINDS.items()} == dict(zip(KINDS, KINDS, strict=True))


def test_the_ledger_may_hold_every_kind():
    """The contract of the ledger knows the kinds of the registry, and no others."""
    (check,) = (one for one in contract("ingest_plans").column("kind").checks if one.kind == "in_set")
    assert set(check.values) == set(KINDS)


def test_a_kind_of_newer_software_took_its_rows_for_good():
    """Of a kind that is not known here no date is replayed, and its account is booked as retired."""
    assert rows_effect("of-a-newer-version") is Rows.RETIRED
    assert not is_replayable("of-a-newer-version")


def test_the_kinds_load_nothing_of_what_carries_them_out():
    """The table of kinds is read without the modules that it names."""
    code = "import sys, ranklake.lake.plans.kinds; print(*(m for m in sys.modules if m.startswith('ranklake.lake.')))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert {name.split(".")[2] for name in out.split()} == {"contracts", "plans", "store", "tables"}
    assert {name for name in out.split() if ".plans." in name} == {
        "ranklake.lake.plans.kinds",
        "ranklake.lake.plans.rules",
    }


def test_no_module_compares_a_kind_with_a_text():
    """Whoever must know what kind a plan is asks the registry: no rows are booked, or passed, by a list of names."""
    names = set(KINDS)
    for room in ("lake", "quality", "retention", "flows", "src"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Compare) and "kind" in ast.unparse(node):
                    texts = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                    assert not texts & names, f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
