"""OTLP values: parses requests in OTLP's JSON, their attributes and ids (opentelemetry.io/docs/specs/otlp)."""

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
PREFIX: Final = "ranklake."
"""Prefix of attributes for columns without a field in OTLP."""
LONGEST_NAME: Final = 512
LONGEST_TEXT: Final = 16_384
_MAX_JSON_CHARACTERS: Final = 65_536
_MAX_BYTES: Final = 512 << 20
_MAX_DEPTH: Final = 16
_PERSONAL: Final = re.compile(
    r"(?:end)?user\b|client\.|host\.|net\.peer|network\.peer|source\.|url\.|http\.(?:url|target|client_ip|request\.header)"
    r"|db\.(?:statement|query)|process\.(?:command|owner|executable)|session\b|k8s\.node"
    r"|gen_ai\.(?:prompt|completion|input|output|system_instructions|tool)|(?:llm|input|output|exception)\.(?!type)"
)
"""Attributes of OpenTelemetry's and OpenInference's conventions that may contain names or texts of people."""


class FlawError(ValueError):
    """An item cannot become a row. The message has the reason, without the item's content."""


class Document(NamedTuple):
    """A request of a file, with number and text of its line; `message` is None if it cannot be read."""

    number: int
    text: str
    message: Message | None


def documents(source: "Source") -> Iterator[Document]:
    """Yield the requests of a file: a request or a list of requests in each line, or one document over several lines.

    Raises `SourceError` if the file does not begin with JSON.
    """
    is_first = True
    for line in source.lines():
        if not line.text.strip() and line.flaw is None:
            continue
        try:
            parsed = json.loads(line.text)
        except (ValueError, RecursionError):
            if is_first:
                yield from _multiline_document(source)
                return
            parsed = None
        is_first = False
        yield from _requests(parsed, line.number, line.text)


def _multiline_document(source: "Source") -> Iterator[Document]:
    try:
        parsed = json.loads(source.read_all(_MAX_BYTES))
    except (ValueError, RecursionError) as error:
        hint = "have the collector's file exporter write it with format: json"
        raise SourceError("not JSON of OTLP", where=source.name, hint=hint) from error
    yield from _requests(parsed, 1, "")


def _requests(parsed: Any, number: int, text: str) -> Iterator[Document]:  # noqa: ANN401 - JSON
    for message in parsed if isinstance(parsed, list) else [parsed]:
        yield Document(number, text, message if isinstance(message, dict) else None)


def values(attributes: Any, depth: int = 0) -> Message:  # noqa: ANN401 - JSON
    """Return attributes by name. Raises `ValueError`, `TypeError`, `LookupError` or `AttributeError` if invalid."""
    return {str(item.get("key") or ""): value_of(item.get("value"), depth) for item in attributes or ()}


def value_of(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - JSON
    """Convert a value of OTLP to a Python object; bytes stay in base64. Raises as `values` does."""
    if not value or depth > _MAX_DEPTH:
        return None
    ((kind, content),) = value.items()
    if kind == "intValue":
        return int(content)
    if kind == "doubleValue":
        return float(content)
    if kind == "arrayValue":
        return [value_of(item, depth + 1) for item in content.get("values") or ()]
    if kind == "kvlistValue":
        return values(content.get("values"), depth + 1)
    return content if isinstance(content, bool | str) else str(content)


def id_of(text: Any, size: int) -> bytes:  # noqa: ANN401 - JSON
    """Decode an id of `size` bytes from hex or, in protobuf's JSON, base64; empty if it is missing or only zeros.

    Raises `ValueError` or `TypeError` for an invalid id.
    """
    if not text:
        return b""
    raw = bytes.fromhex(text) if len(text) == 2 * size else base64.b64decode(text, validate=True)
    if len(raw) != size:
        raise FlawError("an id has a wrong length")
    return raw if any(raw) else b""


def number_of(raw: bytes) -> int | None:
    """Convert an id of 8 bytes to a signed 64-bit integer; None if it is empty."""
    return int.from_bytes(raw, "big", signed=True) if raw else None


def pop_columns(attributes: Message, columns: frozenset[str]) -> Message:
    """Remove the attributes with ranklake's prefix, and return those for `columns` by column."""
    names = [name for name in attributes if name.startswith(PREFIX)]
    by_column = {name.removeprefix(PREFIX): attributes.pop(name) for name in names}
    return {name: value for name, value in by_column.items() if name in columns}


def operational(attributes: Message) -> Message:
    """Return the attributes that do not match `_PERSONAL`."""
    return {name: value for name, value in attributes.items() if not _PERSONAL.match(name)}


def redacted_json(attributes: Message) -> str | None:
    """Return attributes as JSON with credentials redacted; None without attributes."""
    text = json_text(redact(to_json(attributes))) if attributes else None
    if text is not None and len(text) > _MAX_JSON_CHARACTERS:
        return json_text({"left_out": f"{len(text)} characters"})
    return text
