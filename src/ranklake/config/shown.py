"""The configuration for display: each key's value and origin, without secrets."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from ranklake.config.settings import STORAGE, Config, ConfigFile, from_environment, variables
from ranklake.redaction.redact import REDACTED, redact_names
from ranklake.redaction.secret_names import secret_level
from ranklake.segments.references import display_text, is_reference

KEYRINGS: Final = (
    *("plans.key", "capture.encryption_key", "capture.signing_key", "capture.fingerprint_key", "capture.masking_key"),
    *("masking.key", "shares.key", "subjects.wrap", "backup.key"),
)
"""Keys that refer to a keyring; ``keys`` of each ``[[spool.prefixes]]`` does, too."""


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A key.

    Attributes
    ----------
    key
        ``section.key``.
    value
        Plain JSON; a literal secret is hidden, a reference is shown without arguments.
    origin
        ``flag``, ``environment NAME``, ``file PATH:LINE`` or ``default``.
    """

    key: str
    value: Any
    origin: str


def shown_settings(
    config: Config, read: ConfigFile, environment: Mapping[str, str], given: Mapping[str, object]
) -> Iterator[ShownSetting]:
    """Yield all keys in the order of their sections.

    Parameters
    ----------
    config
        The resulting configuration.
    """
    named, from_variables = variables(), from_environment(environment)
    for place, value in values(config):
        if given.get(place):
            origin = "flag"
        elif place in from_variables:
            origin = f"environment {named[place]}"
        elif place in read.lines:
            origin = f"file {read.file}:{read.lines[place]}"
        else:
            origin = "default"
        yield ShownSetting(place, _visible(place, value), origin)


def values(config: Config) -> Iterator[tuple[str, Any]]:
    """Yield the value of each key by ``section.key``, with secrets."""
    for section in fields(config):
        body = getattr(config, section.name)
        if is_dataclass(body):
            yield from ((f"{section.name}.{item.name}", getattr(body, item.name)) for item in fields(body))
        elif section.name == STORAGE:
            yield from ((f"{STORAGE}.{name}", text) for name, text in body.items())


def _visible(place: str, value: object) -> object:
    """Return a value without secrets."""
    if isinstance(value, str):
        if is_reference(value) and (place in KEYRINGS or place.startswith((f"{STORAGE}.", "spool.prefixes"))):
            return display_text(value)
        secret = (
            place in KEYRINGS
            or place.endswith(".keys")
            or (place.startswith(f"{STORAGE}.") and secret_level(place) > 0)
        )
        return REDACTED if secret and value else redact_names(value)
    if isinstance(value, dict):
        return {name: _visible(f"{STORAGE}.{name}", text) for name, text in value.items()}
    if is_dataclass(value):
        return {item.name: _visible(f"{place}.{item.name}", getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, tuple):
        return [_visible(place, item) for item in value]
    return value
