"""Settings of a flow run: what Prefect stores of it, in clear, and shows to everybody who may look.

So none of them is a secret. They say where the lake and the spool are and name a configuration file by its path; the
task that does the work reads that file where it runs, and makes its `ranklake.context.Context` of both.

Options of object stores are a reference, as `ranklake.segments.references` reads it, to a JSON object of options or to
a ``ranklake.toml``, whose section [storage] counts.
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
    """A reference that gives no options. The message holds nothing that was read."""


def storage_options(reference: str) -> dict[str, str]:
    """Return the options that a reference stands for now; none for an empty one. Raises `StorageReferenceError`."""
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
    """Declare a parameter: text, empty by default, with what Prefect's UI says of it.

    The server holds what is given against the pattern before it stores a run: `FlowSettings` itself refuses more, and
    later, when what was given stands in the database.
    """
    schema = {"json_schema_extra": {"pattern": pattern}} if pattern else {}
    result: str = field(default="", metadata={"description": description, **schema})
    return result


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """Where a flow works. What is empty or 0 is as the configuration has it.

    Raises `StorageReferenceError` for options in place of a reference, and for a URI with credentials.

    Attributes
    ----------
    lake, spool
        URIs.
    storage
        Where the object-store options are, a reference as above, in place of the file's section.
    dask_address, dask_workers
        The cluster, or the size of a local one.
    config
        Path of the ``ranklake.toml`` to read where the flow runs, with the environment there; empty: neither is read.
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
        """Return the context of the run: its pipeline's, or else as the configuration says.

        Raises `ConfigError`, `StorageReferenceError`.
        """
        held = PIPELINE_CONTEXT.get()
        if held is not None and held[0] == self:
            return held[1]
        configured = load_config(Path(self.config)) if self.config else Config()
        if self.storage:
            configured = replace(configured, storage=storage_options(self.storage))
        given = {
            "lake.uri": self.lake,
            "spool.uri": self.spool,
            "dask.address": self.dask_address,
            "dask.workers": self.dask_workers,
        }
        return Context.of(configured, given)


PIPELINE_CONTEXT: Final[ContextVar[tuple[FlowSettings, Context] | None]] = ContextVar("pipeline_context", default=None)
"""Settings and context of the pipeline whose step this is: its steps read one configuration, and open tables once."""


def flow_settings(configured: Config, given: Mapping[str, object], without_file: str = "") -> FlowSettings:
    """Return the settings of runs on this machine: what was given, and for the rest the file, which each run reads.

    Parameters
    ----------
    configured, given
        The configuration, and what overrides it by ``section.key``.
    without_file
        The file that runs read if none is configured; the lake and the spool are then named outright.
    """
    overridden = configured.overridden(given) if not configured.file else Config().overridden(given)
    return FlowSettings(
        lake=absolute(overridden.lake.uri),
        spool=absolute(overridden.spool.uri),
        dask_address=overridden.dask.address,
        config=configured.file or without_file,
    )


def absolute(uri: str) -> str:
    """Return a folder as an absolute path, and any other URI as it is: runs may start in another folder."""
    return uri if not uri or "://" in uri else str(Path(uri).absolute())


ANNOUNCE: Final[ContextVar[Callable[[str], None]]] = ContextVar("announce", default=lambda _: None)
"""Takes the name of a stage. A flow's parameters are data, and cannot hold it."""
