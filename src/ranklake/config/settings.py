"""Configuration: ``ranklake.toml``, then the environment, then options; the later wins.

``RANKLAKE_CONFIG`` names the file (default: ``ranklake.toml`` in the current folder, if there is one). An unknown key
is an error, never ignored: a misspelt retention path would otherwise keep data that should go.

A key is declared once, as a field of its section. Its type, its default, its check and the variable that overrides it
all come from there; what uses it reads it from the `Config` or, in a room, from what `ranklake.context` opens.
`load_config` raises what is wrong with the file; ``ranklake config`` and ``ranklake doctor`` go on with what is sound.
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
    """Where the governed tables are."""

    uri: str = field(default="", metadata={"variable": "RANKLAKE_LAKE"})
    """Folder or object-store URI of the lake; overridden by ``--lake``, too."""
    allow_http: bool = False
    """Whether the store may be reached by ``http://`` on another machine: rows and credentials pass in clear, and
    ``ranklake doctor`` refuses that by default."""
    allow_unprotected: bool = False
    """Whether all who may read the lake's folder or bucket may see all that is in it: ``ranklake doctor`` then does not
    warn where nothing is masked."""


@dataclass(frozen=True, slots=True)
class SqlSection:
    """Who may query what."""

    roles: str = ""
    """Role file, for ``ranklake sql --role``; see `ranklake.lake.query.role_file`. Empty: there are no roles."""
    grants: bool = False
    """Roles are used and shared only under a grant that is in force; see docs/grants.md."""


@dataclass(frozen=True, slots=True)
class SharesSection:
    """Copies of what roles see, which the pipeline keeps up to date; see docs/shares.md."""

    to: str = field(default="", metadata={"variable": "RANKLAKE_SHARES"})
    """Folder or object-store URI below which each role has a prefix of its own; ``--to`` overrides it."""
    roles: tuple[str, ...] = ()
    """Roles that are shared there. Others are shared by ``ranklake share``."""
    key: str = ""
    """Where the keys are that profiles of ``ranklake sharing`` are made with: ``file:/path``, ``env:NAME`` or
    ``command:/path``, the newest first. Without the key that made it, a profile is good for nothing."""


@dataclass(frozen=True, slots=True)
class ArtifactsSection:
    """Which locations that ranks recorded commands may open."""

    allow: tuple[str, ...] = ()
    """Folders and URIs such as ``s3://checkpoints/prod``, and everything below them. Locations named on the command
    line, the lake and the spool are always allowed."""


@dataclass(frozen=True, slots=True)
class RetentionSection:
    """How long data is kept."""

    policies: str = ""
    """Folder of policy files, or one file; empty means the packaged ``retention/policies/``."""
    region: str = ""
    """Region that the lake is in, such as ``eu``: rules of other regions do not apply. Needed where a rule has one."""


@dataclass(frozen=True, slots=True)
class PlaybooksSection:
    """What is done about incidents; see docs/playbooks.md."""

    files: str = ""
    """File of playbooks, or folder of such files. The pipeline follows them after the rollups. Empty: it does not."""
    act: bool = False
    """Whether the pipeline does what playbooks allow. By default it only writes down what it would do."""
    off: bool = False
    """Whether nothing acts, whoever asks. ``ranklake playbooks stop`` does the same at once, on all machines."""
    per_hour: int = 20
    """Steps of all playbooks in an hour at most, those among them that are only proposed."""
    max_age_h: int = 24
    """Hours after which an incident that is over, or of which nothing new is known, leads to nothing any more."""


@dataclass(frozen=True, slots=True)
class AlertsSection:
    """Alert rules and receivers; see docs/alerts.md. Without `file` and `notify`, nothing is sent."""

    file: str = ""
    """File of alerts: rules, routes, receivers, silences."""
    notify: str = ""
    """Receiver of the packaged rules, in place of a file: where its URL is, such as ``env:SLACK_URL``. They tell when a
    run dies, hangs, diverges or wastes GPUs, when telemetry stops, a budget burns, checks or the pipeline fail."""
    heartbeat: str = ""
    """Beside `notify`: where the URL is to which each round posts, so that somebody notices when rounds stop."""
    role: str = ""
    """Role whose rows and masks hold in messages. Empty: all is told as it is."""
    query_timeout_s: float = 30.0
    """How long the query of one rule may take."""

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
    """What is promised: service level objectives, which ``ranklake slo`` and the pipeline evaluate."""

    files: str = ""
    """Folder of objectives in OpenSLO v1, ``*.yaml``; empty means the packaged ones. See docs/slo.md."""
    fast_page_burn_rate: float = 14.4
    """Burn rate of the last hour and the last five minutes above which an alert is a page."""
    slow_page_burn_rate: float = 6.0
    """Likewise, of the last six hours and the last half an hour."""
    ticket_burn_rate: float = 1.0
    """Likewise, of the last three days and the last six hours: a ticket."""


@dataclass(frozen=True, slots=True)
class OpenLineageSection:
    """Where events of what stages read and wrote go, for other programs; see docs/lineage.md."""

    url: str = ""
    """File to which a line an event is appended, or ``http(s)://`` of a receiver; empty sends none."""
    key: str = field(default="", repr=False)
    """Where the receiver's API key is: ``env:NAME``, ``file:/path`` or ``command:/path/to/helper``."""
    namespace: str = ""
    """Namespace of the jobs; by default the lake's place."""


@dataclass(frozen=True, slots=True)
class HealthSection:
    """When the pipeline itself is not well; see docs/monitoring.md."""

    every_s: int = 60
    """Seconds between two looks of ``ranklake up`` at the lake, for ``/metrics`` and ``/healthz``."""
    overdue_s: int = 3600
    """Seconds for which something may wait for a stage before that is overdue; the catalog and upkeep have 48 times as
    long."""
    proposal_h: int = 72
    """Hours after which a proposal that waits for a person is a finding of ``ranklake doctor`` and ``status``."""
    disk_free_ratio: float = 0.05
    """Share of a disk below which it is nearly full, so that ``/healthz`` answers 503."""

    def __post_init__(self) -> None:
        if self.every_s < 1:
            raise ValueError("every_s must be at least 1")
        if not 0 <= self.disk_free_ratio < 1:
            raise ValueError("disk_free_ratio must be at least 0 and below 1")


@dataclass(frozen=True, slots=True)
class ReportSection:
    """Where report pages are written, and where people read them."""

    out: str = field(default="", metadata={"variable": "RANKLAKE_REPORT"})
    """Folder or object-store URI of the report pages. The pipeline writes those that changed at its end. Empty: it
    writes none."""
    url: str = ""
    """Where people open the pages in a browser, such as the bucket's website: artifacts of runs link there. Empty: they
    have no link."""

    def __post_init__(self) -> None:
        if self.url and not self.url.startswith(("https://", "http://")):
            raise ValueError("url begins with https:// or http://")


@dataclass(frozen=True, slots=True)
class UiSection:
    """Who looks at ``ranklake ui`` through a proxy that logs people in, and limits of queries; see docs/ui.md."""

    user_header: str = ""
    """Header in which the proxy names the user, such as ``X-Forwarded-Email``. Empty: no header is read."""
    proxies: tuple[str, ...] = ()
    """Addresses or networks of the proxy, such as ``10.0.0.7`` or ``10.0.0.0/28``: the header is believed from there
    alone, and a request with it from elsewhere is refused."""
    users: tuple[str, ...] = ()
    """Users and their roles, such as ``ada@example.com = owner`` or ``*@example.com = reader``; the first that matches
    counts. A user without one sees nothing."""
    query_s: float = 60.0
    """Longest that a query of the page *Ask* may run."""
    query_memory_bytes: int = 2 * 2**30
    """Most memory that the process of such a query may take."""

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
    """One section each; ``storage`` is handed to fsspec and delta-rs alike, key by key."""

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
    provider chain, or name where they are: ``file:/path``, ``env:NAME`` or ``command:/path/to/helper``."""
    file: str = ""
    """The file that was read, as an absolute path; empty if there is none."""

    @property
    def lake_config(self) -> LakeConfig:
        """What whoever opens the lake or the spool goes by: all sections that the two have in common, and the keys."""
        shared = {item.name: getattr(self, item.name) for item in fields(LakeConfig) if item.name in _SECTIONS}
        spools = (self.spool.uri,) if self.spool.uri else ()
        return LakeConfig(**shared, encryption_key=self.capture.encryption_key, spools=spools)

    @property
    def overlay(self) -> Path | None:
        """Folder of the operator's own contracts, if there is one."""
        return Path(self.contracts.overlay) if self.contracts.overlay else None

    @property
    def masking_policy(self) -> Path | None:
        """File that says what is masked at capture, if there is one."""
        file = self.masking.policy or self.capture.masking_policy
        return Path(file) if file else None

    @property
    def masking_key(self) -> str:
        """Where the keys of pseudonyms are; empty if nobody says."""
        return self.masking.key or self.capture.masking_key

    def uri_of(self, noun: str) -> str:
        """Return the URI of the ``lake`` or the ``spool``. Raises `ConfigError` if there is none."""
        uri: str = getattr(self, noun).uri
        if not uri:
            hint = f"pass --{noun} URI, set RANKLAKE_{noun.upper()}, or write uri under [{noun}] in ranklake.toml"
            raise ConfigError(f"no {noun} configured", hint=hint)
        return uri

    def report_out(self) -> str:
        """Return where report pages are written. Raises `ConfigError` if nobody says."""
        if not self.report.out:
            hint = "pass --out URI, set RANKLAKE_REPORT, or write out under [report] in ranklake.toml"
            raise ConfigError("no place for report pages configured", hint=hint)
        return self.report.out

    def wanted_shares(self) -> list[tuple[str, str]]:
        """Return the roles that are to be shared, each with its place. Raises `ConfigError` if nobody says where."""
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
    """A configuration file as it was read.

    Attributes
    ----------
    config
        What is sound in it; defaults if there is none.
    lines
        Line of each sound key, by ``section.key``.
    problems
        What is wrong with it, in the order of lines.
    """

    config: Config = field(default_factory=Config)
    lines: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[RanklakeError, ...] = ()

    @property
    def file(self) -> str:
        """Its absolute path; empty if there is none."""
        return self.config.file


def load_config(path: Path | None = None) -> Config:
    """Read the configuration file, if any, and the environment. Raises `ConfigError` for all that is wrong."""
    read = read_config(path)
    raise_all(read.problems)
    return merge_environment(read, os.environ)


def read_config(path: Path | None = None) -> ConfigFile:
    """Read the configuration file: a path's, the one that ``RANKLAKE_CONFIG`` names, or ``ranklake.toml`` here, if any.

    Raises `ConfigError` where one is named that is not there.
    """
    named = path or (Path(os.environ["RANKLAKE_CONFIG"]) if os.environ.get("RANKLAKE_CONFIG") else None)
    file = named or Path("ranklake.toml")
    if not os.path.lexists(file):
        if named is None:
            return ConfigFile()
        hint = "write the file, or name another" if path else "unset RANKLAKE_CONFIG or write the file"
        raise ConfigError("no such configuration file", where=str(named), hint=hint)
    try:
        read = OperatorFile(file, error=ConfigError, noun="configuration file", is_toml=True)
    except ConfigError as error:
        return ConfigFile(Config(file=str(file.absolute())), problems=(error,))
    problems = list(_remove_invalid(read))
    config, wrong = read.load_sound(Config)
    problems = sorted([*problems, *wrong], key=lambda error: int(error.where.rpartition(":")[2]))
    lines = {f"{name}.{key}": read.line((name, key)) for name, section in read.content.items() for key in section}
    return ConfigFile(replace(config or Config(), file=str(file.absolute())), lines, tuple(problems))


def _remove_invalid(file: OperatorFile) -> Iterator[RanklakeError]:
    """Take out of a file what is in no section of ours, and numbers below 0; yield an error for each.

    Options of stores become text.
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
    """Return what a file and the environment say together; an empty variable says nothing."""
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
    """Return what variables say, by ``section.key``; an empty one says nothing.

    Of capture's, those whose value is not usable are left out, as capture leaves them out.
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
