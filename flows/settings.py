"""Settings of a flow run. Prefect stores them in clear and shows them to all users, so no setting is a secret.

Settings have the locations of lake and spool and the path of a configuration file. The task that does the work reads
the file on its own machine, and makes its `ranklake.context.Context` from both.

Options of object stores are a reference, as `ranklake.segments.references` reads it, to a JSON object of options or to
a ``ranklake.toml`` with a section [storage].
"""

import json
import tomllib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ranklake.config import Config, load_config
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.redaction.redact import has_credential
from ranklake.segments.references import KINDS, SecretError, is_reference, read_reference

REFERENCE_HINT = "name a ranklake.toml or a JSON object of options by file:/path, env:NAME or command:/path/to/helper"


class StorageReferenceError(RanklakeError):
    """A reference to storage options that cannot be read. The message contains nothing of the value."""


def storage_options(reference: str) -> dict[str, str]:
    """Return the options that a reference refers to; empty for an empty reference. Raises `StorageReferenceError`."""
    if not reference:
        return {}
    if not is_reference(reference):
        raise StorageReferenceError("the reference to storage options is not valid", hint=REFERENCE_HINT)
    try:
        text, where = read_reference(reference, "storage options", "command for storage options")
    except SecretError as error:
        raise StorageReferenceError(error.what, where=error.where, hint=REFERENCE_HINT) from None
    try:
        result = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text).get("storage", {})
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, dict):
        raise StorageReferenceError("no storage options can be read", where=where, hint=REFERENCE_HINT)
    return {str(name): str(value) for name, value in result.items()}


_BARE_URI: Final = r"^(?!\s*[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*:[^/?#]*@)"
_REFERENCE: Final = rf"^$|^({'|'.join(KINDS)}):"


def _parameter(description: str, pattern: str = "") -> str:
    """Return the field of a text parameter, empty by default, with its description in Prefect's UI.

    The server validates the value by the pattern before it stores the run. `FlowSettings` refuses more, but only after
    the server stored the value.
    """
    schema = {"json_schema_extra": {"pattern": pattern}} if pattern else {}
    result: str = field(default="", metadata={"description": description, **schema})
    return result


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """Lake, spool and configuration of a flow run. Empty values and 0 mean the configured value.

    Raises `StorageReferenceError` for options in place of a reference, and for a URI with credentials.

    Attributes
    ----------
    lake, spool
        URIs.
    storage
        Reference to the options of the object store, as above; replaces the file's section.
    dask_address, dask_workers
        Address of a Dask cluster, or the number of local worker processes.
    config
        Path of the ``ranklake.toml`` that the run reads, together with its environment; if empty, it reads neither.
    """

    lake: str = _parameter("URI or folder of the lake; empty: as configured where the flow runs", _BARE_URI)
    spool: str = _parameter("URI or folder of the spool; empty: as configured where the flow runs", _BARE_URI)
    storage: str = _parameter(
        "Where options of the object store are: file:/path/to/ranklake.toml (its section [storage]) or env:NAME; never "
        "the options themselves",
        _REFERENCE,
    )
    dask_address: str = _parameter(
        "Dask scheduler, such as tls://host:8786; empty: as configured, or a local cluster", _BARE_URI
    )
    dask_workers: int = field(
        default=0, metadata={"description": "Processes of a local cluster; 0: as configured", "ge": 0}
    )
    config: str = _parameter(
        "Path of the ranklake.toml to read where the flow runs; empty: neither it nor variables count"
    )

    def __post_init__(self) -> None:
        if not isinstance(self.storage, str):
            raise StorageReferenceError(
                "storage is not a reference, and options have credentials in them", hint=REFERENCE_HINT
            )
        for name in ("lake", "spool", "dask_address"):
            if has_credential(getattr(self, name)):
                hint = "give credentials by storage, or by the environment of whoever runs the flow"
                raise StorageReferenceError("a credential stands in a URI", where=name, hint=hint)

    def context(self) -> Context:
        """Return the context of the pipeline that this step belongs to, or one made from these settings."""
        current = PIPELINE_CONTEXT.get()
        if current is not None and current[0] == self:
            return current[1]
        configured = load_config(Path(self.config)) if self.config else Config()
        if self.storage:
            configured = replace(configured, storage=storage_options(self.storage))
        overrides = {
            "lake.uri": self.lake,
            "spool.uri": self.spool,
            "dask.address": self.dask_address,
            "dask.workers": self.dask_workers,
        }
        return Context.of(configured, overrides)


PIPELINE_CONTEXT: Final[ContextVar[tuple[FlowSettings, Context] | None]] = ContextVar("pipeline_context", default=None)
"""Settings and context of the current pipeline. Its steps share them, so that they read the configuration once."""


def flow_settings(configured: Config, given: Mapping[str, object], without_file: str = "") -> FlowSettings:
    """Return the settings of runs on this machine: the given values, and the configuration file for all others.

    Parameters
    ----------
    configured, given
        The configuration, and overrides by ``section.key``.
    without_file
        File for runs if no configuration file exists. Lake and spool are then part of the settings.
    """
    overridden = configured.overridden(given) if not configured.file else Config().overridden(given)
    return FlowSettings(
        lake=absolute(overridden.lake.uri),
        spool=absolute(overridden.spool.uri),
        dask_address=overridden.dask.address,
        config=configured.file or without_file,
    )


def absolute(uri: str) -> str:
    """Return a folder as an absolute path, since runs may start in another folder; other URIs are unchanged."""
    return uri if not uri or "://" in uri else str(Path(uri).absolute())


ANNOUNCE: Final[ContextVar[Callable[[str], None]]] = ContextVar("announce", default=lambda _: None)
"""Callback for the name of each stage that begins. It is no parameter of a flow, because parameters are data."""
