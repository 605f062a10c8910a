"""What the flows do, as plain functions: settings in, plain JSON values out.

Commands that need no Prefect server call these too, so that a scheduled run and a run by hand are the same run.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ranklake.errors import RanklakeError
from ranklake.flows.storage import MEND, StorageReferenceError, storage_options
from ranklake.lake.catalog.refresh import refresh
from ranklake.lake.delta.integrity import Damage, DamagedFileError
from ranklake.lake.ingest.run import ingest
from ranklake.lake.maintenance.run import upkeep
from ranklake.lake.plans.dask_workers import on_demand
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.spool.spool import Spool
from ranklake.lake.storage.store import Lake
from ranklake.lake.trust.limits import Limits
from ranklake.lake.trust.operator import Trust
from ranklake.lake.trust.writers import Prefix, Writers
from ranklake.quality.check import KINDS, run_checks
from ranklake.quality.results import together
from ranklake.redaction.redact import redact_uri

Progress = Callable[[int, int], None]
FACTS: Final = ("fact",)
ROLLUPS: Final = ("derived",)
"""Kinds of tables: what is checked before it is rolled up, and what is checked after."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where a run works and on what; all values are plain, since Prefect stores them, in clear, as flow parameters.

    None of them is a secret: what has credentials in it is named by a reference. Raises `StorageReferenceError` for
    options instead of a reference, and for a URI with credentials.

    Attributes
    ----------
    lake, spool
        URIs.
    storage
        Where the object-store options are, as `ranklake.flows.storage` says it; or empty.
    dask_address, dask_workers, dask_memory
        The cluster, or the size of a local one.
    dask_tls
        Paths of PEM files for the cluster at the address; see `ranklake.lake.plans.dask_workers.workers`.
    contracts
        Overlay folder, or empty.
    encryption_key
        Where the keys of encrypted segments are, never a key; see `ranklake.segments.keys`.
    prices
        The operator's price table, or empty.
    prefixes
        Who may write where in the spool.
    limits
        What one segment may ask of ingest, by the names of `ranklake.lake.trust.limits.Limits`.
    audit_witness, plans_key, require_signed_plans
        What the lake is held against; see `ranklake.lake.trust.operator`.
    """

    lake: str
    spool: str
    storage: str = ""
    dask_address: str = ""
    dask_workers: int = 0
    dask_memory: str = "2GiB"
    contracts: str = ""
    encryption_key: str = ""
    prices: str = ""
    dask_tls: dict[str, str] = field(default_factory=dict)
    prefixes: tuple[Prefix, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)
    audit_witness: str = ""
    plans_key: str = ""
    require_signed_plans: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.storage, str):
            raise StorageReferenceError("storage is no reference, and options have credentials in them", mend=MEND)
        for name in ("lake", "spool", "dask_address"):
            if redact_uri(getattr(self, name)) != getattr(self, name):
                mend = "give credentials by storage, or by the environment of whoever runs the flow"
                raise StorageReferenceError("a credential stands in a URI", where=name, mend=mend)

    @property
    def trust(self) -> Trust:
        """What the lake is held against."""
        spools = (self.spool,) if self.spool else ()
        return Trust(self.audit_witness, self.plans_key, self.require_signed_plans, spools)

    @property
    def options(self) -> dict[str, str]:
        """The object-store options, read now, for whoever opens the lake."""
        return storage_options(self.storage)


class ChecksFailedError(RanklakeError):
    """A check of severity error failed, now or before on rows that are still there; `done` is what was done."""

    exit_code = 1

    def __init__(self, done: dict[str, Any], summary: dict[str, Any]) -> None:
        told = [one for one in (*summary["unsound"], *summary["standing"]) if one["severity"] == "error"]
        first = "; ".join(f"{one['table']} {one['partition_date']} {one['check_id']}" for one in told[:3])
        more = f" and {len(told) - 3} more" if len(told) > 3 else ""  # noqa: PLR2004 - as many as are named
        mend = "ranklake check shows them; rows and results are in the tables rejects and quality_results"
        super().__init__(f"checks failed: {first}{more}", mend=mend)
        self.done = done


class DamageError(DamagedFileError):
    """Data files are damaged, and nothing was made from them; `done` is what was done with the others."""

    def __init__(self, done: dict[str, Any], damage: Sequence[Damage]) -> None:
        super().__init__(damage)
        self.done = done


def damage_in(done: dict[str, Any]) -> list[Damage]:
    """Return the damaged files that a call of one of the functions below tells of, each once."""
    told = [done, *done.get("rollups", []), done.get("ingest", {}), *done.get("rollup", {}).get("rollups", [])]
    return list(dict.fromkeys(Damage(**one) for some in told for one in some.get("damaged", [])))


def refuse_damage(done: dict[str, Any]) -> dict[str, Any]:
    """Return what was done. Raises `DamageError` where it tells of damaged files, so that a flow ends Failed."""
    if found := damage_in(done):
        raise DamageError(done, found)
    return done


def ingest_once(settings: Settings, progress: Progress | None = None) -> dict[str, Any]:
    """Bring new segments into the lake; return what `ranklake.lake.ingest.run.Ingested` says."""
    limits = Limits(**settings.limits)
    lake = Lake.create(settings.lake, settings.options, settings.encryption_key).limited(limits)
    lake = lake.trusting(settings.trust)
    spool = Spool(settings.spool, settings.options, Writers(settings.prefixes), limits)
    with on_demand(settings.dask_address, settings.dask_workers, settings.dask_memory, settings.dask_tls) as crew:
        return asdict(ingest(lake, spool, crew, progress=progress))


def check_once(settings: Settings, progress: Progress | None = None, kinds: Sequence[str] = KINDS) -> dict[str, Any]:
    """Check new partitions of tables of some kinds; return whether all passed and the results that did not."""
    overlay = Path(settings.contracts) if settings.contracts else None
    lake = Lake.open(settings.lake, settings.options).trusting(settings.trust)
    report = run_checks(lake, kinds=kinds, contracts_overlay=overlay, progress=progress)
    return report.summary()


def rollup_once(settings: Settings, progress: Progress | None = None) -> dict[str, Any]:
    """Recompute what changed; return the partitions written per rollup."""
    lake = Lake.open(settings.lake, settings.options).priced(settings.prices)
    results = run_rollups(lake, progress=progress)
    return {"rollups": [asdict(result) for result in results]}


def upkeep_once(settings: Settings, progress: Progress | None = None, *, with_scrub: bool = False) -> dict[str, Any]:
    """Merge small files, shorten the logs, purge; return what `ranklake.lake.maintenance.run.Upkept` says."""
    lake = Lake.open(settings.lake, settings.options).limited(Limits(**settings.limits)).trusting(settings.trust)
    with on_demand(settings.dask_address, settings.dask_workers, settings.dask_memory, settings.dask_tls) as crew:
        return asdict(upkeep(lake, crew, with_scrub=with_scrub, progress=progress))


def catalog_once(settings: Settings) -> dict[str, Any]:
    """Bring the catalog's tables up to date; return how many rows each got."""
    overlay = Path(settings.contracts) if settings.contracts else None
    return asdict(refresh(Lake.open(settings.lake, settings.options), overlay))


def pipeline_once(settings: Settings) -> dict[str, Any]:
    """Ingest, check facts, roll up, check rollups, refresh the catalog; a failed check stops nothing."""
    ingested = ingest_once(settings)
    facts = check_once(settings, kinds=FACTS)
    rolled_up = rollup_once(settings)
    rollups = check_once(settings, kinds=ROLLUPS)
    cataloged = catalog_once(settings)
    return {"ingest": ingested, "check": together(facts, rollups), "rollup": rolled_up, "catalog": cataloged}
