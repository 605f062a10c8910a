"""The published data: `RANKLAKE_PUBLISHED_DATA`, or the folder shared/data beside the repository."""

import os
from pathlib import Path

import pytest

from ranklake.lake.store import Lake

DATA = Path(os.environ.get("RANKLAKE_PUBLISHED_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


@pytest.fixture
def published():
    """Return a function from a folder's name to the folder."""

    def folder(name):
        if not (DATA / name).is_dir():
            pytest.skip(f"the published data is not there: {DATA / name}; set RANKLAKE_PUBLISHED_DATA")
        return DATA / name

    return folder


@pytest.fixture
def lake(tmp_path):
    return Lake.create(str(tmp_path / "lake"))


@pytest.fixture
def spool(tmp_path):
    return tmp_path / "spool"
