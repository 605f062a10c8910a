"""Settings of a flow run: what Prefect stores of it, in clear, and shows to everybody who may look.

So none of them is a secret. They say where the lake and the spool are and name a configuration file by its path; the
task that does the work reads that file where it runs, and makes its `ranklake.context.Context` of both.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from ranklake.config import Config, load_config
from ranklake.context import Context
from ranklake.flows.storage import MEND, StorageReferenceError, storage_options
from ranklake.redaction.redact import has_credential


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """Where a flow works. What is empty or 0 is as the configuration has it.

    Raises `StorageReferenceError` for options in place of a reference, and for a URI with credentials.

    Attributes
    ----------
    lake, spool
        URIs.
    storage
        Where the object-store options are, as `ranklake.flows.storage` says it, in place of the file's section.
    dask_address, dask_workers
        The cluster, or the size of a local one.
    config
        Path of the ``ranklake.toml`` to read where the flow runs, with the environment there; empty: neither is read.
    """

    lake: str = ""
    spool: str = ""
    storage: str = ""
    dask_address: str = ""
    dask_workers: int = 0
    config: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.storage, str):
            raise StorageReferenceError("storage is no reference, and options have credentials in them", mend=MEND)
        for name in ("lake", "spool", "dask_address"):
            if has_credential(getattr(self, name)):
                mend = "give credentials by storage, or by the environment of whoever runs the flow"
                raise StorageReferenceError("a credential stands in a URI", where=name, mend=mend)

    def context(self) -> Context:
        """Read the configuration and return the context of the run. Raises `ConfigError`, `StorageReferenceError`."""
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
