"""Environment of the processes of ``ranklake up``: Prefect's settings, as variables.

The server alone learns where the database is, since an address may carry a password. Prefect reads its settings when
it is imported, so what imports it comes after `adopt`.
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
"""Variable that every process of an ``up`` has: its home. What is left behind is found by it."""
LEASES: Final = "concurrency_leases"
"""Folder in the home where Prefect keeps leases as files."""
_AUTH: Final = "PREFECT_SERVER_API_AUTH_STRING"
_METRICS: Final = "PREFECT_SERVER_METRICS_ENABLED"
_CERTIFICATES: Final = "PREFECT_API_SSL_CERT_FILE"
_KEPT: Final = (_AUTH, _METRICS)
"""Settings of the user's that count: who may use the server, and whether it answers Prometheus at ``/api/metrics``."""
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
    # In memory by default: a server that is killed would then never give back what was held by leases.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}
_WORKER: Final = {
    "PREFECT_WORKER_QUERY_SECONDS": "5",
    "PREFECT_WORKER_PREFETCH_SECONDS": "1",
    "PREFECT_LOGGING_LEVEL": "INFO",
}


class DatabaseError(RanklakeError):
    """A reference that gives no database address. The message holds nothing that was read."""


class HostError(RanklakeError):
    """Others could reach the server, and it asks nobody for a password."""


def url_of(host: str, port: int) -> str:
    """Return the address under which a server that listens there is found from this machine."""
    result = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 - read
    return f"http://{result}:{port}"


def check_host(host: str, environ: Mapping[str, str]) -> None:
    """Raise `HostError` where others may reach the server without a password: who does may run any flow."""
    try:
        loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback and not environ.get(_AUTH):
        hint = f"set {_AUTH} (a name, a colon, a password), or leave --host out and go through a tunnel"
        raise HostError("others could run flows there without a password", where=f"--host {host}", hint=hint)


def common_variables(home: Path, url: str) -> dict[str, str]:
    """Return the variables of every process, this one too."""
    return {**_EVERYBODY, "PREFECT_HOME": str(home), "PREFECT_API_URL": f"{url}/api", MARK: str(home)}


def adopt(home: Path, url: str) -> None:
    """Put it into this process's environment, before anything imports Prefect. Profiles of the user's do not count."""
    kept = {name: os.environ[name] for name in _KEPT if os.environ.get(name)}
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    os.environ.update({**common_variables(home, url), **kept, _CERTIFICATES: str(_authority(home))})
    if _AUTH in kept:
        os.environ["PREFECT_API_AUTH_STRING"] = kept[_AUTH]


def _authority(home: Path) -> Path:
    """Return a file of one of the certificate authorities that are trusted.

    Prefect reads its file of all of them for each of a run's dozens of clients, though they speak plain HTTP to the
    server here: that took a quarter of an idle run's CPU time.
    """
    place = home / "authority.pem"
    first, end, _ = certifi.contents().partition("-----END CERTIFICATE-----")
    place.write_text(f"{first}{end}\n", encoding="utf-8")
    return place


def for_server(url: str, database: str) -> dict[str, str]:
    """Return the environment of the server: all variables of this process, and the database."""
    environment = {**os.environ, **_SERVER, "PREFECT_UI_API_URL": f"{url}/api"}
    return {**environment, "PREFECT_SERVER_DATABASE_CONNECTION_URL": database} if database else environment


def for_worker() -> dict[str, str]:
    """Return the further variables of the worker, which each flow run inherits."""
    return {**os.environ, **_WORKER}


def database_url(reference: str) -> str:
    """Return the address of the database: SQLite in the home where the reference is empty. Raises `DatabaseError`.

    Parameters
    ----------
    reference
        Where it is, as `ranklake.segments.references` reads it, or the address itself if no password stands in it.
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
