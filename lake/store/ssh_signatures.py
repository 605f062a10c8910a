"""Signatures by SSH keys: made and verified by ``ssh-keygen -Y``, offline, in a namespace of our own.

The private key stays where it is: on a disk, in the agent, on a token. What is verified is the text, that the key may
sign for the name, and that it might at the time. The times of keys are ours to judge: before 9.1 OpenSSH understands
none in UTC, and before 8.7 none at all, and a certificate is verified by whatever the other machine has.
"""

import base64
import binascii
import contextlib
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.allowed_signers import NAMESPACE, Signer, Signers

SIGN_S: Final = 300.0
"""How long a person has for a passphrase or a touch of a token."""
VERIFY_S: Final = 30.0
_MAGIC: Final = b"SSHSIG"
_INSTALL: Final = "apt-get install openssh-client, or dnf install openssh-clients"


class SignatureError(RanklakeError):
    """A signature that does not hold, or that cannot be made. Nothing was written."""


class SigningToolError(RanklakeError):
    """No ``ssh-keygen`` that can do it is here: it says nothing of any signature. Nothing was written."""


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
    if not mine:  # ssh-keygen is told names of the file alone: others may hold anything
        raise SignatureError(_why(signers, key, name, mine, at))
    with _unnamed(signers.text) as allowed, _unnamed(signature) as armoured:
        words = ["-Y", "verify", "-f", _path(allowed), "-I", name, "-n", NAMESPACE, "-s", _path(armoured)]
        done = _run(words, text, VERIFY_S, (allowed.fileno(), armoured.fileno()))
    if "usage: ssh-keygen" in done.stderr:
        raise SigningToolError("this ssh-keygen cannot verify signatures: OpenSSH 8.2 or newer can", hint=_INSTALL)
    valid = [one for one in mine if not one.why_not(at)]
    if done.returncode == 0 and valid:
        return valid[0]
    raise SignatureError(_why(signers, key, name, mine, at))


def _why(signers: Signers, key: str, name: str, mine: list[Signer], at: datetime) -> str:
    if not mine:
        others = {one.name for one in signers.of_key(key)}
        whose = f"the key of {min(others)}, not of {name}" if others else f"a key that is not in {signers.file}"
        return f"it is signed by {whose}"
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
    found = shutil.which("ssh-keygen")
    if found is None:
        raise SigningToolError("ssh-keygen is not installed", hint=_INSTALL)
    return found


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
def _unnamed(text: str) -> Iterator[IO[bytes]]:
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
