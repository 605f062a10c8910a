"""Registers all deployments on a server that is there already, for a work pool's workers to run."""

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from ranklake.errors import RanklakeError
from ranklake.flows.deployments import Deployment
from ranklake.flows.heartbeats import ENVIRONMENT, register_automation
from ranklake.flows.register import Registered, register
from ranklake.flows.settings import FlowSettings
from ranklake.redaction.redact import redact_uri

KINDS: Final = ("process", "docker", "kubernetes")
_NEEDS_IMAGE: Final = ("docker", "kubernetes")


class ServerError(RanklakeError):
    """No Prefect server can be asked."""


class PoolError(RanklakeError):
    """The work pool is not there, or cannot run these flows as it was asked."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the deployments go.

    Attributes
    ----------
    pool
        Name of the work pool.
    image
        For pools whose workers start containers.
    lake
        URI, as the flows will find it.
    """

    pool: str
    image: str
    lake: str


async def deploy_all(
    deployments: Iterable[Deployment], settings: FlowSettings, target: Target, *, dry_run: bool
) -> list[Registered]:
    """Register deployments. Raises `ServerError`, `PoolError`, `ranklake.flows.register.ForeignDeploymentError`."""
    url = os.environ.get("PREFECT_API_URL", "")
    if not url:
        hint = "set it, such as http://prefect:4200/api, or serve here: ranklake up"
        raise ServerError("no Prefect server is named", where="PREFECT_API_URL", hint=hint)
    try:
        async with get_client() as client:
            pool = await _pool(client, target.pool)
            _check(pool.type, target)
            variables = {"env": ENVIRONMENT, **({"image": target.image} if target.image else {})}
            done = await register(
                client, deployments, settings, target.pool, variables, lake=target.lake, dry_run=dry_run
            )
            if not dry_run:
                await register_automation(client)
            return done
    except PrefectHTTPStatusError as error:
        reason = f"{error.response.status_code} {error.response.reason_phrase}"
        hint = "check PREFECT_API_URL, PREFECT_API_KEY and the server's version"
        raise ServerError(f"the server answers {reason}", where=redact_uri(url), hint=hint) from None
    except (httpx.HTTPError, OSError, RuntimeError) as error:
        hint = "start the server, or mend PREFECT_API_URL"
        raise ServerError("the server cannot be reached", where=redact_uri(url), hint=hint) from error


async def _pool(client: Any, name: str) -> Any:  # noqa: ANN401 - Prefect's
    try:
        return await client.read_work_pool(name)
    except ObjectNotFound:
        hint = f"create it: prefect work-pool create {shlex.quote(name)} --type process (or docker, kubernetes)"
        raise PoolError("there is no such work pool", where=name, hint=hint) from None


def _check(kind: str, target: Target) -> None:
    if kind not in KINDS:
        hint = f"create one of type {', '.join(KINDS)}: prefect work-pool create NAME --type process"
        raise PoolError(f"is a work pool of type {kind}", where=target.pool, hint=hint)
    if kind in _NEEDS_IMAGE and not target.image:
        raise PoolError(f"starts containers ({kind})", where=target.pool, hint="name an image with ranklake by --image")
    if kind not in _NEEDS_IMAGE and target.image:
        raise PoolError("starts processes, no containers", where=target.pool, hint="leave --image out")
