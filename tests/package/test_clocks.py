"""No module of the tests reads the clock as it is imported: a test that runs after midnight would take it for today."""

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ALLOWED = {"support/today.py", "end_to_end/startup_child.py"}  # the latter is a script, and imported by none
READERS = {"now", "today", "utcnow", "time", "time_ns"}
CLOCKS = {"datetime", "date", "time", "clock", "pd", "Timestamp"}


def run_at_import(node):
    """Yield the nodes of a module that run as it is imported: bodies of functions do not, their defaults do."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            defaults = [one for one in (*child.args.defaults, *child.args.kw_defaults) if one is not None]
            for outer in (*defaults, *getattr(child, "decorator_list", ())):
                yield outer
                yield from run_at_import(outer)
            continue
        yield child
        yield from run_at_import(child)


def clocks(text):
    """Return the lines of a module's text at which it reads the clock as it is imported."""
    calls = (node.func for node in run_at_import(ast.parse(text)) if isinstance(node, ast.Call))
    reads = (func for func in calls if isinstance(func, ast.Attribute) and func.attr in READERS)
    return [func.lineno for func in reads if getattr(func.value, "id", getattr(func.value, "attr", "")) in CLOCKS]


def test_no_module_has_a_clock_of_its_own():
    """`today.TODAY` is the one that there is, and says what it may not be used for."""
    paths = [path for path in TESTS.rglob("*.py") if path.relative_to(TESTS).as_posix() not in ALLOWED]
    found = {path.relative_to(TESTS): clocks(path.read_text(encoding="utf-8")) for path in paths}
    wrong = [f"{path}:{line}" for path, lines in found.items() for line in lines]
    assert not wrong, f"{wrong} read the clock at import: read it in the test, or take TODAY of tests/support/today.py"


def test_what_counts_as_a_clock():
    """A constant, a default and a decorator run at import; what a function's body calls does not."""
    wrong = "A = datetime.now(UTC).date()\ndef f(day=date.today()): pass\n@mark(time.time())\ndef g(): pass\n"
    assert clocks(wrong) == [1, 2, 3]
    assert clocks("def f():\n    return datetime.now(UTC)\nB = lambda: time.time()\nC = ticks.now()\n") == []
