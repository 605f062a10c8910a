"""Environment variables of the processes of ``ranklake up``: Prefect's settings.

Only the server gets the address of the database, since it may contain a password. Prefect reads its settings at import,
so modules that import Prefect are imported after `adopt`.
"""

import os
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import certifi

from ranklake.errors import RanklakeError
from ranklake.redaction.redact import has_credential
from ranklake.segments.references import SecretError, is_reference, read_reference

MARK: Final = "RANKLAKE_UP"
"""Variable in every process of an ``up``, with its home. Processes left behind are found by it."""
LEASES: Final = "concurrency_leases"
"""Folder in the home where Prefect stores leases."""
_AUTH: Final = "PREFECT_SERVER_API_AUTH_STRING"
_METRICS: Final = "PREFECT_SERVER_METRICS_ENABLED"
_CERTIFICATES: Final = "PREFECT_API_SSL_CERT_FILE"
_KEPT: Final = (_AUTH, _METRICS)
"""Settings of the user that are kept: the server's password, and whether it answers Prometheus at ``/api/metrics``."""
_EVERYBODY: Final = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    "DASK_LOGGING__DISTRIBUTED": "warning",
}
_SERVER: Final = {
    "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    # The default keeps leases in memory: after a kill of the server they would never be released.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}
_WORKER: Final = {
    "PREFECT_WORKER_QUERY_SECONDS": "5",
    "PREFECT_WORKER_PREFETCH_SECONDS": "1",
    "PREFECT_LOGGING_LEVEL": "INFO",
}


class DatabaseError(RanklakeError):
    """A reference to the database's address that cannot be read. The message contains nothing of the value."""


class HostError(RanklakeError):
    """The server would be reachable by others without a password."""


def url_of(host: str, port: int) -> str:
    """Return the address by which this machine reaches a server that listens at a host and port."""
    result = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 - read
    return f"http://{result}:{port}"


def check_host(host: str, environ: Mapping[str, str]) -> None:
    """Raise `HostError` if others can reach the server without a password: they could run any flow."""
    try:
        loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback and not environ.get(_AUTH):
        hint = f"set {_AUTH} (a name, a colon, a password), or leave --host out and go through a tunnel"
        raise HostError("others could run flows there without a password", where=f"--host {host}", hint=hint)


def common_variables(home: Path, url: str) -> dict[str, str]:
    """Return the variables of every process of an ``up``, including this one."""
    return {**_EVERYBODY, "PREFECT_HOME": str(home), "PREFECT_API_URL": f"{url}/api", MARK: str(home)}


def adopt(home: Path, url: str) -> None:
    """Set the variables of this process, before Prefect is imported. The user's Prefect settings are removed."""
    kept = {name: os.environ[name] for name in _KEPT if os.environ.get(name)}
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    os.environ.update({**common_variables(home, url), **kept, _CERTIFICATES: str(_authority(home))})
    if _AUTH in kept:
        os.environ["PREFECT_API_AUTH_STRING"] = kept[_AUTH]


def _authority(home: Path) -> Path:
    """Write a file with one of the trusted certificate authorities, and return its path.

    Prefect reads its whole file for each of the dozens of clients of a run, although they use plain HTTP here. That
    took a quarter of the CPU time of an idle run.
    """
    place = home / "authority.pem"
    first, end, _ = certifi.contents().partition("-----END CERTIFICATE-----")
    place.write_text(f"{first}{end}\n", encoding="utf-8")
    return place


def for_server(url: str, database: str) -> dict[str, str]:
    """Return the environment of the server: the variables of this process, and the database."""
    environment = {**os.environ, **_SERVER, "PREFECT_UI_API_URL": f"{url}/api"}
    return {**environment, "PREFECT_SERVER_DATABASE_CONNECTION_URL": database} if database else environment


def for_worker() -> dict[str, str]:
    """Return the environment of the worker, which flow runs inherit."""
    return {**os.environ, **_WORKER}


def database_url(reference: str) -> str:
    """Return the address of the database, or ``""`` for SQLite in the home. Raises `DatabaseError`.

    Parameters
    ----------
    reference
        Reference to the address, as `ranklake.segments.references` reads it, or an address without password.
    """
    where, result = "--database", reference
    hint = "write it into a file and name that: --database file:/path, or env:NAME"
    if not reference:
        return ""
    if is_reference(reference):
        try:
            result, where = read_reference(reference, "database's address", "command for the database's address")
        except SecretError as error:
            raise DatabaseError(error.what, where=error.where, hint=hint) from None
    elif has_credential(reference):
        raise DatabaseError("the database's address has a password in it", where="--database", hint=hint)
    if not result.strip().startswith(("postgresql+asyncpg://", "sqlite+aiosqlite://")):
        hint = "it must be such as postgresql+asyncpg://user@host/prefect, with the password behind the user"
        raise DatabaseError("no address of a database is there", where=where, hint=hint)
    return result.strip()
