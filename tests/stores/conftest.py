"""What the tests of stores share; which server they speak to, each module says by its `url`."""

import pytest
from changed_contracts import changed
from stores import Proxy, Store, s3_storage

__all__ = ["changed"]


@pytest.fixture
def place(url, tmp_path):
    """Give an empty place in the server's bucket."""
    return Store(f"s3://bucket/{tmp_path.name}", s3_storage(url))


@pytest.fixture
def proxy(url):
    """Give a proxy before the server."""
    with Proxy(url) as proxy:
        yield proxy
