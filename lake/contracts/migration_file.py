"""What a migration's file says, read and not run: YAML, or the literal of a Python file.

A Python file has ``MIGRATION = {…}``, with the keys and steps of the YAML form, and functions that its steps name.
"""

import ast
from collections.abc import Iterator
from datetime import date
from typing import Any, Final

import yaml

from ranklake.lake.contracts.document import SafeLoader, hold_text

NAME: Final = "MIGRATION"
MODULES: Final = frozenset(
    {
        *("base64", "collections", "datetime", "decimal", "fractions", "functools", "hashlib", "itertools", "json"),
        *("math", "operator", "pyarrow", "pyarrow.compute", "re", "string", "struct", "typing", "unicodedata"),
    }
)
"""What such a file may import: nothing that reads files, asks a network, or knows the time of day or chance."""

_FORBIDDEN: Final = frozenset(
    {"__import__", "breakpoint", "compile", "eval", "exec", "exit", "getattr", "globals", "input", "locals", "open"}
    | {"print", "quit", "setattr", "vars"}
)
_WHOLE: Final = (ast.Assign, ast.Import, ast.ImportFrom, ast.FunctionDef)


class NoMigrationFileError(ValueError):
    """A file that says no migration, or does more; its text says what is wrong, and where."""


def facts_of(text: str, *, is_python: bool) -> Any:  # noqa: ANN401 - whatever the file says
    """Return what a migration's file says. Raises `NoMigrationFileError`."""
    if not is_python:
        try:
            hold_text(text)
            return yaml.load(text, SafeLoader)  # noqa: S506 - safe_load(), by libyaml
        except yaml.YAMLError as error:
            raise NoMigrationFileError(f"no YAML ({type(error).__name__})") from error
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NoMigrationFileError(f"no Python ({error})") from error
    for what, line in _faults(tree):
        raise NoMigrationFileError(f"line {line}: {what}")
    for node in tree.body:
        if isinstance(node, ast.Assign) and [getattr(one, "id", "") for one in node.targets] == [NAME]:
            return _dated(ast.literal_eval(node.value))
    raise NoMigrationFileError(f"it says no {NAME} = {{…}}")


def _faults(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield what a file has that is neither facts nor a function of rows. A guard against mistakes, and no sandbox."""
    for place, node in enumerate(tree.body):
        is_doc = place == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Assign) and not _is_literal(node.value):
            yield "a constant that is no literal", node.lineno
        elif not (is_doc or isinstance(node, _WHOLE)):
            yield "neither an import, a constant nor a function", node.lineno
    for one in ast.walk(tree):
        if what := _fault(one):
            yield what, getattr(one, "lineno", 1)


def _fault(one: ast.AST) -> str:
    if isinstance(one, ast.Import):
        return next((_strange(alias.name) for alias in one.names if alias.name not in MODULES), "")
    if isinstance(one, ast.ImportFrom):
        return "" if one.module in MODULES - {"pyarrow"} else f"{_strange(one.module)}; of pyarrow, as a whole"
    if isinstance(one, ast.Name) and one.id in _FORBIDDEN:
        return f"{one.id} is no function of rows"
    if isinstance(one, ast.Attribute) and one.attr.startswith("__"):
        return f"{one.attr} is no function of rows"
    return "a function keeps nothing between calls" if isinstance(one, ast.Global | ast.Nonlocal) else ""


def _strange(module: str | None) -> str:
    return f"{module or 'a module beside it'} may not be imported, only {', '.join(sorted(MODULES))}"


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _dated(facts: Any) -> Any:  # noqa: ANN401 - a literal
    """Return a literal with days as dates, which Python has no literal for."""
    if isinstance(facts, dict):
        return {key: _day(value) if key == "until" else _dated(value) for key, value in facts.items()}
    return [_dated(one) for one in facts] if isinstance(facts, list) else facts


def _day(value: object) -> object:
    try:
        return date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value
