"""Checks a configuration without a lake: its syntax, and its meaning.

Files that it names must exist, references must resolve (values are not shown), and keys must fit each other.
"""

import difflib
import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Final

from ranklake.capture.common.settings import PLACE_VARIABLES, PREFIX
from ranklake.capture.lifecycle.preemption import signals_named
from ranklake.config.settings import Config, ConfigError, ConfigFile, from_environment, variables
from ranklake.config.shown import KEYRINGS, shown_settings
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.capture_masks import load_capture_masks
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.load import load_contracts, load_metrics
from ranklake.lake.contracts.overlay import Overlay
from ranklake.lake.store.lake_config import DetectorsSection
from ranklake.lake.store.store import delta_options
from ranklake.masking.masks import MaskError
from ranklake.redaction.redact import has_credential
from ranklake.redaction.secret_names import secret_level
from ranklake.segments.keys import read_keyring
from ranklake.segments.references import FORMS, KINDS, SecretError, is_reference, read_reference
from ranklake.segments.storage_options import CLIENT_NAMES, OPTION_NAMES, STORES, StorageOptionError, uri_fault

Where = Callable[[str], str]
"""Function from a key to the place where it is set: a line of the file, or a variable."""
_NOUNS: Final = {
    "lake.uri": "the lake",
    "spool.uri": "the spool",
    "spool.fallback_uri": "the fallback spool",
    "report.out": "the report",
    "shares.to": "shares",
}
_OPTION_NEAR: Final = 0.85
_KIND_NEAR: Final = 0.6


def place_faults(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield faults of single places, then of pairs of places, then of the options of their stores."""
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
    """Yield places that lie in one another: files of one would be mistaken for files of the other."""
    for first, second in combinations([name for name, folder in folders.items() if folder], 2):
        if folders[first].startswith(folders[second]) or folders[second].startswith(folders[first]):
            names = " and ".join(_NOUNS[name] for name in (first, second))
            hint = "give each a folder or prefix of its own"
            yield ConfigError(f"{names} lie in one another", where=where(second), hint=hint)


def _unusable(place: str, uri: str, where: Where) -> Iterator[ConfigError]:
    """Yield faults of a URI or folder, such as likely typing errors."""
    message, hint = uri_fault(uri)
    if message:
        yield ConfigError(f"{place}: {message}", where=where(place), hint=hint)


def _folder(uri: str) -> str:
    """Return a normalized place that is a prefix of all places in it; empty for none."""
    local = uri.removeprefix("file://") if uri.startswith("file://") else uri.removeprefix("file:")
    plain = uri if "://" in local or not uri else os.path.abspath(local)  # noqa: PTH100 - takes `..` out, links stay
    return f"{plain.rstrip('/')}/" if plain else ""


def _options(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield options that clients of stores would ignore, and malformed references."""
    named = [(f"storage.{name}", name, text) for name, text in config.storage.items()]
    named += [(f"spool.fallback_storage.{name}", name, text) for name, text in config.spool.fallback_storage.items()]
    for place, name, text in named:
        meant = CLIENT_NAMES.get(name, "")
        near = difflib.get_close_matches(name.lower(), OPTION_NAMES, n=1, cutoff=_OPTION_NEAR)
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


OTHER_VARIABLES: Final = frozenset(
    {
        *("RANKLAKE_CONFIG", "RANKLAKE_NATIVE", "RANKLAKE_UP", "RANKLAKE_PSEUDONYM_KEY"),
        *("RANKLAKE_RUN", "RANKLAKE_ATTEMPT", "RANKLAKE_PARENT_RUN", "RANKLAKE_SUBMITTED_TS", "RANKLAKE_TEAM"),
        *(*PLACE_VARIABLES, "RANKLAKE_POOL", "RANKLAKE_CONTAINER_IMAGE", "RANKLAKE_CONTAINER_IMAGE_DIGEST"),
        "RANKLAKE_POWER_USAGE_EFFECTIVENESS",
    }
)
"""Variables that do not override a key."""
_FILES: Final = {
    "retention.policies": "policy file or folder",
    "slo.files": "folder of objectives",
    "approvals.allowed_signers": "allowed-signers file",
    "sql.roles": "role file",
    "masking.policy": "masking policy",
    "cost.prices": "price table",
    "topology.file": "topology file",
    "dask.tls_ca_file": "PEM file",
    "dask.tls_client_cert": "PEM file",
    "dask.tls_client_key": "PEM file",
}
_FILES_OR_FOLDERS: Final = frozenset({"retention.policies", "slo.files"})
_NEAR: Final = 0.75
_SCHEDULERS: Final = ("tcp", "tls", "ucx", "ucxx", "ws", "wss")
_MEMORY: Final = re.compile(r"\s*(?:auto|[\d.]*\d\s*(?:[kMGTP]i?)?B?)\s*", re.IGNORECASE)
_MAY_BE_0: Final = frozenset({"future_hours"})


def problems(
    config: Config, read: ConfigFile, environment: Mapping[str, str], given: Mapping[str, object] | None = None
) -> Iterator[RanklakeError]:
    """Yield all faults: of syntax first, then of meaning. Runs helpers of references."""
    origins = {setting.key: setting.origin for setting in shown_settings(config, read, environment, given or {})}

    def where(place: str) -> str:
        kind, _, rest = origins.get(place, "").partition(" ")
        return f"${rest}" if kind == "environment" else rest or read.file

    yield from read.problems
    for check in (
        _variables(environment),
        _files(config, where),
        _overlay(config, where),
        _masking(config, where),
        _roles(config, where),
        _detectors(config, where),
        _read_in(config.cost.prices, "prices.read_prices"),
        _read_in(config.topology.file, "topology.read_topology"),
        _references(config, where),
    ):
        yield from check
    yield from place_faults(config, where)
    yield from _values(config, where)
    yield from _contradictions(config, where)


def _variables(environment: Mapping[str, str]) -> Iterator[ConfigError]:
    """Yield misspelt variables, and variables of capture with unusable values."""
    named = variables()
    known, usable = {*named.values(), *OTHER_VARIABLES}, from_environment(environment)
    for name in sorted(
        variable for variable in environment if variable.startswith("RANKLAKE_") and variable not in known
    ):
        ours = [variable for variable in known if variable.startswith(PREFIX)] if name.startswith(PREFIX) else known
        short = {variable.removeprefix("RANKLAKE_"): variable for variable in ours}
        near = difflib.get_close_matches(name.removeprefix("RANKLAKE_"), short, n=1, cutoff=_NEAR)
        if near or name.startswith(PREFIX):
            hint = f"did you mean {short[near[0]]}?" if near else "unset it"
            yield ConfigError("the variable is not known, and says nothing", where=f"${name}", hint=hint)
    for place, name in named.items():
        if environment.get(name) and place not in usable:
            yield ConfigError(f"is no value for {place}", where=f"${name}", hint="see docs/settings.md; unset it")


def _files(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield configured files and folders that cannot be read."""
    for place, noun in _FILES.items():
        section, _, key = place.partition(".")
        path = getattr(getattr(config, section), key)
        is_there = Path(path).exists() if place in _FILES_OR_FOLDERS else Path(path).is_file()
        if path and not is_there:
            yield ConfigError(f"{place}: there is no {noun} {path}", where=where(place), hint="fix the path")
        elif path and not os.access(path, os.R_OK):
            yield ConfigError(f"{place}: {path} cannot be read", where=where(place), hint="give this user the right to")


def _overlay(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield faults of the operator's contracts; their queries are parsed if DataFusion is installed."""
    overlay, place = config.overlay, "contracts.overlay"
    if overlay is None:
        return
    if not overlay.is_dir():
        yield ConfigError(f"{place}: there is no folder {overlay}", where=where(place), hint="fix the path")
        return
    try:
        contracts = load_contracts(overlay)
        load_metrics(overlay)
    except ContractError as error:
        yield from _each(error)
        return
    if importlib.util.find_spec("datafusion") is not None:
        own = importlib.import_module("ranklake.lake.rollups.own")  # the import takes half a second
        for fault in own.faults(contracts):
            yield ConfigError(fault.what, where=fault.where, hint=fault.hint)
        registry = importlib.import_module("ranklake.lake.migrations.registry")
        try:
            registry.load_own(Overlay.read(overlay))
        except RanklakeError as error:
            yield from _each(error)


def _each(error: RanklakeError, prefix: str = "", where: str = "") -> Iterator[ConfigError]:
    """Yield an error and its `others` as configuration errors, placed at `where` by default."""
    for each in (error, *error.others):
        yield ConfigError(f"{prefix}{each.what}", where=each.where or where, hint=each.hint)


def _roles(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield faults of the roles; they are checked if DataFusion is installed."""
    file, overlay = Path(config.sql.roles), config.overlay
    if not file.is_file() or importlib.util.find_spec("datafusion") is None:
        return
    reader = importlib.import_module("ranklake.lake.query.role_file")
    conditions = importlib.import_module("ranklake.retention.roles.cases")
    try:
        contracts = load_contracts(overlay)
        for role in reader.load_roles(file, contracts).values():
            for condition in conditions.broken_conditions(role, contracts):
                yield ConfigError(condition.line, where=str(file), hint=condition.hint)
    except ContractError:  # a fault of the overlay, reported there
        return
    except RanklakeError as error:
        yield from _each(error, where=where("sql.roles"))


def _masking(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield faults of the masking policy, and a missing key."""
    file = config.masking_policy
    if file is None or not file.is_file():
        return
    try:
        masks = load_capture_masks(file, load_contracts(config.overlay))
    except ContractError:  # reported for the overlay
        return
    except MaskError as error:
        yield from _each(error, "masking.policy: ")
        return
    if masks.hashed and not config.masking_key:
        message = f"masking.policy: {masks.hashed} is to be hashed, and there is no key"
        yield ConfigError(message, where=where("masking.policy"), hint="name a keyring by key under [masking]")


def _detectors(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield unknown detectors and thresholds, if rollups are installed."""
    if config.detectors == DetectorsSection() or importlib.util.find_spec("datafusion") is None:
        return
    registry = importlib.import_module("ranklake.lake.rollups.registry")
    for key, error in registry.setting_faults(config.lake_config):
        yield ConfigError(f"detectors.{key}: {error.what}", where=where(f"detectors.{key}"), hint=error.hint)


def _read_in(file: str, reader: str) -> Iterator[ConfigError]:
    """Yield faults of a file that rollups read, by the function that reads it."""
    if file and Path(file).is_file():
        module, _, name = reader.partition(".")
        try:
            getattr(importlib.import_module(f"ranklake.lake.rollups.{module}"), name)(file)
        except RanklakeError as error:
            yield from _each(error)


def _references(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield references that do not resolve, and secrets written in place of a reference."""
    keyrings = [(place, where(place), _value(config, place)) for place in KEYRINGS]
    keyrings += [
        (f"spool.prefixes[{number}].keys", where("spool.prefixes"), prefix.keys)
        for number, prefix in enumerate(config.spool.prefixes)
    ]
    for place, key_place, source in keyrings:
        if source and not is_reference(source):
            yield ConfigError(
                f"{place} is no reference, and no key may stand there", where=key_place, hint=f"write {FORMS}"
            )
        elif source:
            yield from _read_checked(place, key_place, partial(read_keyring, source))
    for name, text in config.storage.items():
        place = f"storage.{name}"
        if is_reference(text):
            yield from _read_checked(place, where(place), partial(read_reference, text, f"value of {name}"))
        elif text and secret_level(name):
            hint = f"write {FORMS} there, and change the secret, which others may have read"
            yield ConfigError(f"{place}: a secret stands there in clear", where=where(place), hint=hint)
    for place, source in (("capture.encryption_key", config.capture.encryption_key), ("backup.key", config.backup.key)):
        if source and importlib.util.find_spec("cryptography") is None:
            hint = "pip install 'ranklake[encryption]'"
            yield ConfigError("encryption needs cryptography", where=where(place), hint=hint)


def _read_checked(place: str, place_text: str, read: Callable[[], object]) -> Iterator[ConfigError]:
    try:
        read()
    except RanklakeError as error:
        message = f"{place}: {error.where}: {error.what}" if error.where else f"{place}: {error.what}"
        yield ConfigError(message, where=place_text, hint=error.hint or f"write {FORMS}")


def _values(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield values of the right type that their users would refuse."""
    dask, scheme = config.dask, config.dask.address.partition("://")[0]
    if "://" in dask.address and scheme not in _SCHEDULERS:
        hint = did_you_mean(scheme, _SCHEDULERS)
        yield ConfigError(f"dask.address: no scheduler is reached by {scheme}:", where=where("dask.address"), hint=hint)
    if not _MEMORY.fullmatch(dask.memory_limit):
        hint = "write it as 2GiB, or as a share of the machine's such as 0.25"
        yield ConfigError("dask.memory_limit is no amount of memory", where=where("dask.memory_limit"), hint=hint)
    if "://" in config.spool.local:
        hint = "name a folder on the node's own disk; where segments go is [spool] uri"
        yield ConfigError("spool.local: ranks record into a folder", where=where("spool.local"), hint=hint)
    try:
        signals_named(config.capture.preemption_signals)
    except ValueError as error:
        place = "capture.preemption_signals"
        yield ConfigError(f"{place}: {error}", where=where(place), hint="write it as SIGTERM, SIGUSR1")
    for field in fields(config.ingest):
        if field.name not in _MAY_BE_0 and not getattr(config.ingest, field.name):
            place = f"ingest.{field.name}"
            yield ConfigError(f"{place}: no segment is within 0", where=where(place), hint=f"{field.default} is usual")


def _contradictions(config: Config, where: Where) -> Iterator[ConfigError]:
    """Yield keys that contradict each other."""
    dask, plans = config.dask, config.plans
    contradictions = {
        ("plans.require_signed_plans", "name the keys by [plans] key"): plans.require_signed_plans and not plans.key,
        ("dask.tls_ca_file", "name the scheduler by [dask] address"): dask.tls and not dask.address,
        ("dask.address", "write tls:// there"): dask.tls and dask.address and not dask.address.startswith("tls://"),
        ("dask.tls_client_cert", "give both tls_client_cert and tls_client_key"): bool(dask.tls_client_cert)
        is not bool(dask.tls_client_key),
        ("shares.roles", "write to under [shares]"): config.shares.roles and not config.shares.to,
        ("dask.workers", "leave one of the two out: workers is for a local cluster"): dask.workers and dask.address,
    }
    messages = {
        "plans.require_signed_plans": "every plan would be refused: there is no key to seal plans with",
        "dask.tls_ca_file": "TLS files without a scheduler to use them with",
        "dask.address": "TLS files, and an address that is not reached by TLS",
        "dask.tls_client_cert": "a client's certificate and its key belong together",
        "shares.roles": "roles are to be shared, and nobody says where",
        "dask.workers": "workers of a local cluster, and the address of another one",
    }
    for (place, hint), is_wrong in contradictions.items():
        if is_wrong:
            yield ConfigError(f"{place}: {messages[place]}", where=where(place), hint=hint)
    try:
        config.spool.writers.rules()
    except SecretError:
        return
    except RanklakeError as error:
        yield ConfigError(error.what, where=where("spool.prefixes"), hint=error.hint)


def _value(config: Config, place: str) -> str:
    section, _, key = place.partition(".")
    return str(getattr(getattr(config, section), key))
