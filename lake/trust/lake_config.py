"""What a lake goes by: those sections of ``ranklake.toml`` that its rooms use.

Nobody who writes the bucket can change them, so what is in the lake can be held against them. They travel as one
object, from the configuration to whoever opens a lake or a spool: a new key is a field here and a line where it is
used.
"""

from dataclasses import dataclass, field
from typing import Final

from ranklake.lake.trust.limits import Limits
from ranklake.lake.trust.writers import Prefix, Writers


@dataclass(frozen=True, slots=True)
class SpoolSection:
    """Where capture uploads segments to and ingest reads them from."""

    uri: str = field(default="", metadata={"variable": "RANKLAKE_SPOOL"})
    """Folder or object-store URI of the spool; overridden by ``--spool``, too."""
    local: str = ""
    """Folder on a node's own disk that ranks record into; ``RANKLAKE_LOCAL_SPOOL`` wins. Empty: below /var/tmp."""
    prefixes: tuple[Prefix, ...] = ()
    """Who may write where, each as a table ``[[spool.prefixes]]``."""

    def __post_init__(self) -> None:
        Writers(self.prefixes)  # raises `ValueError`

    @property
    def writers(self) -> Writers:
        """What is said of all prefixes."""
        return Writers(self.prefixes)


@dataclass(frozen=True, slots=True)
class CostSection:
    """What devices cost."""

    prices: str = field(default="", metadata={"variable": "RANKLAKE_PRICES"})
    """Price table (CSV), see docs/goodput.md. Empty: costs are unknown."""


@dataclass(frozen=True, slots=True)
class AuditSection:
    """What the audit trail is held against."""

    witness: str = field(default="", metadata={"variable": "RANKLAKE_AUDIT_WITNESS"})
    """Where its head is written down outside the lake: ``file:/folder`` or a URI that who writes the lake cannot write.
    Empty: only beside the table."""


@dataclass(frozen=True, slots=True)
class PlansSection:
    """Whether plans are sealed with a key that who writes the bucket need not have."""

    key: str = field(default="", metadata={"variable": "RANKLAKE_PLANS_KEY"})
    """Where the keys are: ``file:/path``, ``env:NAME`` or ``command:/path``; the first seals, all are believed. Empty:
    plans are not sealed."""
    require_signed_plans: bool = False
    """Refuse a plan that is found without a seal."""


@dataclass(frozen=True, slots=True)
class LakeConfig:
    """What a lake goes by, section by section; what stands in other places of the configuration has its own names.

    Attributes
    ----------
    spool, cost, audit, plans, ingest
        The sections.
    encryption_key
        Where the keys of encrypted segments are, ``[capture] encryption_key``; see `ranklake.segments.keys`.
    spools
        Spools (URIs or folders) that a found plan may read; none: any.
    """

    spool: SpoolSection = field(default_factory=SpoolSection)
    cost: CostSection = field(default_factory=CostSection)
    audit: AuditSection = field(default_factory=AuditSection)
    plans: PlansSection = field(default_factory=PlansSection)
    ingest: Limits = field(default_factory=Limits)
    encryption_key: str = ""
    spools: tuple[str, ...] = ()


DEFAULT: Final = LakeConfig()
