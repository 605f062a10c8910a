"""A lake's configuration: the sections of ``ranklake.toml`` that concern the lake and its spools.

Writers of the bucket cannot change the configuration, so the lake's content can be checked against it. `LakeConfig` is
passed to every function that opens a lake or a spool. To add a setting, add a field here and read it where it applies.
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
"""How the acting person is identified, weakest first: free text, the output of a helper, or a signature."""
OWN_RUNS: Final = ("allow", "approve", "forbid")
_NAMING: Final = {UNSIGNED: " --by NAME", COMMAND: "", SIGNED: " --key KEY"}


@dataclass(frozen=True, slots=True)
class Tier:
    """Approvals that proposals of a risk need, from ``[[approvals.tiers]]``. All tiers that match a proposal apply."""

    name: str = ""
    """Name for people."""
    kinds: tuple[str, ...] = ()
    """Kinds of proposals that the tier matches, such as ``retention`` or ``migration``. Empty: all."""
    classes: tuple[str, ...] = ()
    """Retention classes; the tier matches proposals that touch one of them. Empty: all."""
    over_bytes: int = 0
    """The tier matches proposals about at least so many bytes. 0: any size, also an unknown one."""
    irreversible: bool = False
    """The tier matches only proposals that cannot be undone."""
    approvers: int = 1
    """Number of different people who must approve."""
    role: str = ""
    """Role that one of the approvers must have. Empty: none."""

    def __post_init__(self) -> None:
        if self.approvers < 1:
            raise ValueError(f"tiers: {self.name!r} asks for no approver")


DEFAULT_TIERS: Final = (
    Tier("any"),
    Tier("large", over_bytes=LARGE_BYTES, irreversible=True, approvers=2),
)
"""One approver; two for proposals that irreversibly remove 1 TiB or more."""


@dataclass(frozen=True, slots=True)
class ApprovalsSection:
    """Who may approve proposals, such as retention plans, and how people are identified; see docs/approvals.md."""

    allowed_signers: str = ""
    """Allowed-signers file of OpenSSH: one name, key, expiry and roles per line. If set, each proposal, approval and
    application must be signed with one of its keys. Empty: unsigned, names are free text."""
    identity: str = ""
    """Helper that prints the name and the roles of the person who runs the command: ``command:/path/to/helper``. Only
    without allowed_signers."""
    key: str = ""
    """SSH key that signs if ``--key`` is not given: a private key, or a public key that the agent has. For accounts
    that run flows."""
    expires_h: int = WEEK_H
    """Hours after which an approval expires."""
    own_runs: str = "allow"
    """Whether the person who started a run may delete it with ``ranklake delete``: ``allow`` (alone), ``approve``
    (with another person's approval) or ``forbid``. With signed approvals, another person must always approve."""
    tiers: tuple[Tier, ...] = ()
    """Approvals that proposals need by risk, each as a table ``[[approvals.tiers]]``; only with signatures or a helper.
    Empty: one approver, and two for proposals that irreversibly remove 1 TiB or more."""

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
        """Return a command with the option that identifies the person; a helper needs no option."""
        return f"{command}{_NAMING[self.mode]}"


@dataclass(frozen=True, slots=True)
class SpoolSection:
    """The spool: capture uploads segments to it, and ingest reads them from it."""

    uri: str = field(default="", metadata={"variable": "RANKLAKE_SPOOL"})
    """Folder or object-store URI of the spool. ``--spool`` overrides it, too."""
    local: str = field(default="", metadata={"variable": "RANKLAKE_LOCAL_SPOOL"})
    """Folder on a node's disk into which ranks record. Empty: below /var/tmp."""
    prefixes: tuple[Prefix, ...] = ()
    """Which runs may write below which prefix, each as a table ``[[spool.prefixes]]``."""
    fallback_uri: str = field(default="", metadata={"variable": "RANKLAKE_SPOOL_FALLBACK"})
    """A second spool, in another store or region. Agents send to it while the first is unavailable, and ingest moves
    its segments into the first. Empty: segments wait on the nodes' disks. See docs/agent.md."""
    fallback_after_s: float = 600.0
    """Seconds for which the first spool fails before agents send to the fallback spool."""
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
    """Verification of the audit log, and rotation of keys."""

    witness: str = field(default="", metadata={"variable": "RANKLAKE_AUDIT_WITNESS"})
    """Place outside the lake for copies of the audit log's head: ``file:/folder``, or a URI to which writers of
    the lake have no access. Empty: the head is stored only beside the table."""
    anchor_every_h: float = 0.0
    """Hours between anchors: upkeep signs the head of the log with ``[approvals] key`` and writes it to the witness. 0:
    never. Doctor warns if the newest anchor is twice as old."""
    anchor_lock_days: int = 0
    """Days for which the witness's bucket locks each anchor against deletion: S3 Object Lock in compliance mode. 0: no
    lock."""
    key_days: int = 365
    """Age in days from which doctor and the compliance page recommend rotating a key; 0 for never."""


@dataclass(frozen=True, slots=True)
class BackupSection:
    """Backups of the lake: see docs/disaster-recovery.md."""

    to: tuple[str, ...] = ()
    """Places of backups: folders, or URIs in another bucket or region. ``ranklake backup`` without a URI writes to each
    of them. Commands that irreversibly remove rows also back up to each, so that the rows are removed there, too."""
    keep_days: int = 7
    """Days for which earlier backups may contain rows that retention removed, so that these backups can be restored.
    Such rows exist in backups so many days longer than their policies say. 0: the first backup after a removal deletes
    all earlier ones. Erasures and forgotten keys always apply immediately."""
    key: str = field(default="", metadata={"variable": "RANKLAKE_BACKUP_KEY"})
    """Keyring of encrypted backups: ``file:/path``, ``env:NAME`` or ``command:/path/to/helper``. A new place is
    encrypted with the first key, and cannot change to unencrypted. Without the key, a reader sees only sizes and times.
    Store the key apart from the lake: without it, no backup can be restored."""
    every_h: float = 24.0
    """Hours between backups by the deployment ``backup``. Doctor reports a newest backup that is twice as old."""

    def __post_init__(self) -> None:
        if self.keep_days < 0:
            raise ValueError("keep_days is at least 0")
        if not self.every_h > 0:
            raise ValueError("every_h is more than 0")


@dataclass(frozen=True, slots=True)
class QuerySection:
    """The log of queries: which consumers use which columns. It contains neither statements nor results."""

    consumer: str = field(default="", metadata={"variable": "RANKLAKE_QUERY_CONSUMER"})
    """Name of the dashboard, job or team that queries; ``--consumer`` overrides it, too. Empty: the login name."""
    log: bool = True
    """Log which columns each query of ``ranklake sql`` uses."""
    keep_days: int = 180
    """Days after which upkeep deletes entries of the log."""

    def __post_init__(self) -> None:
        if self.keep_days < 1:
            raise ValueError("keep_days is at least 1")


@dataclass(frozen=True, slots=True)
class MaskingSection:
    """Masks: values that roles see in place of the stored ones; see docs/roles.md."""

    key: str = field(default="", metadata={"variable": "RANKLAKE_MASKING_KEY"})
    """Keyring of pseudonyms: ``file:/path``, ``env:NAME`` or ``command:/path``, the newest key first. Former keys must
    stay in it. Empty: no role can see hashes of a column."""
    policy: str = field(default="", metadata={"variable": "RANKLAKE_MASKING_POLICY"})
    """File that lists columns to mask at capture, before a row is written; see docs/roles.md. Empty: none."""


@dataclass(frozen=True, slots=True)
class SubjectsSection:
    """Columns about people, encrypted with a key for each person; see docs/subjects.md."""

    keys: str = field(default="", metadata={"variable": "RANKLAKE_SUBJECT_KEYS"})
    """Folder or URI of the keys, outside the lake and its backups. Empty: no column is encrypted."""
    copies: tuple[str, ...] = ()
    """Further places with copies of the keys. List every copy, so that a key can be forgotten in all of them."""
    wrap: str = field(default="", metadata={"variable": "RANKLAKE_SUBJECT_WRAP"})
    """Keyring that encrypts the keys: ``file:/path``, ``env:NAME`` or ``command:/path``, the newest key first. Former
    keys must stay in it."""
    columns: tuple[str, ...] = ()
    """Encrypted columns, such as ``runs.user`` (contains the person's name) or ``runs.command_line by user`` (the
    column ``user`` of the same row contains the name)."""
    clear: tuple[str, ...] = ()
    """Columns that were encrypted before, such as ``runs.user``, and are stored unencrypted from now on."""


@dataclass(frozen=True, slots=True)
class PlansSection:
    """Seals of plans, with a key that other writers of the bucket do not have."""

    key: str = field(default="", metadata={"variable": "RANKLAKE_PLANS_KEY"})
    """Keyring: ``file:/path``, ``env:NAME`` or ``command:/path``. The first key seals, all keys are accepted. Empty:
    plans are not sealed."""
    require_signed_plans: bool = False
    """Refuse plans of other processes without a seal."""


@dataclass(frozen=True, slots=True)
class QualitySection:
    """Your own suites for Great Expectations."""

    suites: str = ""
    """Folder or object-store URI of suites: JSON of Great Expectations, and Python files with your own expectations.
    Python files in a folder are executed. See docs/suites.md."""
    suites_code_sha256: str = ""
    """SHA-256 of all Python files together. Files with another digest are not executed, and files in an object store
    only with this setting. The failed result of such a suite contains the current digest."""
    suite_timeout_s: float = 60.0
    """Seconds after which an expectation of Great Expectations on one partition is aborted."""
    suite_rows: int = 500_000
    """Maximum number of rows of a partition for a user's suite. Larger partitions are sampled. The maximum is lower for
    tables with more than 40 columns."""

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
    """Value from which the detector reports a finding."""


@dataclass(frozen=True, slots=True)
class DetectorsSection:
    """Detectors of faults in runs, devices and hosts; ``ranklake detectors`` lists them."""

    off: tuple[str, ...] = ()
    """Names of disabled detectors."""
    thresholds: tuple[DetectorThreshold, ...] = ()
    """Thresholds that replace a detector's defaults, each as a table ``[[detectors.thresholds]]``."""
    limit_s: float = 60.0
    """CPU seconds after which a detector is interrupted for a run, device or host. A finding reports this."""


@dataclass(frozen=True, slots=True)
class LakeConfig:
    """A lake's configuration: sections of the same name, and single values of other sections.

    Attributes
    ----------
    encryption_key
        Keyring of encrypted segments, ``[capture] encryption_key``; see `ranklake.segments.keys`.
    spools
        Spools (URIs or folders) that plans of other processes may read. Empty: any.
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
