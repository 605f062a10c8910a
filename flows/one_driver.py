"""One driver a lake: a global concurrency limit of Prefect's, named after the lake.

Plans are one sequence, so a second driver only waits for the first or does its work twice. The lake itself is safe
under two drivers (compare-and-swap); the limit spares the work. A holder that is killed loses its lease within
`LEASE_S` seconds, and where no such limit is registered nothing is held.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Final

from prefect.client.orchestration import get_client
from prefect.concurrency.asyncio import concurrency
from prefect.exceptions import ObjectNotFound

LEASE_S: Final = 60.0
_HELD: Final[ContextVar[frozenset[str]]] = ContextVar("_HELD", default=frozenset())


def limit_name(lake: str) -> str:
    """Return the name of a lake's limit: a digest, since a URI does not belong into names."""
    return f"ranklake-lake-{sha256(lake.encode()).hexdigest()[:16]}"


@asynccontextmanager
async def one_driver(lake: str) -> AsyncIterator[None]:
    """Hold the lake's limit; flows within this one hold it by it. Waits while another run drives the lake."""
    name = limit_name(lake)
    if name in _HELD.get() or not await _is_registered(name):
        yield
        return
    async with concurrency(name, lease_duration=LEASE_S, raise_on_lease_renewal_failure=False):
        token = _HELD.set(_HELD.get() | {name})
        try:
            yield
        finally:
            _HELD.reset(token)


async def _is_registered(name: str) -> bool:
    async with get_client() as client:
        try:
            await client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            return False
    return True
