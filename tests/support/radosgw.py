"""A real Ceph object gateway on this machine, for as long as a test module: monitor, one store daemon, radosgw.

Run as a program, it unpacks Debian's packages into a folder: nothing is installed, and nobody needs to be root. The
store daemon keeps objects in memory; whatever conditional writes the gateway honours is Ceph's own doing.
"""

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from stores import KEY, SECRET, free_port, make_bucket, serving

READER, READER_KEY = "arn:aws:iam:::user/reader", "reader-access-key"
"""Another user of the gateway, without any right; the secret is that of the first."""
PACKAGES = ("radosgw", "ceph-mon", "ceph-osd")
FOLDER = Path(__file__).parents[2] / ".stores" / "ceph"
LIBRARIES = "usr/lib/x86_64-linux-gnu" if os.uname().machine == "x86_64" else "usr/lib/aarch64-linux-gnu"
CONFIGURATION = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon_port}
ms bind msgr1 = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
keyring = {folder}/keyring
run dir = {folder}
admin socket =
log file = {folder}/$name.log
mon cluster log file = {folder}/cluster.log
crash dir = {folder}/crash
plugin dir = {libraries}/ceph
erasure code dir = {libraries}/ceph/erasure-code
osd class dir = {libraries}/rados-classes
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 1000
[mon]
mon data = {folder}/mon
mon data avail crit = 1
mon data avail warn = 1
paxos propose interval = 0.01
paxos min wait = 0.01
[osd]
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 2147483648
[client]
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port}
"""


def unpack(folder: Path) -> None:
    """Fetch Debian's packages, and what they need and this machine lacks, and unpack them into a folder."""
    debs = folder / "debs"
    (debs / "lists" / "partial").mkdir(parents=True)
    apt = ["apt-get", *(["-o", "APT::Sandbox::User=root"] if os.getuid() == 0 else [])]
    simulated = ["-s", "install", "--no-install-recommends", *PACKAGES]
    try:
        planned = subprocess.run([*apt, *simulated], check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError:  # a bare machine has no lists of packages: ours go beside the packages
        apt += [
            "-o",
            f"Dir::State::Lists={debs / 'lists'}",
            "-o",
            "Dir::Cache::pkgcache=",
            "-o",
            "Dir::Cache::srcpkgcache=",
        ]
        subprocess.run([*apt, "update"], check=True, stdout=subprocess.DEVNULL)
        planned = subprocess.run([*apt, *simulated], check=True, capture_output=True, text=True).stdout
    names = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
    subprocess.run([*apt, "download", *names], cwd=debs, check=True, stdout=subprocess.DEVNULL)
    for deb in sorted(debs.glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(deb), str(folder)], check=True)
    shutil.rmtree(debs)


@contextlib.contextmanager
def radosgw(folder: Path, ceph: Path = FOLDER) -> Iterator[str]:
    """Serve S3's protocol by radosgw, with one bucket; give its URL. What it keeps is gone afterwards."""
    assert ceph.is_dir(), "no Ceph is unpacked here: run make test-s3"
    mon_port, port, fsid, osd = free_port(), free_port(), str(uuid.uuid4()), str(uuid.uuid4())
    for name in ("mon", "osd", "rgw"):
        (folder / name).mkdir()
    (folder / "keyring").touch()
    libraries, programs = ceph / LIBRARIES, ceph / "usr" / "bin"
    facts = {"fsid": fsid, "mon_port": mon_port, "port": port, "folder": folder, "libraries": libraries}
    (folder / "ceph.conf").write_text(CONFIGURATION.format(**facts))
    paths = f"{libraries}:{libraries}/ceph:{ceph / LIBRARIES.removeprefix('usr/')}"
    env = {**os.environ, "LD_LIBRARY_PATH": paths, "CEPH_CONF": str(folder / "ceph.conf")}

    def work(program: str | Path, *arguments: object) -> None:
        done = subprocess.run([program, *map(str, arguments)], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def daemon(name: str, answers: int, *arguments: str) -> contextlib.AbstractContextManager[str]:
        return serving([str(programs / name), "-f", *arguments], answers, folder / f"{name}.out", env)

    with contextlib.ExitStack() as stack:
        monitor = ["--addv", "a", f"[v2:127.0.0.1:{mon_port}]"]
        work(programs / "monmaptool", "--create", *monitor, "--fsid", fsid, folder / "map")
        work(programs / "ceph-mon", "--mkfs", "-i", "a", "--monmap", folder / "map")
        stack.enter_context(daemon("ceph-mon", mon_port, "-i", "a"))
        # in a process of its own, with its own libraries: Ceph's tool for this would want Debian's Python
        work(sys.executable, __file__, "--tell", json.dumps({"prefix": "osd new", "uuid": osd}))
        work(programs / "ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", osd)
        stack.enter_context(daemon("ceph-osd", mon_port, "-i", "0"))
        user = ["--uid", "tests", "--display-name", "tests", "--access-key", KEY, "--secret-key", SECRET]
        work(programs / "radosgw-admin", "user", "create", *user)
        reader = ["--uid", "reader", "--display-name", "reader", "--access-key", READER_KEY, "--secret-key", SECRET]
        work(programs / "radosgw-admin", "user", "create", *reader)
        url = stack.enter_context(daemon("radosgw", port, "-n", "client.admin"))
        make_bucket(url)
        yield url


def _tell(command: str) -> None:
    """Send the monitor a command."""
    rados = ctypes.CDLL("librados.so.2")
    cluster = ctypes.c_void_p()
    assert rados.rados_create(ctypes.byref(cluster), None) == 0
    assert rados.rados_conf_read_file(cluster, None) == 0
    assert rados.rados_connect(cluster) == 0
    said = (ctypes.c_char_p * 1)(command.encode())
    outputs = [ctypes.byref(kind()) for kind in (ctypes.c_void_p, ctypes.c_size_t) * 2]
    assert rados.rados_mon_command(cluster, said, ctypes.c_size_t(1), None, ctypes.c_size_t(0), *outputs) == 0
    rados.rados_shutdown(cluster)


if __name__ == "__main__":
    if sys.argv[1] == "--tell":
        _tell(sys.argv[2])
    else:
        unpack(Path(sys.argv[1]))
