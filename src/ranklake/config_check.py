"""All that is wrong with a configuration, as far as it can be told without a lake: what it says, and what it means.

Files that it names must be there, references must give something (which is not told), and keys must make sense
together.
"""

import difflib
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from ranklake.capture.common.settings import PREFIX
from ranklake.config import Config, from_environment, variables
from ranklake.config_file import ConfigError, FileRead
from ranklake.config_shown import KEYRINGS, shown_settings
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.load import load_contracts, load_metrics
from ranklake.lake.storage.objects import delta_options
from ranklake.redaction.redact import has_credential
from ranklake.segments.keys import read_keyring
from ranklake.segments.references import FORMS, SecretError, is_reference, read_reference
from ranklake.segments.storage_options import OPTION_NAMES, StorageOptionError

OTHER_VARIABLES: Final = frozenset(
    {
        *("RANKLAKE_CONFIG", "RANKLAKE_NATIVE", "RANKLAKE_UP", "RANKLAKE_PSEUDONYM_KEY"),
        *("RANKLAKE_RUN", "RANKLAKE_ATTEMPT", "RANKLAKE_PARENT_RUN", "RANKLAKE_SUBMITTED_TS", "RANKLAKE_TEAM"),
        *("RANKLAKE_CLUSTER", "RANKLAKE_POOL", "RANKLAKE_CONTAINER_IMAGE", "RANKLAKE_CONTAINER_IMAGE_DIGEST"),
        "RANKLAKE_POWER_USAGE_EFFECTIVENESS",
    }
)
"""Variables that override no key."""
_FILES: Final = {
    "retention.policies": "policy file",
    "sql.roles": "role file",
    "cost.prices": "price table",
    "dask.tls_ca_file": "PEM file",
    "dask.tls_client_cert": "PEM file",
    "dask.tls_client_key": "PEM file",
}
_NEAR: Final = 0.75
_STORES: Final = ("s3://", "s3a://", "gs://", "gcs://", "az://", "abfs://", "abfss://", "adl://")

Where = Callable[[str], str]
"""Where a key is said: a line of the file, or a variable."""


def problems(
    config: Config, read: FileRead, environment: Mapping[str, str], given: Mapping[str, object] | None = None
) -> Iterator[ConfigError]:
    """Yield all that is wrong: first with what stands there, then with what it means. Runs helpers of references."""
    origins = {one.key: one.origin for one in shown_settings(config, read, environment, given or {})}

    def where(place: str) -> str:
        kind, _, rest = origins.get(place, "").partition(" ")
        return f"${rest}" if kind == "environment" else rest or read.file

    yield from read.problems
    for look in (
        _variables(environment),
        _files(config, where),
        _overlay(config, where),
        _references(config, where),
    ):
        yield from look
    yield from _places(config, where)
    yield from _together(config, where)


def _variables(environment: Mapping[str, str]) -> Iterator[ConfigError]:
    """Yield variables that are misspelt, and those of capture that say nothing usable."""
    named = variables()
    known, usable = {*named.values(), *OTHER_VARIABLES}, from_environment(environment)
    for name in sorted(one for one in environment if one.startswith("RANKLAKE_") and one not in known):
        ours = [one for one in known if one.startswith(PREFIX)] if name.startswith(PREFIX) else known
        short = {one.removeprefix("RANKLAKE_"): one for one in ours}
        near = difflib.get_close_matches(name.removeprefix("RANKLAKE_"), short, n=1, cutoff=_NEAR)
        if near or name.startswith(PREFIX):
            mend = f"did you mean {short[near[0]]}?" if near else "unset it"
            yield ConfigError("the variable is not known, and says nothing", where=f"${name}", mend=mend)
    for place, name in named.items():
        if environment.get(name) and place not in usable:
            yield ConfigError(f"is no value for {place}", where=f"${name}", mend="see docs/settings.md; unset it")


def _files(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield files and folders that are named and cannot be read."""
    for place, noun in _FILES.items():
        section, _, key = place.partition(".")
        path = getattr(getattr(config, section), key)
        if path and not Path(path).is_file():
            yield ConfigError(f"{place}: there is no {noun} {path}", where=where(place), mend="fix the path")
        elif path and not os.access(path, os.R_OK):
            yield ConfigError(f"{place}: {path} cannot be read", where=where(place), mend="give this user the right to")


def _overlay(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield what is wrong with the operator's contracts; their queries are tried where DataFusion is installed."""
    overlay, place = config.overlay, "contracts.overlay"
    if overlay is None:
        return
    if not overlay.is_dir():
        yield ConfigError(f"{place}: there is no folder {overlay}", where=where(place), mend="fix the path")
        return
    try:
        contracts = load_contracts(overlay)
        load_metrics(overlay)
    except ContractError as error:
        yield ConfigError(error.what, where=error.where, mend=error.mend)
        return
    if importlib.util.find_spec("datafusion") is not None:
        own = importlib.import_module("ranklake.lake.rollups.own")  # half a second, for those who have queries
        for fault in own.faults(contracts):
            yield ConfigError(fault.what, where=fault.where, mend=fault.mend)


def _references(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield references that give nothing, and keys that stand there in place of one."""
    keyrings = [(place, where(place), _value(config, place)) for place in KEYRINGS]
    keyrings += [
        (f"spool.prefixes[{number}].keys", where("spool.prefixes"), one.keys)
        for number, one in enumerate(config.spool.prefixes)
    ]
    for place, at, source in keyrings:
        if source and not is_reference(source):
            yield ConfigError(f"{place} is no reference, and no key may stand there", where=at, mend=f"write {FORMS}")
        elif source:
            yield from _tried(place, at, partial(read_keyring, source))
    for name, text in config.storage.items():
        place = f"storage.{name}"
        if is_reference(text):
            yield from _tried(place, where(place), partial(read_reference, text, f"value of {name}"))
    if config.capture.encryption_key and importlib.util.find_spec("cryptography") is None:
        mend = "pip install 'ranklake[encryption]'"
        yield ConfigError("encryption needs cryptography", where=where("capture.encryption_key"), mend=mend)


def _tried(place: str, at: str, read: Callable[[], object]) -> Iterator[ConfigError]:
    try:
        read()
    except RanklakeError as error:
        what = f"{place}: {error.where}: {error.what}" if error.where else f"{place}: {error.what}"
        yield ConfigError(what, where=at, mend=error.mend or f"write {FORMS}")


def _places(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield what is wrong with lake, spool and the options of their stores."""
    uris = {place: _value(config, place) for place in ("lake.uri", "spool.uri")}
    for place, uri in uris.items():
        if has_credential(uri):
            mend = "take it out, and name it under [storage] by a reference"
            yield ConfigError(f"{place}: a credential stands in the URI", where=where(place), mend=mend)
        if uri.startswith(_STORES):
            plain = {name: text for name, text in config.storage.items() if not is_reference(text)}
            try:
                delta_options(uri, plain)
            except StorageOptionError as error:
                yield ConfigError(error.what, where=where(place), mend=error.mend)
    lake, spool = (f"{uri.rstrip('/')}/" for uri in uris.values())
    if all(uris.values()) and (lake.startswith(spool) or spool.startswith(lake)):
        mend = "give each a folder or prefix of its own"
        yield ConfigError("the lake and the spool lie in one another", where=where("spool.uri"), mend=mend)
    for name in config.storage:
        near = [] if name in OPTION_NAMES else difflib.get_close_matches(name, OPTION_NAMES, n=1, cutoff=0.85)
        if near:
            what = f"storage.{name} is not what both clients of a store take"
            yield ConfigError(what, where=where(f"storage.{name}"), mend=did_you_mean(name, OPTION_NAMES))


def _together(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield keys that make no sense together."""
    dask, plans = config.dask, config.plans
    found = {
        ("plans.require_signed_plans", "name the keys by [plans] key"): plans.require_signed_plans and not plans.key,
        ("dask.tls_ca_file", "name the scheduler by [dask] address"): dask.tls and not dask.address,
        ("dask.address", "write tls:// there"): dask.tls and dask.address and not dask.address.startswith("tls://"),
        ("dask.tls_client_cert", "give both tls_client_cert and tls_client_key"): bool(dask.tls_client_cert)
        is not bool(dask.tls_client_key),
        ("dask.workers", "leave one of the two out: workers is for a local cluster"): dask.workers and dask.address,
    }
    says = {
        "plans.require_signed_plans": "every plan would be refused: there is no key to seal plans with",
        "dask.tls_ca_file": "TLS files without a scheduler to use them with",
        "dask.address": "TLS files, and an address that is not reached by TLS",
        "dask.tls_client_cert": "a client's certificate and its key belong together",
        "dask.workers": "workers of a local cluster, and the address of another one",
    }
    for (place, mend), is_wrong in found.items():
        if is_wrong:
            yield ConfigError(f"{place}: {says[place]}", where=where(place), mend=mend)
    try:
        config.spool.writers.rules()
    except SecretError:
        return
    except RanklakeError as error:
        yield ConfigError(error.what, where=where("spool.prefixes"), mend=error.mend)


def _value(config: Config, place: str) -> str:
    section, _, key = place.partition(".")
    return str(getattr(getattr(config, section), key))
