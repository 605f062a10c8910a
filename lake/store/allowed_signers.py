"""Allowed signers: an OpenSSH file of names, keys, times and roles, read so that each key is one person's.

    ada@example.org valid-before="20270101Z" ssh-ed25519 AAAAC3… roles=compliance,owner

The roles stand behind the key, where OpenSSH reads a comment. What would let one person be two is refused: more than
one name on a line, a pattern for a name, a key under two names, an authority that certifies names. Keys of other
namespaces are passed over, so one file may serve Git, too.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Final

from ranklake.errors import RanklakeError
from ranklake.segments.references import read_reference

NAMESPACE: Final = "approval@ranklake"
"""Namespace of our signatures: those made for Git or files say nothing here."""
FORM: Final = 'NAME valid-before="20270101Z" ssh-ed25519 AAAA… roles=ROLE,ROLE'
_WORD: Final = re.compile(r'(?:[^\s"]|"[^"]*")+')
_OPTION: Final = re.compile(r'([a-z-]+)(?:="([^"]*)")?(?:,|$)', re.IGNORECASE)
_KEY_TYPE: Final = re.compile(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+")
_TIMES: Final = {len("YYYYMMDD"): "%Y%m%d", len("YYYYMMDDHHMM"): "%Y%m%d%H%M", len("YYYYMMDDHHMMSS"): "%Y%m%d%H%M%S"}


class SignersError(RanklakeError):
    """An allowed-signers file that cannot be used; nobody can approve anything by it."""


@dataclass(frozen=True, slots=True)
class Signer:
    """A key and whose it is.

    Attributes
    ----------
    name
        Its principal: who signs with it.
    key
        Base64 of the public key.
    roles
        What whoever has it may act as.
    after, before
        When it may sign; None for no bound.
    line
        The line as every OpenSSH reads it: without its times.
    """

    name: str
    key: str
    roles: frozenset[str]
    after: datetime | None
    before: datetime | None
    line: str

    def why_not(self, at: datetime) -> str:
        """Return why the key may not sign at a time; empty if it may."""
        if self.before is not None and at >= self.before:
            return f"the key of {self.name} expired at {self.before:%Y-%m-%d %H:%M} UTC"
        if self.after is not None and at < self.after:
            return f"the key of {self.name} is not valid before {self.after:%Y-%m-%d %H:%M} UTC"
        return ""


@dataclass(frozen=True, slots=True)
class Signers:
    """The keys of a file, and the digest of its text."""

    file: str
    sha256: str
    keys: tuple[Signer, ...]

    @property
    def text(self) -> str:
        """What OpenSSH verifies against."""
        return "".join(f"{one.line}\n" for one in self.keys)

    def of_key(self, key: str) -> list[Signer]:
        """Return the lines of a public key (base64)."""
        return [one for one in self.keys if one.key == key]


def load_signers(file: str) -> Signers:
    """Read an allowed-signers file. Raises `SignersError`, with file and line, and `SecretError`."""
    text, where = read_reference(f"file:{file}", "allowed-signers file")
    keys = []
    names: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):  # OpenSSH knows no other ends of lines
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        one = _signer(line.strip(), f"{where}:{number}")
        if one is None:
            continue
        if names.setdefault(one.key, one.name) != one.name:
            what = f"the key of {names[one.key]} stands there under another name: {one.name}"
            raise SignersError(what, where=f"{where}:{number}", hint="one key is one person's: take one line out")
        keys.append(one)
    if not keys:
        raise SignersError("names nobody who may approve", where=where, hint=f"write a line: {FORM}")
    return Signers(where, hashlib.sha256(text.encode()).hexdigest(), tuple(keys))


def _signer(line: str, where: str) -> Signer | None:
    """Return what a line says; None for a key of other namespaces."""
    words = _WORD.findall(line)
    at = next((place for place in (1, 2) if len(words) > place + 1 and _KEY_TYPE.fullmatch(words[place])), 0)
    if not at:
        raise SignersError("is no line of an allowed-signers file", where=where, hint=f"write {FORM}")
    name, options = words[0], _options(words[1] if at == len(("name", "options")) else "", where)
    if re.search(r'[*?!,"]', name):
        what = f"{name} is not one name"
        raise SignersError(what, where=where, hint="write one line for each person, without patterns")
    if "cert-authority" in options:
        what = "an authority would let whoever it certifies approve"
        raise SignersError(what, where=where, hint="write each person's own key")
    if not _is_ours(options.get("namespaces", NAMESPACE).split(",")):
        return None
    said = [word.removeprefix("roles=") for word in words[at + 2 :] if word.startswith("roles=")]
    roles = frozenset(role for one in said for role in one.split(",") if role)
    after, before = (_time(options[name], where) if name in options else None for name in _BOUNDS)
    plain = f'{name} namespaces="{NAMESPACE}" {words[at]} {words[at + 1]}'
    return Signer(name, words[at + 1], roles, after, before, plain)


_BOUNDS: Final = ("valid-after", "valid-before")


def _is_ours(spaces: Sequence[str]) -> bool:
    """Whether patterns match our namespace, as OpenSSH's do: `*` and `?`; one after a `!` excludes what it matches."""
    matching = [space for space in spaces if fnmatchcase(NAMESPACE, space.removeprefix("!").replace("[", "[[]"))]
    return bool(matching) and not any(space.startswith("!") for space in matching)


def _options(text: str, where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    end = 0
    for one in _OPTION.finditer(text):
        if one.start() == end and one[1].lower() not in found:
            found[one[1].lower()] = one[2] or ""
            end = one.end()
    known = {*_BOUNDS, "namespaces", "cert-authority"}
    if end != len(text) or found.keys() - known:
        raise SignersError(f"the options {text} are not understood", where=where, hint=f"write {FORM}")
    return found


def _time(text: str, where: str) -> datetime:
    """Return a bound as OpenSSH reads it: in UTC with a Z at its end, else in this machine's zone."""
    plain = text.removesuffix("Z")
    try:
        when = datetime.strptime(plain, _TIMES[len(plain)])  # noqa: DTZ007 - the zone comes next
    except (KeyError, ValueError):
        raise SignersError(f"{text} is no time", where=where, hint="write it as 20270101Z") from None
    return when.replace(tzinfo=UTC) if text.endswith("Z") else when.astimezone(UTC)
