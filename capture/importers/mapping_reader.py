"""Mapping reader: reads and checks a mapping's YAML; all that is wrong with it is reported at once, with its line."""

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
_TAKEN: Final = {"run", "attempt", "rank", "incarnation", "segment", "slot", "ts", "date"}
"""Columns that the import makes."""


def load_mapping(name: str, overlay: Overlay | None = None) -> Mapping:
    """Read a mapping: a packaged one by its name, else the file of that path.

    Raises `MappingError` with all others of the file, and `ContractError` where the overlay's contract of its table is
    none.
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
    """Makes a mapping of its file, and notes with the file what is wrong."""

    def __init__(self, file: OperatorFile, overlay: Overlay | None) -> None:
        self.file, self.overlay, self.add = file, overlay, file.add
        self.run = _written_out(file.content)
        validate(file, "mapping")
        self.missing = _texts(file.content.get("missing", [""]))
        self.decimal = file.content.get("decimal", ".")

    def mapping(self, name: str, sha256: str) -> Mapping:
        content = self.file.content
        target = self.contract(content["table"])
        if self.run is not None and not RUN_NAME.fullmatch(self.run):
            hint = "letters, digits, dots, dashes and underscores, or run: {column: …} for one that each row names"
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
            hint = "name a table of facts, such as steps or spans"
            self.file.fail(("table",), f"nobody records rows of {table!r}", hint)
        return target

    def owner_rule(self, key: str, target: Contract) -> Rule | None:
        given = self.file.content.get(key)
        return None if given is None else self.rule(given, target.column(key), (key,))

    def column_rules(self, columns: dict[str, Any], target: Contract) -> Iterator[Rule]:
        own = [column.name for column in target.columns if column.name not in _TAKEN]
        for name, given in columns.items():
            at = ("columns", name)
            if name in own:
                yield self.rule(given, target.column(name), at)
            else:
                flaw = "is made by the import" if name in _TAKEN else f"is not a column of {target.table}"
                self.add(at, f"{name!r} {flaw}", did_you_mean(str(name), own))
        for column in target.columns:
            if column.required and column.name in own and column.name not in columns:
                self.add(("columns",), f"{target.table} needs a {column.name}", f"add {column.name}: …")

    def melt(self, given: dict[str, Any]) -> Melt:
        if given["name"] == given["value"]:
            hint = "melt: {except: [date], name: pool, value: gpus}"
            self.add(("melt",), "names and values would be one column", hint)
        return Melt(tuple(map(str, given.get("except", ()))), given["name"], given["value"], ("melt",))

    def rule(self, given: dict[str, Any], target: Column | None, at: KeyPath) -> Rule:
        origins = [name for name in _ORIGINS if name in given]
        if len(origins) != 1:
            message = f"says where its values come from {'twice' if origins else 'nowhere'}"
            self.add(at, message, "one of " + ", ".join(_ORIGINS))
        is_time = target is None or target.type == "timestamp"
        self.check_type(given, target, at, is_time=is_time)
        if is_time:
            self.fits_time(given, target, at)
        zone = given.get("zone", "UTC")
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError):
            self.add((*at, "zone"), f"unknown zone {zone!r}", "such as UTC or Asia/Shanghai")
            zone = "UTC"
        values = given.get("values")
        return Rule(
            target, at,
            column=None if "column" not in given else str(given["column"]),
            value=given.get("value"), file=given.get("file"), row="row" in given,
            json=tuple(map(str, given.get("json", ()))),
            conversion=self.conversion(given, target, at, is_time=is_time),
            unit=str(given["unit"]) if "unit" in given else target.unit if target and target.unit in UNITS else None,
            values=None if values is None else {text: values[word] for word in values for text in _spellings(word)},
            default=given.get("default"), has_default="default" in given,
            missing=_texts(given["missing"]) if "missing" in given else self.missing,
            format=given.get("format", "iso"), zone=zone,
            origin_ns=self.origin(given, zone, at), decimal=self.decimal,
        )  # fmt: skip

    def check_type(self, given: dict[str, Any], target: Column | None, at: KeyPath, *, is_time: bool) -> None:
        """Refuse what can give no value of the column."""
        kind = "timestamp" if target is None else target.type
        for name in ("format", "zone", "origin"):
            if name in given and not is_time:
                self.add((*at, name), f"{target.name if target else 'time'} is {kind}, not a time", f"leave {name} out")
        for name in ("unit", "scale", "offset"):
            if name in given and kind not in _NUMBERS and not is_time:
                self.add(
                    (*at, name),
                    f"{target.name if target else 'time'} is {kind}, which has no {name}",
                    f"leave {name} out",
                )
        self.fits_values(given, target, at)

    def fits_time(self, given: dict[str, Any], target: Column | None, at: KeyPath) -> None:
        """Refuse what is no way to read times, and what would be passed over."""
        form, origin = given.get("format", "iso"), "origin" in given
        if target is None and "row" in given:
            self.add((*at, "row"), "is not a time", "time: {column: …}")
        if form not in {"iso", *EPOCHS} and "%" not in form:
            self.add((*at, "format"), f"unknown time format {form!r}", did_you_mean(form, ["iso", *EPOCHS]))
        if origin and ("format" in given or "unit" not in given):
            self.add((*at, "origin"), "times from an origin have a unit, and no format", "such as unit: s")
        for name in ("unit", "scale", "offset"):
            if name in given and not origin and (name == "unit" or form not in EPOCHS):
                flaw = "says the unit already" if form in EPOCHS else f"has no {name}"
                hint = (
                    f"leave {name} out" if form in EPOCHS else "say format: epoch_s, or from which origin times count"
                )
                self.add((*at, name), f"the format {form} {flaw}", hint)
        if "zone" in given and form in EPOCHS:
            self.add((*at, "zone"), f"{form} counts in UTC", "leave zone out")
        if given.get("value") is not None and not origin:
            epoch = form in EPOCHS and _is_of(given["value"], "float64")
            if not epoch and moment_ns(str(given["value"]), form) is None:
                self.add((*at, "value"), f"{given['value']!r} is not a time", "such as 2026-03-01T00:00:00Z")

    def fits_values(self, given: dict[str, Any], target: Column | None, at: KeyPath) -> None:
        """Refuse constants and words that are no values of the column."""
        kind = "timestamp" if target is None else target.type
        if "file" in given and kind != "string":
            self.add((*at, "file"), "gives a text: stem or name", "put it into a column of text")
        if "json" in given and (target is None or target.format != "json"):
            self.add((*at, "json"), "the column holds no JSON", "such as attributes")
        meant = [("values", word) for word in (given.get("values") or {}).values()]
        for place, word in [*meant, *((name, given[name]) for name in ("value", "default") if name in given)]:
            if word is not None and not _is_of(word, kind):
                self.add(
                    (*at, place), f"{word!r} is not of type {kind}", f"{target.name if target else 'time'} is {kind}"
                )

    def conversion(self, given: dict[str, Any], target: Column | None, at: KeyPath, *, is_time: bool) -> Conversion:
        unit_conversion = Conversion()
        if is_time and given.get("format") in EPOCHS:
            unit_conversion = Conversion(Fraction(EPOCHS[given["format"]]))
        elif "unit" in given:
            own = "ns" if is_time else target.unit if target else None
            try:
                unit_conversion = conversion(str(given["unit"]), own)
            except ValueError as error:
                self.add((*at, "unit"), str(error))
        try:
            scale, offset = Fraction(str(given.get("scale", 1))), Fraction(str(given.get("offset", 0)))
        except (ValueError, ZeroDivisionError):
            self.add(at, "scale and offset are numbers", "such as scale: 0.001")
            return unit_conversion
        return Conversion(unit_conversion.factor * scale, unit_conversion.offset + offset * unit_conversion.factor)

    def origin(self, given: dict[str, Any], zone: str, at: KeyPath) -> int | None:
        if "origin" not in given:
            return None
        at_ns = moment_ns(given["origin"], "iso", zone)
        if at_ns is None:
            self.add((*at, "origin"), "is not a time", "such as 2020-07-01T00:00:00Z")
        return at_ns

    def filter(self, given: dict[str, Any], at: KeyPath) -> Filter:
        if len(given) == 1:
            hint = "such as {column: state, in: [done]}"
            self.add(at, "a filter needs a column and what its values are to be", hint)
        words = {name: _texts(given[name]) for name in ("in", "not_in") if name in given}
        bounds = {name: float(given[name]) for name in ("above", "below") if name in given}
        return Filter(str(given["column"]), at, words.get("in"), words.get("not_in"), decimal=self.decimal, **bounds)


def _written_out(content: Any) -> str | None:  # noqa: ANN401 - whatever YAML gives
    """Write a rule that is only a column's name as a rule; take out, and return, the name of one run for all rows."""
    if not isinstance(content, dict):
        return None
    columns = content.get("columns")
    places = [(content, key) for key in ("time", "rank", "attempt") if key in content]
    places += [(columns, key) for key in columns] if isinstance(columns, dict) else []
    for within, key in places:
        if not isinstance(within[key], dict):
            within[key] = {"column": within[key]}
    if isinstance(content.get("run"), dict):
        return None
    run = content.pop("run", None)
    return None if run is None else str(run)


def _texts(words: Iterable[Any]) -> frozenset[str]:
    return frozenset(text for word in words for text in _spellings(word))


def _spellings(word: Any) -> tuple[str, ...]:  # noqa: ANN401 - YAML
    """Return the texts that a word of the mapping stands for: YAML reads ``true``, ``True`` and ``TRUE`` as one."""
    text = str(word)
    return (text, text.lower(), text.upper()) if isinstance(word, bool) else (text,)


def _is_of(value: Any, kind: str) -> bool:  # noqa: ANN401 - YAML
    if kind == "bool":
        return isinstance(value, bool)
    if kind in {"int32", "int64"}:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind in {"float32", "float64"}:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, str | int | float)
