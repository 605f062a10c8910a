"""What the flows do, as plain functions: settings in, plain JSON values out.

Commands that need no Prefect server call these too, so that a scheduled run and a run by hand are the same run.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ranklake.lake.catalog_refresh import refresh
from ranklake.lake.ingest import ingest
from ranklake.lake.limits import Limits
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.spool import Spool
from ranklake.lake.store import Lake
from ranklake.lake.upkeep.run import upkeep
from ranklake.lake.workers import on_call
from ranklake.lake.writers import Prefix, Writers
from ranklake.quality.check import run_checks

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """Where a run works and on what; all values are plain, so that Prefect can store them as flow parameters.

    Attributes
    ----------
    lake, spool
        URIs.
    storage
        Object-store options under delta-rs's names.
    dask_address, dask_workers, dask_memory
        The cluster, or the size of a local one.
    contracts
        Overlay folder, or empty.
    encryption_key
        Where the keys of encrypted segments are, never a key; see `ranklake.lake.contracts.keys`.
    prices
        The operator's price table, or empty.
    prefixes
        Who may write where in the spool.
    limits
        What one segment may ask of ingest, by the names of `ranklake.lake.limits.Limits`.
    """

    lake: str
    spool: str
    storage: dict[str, str] = field(default_factory=dict)
    dask_address: str = ""
    dask_workers: int = 0
    dask_memory: str = "2GiB"
    contracts: str = ""
    encryption_key: str = ""
    prices: str = ""
    prefixes: tuple[Prefix, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)


def ingest_once(settings: Settings, progress: Progress | None = None) -> dict[str, Any]:
    """Bring new segments into the lake; return what `ranklake.lake.ingest.Ingested` says."""
    lake = Lake.create(settings.lake, settings.storage, settings.encryption_key)
    spool = Spool(settings.spool, settings.storage, Writers(settings.prefixes))
    lake = lake.limited(Limits(**settings.limits))
    with on_call(settings.dask_address, settings.dask_workers, settings.dask_memory) as crew:
        return asdict(ingest(lake, spool, crew, progress=progress))


def check_once(settings: Settings, progress: Progress | None = None) -> dict[str, Any]:
    """Check new partitions; return whether all passed and the results that did not."""
    overlay = Path(settings.contracts) if settings.contracts else None
    report = run_checks(Lake.open(settings.lake, settings.storage), contracts_overlay=overlay, progress=progress)
    return report.summary()


def rollup_once(settings: Settings, progress: Progress | None = None) -> dict[str, Any]:
    """Recompute what changed; return the partitions written per rollup."""
    lake = Lake.open(settings.lake, settings.storage).priced(settings.prices)
    results = run_rollups(lake, progress=progress)
    return {"rollups": [asdict(result) for result in results]}


def upkeep_once(settings: Settings, progress: Progress | None = None) -> dict[str, Any]:
    """Merge small files, shorten the logs, purge; return what `ranklake.lake.upkeep.run.Upkept` says."""
    lake = Lake.open(settings.lake, settings.storage)
    with on_call(settings.dask_address, settings.dask_workers, settings.dask_memory) as crew:
        return asdict(upkeep(lake, crew, progress=progress))


def catalog_once(settings: Settings) -> dict[str, Any]:
    """Bring the catalog's tables up to date; return how many rows each got."""
    overlay = Path(settings.contracts) if settings.contracts else None
    return asdict(refresh(Lake.open(settings.lake, settings.storage), overlay))


def pipeline_once(settings: Settings) -> dict[str, Any]:
    """Run ingest, check, rollup and the catalog's refresh in order; a failed check is a finding and stops nothing."""
    return {
        "ingest": ingest_once(settings),
        "check": check_once(settings),
        "rollup": rollup_once(settings),
        "catalog": catalog_once(settings),
    }
