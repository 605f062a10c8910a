"""A lake, and a spool beside it: what a folder's conftest imports."""

import pytest

from ranklake.lake.storage.store import Lake


@pytest.fixture
def lake(tmp_path):
    return Lake.create(str(tmp_path / "lake"))


@pytest.fixture
def spool(tmp_path):
    return tmp_path / "spool"
