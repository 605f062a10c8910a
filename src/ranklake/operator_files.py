r"""Reads the files that operators write: YAML or TOML, validated against a model; each fault has its line.

A model is a frozen dataclass, or another type that pydantic supports. Its annotations are the file's schema.
``__post_init__`` may raise `ValueError` for values that do not fit together; the message begins with the key's name.

>>> from dataclasses import dataclass
>>> from typing import Literal
>>> @dataclass(frozen=True)
... class Rule:
...     table: str
...     action: Literal["delete", "archive"] = "delete"
...     keep_days: int = 90
...
...     def __post_init__(self) -> None:
...         if self.keep_days < 1:
...             raise ValueError("keep_days must be at least 1")
>>> file = OperatorFile(Path("rules.yaml"), '''
... - {table: steps, keep_days: 30}
... - table: spans
...   keep_dais: 7
...   action: archiv
... - {table: events, keep_days: 0}
... ''')
>>> try:
...     rules = file.load(tuple[Rule, ...])
... except OperatorFileError as error:
...     print(error, *error.others, sep="\n")
rules.yaml:4: unknown key 'keep_dais' in [1]; did you mean 'keep_days'?
rules.yaml:5: [1].action cannot be 'archiv'; did you mean 'archive'?
rules.yaml:6: [2].keep_days must be at least 1

Types are strict: text is no number, and ``true`` is neither. Days (`date`) are written as ``2027-06-30``. Checks that
need other files, such as names of tables, come afterwards: `OperatorFile.add` collects errors with their lines, and
`raise_errors` raises them as one. pydantic is imported when a file is validated. Training processes, which read
contracts and masks, validate them with `ranklake.lake.contracts.schema`, without pydantic.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.file_formats import FormatError, KeyPath, read_text, read_toml, read_yaml, toml_lines, yaml_line

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["KeyPath", "OperatorFile", "OperatorFileError", "path_text", "raise_all", "type_text"]

Model = TypeVar("Model")
_MAX_JSON: Final = 16 << 20
"""Most characters of a file after expanding YAML's aliases: a few lines with aliases could fill the memory."""
_MAX_SHOWN: Final = 40
_DOCUMENT: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
"""The line with which a document of YAML begins."""
_KINDS: Final = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "date_type": "a day such as 2027-06-30",
    "date_parsing": "a day such as 2027-06-30",
    "date_from_datetime_parsing": "a day such as 2027-06-30",
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type"), "a list"),
    **dict.fromkeys(("dict_type", "dataclass_type", "model_type", "model_attributes_type"), "a mapping"),
}
_BOUNDS: Final = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
}
_NAMES: Final = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
    type(None): "empty",
}


class OperatorFileError(RanklakeError):
    """An operator's file that cannot be used."""


def raise_all(errors: Iterable[RanklakeError]) -> None:
    """Raise the first of some errors, with the rest as its `others`; do nothing if there are none."""
    result = list(errors)
    if result:
        result[0].others = tuple(result[1:])
        raise result[0]


@contextmanager
def _raising(path: Path, error: type[RanklakeError]) -> Iterator[None]:
    """Raise errors of a file's format as `error`."""
    try:
        yield
    except FormatError as fault:
        where = f"{path}:{fault.line}" if fault.line else str(path)
        raise error(fault.what, where=where, hint=fault.hint) from fault.__cause__


class OperatorFile:
    """A file: its `text`, and its `content` as dicts, lists and scalars.

    Parameters
    ----------
    path
        Path of the file.
    text
        Its text, if it was read already.
    error
        Class of all errors about the file. The constructor raises it if the file cannot be read, is neither YAML nor
        TOML, or repeats a key in a mapping.
    noun
        Name of such a file in errors.
    is_toml
        Read it as TOML. Otherwise as YAML 1.2.
    """

    def __init__(
        self,
        path: Path,
        text: str | None = None,
        *,
        error: type[RanklakeError] = OperatorFileError,
        noun: str = "file",
        is_toml: bool = False,
    ) -> None:
        self.path, self.noun, self._error, self.is_toml = path, noun, error, is_toml
        self._errors: list[RanklakeError] = []
        with _raising(path, error):
            text = read_text(path, noun) if text is None else text
            self.text = text
            self.content: Any = read_toml(text) if is_toml else read_yaml(text)

    @classmethod
    def documents(
        cls, path: Path, text: str | None = None, *, error: type[RanklakeError] = OperatorFileError, noun: str = "file"
    ) -> "list[OperatorFile]":
        """Return the documents of a YAML file; line numbers count from the start of the file."""
        with _raising(path, error):
            text = read_text(path, noun) if text is None else text
        begins = [0, *(match.end() for match in _DOCUMENT.finditer(text)), len(text)]
        parts = [(text.count("\n", 0, begin), text[begin:end]) for begin, end in pairwise(begins)]
        files = [cls(path, "\n" * lines + _DOCUMENT.sub("", part), error=error, noun=noun) for lines, part in parts]
        return [file for file in files if file.content is not None] or files[:1]

    def load(self, model: type[Model]) -> Model:
        """Return the content as an instance of `model`.

        Raises the file's error class for the first fault, with all others as its `others`.
        """
        value, errors = self._validate(_adapter(model))
        raise_all(error for _, error in errors)
        return value  # type: ignore[no-any-return]

    def load_sound(self, model: type[Model], depth: int | None = None) -> tuple[Model | None, list[RanklakeError]]:
        """Return the valid part of the file, and errors about the rest, which is removed from `content`.

        With a `depth`, an error removes the whole item at that depth: with 2, an error at ``rules.a.where`` removes
        ``rules.a``. The first value is None if the file as a whole is wrong, or a removed item is required.
        """
        adapter = _adapter(model)
        result: list[tuple[KeyPath, RanklakeError]] = []
        while True:
            value, errors = self._validate(adapter)
            is_whole_file = any(not at for at, _ in errors)
            result += errors if not is_whole_file or not result else []
            if not errors or is_whole_file:
                return value, [error for _, error in sorted(result, key=lambda pair: self._line_of(pair[1]))]
            # From the end, so that indices of earlier list items stay valid.
            for at in sorted({at[:depth] for at, _ in errors}, key=_order, reverse=True):
                _remove_item(self.content, at)

    def error(self, at: KeyPath, what: str, hint: str = "") -> RanklakeError:
        """Return an error about the item at a path, with its line."""
        return self._error(what, where=f"{self.path}:{self.line(at)}", hint=hint)

    def fail(self, at: KeyPath, what: str, hint: str = "") -> NoReturn:
        """Raise an error about the item at a path, with its line, and the collected errors."""
        error = self.error(at, what, hint)
        self._errors.append(error)
        self.raise_errors()
        raise error

    def add(self, at: KeyPath, what: str, hint: str = "") -> None:
        """Collect an error about the item at a path, with its line, for `raise_errors`."""
        self._errors.append(self.error(at, what, hint))

    def raise_errors(self) -> None:
        """Raise the collected errors, in the order of lines; do nothing if there are none."""
        raise_all(self.pop_errors())

    def pop_errors(self) -> list[RanklakeError]:
        """Return the collected errors, in the order of lines, and clear them."""
        errors, self._errors = sorted(self._errors, key=self._line_of), []
        return errors

    def line(self, at: KeyPath) -> int:
        """Return the line, from 1, of the item at a path, or of its nearest existing parent."""
        if not self.is_toml:
            return yaml_line(self.text, at)
        lines = self._toml_lines
        return next((lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in lines), 1)

    @cached_property
    def _toml_lines(self) -> dict[KeyPath, int]:
        return toml_lines(self.text)

    def _line_of(self, error: RanklakeError) -> int:
        return int(error.where.rpartition(":")[2])

    def _validate(self, adapter: "TypeAdapter[Any]") -> tuple[Any, list[tuple[KeyPath, RanklakeError]]]:
        """Return the value, or the errors, each with the path of its item, in the order of lines."""
        from pydantic import ValidationError

        try:
            # JSON has neither tuples nor dates, so that strict mode still accepts a list for a tuple.
            return adapter.validate_json(f"[{self._json()}]")[0], []
        except ValidationError as error:
            result: dict[KeyPath, list[tuple[str, str]]] = {}
            for fault in _drop_short_lists(error.errors(include_url=False)):
                at, message, hint = self._describe_fault(adapter, fault)
                result.setdefault(at, []).append((message, hint))
        errors = [
            (at, self.error(at, *fault)) for at, faults in result.items() for fault in _merge_union_faults(faults)
        ]
        return None, sorted(errors, key=lambda pair: self._line_of(pair[1]))

    def _json(self) -> str:
        text, size = [], 0
        try:
            for part in json.JSONEncoder(default=str).iterencode(self.content):
                text.append(part)
                size += len(part)
                if size > _MAX_JSON:
                    break
            else:
                return "".join(text)
        except (TypeError, ValueError, RecursionError):
            raise self.error((), "holds itself, or keys that are no text", "write it without aliases") from None
        raise self.error((), f"has more than {_MAX_JSON:,} characters without aliases", "use fewer of them")

    def _describe_fault(self, adapter: "TypeAdapter[Any]", fault: Mapping[str, Any]) -> tuple[KeyPath, str, str]:
        """Return path, message and hint for a fault that pydantic found."""
        value, context, at = fault["input"], fault.get("ctx", {}), self._existing(fault["loc"][1:])
        place, hint = path_text(at) or "the file", ""
        match fault["type"]:
            case "unexpected_keyword_argument" | "extra_forbidden":
                message = f"unknown key {at[-1]!r} in {self._section(at[:-1])}"
                hint = did_you_mean(str(at[-1]), _keys(adapter, at[:-1]))
            case "missing" | "missing_argument":
                message = f"{place} lacks the key {fault['loc'][-1]!r}"
                hint = f"add {fault['loc'][-1]}{' = ' if self.is_toml else ': '}…"
            case "literal_error" | "enum":
                message = f"{place} cannot be {value!r}"
                hint = did_you_mean(str(value), [word.strip("'") for word in re.split(", | or ", context["expected"])])
            case "value_error":
                at, message = self._model_error(at, str(context["error"]))
            case kind if kind in _KINDS:
                is_day = isinstance(value, str) and kind.startswith("date_")
                name = repr(value[:_MAX_SHOWN]) if is_day else type_text(value)
                message = f"{place} must be {_KINDS[kind]}, not {name}"
            case kind if kind in _BOUNDS:
                message = f"{place} must be {_BOUNDS[kind].format(**context)}"
            case "too_short" | "string_too_short":
                least = context["min_length"]
                message = f"{place} must not be empty" if least == 1 else f"{place} must have at least {least} items"
            case "string_pattern_mismatch":
                message = f"{place} {value!r} does not match {context['pattern']}"
            case _:
                message = f"{place}: {fault['msg']}"
        return at, message, hint

    def _section(self, at: KeyPath) -> str:
        """Return the heading of a mapping in the file: ``[a.b]`` in TOML, else its path."""
        if self.is_toml and at:
            return f"[{'.'.join(step for step in at if isinstance(step, str))}]"
        return path_text(at) or "the file"

    def _model_error(self, at: KeyPath, text: str) -> tuple[KeyPath, str]:
        """Return path and message of a model's `ValueError`: a key's path if the message begins with its name."""
        inner, place, word = self._item(at), path_text(at), re.match(r"\w+", text)
        if word and isinstance(inner, dict) and word[0] in inner:
            return (*at, word[0]), f"{place}.{text}".removeprefix(".")
        return at, f"{place}: {text}".removeprefix(": ")

    def _existing(self, path: Sequence[str | int]) -> KeyPath:
        """Drop steps of a path that the file lacks: missing keys, and pydantic's names of a union's members."""
        at: KeyPath = ()
        for step in path:
            inner = self._item(at)
            is_index = isinstance(inner, list) and isinstance(step, int) and step < len(inner)
            if is_index or (isinstance(inner, dict) and step in inner):
                at = (*at, step)
        return at

    def _item(self, at: KeyPath) -> Any:  # noqa: ANN401 - any value of a file
        result = self.content
        for step in at:
            result = result[step]
        return result


def path_text(at: KeyPath) -> str:
    """Return the path of an item as text.

    >>> path_text(("columns", 2, "name"))
    'columns[2].name'
    """
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in at).removeprefix(".")


def type_text(value: object) -> str:
    """Return the name of a value's type in a file, such as ``a whole number``."""
    return _NAMES.get(type(value), type(value).__name__)


def _new_adapter(model: Any) -> "TypeAdapter[Any]":  # noqa: ANN401 - any type
    """Return pydantic's validator of a one-element list of `model`; a dataclass by itself takes no configuration."""
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(tuple[model], config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))


_adapter: "Callable[[Any], TypeAdapter[Any]]" = cache(_new_adapter)
"""Cached, since a folder of files has one model, and making its validator takes as long as reading ten files."""


def _drop_short_lists(faults: Sequence[Any]) -> Iterator[Any]:
    """Yield faults, except for lists that are too short only because pydantic does not count the items it refused."""
    for fault in faults:
        at = fault["loc"]
        has_inner = any(other["loc"][: len(at)] == at for other in faults if other is not fault)
        if fault["type"] != "too_short" or not has_inner:
            yield fault


def _merge_union_faults(faults: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Merge the faults of a union's members into one, such as ``must be text or a list, not a number``.

    If the value has the type of one member, only that member's fault is kept.
    """
    kinds = [what.partition(" must be ")[2].partition(", not ")[0] if ", not " in what else "" for what, _ in faults]
    if len(faults) > 1 and all(kinds):
        message = faults[0][0]
        yield message.replace(f"must be {kinds[0]}", f"must be {' or '.join(dict.fromkeys(kinds))}"), ""
    else:
        of_values = [fault for fault, kind in zip(faults, kinds, strict=True) if not kind]
        yield from dict.fromkeys(of_values or faults)


def _order(at: KeyPath) -> tuple[tuple[bool, int, str], ...]:
    return tuple((isinstance(step, int), step if isinstance(step, int) else 0, str(step)) for step in at)


def _remove_item(content: Any, at: KeyPath) -> None:  # noqa: ANN401 - any value of a file
    for step in at[:-1]:
        content = content[step]
    del content[at[-1]]


def _keys(adapter: "TypeAdapter[Any]", at: KeyPath) -> list[str]:
    """Return the keys that a model accepts at a path, from its JSON schema."""
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's

        def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:  # noqa: ANN401
            del schema, error_info
            return {}

    whole = adapter.json_schema(schema_generator=Generator)
    nodes = [whole]
    for step in (0, *at):
        nodes = [inner for node in nodes for inner in _child_nodes(_variants(node, whole), step)]
    return [key for node in nodes for variant in _variants(node, whole) for key in variant.get("properties", ())]


def _variants(node: Any, whole: Mapping[str, Any]) -> list[dict[str, Any]]:  # noqa: ANN401 - of JSON Schema
    """Resolve a node of a JSON schema: follow references, and list alternatives."""
    if not isinstance(node, dict):
        return []
    if "$ref" in node:
        return _variants(whole["$defs"][node["$ref"].rpartition("/")[2]], whole)
    inner = [*node.get("anyOf", ()), *node.get("oneOf", ())]
    return [variant for node in inner for variant in _variants(node, whole)] or [node]


def _child_nodes(variants: Iterable[dict[str, Any]], step: str | int) -> Iterator[Any]:
    for node in variants:
        if isinstance(step, int):
            yield [*node.get("prefixItems", ()), *[node.get("items")] * (step + 1)][step]
        else:
            by_pattern = [*node.get("patternProperties", {}).values(), None]  # a mapping whose keys have a pattern
            yield node.get("properties", {}).get(step) or node.get("additionalProperties") or by_pattern[0]
