"""A lake, and a spool beside it."""

import pytest

from ranklake.lake.store import Lake


@pytest.fixture
def lake(tmp_path):
    return Lake.create(str(tmp_path / "lake"))


@pytest.fixture
def spool(tmp_path):
    return tmp_path / "spool"
