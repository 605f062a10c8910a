"""SSH keys of people, and the file that says which of them may sign."""

import shutil
import subprocess

import pytest

from ranklake.lake.store.lake_config import ApprovalsSection
from ranklake.retention.proposals.identities import Signing

needs_ssh_keygen = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed: apt-get install openssh-client"
)


class Keys:
    """Keys in a folder, made when they are first asked for, and the allowed-signers file beside them."""

    def __init__(self, folder):
        self.folder, self.file = folder, folder / "allowed_signers"
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, name):
        """Return the private key of somebody."""
        path = self.folder / name
        if not path.exists():
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{name}@laptop", "-f", str(path)]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        return path

    def line(self, name, options="", roles=""):
        """Return somebody's line of the file."""
        kind, key, _ = self.path(name).with_name(f"{name}.pub").read_text().split(maxsplit=2)
        return " ".join(filter(None, (f"{name}@example.org", options, kind, key, roles and f"roles={roles}")))

    def allow(self, *lines):
        """Write the file: lines, or names of people who may sign without bounds."""
        text = "\n".join(line if " " in line else self.line(line) for line in lines)
        self.file.write_text(f"# who may sign\n\n{text}\n")

    def section(self, **facts):
        """Return a configuration that takes signatures by the file."""
        return ApprovalsSection(allowed_signers=str(self.file), **facts)

    def by(self, name):
        """Return what a command needs to act as somebody."""
        return {"by": f"{name}@example.org", "signing": Signing(key=str(self.path(name)))}
