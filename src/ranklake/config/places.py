"""What is wrong with places that a configuration names: the lake, the spool, the witness, and the options of stores."""

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Final

from ranklake.config.settings import Config, ConfigError
from ranklake.lake.store.store import delta_options
from ranklake.redaction.redact import has_credential
from ranklake.redaction.secret_names import secret_level
from ranklake.segments.references import FORMS, KINDS, is_reference
from ranklake.segments.storage_options import CLIENT_NAMES, OPTION_NAMES, STORES, StorageOptionError, uri_fault

Where = Callable[[str], str]
"""Where a key is said: a line of the file, or a variable."""
_NOUNS: Final = {
    "lake.uri": "the lake",
    "spool.uri": "the spool",
    "spool.fallback_uri": "the fallback spool",
    "report.out": "the report",
    "shares.to": "shares",
}
_NEAR: Final = 0.85
_KIND_NEAR: Final = 0.6


def place_faults(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield what is wrong with places by themselves, then together, then with the options of their stores."""
    uris = {"lake.uri": config.lake.uri, "spool.uri": config.spool.uri, "audit.witness": config.audit.witness}
    second = config.spool.fallback_uri
    more = {"spool.fallback_uri": second, "report.out": config.report.out, "shares.to": config.shares.to}
    for place, uri in (uris | more).items():
        yield from _unusable(place, uri, where)
        if has_credential(uri):
            hint = "take it out, and name it under [storage] by a reference"
            yield ConfigError(f"{place}: a credential stands in the URI", where=where(place), hint=hint)
    for uri in config.backup.to:
        yield from _unusable("backup.to", uri, where)
    stores = [(place, uris[place], config.storage) for place in ("lake.uri", "spool.uri")]
    stores += [("spool.fallback_uri", second, config.storage | config.spool.fallback_storage)]
    for place, uri, storage in stores:
        if uri.partition("://")[0] in STORES:
            plain = {name: text for name, text in storage.items() if not is_reference(text)}
            try:
                delta_options(uri, plain)
            except StorageOptionError as error:
                yield ConfigError(error.what, where=where(place), hint=error.hint)
    lake, spool, witness = (_folder(uri) for uri in uris.values())
    folders = {"lake.uri": lake, "spool.uri": spool, "report.out": _folder(config.report.out)}
    folders["spool.fallback_uri"] = _folder(second)
    yield from _overlapping(folders | {"shares.to": _folder(config.shares.to)}, where)
    if lake and witness.startswith(lake):
        hint = "name a place that writers of the lake cannot write to"
        message = "audit.witness: lies in the lake, and vouches for nothing there"
        yield ConfigError(message, where=where("audit.witness"), hint=hint)
    yield from _options(config, where)


def _overlapping(folders: Mapping[str, str], where: Where) -> Iterator[ConfigError]:
    """Yield which of these places lie in one another: what one holds would be taken for what belongs to the other."""
    for first, second in combinations([name for name, folder in folders.items() if folder], 2):
        if folders[first].startswith(folders[second]) or folders[second].startswith(folders[first]):
            names = " and ".join(_NOUNS[name] for name in (first, second))
            hint = "give each a folder or prefix of its own"
            yield ConfigError(f"{names} lie in one another", where=where(second), hint=hint)


def _unusable(place: str, uri: str, where: Where) -> Iterator[ConfigError]:
    """Yield why a URI or folder is not one that anybody meant."""
    message, hint = uri_fault(uri)
    if message:
        yield ConfigError(f"{place}: {message}", where=where(place), hint=hint)


def _folder(uri: str) -> str:
    """Return a place so that those in it begin with it; empty for none."""
    local = uri.removeprefix("file://") if uri.startswith("file://") else uri.removeprefix("file:")
    plain = uri if "://" in local or not uri else os.path.abspath(local)  # noqa: PTH100 - takes `..` out, links stay
    return f"{plain.rstrip('/')}/" if plain else ""


def _options(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield options that a client of a store would pass over, and references that are none."""
    named = [(f"storage.{name}", name, text) for name, text in config.storage.items()]
    named += [(f"spool.fallback_storage.{name}", name, text) for name, text in config.spool.fallback_storage.items()]
    for place, name, text in named:
        meant = CLIENT_NAMES.get(name, "")
        near = difflib.get_close_matches(name.lower(), OPTION_NAMES, n=1, cutoff=_NEAR)
        if name not in OPTION_NAMES and (meant or near):
            hint = f"did you mean {meant or near[0]!r}?"
            yield ConfigError(f"{place} is not what both clients of a store take", where=where(place), hint=hint)
        kind, colon, rest = text.strip().partition(":")
        if secret_level(name) and colon and rest and kind not in KINDS:
            if difflib.get_close_matches(kind.lower(), KINDS, n=1, cutoff=_KIND_NEAR):
                yield ConfigError(
                    f"{place} looks like a reference, and is none", where=where(place), hint=f"write {FORMS}"
                )
        elif name.endswith(("endpoint_url", "endpoint", "base_url")) and "://" not in text and not is_reference(text):
            hint = "write it as https://host, or http://host:port"
            yield ConfigError(f"{place} is not an address", where=where(place), hint=hint)
