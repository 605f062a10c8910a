"""A lake's configuration: the sections of ``ranklake.toml`` that its rooms use.

Writers of the bucket cannot change them, so the lake's content can be checked against them. They are passed as one
object, from the configuration to whatever opens a lake or a spool: a new key is a field here and a line where it is
used.
"""

from dataclasses import dataclass, field
from typing import Final

from ranklake.lake.store.limits import Limits
from ranklake.lake.store.writers import Prefix, Writers

DAY_H: Final = 24
WEEK_H: Final = 7 * DAY_H
LARGE_BYTES: Final = 2**40
UNSIGNED: Final = "unsigned"
COMMAND: Final = "command"
SIGNED: Final = "signed"
MODES: Final = (UNSIGNED, COMMAND, SIGNED)
"""How a lake knows who acts, the weakest first: free text; what a helper prints; a signature."""
OWN_RUNS: Final = ("allow", "approve", "forbid")
_NAMING: Final = {UNSIGNED: " --by NAME", COMMAND: "", SIGNED: " --key KEY"}


@dataclass(frozen=True, slots=True)
class Tier:
    """What proposals of a risk take, from ``[[approvals.tiers]]``. All tiers that match a proposal hold together."""

    name: str = ""
    """What people call it."""
    kinds: tuple[str, ...] = ()
    """Kinds of proposals that it is for, such as ``retention`` or ``migration``. Empty: all."""
    classes: tuple[str, ...] = ()
    """Retention classes; it is for proposals that touch one of them. Empty: whatever they touch."""
    over_bytes: int = 0
    """It is for proposals about at least so many bytes. 0: of any size, and of those whose size is not known."""
    irreversible: bool = False
    """It is only for proposals that cannot be undone."""
    approvers: int = 1
    """How many different people must approve."""
    role: str = ""
    """A role that one of them must have. Empty: none."""

    def __post_init__(self) -> None:
        if self.approvers < 1:
            raise ValueError(f"tiers: {self.name!r} asks for no approver")


DEFAULT_TIERS: Final = (
    Tier("any"),
    Tier("large", over_bytes=LARGE_BYTES, irreversible=True, approvers=2),
)
"""One approver; two for what removes a tebibyte or more for good."""


@dataclass(frozen=True, slots=True)
class ApprovalsSection:
    """Who may approve proposals, such as retention plans, and how they show who they are; see docs/approvals.md."""

    allowed_signers: str = ""
    """Allowed-signers file of OpenSSH: one name, key, expiry and roles a line. From then on each proposal, approval and
    application must be signed by one of its keys. Empty: unsigned, names are free text."""
    identity: str = ""
    """Helper that prints who runs the command, and the roles: ``command:/path/to/helper``. Only without
    allowed_signers."""
    key: str = ""
    """SSH key that signs where ``--key`` is not given: a private key, or a public one that the agent has. For accounts
    that run flows."""
    expires_h: int = WEEK_H
    """How long an approval is good for, in hours."""
    own_runs: str = "allow"
    """Whether who started a run may delete it with ``ranklake delete``: ``allow`` alone, ``approve`` where another
    person approves, or ``forbid``. Where approvals are signed, nobody does so alone."""
    tiers: tuple[Tier, ...] = ()
    """What proposals take by risk, each as a table ``[[approvals.tiers]]``; with signatures or a helper only. Empty:
    one approver, and two for what removes 1 TiB or more for good."""

    def __post_init__(self) -> None:
        if self.allowed_signers and self.identity:
            raise ValueError("identity and allowed_signers exclude each other: leave one of the two out")
        if self.own_runs not in OWN_RUNS:
            raise ValueError(f"own_runs is one of {', '.join(OWN_RUNS)}")
        if not self.expires_h:
            raise ValueError("expires_h must not be 0: no approval could be used")

    @property
    def mode(self) -> str:
        """One of `MODES`."""
        return SIGNED if self.allowed_signers else COMMAND if self.identity else UNSIGNED

    def by_somebody(self, command: str) -> str:
        """Return a command with the option by which somebody says who runs it; a helper is asked without one."""
        return f"{command}{_NAMING[self.mode]}"


@dataclass(frozen=True, slots=True)
class SpoolSection:
    """Where capture uploads segments to and ingest reads them from."""

    uri: str = field(default="", metadata={"variable": "RANKLAKE_SPOOL"})
    """Folder or object-store URI of the spool; overridden by ``--spool``, too."""
    local: str = field(default="", metadata={"variable": "RANKLAKE_LOCAL_SPOOL"})
    """Folder on a node's own disk that ranks record into. Empty: below /var/tmp."""
    prefixes: tuple[Prefix, ...] = ()
    """Who may write where, each as a table ``[[spool.prefixes]]``."""
    fallback_uri: str = field(default="", metadata={"variable": "RANKLAKE_SPOOL_FALLBACK"})
    """A second spool, in another store or region: agents send there while the first is away, and ingest moves what is
    there into the first. Empty: segments wait on the nodes' disks. See docs/agent.md."""
    fallback_after_s: float = 600.0
    """How long the first spool fails before agents send to the fallback spool."""
    fallback_storage: dict[str, str] = field(default_factory=dict, repr=False)
    """Options of the fallback spool's store that differ from ``[storage]``, such as ``aws_region``."""

    def __post_init__(self) -> None:
        Writers(self.prefixes)  # raises `ValueError`

    @property
    def writers(self) -> Writers:
        """The rules of all prefixes."""
        return Writers(self.prefixes)


@dataclass(frozen=True, slots=True)
class ContractsSection:
    """Your own tables, columns, metrics and rollups."""

    overlay: str = ""
    """Folder of contract files that extend the packaged ones; see docs/overlays.md."""


@dataclass(frozen=True, slots=True)
class CostSection:
    """Prices of devices."""

    prices: str = field(default="", metadata={"variable": "RANKLAKE_PRICES"})
    """Price table (CSV), see docs/goodput.md. Empty: costs are unknown."""


@dataclass(frozen=True, slots=True)
class TopologySection:
    """Where nodes are."""

    file: str = ""
    """Racks and switches of nodes: CSV, YAML or Slurm's ``topology.conf``, see docs/incidents.md. Empty: unknown."""


@dataclass(frozen=True, slots=True)
class AuditSection:
    """What the audit trail is verified against."""

    witness: str = field(default="", metadata={"variable": "RANKLAKE_AUDIT_WITNESS"})
    """Where its head is also recorded, outside the lake: ``file:/folder``, or a URI that writers of the lake cannot
    write to. Empty: only beside the table."""
    anchor_every_h: float = 0.0
    """How often upkeep signs the trail's head by ``[approvals] key``, and writes that to the witness; 0 for never. An
    anchor that is twice as old is told by doctor."""
    anchor_lock_days: int = 0
    """Days for which the witness's bucket keeps each anchor locked, whoever asks to delete it: S3 Object Lock in
    compliance mode. 0: it is not asked to."""
    key_days: int = 365
    """Days after which doctor and the compliance page say that a key should be rotated; 0 for never."""


@dataclass(frozen=True, slots=True)
class BackupSection:
    """Where the lake is backed up to: see docs/disaster-recovery.md."""

    to: tuple[str, ...] = ()
    """Places of backups: folders, or URIs in another bucket or region. What removes rows for good backs up to each of
    them, so that they are gone there, too. ``ranklake backup`` without a URI does likewise."""
    keep_days: int = 7
    """Days for which earlier backups may hold what retention removed, so that one can go back by as many: so much
    longer than their policies say do such rows stay in backups. 0: not at all, and the first backup after a removal
    deletes all before. Erasures and forgotten keys never wait."""
    key: str = field(default="", metadata={"variable": "RANKLAKE_BACKUP_KEY"})
    """Where the keyring of encrypted backups is: ``file:/path``, ``env:NAME`` or ``command:/path/to/helper``. A new
    place is encrypted under its first key, and stays so: whoever reads the place without the key sees sizes and times.
    Keep the key apart from the lake: without it, no backup comes back."""
    every_h: float = 24.0
    """How often the deployment ``backup`` backs up to each place. A newest backup that is twice as old is overdue:
    doctor says so."""

    def __post_init__(self) -> None:
        if self.keep_days < 0:
            raise ValueError("keep_days is at least 0")
        if not self.every_h > 0:
            raise ValueError("every_h is more than 0")


@dataclass(frozen=True, slots=True)
class QuerySection:
    """The log of queries: which consumers use which columns, and nothing of what they ask or get."""

    consumer: str = field(default="", metadata={"variable": "RANKLAKE_QUERY_CONSUMER"})
    """Who asks: the name of a dashboard, a job, a team; overridden by ``--consumer``, too. Empty: the login name."""
    log: bool = True
    """Note in the lake which columns each query of ``ranklake sql`` uses."""
    keep_days: int = 180
    """Days after which upkeep deletes what was noted."""

    def __post_init__(self) -> None:
        if self.keep_days < 1:
            raise ValueError("keep_days is at least 1")


@dataclass(frozen=True, slots=True)
class MaskingSection:
    """What roles see in place of values that they must not see; see docs/roles.md."""

    key: str = field(default="", metadata={"variable": "RANKLAKE_MASKING_KEY"})
    """Where the keys of pseudonyms are: ``file:/path``, ``env:NAME`` or ``command:/path``, the newest first. Keys that
    were used stay there. Empty: no role can see a column by its hash."""
    policy: str = field(default="", metadata={"variable": "RANKLAKE_MASKING_POLICY"})
    """File that says which columns are masked at capture, before a row is written; see docs/roles.md. Empty: none."""


@dataclass(frozen=True, slots=True)
class SubjectsSection:
    """Columns that are stored under keys of the people whom they tell of; see docs/subjects.md."""

    keys: str = field(default="", metadata={"variable": "RANKLAKE_SUBJECT_KEYS"})
    """Folder or URI of the keys, outside of the lake and of what copies it. Empty: no column is stored so."""
    copies: tuple[str, ...] = ()
    """Further places that have each key, too. Name every copy that you keep: a key is forgotten in all of them."""
    wrap: str = field(default="", metadata={"variable": "RANKLAKE_SUBJECT_WRAP"})
    """Where the keys are that wrap them: ``file:/path``, ``env:NAME`` or ``command:/path``, the newest first. Keys that
    were used stay there."""
    columns: tuple[str, ...] = ()
    """Columns, such as ``runs.user`` (the person whom it names) or ``runs.command_line by user`` (of whom another
    column of the row names)."""
    clear: tuple[str, ...] = ()
    """Columns that were stored under keys, such as ``runs.user``, and are stored in clear from now on."""


@dataclass(frozen=True, slots=True)
class PlansSection:
    """Whether plans are sealed with a key that writers of the bucket need not have."""

    key: str = field(default="", metadata={"variable": "RANKLAKE_PLANS_KEY"})
    """Where the keys are: ``file:/path``, ``env:NAME`` or ``command:/path``. The first seals, all are accepted. Empty:
    plans are not sealed."""
    require_signed_plans: bool = False
    """Refuse plans of other processes that have no seal."""


@dataclass(frozen=True, slots=True)
class QualitySection:
    """Your own suites for Great Expectations."""

    suites: str = ""
    """Folder or object-store URI of suites: JSON as Great Expectations writes it, and Python files with your own
    expectations, which are run if they stand in a folder. See docs/suites.md."""
    suites_code_sha256: str = ""
    """Digest of all Python files together: others are not run. Those of an object store are run only with it; the
    errored result of such a suite names it."""
    suite_timeout_s: float = 60.0
    """How long one expectation that Great Expectations judges may take on one partition; then it is killed."""
    suite_rows: int = 500_000
    """Rows of a partition that Great Expectations is given for a user's suite; of larger ones a sample. Of tables with
    more than 40 columns fewer."""

    def __post_init__(self) -> None:
        if self.suite_timeout_s <= 0 or self.suite_rows < 1:
            raise ValueError("suite_timeout_s is more than 0, suite_rows 1 or more")


@dataclass(frozen=True, slots=True)
class DetectorThreshold:
    """A threshold of a detector, as ``ranklake detectors`` lists them."""

    detector: str
    """Name of the detector, such as ``loss_spike``."""
    name: str
    """Name of the threshold, such as ``min_effect``."""
    value: float
    """From when on it says something."""


@dataclass(frozen=True, slots=True)
class DetectorsSection:
    """What looks for faults in runs, devices and hosts; ``ranklake detectors`` lists it."""

    off: tuple[str, ...] = ()
    """Detectors that do not look."""
    thresholds: tuple[DetectorThreshold, ...] = ()
    """Thresholds other than the detector's own, each as a table ``[[detectors.thresholds]]``."""
    limit_s: float = 60.0
    """CPU seconds that a detector may take for one run, device or host; it is interrupted then, a finding says so."""


@dataclass(frozen=True, slots=True)
class LakeConfig:
    """A lake's configuration by section; values from other parts of the configuration have names of their own.

    Attributes
    ----------
    spool, contracts, cost, topology, audit, approvals, plans, query, masking, subjects, ingest, quality, detectors
        The sections.
    encryption_key
        Where the keys of encrypted segments are, ``[capture] encryption_key``; see `ranklake.segments.keys`.
    spools
        Spools (URIs or folders) that a found plan may read; none: any.
    """

    spool: SpoolSection = field(default_factory=SpoolSection)
    contracts: ContractsSection = field(default_factory=ContractsSection)
    cost: CostSection = field(default_factory=CostSection)
    topology: TopologySection = field(default_factory=TopologySection)
    audit: AuditSection = field(default_factory=AuditSection)
    approvals: ApprovalsSection = field(default_factory=ApprovalsSection)
    plans: PlansSection = field(default_factory=PlansSection)
    query: QuerySection = field(default_factory=QuerySection)
    masking: MaskingSection = field(default_factory=MaskingSection)
    subjects: SubjectsSection = field(default_factory=SubjectsSection)
    ingest: Limits = field(default_factory=Limits)
    quality: QualitySection = field(default_factory=QualitySection)
    detectors: DetectorsSection = field(default_factory=DetectorsSection)
    backup: BackupSection = field(default_factory=BackupSection)
    encryption_key: str = ""
    spools: tuple[str, ...] = ()


DEFAULT: Final = LakeConfig()
