"""Section ``[dask]`` of ``ranklake.toml``, apart from the clusters that go by it, so that reading it is cheap."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DaskSection:
    """What runs the tasks of ingest."""

    address: str = ""
    """Scheduler address such as ``tls://host:8786``; empty starts a local cluster where there is enough to do."""
    workers: int = 0
    """Processes of a local cluster that does all work; 0 means one per core, four at most, and none for small work."""
    memory_limit: str = "2GiB"
    """Memory of each local worker process."""
    tls_ca_file: str = ""
    """PEM file of whom to trust at `address`; with any of these three nothing is sent there but by TLS."""
    tls_client_cert: str = ""
    """PEM file of the certificate to show there."""
    tls_client_key: str = ""
    """PEM file of its key."""

    @property
    def tls(self) -> dict[str, str]:
        """Those of the three that are named, by name."""
        said = {name: getattr(self, name) for name in ("tls_ca_file", "tls_client_cert", "tls_client_key")}
        return {name: path for name, path in said.items() if path}
