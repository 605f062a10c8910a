"""Fixtures of the retention room."""

from functools import partial

import pytest
from archiving import policies_in
from changed_contracts import changed
from governed import Site

__all__ = ["changed"]


@pytest.fixture
def site(tmp_path):
    """Give a lake and a spool."""
    return Site(tmp_path)


@pytest.fixture
def archiving(tmp_path):
    """Return what gives the packaged policies with further rules; TO in them is the place of archives."""
    return partial(policies_in, tmp_path)
