"""OTLP values: requests of OTLP's JSON form, their attributes and ids (opentelemetry.io/docs/specs/otlp)."""

import base64
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ranklake.capture.common.values import json_text, to_json
from ranklake.capture.importers.source import SourceError
from ranklake.redaction.redact import redact

if TYPE_CHECKING:
    from ranklake.capture.importers.source import Source

Message = dict[str, Any]
OWN: Final = "ranklake."
"""Begins names of attributes that hold columns for which OTLP has no field."""
LONGEST_NAME: Final = 512
LONGEST_TEXT: Final = 16_384
_LONGEST_JSON: Final = 65_536
_MOST_BYTES: Final = 512 << 20
_DEEPEST: Final = 16
_PERSONAL: Final = re.compile(
    r"(?:end)?user\b|client\.|host\.|net\.peer|network\.peer|source\.|url\.|http\.(?:url|target|client_ip|request\.header)"
    r"|db\.(?:statement|query)|process\.(?:command|owner|executable)|session\b|k8s\.node"
    r"|gen_ai\.(?:prompt|completion|input|output|system_instructions|tool)|(?:llm|input|output|exception)\.(?!type)"
)
"""Attributes of OpenTelemetry's and OpenInference's conventions that may name people or hold their words."""


class FlawError(ValueError):
    """An item cannot be a row; the text says why, and nothing of it."""


class Document(NamedTuple):
    """A request of a file, its line and the line's number; ``message`` is None where it cannot be read."""

    number: int
    text: str
    message: Message | None


def documents(source: "Source") -> Iterator[Document]:
    """Yield the requests of a file: one a line, a list of them a line, or one document over several lines.

    Raises `SourceError` for what is no JSON at its beginning.
    """
    is_first = True
    for line in source.lines():
        if not line.text.strip() and line.flaw is None:
            continue
        try:
            parsed = json.loads(line.text)
        except (ValueError, RecursionError):
            if is_first:
                yield from _whole_document(source)
                return
            parsed = None
        is_first = False
        yield from _listed(parsed, line.number, line.text)


def _whole_document(source: "Source") -> Iterator[Document]:
    try:
        parsed = json.loads(source.read_all(_MOST_BYTES))
    except (ValueError, RecursionError) as error:
        hint = "have the collector's file exporter write it with format: json"
        raise SourceError("no JSON of OTLP", where=source.name, hint=hint) from error
    yield from _listed(parsed, 1, "")


def _listed(parsed: Any, number: int, text: str) -> Iterator[Document]:  # noqa: ANN401 - JSON
    for message in parsed if isinstance(parsed, list) else [parsed]:
        yield Document(number, text, message if isinstance(message, dict) else None)


def values(attributes: Any, depth: int = 0) -> Message:  # noqa: ANN401 - JSON
    """Return attributes by name. Raises `ValueError`, `TypeError`, `LookupError` or `AttributeError` for no such."""
    return {str(item.get("key") or ""): value_of(item.get("value"), depth) for item in attributes or ()}


def value_of(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - JSON
    """Return a value of OTLP's as Python has it; bytes stay in base64. Raises as `values` does."""
    if not value or depth > _DEEPEST:
        return None
    ((kind, held),) = value.items()
    if kind == "intValue":
        return int(held)
    if kind == "doubleValue":
        return float(held)
    if kind == "arrayValue":
        return [value_of(item, depth + 1) for item in held.get("values") or ()]
    if kind == "kvlistValue":
        return values(held.get("values"), depth + 1)
    return held if isinstance(held, bool | str) else str(held)


def id_of(text: Any, size: int) -> bytes:  # noqa: ANN401 - JSON
    """Return an id of so many bytes, given in hex or, as protobuf's own JSON has it, in base64; empty for none.

    An id of zeros is none. Raises `ValueError` or `TypeError` for what is no id.
    """
    if not text:
        return b""
    raw = bytes.fromhex(text) if len(text) == 2 * size else base64.b64decode(text, validate=True)
    if len(raw) != size:
        raise FlawError("an id of another length")
    return raw if any(raw) else b""


def number_of(raw: bytes) -> int | None:
    """Return a span's id as a column of 64 bits holds it; None without one."""
    return int.from_bytes(raw, "big", signed=True) if raw else None


def take_own(attributes: Message, columns: frozenset[str]) -> Message:
    """Take the columns that attributes hold under our names out of them."""
    names = [name for name in attributes if name.startswith(OWN)]
    own = {name.removeprefix(OWN): attributes.pop(name) for name in names}
    return {name: value for name, value in own.items() if name in columns}


def operational(about: Message) -> Message:
    """Return attributes without those that may tell of people, hosts or what was said, which are not operational."""
    return {name: value for name, value in about.items() if not _PERSONAL.match(name)}


def redacted_json(about: Message) -> str | None:
    """Return JSON of attributes, without what looks like a credential; None of none."""
    text = json_text(redact(to_json(about))) if about else None
    if text is not None and len(text) > _LONGEST_JSON:
        return json_text({"left_out": f"{len(text)} characters"})
    return text
