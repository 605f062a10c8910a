"""Every check kind by name: what modules in `kinds/` define is registered automatically."""

from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ranklake.lake.contracts.checks import kinds
from ranklake.lake.contracts.checks.kind import CheckKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.model import Check


def _defined() -> dict[str, CheckKind]:
    modules = (import_module(f"{kinds.__name__}.{module.name}") for module in iter_modules(kinds.__path__))
    every = (value for module in modules for value in vars(module).values() if isinstance(value, CheckKind))
    return {kind.name: kind for kind in sorted(every, key=lambda kind: kind.name)}


KINDS: "Final[Mapping[str, CheckKind]]" = MappingProxyType(_defined())
WRITTEN: Final = tuple(name for name, kind in KINDS.items() if kind.written)
"""Kinds that a contract may spell out."""


def kind_of(check: "Check") -> CheckKind:
    """Return the kind of a check."""
    return KINDS[check.kind]


def wrong(check: "Check") -> str:
    """Return what a failing row, or the table, has wrong, in words that hold no value of a row."""
    return kind_of(check).wrong(check)


def promise(check: "Check") -> str:
    """Return in words what a failure of the check is."""
    kind = kind_of(check)
    return (kind.promise or kind.wrong)(check)
