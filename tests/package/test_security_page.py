"""The pages that say who can do what: each of their lines names tests, and they are there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs/security.md", ROOT / "docs/security-storage.md"]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROWS = [line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
LINES = [line for line in ROWS if "| outcome |" not in line]


@cache
def _functions(file):
    """Return the names of a file's test functions."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[2:50])
def test_each_line_is_held_by_a_test_or_says_that_none_can(line):
    """What is prevented or detected names a test that is there; only what is out of scope may name none."""
    named = NAMED.findall(line)
    assert named or re.search(r"out of scope|bounded only by", line), "no test"
    for file, name in named:
        assert name in _functions(file), f"{file} has no {name}"
