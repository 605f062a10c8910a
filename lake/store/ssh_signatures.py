"""Signatures by SSH keys: made and verified by ``ssh-keygen -Y``, offline, in a namespace of our own.

The private key stays where it is: on a disk, in the agent, on a token. What is verified is the text, that the key may
sign for the name, and that it might at the time. The times of keys are ours to judge: before 9.1 OpenSSH understands
none in UTC, and before 8.7 none at all, and a certificate is verified by whatever the other machine has.

Allowed signers are an OpenSSH file of names, keys, times and roles, read so that each key is one person's:

    ada@example.org valid-before="20270101Z" ssh-ed25519 AAAAC3… roles=compliance,owner

The roles stand behind the key, where OpenSSH reads a comment. What would let one person be two is refused: more than
one name on a line, a pattern for a name, a key under two names, an authority that certifies names. Keys of other
namespaces are passed over, so one file may serve Git, too.
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
"""How long a person has for a passphrase or a touch of a token."""
VERIFY_S: Final = 30.0
_MAGIC: Final = b"SSHSIG"
_INSTALL: Final = "apt-get install openssh-client, or dnf install openssh-clients"


class SignatureError(RanklakeError):
    """A signature that does not hold, or that cannot be made. Nothing was written."""


class SigningToolError(RanklakeError):
    """No ``ssh-keygen`` that can do it is here: it says nothing of any signature. Nothing was written."""


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
    """Return what a line says; None for a key of other namespaces."""
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
    roles = frozenset(role for one in listed_roles for role in one.split(",") if role)
    after, before = (_time(options[name], where) if name in options else None for name in _BOUNDS)
    plain = f'{name} namespaces="{NAMESPACE}" {words[at]} {words[at + 1]}'
    return Signer(name, words[at + 1], roles, after, before, plain)


_BOUNDS: Final = ("valid-after", "valid-before")


def _is_ours(spaces: Sequence[str]) -> bool:
    """Whether patterns match our namespace, as OpenSSH's do: `*` and `?`; one after a `!` excludes what it matches."""
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
    """Return a bound as OpenSSH reads it: in UTC with a Z at its end, else in this machine's zone."""
    plain = text.removesuffix("Z")
    try:
        when = datetime.strptime(plain, _TIMES[len(plain)])  # noqa: DTZ007 - the zone comes next
    except (KeyError, ValueError):
        raise SignersError(f"{text} is no time", where=where, hint="write it as 20270101Z") from None
    return when.replace(tzinfo=UTC) if text.endswith("Z") else when.astimezone(UTC)


def sign(text: str, key: str) -> str:
    """Return the signature of a text. May ask for a passphrase at the terminal.

    Parameters
    ----------
    key
        Path of a private key, or of a public one whose private half the agent has.

    Raises `SignatureError`.
    """
    path = _present(key)
    done = _run(["-Y", "sign", "-n", NAMESPACE, "-f", str(path)], text, SIGN_S)
    if done.returncode or _MAGIC not in _blob(done.stdout)[: len(_MAGIC)]:
        why = " ".join(done.stderr.split()[-12:])
        hint = f"try it by itself: echo x | ssh-keygen -Y sign -n {NAMESPACE} -f {key}"
        raise SignatureError(f"ssh-keygen cannot sign with it: {why}", where=key, hint=hint)
    return done.stdout


def verify(text: str, signature: str, signers: Signers, name: str, at: datetime) -> Signer:
    """Return the line of the key by which a name signed a text.

    Raises `SignatureError`, which says why it is none, and `SigningToolError` where that cannot be found out.
    """
    key = key_of(signature)
    mine = [one for one in signers.of_key(key) if one.name == name]
    if not mine:  # ssh-keygen gets names of the file alone: others may hold anything
        raise SignatureError(_refusal_reason(signers, key, name, mine, at))
    with _anonymous_file(signers.text) as allowed, _anonymous_file(signature) as armoured:
        words = ["-Y", "verify", "-f", _path(allowed), "-I", name, "-n", NAMESPACE, "-s", _path(armoured)]
        done = _run(words, text, VERIFY_S, (allowed.fileno(), armoured.fileno()))
    if "usage: ssh-keygen" in done.stderr:
        raise SigningToolError("this ssh-keygen cannot verify signatures: OpenSSH 8.2 or newer can", hint=_INSTALL)
    valid = [one for one in mine if not one.why_not(at)]
    if done.returncode == 0 and valid:
        return valid[0]
    raise SignatureError(_refusal_reason(signers, key, name, mine, at))


def _refusal_reason(signers: Signers, key: str, name: str, mine: list[Signer], at: datetime) -> str:
    if not mine:
        others = {one.name for one in signers.of_key(key)}
        key_owner = f"the key of {min(others)}, not of {name}" if others else f"a key that is not in {signers.file}"
        return f"it is signed by {key_owner}"
    bounds = [one.why_not(at) for one in mine]
    return bounds[0] if all(bounds) else "the signature does not hold for what it is said to sign"


def key_of(signature: str) -> str:
    """Return the public key (base64) that a signature names. Raises `SignatureError`."""
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
    """Return where ssh-keygen is. Raises `SigningToolError` with the package that has it."""
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
    """Give an open file with a text, and without a name: it goes with the process, however that ends."""
    with tempfile.TemporaryFile() as made:
        made.write(text.encode())
        made.seek(0)
        yield made


def _path(file: IO[bytes]) -> str:
    """Return by which path a child that has an open file finds it."""
    return f"/dev/fd/{file.fileno()}"


def _run(words: list[str], text: str, limit_s: float, files: Sequence[int] = ()) -> "subprocess.CompletedProcess[str]":
    tool = require_tool()
    try:
        return subprocess.run(
            [tool, *words], input=text, capture_output=True, text=True, timeout=limit_s, check=False, pass_fds=files
        )
    except subprocess.TimeoutExpired:
        raise SigningToolError(f"ssh-keygen took longer than {limit_s:g} s", hint="run it again") from None
