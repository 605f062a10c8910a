"""Fixtures of the retention room."""

from functools import partial

import pytest
from archiving import policies_in
from changed_contracts import changed
from governed import Site
from keyed import section
from lake_fixtures import lake, spool
from people import OLD, with_keys
from retaining import CONTRACTS

from ranklake.retention.policies.policies import load_policies
from ranklake.retention.policies.read import PACKAGED

__all__ = ["changed", "lake", "spool"]


@pytest.fixture
def site(tmp_path):
    """Give a lake and a spool."""
    return Site(tmp_path)


@pytest.fixture
def archiving(tmp_path):
    """Return what gives the packaged policies with further rules; TO in them is the place of archives."""
    return partial(policies_in, tmp_path)


MORE = """version: 1
owner: me
basis: law
review: 2999-01-01
rules:
"""


@pytest.fixture
def policies(tmp_path):
    """Return the packaged policies and further rules, given as lines of YAML."""

    def give(*rules, check=True):
        place = tmp_path / "policies"
        place.mkdir(exist_ok=True)
        (place / "defaults.yaml").write_text((PACKAGED / "defaults.yaml").read_text())
        (place / "more.yaml").write_text(MORE + "".join(f"  {rule}\n" for rule in rules))
        return load_policies(CONTRACTS, place) if check else place

    return give


@pytest.fixture
def keyed(site, tmp_path):
    """Return the site, its lake with a key."""
    return with_keys(site, tmp_path, OLD)


@pytest.fixture
def sealing(tmp_path):
    """Return a lake whose users are stored under keys."""
    found = Site(tmp_path)
    found.lake = found.lake.configured(subjects=section(tmp_path))
    return found
