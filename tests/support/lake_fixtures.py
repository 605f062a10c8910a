"""A lake, and a spool beside it: what a folder's conftest imports. And copies of a lake that took long to make."""

import shutil
from pathlib import Path

import pytest

from ranklake.lake.store.lake import Lake


@pytest.fixture
def lake(tmp_path):
    return Lake.create(str(tmp_path / "lake"))


@pytest.fixture
def spool(tmp_path):
    return tmp_path / "spool"


def copied(lake: Lake, folder: Path) -> Lake:
    """Return a lake of one's own with all that is in another, below a folder; no path is written into a lake."""
    shutil.copytree(lake.uri, folder / "lake")
    return Lake.open(str(folder / "lake"))
