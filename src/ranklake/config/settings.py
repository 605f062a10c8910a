"""Configuration: ``ranklake.toml``, then the environment, then options; the later wins.

``RANKLAKE_CONFIG`` names the file (default: ``ranklake.toml`` in the current folder, if there is one). An unknown key
is an error, never ignored: a misspelt retention path would otherwise keep data that should go.

A key is declared once, as a field of its section. Its type, its default, its check and the variable that overrides it
all come from there; code reads it from the `Config` or, in a room, from objects that `ranklake.context` opens.
`load_config` raises the file's faults; ``ranklake config`` and ``ranklake doctor`` continue with the valid keys.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, Self

from ranklake.capture.common.settings import PREFIX, CaptureSettings
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.plans.workers import DaskSection
from ranklake.lake.store.lake_config import (
    ApprovalsSection,
    AuditSection,
    BackupSection,
    ContractsSection,
    CostSection,
    DetectorsSection,
    LakeConfig,
    MaskingSection,
    PlansSection,
    QualitySection,
    QuerySection,
    SpoolSection,
    SubjectsSection,
    TopologySection,
)
from ranklake.lake.store.limits import Limits
from ranklake.operator_files import OperatorFile, raise_all
from ranklake.segments.references import is_reference

STORAGE: Final = "storage"


class ConfigError(RanklakeError):
    """A configuration file or value that cannot be used."""


@dataclass(frozen=True, slots=True)
class LakeSection:
    """Location of the governed tables."""

    uri: str = field(default="", metadata={"variable": "RANKLAKE_LAKE"})
    """Folder or object-store URI of the lake; overridden by ``--lake``, too."""
    allow_http: bool = False
    """Whether the store may be reached by ``http://`` on another machine: rows and credentials pass in clear, and
    ``ranklake doctor`` refuses that by default."""
    allow_unprotected: bool = False
    """Whether everybody who can read the lake's folder or bucket may see all its data: then ``ranklake doctor`` does
    not warn about missing masks."""


@dataclass(frozen=True, slots=True)
class SqlSection:
    """Who may query what."""

    roles: str = ""
    """Role file, for ``ranklake sql --role``; see `ranklake.lake.query.role_file`. Empty: there are no roles."""
    grants: bool = False
    """Roles are used and shared only under a grant that is in force; see docs/grants.md."""


@dataclass(frozen=True, slots=True)
class SharesSection:
    """Masked copies for roles, which the pipeline keeps up to date; see docs/shares.md."""

    to: str = field(default="", metadata={"variable": "RANKLAKE_SHARES"})
    """Folder or object-store URI below which each role has a prefix of its own; ``--to`` overrides it."""
    roles: tuple[str, ...] = ()
    """Roles to share there. Share other roles with ``ranklake share``."""
    key: str = ""
    """Location of the keys for profiles of ``ranklake sharing``: ``file:/path``, ``env:NAME`` or ``command:/path``, the
    newest first. A profile is invalid without its key."""


@dataclass(frozen=True, slots=True)
class ArtifactsSection:
    """Recorded locations that commands may open."""

    allow: tuple[str, ...] = ()
    """Folders and URIs such as ``s3://checkpoints/prod``, and everything below them. Locations named on the command
    line, the lake and the spool are always allowed."""


@dataclass(frozen=True, slots=True)
class RetentionSection:
    """How long data is kept."""

    policies: str = ""
    """Folder of policy files, or one file; empty means the packaged ``retention/policies/``."""
    region: str = ""
    """Region of the lake, such as ``eu``: rules of other regions do not apply. Required if a rule has a region."""


@dataclass(frozen=True, slots=True)
class PlaybooksSection:
    """Automated steps for incidents; see docs/playbooks.md."""

    files: str = ""
    """File of playbooks, or folder of such files. The pipeline runs them after the rollups. Empty: none."""
    act: bool = False
    """Whether the pipeline runs the steps of playbooks. By default it only records them as proposals."""
    off: bool = False
    """Whether playbooks are switched off, also for commands. ``ranklake playbooks stop`` does the same at once, on all
    machines."""
    per_hour: int = 20
    """Most steps of all playbooks in an hour, including proposals."""
    max_age_h: int = 24
    """Hours after an incident's last finding during which playbooks handle it."""


@dataclass(frozen=True, slots=True)
class AlertsSection:
    """Alert rules and receivers; see docs/alerts.md. Without `file` and `notify`, nothing is sent."""

    file: str = ""
    """File of alerts: rules, routes, receivers, silences."""
    notify: str = ""
    """Receiver of the packaged rules, instead of a file: a reference to its URL, such as ``env:SLACK_URL``. They alert
    when a run dies, hangs, diverges or wastes GPUs, when telemetry stops, a budget burns, checks or the pipeline
    fail."""
    heartbeat: str = ""
    """With `notify`: a reference to a URL that each round posts to, so that somebody notices when rounds stop."""
    role: str = ""
    """Role whose rows and masks apply to messages. Empty: everything, unmasked."""
    query_timeout_s: float = 30.0
    """Time limit of a rule's query."""

    def __post_init__(self) -> None:
        for name in ("notify", "heartbeat"):
            if (url := getattr(self, name)) and not is_reference(url):
                raise ValueError(f"{name} says where the URL is, by env:NAME or file:/path, since it is a secret")
        if self.file and (self.notify or self.heartbeat):
            name = "notify" if self.notify else "heartbeat"
            raise ValueError(f"{name} and file are two ways: write what {name} says into the file")
        if self.heartbeat and not self.notify:
            raise ValueError("heartbeat goes with notify: without it there are no rounds")


@dataclass(frozen=True, slots=True)
class SloSection:
    """Service level objectives, which ``ranklake slo`` and the pipeline evaluate."""

    files: str = ""
    """Folder of objectives in OpenSLO v1, ``*.yaml``; empty means the packaged ones. See docs/slo.md."""
    fast_page_burn_rate: float = 14.4
    """Burn rate of the last hour and the last five minutes above which an alert is a page."""
    slow_page_burn_rate: float = 6.0
    """Burn rate of the last six hours and the last half hour above which an alert is a page."""
    ticket_burn_rate: float = 1.0
    """Burn rate of the last three days and the last six hours above which an alert is a ticket."""


@dataclass(frozen=True, slots=True)
class OpenLineageSection:
    """OpenLineage events about the tables that stages read and wrote; see docs/lineage.md."""

    url: str = ""
    """File that gets one line per event, or ``http(s)://`` address of a receiver; empty: no events."""
    key: str = field(default="", repr=False)
    """Reference to the receiver's API key: ``env:NAME``, ``file:/path`` or ``command:/path/to/helper``."""
    namespace: str = ""
    """Namespace of the jobs; by default the lake's location."""


@dataclass(frozen=True, slots=True)
class HealthSection:
    """Health of the pipeline itself; see docs/monitoring.md."""

    every_s: int = 60
    """Seconds between two health checks of ``ranklake up``, for ``/metrics`` and ``/healthz``."""
    overdue_s: int = 3600
    """Seconds that input may wait for a stage before the stage is overdue; 48 times as long for the catalog and
    upkeep."""
    proposal_h: int = 72
    """Hours after which ``ranklake doctor`` and ``status`` report a proposal that waits for a person."""
    disk_free_ratio: float = 0.05
    """Free share of a disk below which ``/healthz`` answers 503."""

    def __post_init__(self) -> None:
        if self.every_s < 1:
            raise ValueError("every_s must be at least 1")
        if not 0 <= self.disk_free_ratio < 1:
            raise ValueError("disk_free_ratio must be at least 0 and below 1")


@dataclass(frozen=True, slots=True)
class ReportSection:
    """Location and address of report pages."""

    out: str = field(default="", metadata={"variable": "RANKLAKE_REPORT"})
    """Folder or object-store URI of the report pages. The pipeline writes changed pages at its end. Empty: none."""
    url: str = ""
    """Address of the pages in a browser, such as the bucket's website; artifacts in Prefect link there. Empty: no
    links."""

    def __post_init__(self) -> None:
        if self.url and not self.url.startswith(("https://", "http://")):
            raise ValueError("url begins with https:// or http://")


@dataclass(frozen=True, slots=True)
class UiSection:
    """Viewers of ``ranklake ui`` behind an authenticating proxy, and limits of queries; see docs/ui.md."""

    user_header: str = ""
    """Header in which the proxy names the user, such as ``X-Forwarded-Email``. Empty: no header is read."""
    proxies: tuple[str, ...] = ()
    """Addresses or networks of the proxy, such as ``10.0.0.7`` or ``10.0.0.0/28``: the header is trusted only from
    there, and requests with it from elsewhere are refused."""
    users: tuple[str, ...] = ()
    """Users and their roles, such as ``ada@example.com = owner`` or ``*@example.com = reader``; the first match
    decides. A user without a match sees nothing."""
    query_s: float = 60.0
    """Time limit of a query on the page *Ask*."""
    query_memory_bytes: int = 2 * 2**30
    """Memory limit of such a query's process."""

    def __post_init__(self) -> None:
        if self.query_s <= 0 or self.query_memory_bytes <= 0:
            raise ValueError("query_s and query_memory_bytes are above 0")
        if any((self.user_header, self.proxies, self.users)) and not all((self.user_header, self.proxies, self.users)):
            raise ValueError("user_header, proxies and users go together")
        for proxy in self.proxies:
            ip_network(proxy, strict=False)
        if any(not all(pair) for pair in self.roles_of_users):
            raise ValueError("users are written as 'user = role'")

    @property
    def roles_of_users(self) -> list[tuple[str, str]]:
        """Patterns of users with their roles, in order."""
        pairs = (item.rpartition("=") for item in self.users)
        return [(user.strip(), role.strip()) for user, _, role in pairs]


@dataclass(frozen=True, slots=True)
class Config:
    """One section each; the keys of ``storage`` are passed to fsspec and delta-rs."""

    lake: LakeSection = field(default_factory=LakeSection)
    spool: SpoolSection = field(default_factory=SpoolSection)
    dask: DaskSection = field(default_factory=DaskSection)
    contracts: ContractsSection = field(default_factory=ContractsSection)
    retention: RetentionSection = field(default_factory=RetentionSection)
    sql: SqlSection = field(default_factory=SqlSection)
    query: QuerySection = field(default_factory=QuerySection)
    shares: SharesSection = field(default_factory=SharesSection)
    masking: MaskingSection = field(default_factory=MaskingSection)
    subjects: SubjectsSection = field(default_factory=SubjectsSection)
    cost: CostSection = field(default_factory=CostSection)
    topology: TopologySection = field(default_factory=TopologySection)
    audit: AuditSection = field(default_factory=AuditSection)
    backup: BackupSection = field(default_factory=BackupSection)
    approvals: ApprovalsSection = field(default_factory=ApprovalsSection)
    ingest: Limits = field(default_factory=Limits)
    artifacts: ArtifactsSection = field(default_factory=ArtifactsSection)
    plans: PlansSection = field(default_factory=PlansSection)
    alerts: AlertsSection = field(default_factory=AlertsSection)
    slo: SloSection = field(default_factory=SloSection)
    report: ReportSection = field(default_factory=ReportSection)
    ui: UiSection = field(default_factory=UiSection)
    openlineage: OpenLineageSection = field(default_factory=OpenLineageSection)
    health: HealthSection = field(default_factory=HealthSection)
    playbooks: PlaybooksSection = field(default_factory=PlaybooksSection)
    quality: QualitySection = field(default_factory=QualitySection)
    detectors: DetectorsSection = field(default_factory=DetectorsSection)
    capture: CaptureSettings = field(default_factory=CaptureSettings)
    storage: dict[str, str] = field(default_factory=dict, repr=False)
    """Object-store options under delta-rs's names, such as ``aws_endpoint_url``. Leave credentials to the default
    provider chain, or refer to them: ``file:/path``, ``env:NAME`` or ``command:/path/to/helper``."""
    file: str = ""
    """The file that was read, as an absolute path; empty if there is none."""

    @property
    def lake_config(self) -> LakeConfig:
        """Configuration of the lake and the spool: their common sections, and the keys."""
        shared = {item.name: getattr(self, item.name) for item in fields(LakeConfig) if item.name in _SECTIONS}
        spools = (self.spool.uri,) if self.spool.uri else ()
        return LakeConfig(**shared, encryption_key=self.capture.encryption_key, spools=spools)

    @property
    def overlay(self) -> Path | None:
        """Folder of the operator's own contracts, if there is one."""
        return Path(self.contracts.overlay) if self.contracts.overlay else None

    @property
    def masking_policy(self) -> Path | None:
        """File of masks at capture, if there is one."""
        file = self.masking.policy or self.capture.masking_policy
        return Path(file) if file else None

    @property
    def masking_key(self) -> str:
        """Reference to the keys of pseudonyms; empty if not configured."""
        return self.masking.key or self.capture.masking_key

    def uri_of(self, noun: str) -> str:
        """Return the URI of the ``lake`` or the ``spool``. Raises `ConfigError` if there is none."""
        uri: str = getattr(self, noun).uri
        if not uri:
            hint = f"pass --{noun} URI, set RANKLAKE_{noun.upper()}, or write uri under [{noun}] in ranklake.toml"
            raise ConfigError(f"no {noun} configured", hint=hint)
        return uri

    def report_out(self) -> str:
        """Return the location of report pages. Raises `ConfigError` if not configured."""
        if not self.report.out:
            hint = "pass --out URI, set RANKLAKE_REPORT, or write out under [report] in ranklake.toml"
            raise ConfigError("no place for report pages configured", hint=hint)
        return self.report.out

    def wanted_shares(self) -> list[tuple[str, str]]:
        """Return the roles to share, each with its place. Raises `ConfigError` if no place is configured."""
        if self.shares.roles and not self.shares.to:
            message, hint = "roles are to be shared, and nobody says where", "write to under [shares] in ranklake.toml"
            raise ConfigError(message, where="[shares] roles", hint=hint)
        return [(role, self.shares.to) for role in self.shares.roles]

    def overridden(self, given: Mapping[str, object]) -> Self:
        """Return the configuration with some keys replaced: values by ``section.key``. An empty one changes nothing."""
        return self.replaced({place: value for place, value in given.items() if value})

    def replaced(self, given: Mapping[str, object]) -> Self:
        """Return the configuration with some keys replaced: values by ``section.key``."""
        sections: dict[str, Any] = {}
        for place, value in given.items():
            name, _, key = place.partition(".")
            sections[name] = replace(sections.get(name, getattr(self, name)), **{key: value})
        return replace(self, **sections)


_SECTIONS: dict[str, Any] = {
    item.name: item.default_factory for item in fields(Config) if is_dataclass(item.default_factory)
}
_FROM_TEXT: Final[Mapping[object, Callable[[str], Any]]] = {str: str, int: int, float: float}


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Result of reading a configuration file.

    Attributes
    ----------
    config
        Its valid keys, with defaults for others.
    lines
        Line of each sound key, by ``section.key``.
    problems
        Its faults, in the order of lines.
    """

    config: Config = field(default_factory=Config)
    lines: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[RanklakeError, ...] = ()

    @property
    def file(self) -> str:
        """Its absolute path; empty if there is none."""
        return self.config.file


def load_config(path: Path | None = None) -> Config:
    """Read the configuration file, if any, and the environment. Raises `ConfigError` with all faults."""
    read = read_config(path)
    raise_all(read.problems)
    return merge_environment(read, os.environ)


def read_config(path: Path | None = None) -> ConfigFile:
    """Read the configuration file: a path's, the one that ``RANKLAKE_CONFIG`` names, or ``ranklake.toml`` here, if any.

    Raises `ConfigError` if a named file does not exist.
    """
    named_file = path or (Path(os.environ["RANKLAKE_CONFIG"]) if os.environ.get("RANKLAKE_CONFIG") else None)
    file = named_file or Path("ranklake.toml")
    if not os.path.lexists(file):
        if named_file is None:
            return ConfigFile()
        hint = "write the file, or name another" if path else "unset RANKLAKE_CONFIG or write the file"
        raise ConfigError("no such configuration file", where=str(named_file), hint=hint)
    try:
        read = OperatorFile(file, error=ConfigError, noun="configuration file", is_toml=True)
    except ConfigError as error:
        return ConfigFile(Config(file=str(file.absolute())), problems=(error,))
    problems = list(_remove_invalid(read))
    config, invalid_keys = read.load_sound(Config)
    problems = sorted([*problems, *invalid_keys], key=lambda error: int(error.where.rpartition(":")[2]))
    lines = {f"{name}.{key}": read.line((name, key)) for name, section in read.content.items() for key in section}
    return ConfigFile(replace(config or Config(), file=str(file.absolute())), lines, tuple(problems))


def _remove_invalid(file: OperatorFile) -> Iterator[RanklakeError]:
    """Remove unknown sections and negative numbers from a file's content; yield an error for each.

    Converts options of stores to text.
    """
    known = [*_SECTIONS, STORAGE]
    for name, section in list(file.content.items()):
        if isinstance(section, dict) and name in known:
            yield from _refused_keys(file, name, section)
            continue
        del file.content[name]
        if isinstance(section, dict):
            yield file.error((name,), f"unknown section [{name}]", did_you_mean(name, known))
        elif name in known:
            hint = f"write [{name}] in a line of its own, and its keys below"
            yield file.error((name,), f"{name} must be a section, not {type(section).__name__}", hint)
        else:
            yield file.error((name,), f"{name!r} stands outside a section", "put it under a [section]")


def _refused_keys(file: OperatorFile, name: str, section: dict[str, Any]) -> Iterator[RanklakeError]:
    for key, value in list(section.items()):
        message = ""
        if name == STORAGE and not isinstance(value, dict | list):
            section[key] = str(value).lower() if isinstance(value, bool) else str(value)
        elif name == STORAGE:
            message = f"must be text, not {type(value).__name__}"
        elif isinstance(value, int | float) and value < 0:
            message = "must not be negative"
        if message:
            del section[key]
            yield file.error((name, key), f"{name}.{key} {message}")


def merge_environment(read: ConfigFile, environment: Mapping[str, str]) -> Config:
    """Merge a file with the environment; empty variables are ignored."""
    return read.config.replaced(from_environment(environment))


def variables() -> dict[str, str]:
    """Return the variables that override keys, by ``section.key``."""
    result = {
        f"{name}.{item.name}": item.metadata["variable"]
        for name, kind in _SECTIONS.items()
        for item in fields(kind)
        if "variable" in item.metadata
    }
    return result | {f"capture.{item.name}": f"{PREFIX}{item.name.upper()}" for item in fields(CaptureSettings)}


def from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """Return the values of variables, by ``section.key``; empty ones are ignored.

    Unusable values of capture's variables are left out, as in capture.
    """
    result: dict[str, object] = {}
    kinds = {f"capture.{item.name}": item.type for item in fields(CaptureSettings)}
    for place, variable in variables().items():
        text = environment.get(variable)
        if not text:
            continue
        try:
            result[place] = _usable(place, kinds[place], text) if place in kinds else text
        except ValueError:
            continue
    return result


def _usable(place: str, kind: object, text: str) -> object:
    """Return the value of a setting of capture's. Raises `ValueError`."""
    value = _FROM_TEXT[kind](text)
    CaptureSettings(**{place.partition(".")[2]: value})
    return value
