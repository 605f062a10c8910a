"""Probes of services: the Dask cluster and the Prefect server, by address."""

import asyncio
import base64
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from distributed import Client, Security
from distributed.core import rpc
from distributed.versions import get_versions

from ranklake.doctor.examination import Patient
from ranklake.doctor.finding import Finding, failed, not_known, ok, skipped, warning
from ranklake.doctor.versions import release
from ranklake.flows.serving.home import served_at
from ranklake.lake.plans.worker_versions import ask, compare
from ranklake.redaction.redact import redact_uri
from ranklake.views.words import counted

_HOME: Final = Path("~/.ranklake")
"""Where ``ranklake up`` is at home unless it is told otherwise."""
_ASK_S: Final = 3.0
_BY_ALL: Final = ("python", "distributed", "dask", "cloudpickle", "msgpack")
"""What scheduler and workers must have as this process has it."""
_REFUSED: Final = frozenset({401, 403})


def dask(patient: Patient) -> Iterator[Finding]:
    """Say whether the configured scheduler answers, has workers, and all have the versions that are here."""
    section = patient.config.dask
    if not section.address:
        yield skipped("no cluster by address: one of this machine's starts where there is enough to do")
        return
    security = Security(require_encryption=True, **section.tls) if section.tls else Security()
    try:
        found = asyncio.run(_told(section.address, security))
    except (OSError, TimeoutError, ValueError, RuntimeError, TypeError) as error:
        remedy = "start the scheduler, or mend address and the tls_ keys under [dask]"
        yield failed(f"{section.address}: no Dask scheduler answers ({type(error).__name__})", remedy)
        return
    apart = _compared(section.address, found)
    if apart is not None:
        yield apart
        return
    with Client(section.address, timeout=f"{_ASK_S:g}s", set_as_default=False, security=security) as client:
        compare(ask(client))  # as ingest does before it sends work; what it raises is the finding
    yield ok(f"{section.address}: {counted(len(found['workers']), 'worker')}, with the versions that are here")


async def _told(address: str, security: Security) -> dict[str, Any]:
    """Return what scheduler, workers and this process tell of their versions, by the scheduler's own calls.

    A client would register itself, and leave threads behind where nobody answers.
    """
    packages = list(_BY_ALL[1:])
    async with rpc(address, connection_args=security.get_connection_args("client"), timeout=_ASK_S) as scheduler:
        told = await asyncio.wait_for(scheduler.versions(packages=packages), _ASK_S)
        asked = {"op": "versions", "packages": packages}
        workers = await asyncio.wait_for(scheduler.broadcast(msg=asked, on_error="ignore"), _ASK_S)
    return {"client": get_versions(packages=packages), "scheduler": told, "workers": workers}


def _compared(address: str, found: Mapping[str, Any]) -> Finding | None:
    """Return what is wrong with the versions that Dask told; None if nothing is."""
    here, workers = _packages(found["client"]), found["workers"]
    if not workers:
        return failed(f"{address} has no workers", f"start some: dask worker {address}")
    others = [("the scheduler", _packages(found["scheduler"]))]
    others += [(f"worker {name}", _packages(one)) for name, one in workers.items()]
    apart = [
        f"{who} has {name} {there.get(name) or 'not at all'}, and here is {here[name]}"
        for who, there in others
        for name in _BY_ALL
        if here.get(name) and _plain(name, there.get(name)) != _plain(name, here[name])
    ]
    if not apart:
        return None
    rest = f", and {len(apart) - 1} more differences" if len(apart) > 1 else ""
    return failed(f"{address}: {apart[0]}{rest}", "install the same versions on scheduler and workers as here")


def _packages(told: Mapping[str, Any]) -> dict[str, Any]:
    return {**told.get("packages", {}), "python": str(told.get("packages", {}).get("python", "")).split(".final")[0]}


def _plain(name: str, version: object) -> object:
    """Return what of a version must agree: of Python, the minor release."""
    return release(str(version))[:2] if name == "python" else version


def prefect(patient: Patient) -> Iterator[Finding]:
    """Say whether the Prefect server answers, and is not older than the client that is installed here."""
    del patient
    url = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    if not url and (served := served_at(_HOME.expanduser())):
        url = f"{served}/api"
    if not url:
        yield skipped(f"no server: PREFECT_API_URL is not set, and 'ranklake up' does not serve {_HOME}")
        return
    shown = redact_uri(url)
    if not url.startswith(("http://", "https://")):
        yield failed(f"{shown} is not an HTTP address", "set PREFECT_API_URL to one such as http://host:4200/api")
        return
    try:
        _asked(f"{url}/health")
        there = str(_asked(f"{url}/admin/version"))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _REFUSED:
            yield failed(f"{shown} refuses the credentials", "fix PREFECT_API_AUTH_STRING or PREFECT_API_KEY")
        else:
            yield failed(f"{shown} answers with HTTP {error.code}", "fix PREFECT_API_URL: it ends in /api")
        return
    except (OSError, ValueError) as error:
        yield failed(f"{shown}: no Prefect server answers ({type(error).__name__})", "start it, or fix PREFECT_API_URL")
        return
    here = metadata.version("prefect")
    if not release(there):
        yield not_known(f"{shown} answers, and tells no version")
    elif release(there)[:2] < release(here)[:2]:
        yield failed(f"{shown} is Prefect {there}, older than the {here} here", f"upgrade the server to {here}")
    elif release(there)[:1] > release(here)[:1]:
        yield warning(f"{shown} is Prefect {there}, and here is {here}", "run the version that was tested on both")
    else:
        yield ok(f"{shown}: Prefect {there}")


def _asked(url: str) -> object:
    """Return what a server says, as JSON. Raises `OSError` and `ValueError`."""
    headers = {}
    if key := os.environ.get("PREFECT_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    elif pair := os.environ.get("PREFECT_API_AUTH_STRING"):
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - its caller has looked at the scheme
    with urllib.request.urlopen(request, timeout=_ASK_S) as answer:  # noqa: S310 - likewise
        return json.loads(answer.read(1 << 16))
