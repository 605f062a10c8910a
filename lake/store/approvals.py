"""Who may approve what: the section ``[approvals]``, and its tiers of risk."""

from dataclasses import dataclass
from typing import Final

DAY_H: Final = 24
WEEK_H: Final = 7 * DAY_H
LARGE_BYTES: Final = 2**40
UNSIGNED: Final = "unsigned"
COMMAND: Final = "command"
SIGNED: Final = "signed"
MODES: Final = (UNSIGNED, COMMAND, SIGNED)
"""How a lake knows who acts, the weakest first: free text; what a helper prints; a signature."""
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
    tiers: tuple[Tier, ...] = ()
    """What proposals take by risk, each as a table ``[[approvals.tiers]]``; with signatures or a helper only. Empty:
    one approver, and two for what removes 1 TiB or more for good."""

    def __post_init__(self) -> None:
        if self.allowed_signers and self.identity:
            raise ValueError("identity and allowed_signers exclude each other: leave one of the two out")
        if not self.expires_h:
            raise ValueError("expires_h must not be 0: no approval could be used")

    @property
    def mode(self) -> str:
        """One of `MODES`."""
        return SIGNED if self.allowed_signers else COMMAND if self.identity else UNSIGNED

    def by_somebody(self, command: str) -> str:
        """Return a command with the option by which somebody says who runs it; a helper is asked without one."""
        return f"{command}{_NAMING[self.mode]}"
