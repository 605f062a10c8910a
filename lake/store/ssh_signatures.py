"""Signatures with SSH keys, created and verified offline by ``ssh-keygen -Y`` in our own namespace.

The private key stays on disk, in the agent or on a token. Verification checks the text, whether the key belongs to the
name, and whether the key was valid at the time. This module checks validity times itself: OpenSSH before 8.7 does not
support them, and before 9.1 not in UTC, and certificates may be verified on machines with such versions.

The allowed-signers file is an OpenSSH file of names, keys, validity times and roles:

    ada@example.org valid-before="20270101Z" ssh-ed25519 AAAAC3… roles=compliance,owner

The roles follow the key, where OpenSSH expects a comment. Each key must belong to one person. Refused are therefore
lines with several names, patterns as names, a key under two names, and certificate authorities. Keys of other
namespaces are ignored, so that one file may also serve Git.
"""

import base64
import binascii
import contextlib
import hashlib
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Final

from ranklake.errors import RanklakeError
from ranklake.segments.references import read_reference

SIGN_S: Final = 300.0
"""Timeout for signing, which may need a passphrase or a touch of a token."""
VERIFY_S: Final = 30.0
_MAGIC: Final = b"SSHSIG"
_INSTALL: Final = "apt-get install openssh-client, or dnf install openssh-clients"


class SignatureError(RanklakeError):
    """A signature is invalid or cannot be created. Nothing was written."""


class SigningToolError(RanklakeError):
    """``ssh-keygen`` is missing, too old or too slow, so a signature could not be checked. Nothing was written."""


NAMESPACE: Final = "approval@ranklake"
"""Namespace of our signatures. Signatures of other namespaces, such as Git's, are invalid here."""
FORM: Final = 'NAME valid-before="20270101Z" ssh-ed25519 AAAA… roles=ROLE,ROLE'
_WORD: Final = re.compile(r'(?:[^\s"]|"[^"]*")+')
_OPTION: Final = re.compile(r'([a-z-]+)(?:="([^"]*)")?(?:,|$)', re.IGNORECASE)
_KEY_TYPE: Final = re.compile(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+")
_TIMES: Final = {len("YYYYMMDD"): "%Y%m%d", len("YYYYMMDDHHMM"): "%Y%m%d%H%M", len("YYYYMMDDHHMMSS"): "%Y%m%d%H%M%S"}


class SignersError(RanklakeError):
    """The allowed-signers file is invalid. Nobody can approve until it is fixed."""


@dataclass(frozen=True, slots=True)
class Signer:
    """A key of the allowed-signers file.

    Attributes
    ----------
    name
        The principal: the person who signs with the key.
    key
        Base64 of the public key.
    roles
        Roles of the person.
    after, before
        Validity of the key; None for no bound.
    line
        The line without validity times, for all versions of OpenSSH.
    """

    name: str
    key: str
    roles: frozenset[str]
    after: datetime | None
    before: datetime | None
    line: str

    def why_not(self, at: datetime) -> str:
        """Return why the key is not valid at a time; empty if it is."""
        if self.before is not None and at >= self.before:
            return f"the key of {self.name} expired at {self.before:%Y-%m-%d %H:%M} UTC"
        if self.after is not None and at < self.after:
            return f"the key of {self.name} is not valid before {self.after:%Y-%m-%d %H:%M} UTC"
        return ""


@dataclass(frozen=True, slots=True)
class Signers:
    """The keys of an allowed-signers file, and the SHA-256 of its text."""

    file: str
    sha256: str
    keys: tuple[Signer, ...]

    @property
    def text(self) -> str:
        """The allowed-signers file for ``ssh-keygen``: all lines without validity times."""
        return "".join(f"{signer.line}\n" for signer in self.keys)

    def of_key(self, key: str) -> list[Signer]:
        """Return the entries of a public key (base64)."""
        return [signer for signer in self.keys if signer.key == key]


def load_signers(file: str) -> Signers:
    """Read an allowed-signers file. Raises `SignersError`, with file and line, and `SecretError`."""
    text, where = read_reference(f"file:{file}", "allowed-signers file")
    keys = []
    names: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):  # OpenSSH supports no other line endings
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        signer = _signer(line.strip(), f"{where}:{number}")
        if signer is None:
            continue
        if names.setdefault(signer.key, signer.name) != signer.name:
            message = f"the key of {names[signer.key]} stands there under another name: {signer.name}"
            raise SignersError(message, where=f"{where}:{number}", hint="one key is one person's: take one line out")
        keys.append(signer)
    if not keys:
        raise SignersError("names nobody who may approve", where=where, hint=f"write a line: {FORM}")
    return Signers(where, hashlib.sha256(text.encode()).hexdigest(), tuple(keys))


def _signer(line: str, where: str) -> Signer | None:
    """Parse a line of an allowed-signers file; None for a key of other namespaces. Raises `SignersError`."""
    words = _WORD.findall(line)
    at = next((place for place in (1, 2) if len(words) > place + 1 and _KEY_TYPE.fullmatch(words[place])), 0)
    if not at:
        raise SignersError("is no line of an allowed-signers file", where=where, hint=f"write {FORM}")
    name, options = words[0], _options(words[1] if at == len(("name", "options")) else "", where)
    if re.search(r'[*?!,"]', name):
        message = f"{name} is not one name"
        raise SignersError(message, where=where, hint="write one line for each person, without patterns")
    if "cert-authority" in options:
        message = "an authority would let whoever it certifies approve"
        raise SignersError(message, where=where, hint="write each person's own key")
    if not _is_ours(options.get("namespaces", NAMESPACE).split(",")):
        return None
    listed_roles = [word.removeprefix("roles=") for word in words[at + 2 :] if word.startswith("roles=")]
    roles = frozenset(role for roles_text in listed_roles for role in roles_text.split(",") if role)
    after, before = (_time(options[name], where) if name in options else None for name in _BOUNDS)
    plain = f'{name} namespaces="{NAMESPACE}" {words[at]} {words[at + 1]}'
    return Signer(name, words[at + 1], roles, after, before, plain)


_BOUNDS: Final = ("valid-after", "valid-before")


def _is_ours(spaces: Sequence[str]) -> bool:
    """Whether OpenSSH patterns match our namespace: with `*` and `?`; a pattern after `!` excludes its matches."""
    matching = [space for space in spaces if fnmatchcase(NAMESPACE, space.removeprefix("!").replace("[", "[[]"))]
    return bool(matching) and not any(space.startswith("!") for space in matching)


def _options(text: str, where: str) -> dict[str, str]:
    options: dict[str, str] = {}
    end = 0
    for option in _OPTION.finditer(text):
        if option.start() == end and option[1].lower() not in options:
            options[option[1].lower()] = option[2] or ""
            end = option.end()
    known = {*_BOUNDS, "namespaces", "cert-authority"}
    if end != len(text) or options.keys() - known:
        raise SignersError(f"the options {text} are not understood", where=where, hint=f"write {FORM}")
    return options


def _time(text: str, where: str) -> datetime:
    """Parse a validity time as OpenSSH does: in UTC with a Z at its end, else in this machine's time zone."""
    plain = text.removesuffix("Z")
    try:
        when = datetime.strptime(plain, _TIMES[len(plain)])  # noqa: DTZ007 - the zone comes next
    except (KeyError, ValueError):
        raise SignersError(f"{text} is no time", where=where, hint="write it as 20270101Z") from None
    return when.replace(tzinfo=UTC) if text.endswith("Z") else when.astimezone(UTC)


def sign(text: str, key: str) -> str:
    """Return the signature of a text. ``ssh-keygen`` may ask for a passphrase at the terminal.

    Parameters
    ----------
    key
        Path of a private key, or of a public key whose private key the agent has.

    Raises `SignatureError`.
    """
    path = _present(key)
    done = _run(["-Y", "sign", "-n", NAMESPACE, "-f", str(path)], text, SIGN_S)
    if done.returncode or _MAGIC not in _blob(done.stdout)[: len(_MAGIC)]:
        reason = " ".join(done.stderr.split()[-12:])
        hint = f"try it by itself: echo x | ssh-keygen -Y sign -n {NAMESPACE} -f {key}"
        raise SignatureError(f"ssh-keygen cannot sign with it: {reason}", where=key, hint=hint)
    return done.stdout


def verify(text: str, signature: str, signers: Signers, name: str, at: datetime) -> Signer:
    """Verify that a person signed a text with a key that was valid at a time. Returns the key's entry.

    Raises `SignatureError` with the reason if the signature is invalid, and `SigningToolError` if it cannot be checked.
    """
    key = key_of(signature)
    entries = [signer for signer in signers.of_key(key) if signer.name == name]
    if not entries:  # only names of the file are passed to ssh-keygen: other names may contain anything
        raise SignatureError(_refusal_reason(signers, key, name, entries, at))
    with _anonymous_file(signers.text) as allowed, _anonymous_file(signature) as armoured:
        words = ["-Y", "verify", "-f", _path(allowed), "-I", name, "-n", NAMESPACE, "-s", _path(armoured)]
        done = _run(words, text, VERIFY_S, (allowed.fileno(), armoured.fileno()))
    if "usage: ssh-keygen" in done.stderr:
        raise SigningToolError("this ssh-keygen cannot verify signatures: OpenSSH 8.2 or newer can", hint=_INSTALL)
    valid = [signer for signer in entries if not signer.why_not(at)]
    if done.returncode == 0 and valid:
        return valid[0]
    raise SignatureError(_refusal_reason(signers, key, name, entries, at))


def _refusal_reason(signers: Signers, key: str, name: str, entries: list[Signer], at: datetime) -> str:
    if not entries:
        others = {signer.name for signer in signers.of_key(key)}
        key_owner = f"the key of {min(others)}, not of {name}" if others else f"a key that is not in {signers.file}"
        return f"it is signed by {key_owner}"
    reasons = [signer.why_not(at) for signer in entries]
    return reasons[0] if all(reasons) else "the signature does not hold for what it is said to sign"


def key_of(signature: str) -> str:
    """Return the public key (base64) that a signature contains. Raises `SignatureError`."""
    raw = _blob(signature)
    start = len(_MAGIC) + struct.calcsize(">II")
    length = struct.unpack_from(">I", raw, start - struct.calcsize(">I"))[0] if len(raw) > start else 0
    if not raw.startswith(_MAGIC) or not 0 < length <= len(raw) - start:
        raise SignatureError("this is no SSH signature")
    return base64.b64encode(raw[start : start + length]).decode()


def public_key(key: str) -> str:
    """Return the public key (base64) of a key file, private or public. Raises `SignatureError`."""
    path = _present(key)
    beside = path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub")
    with contextlib.suppress(OSError, UnicodeDecodeError, IndexError):
        return beside.read_text(encoding="utf-8").split()[1]
    done = _run(["-y", "-f", str(path)], "", SIGN_S)
    if done.returncode:
        raise SignatureError("is no SSH key", where=key, hint="make one: ssh-keygen -t ed25519 -f ~/.ssh/id_ed25519")
    return done.stdout.split()[1]


def require_tool() -> str:
    """Return the path of ssh-keygen. Raises `SigningToolError` with the package to install."""
    path = shutil.which("ssh-keygen")
    if path is None:
        raise SigningToolError("ssh-keygen is not installed", hint=_INSTALL)
    return path


def _present(key: str) -> Path:
    path = Path(key).expanduser()
    if not path.is_file():
        raise SignatureError(
            "there is no such key file", where=key, hint="name a private key, or a .pub of the agent's"
        )
    return path


def _blob(signature: str) -> bytes:
    lines = [line.strip() for line in signature.splitlines()]
    body = "".join(line for line in lines if line and not line.startswith("-----"))
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return b""


@contextlib.contextmanager
def _anonymous_file(text: str) -> Iterator[IO[bytes]]:
    """Yield an open file that contains a text and has no name, so that it disappears with the process."""
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        yield file


def _path(file: IO[bytes]) -> str:
    """Return the path under which a child process can open an inherited file."""
    return f"/dev/fd/{file.fileno()}"


def _run(words: list[str], text: str, limit_s: float, files: Sequence[int] = ()) -> "subprocess.CompletedProcess[str]":
    tool = require_tool()
    try:
        return subprocess.run(
            [tool, *words], input=text, capture_output=True, text=True, timeout=limit_s, check=False, pass_fds=files
        )
    except subprocess.TimeoutExpired:
        raise SigningToolError(f"ssh-keygen took longer than {limit_s:g} s", hint="run it again") from None
