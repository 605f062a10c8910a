"""Mapping reader: reads and checks a mapping's YAML; errors name the line."""

import hashlib
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, NoReturn
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ranklake.capture.importers.mapping import EPOCHS, Filter, Mapping, MappingError, Melt, Rule, fail
from ranklake.capture.importers.units import UNITS, Conversion, conversion, moment_ns
from ranklake.errors import did_you_mean
from ranklake.lake.contracts.document import Document, KeyPath
from ranklake.lake.contracts.errors import ContractError, UnknownTableError
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import Column
from ranklake.lake.contracts.overlay import Overlay
from ranklake.segments.segment import RUN_NAME

PACKAGED: Final = Path(__file__).parent / "mappings"
_TOP: Final = {
    "table", "about", "source", "run", "attempt", "time", "rank", "columns", "filters", "missing", "separator",
    "decimal", "melt",
}  # fmt: skip
_COLUMN: Final = {
    "column", "value", "file", "row", "json", "unit", "scale", "offset", "values", "default", "missing", "format",
    "zone", "origin",
}  # fmt: skip
_ORIGINS: Final = ("column", "value", "file", "row", "json")
_FILTERS: Final = {"column", "in", "not_in", "above", "below"}
_MELT: Final = {"except", "name", "value"}
_NUMBERS: Final = {"int32", "int64", "float32", "float64"}


def load_mapping(name: str, overlay: Overlay | None = None) -> Mapping:
    """Read a mapping: a packaged one by its name, else the file of that path.

    Raises `MappingError`, and `ContractError` where the overlay's contract of its table is none.
    """
    packaged = {path.stem: path for path in PACKAGED.glob("*.yaml")}
    path = packaged.get(name) or Path(name)
    if not path.exists():
        hint = f"{did_you_mean(name, packaged)} or the path of a file"
        raise MappingError("no such mapping", where=name, hint=hint)
    try:
        document = Document(path)
    except ContractError as error:
        raise MappingError(error.what, where=error.where, hint=error.hint) from error
    return _Reading(document, overlay).mapping(name if name in packaged else path.name, path.read_bytes())


class _Reading:
    """A mapping while it is read."""

    def __init__(self, document: Document, overlay: Overlay | None) -> None:
        self.document, self.overlay = document, overlay
        self.missing: frozenset[str] = frozenset({""})
        self.decimal = "."

    def fail(self, at: KeyPath, flaw: str, hint: str = "") -> NoReturn:
        fail(self.document, at, flaw, hint)

    def known(self, given: Any, names: set[str], at: KeyPath) -> dict[str, Any]:  # noqa: ANN401 - YAML
        if not isinstance(given, dict):
            self.fail(at, "is not a mapping of names to values", f"known: {', '.join(sorted(names))}")
        for name in given:
            if name not in names:
                self.fail((*at, name), f"no such key {name!r}", did_you_mean(str(name), names))
        return given

    def mapping(self, name: str, raw: bytes) -> Mapping:
        top = self.known(self.document.content, _TOP, ())
        table = top.get("table")
        try:
            of = contract(str(table), self.overlay)
        except UnknownTableError as error:
            self.fail(("table",), error.what, error.hint)
        if not of.envelope:
            self.fail(("table",), f"nobody records rows of {table!r}", "name a table of facts, such as steps or spans")
        self.texts(top)
        if "time" not in top:
            self.fail((), "no time: when rows happened is not said", "add time: {column: …}")
        run = top.get("run")
        by_row = isinstance(run, dict)
        if run is not None and not by_row and not RUN_NAME.fullmatch(str(run)):
            hint = "letters, digits, dots, dashes and underscores, or run: {column: …} for one that each row names"
            self.fail(("run",), "not a run's name", hint)
        rank = self.rule(top["rank"], of.column("rank"), ("rank",)) if "rank" in top else None
        columns = top.get("columns") or {}
        if not isinstance(columns, dict):
            self.fail(("columns",), "is not a mapping of the contract's columns to foreign ones")
        taken = {"run", "attempt", "rank", "incarnation", "segment", "slot", "ts", "date"}
        own = [column.name for column in of.columns if column.name not in taken]
        rules = []
        for target, given in columns.items():
            at = ("columns", target)
            if target not in own:
                flaw = "is made by the import" if target in taken else f"is not a column of {of.table}"
                self.fail(at, f"{target!r} {flaw}", did_you_mean(str(target), own))
            rules.append(self.rule(given, of.column(target), at))
        for column in of.columns:
            if column.required and column.name in own and column.name not in columns:
                self.fail(("columns",), f"{of.table} needs a {column.name}", f"add {column.name}: …")
        filters = tuple(self.filter(item, ("filters", at)) for at, item in enumerate(top.get("filters") or []))
        return Mapping(
            name, hashlib.sha256(raw).hexdigest(), of, None if run is None or by_row else str(run),
            self.rule(top["time"], None, ("time",)), rank, tuple(rules), filters, top.get("separator"),
            self.melt(top), self.document, self.rule(run, of.column("run"), ("run",)) if by_row else None,
            self.rule(top["attempt"], of.column("attempt"), ("attempt",)) if "attempt" in top else None,
        )  # fmt: skip

    def texts(self, top: dict[str, Any]) -> None:
        """Take what holds for texts of all columns."""
        if "missing" in top:
            self.missing = self.words(top, "missing", ())
        self.decimal = top.get("decimal", ".")
        if self.decimal not in {".", ","}:
            self.fail(("decimal",), "is neither a dot nor a comma", 'decimal: ","')

    def words(self, given: dict[str, Any], name: str, at: KeyPath) -> frozenset[str]:
        """Return the texts that a list stands for."""
        if not isinstance(given[name], list):
            self.fail((*at, name), "is not a list", f"{name}: [{given[name]}]")
        return frozenset(text for word in given[name] for text in _spellings(word))

    def melt(self, top: dict[str, Any]) -> Melt | None:
        if "melt" not in top:
            return None
        at = ("melt",)
        given = self.known(top["melt"], _MELT, at)
        stay = given.get("except") or []
        names = [given.get("name"), given.get("value")]
        if not isinstance(stay, list) or not all(isinstance(name, str) for name in names) or names[0] == names[1]:
            self.fail(at, "does not say what becomes of the columns", "melt: {except: [date], name: pool, value: gpus}")
        return Melt(tuple(map(str, stay)), str(names[0]), str(names[1]), at)

    def rule(self, given: Any, target: Column | None, at: KeyPath) -> Rule:  # noqa: ANN401 - YAML
        if not isinstance(given, dict):
            given = {"column": given}
        given = self.known(given, _COLUMN, at)
        origins = [name for name in _ORIGINS if name in given]
        if len(origins) != 1:
            self.fail(
                at,
                f"says where its values come from {'twice' if origins else 'nowhere'}",
                "one of " + ", ".join(_ORIGINS),
            )
        is_time = target is None or target.type == "timestamp"
        self.fits(given, target, at, is_time=is_time)
        if is_time:
            self.fits_time(given, target, at)
        if "json" in given:
            self.words(given, "json", at)
        if "zone" in given:
            try:
                ZoneInfo(str(given["zone"]))
            except (ZoneInfoNotFoundError, ValueError):
                self.fail((*at, "zone"), f"unknown zone {given['zone']!r}", "such as UTC or Asia/Shanghai")
        return Rule(
            target, at,
            column=None if "column" not in given else str(given["column"]),
            value=given.get("value"), file=given.get("file"), row="row" in given,
            json=tuple(map(str, given.get("json") or ())),
            conversion=self.conversion(given, target, at, is_time=is_time),
            unit=str(given["unit"]) if "unit" in given else target.unit if target and target.unit in UNITS else None,
            values={text: meant for word, meant in given["values"].items() for text in _spellings(word)}
            if "values" in given else None,
            default=given.get("default"), has_default="default" in given,
            missing=self.words(given, "missing", at) if "missing" in given else self.missing,
            format=str(given.get("format", "iso")), zone=str(given.get("zone", "UTC")),
            origin_ns=self.origin(given, at), decimal=self.decimal,
        )  # fmt: skip

    def fits(self, given: dict[str, Any], target: Column | None, at: KeyPath, *, is_time: bool) -> None:
        """Refuse what can give no value of the column."""
        kind = "timestamp" if target is None else target.type
        for name in ("format", "zone", "origin"):
            if name in given and not is_time:
                self.fail(
                    (*at, name), f"{target.name if target else 'time'} is {kind}, not a time", f"leave {name} out"
                )
        for name in ("unit", "scale", "offset"):
            if name in given and kind not in _NUMBERS and not is_time:
                self.fail(
                    (*at, name),
                    f"{target.name if target else 'time'} is {kind}, which has no {name}",
                    f"leave {name} out",
                )
        self.fits_values(given, target, at)

    def fits_time(self, given: dict[str, Any], target: Column | None, at: KeyPath) -> None:
        """Refuse what is no way to read times, and what would be passed over."""
        form, origin = str(given.get("format", "iso")), "origin" in given
        if target is None and "row" in given:
            self.fail((*at, "row"), "is not a time", "time: {column: …}")
        if form not in {"iso", *EPOCHS} and "%" not in form:
            self.fail((*at, "format"), f"unknown time format {form!r}", did_you_mean(form, ["iso", *EPOCHS]))
        if origin and ("format" in given or "unit" not in given):
            self.fail((*at, "origin"), "times from an origin have a unit, and no format", "such as unit: s")
        for name in ("unit", "scale", "offset"):
            if name in given and not origin and (name == "unit" or form not in EPOCHS):
                flaw = "says the unit already" if form in EPOCHS else f"has no {name}"
                hint = (
                    f"leave {name} out" if form in EPOCHS else "say format: epoch_s, or from which origin times count"
                )
                self.fail((*at, name), f"the format {form} {flaw}", hint)
        if "zone" in given and form in EPOCHS:
            self.fail((*at, "zone"), f"{form} counts in UTC", "leave zone out")
        if given.get("value") is not None and not origin:
            epoch = form in EPOCHS and _is_of(given["value"], "float64")
            if not epoch and moment_ns(str(given["value"]), form) is None:
                self.fail((*at, "value"), f"{given['value']!r} is not a time", "such as 2026-03-01T00:00:00Z")

    def fits_values(self, given: dict[str, Any], target: Column | None, at: KeyPath) -> None:
        """Refuse constants and words that are no values of the column."""
        kind = "timestamp" if target is None else target.type
        if given.get("file", "stem") not in {"stem", "name"} or ("file" in given and kind != "string"):
            self.fail((*at, "file"), "gives a text: stem or name", "put it into a column of text")
        if "json" in given and (target is None or target.format != "json"):
            self.fail((*at, "json"), "the column holds no JSON", "such as attributes")
        if "values" in given and not isinstance(given["values"], dict):
            self.fail((*at, "values"), "is not a mapping of foreign words to values")
        meant = [("values", word) for word in (given.get("values") or {}).values()]
        for place, word in [*meant, *((name, given[name]) for name in ("value", "default") if name in given)]:
            if word is not None and not _is_of(word, kind):
                self.fail(
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
                self.fail((*at, "unit"), str(error))
        try:
            scale, offset = Fraction(str(given.get("scale", 1))), Fraction(str(given.get("offset", 0)))
        except (ValueError, ZeroDivisionError):
            self.fail(at, "scale and offset are numbers", "such as scale: 0.001")
        return Conversion(unit_conversion.factor * scale, unit_conversion.offset + offset * unit_conversion.factor)

    def origin(self, given: dict[str, Any], at: KeyPath) -> int | None:
        if "origin" not in given:
            return None

        at_ns = moment_ns(str(given["origin"]), "iso", str(given.get("zone", "UTC")))
        if at_ns is None:
            self.fail((*at, "origin"), "is not a time", "such as 2020-07-01T00:00:00Z")
        return at_ns

    def filter(self, given: Any, at: KeyPath) -> Filter:  # noqa: ANN401 - YAML
        given = self.known(given, _FILTERS, at)
        if "column" not in given or len(given) == 1:
            self.fail(
                at, "a filter needs a column and what its values are to be", "such as {column: state, in: [done]}"
            )
        words = {name: self.words(given, name, at) for name in ("in", "not_in") if name in given}
        bounds = {}
        for name in ("above", "below"):
            if name in given:
                if not _is_of(given[name], "float64"):
                    self.fail((*at, name), "is not a number")
                bounds[name] = float(given[name])
        return Filter(str(given["column"]), at, words.get("in"), words.get("not_in"), decimal=self.decimal, **bounds)


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
