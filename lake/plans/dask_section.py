"""Section ``[dask]`` of ``ranklake.toml``, separate from the clusters that use it, so that reading it is cheap."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DaskSection:
    """The workers that run the tasks of ingest, checks, rollups and upkeep."""

    address: str = ""
    """Scheduler address such as ``tls://host:8786``. Empty: a local cluster is started if there is enough work."""
    workers: int = 0
    """Processes of a local cluster for all work; 0 means one per core, four at most, and none for small work."""
    memory_limit: str = "2GiB"
    """Memory of each local worker process."""
    tls_ca_file: str = ""
    """PEM file of the CA to trust at `address`. If any of these three is set, only TLS is used."""
    tls_client_cert: str = ""
    """PEM file of the client certificate."""
    tls_client_key: str = ""
    """PEM file of the client certificate's key."""

    @property
    def tls(self) -> dict[str, str]:
        """The ones of the three that are set, by name."""
        said = {name: getattr(self, name) for name in ("tls_ca_file", "tls_client_cert", "tls_client_key")}
        return {name: path for name, path in said.items() if path}
