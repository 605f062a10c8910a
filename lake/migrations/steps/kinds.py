"""The kinds of steps, and reading one from a migration's file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from ranklake.errors import did_you_mean
from ranklake.lake.migrations.steps.columns import Add, Convert, Drop, Rename, RenameTable, Retype
from ranklake.lake.migrations.steps.computed import Merge, Split
from ranklake.lake.migrations.steps.step import MigrationError, Step


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of step.

    Attributes
    ----------
    make
        Its class.
    first
        What stands under its first key: a type, or ``[type]`` for a list of them.
    needs, may
        Its other keys, and what stands there: likewise, or ``{type: type}``.
    """

    make: Callable[..., Step]
    first: Any
    needs: Mapping[str, Any]
    may: Mapping[str, Any]


_NUMBER: Final = (int, float)
KINDS: Final[Mapping[str, Kind]] = {
    "add": Kind(Add, str, {}, {"fill": bool}),
    "rename": Kind(Rename, str, {"to": str}, {"until": date}),
    "drop": Kind(Drop, str, {}, {}),
    "retype": Kind(Retype, str, {"to": str}, {}),
    "convert": Kind(Convert, str, {"to": str, "unit": str, "factor": _NUMBER}, {"offset": _NUMBER, "until": date}),
    "split": Kind(Split, str, {"into": {str: str}}, {"back": str, "until": date}),
    "merge": Kind(Merge, [str], {"into": str, "by": str}, {"back": {str: str}, "until": date}),
    "rename_table": Kind(RenameTable, str, {"to": str}, {"until": date}),
}
"""By first key."""


def step_of(facts: Any, where: str) -> Step:  # noqa: ANN401 - whatever YAML gives
    """Return the step that a line of a migration's file says. Raises `MigrationError`."""
    first = str(next(iter(facts), "")) if isinstance(facts, dict) else ""
    if first not in KINDS:
        hint = did_you_mean(first, KINDS) or f"begin it with one of {', '.join(KINDS)}"
        raise MigrationError(f"{first!r} is no kind of step", where=where, hint=hint)
    kind = KINDS[first]
    rest = {key: value for key, value in facts.items() if key != first}
    if lacking := kind.needs.keys() - rest.keys():
        raise MigrationError(f"{first} lacks {', '.join(sorted(lacking))}", where=where, hint="add it")
    known = {**kind.needs, **kind.may}
    if strange := sorted(rest.keys() - known.keys()):
        hint = did_you_mean(strange[0], known) or "remove it"
        raise MigrationError(f"{first} has no key {strange[0]!r}", where=where, hint=hint)
    for key, value in facts.items():
        meant = kind.first if key == first else known[key]
        if not _is(value, meant):
            raise MigrationError(f"{key} of {first} is no {_said(meant)}", where=where, hint="correct it")
    return kind.make(_frozen(facts[first]), **{key: _frozen(value) for key, value in rest.items()})


def _is(value: object, meant: Any) -> bool:  # noqa: ANN401 - a type, a list or a mapping of types
    """Say whether a value is of a type, or a list or mapping that has something and is all of it."""
    if isinstance(meant, list):
        return isinstance(value, list) and bool(value) and all(_is(one, meant[0]) for one in value)
    if isinstance(meant, dict):
        ((key, under),) = meant.items()
        return isinstance(value, dict) and bool(value) and all(_is(k, key) and _is(v, under) for k, v in value.items())
    return isinstance(value, meant) and (not isinstance(value, bool) or meant is bool)


def _said(meant: Any) -> str:  # noqa: ANN401 - likewise
    if isinstance(meant, list):
        return f"list of {_said(meant[0])}"
    if isinstance(meant, dict):
        return "mapping of " + " to ".join(map(_said, next(iter(meant.items()))))
    return str((meant if isinstance(meant, type) else meant[0]).__name__)


def _frozen(value: Any) -> Any:  # noqa: ANN401 - whatever YAML gives
    """Return a value that a frozen step may hold: lists and mappings as tuples."""
    if isinstance(value, dict):
        return tuple(value.items())
    return tuple(value) if isinstance(value, list) else value
