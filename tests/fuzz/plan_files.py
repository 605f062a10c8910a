"""Plan files of a lake, and writing one with the digest that goes with it."""

import hashlib
import json


def all_plans(lake):
    """Return the plan files of a lake, in their order."""
    return sorted((lake / "plans").glob("*.json"))


def write_plan(path, facts):
    """Write a plan, and its digest."""
    facts["sha256"] = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(facts, sort_keys=True))
