"""Hostile objects can be made, whatever their dice say: a campaign of hours must not end for an object of its own."""

import random

import pytest
from mutations import KINDS, Case

SEEDS = {"columns": [26, 41]}
"""Of a kind of many ways, seeds of those that could not be made."""


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_hostile_object_can_be_made_of_each_seed(tmp_path, kind):
    """A kind raises nothing of its own, and touches nothing outside the spool."""
    put, _ = KINDS[kind]
    (tmp_path / "outside").mkdir()
    for seed in (0, 1, 2, *SEEDS.get(kind, [])):
        put(Case(seed, random.Random(seed), tmp_path / "spool", tmp_path / "outside"))
    assert list((tmp_path / "outside").iterdir()) == []
