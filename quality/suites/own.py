"""Users' suites as expectations of a table, each with a stable id: scanned, evaluated in a process, or refused."""

import json
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.checks.registry import kind_of
from ranklake.lake.contracts.model import SEVERITIES, Check
from ranklake.printable import printable_name
from ranklake.quality.forms import FORMS
from ranklake.quality.suite import ASKED, OWN, Expectation
from ranklake.quality.suites.conditions import unsupported_reason
from ranklake.quality.suites.folder import SuiteFolder, UserSuite
from ranklake.quality.suites.translate import TranslatedCheck, translate

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

_NAME: Final = 200
_ABSENCE: Final = frozenset({"expect_column_to_exist", "expect_table_columns_to_match_ordered_list"})
"""Expectations that may name a missing column, because they test whether it exists."""
_PER_COLUMN: Final = ("column", "column_A", "column_B", "column_list")
_ACTIONS: Final = ("record", "hold")


@dataclass(frozen=True, slots=True)
class OwnSuites:
    """All suites of users for one run of checks.

    Attributes
    ----------
    suites
        Suites from files, and those that Python files define.
    folder
        The folder that was read.
    limits
        Time limit in seconds and row limit of a request. Each expectation contains them, so that a new limit gives a
        new suite.
    """

    suites: tuple[UserSuite, ...] = ()
    folder: SuiteFolder = field(default_factory=SuiteFolder)
    limits: tuple[float, int] = (60.0, 500_000)

    def of(self, contract: "Contract") -> tuple[Expectation, ...]:
        """Return the expectations of all suites for a table, in the order of suites and of their expectations."""
        counts: dict[str, int] = {}
        expectations = []
        for suite in self.suites:
            if suite.table != contract.table:
                continue
            if suite.problem:
                expectations.append(_refusal(f"{OWN}{suite.name}", suite.problem))
            for raw in suite.expectations:
                try:
                    expectation = self._expectation(suite, raw, contract)
                except Exception as error:  # noqa: BLE001 - a user's file may contain anything; other expectations must still be read
                    expectation = _refusal(f"{OWN}{suite.name}:malformed", f"not understood ({type(error).__name__})")
                counts[expectation.check.id] = counts.get(expectation.check.id, 0) + 1
                expectations.append(_number_repeats(expectation, counts[expectation.check.id]))
        return tuple(expectations)

    def _expectation(self, suite: UserSuite, raw: object, contract: "Contract") -> Expectation:
        place = f"{OWN}{suite.name}"
        kind = raw.get("type", raw.get("expectation_type")) if isinstance(raw, dict) else None
        kwargs = raw.get("kwargs", {}) if isinstance(raw, dict) else None
        if not isinstance(raw, dict) or not isinstance(kind, str) or not isinstance(kwargs, dict):
            return _refusal(f"{place}:malformed", "not an expectation: it lacks a type, or its kwargs are no object")
        names = [str(name) for name in _columns_of(kwargs)]
        about = printable_name(",".join(names))[:_NAME]
        id_ = ":".join([place, printable_name(kind)[:_NAME], *([about] if about else [])])
        meta = raw["meta"] if isinstance(raw.get("meta"), dict) else {}
        severity, on_fail = _severity(raw, meta), meta.get("on_fail", "record")
        if not _is_text(raw) or on_fail not in _ACTIONS:
            hint = "meta.on_fail is record or hold; what shall take rows out belongs in a contract"
            fault = hint if _is_text(raw) else "a text in it holds half a character (a lone surrogate)"
            return _refusal(id_, fault, severity=severity)
        if kind not in core_types() and not self.folder.python:
            return _refusal(id_, f"no expectation of this type; {did_you_mean(kind, core_types())}", severity=severity)
        missing = [name for name in names if name not in contract]
        fault = unsupported_reason(kwargs.get("row_condition"))
        if missing and kind not in _ABSENCE:
            text = f"table {contract.table} has no column {printable_name(missing[0])[:_NAME]!r}; "
            fault = text + did_you_mean(missing[0], contract.names)
        if fault:
            return _refusal(id_, fault, severity=severity)
        # a check of a missing column is skipped; whether the column exists can be checked nevertheless
        columns = () if kind in _ABSENCE else tuple(dict.fromkeys(name for name in names if name in contract))
        translated = translate(kind, kwargs, contract) if kind in core_types() else None
        if translated is not None:
            check = Check(id_, translated.kind, severity, on_fail, translated.columns, **translated.parameters)
            return _scanned_expectation(check, contract, translated)
        request = {"type": kind, "kwargs": kwargs, "code": self.folder.code, "limits": self.limits}
        asked = json.dumps(request, sort_keys=True)
        check = Check(id_, ASKED, severity, on_fail, columns)
        classified = kind not in core_types() or _names_classified(kwargs, contract)
        name = "".join(word.capitalize() for word in printable_name(kind)[:_NAME].split("_"))
        return Expectation(check, name, classified, numeric=False, quarantines=False, asked=asked)


def problems(own: OwnSuites, tables: Collection[str]) -> dict[str, str]:
    """Return the problems of suites without a known table, by suite."""
    return {suite.name: _placement_problem(suite, tables) for suite in own.suites if suite.table not in tables}


def _placement_problem(suite: UserSuite, tables: Collection[str]) -> str:
    table = printable_name(suite.table)[:_NAME]
    unknown_table = (
        f"no checked table {table!r}; name it in the suite's meta.table; {did_you_mean(suite.table, tables)}"
    )
    return suite.problem or unknown_table


@cache
def core_types() -> frozenset[str]:
    """Return the types of Great Expectations' own expectations, without importing it."""
    spec = find_spec("great_expectations")
    folders = spec.submodule_search_locations if spec is not None else None
    names = (path.stem for folder in folders or () for path in (Path(folder) / "expectations" / "core").glob("*.py"))
    return frozenset(name for name in names if name.startswith(("expect_", "unexpected_")))


def _columns_of(kwargs: Mapping[str, Any]) -> Iterator[object]:
    for key in _PER_COLUMN:
        value = kwargs.get(key)
        if isinstance(value, list):
            yield from value
        elif value is not None:
            yield value


def _is_text(raw: object) -> bool:
    try:
        json.dumps(raw, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _severity(raw: Mapping[str, Any], meta: Mapping[str, Any]) -> str:
    """Return the severity in the expectation's meta, else its own; its default, critical, becomes error."""
    if meta.get("severity") in SEVERITIES:
        return str(meta["severity"])
    return str(raw["severity"]) if raw.get("severity") in ("warning", "info") else "error"


def _names_classified(kwargs: Mapping[str, Any], contract: "Contract") -> bool:
    """Whether a classified column occurs anywhere in the parameters, including the text of a row condition.

    Expectations of the whole table name no column and read all columns; so they count as if they named them.
    """
    text = unicodedata.normalize("NFKC", json.dumps(kwargs, ensure_ascii=False))  # as Python reads names
    classified = [column.name for column in contract.columns if column.class_ != "operational"]
    return any(name in text for name in classified) or (bool(classified) and not any(_columns_of(kwargs)))


def _scanned_expectation(check: Check, contract: "Contract", translated: TranslatedCheck) -> Expectation:
    columns = [contract.column(name) for name in check.columns]
    classified = any(column.class_ != "operational" for column in columns)
    form = FORMS[check.kind]
    numeric = form.shows and kind_of(check).level == "row" and all(column.is_number for column in columns)
    shown = numeric and not classified
    return Expectation(
        check, form.expectation, classified, shown, quarantines=False, mostly=translated.mostly, where=translated.where
    )


def _refusal(id_: str, reason: str, severity: str = "error") -> Expectation:
    check = Check(id_, ASKED, severity)
    return Expectation(check, "UserSuite", classified=False, numeric=False, quarantines=False, refused=reason)


def _number_repeats(expectation: Expectation, count: int) -> Expectation:
    """Return an expectation with its number among those of the same id appended to the id, from the second on."""
    if count == 1:
        return expectation
    return replace(expectation, check=replace(expectation.check, id=f"{expectation.check.id}#{count}"))
