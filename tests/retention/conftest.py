"""Fixtures of the retention room."""

import pytest
from governed import Site


@pytest.fixture
def site(tmp_path):
    """Give a lake and a spool."""
    return Site(tmp_path)
