"""Mapping reader: reads and checks a mapping's YAML, and reports all errors together, each with its line."""

import hashlib
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ranklake.capture.importers.mapping import EPOCHS, Filter, Mapping, MappingError, Melt, Rule
from ranklake.capture.importers.units import UNITS, Conversion, conversion, moment_ns
from ranklake.errors import did_you_mean
from ranklake.lake.contracts.errors import UnknownTableError
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import Column, Contract
from ranklake.lake.contracts.overlay import Overlay
from ranklake.lake.contracts.schema import validate
from ranklake.operator_files import KeyPath, OperatorFile
from ranklake.segments.segment import RUN_NAME

PACKAGED: Final = Path(__file__).parent / "mappings"
_ORIGINS: Final = ("column", "value", "file", "row", "json")
_NUMBERS: Final = {"int32", "int64", "float32", "float64"}
_IMPORT_COLUMNS: Final = {"run", "attempt", "rank", "incarnation", "segment", "slot", "ts", "date"}
"""Columns that the import fills."""


def load_mapping(name: str, overlay: Overlay | None = None) -> Mapping:
    """Read a packaged mapping by name, or a mapping file by path.

    Raises `MappingError` with all errors of the file, and `ContractError` if the overlay's contract is invalid.
    """
    packaged = {path.stem: path for path in PACKAGED.glob("*.yaml")}
    path = packaged.get(name) or Path(name)
    if not path.exists():
        hint = f"{did_you_mean(name, packaged)} or the path of a file"
        raise MappingError("no such mapping", where=name, hint=hint)
    file = OperatorFile(path, error=MappingError, noun="mapping")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return _Reader(file, overlay).mapping(name if name in packaged else path.name, sha256)


class _Reader:
    """Builds a `Mapping` from its file. Errors are collected in the file until `mapping` raises them together."""

    def __init__(self, file: OperatorFile, overlay: Overlay | None) -> None:
        self.file, self.overlay, self.add = file, overlay, file.add
        self.run = _normalize(file.content)
        validate(file, "mapping")
        self.missing = _texts(file.content.get("missing", [""]))
        self.decimal = file.content.get("decimal", ".")

    def mapping(self, name: str, sha256: str) -> Mapping:
        content = self.file.content
        target = self.contract(content["table"])
        if self.run is not None and not RUN_NAME.fullmatch(self.run):
            hint = "letters, digits, dots, dashes and underscores, or run: {column: …} to take runs from rows"
            self.add(("run",), "not a run's name", hint)
        mapping = Mapping(
            name,
            sha256,
            target,
            run=self.run,
            time=self.rule(content["time"], None, ("time",)),
            rank=self.owner_rule("rank", target),
            rules=tuple(self.column_rules(content.get("columns") or {}, target)),
            filters=tuple(self.filter(item, ("filters", at)) for at, item in enumerate(content.get("filters") or [])),
            separator=content.get("separator"),
            melt=self.melt(content["melt"]) if "melt" in content else None,
            document=self.file,
            run_rule=self.owner_rule("run", target),
            attempt=self.owner_rule("attempt", target),
        )
        self.file.raise_errors()
        return mapping

    def contract(self, table: str) -> Contract:
        try:
            target = contract(table, self.overlay)
        except UnknownTableError as error:
            self.file.fail(("table",), error.what, error.hint)
        if not target.envelope:
            hint = "name a fact table, such as steps or spans"
            self.file.fail(("table",), f"{table!r} is not a table of recorded rows", hint)
        return target

    def owner_rule(self, key: str, target: Contract) -> Rule | None:
        spec = self.file.content.get(key)
        return None if spec is None else self.rule(spec, target.column(key), (key,))

    def column_rules(self, columns: dict[str, Any], target: Contract) -> Iterator[Rule]:
        allowed = [column.name for column in target.columns if column.name not in _IMPORT_COLUMNS]
        for name, spec in columns.items():
            at = ("columns", name)
            if name in allowed:
                yield self.rule(spec, target.column(name), at)
            else:
                is_filled = name in _IMPORT_COLUMNS
                flaw = "is filled by the import" if is_filled else f"is not a column of {target.table}"
                self.add(at, f"{name!r} {flaw}", did_you_mean(str(name), allowed))
        for column in target.columns:
            if column.required and column.name in allowed and column.name not in columns:
                self.add(("columns",), f"{target.table} needs a {column.name}", f"add {column.name}: …")

    def melt(self, spec: dict[str, Any]) -> Melt:
        if spec["name"] == spec["value"]:
            hint = "melt: {except: [date], name: pool, value: gpus}"
            self.add(("melt",), "name and value need two different columns", hint)
        return Melt(tuple(map(str, spec.get("except", ()))), spec["name"], spec["value"], ("melt",))

    def rule(self, spec: dict[str, Any], target: Column | None, at: KeyPath) -> Rule:
        origins = [name for name in _ORIGINS if name in spec]
        if len(origins) != 1:
            message = "has several sources of values" if origins else "has no source of values"
            self.add(at, message, "name one of " + ", ".join(_ORIGINS))
        is_time = target is None or target.type == "timestamp"
        self.check_type(spec, target, at, is_time=is_time)
        if is_time:
            self.check_time(spec, target, at)
        zone = spec.get("zone", "UTC")
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError):
            self.add((*at, "zone"), f"unknown zone {zone!r}", "such as UTC or Asia/Shanghai")
            zone = "UTC"
        values = spec.get("values")
        return Rule(
            target, at,
            column=None if "column" not in spec else str(spec["column"]),
            value=spec.get("value"), file=spec.get("file"), row="row" in spec,
            json=tuple(map(str, spec.get("json", ()))),
            conversion=self.conversion(spec, target, at, is_time=is_time),
            unit=str(spec["unit"]) if "unit" in spec else target.unit if target and target.unit in UNITS else None,
            values=None if values is None else {text: values[word] for word in values for text in _spellings(word)},
            default=spec.get("default"), has_default="default" in spec,
            missing=_texts(spec["missing"]) if "missing" in spec else self.missing,
            format=spec.get("format", "iso"), zone=zone,
            origin_ns=self.origin(spec, zone, at), decimal=self.decimal,
        )  # fmt: skip

    def check_type(self, spec: dict[str, Any], target: Column | None, at: KeyPath, *, is_time: bool) -> None:
        """Report options that do not fit the column's type."""
        kind = "timestamp" if target is None else target.type
        for name in ("format", "zone", "origin"):
            if name in spec and not is_time:
                self.add((*at, name), f"{target.name if target else 'time'} is {kind}, not a time", f"leave {name} out")
        for name in ("unit", "scale", "offset"):
            if name in spec and kind not in _NUMBERS and not is_time:
                self.add(
                    (*at, name),
                    f"{target.name if target else 'time'} is {kind}, which has no {name}",
                    f"leave {name} out",
                )
        self.check_values(spec, target, at)

    def check_time(self, spec: dict[str, Any], target: Column | None, at: KeyPath) -> None:
        """Report invalid options of times, and options that would have no effect."""
        form, origin = spec.get("format", "iso"), "origin" in spec
        if target is None and "row" in spec:
            self.add((*at, "row"), "is not a time", "time: {column: …}")
        if form not in {"iso", *EPOCHS} and "%" not in form:
            self.add((*at, "format"), f"unknown time format {form!r}", did_you_mean(form, ["iso", *EPOCHS]))
        if origin and ("format" in spec or "unit" not in spec):
            self.add((*at, "origin"), "times from an origin have a unit, and no format", "such as unit: s")
        for name in ("unit", "scale", "offset"):
            if name in spec and not origin and (name == "unit" or form not in EPOCHS):
                flaw = "implies the unit" if form in EPOCHS else f"has no {name}"
                hint = f"leave {name} out" if form in EPOCHS else "set format: epoch_s, or the origin of relative times"
                self.add((*at, name), f"the format {form} {flaw}", hint)
        if "zone" in spec and form in EPOCHS:
            self.add((*at, "zone"), f"{form} counts in UTC", "leave zone out")
        if spec.get("value") is not None and not origin:
            epoch = form in EPOCHS and _has_type(spec["value"], "float64")
            if not epoch and moment_ns(str(spec["value"]), form) is None:
                self.add((*at, "value"), f"{spec['value']!r} is not a time", "such as 2026-03-01T00:00:00Z")

    def check_values(self, spec: dict[str, Any], target: Column | None, at: KeyPath) -> None:
        """Report constants, defaults and mapped values that do not fit the column's type."""
        kind = "timestamp" if target is None else target.type
        if "file" in spec and kind != "string":
            self.add((*at, "file"), "gives a text: stem or name", "use it for a column of text")
        if "json" in spec and (target is None or target.format != "json"):
            self.add((*at, "json"), "the column is not JSON", "such as attributes")
        constants = [("values", word) for word in (spec.get("values") or {}).values()]
        constants += [(name, spec[name]) for name in ("value", "default") if name in spec]
        for place, word in constants:
            if word is not None and not _has_type(word, kind):
                self.add(
                    (*at, place), f"{word!r} is not of type {kind}", f"{target.name if target else 'time'} is {kind}"
                )

    def conversion(self, spec: dict[str, Any], target: Column | None, at: KeyPath, *, is_time: bool) -> Conversion:
        unit_conversion = Conversion()
        if is_time and spec.get("format") in EPOCHS:
            unit_conversion = Conversion(Fraction(EPOCHS[spec["format"]]))
        elif "unit" in spec:
            unit = "ns" if is_time else target.unit if target else None
            try:
                unit_conversion = conversion(str(spec["unit"]), unit)
            except ValueError as error:
                self.add((*at, "unit"), str(error))
        try:
            scale, offset = Fraction(str(spec.get("scale", 1))), Fraction(str(spec.get("offset", 0)))
        except (ValueError, ZeroDivisionError):
            self.add(at, "scale and offset are numbers", "such as scale: 0.001")
            return unit_conversion
        return Conversion(unit_conversion.factor * scale, unit_conversion.offset + offset * unit_conversion.factor)

    def origin(self, spec: dict[str, Any], zone: str, at: KeyPath) -> int | None:
        if "origin" not in spec:
            return None
        at_ns = moment_ns(spec["origin"], "iso", zone)
        if at_ns is None:
            self.add((*at, "origin"), "is not a time", "such as 2020-07-01T00:00:00Z")
        return at_ns

    def filter(self, spec: dict[str, Any], at: KeyPath) -> Filter:
        if len(spec) == 1:
            hint = "such as {column: state, in: [done]}"
            self.add(at, "a filter needs a column and a condition", hint)
        words = {name: _texts(spec[name]) for name in ("in", "not_in") if name in spec}
        bounds = {name: float(spec[name]) for name in ("above", "below") if name in spec}
        return Filter(str(spec["column"]), at, words.get("in"), words.get("not_in"), decimal=self.decimal, **bounds)


def _normalize(content: Any) -> str | None:  # noqa: ANN401 - any YAML
    """Expand rules that are only a column's name in place. Remove and return ``run`` if it is a run's name."""
    if not isinstance(content, dict):
        return None
    columns = content.get("columns")
    places = [(content, key) for key in ("time", "rank", "attempt") if key in content]
    places += [(columns, key) for key in columns] if isinstance(columns, dict) else []
    for parent, key in places:
        if not isinstance(parent[key], dict):
            parent[key] = {"column": parent[key]}
    if isinstance(content.get("run"), dict):
        return None
    run = content.pop("run", None)
    return None if run is None else str(run)


def _texts(words: Iterable[Any]) -> frozenset[str]:
    return frozenset(text for word in words for text in _spellings(word))


def _spellings(word: Any) -> tuple[str, ...]:  # noqa: ANN401 - YAML
    """Return the texts that a YAML value may have had: ``true``, ``True`` and ``TRUE`` are all read as True."""
    text = str(word)
    return (text, text.lower(), text.upper()) if isinstance(word, bool) else (text,)


def _has_type(value: Any, kind: str) -> bool:  # noqa: ANN401 - YAML
    if kind == "bool":
        return isinstance(value, bool)
    if kind in {"int32", "int64"}:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind in {"float32", "float64"}:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, str | int | float)
