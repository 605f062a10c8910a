"""A lake and a spool beside it, and a disk that is small."""

import os
import subprocess

import pytest
from changed_contracts import changed
from lake_fixtures import lake, spool

__all__ = ["changed", "lake", "spool"]


@pytest.fixture
def small_disk(tmp_path):
    """Return a folder on a file system of 200 kB and a function that makes it larger; needs the right to mount."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to mount a small file system")
    yield place, lambda options: subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)
    subprocess.run(["umount", "--lazy", str(place)], check=True)
