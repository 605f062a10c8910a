"""Context: the configured lake, spool, workers, contracts and policies.

    ranklake.toml, environment ──▶ Config ─┐
    options of a command                   ├──▶ Context ──▶ lake, spool, workers, contracts, policies
    parameters of a flow  ─────────────────┘

Commands and flows get them all from here, so that settings apply everywhere. Each is opened on first use.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self

from ranklake.config import Config
from ranklake.insight.slo.document import ServiceLevelObjective, packaged_objectives, read_folder
from ranklake.insight.slo.evaluation import BurnAlert, burn_alerts
from ranklake.lake.audit.chain import refuse_witnessed
from ranklake.lake.contracts.capture_masks import NO_MASKS, load_capture_masks
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.contracts.model import Contract
from ranklake.lake.ingest.spool.spool import Spool, refuse_lost
from ranklake.lake.plans.dask_workers import on_demand, shared_cluster
from ranklake.lake.plans.workers import Workers
from ranklake.lake.query.role_file import load_role, load_roles
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.store.catalog import Catalog
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import LakeConfig
from ranklake.lake.store.store import Store
from ranklake.masking.masks import Pseudonyms
from ranklake.redaction.redact import redact_uri
from ranklake.retention.grants.use import current_grant, end_reason
from ranklake.retention.plans.mask_proof import Proof, prove
from ranklake.retention.policies.policies import Policies, load_policies, with_sunset
from ranklake.retention.proposals.identities import account


@dataclass(frozen=True, slots=True)
class Context:
    """The configured lake, spool and workers of a command or flow. Its repr contains no secret.

    Attributes
    ----------
    config
        The configuration with its overrides.
    lake_config
        The configuration of lake and spool. Plans may read the configured spool and an overriding one.
    is_new
        Whether to create a lake although spool or witness show that an earlier one existed.
    opened
        The lake, if it is open already (`with_lake`).
    """

    config: Config
    lake_config: LakeConfig = field(repr=False)
    is_new: bool = False
    opened: Lake | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, configured: Config, given: Mapping[str, object] | None = None) -> Self:
        """Return the context for a configuration and its overrides, by ``section.key``."""
        config = configured.overridden(given or {})
        spools = dict.fromkeys((*configured.lake_config.spools, *config.lake_config.spools))
        return cls(config, replace(config.lake_config, spools=tuple(spools)))

    def __repr__(self) -> str:
        lake, spool = redact_uri(self.config.lake.uri), redact_uri(self.config.spool.uri)
        return f"Context(lake={lake!r}, spool={spool!r}, file={self.config.file!r})"

    @property
    def lake_uri(self) -> str:
        """The lake's URI. Raises `ConfigError` if there is none."""
        return self.config.uri_of("lake")

    @property
    def spool_uri(self) -> str:
        """The spool's URI. Raises `ConfigError` if there is none."""
        return self.config.uri_of("spool")

    @property
    def has_spool(self) -> bool:
        """Whether a spool is configured or was given."""
        return bool(self.config.spool.uri)

    def open_lake(self) -> Lake:
        """Open the lake. Raises `ConfigError`, `NotALakeError` or `LakeUnreachableError`."""
        return self.opened or Lake.open(self.lake_uri, self.config.storage, self.lake_config)

    def create_lake(self) -> Lake:
        """Open the lake, or create it in an empty place. Raises also `UnsafeStoreError` and `LostLakeError`."""
        before_making = (lambda: None) if self.is_new else self._refuse_lost
        return Lake.create(self.lake_uri, self.config.storage, self.lake_config, before_making)

    def with_lake(self) -> Self:
        """Return the same context with an open lake, for several operations: each table is opened once.

        Raises as `open_lake`.
        """
        return replace(self, opened=self.open_lake())

    def _refuse_lost(self) -> None:
        if self.has_spool:
            refuse_lost(self.spool(), self.lake_uri)
        if self.lake_config.audit.witness:
            refuse_witnessed(self.lake_uri, self.lake_config.audit.witness, self.config.storage)

    def spool(self) -> Spool:
        """Return the spool. Raises `ConfigError` if none is configured."""
        return Spool(self.spool_uri, self.config.storage, self.lake_config)

    def spool_place(self) -> Store | None:
        """Return the place of the spool as a `Store`; None if none is configured."""
        return self.place(self.spool_uri) if self.has_spool else None

    def place(self, uri: str) -> Store:
        """Return a place outside the lake, reached with the lake's storage options. Raises `LakeUnreachableError`."""
        return Store.at(uri, self.config.storage)

    def workers(self) -> AbstractContextManager[Workers]:
        """Yield the workers that carry out plans; see `ranklake.lake.plans.dask_workers.on_demand`."""
        return on_demand(self.config.dask)

    def held_workers(self) -> AbstractContextManager[None]:
        """Share one cluster within the block; see `ranklake.lake.plans.dask_workers.shared_cluster`."""
        return shared_cluster(self.config.dask)

    @property
    def overlay(self) -> Path | None:
        """Folder of the operator's own contracts, if there is one."""
        return self.config.overlay

    def contracts(self) -> Mapping[str, Contract]:
        """Return all contracts by table, including the configured overlay; `Lake.contracts` returns those of a lake."""
        return load_contracts(self.overlay)

    def policies(self, lake: Lake | None = None, place: Path | None = None) -> Policies:
        """Return the retention policies for a lake's tables and sunset metrics, or for tables that are configured.

        Parameters
        ----------
        place
            File or folder; default: the configured ones.

        Raises `ranklake.retention.policies.policies.PolicyError`.
        """
        contracts = self.contracts() if lake is None else lake.contracts()
        policies = load_policies(contracts, place or self.policy_place, self.config.retention.region)
        return policies if lake is None else with_sunset(policies, lake)

    def slos(self) -> Mapping[str, ServiceLevelObjective]:
        """Return the service level objectives by name: those of ``[slo] files``, else the packaged ones.

        Raises `ranklake.insight.slo.document.SloError`, all faults at once.
        """
        return read_folder(Path(self.config.slo.files)) if self.config.slo.files else packaged_objectives()

    def burn_alerts(self) -> tuple[BurnAlert, ...]:
        """Return the alerts on burn rates, at the limits of ``[slo]``."""
        limits = self.config.slo
        return burn_alerts(limits.fast_page_burn_rate, limits.slow_page_burn_rate, limits.ticket_burn_rate)

    def mask_proofs(self, lake: Lake, tables: Collection[str] = ()) -> list[Proof]:
        """Verify masks in samples of stored values, of some tables or all: at capture, at rest, in shares.

        Raises `MaskError`, `RoleError`, `PolicyError` and `MissingKeyError` if masks, roles, policies or keys cannot be
        read.
        """
        contracts, policy = lake.contracts(), self.config.masking_policy
        capture = NO_MASKS if policy is None else load_capture_masks(policy, contracts)
        roles = self.roles(lake.catalog) if self.config.sql.roles else {}
        pseudonyms = Pseudonyms.of(self.config.masking_key) if self.config.masking_key else None
        chosen = {name: contract for name, contract in contracts.items() if not tables or name in tables}
        return list(
            prove(
                lake, chosen, self.policies(lake), roles,
                capture=capture, pseudonyms=pseudonyms, as_of=datetime.now(UTC).date(),
            )
        )  # fmt: skip

    def roles(self, catalog: Catalog) -> dict[str, Role]:
        """Return all roles, from the configured file. Raises `ranklake.lake.query.roles.RoleError`."""
        file = self.config.sql.roles
        if not file:
            raise RoleError("no roles are defined", hint="name their file by roles under [sql] in ranklake.toml")
        return load_roles(Path(file), catalog.contracts())

    def role(self, lake: Lake, name: str, warn: Callable[[str], object]) -> Role:
        """Return a role by its name, from the configured file; warn if its use awaits a review.

        Raises `RoleError`, and `ranklake.retention.grants.use.NotGrantedError` if roles need grants and none is in
        force.
        """
        file = self.config.sql.roles
        if not file:
            hint = "name their file by roles under [sql] in ranklake.toml"
            raise RoleError(f"no roles are defined, so none is called {name!r}", where="role", hint=hint)
        result = load_role(Path(file), name, lake.contracts())
        if self.config.sql.grants:
            grant = current_grant(lake, name, account(lake))
            if grant.awaits_review():
                warn(f"role {name} is used without approval, under {grant.name}, which waits for a review")
        return result

    def share_refusal(self, lake: Lake) -> Callable[[str], str]:
        """Return a function that returns why a role may not be shared now; empty if it may."""
        return partial(end_reason, lake) if self.config.sql.grants else lambda _: ""

    @property
    def own_folders(self) -> tuple[Path, ...]:
        """Local folders besides the lake and the spool with data from ranklake: the configured report."""
        out = self.config.report.out
        if not out:
            return ()
        place = self.place(out)
        return (Path(place.root),) if place.is_local and Path(place.root).is_dir() else ()

    @property
    def policy_place(self) -> Path | None:
        """The configured policy file or folder, if there is one."""
        return Path(self.config.retention.policies) if self.config.retention.policies else None
