"""A certificate verifies on another machine: with itself, the allowed signers and ranklake, and nothing else.

Other machines are made of this one, as far as it can look like them: each of `EACH` changes one thing.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path

import libfaketime
import pytest
from erased import signed_erasure
from ssh_keys import needs_ssh_keygen

from ranklake.retention.erasure.certificate import Certificate

DEBIANS = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
NOBODY = 65534
PROGRAM = f"""
import runpy, site
site.addsitedir({sysconfig.get_path("purelib")!r})
runpy.run_module("ranklake", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How a command is run as if elsewhere.

    Attributes
    ----------
    words
        What stands before the interpreter.
    python
        The interpreter.
    variables
        What its environment has beside a path, a home and a user.
    """

    words: tuple[str, ...] = ()
    python: Path = Path(sys.executable)
    variables: dict[str, str] = field(default_factory=dict)

    def __or__(self, other: "Machine") -> "Machine":
        """Return a machine with the differences of both."""
        python = self.python if other.python == Path(sys.executable) else other.python
        return Machine(words=self.words + other.words, python=python, variables=self.variables | other.variables)

    @property
    def is_possible(self) -> bool:
        """Whether this account can make it here."""
        try:
            done = subprocess.run([*self.words, "true"], check=False, capture_output=True)
        except FileNotFoundError:
            return False
        return done.returncode == 0 and self.python.exists()


@dataclass(frozen=True)
class Place:
    """A folder with what is at hand there, and the one that had the lake."""

    folder: Path
    hidden: Path

    def run(self, machine: Machine, *words: str) -> tuple[int, str]:
        """Run ranklake; return its exit code and what it said."""
        own = {"PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), "USER": "auditor", "LANG": "C"}
        command = [*machine.words, str(machine.python), "-c", PROGRAM, *words]
        done = subprocess.run(
            command, cwd=self.folder, env=own | machine.variables, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def verify(self, machine: Machine, found: Certificate, raw: bytes | None = None) -> tuple[int, str]:
        """Verify a certificate, or other bytes under its name, by the guide's command."""
        (self.folder / "evidence" / f"{found.name}.json").write_bytes(raw or found.raw)
        page = (Path(__file__).parents[2] / "docs/erasure.md").read_text()
        (command,) = re.findall(r"^ranklake (erase certificate verify .*--allowed-signers.*)$", page, re.MULTILINE)
        return self.run(machine, *shlex.split(command.replace("evidence/….json", f"evidence/{found.name}.json")))


@pytest.fixture
def place(tmp_path):
    """Give a folder that every account may read."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        for name in ("evidence", "home"):
            (folder / name).mkdir()
        yield Place(folder, tmp_path)


def cut_off(place: Place) -> Machine:
    """Without a network, with an empty folder where the lake was, and under another name."""
    script = 'echo elsewhere >/proc/sys/kernel/hostname && mount -t tmpfs none "$0" && exec "$@"'
    rights = () if os.geteuid() == 0 else ("-r",)
    return Machine(words=("unshare", *rights, "-mnu", "sh", "-c", script, str(place.hidden)))


def another_python(_: Place) -> Machine:
    """Debian's in place of the one that made the certificate."""
    return Machine(python=DEBIANS)


def another_account(_: Place) -> Machine:
    """Nobody, who may write nowhere, not even at home; nor run an interpreter that root keeps at its home."""
    words = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    return Machine(words=words, python=DEBIANS, variables={"USER": "nobody", "LOGNAME": "nobody"})


def another_zone(_: Place) -> Machine:
    """Where it is tomorrow already, in a language of seven bits."""
    return Machine(variables={"TZ": "Pacific/Kiritimati", "LC_ALL": "POSIX", "PYTHONUTF8": "0"})


def a_year_later(_: Place) -> Machine:
    """When the keys that signed have expired."""
    library = next(Path(libfaketime.__file__).parent.rglob("libfaketime.so.1"))
    how = ("FAKETIME=+366d", "FAKETIME_DONT_FAKE_MONOTONIC=1")
    return Machine(words=("env", f"LD_PRELOAD={library}", *how))


def an_older_tool(place: Place) -> Machine:
    """With an ssh-keygen that knows no times: those of keys came with OpenSSH 8.7, those in UTC with 9.1."""
    folder = place.folder / "tools"
    folder.mkdir()
    tool = folder / "ssh-keygen"
    refused = 'case "$*" in *verify-time*) exit 255;; esac\ngrep -q valid- "$4" && exit 255\n'
    tool.write_text(f'#!/bin/sh\n{refused}exec {shutil.which("ssh-keygen")} "$@"\n')
    for one in (folder, tool):
        one.chmod(0o755)
    return Machine(variables={"PATH": f"{folder}:{os.environ['PATH']}"})


EACH = (cut_off, another_python, another_account, another_zone, a_year_later, an_older_tool)


def all_at_once(place: Place) -> Machine:
    """Make one machine of all of these."""
    return reduce(Machine.__or__, (one(place) for one in EACH))


@pytest.mark.slow
@needs_ssh_keygen
@pytest.mark.parametrize("elsewhere", [*EACH, all_at_once], ids=lambda one: one.__name__)
def test_a_certificate_verifies_on_another_machine(site, tmp_path, place, elsewhere):
    """It holds there, and not with one byte altered, nor with other words that were signed; nothing is left there."""
    keys, found = signed_erasure(site, tmp_path)
    bound = f'valid-before="{datetime.now(UTC) + timedelta(days=30):%Y%m%dZ}"'
    keys.allow(*(keys.line(name, bound) for name in ("pia", "ada", "otto")))
    (place.folder / "allowed_signers").write_bytes(keys.file.read_bytes())
    shutil.rmtree(site.folder / "lake")
    shutil.rmtree(keys.file.parent)
    machine = elsewhere(place)
    if not machine.is_possible:
        pytest.skip("this account cannot make this machine look like that")
    code, said = place.verify(machine, found)
    assert code == 0, said
    assert "the certificate is valid; verified: the certificate by itself, signatures" in said
    assert list((place.folder / "home").iterdir()) == []
    at = found.raw.index(b'"items_sha256": "') + len(b'"items_sha256": "')
    code, said = place.verify(machine, found, found.raw[:at] + bytes([found.raw[at] ^ 1]) + found.raw[at + 1 :])
    assert code == 1, said
    assert "is not valid" in said
    facts = json.loads(found.raw)
    step = next(one for one in facts["steps"] if one["action"] == "erasure.approve")
    step["reason"] = "asked for by telephone"
    code, said = place.verify(machine, Certificate(facts))  # under the name that its bytes give it
    assert (code, "(erasure.approve)" in said) == (1, True), said


@pytest.mark.slow
@needs_ssh_keygen
@pytest.mark.parametrize("tool", ["none", "too old"])
def test_a_machine_that_cannot_verify_says_what_it_lacks(site, tmp_path, place, tool):
    """And accuses no signature: what stands there may well hold."""
    keys, found = signed_erasure(site, tmp_path)
    (place.folder / "allowed_signers").write_bytes(keys.file.read_bytes())
    folder = place.folder / "tools"
    folder.mkdir()
    if tool == "too old":
        old = folder / "ssh-keygen"
        old.write_text("#!/bin/sh\necho 'unknown option -- Y\nusage: ssh-keygen [-q]' >&2; exit 1\n")
        old.chmod(0o755)
    code, said = place.verify(Machine(variables={"PATH": str(folder)}), found)
    assert code != 0
    assert {"none": "ssh-keygen is not installed", "too old": "OpenSSH 8.2 or newer can"}[tool] in said
    assert "apt-get install openssh-client" in said
    assert "is not valid" not in said
    assert len(said.splitlines()) == 1
