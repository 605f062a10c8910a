"""Fixtures of the quality room."""

import pytest
from governed import Site

from ranklake.quality.engine import Judge


@pytest.fixture
def site(tmp_path):
    """Give a lake and a spool."""
    return Site(tmp_path)


@pytest.fixture(scope="session")
def judge():
    """Give Great Expectations; its import takes seconds."""
    return Judge()
