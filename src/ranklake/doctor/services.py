"""Probes of services that ranklake needs: the Dask cluster by address, receivers of alerts."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

from distributed import Client, Security
from distributed.core import rpc
from distributed.versions import get_versions

from ranklake.context import Context
from ranklake.doctor.examination import Finding, Patient, failed, ok, skipped, warning
from ranklake.doctor.versions import release_numbers
from ranklake.lake.plans.dask_tasks import refuse_other_versions, worker_versions
from ranklake.pipeline.alerts.delivery import unreadable_urls
from ranklake.pipeline.alerts.stage import configured_rules
from ranklake.pipeline.alerts.stored_state import load_state
from ranklake.printable import counted


def alerts(patient: Patient) -> Iterator[Finding]:
    """Check that each receiver's URL can be read here, and count firing alerts that could not be delivered."""
    context = Context.of(patient.config)
    section = context.config.alerts
    if not (section.file or section.notify):
        yield skipped("nobody is told of alerts: name a receiver as notify under [alerts]", "see docs/alerts.md")
        return
    file = configured_rules(context)
    failures = [
        failed(f"receiver {name}: {reason}", "put its URL there, as docs/alerts.md says")
        for name, reason in unreadable_urls(file).items()
    ]
    urls = len(file.receivers) + bool(file.heartbeat)
    yield from failures or [ok(f"{counted(urls, 'URL')} can be read; 'ranklake alerts send RECEIVER' tries one")]
    stored = load_state(context.open_lake().store)
    if stored.damaged:
        message = f"{', '.join(stored.damaged)} cannot be read: alerts since the state before may be sent once more"
        yield warning(message, "the next round goes on after it; find out who wrote what stays, and remove it")
    records = stored.records.values()
    undelivered = [each for each in records if not (each.resolved or each.messages) and each.failures]
    if undelivered:
        first = undelivered[0].alert
        message = (
            f"{counted(len(undelivered), 'alert')} that nobody was told of, such as {first.rule}: receivers are lost"
        )
        yield warning(message, "try them by 'ranklake alerts send RECEIVER'")


_ASK_S: Final = 3.0
_SHARED_PACKAGES: Final = ("python", "distributed", "dask", "cloudpickle", "msgpack")
"""Packages whose versions must be the same in the scheduler, the workers and this process."""


def dask(patient: Patient) -> Iterator[Finding]:
    """Check that the configured scheduler answers and has workers, and that versions of packages agree."""
    section = patient.config.dask
    if not section.address:
        yield skipped("no cluster by address: one of this machine's starts where there is enough to do")
        return
    security = Security(require_encryption=True, **section.tls) if section.tls else Security()
    try:
        result = asyncio.run(_ask_versions(section.address, security))
    except (OSError, TimeoutError, ValueError, RuntimeError, TypeError) as error:
        remedy = "start the scheduler, or mend address and the tls_ keys under [dask]"
        yield failed(f"{section.address}: no Dask scheduler answers ({type(error).__name__})", remedy)
        return
    mismatches = _version_mismatch(section.address, result)
    if mismatches is not None:
        yield mismatches
        return
    with Client(section.address, timeout=f"{_ASK_S:g}s", set_as_default=False, security=security) as client:
        refuse_other_versions(worker_versions(client))  # the same check as in ingest; its exception becomes the finding
    yield ok(f"{section.address}: {counted(len(result['workers']), 'worker')}, with the versions that are here")


async def _ask_versions(address: str, security: Security) -> dict[str, Any]:
    """Return the versions of scheduler, workers and this process, by calls to the scheduler.

    A client would register itself, and leave threads behind if nobody answers.
    """
    packages = list(_SHARED_PACKAGES[1:])
    async with rpc(address, connection_args=security.get_connection_args("client"), timeout=_ASK_S) as scheduler:
        versions = await asyncio.wait_for(scheduler.versions(packages=packages), _ASK_S)
        asked = {"op": "versions", "packages": packages}
        workers = await asyncio.wait_for(scheduler.broadcast(msg=asked, on_error="ignore"), _ASK_S)
    return {"client": get_versions(packages=packages), "scheduler": versions, "workers": workers}


def _version_mismatch(address: str, versions: Mapping[str, Any]) -> Finding | None:
    """Return the mismatch among Dask's versions; None without one."""
    here, workers = _packages(versions["client"]), versions["workers"]
    if not workers:
        return failed(f"{address} has no workers", f"start some: dask worker {address}")
    others = [("the scheduler", _packages(versions["scheduler"]))]
    others += [(f"worker {name}", _packages(packages)) for name, packages in workers.items()]
    mismatches = [
        f"{process} has {name} {packages.get(name) or 'not at all'}, and here is {here[name]}"
        for process, packages in others
        for name in _SHARED_PACKAGES
        if here.get(name) and _plain(name, packages.get(name)) != _plain(name, here[name])
    ]
    if not mismatches:
        return None
    rest = f", and {len(mismatches) - 1} more differences" if len(mismatches) > 1 else ""
    return failed(f"{address}: {mismatches[0]}{rest}", "install the same versions on scheduler and workers as here")


def _packages(versions: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **versions.get("packages", {}),
        "python": str(versions.get("packages", {}).get("python", "")).split(".final")[0],
    }


def _plain(name: str, version: object) -> object:
    """Return the part of a version that must agree: for Python, the minor release."""
    return release_numbers(str(version))[:2] if name == "python" else version
