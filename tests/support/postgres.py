"""A PostgreSQL of its own on loopback, of whatever version the machine has; ``python postgres.py`` says whether it has.

Debian's package lies outside the search path, and its server does not run as root: where this does, it runs as the
user that the package made.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from serving import free_port

QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
HINT = "install it: apt-get install postgresql"


def programs():
    """Return the folder of PostgreSQL's programs; None where there are none."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((place for place in reversed(places) if (place / "initdb").exists()), None)


class Postgres:
    """A server with one database, ``prefect``, of a user of that name, in a folder of its own."""

    def __init__(self):
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._bin = programs()
        self._user = {"user": "postgres"} if os.getuid() == 0 else {}
        if self._user:
            shutil.chown(self.folder, "postgres")
        self._call("initdb", "--auth=trust", "--username=prefect", "--no-sync")

    @property
    def address(self):
        """What Prefect calls it."""
        return f"postgresql+asyncpg://prefect@127.0.0.1:{self.port}/prefect"

    def _call(self, program, *options, check=True):
        command = [self._bin / program, "-D", self.folder / "data", *options]
        return subprocess.run(command, check=check, cwd=self.folder, **QUIET, **self._user)

    def start(self):
        """Start it, and make the database where there is none."""
        place = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories={self.folder}"
        self._call("pg_ctl", "-w", "-l", self.folder / "log", "-o", f"{place} -c fsync=off", "start")
        host = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "prefect"]
        subprocess.run([self._bin / "createdb", *host, "prefect"], check=False, **QUIET)

    def kill(self):
        """End it at once, as a crash does."""
        self._call("pg_ctl", "-m", "immediate", "stop", check=False)

    def end(self):
        """End it, and remove what it kept."""
        self.kill()
        shutil.rmtree(self.folder)


if __name__ == "__main__":
    sys.exit(0 if programs() else f"no PostgreSQL is here; {HINT}")
